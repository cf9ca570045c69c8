"""Blames failed episodes: replays them, replaces their turns, and has the team play on from there.

V(h) is the chance of success after the history h, if the team plays on from there. The blame of turn t is

    b(t) = V(turns of earlier layers) − V(the same and t)

what this very turn cost: on both sides all that follows is drawn anew, so no turn is credited for what playing on alone
does. Where layers have one turn, the blames of a failed episode add up to V at its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

from marft_algos.credit.branches import Branch
from marft_algos.extras.blame.chances import UNKNOWN, Chances, Query, difference
from marft_algos.models.chat import Renderer
from marft_algos.runs.intervals import Interval
from marft_envs import FlexEnv
from marft_envs.core.partners import FlexWrapper, expert_of
from marft_envs.core.types import Episode, Fault, TurnRecord, optional
from marft_envs.core.vector import Request
from marft_envs.errors import ConfigError, UnsolvedError
from marft_envs.records.trajectory import replayed_turns

BY = ("expert", "silence", "policy", "cut")
Asked = tuple[int, int | str | None]
"""(layer, None): V of the layers before it; (layer, turn): V of these and one turn of it; (turn, what replaces it)."""
MOST = 5
"""Turns of the largest set that is tried; of episodes that have no more, every set is."""
Flip = tuple[tuple[int, ...], Interval]
"""A set of turns, and the chance of success when it is drawn anew."""
LOST = Interval(0.0, 0.0, 0.0, 1)
"""The chance of success after all turns of a failed episode."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Something else in a turn's place, and what came of it."""

    by: str
    """``expert``, ``silence``, ``policy NAME``, or ``cut to AGENT``: that agent does not see the turn."""
    chance: Interval
    """Of success: P(success | earlier layers, the replacement); the rest is played on."""
    text: str = ""
    """What is said instead, where that is known."""


@dataclass(frozen=True, slots=True)
class TurnBlame:
    """One turn of a failed episode."""

    record: TurnRecord
    """Its agent, text and index, as recorded."""
    nth: int
    """Which of its agent's turns it is, from 1."""
    before: Interval
    """Chance of success when it is drawn anew: V of the earlier layers."""
    after: Interval
    """Chance of success when it is kept: V of the earlier layers and this turn."""
    blame: Interval
    """``before`` − ``after``."""
    replacements: tuple[Replacement, ...] = ()


@dataclass(frozen=True, slots=True)
class EpisodeBlame:
    """One failed episode."""

    name: str
    """Task, and where it was recorded."""
    episode: Episode
    turns: tuple[TurnBlame, ...]
    """Those that the team played, in order; what wrappers play belongs to the environment."""
    flips: tuple[int, ...] = ()
    """The smallest set of turns that, drawn anew, restores ``Settings.share`` of the chance at the start; turns whose
    agents are shown the same words as before keep their own. Empty: no set that was tried."""
    flipped: Interval = UNKNOWN
    """Chance of success when this set is drawn anew."""
    hopeless: int | None = None
    """The turn from which success was out of reach: after it and all later turns the chance is below
    ``Settings.hopeless``. None: from the start."""

    @property
    def culprit(self) -> TurnBlame | None:
        """Returns the turn with the largest blame, if its interval is above 0; None: no turn is shown to be."""
        worst = self.ranked[0]
        return worst if worst.blame.low > 0 else None

    @property
    def ranked(self) -> list[TurnBlame]:
        """Returns the turns, the most blamed first; of equals the earlier one."""
        return sorted(self.turns, key=lambda turn: -turn.blame.mean)


@dataclass(slots=True)
class Replayed:
    """A failed episode that was played again, with the states to go on from."""

    name: str
    episode: Episode
    number: int
    states: dict[int, Any] = field(default_factory=dict)
    """Layer -> what ``fork`` copies from: the environment before it."""
    shown: dict[int, Any] = field(default_factory=dict)
    """Turn -> agent and prompt, as recorded; of turns that the team played."""
    questions: dict[Asked, Query] = field(default_factory=dict)
    """What is asked of it, but for sets of turns."""

    def ask(self, layer: int, texts: Mapping[int, Any] | None = None, *, state: Any = None, **more: Any) -> Query:
        """Returns the question that goes on from the state before a layer, or another one; see ``Branch``."""
        branch = Branch(state or self.states[layer], self.number, texts or {}, **more)
        given = sum(isinstance(text, str) * self.episode.turns[t].length for t, text in branch.texts.items())
        return Query(branch, self.episode.layers[layer].turns[0], self.cost(layer) - given)

    def cost(self, layer: int) -> int:
        """Returns how many tokens, or words, the episode has from a layer on: what a play is expected to sample."""
        return sum(turn.length for turn in self.episode.turns if turn.layer >= layer)


def replayed(
    name: str, episode: Episode, number: int, env: FlexEnv, again: Callable[[], FlexEnv] | None = None
) -> Replayed:
    """Plays a failed episode again, and keeps a copy of the state before each layer.

    Args:
        name: Of the episode, for people.
        episode: The record.
        number: Among the failures.
        env: Where to play it.
        again: Makes environments in which states are reached from the start; None: they are copied.

    Raises:
        ReplayError: It differs from its record.
        ConfigError: The environment cannot be copied.
    """
    found, base = Replayed(name, episode, number), env.unwrapped
    for turn in replayed_turns(episode, env):
        if turn.agent in env.possible_agents:
            found.shown[turn.index] = turn.agent, base.messages(turn.agent)
            if turn.layer not in found.states:
                found.states[turn.layer] = _Again(env, episode, turn.layer, again) if again else _copied(env)
    return found


class _Again(FlexWrapper):
    """Stands for a state that cannot be copied: its copies are reached by playing the episode again from its start."""

    def __init__(self, env: FlexEnv, episode: Episode, layer: int, make: Callable[[], FlexEnv]) -> None:
        super().__init__(env)
        self._episode, self._layer, self._make = episode, layer, make

    def fork(self, n: int = 1) -> list[Any]:
        """Returns environments of their own at this state; each is closed when its episode is over."""
        return [_Closing(self._reached()) for _ in range(n)]

    def _reached(self) -> FlexEnv:
        env = self._make()
        turns = replayed_turns(self._episode, env)
        next(turn for turn in turns if turn.layer == self._layer and turn.agent in env.possible_agents)
        return env


class _Closing(FlexWrapper):
    def step(self, action: str | None) -> None:
        super().step(action)
        if self.env.done:
            self.env.close()

    def truncate(self, reason: str, fault: Fault = "") -> None:
        self.env.truncate(reason, fault)
        self.env.close()


def _copied(env: FlexEnv) -> FlexEnv:
    try:
        return env.fork()[0]
    except Exception as error:  # whatever a task of others raises where it is copied
        raise ConfigError(f"{env.unwrapped.env_id} cannot be copied ({type(error).__name__}: {error}).") from error


def ask(case: Replayed, by: Sequence[str], renderer: Renderer) -> None:
    """Asks for the chances before and after each turn, and with each replacement in its place.

    Raises:
        ConfigError: The environment cannot be copied.
    """
    team = {agent.name: renderer.policy_of(agent.name) for agent in case.episode.agents if renderer.plays(agent.name)}
    case.questions |= {(layer, None): case.ask(layer) for layer in case.states}
    for t in case.shown:
        turn = case.episode.turns[t]
        if (place := _after(case, t)) is not None and place not in case.questions:
            case.questions[place] = case.ask(turn.layer, {t: turn.text})
        start = case.states[turn.layer]
        looked = not isinstance(start, _Again)  # nobody can look into a state that is yet to be reached
        if "expert" in by and looked and optional(start.unwrapped.task, "expert"):
            with suppress(UnsolvedError):  # it does not know this problem's solution
                case.questions[t, "expert"] = case.ask(turn.layer, {t: expert_of(_copied(start))(turn.agent)})
        if "silence" in by:
            case.questions[t, "silence"] = case.ask(turn.layer, {t: ""})
        for policy in sorted({*team.values()} - {team[turn.agent]}) if "policy" in by else ():
            case.questions[t, f"policy {policy}"] = case.ask(turn.layer, policies={t: policy})
        for seer in (case.episode.turns[i] for i in case.shown if "cut" in by and looked):
            if t in seer.sees and seer.round == turn.round and seer.agent != turn.agent:
                cut = case.ask(seer.layer, state=_cut(case.states[seer.layer], seer.agent, t))
                case.questions.setdefault((t, f"cut to {seer.agent}"), cut)


def _after(case: Replayed, t: int) -> Asked | None:
    """Names V of the earlier layers and turn t; None where that is the whole episode."""
    layer = case.episode.layers[case.episode.turns[t].layer]
    if layer.turns == (t,) and layer.index + 1 in case.states:
        return layer.index + 1, None
    return None if layer.turns == (t,) and layer is case.episode.layers[-1] else (layer.index, t)


def _cut(state: FlexEnv, agent: str, t: int) -> FlexEnv:
    """Returns a copy of a state in which an agent on turn does not see turn t."""
    copied = _copied(state)
    layer = copied.unwrapped.schedule.layer
    layer[agent] = replace(layer[agent], sees=tuple(i for i in layer[agent].sees if i != t))
    return copied


def out_of_reach(turns: Sequence[TurnBlame], threshold: float) -> int | None:
    """Returns the turn from which the chance stays below a threshold; None: it is so from the start."""
    first = len(turns) - 1
    while first >= 0 and turns[first].after.mean < threshold:
        first -= 1
    if first < 0 and turns[0].before.mean < threshold:
        return None
    return turns[min(first + 1, len(turns) - 1)].record.index


def blamed_turns(case: Replayed, known: Mapping[Asked, Interval]) -> tuple[TurnBlame, ...]:
    """Puts the chances of an episode's turns together."""
    turns, nth = [], Counter[str]()
    for t, (agent, _) in case.shown.items():
        place, turn = _after(case, t), case.episode.turns[t]
        before, after = known[turn.layer, None], LOST if place is None else known[place]
        nth[agent] += 1
        instead = [(by, q.branch.texts.get(t, "")) for (i, by), q in case.questions.items() if i == t]
        replaced = tuple(Replacement(by, known[t, by], str(text)) for by, text in instead if isinstance(by, str))
        blame = difference(before, after)
        turns.append(TurnBlame(turn, nth[agent], before, after, blame, replaced))
    return tuple(turns)


def smallest_sets(
    cases: Mapping[int, Replayed], ranked: Mapping[int, Sequence[int]], bars: Mapping[int, float], chances: Chances
) -> dict[int, Flip]:
    """Finds the smallest set of turns whose draw anew has a chance of its bar or more.

    All sets of one size are tried before larger ones. Of episodes with more than ``MOST`` turns these are the most
    blamed turns together, and of a set that is enough, turns that it does not need are left out again (greedy).

    Args:
        cases: Number -> episode.
        ranked: Number -> its turns, the most blamed first.
        bars: Number -> the chance that is enough.
        chances: Plays the branches.
    """
    found = dict[int, Flip]()

    def enough(tried: Sequence[tuple[int, tuple[int, ...]]]) -> dict[int, Flip]:
        asked = chances.of([_drawn_anew(cases[n], chosen) for n, chosen in tried])
        pairs = sorted(zip(tried, asked, strict=True), key=lambda pair: pair[1].mean if pair[1].n else -1.0)
        return {n: (s, chance) for (n, s), chance in pairs if chance.n and chance.mean >= bars[n]}  # the best is last

    for size in range(1, MOST + 1):
        found |= enough([(n, s) for n in cases if n not in found for s in _sets(ranked[n], size)])
    larger = {n: found[n] for n in found if len(ranked[n]) > MOST}
    while larger:
        larger = enough(
            [(n, s) for n, (chosen, _) in larger.items() for s in combinations(chosen, len(chosen) - 1) if s]
        )
        found |= larger
    return found


def _sets(ranked: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return list(combinations(sorted(ranked), size)) if len(ranked) <= MOST else [tuple(sorted(ranked[:size]))]


def _drawn_anew(case: Replayed, chosen: tuple[int, ...]) -> Query:
    """Returns the question in which these turns are drawn anew, and every other one keeps its words where it can."""
    turns, others = case.episode.turns, [t for t in case.shown if t not in chosen]
    kept = {t: partial(_if_shown_the_same, case.shown[t], turns[t].text) for t in others}
    return case.ask(turns[chosen[0]].layer, kept)


def _if_shown_the_same(shown: tuple[str, Any], text: str, turn: Request) -> str | None:
    return text if shown == (turn.agent, turn.messages) else None
