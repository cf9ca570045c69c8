"""Model cards: what an exported folder is, what it reached, how it is loaded and spoken to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import indent

from huggingface_hub import ModelCardData

from marft_algos.config.settings import TrainConfig
from marft_algos.terminal import clean
from marft_algos.workbench.export.bases import ExportBase
from marft_envs.core.types import AgentSpec

_LOAD_ADAPTER = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, {tokenizer}, GenerationConfig

base = AutoModelForCausalLM.from_pretrained("{base}", dtype="{dtype}")
model = PeftModel.from_pretrained(base, "{name}")
"""
_LOAD_MODEL = """\
from transformers import AutoModelForCausalLM, {tokenizer}, GenerationConfig

model = AutoModelForCausalLM.from_pretrained("{name}", dtype="{dtype}")
"""
_ASK = """\
tokenizer = {tokenizer}.from_pretrained("{name}")
settings = GenerationConfig.from_pretrained("{name}")

profile = {profile!r}
messages = {messages}
prompt = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True{more}
)
reply = model.generate(**prompt, generation_config=settings)
print(tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""


@dataclass(frozen=True, slots=True)
class ExportedTeam:
    """What the cards of a team have in common."""

    config: TrainConfig
    agents: Mapping[str, str]
    """Agent -> policy."""
    profiles: Mapping[str, AgentSpec]
    """Agent -> who it is, and what it is told."""
    results: str
    """What the exported weights reached, as Markdown."""
    command: str
    """What trained them; empty: unknown."""


@dataclass(frozen=True, slots=True)
class ExportedPart:
    """One exported folder."""

    policy: str
    kind: str
    """``adapter``, ``model`` (whole weights) or ``gguf``."""
    base: ExportBase
    reference: str
    """How a loader names its base model."""
    name: str
    """How a loader names the folder: its hub id, or ``.`` for the present one."""
    tokenizer: str = "AutoTokenizer"
    """Class that reads its tokenizer."""
    dtype: str = "float32"
    """In which its results were reached."""
    file: str = ""
    """Name of the GGUF file."""


def policy_card(part: ExportedPart, team: ExportedTeam) -> str:
    """Writes the README.md of an exported policy."""
    config = team.config
    data = ModelCardData(
        base_model=_hub_base(part),
        library_name={"adapter": "peft", "model": "transformers", "gguf": "gguf"}[part.kind],
        license=part.base.license or None,
        pipeline_tag="text-generation",
        tags=["marft", "multi-agent", "reinforcement-learning", *(["lora"] if part.kind == "adapter" else [])],
    )
    played = [agent for agent, policy in team.agents.items() if policy == part.policy]
    shape = f" of rank {config.lora_r}" if part.kind == "adapter" else ""
    what = {"adapter": f"A LoRA adapter{shape} on", "model": "All weights, made of", "gguf": "All weights as GGUF, of"}
    lines = [
        f"# {part.policy}, trained in {config.env}",
        "",
        f"{what[part.kind]} `{part.base.origin or part.base.spec}`{_copied(part)}, trained with MARFT's `{config.algo}`"
        f" to play {', '.join(f'`{agent}`' for agent in played) or 'in training'}.",
        "",
        "## Results",
        "",
        team.results,
        *(["", "Trained by:", "", indent(team.command, "    ")] if team.command else []),
        "",
        "## Load",
        "",
        *_loading(part, team, played),
        "",
        "## What the agents are told",
        "",
    ]
    for agent, policy in team.agents.items():
        own = " (this policy)" if policy == part.policy else ""
        lines += [f"`{agent}` plays with `{policy}`{own}. Its system message:", "", _quoted(team, agent), ""]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n".join(lines)


def base_card(base: ExportBase, pushed: bool) -> str:
    """Writes the README.md of a base model's copy."""
    data = ModelCardData(
        base_model=base.origin or None, library_name="transformers", license=base.license or None, tags=["marft"]
    )
    made = f" It was made of `{base.origin}`: what the blocks of its GGUF file stand for, in float32." * bool(
        base.origin
    )
    where = "this repository" if pushed else "this folder"
    return (
        f"---\n{data.to_yaml()}\n---\n\n# {base.spec}\n\nThe base model of adapters that were trained with MARFT; its"
        f" weights are untrained.{made} The adapters' `base_model_name_or_path` names {where}.\n"
    )


def _copied(part: ExportedPart) -> str:
    return f" (its weights are in `{part.reference}`)" if part.base.folder and part.kind == "adapter" else ""


def _hub_base(part: ExportedPart) -> str | None:
    """Returns the base model as hubs know it: they refuse a path."""
    return part.base.origin or None if part.reference.startswith("..") else part.reference


def _loading(part: ExportedPart, team: ExportedTeam, played: list[str]) -> list[str]:
    """Shows how it is loaded and asked, in a program that runs as it stands."""
    if part.kind == "gguf":
        return [f"    llama-server -m {part.file} --port 8080", "", "It answers as OpenAI's API does, at `/v1`."]
    profile = team.profiles[played[0]].prompt if played else ""
    system = part.base.chat.system
    messages = (
        '[{"role": "system", "content": profile}, {"role": "user", "content": "What the agent sees."}]'
        if system
        else '[{"role": "user", "content": profile + "\\n\\n" + "What the agent sees."}]'
    )
    load = _LOAD_ADAPTER if part.kind == "adapter" else _LOAD_MODEL
    more = "" if part.base.chat.thinking or "enable_thinking" not in _template(part) else ", enable_thinking=False"
    program = (load + _ASK).format(
        tokenizer=part.tokenizer,
        base=part.reference,
        name=part.name,
        dtype=part.dtype,
        profile=profile,
        messages=messages,
        more=more,
    )
    where = ["In this folder:", ""] if part.name == "." else []
    return [*where, "```python", *program.rstrip().splitlines(), "```"]


def _template(part: ExportedPart) -> str:
    template = part.base.chat.tokenizer.chat_template
    return template if isinstance(template, str) else ""


def _quoted(team: ExportedTeam, agent: str) -> str:
    spec = team.profiles.get(agent)
    return indent(clean(spec.prompt), "    ", lambda line: True) if spec is not None else "    (unknown)"
