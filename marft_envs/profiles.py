"""Teams from a JSON file: profiles in the released format, a list of ``{"role", "prompt", "with_answer"}``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marft_envs.errors import ConfigError
from marft_envs.types import AgentSpec


def numbered(*members: tuple[str, str, bool]) -> tuple[AgentSpec, ...]:
    """Names the members (role, profile, answers) of a team: ``solver_0``, ``solver_1`` and so on."""
    seen: Counter[str] = Counter()
    out = []
    for role, prompt, with_answer in members:
        out.append(AgentSpec(f"{role}_{seen[role]}", role, prompt, with_answer))
        seen[role] += 1
    return tuple(out)


_CHATML = re.compile(r"^<\|im_start\|>\s*system\s*:?\s*|\s*<\|im_end\|>\s*$")


def load_profiles(source: str | Path | Sequence[Mapping[str, Any]]) -> tuple[AgentSpec, ...]:
    r"""Returns the agents of a profile list in the released format, acting in the order listed.

    Hand-written ChatML around a prompt is taken off (the model's own chat template puts it on), and
    doubled braces become single ones: ``\boxed{{}}`` is a leftover of Python formatting.

    Args:
        source: Path of a JSON file, or the list itself: ``role``, ``prompt``, ``with_answer``, and, for several
            agents alike, ``count``.

    Raises:
        ConfigError: If the file or an entry is malformed, or no agent answers.
    """
    where = "profiles"
    entries: Any = source
    if isinstance(source, str | Path):
        where = str(source)
        try:
            entries = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"Cannot read profiles from {source}: {error}. Expected a JSON list of profiles."
            ) from error
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise ConfigError(f'{where}: expected a list of {{"role", "prompt", "with_answer"}}.')
    members = []
    for i, entry in enumerate(entries):
        if (
            not isinstance(entry, Mapping)
            or not isinstance(entry.get("role"), str)
            or not isinstance(entry.get("prompt"), str)
        ):
            raise ConfigError(
                f'{where}, entry {i}: expected {{"role": text, "prompt": text, "with_answer": true or false}}.'
            )
        count = entry.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"{where}, entry {i}: count is {count!r}; expected how many agents, 1 or more.")
        role = re.sub(r"[^a-z]+", "_", entry["role"].lower()).strip("_") or "agent"
        prompt = _CHATML.sub("", entry["prompt"]).replace("{{", "{").replace("}}", "}").strip()
        members += [(role, prompt, bool(entry.get("with_answer", False)))] * count
    agents = numbered(*members)
    check_answerer(agents, where)
    return agents


def check_answerer(agents: Sequence[AgentSpec], where: str) -> None:
    """Raises a ConfigError unless somebody's action is the team's answer."""
    if not any(agent.with_answer for agent in agents):
        roles = ", ".join(agent.role for agent in agents)
        raise ConfigError(
            f'{where}: no agent answers ({roles}). Set "with_answer": true on the one whose action is the answer.'
        )
