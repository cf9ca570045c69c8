"""Teams of agents that use tools on a stateful world: ``make(team_name, domain)`` and what domains are made of."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from marft_envs.call_formats import DEFAULT
from marft_envs.core.env import FlexEnv
from marft_envs.core.rewards import CompositeReward
from marft_envs.core.teams import Team
from marft_envs.errors import ConfigError, check_known
from marft_envs.families.tools.compact import CompactMessages, records
from marft_envs.families.tools.functions import FunctionDomain
from marft_envs.families.tools.schema import marked, tool
from marft_envs.families.tools.session import CallLimits
from marft_envs.families.tools.speech import Named, by_agent, with_call_formats
from marft_envs.families.tools.task import ToolTask
from marft_envs.families.tools.teams import READING, TEAMS, check, team
from marft_envs.families.tools.types import (
    StateGrade,
    Tool,
    ToolCall,
    ToolDomain,
    ToolError,
    ToolProblem,
    ToolProblems,
    ToolResult,
    World,
)
from marft_envs.problems.sets import ProblemSet, whole
from marft_envs.tables import beside

__all__ = [
    "DOMAINS", "READING", "TEAMS", "CallLimits", "CompactMessages", "FunctionDomain", "ProblemSet", "StateGrade",
    "Team", "Tool", "ToolCall", "ToolDomain", "ToolError", "ToolProblem", "ToolProblems", "ToolResult", "ToolTask",
    "World", "make", "marked", "team", "tool",
]  # fmt: skip

DOMAINS = {
    name: {**entry, "entry_point": f"{package}{entry['entry_point']}"}
    for name, package, entry in beside(__name__, "domains")
}
"""Name -> what makes the domain (``module:callable``, imported when it is asked for), its argument that is the folder
of ``name:FOLDER``, and the arguments that give a user-agent its tools. Each folder's stand in its ``domains.toml``."""

DOMAIN_GROUP = "marft.domains"
"""Entry-point group of other packages' domains: name = the domain's, value = ``module:callable``."""

_ROUNDS = 10_000
"""The task ends episodes; this only has to be more than any of them has."""


def make(
    team_name: str | Team = "solo",
    domain: str | ToolDomain = "depot",
    split: str = "train",
    levels: int | Sequence[int] | None = None,
    limit: int | None = None,
    domain_args: Mapping[str, Any] | None = None,
    reward: str | CompositeReward | Mapping[str, float] = "composite",
    max_turns: int = CallLimits.max_turns,
    max_idle: int = CallLimits.max_idle,
    max_calls: int = CallLimits.max_calls,
    budgets: Mapping[str, int] | None = None,
    max_result_chars: int = CallLimits.max_result_chars,
    show_tools: str = "openai",
    show_policy: bool = True,
    call_format: Named = DEFAULT,
    profiles: Mapping[str, str] | None = None,
    dependency: Any = None,
    compact: bool | Mapping[str, int] = False,
    end_marker: str = "",
    **flex: Any,
) -> FlexEnv:
    """Builds a tool-use environment.

    Args:
        team_name: One of :data:`TEAMS`, :data:`READING` or ``teams.SPLIT`` (the environment's id sets it), or a
            :class:`Team` of your own.
        domain: A name of :data:`DOMAINS` or of a plug-in, ``tau:FOLDER``, ``module:callable``, or a domain
            (:class:`FunctionDomain` makes one of typed functions).
        split: ``train`` or ``test``, or another split of the domain.
        levels: Only problems of these levels. None: level 0 of the depot, which the embedded model can learn; all
            levels of another domain.
        limit: The most problems, chosen evenly from the split; None: all.
        domain_args: Arguments of a named domain (a path, options).
        reward: ``composite``, ``completion`` or ``progress``; or weights for the composite.
        max_turns: The most turns of agents within one user turn; then the episode ends.
        max_idle: The most layers in a row that bring nothing new; then the episode ends.
        max_calls: The most calls of the team in an episode; one more ends it.
        budgets: Agent or role -> the most calls in an episode; more are refused.
        max_result_chars: The most characters of a call's result; a longer one is cut and counts as an error.
        show_tools: How tools stand in observations: ``openai``, ``call_format``, ``signatures``, ``names`` or ``none``.
        show_policy: Whether observations contain the domain's policy.
        call_format: The format of calls: a name of ``call_formats.CALL_FORMATS``, or agent or role -> name. ``any``
            reads any known format. Calls in another format are malformed.
        profiles: Agent or role -> another profile.
        dependency: Replaces the team's D: anything :func:`marft_envs.as_dependency` takes. All agents then see earlier
            rounds, too, unless D = 0 (``history="team"``) or ``history`` is set.
        compact: Whether agents see each other's actions as records (``compact``); a mapping has the records' settings.
        end_marker: Words of a user-agent that end its turn, as ``finish`` and an empty reply do; added to its profile.
        **flex: Settings of :class:`FlexEnv` (``history``, ``observation``, ``attribution``, …).

    Raises:
        ConfigError: If the team, the domain, profiles or D cannot work.
        DataError: If the problems cannot be had.
    """
    tool_domain = _domain(domain, domain_args, team_name)
    members = (team_name if isinstance(team_name, Team) else team(team_name, tool_domain)).changed(profiles, dependency)
    check(members, tool_domain)
    members = members.ended_by(end_marker)
    call_formats = by_agent(call_format, members)
    members = with_call_formats(members, call_formats)
    problems = tool_domain.problems(split, whole(levels), limit)
    if members.readers and not members.screened and not problems[0].document:
        who = ", ".join(sorted(members.readers))
        raise ConfigError(
            f"Problems of '{tool_domain.name}' have no document that {who} could read. Use domain='documents', a domain"
            " whose problems have a document, or a team in which nobody reads one."
        )
    limits = CallLimits(max_turns, max_idle, max_calls, dict(budgets or {}), max_result_chars)
    rule = CompositeReward(**reward) if isinstance(reward, Mapping) else reward
    task = ToolTask(tool_domain, problems, members, rule, limits, show_tools, show_policy, call_formats)
    task.records = records(compact, members.agents)
    if dependency is not None:
        flex.setdefault("history", "team")
    flex.setdefault("max_rounds", _ROUNDS)
    return FlexEnv(members.agents, task, members.dependency(), **flex)


def _domain(domain: str | ToolDomain, args: Mapping[str, Any] | None, team_name: str | Team) -> ToolDomain:
    if not isinstance(domain, str):
        if args:
            raise ConfigError("domain_args are for domains by name; this one is made already.")
        return domain
    short, colon, path = domain.partition(":")
    if colon and "folder" in DOMAINS.get(short, ()):
        domain, args = short, {DOMAINS[short]["folder"]: path, **(args or {})}
    entry: Mapping[str, Any] = DOMAINS.get(domain, {"entry_point": domain})
    if ":" not in entry["entry_point"]:
        plugins = {point.name: point.value for point in entry_points(group=DOMAIN_GROUP)}
        known = [*DOMAINS, *plugins]
        check_known([domain], known, "There is no tool domain '{}'.", after="Or say module:callable.")
        entry = {"entry_point": plugins[domain]}
    module, _, name = entry["entry_point"].partition(":")
    try:
        factory: Callable[..., ToolDomain] | None = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise ConfigError(f"There is no module '{module}' for the domain '{domain}'.") from error
    if factory is None:
        raise ConfigError(f"'{module}' has no '{name}' for the domain '{domain}'. Expected module:callable.")
    arguments = {**(entry.get("for_two", {}) if team_name in ("dual_control", "service") else {}), **(args or {})}
    _check_arguments(domain, factory, arguments)
    return factory(**arguments)


def _check_arguments(domain: str, factory: Callable[..., ToolDomain], arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that a domain does not take, and asks for those that it wants."""
    parameters = inspect.signature(factory).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [name for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    check_known(() if open_ended else arguments, known, f"The tool domain '{domain}' takes no '{{}}' in domain_args.")
    missing = [name for name in known if parameters[name].default is inspect.Parameter.empty and name not in arguments]
    if missing:
        raise ConfigError(f"The tool domain '{domain}' wants {', '.join(missing)}: domain_args={{{missing[0]!r}: …}}.")
