"""Teams that use tools: who is in them (``teams.toml``), which tools they hold, and who acts next.

A team is data. What decides D is what was said and what came of it: the task reports after every layer whether a call
was made or failed, whether control was handed over, and whether the user's turn is over (:data:`FACTS`), and the
functions here turn that into the next layer. A user turn is a round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from string import Template
from typing import Any

from marft_envs import tables
from marft_envs.call_formats import DEFAULT, call_format
from marft_envs.core.dependency import DependencyFunction, View
from marft_envs.core.routing import Router, parse_names
from marft_envs.core.teams import Team, member, named
from marft_envs.core.types import AgentSpec, Skill, Turn
from marft_envs.errors import ConfigError, check_known
from marft_envs.families.tools.types import Tool, ToolDomain, ToolProblem

FACTS = ("called", "failed", "handoff", "over")
"""In ``view.outcome.info`` after a layer: a call was made; one failed by the agent's doing; who was handed control (""
for nobody); the user's turn is over."""

FINISH = "finish"
"""The tool that ends the user's turn."""
SKILL = "read_skill"
"""The tool by which an agent reads a procedure of its profile (``AgentSpec.skills``)."""

ASKED = "asked"
"""Id of a problem that a user's words are."""

_EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


def check(team: Team, domain: ToolDomain) -> None:
    """Raises a ConfigError unless a team can work on a domain."""
    names = [agent.name for agent in team.agents]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"A team needs agents with different names; got {', '.join(names) or 'none'}.")
    references = {
        "holds": team.holds, "enders": team.enders, "transfers": team.transfers, "routers": team.routers,
        "policies": team.policies, "user": (team.user,) if team.user else (),
        "readers": team.readers or (), "terse": team.terse, "screened": team.screened,
        "transfers' targets": [to for others in team.transfers.values() for to in others],
    }  # fmt: skip
    for field_name, referred in references.items():
        check_known(referred, names, f"{field_name} names '{{}}', who is not in the team.")
    for name, tools in team.holds.items():
        wanted = sorted(frozenset(tools) - {FINISH})
        check_known(wanted, domain.tools, f"'{name}' holds '{{}}', which is no tool of '{domain.name}'.")
    if not team.enders:
        raise ConfigError(f"No agent can end the user's turn. Name one of {', '.join(names)} in enders=.")


def asked(problem: ToolProblem, domain: ToolDomain, team: Team, text: str) -> ToolProblem:
    """Returns a user's words as a problem, in a world that is the same for all problems.

    Raises:
        ConfigError: The world is another for each problem, or somebody plays the user.
    """
    if not getattr(domain, "same_world", False) or team.user or problem.document:
        raise ConfigError(
            f"A task of '{domain.name}' is more than a text: it has a world, or a user, of its own. Expected tools"
            " whose world no problem changes (domain.same_world = True), and a team without a user."
        )
    return replace(problem, id=ASKED, turns=(text,), withheld=problem.withheld[:1])


def held(team: Team, agent: str, domain: ToolDomain) -> frozenset[str]:
    """Returns the tools of the domain that an agent can call; a ``finish`` of the domain's is for enders."""
    finish = frozenset({FINISH} & set(domain.tools) if agent in team.enders else ())
    return (team.holds.get(agent, frozenset()) - {FINISH}) | finish


def control(team: Team, agent: str, domain: ToolDomain) -> dict[str, tuple[Tool, str]]:
    """Returns an agent's tools that are no domain's: name -> the tool, and whom it hands over to ("": ``finish``).

    Raises:
        ConfigError: If a tool of the domain has the name of one of these.
    """
    out = {}
    if agent in team.enders and FINISH not in domain.tools:
        out[FINISH] = (Tool(FINISH, "Ends the work on the user's request.", _EMPTY), "")
    if skills := _skills(team, agent):
        listing = "; ".join(f"{name}: {skill.when}" for name, skill in skills.items())
        names = {"type": "string", "enum": list(skills)}
        schema = {"type": "object", "properties": {"name": names}, "required": ["name"], "additionalProperties": False}
        out[SKILL] = (Tool(SKILL, f"Shows how something is done. There is {listing}.", schema, read_only=True), "")
    roles = {member.name: member.role for member in team.agents}
    for other in team.transfers.get(agent, ()):
        role = roles[other]
        name = f"transfer_to_{role if list(roles.values()).count(role) == 1 else other}"
        out[name] = (Tool(name, f"Hands control over to {role}.", _EMPTY), other)
    for name in out.keys() & domain.tools.keys():
        what = "the tool that reads skills" if name == SKILL else "a handover"
        raise ConfigError(f"The domain's tool '{name}' has the name of {what}. Rename one of the two.")
    return out


def _skills(team: Team, agent: str) -> dict[str, Skill]:
    return {skill.name: skill for member in team.agents if member.name == agent for skill in member.skills}


def skill(team: Team, agent: str, arguments: Mapping[str, Any]) -> str:
    """Returns the procedure that an agent asks for; "" if it has none of that name."""
    wanted = _skills(team, agent).get(str(arguments.get("name")))
    return wanted.text if wanted is not None and set(arguments) == {"name"} else ""


def ends(team: Team, agent: str, text: str) -> bool:
    """Returns whether a reply without a call ends the user's turn."""
    if agent not in team.enders:
        return False
    if agent in team.screened:
        return not text.strip()  # its words without a call are a question
    if agent == team.user:
        return not text.strip() or bool(team.end_marker and team.end_marker in text)
    if agent in team.routers:
        return not parse_names(text, [member.name for member in team.agents if member.name != agent])
    return True


# Who acts next ------------------------------------------------------------------------------------------


Speakers = Callable[[View], tuple[str, ...]]
"""Who speaks next, while the user's turn is not over."""


def _fact(view: View, name: str) -> bool:
    return bool(view.outcome.info.get(name))


def acting(view: View, speakers: Speakers) -> list[str | Turn]:
    """D of teams whose members see all that was said so far."""
    if view.layer and _fact(view, "over"):
        return []
    sees = tuple(range(len(view.history)))
    return [Turn(name, sees) for name in speakers(view)]


def advised(view: View, advisers: tuple[str, ...], executor: str) -> tuple[str, ...]:
    """Advisers, if there are any, speak first, side by side, and again whenever a call has failed."""
    advise = not view.layer or (view.history[-1].agent == executor and _fact(view, "failed"))
    return advisers if advisers and advise else (executor,)


def verified(view: View) -> tuple[str, ...]:
    """Planner, executor, verifier: a failed call goes to the planner, an objection to the executor."""
    last = view.history[-1].agent if view.layer else ""
    if last == "executor_0":
        return ("verifier_0" if not _fact(view, "called") else "planner_0" if _fact(view, "failed") else last,)
    if last == "verifier_0":
        return (str(view.outcome.info.get("handoff") or last),)
    return ("executor_0" if last else "planner_0",)


def consulted(view: View, actor: str, reader: str) -> tuple[str, ...]:
    """The actor, and after each of its turns the reader."""
    return (reader if view.layer and view.history[-1].agent == actor else actor,)


def routed(view: View, boss: str) -> tuple[str, ...]:
    """The router names a specialist, which acts once; then the router has control again."""
    if not view.layer or view.history[-1].agent != boss or _fact(view, "called"):
        return (boss,)
    named = parse_names(view.history[-1].text, [name for name in view.agents if name != boss])
    return ((named or [boss])[0],)


def handed_over(view: View, boss: str) -> tuple[str, ...]:
    """The agent in control acts; a specialist's reply without a call gives control back."""
    if not view.layer:
        return (boss,)
    return (str(view.outcome.info.get("handoff") or (view.history[-1].agent if _fact(view, "called") else boss)),)


def _d(speakers: Callable[..., tuple[str, ...]], **given: Any) -> Callable[[], DependencyFunction]:
    """Makes the D of a team in which these speak."""
    return partial(Router, partial(acting, speakers=partial(speakers, **given)))


class Talk(DependencyFunction):
    """D of two who share a world and not their tools: each acts while it calls, and its words go to the other.

    Of the other, each sees the words and not the calls.

    Args:
        first: Who speaks first.
        second: Who answers.
        advisers: Who speak, side by side, before ``second`` does, and to it alone; they see what it sees.
    """

    def __init__(self, first: str, second: str, advisers: Sequence[str] = ()) -> None:
        self.pair, self.advisers = (first, second), tuple(advisers)
        self.words: list[int] = []
        """History indices of turns without a call."""

    def bind(self, agents: tuple[str, ...] | list[str]) -> None:  # type: ignore[override]
        """Checks the two names."""
        super().bind(agents)
        self._known((*self.pair, *self.advisers))

    def reset(self) -> None:
        """Forgets the last episode."""
        self.words = []

    def next_layer(self, view: View) -> list[Turn]:
        """Returns the turn of the agent that speaks next."""
        to, last = self.pair[0], view.history[-1] if view.layer else None
        if last is not None and last.agent in self.advisers:
            to = self.pair[1]
        elif last is not None:
            if not (called := _fact(view, "called")):
                self.words.append(last.index)
            if _fact(view, "over"):
                return []
            to = last.agent if called else self.pair[last.agent == self.pair[0]]
            if to != last.agent == self.pair[0] and self.advisers:
                return [self._turn(view, adviser) for adviser in self.advisers]
        return [self._turn(view, to)]

    def _turn(self, view: View, to: str) -> Turn:
        seen = (self.pair[1], *self.advisers) if to != self.pair[0] else (to,)
        return Turn(to, tuple(sorted({*self.words, *(turn.index for turn in view.history if turn.agent in seen)})))


# Teams ----------------------------------------------------------------------------------------------------

_AGENTS, _TABLE = tables.members(__package__), tables.read(__package__, "teams")


def _filled(prompt: str, domain: ToolDomain, title: str = "") -> str:
    """A profile of the table with its words for this domain."""
    names = ", ".join(domain.specialists)
    return Template(prompt).substitute(_TABLE["words"], use=call_format(DEFAULT).use, specialists=names, title=title)


def _agents(team: str, domain: ToolDomain) -> tuple[AgentSpec, ...]:
    return tuple(replace(agent, prompt=_filled(agent.prompt, domain)) for agent in _AGENTS[team])


def advised_team(domain: ToolDomain, name: str) -> Team:
    """Advisers, if there are any, then an executor that holds everything and ends the user's turn.

    After a failed call the advisers speak again.
    """
    *advisers, executor = agents = _agents(name, domain)
    dependency = _d(advised, advisers=tuple(agent.name for agent in advisers), executor=executor.name)
    holds = {executor.name: frozenset(domain.tools)}
    return Team(agents, dependency, holds=holds, enders=frozenset({executor.name}))


def trio(domain: ToolDomain) -> Team:
    """Planner, executor, and a verifier that can look, hand back, and finish."""
    looking = frozenset(name for name, tool in domain.tools.items() if tool.read_only)
    return Team(
        _agents("trio", domain),
        _d(verified),
        holds={"executor_0": frozenset(domain.tools), "verifier_0": looking},
        enders=frozenset({"verifier_0"}),
        transfers={"verifier_0": ("executor_0",)},
    )


def _led(domain: ToolDomain, name: str) -> tuple[tuple[AgentSpec, ...], dict[str, frozenset[str]]]:
    """A boss and the specialists of a domain, and who holds what: tools of no specialist are the boss's."""
    if not domain.specialists:
        raise ConfigError(f"The domain '{domain.name}' names no specialists. Use solo, dual, trio or debate.")
    (boss,) = _agents(name, domain)
    agents, holds = [boss], {}
    left = set(domain.tools)
    for role, tools in domain.specialists.items():
        if not re.fullmatch(r"[a-z][a-z_]*", role):
            raise ConfigError(f"'{role}' cannot name a specialist of '{domain.name}'. Use a-z and '_'.")
        for tool in sorted(tools - left):
            why = "is held by another specialist too" if tool in domain.tools else "does not exist"
            raise ConfigError(f"The tool '{tool}' of the specialist '{role}' in '{domain.name}' {why}.")
        left -= tools
        title = role.capitalize().replace("_", " ")
        agents.append(member(role, _filled(_TABLE["specialists"][name], domain, title)))
        holds[f"{role}_0"] = frozenset(tools)
    holds[boss.name] = frozenset(left)
    return tuple(agents), holds


def router(domain: ToolDomain) -> Team:
    """A router whose words name the specialist that acts next."""
    agents, holds = _led(domain, "router")
    boss = frozenset({"router_0"})
    return Team(agents, _d(routed, boss="router_0"), holds=holds, enders=boss, routers=boss)


def supervisor(domain: ToolDomain) -> Team:
    """A supervisor and specialists that hand control over by tools ``transfer_to_…``."""
    agents, holds = _led(domain, "supervisor")
    names = [agent.name for agent in agents]
    transfers = {name: tuple(other for other in names if other != name) for name in names}
    dependency = _d(handed_over, boss="supervisor_0")
    return Team(agents, dependency, holds=holds, enders=frozenset({"supervisor_0"}), transfers=transfers)


def dual_control(domain: ToolDomain, name: str = "dual_control") -> Team:
    """A user-agent and an agent, each with tools of its own on one state (the user perhaps with none), who talk.

    In ``service`` the user is not trained, and a planner advises the agent whenever the user has spoken.
    """
    if unknown := sorted(domain.user_tools - set(domain.tools)):
        raise ConfigError(f"'{unknown[0]}' is a user tool of '{domain.name}' and does not exist.")
    return Team(
        agents := _agents(name, domain),
        partial(Talk, "user_0", "agent_0", tuple(agent.name for agent in agents if agent.role == "planner")),
        holds={"user_0": frozenset(domain.user_tools), "agent_0": frozenset(domain.tools) - domain.user_tools},
        enders=frozenset({"user_0"}),
        user="user_0",
        policies={"user_0": getattr(domain, "user_policy", "")},  # the domain's is the agent's
    )


def desks(domain: ToolDomain) -> Team:
    """Two desks with records and tools of their own: each sees the other's messages, not its calls.

    The front desk alone knows the request, has the first specialist's tools, and ends the work.
    """
    if not domain.specialists:
        raise ConfigError(f"The domain '{domain.name}' names no specialists. Use solo, dual, trio or debate.")
    front = frozenset(next(iter(domain.specialists.values())))
    return Team(
        _agents("desks", domain),
        partial(Talk, "front_0", "back_0"),
        holds={"front_0": front, "back_0": frozenset(domain.tools) - front},
        enders=frozenset({"front_0"}),
        user="front_0",
        policies={"front_0": domain.policy},
    )


def quarantine(domain: ToolDomain, name: str = "quarantine") -> Team:
    """A reader without tools, which alone sees the document, and an actor with all tools, which sees its words.

    In ``quarantine``, the actor sees of the reader's words one word or one number, and a question mark in place of
    others; in ``messenger`` it sees them all.
    """
    readers = frozenset({"reader_0"})
    terse = readers if name == "quarantine" else frozenset()
    return replace(advised_team(domain, name), readers=readers, terse=terse)


def screened(domain: ToolDomain) -> Team:
    """An actor who holds everything and never reads results, and a reader of them who holds nothing and is terse."""
    actor, reader = agents = _agents("screened", domain)
    readers, actors = frozenset({reader.name}), frozenset({actor.name})
    dependency, holds = _d(consulted, actor=actor.name, reader=reader.name), {actor.name: frozenset(domain.tools)}
    return Team(agents, dependency, holds=holds, enders=actors, readers=readers, terse=readers, screened=actors)


TEAMS: dict[str, Callable[[ToolDomain], Team]] = {
    "solo": partial(advised_team, name="solo"),
    "dual": partial(advised_team, name="dual"),
    "trio": trio,
    "router": router,
    "supervisor": supervisor,
    "debate": partial(advised_team, name="debate"),
    "dual_control": dual_control,
    "service": partial(dual_control, name="service"),
    "screened": screened,
}
READING: dict[str, Callable[[ToolDomain], Team]] = {
    "quarantine": quarantine,
    "messenger": partial(quarantine, name="messenger"),
}
"""Teams in which only some read a problem's document: for domains whose problems have one."""
SPLIT: dict[str, Callable[[ToolDomain], Team]] = {"desks": desks}
"""Teams whose members have parts of the tools: for domains whose specialists divide them, as the depot's do."""


def team(name: str, domain: ToolDomain) -> Team:
    """Returns the team of that name for a domain.

    Raises:
        ConfigError: If there is no such team, or the domain has not what it needs.
    """
    return named("tool-using", name, {**TEAMS, **READING, **SPLIT})(domain)
