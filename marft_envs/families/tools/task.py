"""The tool-use task: replies become calls on a world, results go back, and the state decides what it was worth."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from marft_envs.call_formats import DEFAULT
from marft_envs.core.faults import show as show_fault
from marft_envs.core.rewards import CompositeReward
from marft_envs.core.teams import Team
from marft_envs.core.types import Outcome, Show, TurnRecord
from marft_envs.errors import ConfigError, DataError, check_known
from marft_envs.families.tools import oracle, scoring, show
from marft_envs.families.tools.scoring import CallStep, Tally
from marft_envs.families.tools.screen import Screen
from marft_envs.families.tools.session import CallLimits, Toolbox, ToolSession, shown
from marft_envs.families.tools.speech import Speech, UserTalk, by_agent
from marft_envs.families.tools.teams import ASKED, FINISH, SKILL, asked, control, ends, held, skill
from marft_envs.families.tools.types import (
    StateGrade,
    Tool,
    ToolCall,
    ToolDomain,
    ToolProblem,
    ToolProblems,
    ToolResult,
    graded,
)
from marft_envs.problems.sets import Drawn

if TYPE_CHECKING:
    from marft_envs.families.tools.compact import Records


class ToolTask(Drawn[ToolProblem]):
    """Draws a problem, opens its world, and carries out what agents call.

    The score of a team depends on the state that it leaves behind, graded by the domain, never on the text of its
    calls. The reward of a round is the change of the score, so the return is the score at the end, whatever ends it.

    Args:
        domain: Tools, worlds, grades.
        problems: Where problems come from.
        team: Who holds what, and who ends the user's turn.
        reward: One of :data:`marft_envs.families.tools.scoring.REWARDS`, or a :class:`CompositeReward`.
        limits: Turns, calls, characters.
        show_tools, show_policy: One of :data:`marft_envs.families.tools.show.SHOWN`; put the domain's policy there.
        call_format: How agents write calls (:mod:`marft_envs.families.tools.speech`).

    Raises:
        ConfigError: If a setting or the domain cannot work.
    """

    graded_by_state = True  # by the domain

    def __init__(
        self,
        domain: ToolDomain,
        problems: ToolProblems,
        team: Team,
        reward: str | CompositeReward = "composite",
        limits: CallLimits | None = None,
        show_tools: str = "openai",
        show_policy: bool = True,
        call_format: str | Mapping[str, str] = DEFAULT,
    ) -> None:
        scoring.check(reward)
        check_known([show_tools], show.SHOWN, "There is no show_tools '{}'.")
        self.domain, self.problems, self.team = domain, problems, team
        self.reward, self.limits = reward, limits or CallLimits()
        self.show_tools, self.show_policy = show_tools, show_policy
        self.slow, self.copyable = bool(getattr(domain, "may_block", False)), bool(getattr(domain, "copyable", True))
        self.agents = tuple(agent.name for agent in team.agents)
        self.roles = {agent.name: agent.role for agent in team.agents}
        self.toolbox = Toolbox(domain.tools.values())
        self.holds = {name: held(team, name, domain) for name in self.agents}
        self.budgets = self.limits.of_agents(self.roles)
        self.control = {name: control(team, name, domain) for name in self.agents}
        """Agent -> tools of the environment's own: ``finish`` (unless the domain has one) and handovers."""
        own = {name: [tool for tool, _ in self.control[name].values()] for name in self.agents}
        callable_ = {name: [*(domain.tools[tool] for tool in sorted(self.holds[name])), *own[name]] for name in own}
        self.speech = Speech(by_agent(call_format, team), callable_)
        self._standing: dict[tuple[str, frozenset[str]], list[str]] = {}
        self.session: ToolSession | None = None
        self.records: Records | None = None
        """Where set (:mod:`marft_envs.families.tools.compact`), agents read each other's turns as records."""
        self._start()

    @property
    def turn_limit(self) -> int:
        """Most turns of an episode on the present problem."""
        return self.limits.max_turns * (len(self._problem.turns) if self._problem else 1)

    @property
    def worst_return(self) -> float:
        """The lowest return of an episode."""
        return scoring.lowest(self.reward)

    def _start(self) -> None:
        self.user_turn = 0
        self.over = False
        """The current user turn has been ended."""
        self.stop_reason = ""
        """Why it ended early: ``max_turns``, ``stalled``, ``max_calls``, ``world_crashed``, ``world_hung``; else ""."""
        self.tally = Tally()
        self._scored: tuple[StateGrade, Tally] | None = None
        self._metrics: dict[str, float] = {}
        self.talk, self.screen = UserTalk(self.team.user), Screen(self.team)
        self._acted, self._idle, self._score = 0, 0, 0.0
        self._gold: list[list[ToolCall]] | None = None
        self._texts: dict[tuple[str, int, int], str] = {}
        if self.records is not None:
            self.records.start()

    @property
    def live(self) -> ToolSession:
        """The current session."""
        if self.session is None:
            raise ConfigError("No world is open yet. Next: env.reset(seed=0).")
        return self.session

    # An episode ------------------------------------------------------------------------------------

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the problem ``options["task_id"]``, else draws one, and opens its world."""
        self.close()
        problem = self.draw(rng, options)
        self._start()
        world, most, longest = partial(self.domain.open, problem), self.limits.max_calls, self.limits.max_result_chars
        self.session = ToolSession(self.toolbox, world, self.holds, self.budgets, most, longest, frozenset({FINISH}))
        self._begin(0)

    def pose(self, text: str) -> None:
        """Puts a user's words in the place of the problem; see :func:`marft_envs.families.tools.teams.asked`."""
        self._problem, self.task_id, self._texts = asked(self.problem, self.domain, self.team, text), ASKED, {}

    def _begin(self, turn: int) -> None:
        """Starts a user turn."""
        session, problem = self.live, self.problem
        self.user_turn, self.over, self._acted, self._idle = turn, False, 0, 0
        session.turn, session.withheld = turn, problem.missing(turn)
        self.talk.replies.clear()
        self.domain.begin_turn(problem, session.world, turn)

    def observe(self, agent: str) -> str:
        """Returns the policy, the tools that the agent holds, and what the user has said so far."""
        returned = self.screen.returned(agent, self.live.log)
        key = (agent, self.user_turn, len(returned and self.live.log))
        if key not in self._texts:
            parts = self._stands(agent)
            if self.team.user in ("", agent):
                parts = [*parts, *show.user(self.problem.turns[: self.user_turn + 1], own=agent == self.team.user)]
            parts = [*parts, *show.document(self.problem.document, self.team.readers, agent), *returned]
            self._texts[key] = "\n\n".join(parts)
        return self._texts[key]

    def _stands(self, agent: str) -> list[str]:
        """What an agent reads in every episode with the same tools: the policy and the tools."""
        key = (agent, self.live.withheld)
        if key not in self._standing:
            policy = self.team.policies.get(agent, self.domain.policy)
            parts = [f"Policy:\n{policy}"] if self.show_policy and policy else []
            mine, others = self._available(agent), dict[str, list[Tool]]()
            if not mine or agent in self.team.routers:
                others = {self.roles[name]: self.live.available(name) for name in self.agents if name != agent}
            self._standing[key] = [*parts, *show.tools(self.show_tools, mine, others, self.speech.forms[agent])]
        return self._standing[key]

    def _available(self, agent: str) -> list[Tool]:
        held = self.live.available(agent) if self.session is not None else []
        return [*held, *(tool for tool, _ in self.control[agent].values())]

    def tools(self, agent: str) -> list[dict[str, Any]]:
        """Returns the tools that an agent can call now, as OpenAI's chat API and chat templates take them."""
        return [copy.deepcopy(tool.openai()) for tool in self._available(agent)]

    @property
    def show(self) -> Show | None:
        """How a turn stands in others' observations: as it is, as its record, or as the one word that it may be."""
        return show.tersely(self.team, None if self.records is None else self.records.show)

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Carries out the calls of each turn, in canonical order; ends the episode with the last user turn."""
        outcome = self._carry_out_layer(turns)
        if self.records is not None:
            self.records.book(turns, outcome, self.live.log, self.speech.read)
        return outcome

    def _carry_out_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        facts: dict[str, Any] = {"called": False, "failed": False, "handoff": "", "over": self.over}
        idle, results = self._idle + 1, {}
        session = self.live
        for turn in turns:
            result, new = self._act(session, turn, facts)
            if result:
                results[turn.index] = result
            self.tally.trace.append(("" if len(turns) > 1 or turn.agent in self.screen.readers else turn.agent, new))
            idle = 0 if new else idle
        self._idle = idle
        self.over = facts["over"]
        self._acted += len(turns)
        self.tally.turns += len(turns)
        if session.broken:
            self.stop_reason = session.broken
        elif session.exhausted:
            self.stop_reason = "max_calls"
        elif self._acted >= self.limits.max_turns and not self.over:
            self.stop_reason = "max_turns"
        elif self._idle >= self.limits.max_idle and not self.over:
            self.stop_reason = "stalled"
        elif not self.over or self.user_turn + 1 < len(self.problem.turns):
            return Outcome(results=results, info=facts)
        outcome = self._outcome(True, facts)
        outcome.results, outcome.stop_reason = results, self.stop_reason
        return outcome

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Rewards the change of the score; the user's next turn begins if this one is over."""
        outcome = self._outcome(False, {})
        self.tally.trace.append(("", True))  # the next round hands nothing over
        if self.over and not self.stop_reason:
            try:
                self._begin(self.user_turn + 1)
            except (ConfigError, DataError):
                raise
            except Exception as fault:  # a defect of the world is this episode's record
                show_fault(fault, "a world")
                self.live.broken = self.stop_reason = "world_crashed"
                outcome.info = {**outcome.info, "world_error": f"{type(fault).__name__}: {fault}"}
                outcome.fault, outcome.stop_reason = "world", self.stop_reason
        return outcome

    def _act(self, session: ToolSession, turn: TurnRecord, facts: dict[str, Any]) -> tuple[str, bool]:
        """Reads one reply and carries out its calls: what came of them, and whether it brought anything new."""
        agent, tally = turn.agent, self.tally
        if self.over or not (self.holds[agent] or self.control[agent]):
            # After the end, and from agents whose replies are words alone, no call is read.
            return "", self.screen.receive(turn)
        reply = self.screen.filled(agent, self.speech.read(agent, turn.text))
        if reply.error:
            tally.malformed += 1
            tally.attempts[agent] += 1
            tally.faults[agent] += 1
            tally.steps.append(CallStep(agent, "", 0.0))
            facts["called"] = facts["failed"] = True
            return f"error (malformed): {reply.message}; nothing was carried out", False
        if not reply.calls:
            facts["over"] = facts["over"] or ends(self.team, agent, turn.spoken)
            return "", self.talk.receive(agent, reply.words, False, facts["over"])
        facts["called"] = True
        lines, new = [], False
        for call in reply.calls:
            line, brought = self._carry_out(session, agent, call, facts)
            lines.append(self.speech.forms[agent].result(line))
            new = new or brought
        self.talk.receive(agent, reply.words, True, facts["over"])
        return "\n".join(lines), new

    def _carry_out(self, session: ToolSession, agent: str, call: ToolCall, facts: dict[str, Any]) -> tuple[str, bool]:
        """One call: its line of text, and whether it brought anything new."""
        tally = self.tally
        tally.attempts[agent] += 1
        if facts["over"] or call.name in self.control[agent]:
            result = self._controlled(agent, call, facts)
            if result.error:
                tally.faults[agent] += 1
                tally.steps.append(CallStep(agent, "", 0.0))
                facts["failed"] = True
            return shown(result), False
        result = session.call(agent, call)
        entry = session.log[-1]
        if call.name == FINISH:
            facts["over"] = result.ok
        else:
            tally.steps.append(CallStep(agent, call.name, float(result.ok and not entry.duplicate)))
        if call.name != FINISH and not session.exhausted:
            tally.calls[agent] += 1
            tally.duplicates[agent] += entry.duplicate
            tally.changed |= result.changed
        if entry.fault:
            tally.faults[agent] += 1
            facts["failed"] = True
            tally.refusals[agent] += result.error in scoring.REFUSED
        new = result.changed or (result.ok and not entry.duplicate)
        return self.screen.line(agent, entry), new and call.name != FINISH

    def _controlled(self, agent: str, call: ToolCall, facts: dict[str, Any]) -> ToolResult:
        """``finish`` and handovers, which are the environment's own; and every call once the user's turn is over."""
        if facts["over"]:
            return ToolResult(call, agent, False, None, "not_permitted", "the user's turn is over")
        if call.name == SKILL:
            text = skill(self.team, agent, call.arguments)
            self.tally.skill_words += len(text.split())
            error = "" if text else "tool_error"
            return ToolResult(call, agent, bool(text), text or None, error, "there is no such skill")
        to = self.control[agent][call.name][1]
        if call.arguments:
            return ToolResult(call, agent, False, None, "invalid_arguments", "this tool takes no arguments")
        if to and facts["handoff"]:
            return ToolResult(call, agent, False, None, "not_permitted", "control was handed over already")
        if to:
            facts["handoff"] = to
        else:
            facts["over"] = True
        return ToolResult(call, agent, True, f"control goes to {self.roles[to]}" if to else "done")

    # Rewards -----------------------------------------------------------------------------------------

    def _grade(self) -> StateGrade:
        session = self.live
        if session.broken == "world_hung":
            return StateGrade(False, 0.0)  # whatever it would say may be false a moment later
        try:
            return graded(self.domain.grade, self.problem, session.world, self.talk.messages)
        except Exception:
            if not session.broken:
                raise  # a defect of the domain, not of this episode
            return StateGrade(False, 0.0)

    def _outcome(self, terminated: bool, facts: dict[str, Any]) -> Outcome:
        grade = self._grade()
        value, terms = scoring.score(self.reward, grade, self.tally, self.problem.least_steps)
        change, self._score = value - self._score, value
        self._scored, self._metrics = (grade, copy.deepcopy(self.tally)), {}
        broken = {"world_error": self.live.fault} if self.live.fault else {}
        return Outcome(
            team_reward=change,
            success=grade.completion,
            terminated=terminated,
            fault="world" if self.live.broken or grade.lost else "",
            info={**facts, "grade": dict(grade.info), "terms": terms, "user_turns": self.user_turn + 1, **broken},
        )

    def final_metrics(self) -> Mapping[str, float]:
        """Returns the team's numbers as of its last reward.

        They take as long as the episode is, so they are worked out when somebody looks, and once.
        """
        if self._scored is not None and not self._metrics:
            gold, most = oracle.wanted(self), self.limits.max_calls
            least = self.problem.least_steps
            self._metrics = scoring.metrics(*self._scored, least, self.agents, most, self.budgets, gold)
            if any(agent.skills for agent in self.team.agents):
                self._metrics["skill_words"] = float(self._scored[1].skill_words)
        return self._metrics

    # For drivers and tests -------------------------------------------------------------------------

    @property
    def gold_calls(self) -> list[list[ToolCall]]:
        """The oracle's calls, per user turn; never shown to agents."""
        if self._gold is None:
            self._gold = self.domain.oracle(self.problem)
        return self._gold

    def restored(self, agent: str, text: str) -> str:
        """Returns an agent's own neutralised words with the marks of its calls whole."""
        return self.speech.restored(agent, text)

    def expert(self, agent: str) -> str:
        """Returns what the oracle says as ``agent`` now."""
        return oracle.answer(self, agent)

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns replies as models give them: right, wrong, broken, handing over, and without a call."""
        return oracle.samples(self, agent)

    def validate(self) -> None:
        """Checks on a sample of problems that the oracle's calls are graded as complete, and silence as no progress.

        Raises:
            ConfigError: Naming the first problem for which it does not hold.
        """
        oracle.validate(self)

    def gold(self) -> str:
        """Returns the oracle's calls as text, for conformance tests; no observation may hold it."""
        calls = [[{"name": c.name, "arguments": dict(c.arguments)} for c in turn] for turn in self.gold_calls]
        return json.dumps(calls, ensure_ascii=False)

    def close(self) -> None:
        """Closes the world."""
        if self.session is not None:
            self.session.world.close()
            self.session = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolTask:
        """Copies the episode; domain, problems and tools never change and are shared."""
        shared = {"_problem", "team", "limits", "holds", "budgets", "control", "roles", "_gold", "_standing", "speech"}
        for name in self.__dict__.keys() & {*shared, "domain", "problems"}:
            memo[id(self.__dict__[name])] = self.__dict__[name]
        new = memo[id(self)] = object.__new__(ToolTask)
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new
