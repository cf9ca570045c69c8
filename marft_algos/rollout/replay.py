"""Plays episodes on from copied states (branches), and collects with several candidates a turn.

A replay starts from a copy of an episode (``FlexEnv.fork``, kept by the Collector) and plays it to its end with the
rollout engine. Random numbers are common: a turn's seed is the one it had in the episode unless another sample is asked
for, so equal prompts get equal replies, and a difference between two replays has a cause in what was changed.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from marft_algos.credit.branches import Branch, Spent, States
from marft_algos.engines.base import EngineBase, RolloutEngine
from marft_algos.rollout.collector import Collector, PolicyAssignment
from marft_algos.rollout.episodes import settle
from marft_algos.types import (
    NO_REPLY,
    Generation,
    GenerationRequest,
    SamplingParams,
    StopReason,
    Trajectory,
    Transition,
)
from marft_envs.core.env import FlexEnv
from marft_envs.core.partners import FlexWrapper
from marft_envs.core.types import Episode, TurnRecord
from marft_envs.core.vector import Request, VectorEnv
from marft_envs.errors import ConfigError
from marft_envs.records.trajectory import RecordEpisodes

if TYPE_CHECKING:
    from torch import Tensor

    from marft_algos.models.chat import Renderer


class Restorable(Protocol):
    """Has weights that can be copied and put back: what ``StartEngine`` needs of the policies."""

    def state_dict(self) -> dict[str, Tensor]:
        """Returns copies of the weights."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Puts them back in place."""


class StartEngine(EngineBase):
    """An engine in this process, with the weights that the policies have when this is made.

    Args:
        engine: Samples at the policies' present weights.
        policies: Have the start's weights while this generates.
    """

    def __init__(self, engine: RolloutEngine, policies: Restorable) -> None:
        self._engine, self._policies, self._start = engine, policies, policies.state_dict()

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Generates as the engine does, at the start's weights."""
        now = self._policies.state_dict()
        self._policies.load_state_dict(self._start)
        try:
            return self._engine.generate(requests, params)
        finally:
            self._policies.load_state_dict(now)


class Replayer:
    """Plays branches, all in one batch.

    Args:
        renderer: Who plays which policy, and how it is spoken to; None when the engine is scripted.
        engine: Writes the replies.
        params: How to sample.
        seed: The run's seed.
        slots: Branches in flight; the copies of the others are made when a slot is free.
        start: Replies of agents that are absent with absence ``start``.
        assignment: Who plays an agent in an episode, as for the Collector.
    """

    def __init__(
        self,
        renderer: Renderer | None,
        engine: RolloutEngine,
        params: SamplingParams,
        *,
        seed: int = 0,
        slots: int = 64,
        start: RolloutEngine | None = None,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        self._renderer, self._engine, self._params = renderer, engine, params
        self.seed, self._slots, self._start, self._assignment = seed, slots, start, assignment
        self.states: States = {}
        """What branches go on from; a Collector that is given it keeps copies here."""
        self.spent: dict[int, Spent] = defaultdict(Spent)
        """Episode -> what was spent on it and is not part of it since ``add_costs`` was last called."""
        self.branches = 0
        """Branches played since ``add_costs`` was last called."""
        self.lost: list[Episode] = []
        """Those of them lost to infrastructure errors."""

    def play(
        self, branches: Sequence[Branch], iteration: int, states: States | None = None, *, learnt: bool = False
    ) -> list[Trajectory | None]:
        """Plays every branch; None for those lost to infrastructure errors.

        Args:
            branches: Of any episodes of the iteration.
            iteration: Seeds depend on it.
            states: Where copies of the states before decisions are put, by place of the branch; None: none are kept.
            learnt: Whether their turns are learnt from: then they count as turns, and not as replays.

        Returns:
            In the order of ``branches``, whole episodes: the turns before the copy was made are those of the episode.

        Raises:
            ConfigError: The environment cannot be copied.
        """
        if not branches:
            return []
        unused = _Shared(branches[0].start)  # every episode brings its own environment
        kwargs: dict[str, Any] = {"seed": self.seed, "assignment": self._assignment, "start": self._start}
        with closing(VectorEnv([lambda: unused] * min(self._slots, len(branches)))) as vec:
            place = (vec, self._renderer, self._engine, self._params)
            collector = _Branches(*place, branches=branches, states=states, **kwargs)
            played = collector.play(iteration)
        for branch, spent, t in zip(branches, collector.spent, played, strict=True):
            if learnt and not t.infrastructure_error:
                continue
            self.spent[branch.episode].tokens += spent.tokens
            self.spent[branch.episode].prompts += spent.prompts
        self.branches += len(played)
        self.lost += [t.episode for t in played if t.infrastructure_error]
        return [None if t.infrastructure_error else t for t in played]

    def prompt(self, t: Transition, words: str) -> list[int]:
        """Returns a turn's prompt with further words behind its agent's prompt; [] if it is too long."""
        assert self._renderer is not None
        (*before, last), begun = t.request.messages, t.request.begun
        rendered = self._renderer.render(t.policy, [*before, {**last, "content": f"{last['content']}\n\n{words}"}])
        ids = [*rendered, *t.request.prompt_ids[len(t.request.prompt_ids) - begun :]]
        return ids if len(ids) + len(t.reply.action_ids) <= self._renderer.chat(t.policy).context else []

    def state(self, trajectory: Trajectory, layer: int | None = None) -> FlexEnv:
        """Returns the state before a layer; None: before the first that was kept.

        Raises:
            ConfigError: It was not kept.
        """
        kept = self.states.get(trajectory.number, {})
        wanted = min(kept, default=0) if layer is None else layer
        if wanted not in kept:
            raise ConfigError(
                f"Episode {trajectory.number} has no copy of the state before layer {wanted} (there is: "
                f"{sorted(kept)}). Collect with keep='decisions', or keep='start' for the first."
            )
        return kept[wanted]

    def add_costs(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Adds what branches cost to their episodes; forgets the branches, and the states that they began at."""
        episodes = []
        for t in trajectories:
            spent = self.spent.pop(t.number, Spent())
            tokens, prompts = t.replayed_tokens + spent.tokens, t.replayed_prompts + spent.prompts
            episodes.append(dataclasses.replace(t, replayed_tokens=tokens, replayed_prompts=prompts))
        self.forget()
        return episodes

    def forget(self) -> None:
        """Forgets branches, what they cost, and the states that they began at."""
        self.states.clear()
        self.spent.clear()
        self.branches, self.lost = 0, []


class _Shared(FlexWrapper):
    """Closes nothing: worker processes belong to the original."""

    def close(self) -> None:
        """Does nothing."""


class _Branched(_Shared):
    """A copy of a branch's start that ends where the branch does, and shares what the original holds."""

    def __init__(self, branch: Branch) -> None:
        (env,) = branch.start.fork()
        super().__init__(env)
        inner = env
        while isinstance(inner, FlexWrapper):
            if isinstance(inner, RecordEpisodes):
                inner.recorded = True  # a branch is no episode of the run
            inner = inner.env
        now = env.unwrapped
        self._until_reward, self._round = branch.until_reward, now.view.round
        self._layers, self._turns = len(now.episode.layers), len(now.view.history)

    def step(self, action: str | None) -> None:
        """Steps, and ends the branch where it is to end."""
        self.env.step(action)
        if self._until_reward and not self.env.unwrapped.done and self._over():
            self.env.truncate("branch")

    def _over(self) -> bool:
        now = self.env.unwrapped
        layers, turns = now.episode.layers[self._layers :], now.view.history[self._turns :]
        paid = any(x.team_reward or any(x.agent_rewards.values()) or any(x.late_rewards.values()) for x in layers)
        return now.view.round > self._round or paid or any(t.reward for t in turns)


class _Branches(Collector):
    """Plays branches: some turns are given, some are sampled anew, absent agents have replies of their own.

    Args:
        vec: Where they are played.
        *args: As ``Collector``.
        branches: What to play.
        start: Replies of agents that are absent with absence ``start``.
        **kwargs: As ``Collector``.
    """

    _together = True
    """Branches are many, and the engine is asked for all of them at once."""

    def __init__(
        self, vec: VectorEnv, *args: Any, branches: Sequence[Branch], start: RolloutEngine | None, **kwargs: Any
    ) -> None:
        super().__init__(vec, *args, **kwargs)
        self._keep = "nothing" if kwargs["states"] is None else "decisions"
        self._branches, self._start = branches, start
        self._limited = branches[0].start.unwrapped.rules.max_path is not None
        self.spent = [Spent() for _ in branches]
        vec.branch([partial(_Branched, branch) for branch in branches])

    def play(self, iteration: int) -> list[Trajectory]:
        """Plays every branch to its end."""
        self._iteration = iteration
        played = sorted(chain.from_iterable(self._play(len(self._branches))), key=lambda t: t.number)
        episodes = [branch.episode for branch in self._branches]
        return [dataclasses.replace(t, number=n) for t, n in zip(settle(played), episodes, strict=True)]

    def _number(self, turn: Request) -> int:
        return self._branches[turn.episode].episode

    def _place(self, turn: Request) -> int:
        return turn.episode

    def _owner(self, turn: Request) -> str:
        return self._branches[turn.episode].policies.get(turn.index_hint) or super()._owner(turn)

    def _answer(self, turns: Sequence[Request]) -> tuple[list[GenerationRequest], list[Generation]]:
        branches = [self._branches[turn.episode] for turn in turns]
        texts = [_given_text(branch, turn) for branch, turn in zip(branches, turns, strict=True)]
        requests = [GenerationRequest(self._owner(turn), [], 0) for turn in turns]
        # Nothing is sampled. What a task has begun stands in a given text, and is put before every reply.
        said = [(text or "").removeprefix(turn.prefix) for text, turn in zip(texts, turns, strict=True)]
        spent = [self._tokens(request.policy, text) for request, text in zip(requests, said, strict=True)]
        replies = [dataclasses.replace(NO_REPLY, text=text, spent=n) for text, n in zip(said, spent, strict=True)]
        sampled = [i for i, text in enumerate(texts) if text is None]
        samples = [branches[i].samples.get(turns[i].index_hint, branches[i].sample) for i in sampled]
        for i, request in zip(sampled, self._requests([turns[i] for i in sampled], samples), strict=True):
            requests[i] = request
        absent = [i for i in sampled if turns[i].agent in branches[i].absent]
        for engine, rows in ((self._engine, [i for i in sampled if i not in absent]), (self._start, absent)):
            if not rows:
                continue
            assert engine is not None
            for i, reply in zip(rows, engine.generate([requests[i] for i in rows], self._params), strict=True):
                replies[i] = reply
                self.spent[turns[i].episode].add(requests[i], reply)
        return requests, replies

    def _tokens(self, policy: str, text: str) -> dict[str, int]:
        """Returns the length of a given text, where tokens limit the latency of an answer."""
        if not self._limited or self._renderer is None or policy not in self._renderer.policies:
            return {}
        return {"tokens": len(self._renderer.chat(policy).reply_ids(text))} if text else {}

    def _planned(self, episode: Episode) -> list[Transition]:
        return []  # nobody values what would have come after a branch


def _given_text(branch: Branch, turn: Request) -> str | None:
    """Returns what is said without asking an engine, or None."""
    silent = turn.agent in branch.absent and branch.absence == "silent"
    text = "" if silent else branch.texts.get(turn.index_hint)
    return text(turn) if callable(text) else text


Worth = Callable[[Trajectory, int], float]
"""(a branch, history index of the candidate in it) -> what the candidate is worth."""
_Turn = tuple[int, int]
"""(episode, history index)."""
_Candidates = Mapping[_Turn, Sequence[tuple[GenerationRequest, Generation]]]


class TreeCollector(Collector):
    """Draws several candidates at every turn of a trained policy, tries each of them, and goes on with the best.

    A candidate is tried in a branch in which the others of its layer say their first candidate. The best of each turn
    advances (the first of equals); the others stand in ``Trajectory.candidates``, all with their worth.

    Args:
        replayer: Tries candidates.
        candidates: Replies per turn.
        worth: Judges a branch.
        *args: As ``Collector``.
        **kwargs: As ``Collector``.
    """

    _together = True
    """The candidates of all episodes are tried at once."""

    def __init__(self, *args: Any, replayer: Replayer, candidates: int, worth: Worth, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replayer, self._candidates, self._worth = replayer, candidates, worth
        self._rejected: dict[_Turn, list[Callable[[TurnRecord], Transition]]] = {}
        self._chosen: dict[_Turn, float] = {}

    def _play(self, total: int, group_size: int = 1) -> Generator[list[Trajectory]]:
        self._rejected, self._chosen = {}, {}
        return super()._play(total, group_size)

    def _answer(self, turns: Sequence[Request]) -> tuple[list[GenerationRequest], list[Generation]]:
        trained = [turn for turn in turns if self._trained(self._owner(turn))]
        several = set(trained)
        places = [(turn, j) for turn in turns for j in range(self._candidates if turn in several else 1)]
        requests = self._requests([turn for turn, _ in places], [j for _, j in places])
        candidates: dict[_Turn, list[tuple[GenerationRequest, Generation]]] = defaultdict(list)
        replies = self._engine.generate(requests, self._params)
        for (turn, _), request, reply in zip(places, requests, replies, strict=True):
            candidates[turn.episode, turn.index_hint].append((request, reply))
        worths = self._try(turns, trained, candidates)
        best = []
        for turn in turns:
            key = (turn.episode, turn.index_hint)
            values = worths.get(key, [0.0])
            chosen = max(range(len(values)), key=lambda j, values=values: (values[j], -j))  # type: ignore[misc]
            best.append(candidates[key][chosen])
            if values[chosen] > -math.inf and key in worths:
                self._chosen[key] = values[chosen]
            self._rejected[key] = []
            for j, value in enumerate(values):
                if j != chosen and value > -math.inf:
                    self._rejected[key].append(self._transition(turn, *candidates[key][j], worth=value))
                elif j != chosen:
                    self._replayer.spent[self._number(turn)].add(*candidates[key][j])
        return [request for request, _ in best], [reply for _, reply in best]

    def _try(
        self, turns: Sequence[Request], trained: Sequence[Request], candidates: _Candidates
    ) -> dict[_Turn, list[float]]:
        """Plays a branch for each candidate; returns their worths by turn: −inf where candidate or branch failed."""
        starts: dict[int, FlexEnv] = {}
        firsts: dict[int, dict[int, str]] = defaultdict(dict)
        for turn in turns:
            firsts[turn.episode][turn.index_hint] = turn.prefix + candidates[turn.episode, turn.index_hint][0][1].text
        branches: list[Branch] = []
        places: dict[tuple[int, int, int], int] = {}  # (episode, turn, candidate) -> branch
        for turn in trained:
            if turn.episode not in starts:
                starts[turn.episode] = self._vec.fork(turn)
            for j, (_, reply) in enumerate(candidates[turn.episode, turn.index_hint]):
                if reply.stop_reason is StopReason.ERROR:
                    continue
                # The layer's first candidates together are one branch for all turns judged by it.
                place = (turn.episode, turn.index_hint if j else -1, j)
                if place not in places:
                    texts = {**firsts[turn.episode], turn.index_hint: turn.prefix + reply.text}
                    branches.append(Branch(starts[turn.episode], self._number(turn), texts, until_reward=True))
                    places[place] = len(branches) - 1
                places[turn.episode, turn.index_hint, j] = places[place]
        played = self._replayer.play(branches, self._iteration)
        worths: dict[_Turn, list[float]] = {}
        for turn in trained:
            key = (turn.episode, turn.index_hint)
            numbers = [places.get((*key, j)) for j in range(len(candidates[key]))]
            tried = [None if number is None else played[number] for number in numbers]
            worths[key] = [-math.inf if b is None else self._worth(b, turn.index_hint) for b in tried]
        return worths

    def _trajectory(self, episode: Episode, group_size: int = 1) -> Trajectory:
        trajectory = super()._trajectory(episode, group_size)
        rejected: list[Transition] = []
        for t in trajectory.transitions:
            for candidate in self._rejected.get((episode.index, t.index), ()):
                text = candidate(t.turn).reply.text
                rejected.append(candidate(dataclasses.replace(t.turn, text=text, reward=0.0)))
        worths = [self._chosen.get((episode.index, t.index)) for t in trajectory.transitions]
        turns = [dataclasses.replace(t, worth=w) for t, w in zip(trajectory.transitions, worths, strict=True)]
        return dataclasses.replace(trajectory, transitions=turns, candidates=rejected)
