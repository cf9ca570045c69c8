"""Model cards: what an exported folder is, what it reached, how it is loaded and spoken to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from marft_algos.config.settings import TrainConfig
from marft_algos.extras.export.bases import ExportBase
from marft_algos.terminal import clean
from marft_envs.core.types import AgentSpec

_FOLDER = resources.files("marft_algos.extras.export") / "cards"


@dataclass(frozen=True, slots=True)
class ExportedTeam:
    """What the cards of a team have in common."""

    config: TrainConfig
    agents: Mapping[str, str]
    """Agent -> policy."""
    profiles: Mapping[str, AgentSpec]
    """Agent -> who it is, and its profile."""
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


def _card(template: str, data: dict[str, Any], **content: Any) -> str:
    """Writes a README.md; what has no value is left out of its front matter."""
    known: dict[str, Any] = {key: value or None for key, value in data.items()}
    return str(
        ModelCard.from_template(ModelCardData(**known), template_path=str(_FOLDER / f"{template}.md.jinja"), **content)
    )


def policy_card(part: ExportedPart, team: ExportedTeam) -> str:
    """Writes the README.md of an exported policy."""
    data = {
        # Hubs refuse a path.
        "base_model": part.base.origin if part.reference.startswith("..") else part.reference,
        "library_name": {"adapter": "peft", "model": "transformers", "gguf": "gguf"}[part.kind],
        "license": part.base.license,
        "pipeline_tag": "text-generation",
        "tags": ["marft", "multi-agent", "reinforcement-learning", *(["lora"] if part.kind == "adapter" else [])],
    }
    chat, played = part.base.chat, [agent for agent, policy in team.agents.items() if policy == part.policy]
    return _card(
        "policy",
        data,
        part=part,
        team=team,
        played=played,
        profile=repr(team.profiles[played[0]].prompt if played else ""),
        silent=not chat.thinking and "enable_thinking" in str(chat.tokenizer.chat_template),
        profiles={agent: clean(spec.prompt) for agent, spec in team.profiles.items()},
    )


def base_card(base: ExportBase, pushed: bool) -> str:
    """Writes the README.md of a base model's copy."""
    data = {"base_model": base.origin, "library_name": "transformers", "license": base.license, "tags": ["marft"]}
    return _card("base", data, base=base, pushed=pushed)


def team_card(team: ExportedTeam, name: str, licenses: set[str]) -> str:
    """Writes the README.md of the folder of a whole team.

    Args:
        team: What is said of it.
        name: As others type it.
        licenses: Those of its base models; the team has one if they have, and it is known.
    """
    tags = ["marft", "multi-agent", "reinforcement-learning"]
    data = {"library_name": "marft", "license": "".join(licenses) if len(licenses) == 1 else "", "tags": tags}
    return _card("team", data, team=team, name=name)
