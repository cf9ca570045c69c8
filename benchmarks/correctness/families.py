"""What model families need: a table of their chat templates, as the package ``trl`` carries them.

    python -m benchmarks families [--trl FOLDER]            # prints the table
    python -m benchmarks families [--trl FOLDER] --write    # puts it into docs/call-formats.md

FOLDER is where ``pip install --no-deps --target FOLDER trl==1.16.0`` has put the package; only its templates are read.
The columns are what the template does when it is asked.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from marft_algos.models.probing import NAME, TOOL, Render, common, read_back
from marft_envs.call_formats import CallFormat
from marft_envs.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/call-formats.md"
MARKS = ("<!-- families: python -m benchmarks families --write -->", "<!-- end of families -->")
COLUMNS = (
    "family", "system", "tools", "call format", "opens a reply", "closes a reply", "thinking switch",
)  # fmt: skip

FAMILIES = {
    "Aya Expanse, Command R": "cohere", "Command R7B, Tiny Aya": "cohere2", "DeepSeek V3": "deepseekv3",
    "DeepSeek R1 distilled (Qwen)": "deepseek_r1_distill", "DiffusionGemma": "diffusion_gemma",
    "Gemma, Gemma 2": "gemma", "Gemma 3": "gemma3", "Gemma 4": "gemma4_v5", "GLM-4.5, GLM-4.6": "glm4moe",
    "gpt-oss": "gptoss", "Idefics 3": "idefics3", "LFM2": "lfm2_v2", "LFM2.5": "lfm2_2_5_v2",
    "LFM2.5-VL": "lfm2_2_5_vl", "Llama 3": "llama3", "Llama 3.1": "llama3_1", "Llama 3.2": "llama3_2",
    "LLaVA-NeXT": "llava_next", "Muse Glimmer": "muse_glimmer", "Nemotron 3 Nano": "nemotron_3_nano",
    "Nemotron 3 Ultra": "nemotron_3_ultra", "Phi-3": "phi3", "Phi-3.5": "phi3_5", "Qwen2.5": "qwen2_5",
    "Qwen2.5-VL": "qwen2_5_vl", "Qwen3": "qwen3", "Qwen3 Instruct 2507": "qwen3_instruct_2507", "Qwen3-VL": "qwen3_vl",
    "Qwen3.5 (4B and larger)": "qwen3_5_think", "Qwen3.6": "qwen3_6", "SmolVLM": "smolvlm",
}  # fmt: skip
"""Family -> its template in trl (the latest revision)."""

SYSTEM, TASK, REPLY, MORE = (f"zqx{i}zqx" for i in (1, 2, 4, 8))
SWITCHES = {"enable_thinking": (True, False), "thinking": (True, False), "reasoning_effort": ("high", "medium", "low")}
"""Options of templates that turn thoughts on or off, or say how long they shall be; MARFT sets the first one."""
REFUSES = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a template raises that has no place for what it is shown."""
_CLOSING = re.compile(r"\s*((?:<[^<>\s]+>|\[[^\[\]\s]+\])+)")


def templates(folder: Path | None) -> Path:
    """Returns the folder of trl's templates; raises ``ConfigError`` where there is none."""
    spec = None if folder else importlib.util.find_spec("trl")
    found = (folder or Path()) / "trl" if spec is None else Path(spec.origin or "").parent
    if not (found / "chat_templates").is_dir():
        raise ConfigError(
            "The templates of the package trl are not here. Type: pip install --no-deps --target FOLDER trl==1.16.0;"
            " then: python -m benchmarks families --trl FOLDER"
        )
    return found / "chat_templates"


def renderer(text: str) -> Render:
    """Returns what renders a conversation by a template; None where the template refuses it."""

    def render(messages: Sequence[Mapping[str, Any]], **options: Any) -> str | None:
        tools = options.pop("tools", None)
        settings = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
        try:
            rendered = render_jinja_template(
                [[dict(message) for message in messages]], tools=tools, chat_template=text, **{**settings, **options}
            )
        except REFUSES:
            return None
        return str(rendered[0][0])

    return render


def asked(render: Render) -> list[str]:
    """Returns what a template does: the columns from "system" to "thinking switch"."""
    talk = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    shown = render(talk) or ""
    system = SYSTEM in shown and TASK in shown
    head = talk if system else talk[1:]
    prompt = render(head) or ""
    if TASK not in prompt:
        return ["–", "–", "refused: it leaves out messages that are plain text", "–", "–", "–"]
    tools = render(head, tools=[TOOL]) or ""
    call_format, reason = read_back(render, head, tools or prompt)
    return [
        _yes(system),
        _yes(NAME in tools),
        _calls(NAME in tools, call_format, reason),
        _code(prompt[common(prompt, render(head, add_generation_prompt=False) or "") :]),
        closing(render, head),
        "; ".join(filter(None, (switch(render, head, name, values) for name, values in SWITCHES.items()))) or "no",
    ]


def closing(render: Render, head: Sequence[Mapping[str, Any]]) -> str:
    """Returns the marks that a template writes behind a reply, the last one's and those of one that is answered."""
    said = [*head, {"role": "assistant", "content": REPLY}]
    texts = [render([*said, *more], add_generation_prompt=False) for more in ([], [{"role": "user", "content": MORE}])]
    last, earlier = ((text or "").split(REPLY)[-1].split(MORE)[0] for text in texts)
    ends, follows = _CLOSING.match(last), _CLOSING.match(earlier)
    if ends is None:
        return "nothing" if follows is None else f"nothing ({_code(follows[1])} opens the next turn)"
    if follows is not None and not follows[1].startswith(ends[1]):
        return f"{_code(ends[1])}; {_code(follows[1].partition('><')[0] + '>')} if another turn follows"
    return _code(ends[1])


def switch(render: Render, head: Sequence[Mapping[str, Any]], name: str, values: Sequence[object]) -> str:
    """Returns an option that changes the prompt and its default, "" if it changes nothing."""
    spoken = {"True": "on", "False": "off"}
    prompts = {render(head, **{name: value}): spoken.get(str(value), str(value)) for value in values}
    return f"`{name}` ({prompts.get(render(head), 'none')} by default)" if len(prompts) > 1 else ""


def table(folder: Path) -> str:
    """Returns the table; families whose templates do the same share a row."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for family, template in FAMILIES.items():
        answers = asked(renderer((folder / f"{template}.jinja").read_text(encoding="utf-8")))
        shared.setdefault(tuple(answers), []).append(family)
    rows = [COLUMNS, ("---",) * len(COLUMNS), *((", ".join(names), *answers) for answers, names in shared.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(made: str) -> str:
    """Returns the page on call formats with this table."""
    text = PAGE.read_text(encoding="utf-8")
    if [text.count(mark) for mark in MARKS] != [1, 1]:
        raise ConfigError(f"docs/call-formats.md needs each of the lines {' and '.join(MARKS)} once.")
    before, rest = text.split(MARKS[0])
    return f"{before}{MARKS[0]}\n{made}\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


def _calls(shown: bool, call_format: CallFormat | None, reason: str) -> str:
    if shown:
        return f"refused: {reason}" if call_format is None else f"`{call_format.name}`"
    return "refused: it shows no tools" + (
        f" (it writes calls as `{call_format.name}`)" if call_format is not None else ""
    )


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|').replace(chr(10), '⏎')}`" if text else "nothing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", type=Path, help="folder that trl was installed into; else it is looked for")
    parser.add_argument("--write", action="store_true", help="put the table into docs/call-formats.md")
    given = parser.parse_args()
    made = table(templates(given.trl))
    if given.write:
        PAGE.write_text(page(made), encoding="utf-8")
    else:
        print(made)


if __name__ == "__main__":
    main()
