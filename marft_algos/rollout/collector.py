"""Rollouts: plays a panel of episodes and returns what happened as trajectories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from marft_algos.credit.branches import Keep
from marft_algos.engines.base import RolloutEngine, row_seed
from marft_algos.rollout import faults
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason, Trajectory, Transition
from marft_envs.core import FlexEnv
from marft_envs.types import Episode, TurnRecord

if TYPE_CHECKING:
    from marft_algos.models.renderer import Renderer

States = dict[int, dict[int, FlexEnv]]
"""Number of an episode -> layer -> copy of the environment before it."""
Seating = Callable[[str, int, int], str]
"""(agent, iteration, episode) -> the policy that plays it there."""


class VectorEnv(Protocol):
    """What the Collector needs of ``marft_envs.make_vec``."""

    @property
    def done(self) -> bool:
        """True when every queued episode has been handed over."""

    def reset(self, seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Queues one episode per seed."""

    @property
    def num_envs(self) -> int:
        """Episodes in flight, at most."""

    def poll(self, wait: bool = False, *, block: bool = True) -> list[Any]:
        """Returns the turns that can be generated now; ``wait``: the same ones in every run, whatever the timing."""

    def listen(self, landed: Callable[[], None] | None) -> None:
        """Has ``landed`` called when a commit in the background is through."""

    def push(
        self, requests: Sequence[Any], texts: Sequence[str], extras: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Episode]:
        """Takes the replies; returns episodes that ended."""

    def fail(self, request: Any, message: str) -> list[Episode]:
        """Ends the request's episode by the engine's fault; returns episodes that ended."""

    def fork(self, request: Any) -> FlexEnv:
        """Returns a copy of the request's episode as it is now."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a turn came about that an engine wrote: until the episode has ended, and its transitions are made."""

    request: GenerationRequest
    reply: Generation
    team_view: str
    observation: str


class Collector:
    """Drives a vector environment with a rollout engine.

    Args:
        vec: the episodes.
        renderer: who plays which policy, and how it is spoken to; None when the engine is scripted.
        engine: writes the replies.
        params: how to sample.
        seed: the run's seed; a reply's own seed follows from it, the iteration, the episode and the turn.
        overlap: go on generating while slow verdicts (graders, sandboxes) are awaited. Batches then depend on timing,
            and log-probs on the batch in their last bits.
        on_progress: called with (finished episodes, episodes, tokens sampled so far).
        seating: who plays an agent in an episode, where that is not always the same policy.
        states: where copies of states are put; None: a dictionary of its own.
    """

    def __init__(
        self,
        vec: VectorEnv,
        renderer: Renderer | None,
        engine: RolloutEngine,
        params: SamplingParams,
        *,
        seed: int = 0,
        overlap: bool = False,
        on_progress: Callable[[int, int, int], None] | None = None,
        seating: Seating | None = None,
        states: States | None = None,
    ) -> None:
        self._vec, self._renderer, self._engine, self._params = vec, renderer, engine, params
        self._seed, self._overlap, self._on_progress, self._seating = seed, overlap, on_progress, seating
        self.states: States = {} if states is None else states
        self._asked: dict[tuple[int, int], _Asked] = {}  # (episode, history index), of episodes that go on

    def collect(
        self,
        seeds: Sequence[int],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        iteration: int = 0,
        first: int = 0,
        keep: Keep = "nothing",
        all_may_be_lost: bool = False,
    ) -> list[Trajectory]:
        """Plays one episode per seed; returns them in the panel's order, whatever order they ended in.

        Episodes are numbered from ``first``, and their samples depend on that number: a second panel of one iteration
        goes on counting. States that are kept stand in ``states``.

        A failed generation ends its own episode (its ``fault`` is ``engine``).

        Raises:
            OutageError: every episode was lost, so the fault is in the set-up and not in an episode; not with
                ``all_may_be_lost``, for those who count what else was played in the iteration, too.
        """
        for number in range(first, first + len(seeds)):
            self.states.pop(number, None)  # of an iteration that was broken off
        self._vec.reset(seeds, options)
        played = self._play(len(seeds), iteration, first, keep)
        if played and not all_may_be_lost and all(t.infra for t in played):
            lost = [t.episode for t in played]
            raise faults.OutageError(f"All {len(lost)} episodes failed ({faults.blamed(lost)}).")
        return played

    def _play(self, total: int, iteration: int, first: int, keep: Keep = "nothing") -> list[Trajectory]:
        """Plays what is queued to its end."""
        self._asked = {}
        finished: list[Episode] = []
        tokens = 0
        rounds = self._one_by_one if self._apart() else self._together
        for ended, replies in rounds(iteration, first, keep):
            tokens += sum(len(reply.action_ids) for reply in replies)
            finished += ended
            if self._on_progress is not None:
                self._on_progress(len(finished), total, tokens)
        played = [self._trajectory(episode, first) for episode in sorted(finished, key=lambda episode: episode.index)]
        return faults.settle(played)

    def _apart(self) -> bool:
        """Whether episodes go on by themselves."""
        return self._engine.one_by_one

    def _together(self, iteration: int, first: int, keep: Keep) -> Iterator[tuple[list[Episode], Sequence[Generation]]]:
        """All open turns are generated as one batch, over and over: for engines that decode together."""
        while not self._vec.done:
            requests = self._vec.poll(wait=not self._overlap)
            if keep != "nothing":
                self._copy(requests, keep, iteration, first)
            asked, replies = self._answer(requests, iteration, first) if requests else ([], [])
            yield self._hand_over(requests, asked, replies), replies

    def _one_by_one(self, iteration: int, first: int, keep: Keep) -> Iterator[tuple[list[Episode], list[Generation]]]:
        """Every episode goes on as soon as the replies of its own layer are there; a slow one holds up no other.

        What a turn is asked for depends on its episode alone, so results do not depend on the order of replies.
        """
        inbox: SimpleQueue[Future[list[Generation]] | None] = SimpleQueue()
        out: dict[Future[list[Generation]], tuple[list[Any], list[GenerationRequest]]] = {}
        self._vec.listen(lambda: inbox.put(None))
        pool = ThreadPoolExecutor(self._vec.num_envs, "marft-generate")
        try:
            while not self._vec.done:
                ready = self._vec.poll(block=False)
                if keep != "nothing":
                    self._copy(ready, keep, iteration, first)
                for _, layer in groupby(ready, key=lambda request: request.episode):
                    requests = list(layer)
                    asked = self._asked_for(requests, iteration, first)
                    job = pool.submit(self._engine.generate, asked, self._params)
                    out[job] = requests, asked
                    job.add_done_callback(inbox.put)
                ended, said = self._vec.push([], []), list[Generation]()
                if not ended and not self._vec.done:
                    job_done = inbox.get()
                    if job_done is not None:
                        said = job_done.result()
                        ended = self._hand_over(*out.pop(job_done), said)
                yield ended, said
        finally:
            self._vec.listen(None)
            pool.shutdown(wait=False, cancel_futures=True)

    def _copy(self, requests: Sequence[Any], keep: Keep, iteration: int, first: int) -> None:
        """Copies the states that these requests stand at, as far as they are asked for."""
        layers: dict[int, list[Any]] = {}
        for request in requests:
            layers.setdefault(request.episode, []).append(request)
        for episode, layer in layers.items():
            owners = [self._owner(request.agent, iteration, first + episode) for request in layer]
            wanted = keep == "decisions" and any(map(self._trained, owners))
            if first + episode in self.states and not wanted:
                continue
            env = self._vec.fork(layer[0])
            self.states.setdefault(first + episode, {})[len(env.unwrapped.episode.layers)] = env

    def _trained(self, policy: str) -> bool:
        return self._renderer is not None and self._renderer.trains(policy)

    def _answer(
        self, requests: Sequence[Any], iteration: int, first: int
    ) -> tuple[list[GenerationRequest], list[Generation]]:
        """What the engine is asked for these turns, and its replies."""
        asked = self._asked_for(requests, iteration, first)
        return asked, self._engine.generate(asked, self._params)

    def _asked_for(self, requests: Sequence[Any], iteration: int, first: int) -> list[GenerationRequest]:
        """What the engine is asked for these turns."""
        seeds = [row_seed(self._seed, iteration, first + r.episode, r.index_hint) for r in requests]
        owners = [self._owner(r.agent, iteration, first + r.episode) for r in requests]
        return self._ask(requests, seeds, owners)

    def _ask(
        self, requests: Sequence[Any], seeds: Sequence[int], owners: Sequence[str] | None = None
    ) -> list[GenerationRequest]:
        """Renders the prompts, all of one policy at once; hosted policies read the messages themselves."""
        if owners is None:
            owners = [self._renderer.policy_of(r.agent) if self._renderer else r.agent for r in requests]
        prompts: list[list[int]] = [[] for _ in requests]
        if self._renderer is not None:
            for policy in dict.fromkeys(owner for owner in owners if owner in self._renderer.policies):
                rows = [i for i, owner in enumerate(owners) if owner == policy]
                tools = [requests[i].tools for i in rows] if self._renderer.shows_tools(policy) else None
                rendered = self._renderer.render_many(policy, [requests[i].messages for i in rows], tools)
                for i, prompt in zip(rows, rendered, strict=True):
                    prompts[i] = self._fit(policy, requests[i], prompt)
        return [
            GenerationRequest(
                policy=owner,
                prompt_ids=prompt,
                seed=seed,
                agent=request.agent,
                messages=request.messages,
            )
            for request, owner, prompt, seed in zip(requests, owners, prompts, seeds, strict=True)
        ]

    def _owner(self, agent: str, iteration: int, episode: int) -> str:
        if self._seating is not None:
            return self._seating(agent, iteration, episode)
        return self._renderer.policy_of(agent) if self._renderer else agent

    def _fit(self, policy: str, request: Any, prompt: list[int]) -> list[int]:
        """Cuts a prompt's inputs, oldest first, until the reply fits the context; the environment records the cut.

        What cannot be cut (profile and template) stays too long, and the engine answers with a typed failure.
        """
        assert self._renderer is not None
        room = self._renderer.chat(policy).context - self._params.max_new_tokens
        chars = sum(len(message["content"]) for message in request.messages)
        while len(prompt) > room and chars:
            chars = int(chars * min(0.9, max(room, 0) / len(prompt)))
            tools = request.tools if self._renderer.shows_tools(policy) else ()
            prompt = self._renderer.render(policy, request.render(chars), tools)
        return prompt

    def _hand_over(
        self, requests: Sequence[Any], asked: Sequence[GenerationRequest], replies: Sequence[Generation]
    ) -> list[Episode]:
        broken = {
            r.episode: (r, g) for r, g in zip(requests, replies, strict=True) if g.stop_reason == StopReason.ERROR
        }
        whole = [i for i, request in enumerate(requests) if request.episode not in broken]
        for i in whole:
            request = requests[i]
            made = _Asked(asked[i], replies[i], request.team_view, request.observation)
            self._asked[request.episode, request.index_hint] = made
        extras = [_recorded(asked[i], replies[i]) for i in whole]
        ended = self._vec.push([requests[i] for i in whole], [replies[i].text for i in whole], extras)
        for request, reply in broken.values():
            ended += self._vec.fail(request, reply.error)
        return ended

    def _trajectory(self, episode: Episode, first: int) -> Trajectory:
        return Trajectory(
            episode=episode,
            transitions=[self._transition(turn, episode) for turn in episode.turns],
            number=first + episode.index,
            planned=self._planned(episode),
        )

    def _transition(self, turn: TurnRecord, episode: Episode) -> Transition:
        """Turns that another hand played (a fixed partner in a wrapper) have no tokens and are not trained."""
        asked = self._asked.pop((episode.index, turn.index), None)
        if asked is None:
            return Transition(turn, trainable=False, temperature=self._params.temperature)
        policy = asked.request.policy
        return Transition(
            turn=turn,
            policy=policy,
            prompt_ids=asked.request.prompt_ids,
            reply=asked.reply,
            trainable=self._trained(policy),
            temperature=self._params.temperature,
            team_view=asked.team_view,
            observation=asked.observation,
        )

    def _planned(self, episode: Episode) -> list[Transition]:
        """The layer that would have run: its value is the bootstrap of a truncated episode."""
        if self._renderer is None:
            return []
        last = episode.layers[-1] if episode.layers else None
        planned = []
        for turn in episode.info.get("next", ()):
            policy = self._renderer.policy_of(turn["agent"])
            local = policy in self._renderer.policies
            record = TurnRecord(
                index=turn["index"],
                round=last.round if last else 0,
                layer=len(episode.layers),
                agent=turn["agent"],
                role=turn["role"],
                sees=tuple(turn["sees"]),
                text="",
            )
            planned.append(
                Transition(
                    turn=record,
                    policy=policy,
                    prompt_ids=self._renderer.render(policy, turn["messages"], turn["tools"]) if local else (),
                    trainable=False,
                    team_view=turn["team_view"],
                    observation=turn["observation"],
                )
            )
        return planned


def _recorded(request: GenerationRequest, reply: Generation) -> dict[str, Any]:
    """What the episode's record keeps of a reply: what can be written as JSON."""
    return {
        "policy": request.policy,
        "prompt_tokens": len(request.prompt_ids),
        "tokens": len(reply.action_ids),
        "stop_reason": str(reply.stop_reason),
        "version": reply.version,
        "logprob": float(reply.logprobs.sum()),
    }
