"""Schedules an episode: turns become layers, layers rounds; it records rewards, and ends the episode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np

from marft_envs.core import observation as obs_mod
from marft_envs.core.dependency import DependencyFunction, InvalidRouting, View
from marft_envs.core.planner import Planner
from marft_envs.core.rewards import Turns, check_finite, segments_of
from marft_envs.core.transcript import Transcript
from marft_envs.core.types import (
    AgentSpec,
    Episode,
    Fault,
    LayerRecord,
    Outcome,
    RoundRecord,
    Task,
    Turn,
    TurnRecord,
    optional,
)
from marft_envs.errors import ConfigError, DependencyError, check_known, did_you_mean

HISTORIES = ("deps", "own", "public", "team")


@dataclass(frozen=True)
class Rules:
    """Says when an episode ends, and what of the past is seen; :class:`marft_envs.FlexEnv` says what each setting does.

    Raises:
        ConfigError: If a setting cannot work.
    """

    history: str = "deps"
    max_rounds: int = 1
    max_turns: int | None = None
    max_turns_per_agent: int | None = None
    max_path: int | None = None
    on_invalid: str | float = "fallback"
    max_chars: int | None = None
    share_thoughts: bool = False
    tag_first_round: bool = False

    def __post_init__(self) -> None:
        check_known([self.history], HISTORIES, "There is no history '{}'.")
        if isinstance(self.on_invalid, str) and self.on_invalid not in ("fallback", "end_round"):
            raise ConfigError(f"on_invalid must be 'fallback', 'end_round' or a penalty; got '{self.on_invalid}'.")
        for name in ("max_rounds", "max_turns", "max_turns_per_agent", "max_path", "max_chars"):
            limit = getattr(self, name)
            if limit is not None and (not isinstance(limit, Integral) or limit < 1):
                raise ConfigError(
                    f"{name} is {limit!r}; expected a whole number, at least 1. Say {name}=1, or leave it out."
                )


Rewards = tuple[float, Turns, Mapping[str, float], list[str], list[str]]
"""Rewards of one outcome, as attribution rules take them; its members are those alive when the layer committed."""


@lru_cache(maxsize=4096)
def _matrix(n: int, ones: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the n x n matrix with ones at these positions, off the diagonal."""
    return tuple(tuple(int(i != j and i * n + j in ones) for j in range(n)) for i in range(n))


class Schedule:
    """One episode: asks D for layers, commits them, closes rounds, keeps the record and minds the limits.

    It knows nothing of PettingZoo. What its driver passes on (rewards, facts) waits until the driver takes it.

    Args:
        record: The episode's record, empty but for the team and where it comes from; kept from here on.
        task: What the work is.
        dependency: D, bound to the team.
        rules: Limits, and what of the past is seen.
    """

    def __init__(self, record: Episode, task: Task, dependency: DependencyFunction, rules: Rules) -> None:
        self.record, self.task, self.dependency, self.rules = record, task, dependency, rules
        record.stop_reason = "not started"
        self.done = True
        self.agents = {agent.name: agent for agent in record.agents}
        self.view = View(list(self.agents))
        self.view.history = record.turns
        self.planner = Planner(dependency, self.view, rules.history)
        self.transcript = Transcript(record.agents, task, share_thoughts=rules.share_thoughts)
        self.layer: dict[str, Turn] = {}
        """The planned turns of the current layer, in canonical agent order."""
        self.pending: dict[str, str] = {}
        """Agent -> its action, of those of the layer that have acted."""
        self.rewards: list[Rewards] = []
        self.facts: dict[str, Any] = {}
        """What the task has said in ``info``, until the driver takes it."""
        self._order = {name: i for i, name in enumerate(self.agents)}
        self._members = list(self.agents)
        self._judges: Collection[str] = getattr(task, "judges", ()) if hasattr(task, "rubric") else ()
        self._judged = 0  # tokens that judges have said one after the other: no time of the answer
        self._speakers: list[int] = []  # who took each turn of the history, as a position in the team
        # Of the current layer: what drivers attached, and the lengths to which they cut its prompts.
        self._extras: dict[str, Mapping[str, Any]] = {}
        self._limits: dict[str, int] = {}
        # Edges of the round: those that D asked for before `history` widened it, and those that no observation showed.
        self._asked: list[tuple[int, int]] = []
        self._unseen: set[tuple[int, int]] = set()
        # Rewards before any agent acted (a routing penalty): booked to the first layer when it commits.
        self._early: list[Outcome] = []
        self._empty_rounds = 0

    # For drivers -----------------------------------------------------------------------------------

    def begin(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Draws the task and plans the first layer."""
        self.done, self.record.stop_reason = False, ""
        self.view.rng = rng
        self.task.reset(rng, options)
        self.dependency.reset()
        self._advance()

    @property
    def ready(self) -> list[str]:
        """Returns the agents of the current layer that have not acted, in canonical order."""
        return [name for name in self.layer if name not in self.pending]

    def expect_ready(self, agent: str) -> None:
        """Raises a ConfigError unless the agent can act now: no agent acts twice in a layer."""
        if agent not in self.layer or agent in self.pending:
            raise ConfigError(f"'{agent}' is not ready to act. Ready: {', '.join(self.ready) or 'nobody'}.")

    def attach(self, agent: str, extras: Mapping[str, Any] | None, max_chars: int | None) -> None:
        """Puts a driver's data, and the limit of its prompt, on an agent's next action."""
        if extras is not None:
            self._extras[agent] = extras
        if max_chars is not None:
            self._limits[agent] = max_chars

    def act(self, agent: str, text: str) -> bool:
        """Takes an agent's action; with the layer's last it commits. Returns whether it did.

        Where the task has begun the reply, the action may have that beginning or go on from it.
        A commit enters the layer's actions into the history, asks the task, and goes on.
        """
        self.expect_ready(agent)
        begins = optional(self.task, "prefix")(agent)
        self.pending[agent] = text if text.startswith(begins) else begins + text
        if len(self.pending) < len(self.layer):
            return False
        view, layers = self.view, self.record.layers
        start = index = len(view.history)
        number, round_ = len(layers), view.round
        turns: list[TurnRecord] = []
        partial = self._limits or self.rules.max_chars is not None or self.transcript.selective
        for agent, plan in self.layer.items():
            role, extras = self.agents[agent].role, self._extras.pop(agent, None)
            turn = TurnRecord(index, round_, number, agent, role, plan.sees, self.pending[agent], 0.0, extras)
            turns.append(turn)
            if partial:
                self._note_unseen(turn)
            self._speakers.append(self._order[agent])
            self.transcript.enter(turn)
            index += 1
        view.history += turns
        if view.dead:
            self._members = [name for name in self.agents if name not in view.dead]
        if sees := self.planner.asked:
            self._asked += [(i, turn.index) for turn in turns for i in sees[turn.agent]]
        layers.append(LayerRecord(number, round_, tuple(range(start, index))))
        self.pending, self.layer = {}, {}
        if self._early:
            early, self._early = self._early, []
            for outcome in early:
                self._reward(outcome)
        if turns[0].agent in self._judges:
            self._judged += max(turn.length for turn in turns)
        if self.rules.max_path is not None and self.record.critical_path - self._judged > self.rules.max_path:
            late = Outcome(terminated=True, success=False, stop_reason="max_path")
            self._book(optional(self.task, "late")(late))
        else:
            self._book(self.task.on_layer(turns))
        self.planner.end_layer()
        if not self.done:
            self._advance()
        return True

    def truncate(self, reason: str, fault: Fault = "") -> None:
        """Ends the episode where it stands; after a fault of a text, its return is the worst."""
        if fault:
            self._fail(fault)
        self._close_round()
        self._finish(reason, truncated=True)

    def profile(self, agent: str) -> AgentSpec:
        """Returns an agent's specification."""
        if agent not in self.agents:
            raise ConfigError(f"There is no agent '{agent}' in the team. {did_you_mean(agent, self.agents)}")
        return self.agents[agent]

    def observation(self, agent: str, max_chars: int | None = None) -> obs_mod.RolloutObservation:
        """Returns what an agent sees now; without turns if it is not on turn.

        Args:
            agent: Any agent of the team.
            max_chars: A limit beside the environment's own; the shorter one counts.
        """
        limit = min([n for n in (self.rules.max_chars, max_chars) if n is not None], default=None)
        profile = self.profile(agent)
        turn = self.layer.get(agent)
        quoted: tuple[int, ...] = ()
        if (written := self.transcript.written(agent)) is not None:
            system, parts, quoted = written
            profile, task = replace(profile, prompt=system, examples=()), ""
        else:
            parts = self.transcript.parts(agent, turn.sees if turn is not None else ())
            task = self.transcript.task_text(agent)
        cuts: list[tuple[int, int]] = []
        if limit is not None:
            task, parts, cuts = obs_mod.fit(task, parts, limit)
        images = self.transcript.images(agent) if optional(self.task, "images") is not None else None
        return obs_mod.RolloutObservation(
            profile, len(self.view.history), task, parts, cuts, self.rules.tag_first_round, quoted, images
        )

    # Layers and rounds -----------------------------------------------------------------------------

    def _note_unseen(self, turn: TurnRecord) -> None:
        """Records what was cut from a turn's observation, and what of its ``sees`` is not in it at all."""
        turn.max_chars = self._limits.pop(turn.agent, None)
        shown = self.observation(turn.agent, turn.max_chars)
        self.record.cuts += [{"turn": turn.index, "seen": seen, "chars": chars} for seen, chars in shown.cuts]
        self._unseen.update((i, turn.index) for i in set(turn.sees) - shown.seen)

    def _advance(self) -> None:
        """Plans the next layer, closing rounds that are over; ends the episode at a guard."""
        while not self.done:
            layer = self._next_layer() if len(self.view.dead) < len(self.agents) else []
            guard = self._guard(layer)
            if layer and not guard:
                self.layer = {turn.agent: turn for turn in layer}
                return
            self._end_round(guard, cut=bool(layer))

    def _end_round(self, guard: str, *, cut: bool) -> None:
        view = self.view
        self._empty_rounds = 0 if len(view.history) > view.round_start else self._empty_rounds + 1
        if self._empty_rounds == 2:
            raise DependencyError(
                f"{type(self.dependency).__name__} gave two rounds in a row in which no agent acts. "
                "Let next_layer return a turn, or let the task end the episode."
            )
        turns = view.this_round
        self._close_round()
        self._book(self.task.on_round(turns))
        last = view.round + 1 >= self.rules.max_rounds
        if not self.done and (guard or last):
            self._finish(guard if guard and (cut or not last) else "max_rounds")
        if self.done and not view.history:
            raise DependencyError(
                f"The episode ended ({self.record.stop_reason}) before anybody acted. Let "
                f"{type(self.dependency).__name__} name a known agent in its first layer, and let the limits leave "
                "room for that layer."
            )
        if not self.done:
            view.round += 1
            view.round_start, view.layer = len(view.history), 0

    def _next_layer(self) -> list[Turn]:
        """Asks for the next layer; bad routing is counted and recorded, and follows ``on_invalid``."""
        view, record, on_invalid = self.view, self.record, self.rules.on_invalid
        try:
            return self.planner.next_layer()
        except InvalidRouting as bad:
            index = bad.turn if bad.turn is not None else len(view.history) - 1 if view.history else None
            route = {"round": view.round, "turn": index, "named": list(bad.named), "reason": str(bad)}
            record.invalid_routes.append(route)
            record.invalid += 1
            if not isinstance(on_invalid, str):
                self._reward(Outcome(team_reward=-float(on_invalid)))
            return self.planner.instead(bad.fallback if on_invalid != "end_round" else ())

    def _guard(self, layer: Sequence[Turn]) -> str:
        """Names the limit that the next layer would break, or ''."""
        view = self.view
        each, most = self.rules.max_turns_per_agent, self.rules.max_turns
        if len(view.dead) == len(self.agents):
            return "all_dead"
        if most is not None and len(view.history) + max(len(layer), 1) > most:
            return "max_turns"
        if each is not None and any(sum(p.agent == turn.agent for p in view.history) >= each for turn in layer):
            return "max_turns_per_agent"
        return ""

    def _close_round(self) -> None:
        """Records D_t as executed, which is what agents saw, and beside it what D asked for; once a round."""
        view, rounds = self.view, self.record.rounds
        if rounds and rounds[-1].index == view.round:
            return
        planned = [(i, turn.index) for turn in view.this_round for i in turn.sees]
        edges = [edge for edge in planned if edge not in self._unseen] if self._unseen else planned
        requested = self._asked if self.rules.history != "deps" else planned
        rounds.append(RoundRecord(view.round, self._between_agents(edges), edges, self._between_agents(requested)))
        self._asked, self._unseen = [], set()
        self.planner.end_round()

    def _between_agents(self, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Returns the n x n matrix of turn-level edges, as lists of its own; its diagonal is 0."""
        speakers, n = self._speakers, len(self._order)
        return [list(row) for row in _matrix(n, frozenset([speakers[i] * n + speakers[j] for i, j in edges]))]

    # Rewards and ends ------------------------------------------------------------------------------

    def _book(self, outcome: Outcome) -> None:
        """Enters what a task said: rewards, results, feedback, facts, deaths, the end."""
        if not isinstance(outcome, Outcome):
            raise ConfigError(
                f"{type(self.task).__name__} answered {outcome!r} to a layer or round; expected an Outcome. Next:"
                " return marft_envs.Outcome(team_reward=…) from on_layer and on_round."
            )
        view, record = self.view, self.record
        view.outcome = outcome
        if outcome.team_reward or outcome.turn_rewards or outcome.agent_rewards or outcome.segments:
            self._reward(outcome)
        for index, text in outcome.results.items():
            self._set_result(index, text)
        for agent, text in outcome.feedback.items():
            self.transcript.give_feedback(self.profile(agent).name, view.round, text)
        if outcome.success is not None:
            record.success = outcome.success
        if outcome.metrics:
            record.metrics.update(outcome.metrics)
        if outcome.info:
            record.info.update(outcome.info)
            self.facts.update(outcome.info)
        if outcome.dead:
            view.dead.update(self.profile(agent).name for agent in outcome.dead)
        if outcome.fault:
            self._fail(outcome.fault)
        if outcome.terminated or outcome.fault:
            self._close_round()
            self._finish(outcome.stop_reason or "task")

    def _set_result(self, index: int, text: str) -> None:
        history = self.view.history
        if not 0 <= index < len(history):
            raise ConfigError(f"The task gave turn {index} a result, but there are only {len(history)} turns.")
        history[index].result = text
        self.transcript.set_result(history[index])

    def _reward(self, outcome: Outcome) -> None:
        """Books the channels to the last layer's record."""
        history = self.view.history
        if not self.record.layers:
            self._early.append(outcome)
            return
        check_finite([outcome.team_reward, *outcome.turn_rewards.values(), *outcome.agent_rewards.values()])
        for index in (*outcome.turn_rewards, *outcome.segments):
            if not 0 <= index < len(history):
                raise ConfigError(f"The task rewarded turn {index}, but there are only {len(history)} turns.")
        segments = {i: segments_of(spans, i, history[i].text) for i, spans in outcome.segments.items()}
        layer, turns = self.record.layers[-1], []
        for index, spans in segments.items():
            layer.segments[index] = [*layer.segments.get(index, ()), *spans]
        in_spans = [(index, sum(reward for *_, reward in spans)) for index, spans in segments.items()]
        for index, reward in (*outcome.turn_rewards.items(), *in_spans):
            history[index].reward += float(reward)
            turns.append((history[index].agent, float(reward)))
            if history[index].layer != layer.index:
                layer.late_rewards[index] = layer.late_rewards.get(index, 0.0) + float(reward)
        for agent in outcome.agent_rewards:
            self.profile(agent)
        layer.team_reward += float(outcome.team_reward)
        for agent, reward in outcome.agent_rewards.items():
            layer.agent_rewards[agent] = layer.agent_rewards.get(agent, 0.0) + float(reward)
        judged = history[layer.turns[0]].agent in self._judges
        last = [history[i].agent for i in (self.record.layers[-2] if judged else layer).turns]
        self.rewards.append((float(outcome.team_reward), turns, outcome.agent_rewards, self._members, last))

    def _fail(self, fault: Fault) -> None:
        """Notes whose fault it is that the episode cannot go on; after a fault of a text, its return is the worst."""
        record = self.record
        record.fault, record.success = fault, False
        if fault == "text" and record.layers:
            earned, worst = record.team_return, optional(self.task, "worst_return")
            self._reward(Outcome(team_reward=(min(0.0, earned) if worst is None else worst) - earned))

    def _finish(self, reason: str, *, truncated: bool = False) -> None:
        self.done, record = True, self.record
        record.stop_reason, record.truncated, record.terminated = reason, truncated, not truncated
        self.layer, self.pending = {}, {}
