"""Defines teams: the agents, their profiles, and their D. A team is data, and so are profiles."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from marft_envs.core.dependency import Chain
from marft_envs.core.env import FlexEnv
from marft_envs.core.faults import plain
from marft_envs.core.types import AgentSpec, Example, Skill, Task
from marft_envs.errors import ConfigError, check_known, did_you_mean, reading

Profile = str | Mapping[str, Any]
"""An agent's ``prompt``, or an object of ``prompt`` and ``examples``; a part that is left out stays as it is."""
Profiles = str | Path | Sequence[Mapping[str, Any]] | Mapping[str, Profile]
"""Agent or role -> its profile; or a list of profiles (see :func:`load_profiles`); or a JSON file with either."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Team:
    """Agents, their D, and what a task with tools wants to know of them."""

    agents: tuple[AgentSpec, ...]
    """In canonical order."""
    dependency: Callable[[], Any]
    """Makes their D: anything that :func:`marft_envs.core.dependency.as_dependency` takes."""
    rounds: int = 1
    """Most rounds of an episode, where the task does not end it."""
    remembers: bool = False
    """Whether D itself says what is seen of earlier rounds."""
    holds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Agent -> tools of the domain."""
    enders: frozenset[str] = frozenset()
    """Agents with the tool ``finish``; a reply of theirs without a call ends the user's turn, too."""
    transfers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Agent -> agents to which it can hand control, by a tool ``transfer_to_…``."""
    routers: frozenset[str] = frozenset()
    """Enders whose words, where they name another agent, hand over to it instead of ending."""
    user: str = ""
    """The agent that plays the user: it alone is shown what the user wants, and its words go to the others."""
    end_marker: str = ""
    """Words of the user's that end its turn."""
    readers: frozenset[str] | None = None
    """Agents that see a problem's document; None: all."""
    terse: frozenset[str] = frozenset()
    """Agents of whose messages others see one word or one number only; a longer message is a question mark."""
    screened: frozenset[str] = frozenset()
    """Agents that never read what their calls return: readers without tools do, and answer them tersely."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Agent -> the policy that it reads in place of the domain's; "" for none."""

    def changed(self, profiles: Profiles | None = None, dependency: Any = None) -> Team:
        """Returns the team with other profiles and another D.

        Args:
            profiles: By agent or role, they replace the profiles; as a list, they replace the agents, which then act in
                the order listed; or the path of a JSON file with either. None: as they are.
            dependency: Anything that :func:`marft_envs.core.dependency.as_dependency` takes; None: as it is.

        Raises:
            ConfigError: A profile is for an unknown agent or role, or is malformed.
        """
        team, where = self, "profiles"
        if isinstance(profiles, str | Path):
            where, profiles = str(profiles), read_profiles(profiles)
            if profiles == {}:
                raise ConfigError(f"{where} holds no profile. Expected an object of agent or role -> profile.")
        if isinstance(profiles, Mapping):
            team = replace(team, agents=_with_profiles(team.agents, profiles, where))
        elif profiles is not None:
            team = replace(team, agents=_listed(profiles, where), dependency=Chain, remembers=False)
        return team if dependency is None else replace(team, dependency=lambda: dependency, remembers=False)

    def ended_by(self, marker: str) -> Team:
        """Returns the team whose user ends its turn with these words, too, as its profile then says; "": as it is.

        Raises:
            ConfigError: No agent plays the user.
        """
        if not marker:
            return self
        if not self.user:
            raise ConfigError(
                "end_marker is for teams with a user-agent. Next: tools-dual_control-v0, or leave it out."
            )
        more = f"Say {marker} when you are done."
        agents = (replace(a, prompt=f"{a.prompt} {more}".lstrip()) if a.name == self.user else a for a in self.agents)
        return replace(self, agents=tuple(agents), end_marker=marker)

    def on(self, task: Task, rounds: int | None = None, **flex: Any) -> FlexEnv:
        """Sets the team to a task.

        Args:
            task: What it works on.
            rounds: Most rounds of an episode; None: the team's own number.
            **flex: Settings of :class:`FlexEnv`. With several rounds all agents see the earlier ones by default
                (``history="team"``), unless D = 0 or D says itself what is seen of them. ``max_rounds`` is ``rounds``.

        Raises:
            ConfigError: ``rounds`` and ``max_rounds`` differ.
        """
        limit = flex.pop("max_rounds", rounds)
        if rounds not in (None, limit):
            raise ConfigError(f"rounds is {rounds} and max_rounds is {limit}; expected one of them: they are the same.")
        rounds = self.rounds if limit is None else limit
        if rounds > 1 and not self.remembers:
            flex.setdefault("history", "team")
        return FlexEnv(self.agents, task, self.dependency(), max_rounds=rounds, **flex)


def named(kind: str, name: str, teams: Mapping[str, _T]) -> _T:
    """Returns the team of that name, or raises a ConfigError that names the nearest."""
    check_known([name], teams, f"There is no {kind} team '{{}}'.")
    return teams[name]


def member(role: str, prompt: str, *, with_answer: bool = False, number: int = 0) -> AgentSpec:
    """Returns an agent that is named by its role and number: ``solver_0``."""
    return AgentSpec(f"{role}_{number}", role, prompt, with_answer)


def numbered(*members: tuple[str, str, bool]) -> tuple[AgentSpec, ...]:
    """Names the members (role, profile, answers) of a team: ``solver_0``, ``solver_1`` and so on."""
    seen: Counter[str] = Counter()
    out = []
    for role, prompt, with_answer in members:
        out.append(member(role, prompt, with_answer=with_answer, number=seen[role]))
        seen[role] += 1
    return tuple(out)


_LISTED = ("role", "prompt", "with_answer", "examples", "skills", "trained", "count")
"""Fields of a profile in a list."""
_CHATML = re.compile(r"^<\|im_start\|>\s*system\s*:?\s*|\s*<\|im_end\|>\s*$")


def load_profiles(source: str | Path | Sequence[Mapping[str, Any]]) -> tuple[AgentSpec, ...]:
    r"""Returns the agents of a profile list in the released format, acting in the order listed.

    Hand-written ChatML around a prompt is taken off (the model's own chat template puts it on), and
    doubled braces become single ones: ``\boxed{{}}`` is a leftover of Python formatting.

    Args:
        source: Path of a JSON file, or the list itself: ``role``, ``prompt``, ``with_answer``, and, if wanted,
            ``examples`` (a list of ``user``, ``assistant``) and, for several agents alike, ``count``. Fields of others,
            such as the released ``device``, are left out with a note.

    Raises:
        ConfigError: If the file or an entry is malformed, or no agent answers.
    """
    if isinstance(source, str | Path):
        return _listed(read_profiles(source), str(source))
    return _listed(source, "profiles")


def read_profiles(source: str | Path) -> Any:
    """Returns what a file of profiles holds.

    Raises:
        ConfigError: It is no JSON file.
    """
    expected = "Expected a JSON file: a list of profiles, or an object of agent or role -> profile."
    with reading(f"Cannot read profiles from {source}", expected):
        return json.loads(Path(source).read_text(encoding="utf-8"))


def _with_profiles(agents: Sequence[AgentSpec], profiles: Mapping[str, Profile], where: str) -> tuple[AgentSpec, ...]:
    """Returns the agents with the profiles that are for them; one for an agent goes before one for its role."""
    known = {name for agent in agents for name in (agent.name, agent.role)}
    for name, profile in profiles.items():
        check_known([name], known, "There is no agent or role '{}' to have a profile.")
        if not isinstance(profile, str | Mapping):
            raise ConfigError(f"{where}, {name}: expected text, or an object of prompt and examples.")
        _check_fields(
            profile if isinstance(profile, Mapping) else {}, ("prompt", "examples", "skills"), f"{where}, {name}"
        )
    changed = []
    for agent in agents:
        profile = profiles.get(agent.name, profiles.get(agent.role, {}))
        if isinstance(profile, str):
            changed.append(replace(agent, prompt=profile))
            continue
        prompt = profile.get("prompt", agent.prompt)
        if not isinstance(prompt, str):
            raise ConfigError(f"{where}, {agent.name}: the prompt is {prompt!r}; expected text.")
        examples = _examples(profile["examples"], f"{where}, {agent.name}") if "examples" in profile else agent.examples
        skills = _skills(profile["skills"], f"{where}, {agent.name}") if "skills" in profile else agent.skills
        changed.append(replace(agent, prompt=prompt, examples=examples, skills=skills))
    return tuple(changed)


def _check_fields(entry: Mapping[str, Any], known: Sequence[str], where: str, *, foreign: bool = False) -> list[str]:
    """Refuses a field that nobody reads: it is a known one, mistyped.

    Args:
        entry: Field -> value.
        known: Fields that are read.
        where: For the error.
        foreign: Others write this format, too (the released code: ``device``): what is like no known field is theirs.

    Returns:
        Fields that are not read.
    """
    unknown = [str(field) for field in entry if field not in known]
    for field_ in unknown:
        if not foreign or get_close_matches(field_, known):
            raise ConfigError(f"{where}: there is no field '{field_}'. {did_you_mean(field_, known)}")
    return unknown


@cache
def _note(text: str) -> None:
    """Says something once, however many environments are made of one file."""
    print(plain(f"note: {text}"), file=sys.stderr)


def _examples(entries: Any, where: str) -> tuple[Example, ...]:
    form = 'expected a list of {"user": a prompt of the agent, "assistant": what it should say}'
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ConfigError(f"{where}, examples: {form}.")
    for i, entry in enumerate(entries):
        fields = entry if isinstance(entry, Mapping) else {}
        if set(fields) != {"user", "assistant"} or not all(isinstance(text, str) for text in fields.values()):
            raise ConfigError(f"{where}, example {i}: {form}, both texts.")
    return tuple(Example(entry["user"], entry["assistant"]) for entry in entries)


def _skills(entries: Any, where: str) -> tuple[Skill, ...]:
    form = 'expected an object of name -> {"when": what it is for, "text": the procedure}'
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{where}, skills: {form}.")
    for name, entry in entries.items():
        fields = entry if isinstance(entry, Mapping) else {}
        if set(fields) != {"when", "text"} or not all(
            isinstance(text, str) and text.strip() for text in fields.values()
        ):
            raise ConfigError(f"{where}, skill {name!r}: {form}, both texts.")
    return tuple(Skill(str(name), entry["when"], entry["text"]) for name, entry in entries.items())


def _listed(entries: Any, where: str) -> tuple[AgentSpec, ...]:
    """Returns the agents of a list of profiles; see :func:`load_profiles`."""
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise ConfigError(
            f'{where}: expected a list of {{"role", "prompt", "with_answer"}}, or an object of agent or role ->'
            " profile."
        )
    agents, seen = list[AgentSpec](), Counter[str]()
    for i, entry in enumerate(entries):
        if (
            not isinstance(entry, Mapping)
            or not isinstance(entry.get("role"), str)
            or not isinstance(entry.get("prompt"), str)
        ):
            raise ConfigError(
                f'{where}, entry {i}: expected {{"role": text, "prompt": text, "with_answer": true or false}}.'
            )
        if left := _check_fields(entry, _LISTED, f"{where}, entry {i}", foreign=True):
            _note(f"{where}: nothing here reads {', '.join(left)}; left out")
        for flag in ("with_answer", "trained"):
            if not isinstance(entry.get(flag, False), bool):
                raise ConfigError(
                    f"{where}, entry {i}: {flag} is {entry[flag]!r}; expected true or false, without quotes."
                )
        count = entry.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"{where}, entry {i}: count is {count!r}; expected how many agents, 1 or more.")
        role = re.sub(r"[^a-z]+", "_", entry["role"].lower()).strip("_") or "agent"
        prompt = _CHATML.sub("", entry["prompt"]).replace("{{", "{").replace("}}", "}").strip()
        here = f"{where}, entry {i}"
        more: dict[str, Any] = {
            "examples": _examples(entry.get("examples", ()), here),
            "skills": _skills(entry.get("skills", {}), here),
            "trained": entry.get("trained", True),
        }
        for _ in range(count):
            agents.append(
                replace(member(role, prompt, with_answer=entry.get("with_answer", False), number=seen[role]), **more)
            )
            seen[role] += 1
    check_answerer(agents, where)
    return tuple(agents)


def doubled(prompt: str) -> str:
    """Returns a prompt as a list of profiles has it, with doubled braces."""
    return prompt.replace("{", "{{").replace("}", "}}")


def check_answerer(agents: Sequence[AgentSpec], where: str) -> None:
    """Raises a ConfigError unless somebody's action is the team's answer."""
    if not any(agent.with_answer for agent in agents):
        roles = ", ".join(agent.role for agent in agents)
        raise ConfigError(
            f'{where}: no agent answers ({roles}). Set "with_answer": true on the one whose action is the answer.'
        )
