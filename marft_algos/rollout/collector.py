"""Plays a batch of episodes, and returns them as trajectories, group by group or all at once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, count, groupby
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

from marft_algos.engines.base import RolloutEngine
from marft_algos.models.chat import Renderer, Said
from marft_algos.rollout.episodes import check_any, settle
from marft_algos.seeds import row_seed
from marft_algos.types import Generation, GenerationRequest, Keep, SamplingParams, StopReason, Trajectory, Transition
from marft_envs.core.types import Episode, TurnRecord
from marft_envs.core.vector import Request, VectorEnv
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_algos.credit.branches import States

OnProgress = Callable[[int, int, int], None]
"""(finished episodes, episodes, tokens sampled so far)."""
PolicyAssignment = Callable[[str, int, int], str]
"""(agent, iteration, episode) -> the policy that plays it there."""
_BATCHES = count()
"""Numbers the batches of this process: what was read in another one is no part of this one's prompts."""


class Collector:
    """Drives a vector environment with a rollout engine, one batch of episodes after the other.

    Args:
        vec: The episodes.
        renderer: Who plays which policy, and how it is spoken to; None when the engine is scripted.
        engine: Writes the replies.
        params: How to sample.
        seed: The run's seed; a reply's own seed follows from it, the iteration, the episode and the turn.
        overlap: Go on generating while slow verdicts (graders, sandboxes) are awaited. Batches then depend on timing,
            and log-probs on the batch in their last bits.
        on_progress: Called with (finished episodes, episodes, tokens sampled so far).
        assignment: Who plays an agent in an episode, where that is not always the same policy.
        states: Where copies of states are put; None: a dictionary of its own.
    """

    _together: ClassVar[bool] = False
    """Whether no episode goes on by itself, even if the engine answers each request by itself."""

    def __init__(
        self,
        vec: VectorEnv,
        renderer: Renderer | None,
        engine: RolloutEngine,
        params: SamplingParams,
        *,
        seed: int = 0,
        overlap: bool = False,
        on_progress: OnProgress | None = None,
        assignment: PolicyAssignment | None = None,
        states: States | None = None,
    ) -> None:
        self._vec, self._renderer, self._engine, self._params = vec, renderer, engine, params
        self._seed, self._overlap, self._on_progress, self._assignment = seed, overlap, on_progress, assignment
        self.states: States = {} if states is None else states
        self._iteration, self._keep, self._batch = 0, "nothing", 0
        self._numbers: Sequence[int] = range(sys.maxsize)
        # (episode, agent, policy) -> the prompt that is out, as the template writes it; and the turn before it
        self._rendered: dict[tuple[int, str, str], list[int]] = {}
        self._said: dict[tuple[int, str, str], Said] = {}
        # (episode, history index) -> what makes the transition once the turn's record is there
        self._open: dict[tuple[int, int], Callable[[TurnRecord], Transition]] = {}

    def collect(
        self,
        seeds: Sequence[int],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        iteration: int = 0,
        first: int = 0,
        group_size: int = 1,
        keep: Keep = "nothing",
    ) -> list[Trajectory]:
        """Plays one episode per seed; returns them in the batch's order, whatever order they ended in.

        The arguments are those of ``stream``, and the episodes are all that it yields; then those that a text broke
        off get no more than the lowest return of the others (``episodes.settle``), for which all of them must be there.

        Raises:
            InfrastructureError: Every episode was lost, so the fault is in the set-up and not in an episode.
        """
        groups = self.stream(seeds, options, iteration=iteration, first=first, group_size=group_size, keep=keep)
        played = sorted(chain.from_iterable(groups), key=lambda t: t.number)
        check_any(played)
        return settle(played)

    def stream(
        self,
        seeds: Sequence[int],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        iteration: int = 0,
        first: int = 0,
        group_size: int = 1,
        keep: Keep = "nothing",
        numbers: Sequence[int] | None = None,
    ) -> Generator[list[Trajectory]]:
        """Plays one episode per seed; yields each group as soon as its last episode has ended, while others go on.

        With an engine that answers one by one, replies for the other groups are sampled while the caller works on a
        group; an engine that decodes batches goes on when the caller asks for the next group. What is sampled is that
        of ``collect``: it does not depend on when a group is taken. Who closes the iterator early drops what still
        runs: replies that are out are awaited, and the vector environment can be used again.

        Args:
            seeds: Of the environment, one an episode.
            options: Of ``reset``, one mapping a seed.
            iteration: Seeds of replies depend on it.
            first: Number of the first episode. Samples depend on the numbers: a second batch of one iteration goes on
                counting.
            group_size: Episodes of one start, which have numbers side by side; 1: every episode is a group.
            keep: States to keep copies of, in ``states``.
            numbers: Of the episodes, where they do not simply count on from ``first``: what is left of a batch.

        Yields:
            The episodes of one group, in the batch's order. Those that an infrastructure error ended are among them,
            and those that a text ended have the rewards that the environment gave.
        """
        self._iteration, self._keep = iteration, keep
        self._numbers = range(first, sys.maxsize) if numbers is None else numbers
        for number in self._numbers[: len(seeds)]:
            self.states.pop(number, None)  # of an interrupted iteration
        self._vec.reset(seeds, options)
        return self._play(len(seeds), group_size)

    def _play(self, total: int, group_size: int = 1) -> Generator[list[Trajectory]]:
        """Plays what is queued to its end."""
        self._open, self._rendered, self._said, self._batch = {}, {}, {}, next(_BATCHES)
        groups: dict[int, list[Trajectory]] = {}
        sizes = Counter(number // group_size for number in self._numbers[:total])
        finished = tokens = 0
        threads = ThreadPoolExecutor(self._vec.num_envs, "marft-generate")  # none starts before something is submitted
        rounds = self._one_by_one(threads)
        apart, abandoned = self._engine.one_by_one and not self._together, False
        try:
            while not self._vec.done:
                if apart:
                    ended, replies = next(rounds)
                else:  # all open turns as one batch, for engines that decode together
                    turns = self._vec.poll(wait=not self._overlap)
                    self._copy(turns)
                    requests, replies = self._answer(turns) if turns else ([], [])
                    ended = self._push(turns, requests, replies)
                tokens += sum(len(reply.action_ids) for reply in replies)
                finished += len(ended)
                if self._on_progress is not None:
                    self._on_progress(finished, total, tokens)
                for episode in ended:
                    trajectory = self._trajectory(episode, group_size)
                    group = groups.setdefault(trajectory.group, [])
                    group.append(trajectory)
                    if len(group) == sizes[trajectory.group]:
                        yield sorted(groups.pop(trajectory.group), key=lambda t: t.number)
        except GeneratorExit:
            abandoned = True
            raise
        finally:
            rounds.close()
            threads.shutdown(wait=abandoned, cancel_futures=True)  # an error is raised at once
            if abandoned:
                self._vec.reset([])

    def _one_by_one(self, threads: ThreadPoolExecutor) -> Generator[tuple[list[Episode], list[Generation]]]:
        """Lets every episode go on as soon as the replies of its layer are there; a slow one holds up no other.

        What an engine is asked for a turn depends on the episode alone, so results do not depend on timing.
        """
        inbox: SimpleQueue[Future[list[Generation]] | None] = SimpleQueue()
        out: dict[Future[list[Generation]], tuple[list[Request], list[GenerationRequest]]] = {}
        self._vec.listen(lambda: inbox.put(None))
        try:
            while not self._vec.done:
                ready = self._vec.poll(block=False)
                self._copy(ready)
                for _, layer in groupby(ready, key=lambda turn: turn.episode):
                    turns = list(layer)
                    requests = self._requests(turns)
                    job = threads.submit(self._engine.generate, requests, self._params)
                    out[job] = turns, requests
                    job.add_done_callback(inbox.put)
                ended, replies = self._vec.push([], []), list[Generation]()
                if not ended and not self._vec.done and (job_done := inbox.get()) is not None:
                    replies = job_done.result()
                    ended = self._push(*out.pop(job_done), replies)
                yield ended, replies
        finally:
            self._vec.listen(None)

    def _copy(self, turns: Sequence[Request]) -> None:
        """Copies the states before these turns, as far as they are to be kept."""
        if self._keep == "nothing":
            return
        for _, same in groupby(turns, key=lambda turn: turn.episode):
            layer = list(same)
            number = self._place(layer[0])
            wanted = self._keep == "decisions" and any(self._trained(self._owner(turn)) for turn in layer)
            if number in self.states and not wanted:
                continue
            env = self._vec.fork(layer[0])
            self.states.setdefault(number, {})[len(env.unwrapped.episode.layers)] = env

    def _trained(self, policy: str) -> bool:
        return self._renderer is not None and self._renderer.trains(policy)

    def _number(self, turn: Request) -> int:
        """Returns the number of a turn's episode in the iteration."""
        return self._numbers[turn.episode]

    def _place(self, turn: Request) -> int:
        """Returns where states of a turn's episode are kept."""
        return self._number(turn)

    def _owner(self, turn: Request) -> str:
        """Returns the policy that plays a turn."""
        if self._assignment is not None:
            return self._assignment(turn.agent, self._iteration, self._number(turn))
        return self._renderer.policy_of(turn.agent) if self._renderer else turn.agent

    def _answer(self, turns: Sequence[Request]) -> tuple[list[GenerationRequest], list[Generation]]:
        """Asks the engine for these turns; returns what it was asked, and its replies."""
        requests = self._requests(turns)
        return requests, self._engine.generate(requests, self._params)

    def _requests(self, turns: Sequence[Request], samples: Sequence[int] | None = None) -> list[GenerationRequest]:
        """Makes the engine's requests for these turns: the episode's sample, or the samples of these numbers.

        Prompts are rendered all of one policy at once; hosted policies read the messages themselves.
        """
        owners = [self._owner(turn) for turn in turns]
        prompts: list[list[int]] = [[] for _ in turns]
        if self._renderer is not None:
            for policy in dict.fromkeys(owner for owner in owners if owner in self._renderer.policies):
                rows = [i for i, owner in enumerate(owners) if owner == policy]
                its_turns = [turns[i] for i in rows]
                tools = [turn.tools for turn in its_turns] if self._renderer.shows_tools(policy) else None
                rendered = self._renderer.render_many(policy, list(map(attrgetter("messages"), its_turns)), tools)
                for i, prompt in zip(rows, rendered, strict=True):
                    prompts[i] = self._fit(policy, turns[i], prompt)
        begun = [0] * len(turns)
        for i, (turn, owner) in enumerate(zip(turns, owners, strict=True)):
            if self._renderer is not None and (prefix := turn.prefix):
                ids = self._renderer.begin(owner, prefix)
                prompts[i], begun[i] = [*prompts[i], *ids], len(ids)
        return [
            GenerationRequest(
                policy=owner,
                prompt_ids=prompt,
                begun=given,
                seed=row_seed(self._seed, self._iteration, self._number(turn), turn.index_hint, sample),
                agent=turn.agent,
                messages=turn.messages,
                tools=() if self._renderer is not None and owner in self._renderer.policies else turn.tools,
                chain=(self._batch, turn.episode, turn.agent) if turn.repeats else None,
            )
            for turn, owner, prompt, given, sample in zip(
                turns, owners, prompts, begun, samples or [0] * len(turns), strict=True
            )
        ]

    def _fit(self, policy: str, turn: Request, prompt: list[int]) -> list[int]:
        """Puts an agent's own words as they were sampled into a prompt; cuts its inputs, oldest first, until it fits.

        The environment records the cut. What cannot be cut (profile and template) stays too long, and the engine's
        answer is an empty one.
        """
        assert self._renderer is not None
        chat, key = self._renderer.chat(policy), (turn.episode, turn.agent, policy)
        room, said = chat.context - self._params.max_new_tokens, self._said.get(key)
        sampled = prompt if said is None else chat.as_sampled(prompt, said)
        if len(sampled) <= room:
            self._rendered[key] = prompt
            return sampled
        chars = sum(len(message["content"]) for message in turn.messages)
        while len(prompt) > room and chars:
            chars = int(chars * min(0.9, max(room, 0) / len(prompt)))
            tools = turn.tools if self._renderer.shows_tools(policy) else ()
            prompt = self._renderer.render(policy, turn.render(chars), tools)
        self._rendered[key] = prompt
        return prompt

    def _push(
        self, turns: Sequence[Request], requests: Sequence[GenerationRequest], replies: Sequence[Generation]
    ) -> list[Episode]:
        """Gives the replies to the environments; returns the episodes that ended."""
        failed = {t.episode: (t, g) for t, g in zip(turns, replies, strict=True) if g.stop_reason == StopReason.ERROR}
        answered = [row for row in zip(turns, requests, replies, strict=True) if row[0].episode not in failed]
        for turn, request, reply in answered:
            key = turn.episode, turn.agent, request.policy
            if key in self._rendered:
                ids, cut = request.prompt_ids, len(request.prompt_ids) - request.begun
                self._said[key] = Said(self._rendered.pop(key), ids[:cut], [*ids[cut:], *reply.action_ids])
            self._open[turn.episode, turn.index_hint] = self._transition(turn, request, reply)
        extras = [_recorded(request, reply) for _, request, reply in answered]
        texts = [turn.prefix + reply.text for turn, _, reply in answered]
        ended = self._vec.push([turn for turn, *_ in answered], texts, extras)
        for turn, reply in failed.values():
            ended += self._vec.fail(turn, reply.error)
        return ended

    def _transition(
        self, turn: Request, request: GenerationRequest, reply: Generation, worth: float | None = None
    ) -> Callable[[TurnRecord], Transition]:
        """Returns what makes the transition once the turn's record is there; a refused prompt nobody has read."""
        refused = reply.stop_reason is StopReason.REFUSED
        return partial(
            Transition,
            request=replace(request, prompt_ids=[]) if refused else replace(request, tools=()),
            reply=reply,
            trainable=self._trained(request.policy) and not refused,
            temperature=self._params.temperature,
            team_view=turn.team_view,
            observation=turn.observation,
            worth=worth,
        )

    def _trajectory(self, episode: Episode, group_size: int = 1) -> Trajectory:
        number = self._numbers[episode.index]
        return Trajectory(
            episode=episode,
            transitions=[self._finished(turn, episode) for turn in episode.turns],
            number=number,
            group=number // group_size,
            planned=self._planned(episode),
        )

    def _finished(self, turn: TurnRecord, episode: Episode) -> Transition:
        """Completes a turn; one that another hand played (a wrapper's fixed partner) has no tokens and no loss."""
        other_hand = partial(Transition, trainable=False, temperature=self._params.temperature)
        t = self._open.pop((episode.index, turn.index), other_hand)(turn)
        ends = {end for layer in episode.layers for _, end, _ in layer.segments.get(turn.index, ())}
        if not ends or not t.trainable or not t.reply.action_ids or self._renderer is None:
            return t
        chat, ids = self._renderer.chat(t.policy), t.reply.action_ids
        said = chat.text_of(ids)
        given = len(turn.text) - len(said) if t.request.begun else 0
        if said != turn.text[given:]:
            raise ConfigError(
                f"The task rewarded segments of a reply of '{t.agent}' that the environment got as other text than was"
                " sampled, so that no token is known to write them. Reward such turns whole (Outcome.turn_rewards), or"
                " leave out the wrapper that changes replies."
            )
        return replace(t, tokens_at={end: chat.token_at(ids, said, max(end - given, 1)) for end in sorted(ends)})

    def _planned(self, episode: Episode) -> list[Transition]:
        """Renders the layer that would have run: its value is the bootstrap of a truncated episode."""
        if self._renderer is None:
            return []
        transitions = []
        for planned in episode.planned:
            agent = planned.turn.agent
            policy = self._renderer.policy_of(agent) if self._renderer.plays(agent) else ""
            local = policy in self._renderer.policies
            prompt = self._renderer.render(policy, planned.messages, planned.tools) if local else []
            transitions.append(
                Transition(
                    turn=planned.turn,
                    request=GenerationRequest(policy, prompt, 0, agent),
                    trainable=False,
                    team_view=planned.team_view,
                    observation=planned.observation,
                )
            )
        return transitions


def _recorded(request: GenerationRequest, reply: Generation) -> dict[str, Any]:
    """Returns what the episode's record keeps of a reply, as plain JSON."""
    prompt, tokens = reply.usage or (len(request.prompt_ids), len(reply.action_ids))
    return {
        "policy": request.policy,
        "prompt_tokens": prompt,
        "tokens": tokens,
        "stop_reason": str(reply.stop_reason),
        "version": reply.version,
        "logprob": float(reply.logprobs.sum()),
        **({"empty": reply.error} if reply.error else {}),
        **reply.spent,
    }
