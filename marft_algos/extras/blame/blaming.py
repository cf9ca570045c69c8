"""Blames failed episodes: replays them, replaces their turns, and has the team play on from there.

V(h) is the chance of success after the history h, if the team plays on from there. The blame of turn t is

    b(t) = V(turns of earlier layers) − V(the same and t)

what this very turn cost: on both sides all that follows is drawn anew, so no turn is credited for what playing on alone
does. Where layers have one turn, the blames of a failed episode add up to V at its start.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Annotated, Any, Literal

from marft_algos.config import trust
from marft_algos.credit.branches import Branch
from marft_algos.evaluation.environments import EnvFactory
from marft_algos.evaluation.play import Player
from marft_algos.extras.blame.chances import Chances, Query, difference, looks
from marft_algos.extras.blame.report import Blame, EpisodeBlame, Replacement, TurnBlame
from marft_algos.models.chat import Renderer
from marft_algos.ranges import COUNT, SHARE, Range, Settings
from marft_algos.rollout.replay import Replayer
from marft_algos.runs.intervals import Interval
from marft_envs import FlexEnv
from marft_envs.core.partners import FlexWrapper, expert_of
from marft_envs.core.types import Episode, Fault, optional
from marft_envs.core.vector import Request
from marft_envs.errors import ConfigError, DataError, MarftError, UnsolvedError
from marft_envs.records.trajectory import ReplayError, rebuild, replayed_turns

Named = tuple[str, Episode]
"""An episode, and where it was recorded."""
LOST = Interval(0.0, 0.0, 0.0, 1)
"""The chance of success after all turns of a failed episode."""
MOST = 5
"""Turns of the largest set that is tried; of episodes that have no more, every set is."""
Flip = tuple[tuple[int, ...], Interval]
"""A set of turns, and the chance of success when it is drawn anew."""


@dataclass(frozen=True)
class BlameSettings(Settings):
    """How failures are looked at."""

    failures: Annotated[int, COUNT] = 20
    """So many failures, the first."""
    by: tuple[Literal["expert", "silence", "policy", "cut"], ...] = ("expert", "silence", "policy", "cut")
    """What stands in a turn's place, beside another draw of its own agent: ``expert``, the words of the task's expert;
    ``silence``, the empty text; ``policy``, a draw of each other policy; ``cut``, for each agent that sees the turn in
    its round, that agent's prompt without it."""
    width: Annotated[float, Range(0.01, 0.5)] = 0.15
    """Half-width of the 95 % interval of each chance, at most."""
    hopeless: Annotated[float, SHARE] = 0.05
    """Success is out of reach below this chance."""
    share: Annotated[float, SHARE] = 0.5
    """A set of turns flips the outcome if drawing it anew restores this share of the chance at the start."""
    token_budget: Annotated[int | None, COUNT] = None
    """Tokens that may be sampled; what is not known then says so."""
    again: bool = False
    """An environment that cannot be copied is run again from its start for every replacement, with all that it does
    outside: a program, a server of tools."""


# One failure -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReplayedFailure:
    """A failed episode that was played again, with the states to go on from, and what is asked of it."""

    name: str
    episode: Episode
    number: int
    states: dict[int, Any] = field(default_factory=dict)
    """Layer -> what ``fork`` copies from: the environment before it."""
    shown: dict[int, Any] = field(default_factory=dict)
    """Turn -> agent and prompt, as recorded; of turns that the team played."""
    before: dict[int, Query] = field(default_factory=dict)
    """Layer -> V of the layers before it."""
    after: dict[tuple[int, str], Query] = field(default_factory=dict)
    """Turn, and what replaces it -> V of the layers before it, and that; ``""``: the turn itself."""

    def query(self, layer: int, texts: Mapping[int, Any] | None = None, *, state: Any = None, **more: Any) -> Query:
        """Asks for V from the state before a layer on, or from another one; see ``Branch``."""
        turns = self.episode.turns
        given = {turn.index: turn.text for turn in turns if turn.layer < layer} | dict(texts or {})
        cost = sum(turn.length for turn in turns if not isinstance(given.get(turn.index), str))
        return Query(Branch(state or self.states[layer], self.number, given, **more), cost)

    @property
    def queries(self) -> list[Query]:
        """Returns what is asked of it, but for sets of turns."""
        return list(dict.fromkeys([*self.before.values(), *self.after.values()]))

    def blame(self) -> EpisodeBlame:
        """Puts the chances together."""
        turns = list[TurnBlame]()
        for t, (agent, _) in self.shown.items():
            turn = self.episode.turns[t]
            before, after = self.before[turn.layer].chance, self.after[t, ""].chance
            others = [(by, query) for (place, by), query in self.after.items() if place == t and by]
            replaced = tuple(Replacement(by, q.chance, str(q.branch.texts.get(t, ""))) for by, q in others)
            nth = 1 + sum(other.record.agent == agent for other in turns)
            turns.append(TurnBlame(turn, nth, before, after, difference(before, after), replaced))
        return EpisodeBlame(self.name, self.episode, tuple(turns))


def replayed(
    name: str, episode: Episode, number: int, env: FlexEnv, again: Callable[[], FlexEnv] | None = None
) -> ReplayedFailure:
    """Plays a failed episode again, and keeps a copy of the state before each layer.

    Args:
        name: Of the episode, for people.
        episode: The record.
        number: Among the failures.
        env: Where to play it.
        again: Makes environments in which every branch begins anew; None: states are copied.

    Raises:
        ReplayError: It differs from its record.
        ConfigError: The environment cannot be copied.
    """
    case = ReplayedFailure(name, episode, number)
    if not again and not optional(env.unwrapped.task, "copyable"):
        raise ConfigError(
            f"An episode of {env.unwrapped.env_id} cannot be copied half-way, so that no turn can be replaced in it. It"
            " may be run again from its start for every replacement, with all that it does outside: --again. Instead:"
            " evaluate the team with one agent replaced (marft eval --engines AGENT=OTHER …), and --compare the two."
        )
    for turn in replayed_turns(episode, env):
        if turn.agent in env.possible_agents:
            case.shown[turn.index] = turn.agent, env.unwrapped.messages(turn.agent)
            if turn.layer not in case.states:
                case.states[turn.layer] = _Again(env, again, episode) if again else _copied(env)
    return case


class _Again(FlexWrapper):
    """Stands for a state that cannot be copied: its copies begin anew, and are closed when their episode is over."""

    def __init__(self, env: FlexEnv, make: Callable[[], FlexEnv], episode: Episode) -> None:
        super().__init__(env)
        self._make, self._episode = make, episode

    def fork(self, n: int = 1) -> list[Any]:
        """Returns environments at the start of the episode; the branch says what is said up to the state."""
        copies = [_Again(self._make(), self._make, self._episode) for _ in range(n)]
        for copy in copies:
            copy.reset(seed=self._episode.seed, options=dict(self._episode.options))
        return copies

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


def ask(case: ReplayedFailure, by: Sequence[str], renderer: Renderer) -> None:
    """Asks for the chances before and after each turn, and with each replacement in its place.

    Raises:
        ConfigError: The environment cannot be copied.
        ReplayError: Somebody in it is not played by the team.
    """
    strangers = {agent for agent, _ in case.shown.values() if not renderer.plays(agent)}
    if strangers or not case.shown:
        raise ReplayError(f"nobody of the team plays {', '.join(sorted(strangers)) or 'in it'}")
    turns, layers, asked = case.episode.turns, case.episode.layers, case.after
    policies = {renderer.policy_of(agent.name) for agent in case.episode.agents if renderer.plays(agent.name)}
    case.before |= {layer: case.query(layer) for layer in case.states}
    known = case.before | {len(layers): replace(case.before[max(case.states)], cost=0, chance=LOST)}
    for t, (agent, _) in case.shown.items():
        layer, state = turns[t].layer, case.states[turns[t].layer]
        alone = layers[layer].turns == (t,) and layer + 1 in known
        asked[t, ""] = known[layer + 1] if alone else case.query(layer, {t: turns[t].text})
        looked = not isinstance(state, _Again)  # nobody can look into a state that is yet to be reached
        if "expert" in by and looked and optional(state.unwrapped.task, "expert"):
            with suppress(UnsolvedError):  # it does not know this problem's solution
                asked[t, "expert"] = case.query(layer, {t: expert_of(_copied(state))(agent)})
        if "silence" in by:
            asked[t, "silence"] = case.query(layer, {t: ""})
        for policy in sorted(policies - {renderer.policy_of(agent)}) if "policy" in by else ():
            asked[t, f"policy {policy}"] = case.query(layer, policies={t: policy})
        for seer in (turns[i] for i in case.shown if "cut" in by and looked):
            if t in seer.sees and seer.round == turns[t].round and seer.agent != agent:
                cut = case.query(seer.layer, state=_cut(case.states[seer.layer], seer.agent, t))
                asked.setdefault((t, f"cut to {seer.agent}"), cut)


def _cut(state: FlexEnv, agent: str, t: int) -> FlexEnv:
    """Returns a copy of a state in which an agent on turn does not see turn t."""
    copied = _copied(state)
    layer = copied.unwrapped.schedule.layer
    layer[agent] = replace(layer[agent], sees=tuple(i for i in layer[agent].sees if i != t))
    return copied


def out_of_reach(turns: Sequence[TurnBlame], threshold: float) -> int | None:
    """Returns the turn from which the chance stays below a threshold; None: it is so from the start."""
    alive = [place for place, turn in enumerate(turns, 1) if not turn.after.mean < threshold]
    if not alive and turns[0].before.mean < threshold:
        return None
    return turns[min(max(alive, default=0), len(turns) - 1)].record.index


def smallest_sets(
    found: Mapping[int, EpisodeBlame], cases: Sequence[ReplayedFailure], share: float, chances: Chances
) -> dict[int, Flip]:
    """Finds the smallest set of turns whose draw anew restores a share of the chance at the start.

    All sets of one size are tried before larger ones. Of episodes with more than ``MOST`` turns these are the most
    blamed turns together, and of a set that is enough, turns that it does not need are left out again (greedy).

    Args:
        found: Number of an episode -> the blame of its turns.
        cases: By number.
        share: That is enough.
        chances: Plays the branches.
    """
    ranked = {n: [turn.record.index for turn in e.ranked] for n, e in found.items()}
    flips = dict[int, Flip]()

    def enough(tried: Sequence[tuple[int, tuple[int, ...]]]) -> dict[int, Flip]:
        asked = [(n, chosen, _drawn_anew(cases[n], chosen)) for n, chosen in tried]
        chances.find(query for *_, query in asked)
        known = sorted((x for x in asked if x[-1].played), key=lambda x: x[-1].chance.mean)  # the best is last
        bars = {n: share * e.turns[0].before.mean for n, e in found.items()}
        return {n: (chosen, query.chance) for n, chosen, query in known if query.chance.mean >= bars[n]}

    for size in range(1, MOST + 1):
        flips |= enough([(n, chosen) for n in found if n not in flips for chosen in _sets(ranked[n], size)])
    larger = {n: flips[n] for n in flips if len(ranked[n]) > MOST}
    while larger:
        smaller = ((n, chosen) for n, (every, _) in larger.items() for chosen in combinations(every, len(every) - 1))
        larger = enough([(n, chosen) for n, chosen in smaller if chosen])
        flips |= larger
    return flips


def _sets(ranked: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return list(combinations(sorted(ranked), size)) if len(ranked) <= MOST else [tuple(sorted(ranked[:size]))]


def _drawn_anew(case: ReplayedFailure, chosen: Sequence[int]) -> Query:
    """Asks for V with these turns drawn anew, where every other one keeps its words as long as it can."""
    turns, others = case.episode.turns, [t for t in case.shown if t not in chosen]
    kept = {t: partial(_if_shown_the_same, case.shown[t], turns[t].text) for t in others}
    return case.query(turns[chosen[0]].layer, kept)


def _if_shown_the_same(shown: tuple[str, Any], text: str, turn: Request) -> str | None:
    return text if shown == (turn.agent, turn.messages) else None


# All of them -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blaming:
    """Failures that were played again, and who plays on from them."""

    settings: BlameSettings
    player: Player
    cases: Sequence[ReplayedFailure]
    failed: int
    """Failures that there are."""
    left_out: Counter[str]
    """Why failures that were looked at are left out -> how many."""

    def costs(self) -> tuple[int, int]:
        """Returns the tokens that it samples at least and at most, sets of several turns left out.

        Each play is taken to cost what the recorded episode has from its start on.
        """
        asked = [query for case in self.cases for query in case.queries]
        asked += [case.before[case.episode.turns[t].layer] for case in self.cases for t in case.shown]  # sets of one
        first, *_, last = looks(self.settings.width)
        return first * sum(query.cost for query in asked), last * sum(query.cost for query in asked)

    def run(self) -> Blame:
        """Plays all that is needed.

        Raises:
            InfrastructureError: Too many replays were lost.
        """
        by, settings = self.player, self.settings
        replayer = Replayer(by.renderer, by.engine, by.sampling, seed=by.seed, slots=by.slots)
        chances = Chances(replayer, by.limits, settings.width, settings.token_budget)
        chances.find(query for case in self.cases for query in case.queries)
        found = {case.number: case.blame() for case in self.cases}
        reached = {n: e for n, e in found.items() if e.turns[0].before.mean >= settings.hopeless}
        sets = smallest_sets(reached, self.cases, settings.share, chances)
        for n, e in found.items():
            flips, flipped = sets.get(n, (e.flips, e.flipped))
            lost = out_of_reach(e.turns, settings.hopeless)
            found[n] = replace(e, flips=flips, flipped=flipped, hopeless=lost)
        spent = chances.episodes, chances.tokens, chances.read, chances.spent
        return Blame(tuple(found.values()), self.failed, dict(self.left_out), *spent)


def failures(episodes: Sequence[Named], source: str) -> list[Named]:
    """Returns the failures among recorded episodes; ``source`` is where they come from, for the message.

    Raises:
        DataError: There is none.
    """
    failed = [(name, e) for name, e in episodes if e.success is False and not e.infrastructure_error]
    unjudged = sum(e.success is None for _, e in episodes)
    if not failed:
        served = f"; {unjudged} say nothing of success (a served team's, an imported trace's)" if unjudged else ""
        raise DataError(
            f"There is no failure among the {len(episodes)} episodes of {source}{served}. Expected episodes with"
            " success = false. Play more problems: marft eval … --out FILE"
        )
    return failed


@contextmanager
def blaming(
    failed: Sequence[Named], player: Player, settings: BlameSettings, env: EnvFactory | None = None, *, source: str
) -> Iterator[Blaming]:
    """Replays failures; nothing is sampled yet. Their environments are closed afterwards.

    Args:
        failed: Recorded failures.
        player: The team that plays on.
        settings: How they are looked at.
        env: Makes their environment; None: each record names its own.
        source: Where they come from, for messages.

    Raises:
        ConfigError: There is no environment for them.
        DataError: None of them can be replayed, or copied.
        TrustError: A record names what executes or sends.
    """
    cases, why, made = list[ReplayedFailure](), Counter[str](), dict[str, FlexEnv]()
    with ExitStack() as envs:
        for name, episode in failed[: settings.failures]:
            trust.check({} if env else {"env": episode.env_id, "env_kwargs": episode.env_kwargs}, source)
            make = env or partial(rebuild, episode, trusted=True, whole=True)
            key = json.dumps([episode.env_id, episode.env_kwargs], sort_keys=True, default=str)
            if key not in made:
                made[key] = envs.enter_context(closing(make()))
            try:
                case = replayed(name, episode, len(cases), made[key], make if settings.again else None)
                ask(case, settings.by, player.renderer)
            except MarftError as error:  # its problem is not there, it differs from its record, it cannot be copied
                why[str(error).partition(": recorded {")[0].rstrip(".")] += 1
            else:
                cases.append(case)
        if not cases:
            said = "; ".join(f"{n} × {reason}" for reason, n in why.most_common(3))
            raise DataError(
                f"None of the {why.total()} failures of {source} can be replayed: {said}. Expected the version of the"
                " environment that recorded them, with the same data, and their own team. Record them again with this"
                " version: marft eval … --out FILE"
            )
        yield Blaming(settings, player, cases, len(failed), why)
