"""What else could have happened: episodes that go on from a copied state, and collecting with several candidates.

A replay starts from a copy of an episode (``FlexEnv.fork``, kept by the Collector) and plays it to its end with the
rollout engine. Random numbers are common: a turn's seed is the one it had in the episode unless another sample is asked
for, so who is told the same says the same, and a difference between two replays has a cause in what was changed.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from marft_algos.credit.branches import Branch, Keep
from marft_algos.engines.base import EngineBase, RolloutEngine, row_seed
from marft_algos.rollout.collector import Collector, Seating, States
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason, Trajectory, Transition
from marft_envs.core import FlexEnv
from marft_envs.errors import ConfigError
from marft_envs.types import Episode
from marft_envs.vector import VectorEnv
from marft_envs.wrappers import FlexWrapper, RecordEpisodes

if TYPE_CHECKING:
    from torch import Tensor

    from marft_algos.models.renderer import Renderer


@dataclass(slots=True)
class Spent:
    """What was sampled, and what was read for it."""

    tokens: int = 0
    prompts: int = 0

    def add(self, asked: GenerationRequest, reply: Generation) -> None:
        """Counts a reply, and its prompt if there was one to it."""
        self.tokens += len(reply.action_ids)
        self.prompts += 0 if reply.stop_reason is StopReason.ERROR else len(asked.prompt_ids)


class Weights(Protocol):
    """What ``StartEngine`` needs of the policies."""

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the weights."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Puts them back in place."""


class StartEngine(EngineBase):
    """An engine in this process, with the weights that the policies have when this is made.

    Args:
        engine: Samples at the policies' present weights.
        policies: Have the start's weights while this generates.
    """

    def __init__(self, engine: RolloutEngine, policies: Weights) -> None:
        self._engine, self._policies, self._start = engine, policies, policies.state_dict()

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """As the engine, at the start's weights."""
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
        seating: Who plays an agent in an episode, as for the Collector.
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
        seating: Seating | None = None,
    ) -> None:
        self._renderer, self._engine, self._params = renderer, engine, params
        self.seed, self._slots, self._start, self._seating = seed, slots, start, seating
        self.states: States = {}
        """What branches go on from; a Collector that is given it keeps copies here."""
        self.spent: dict[int, Spent] = defaultdict(Spent)
        """Episode -> what was spent on it and is not part of it since ``charge`` was last called."""
        self.branches = 0
        """Branches played since ``charge`` was last called."""
        self.lost: list[Episode] = []
        """Those of them that an outage broke off."""

    def play(self, branches: Sequence[Branch], iteration: int) -> list[Trajectory | None]:
        """Plays every branch; None for those that an outage broke off.

        Args:
            branches: Of any episodes of the iteration.
            iteration: Seeds depend on it.

        Returns:
            In the order of ``branches``, whole episodes: the turns before the copy was made are those of the episode.

        Raises:
            ConfigError: The environment cannot be copied.
        """
        if not branches:
            return []
        unused = _Branched(branches[0])  # every episode brings its own environment
        vec = VectorEnv([lambda: unused] * min(self._slots, len(branches)))
        collector = _Branches(vec, self._renderer, self._engine, self._params, seed=self.seed, seating=self._seating)
        try:
            played = collector.play(branches, iteration, self._start)
        finally:
            vec.close()
        for branch, spent in zip(branches, collector.spent, strict=True):
            self.spent[branch.episode].tokens += spent.tokens
            self.spent[branch.episode].prompts += spent.prompts
        self.branches += len(played)
        self.lost += [t.episode for t in played if t.infra]
        return [None if t.infra else t for t in played]

    def state(self, trajectory: Trajectory, layer: int | None = None) -> FlexEnv:
        """The state before a layer; None: before the first that was kept.

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

    def charge(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes with what branches of them cost; forgets the branches, and the states that they began at."""
        charged = []
        for t in trajectories:
            spent = self.spent.pop(t.number, Spent())
            tokens, prompts = t.replayed_tokens + spent.tokens, t.replayed_prompts + spent.prompts
            charged.append(dataclasses.replace(t, replayed_tokens=tokens, replayed_prompts=prompts))
        self.states.clear()
        self.branches, self.lost = 0, []
        return charged


class _Branched(FlexWrapper):
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
        self._until_paid, self._round = branch.until_paid, now.view.round
        self._layers, self._turns = len(now.episode.layers), len(now.view.history)

    def step(self, action: str | None) -> None:
        """Steps, and ends the branch where it is to end."""
        self.env.step(action)
        if self._until_paid and not self.env.unwrapped.done and self._over():
            self.env.truncate("branch")

    def _over(self) -> bool:
        now = self.env.unwrapped
        if now.view.round > self._round:
            return True
        layers, turns = now.episode.layers[self._layers :], now.view.history[self._turns :]
        paid = any(x.team_reward or any(x.agent_rewards.values()) or any(x.late_rewards.values()) for x in layers)
        return paid or any(t.reward for t in turns)

    def close(self) -> None:
        """Nothing: worker processes belong to the original."""


class _Branches(Collector):
    """Drives branches: some turns are given, some are sampled anew, absent agents have replies of their own."""

    def play(self, branches: Sequence[Branch], iteration: int, start: RolloutEngine | None) -> list[Trajectory]:
        self._branches, self._start = branches, start
        self.spent = [Spent() for _ in branches]
        assert isinstance(self._vec, VectorEnv)
        self._vec.branch([partial(_Branched, branch) for branch in branches])
        played = self._play(len(branches), iteration, 0)
        return [dataclasses.replace(t, number=branch.episode) for t, branch in zip(played, branches, strict=True)]

    def _answer(
        self, requests: Sequence[Any], iteration: int, first: int
    ) -> tuple[list[GenerationRequest], list[Generation]]:
        branches = [self._branches[r.episode] for r in requests]
        texts = [_given(b, r) for b, r in zip(branches, requests, strict=True)]
        owners = [self._owner(r.agent, iteration, b.episode) for r, b in zip(requests, branches, strict=True)]
        asked = [GenerationRequest(owner, [], 0) for owner in owners]
        replies = [
            Generation([], np.zeros(0, np.float32), StopReason.EOS, 0, text or "") for text in texts
        ]  # those that stay have no tokens, and are not counted
        open_ = [i for i, text in enumerate(texts) if text is None]
        seeds = [
            row_seed(
                self._seed, iteration, branches[i].episode, requests[i].index_hint,
                branches[i].samples.get(requests[i].index_hint, branches[i].sample),
            )
            for i in open_
        ]  # fmt: skip
        prompts = dict(
            zip(open_, self._ask([requests[i] for i in open_], seeds, [owners[i] for i in open_]), strict=True)
        )
        away = [i for i in open_ if requests[i].agent in branches[i].absent]
        for engine, rows in ((self._engine, [i for i in open_ if i not in away]), (self._start, away)):
            if not rows:
                continue
            assert engine is not None
            for i, reply in zip(rows, engine.generate([prompts[i] for i in rows], self._params), strict=True):
                asked[i], replies[i] = prompts[i], reply
                self.spent[requests[i].episode].add(prompts[i], reply)
        return asked, replies

    def _apart(self) -> bool:
        return False  # branches are many, and asked for at once

    def _planned(self, episode: Episode) -> list[Transition]:
        return []  # nobody values what would have come after a branch


def _given(branch: Branch, request: Any) -> str | None:
    """What is said without asking an engine, or None."""
    if request.agent in branch.absent and branch.absence == "silent":
        return ""
    return branch.said.get(request.index_hint)


Worth = Callable[[Trajectory, int], float]
"""(a branch, history index of the candidate in it) -> what the candidate is worth."""


@dataclass(frozen=True, slots=True)
class _Rival:
    """A candidate that did not advance."""

    asked: GenerationRequest
    reply: Generation
    worth: float


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

    def __init__(self, *args: Any, replayer: Replayer, candidates: int, worth: Worth, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replayer, self._candidates, self._worth = replayer, candidates, worth
        self._rivals: dict[tuple[int, int], list[_Rival]] = {}
        self._chosen: dict[tuple[int, int], float] = {}

    def _apart(self) -> bool:
        return False  # the candidates of all episodes are tried at once

    def _play(self, total: int, iteration: int, first: int, keep: Keep = "nothing") -> list[Trajectory]:
        self._rivals, self._chosen = {}, {}
        return super()._play(total, iteration, first, keep)

    def _answer(
        self, requests: Sequence[Any], iteration: int, first: int
    ) -> tuple[list[GenerationRequest], list[Generation]]:
        owner = {id(r): self._owner(r.agent, iteration, first + r.episode) for r in requests}
        trained = [r for r in requests if self._trained(owner[id(r)])]
        tried = set(map(id, trained))
        places = [(r, j) for r in requests for j in range(self._candidates if id(r) in tried else 1)]
        seeds = [row_seed(self._seed, iteration, first + r.episode, r.index_hint, j) for r, j in places]
        asked = self._ask([r for r, _ in places], seeds, [owner[id(r)] for r, _ in places])
        replies = self._engine.generate(asked, self._params)
        made: dict[tuple[int, int], list[tuple[GenerationRequest, Generation]]] = {}
        for (r, _), request, reply in zip(places, asked, replies, strict=True):
            made.setdefault((r.episode, r.index_hint), []).append((request, reply))
        worths = self._try(requests, trained, made, iteration, first)
        best = []
        for r in requests:
            key = (r.episode, r.index_hint)
            found, own = made[key], worths.get(key, [0.0])
            chosen = max(range(len(own)), key=lambda j, own=own: (own[j], -j))  # type: ignore[misc]
            best.append(found[chosen])
            if own[chosen] > -np.inf and key in worths:
                self._chosen[key] = own[chosen]
            others = [_Rival(*found[j], worth) for j, worth in enumerate(own) if j != chosen]
            self._rivals[key] = [rival for rival in others if rival.worth > -np.inf]
            for lost in (rival for rival in others if rival.worth == -np.inf):
                self._replayer.spent[first + r.episode].add(lost.asked, lost.reply)
        return [request for request, _ in best], [reply for _, reply in best]

    def _try(
        self,
        requests: Sequence[Any],
        trained: Sequence[Any],
        made: Mapping[tuple[int, int], Sequence[tuple[GenerationRequest, Generation]]],
        iteration: int,
        first: int,
    ) -> dict[tuple[int, int], list[float]]:
        """What each candidate is worth, by turn; −inf for those that failed, or whose branch did."""
        starts: dict[int, FlexEnv] = {}
        firsts: dict[int, dict[int, str]] = {}
        for r in requests:
            firsts.setdefault(r.episode, {})[r.index_hint] = made[r.episode, r.index_hint][0][1].text
        branches: list[Branch] = []
        places: dict[tuple[int, int, int], int] = {}  # (episode, turn, candidate) -> branch
        for r in trained:
            if r.episode not in starts:
                starts[r.episode] = self._vec.fork(r)
            for j, (_, reply) in enumerate(made[r.episode, r.index_hint]):
                if reply.stop_reason is StopReason.ERROR:
                    continue
                # The layer's first candidates together are one branch, whoever is judged by it.
                place = (r.episode, r.index_hint if j else -1, j)
                if place not in places:
                    said = {**firsts[r.episode], r.index_hint: reply.text}
                    branches.append(Branch(starts[r.episode], first + r.episode, said, until_paid=True))
                    places[place] = len(branches) - 1
                places[r.episode, r.index_hint, j] = places[place]
        played = self._replayer.play(branches, iteration)
        worths: dict[tuple[int, int], list[float]] = {}
        for r in trained:
            worths[r.episode, r.index_hint] = own = []
            for j in range(len(made[r.episode, r.index_hint])):
                number = places.get((r.episode, r.index_hint, j))
                branch = None if number is None else played[number]
                own.append(-np.inf if branch is None else self._worth(branch, r.index_hint))
        return worths

    def _trajectory(self, episode: Episode, first: int) -> Trajectory:
        trajectory = super()._trajectory(episode, first)
        rivals: list[Transition] = []
        for t in trajectory.transitions:
            for rival in self._rivals.get((episode.index, t.index), ()):
                turn = dataclasses.replace(t.turn, text=rival.reply.text, reward=0.0)
                rivals.append(dataclasses.replace(t, turn=turn, reply=rival.reply, worth=rival.worth))
        worths = [self._chosen.get((episode.index, t.index)) for t in trajectory.transitions]
        turns = [dataclasses.replace(t, worth=w) for t, w in zip(trajectory.transitions, worths, strict=True)]
        return dataclasses.replace(trajectory, transitions=turns, candidates=rivals)
