"""Rollouts: plays a panel of episodes and returns what happened as trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from marft_algos import faults
from marft_algos.engines.base import RolloutEngine, row_seed
from marft_algos.types import (
    Generation,
    GenerationRequest,
    LayerReward,
    SamplingParams,
    StopReason,
    Trajectory,
    Transition,
)
from marft_envs.core import FlexEnv
from marft_envs.types import Episode, TurnRecord

if TYPE_CHECKING:
    from marft_algos.policy import PolicySet

Keep = Literal["nothing", "start", "decisions"]
"""What to keep copies of: no state, an episode's first, or also the state before every layer with a trained policy."""
SNAPSHOTS = "snapshots"
"""Key in ``Trajectory.info``: layer -> copy of the environment before it."""


Seating = Callable[[str, int, int], str]
"""(agent, iteration, episode) -> the policy that plays it there."""


class VectorEnv(Protocol):
    """What the Collector needs of ``marft_envs.make_vec``."""

    @property
    def done(self) -> bool:
        """True when every queued episode has been handed over."""

    def reset(self, seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Queues one episode per seed."""

    def poll(self, wait: bool = False) -> list[Any]:
        """Returns the turns that can be generated now; ``wait``: the same ones in every run, whatever the timing."""

    def push(
        self, requests: Sequence[Any], texts: Sequence[str], extras: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Episode]:
        """Takes the replies; returns episodes that ended."""

    def fail(self, request: Any, message: str) -> list[Episode]:
        """Ends the request's episode by the engine's fault; returns episodes that ended."""

    def fork(self, request: Any) -> FlexEnv:
        """Returns a copy of the request's episode as it is now."""


class Collector:
    """Drives a vector environment with a rollout engine.

    Args:
        vec: the episodes.
        policies: who plays with which weights; None when the engine is scripted.
        engine: writes the replies.
        params: how to sample.
        seed: the run's seed; a reply's own seed follows from it, the iteration, the episode and the turn.
        overlap: go on generating while slow verdicts (graders, sandboxes) are awaited. Batches then depend on timing,
            and log-probs on the batch in their last bits.
        on_progress: called with (finished episodes, episodes, tokens sampled so far).
        seating: who plays an agent in an episode, where that is not always the same policy.
    """

    def __init__(
        self,
        vec: VectorEnv,
        policies: PolicySet | None,
        engine: RolloutEngine,
        params: SamplingParams,
        *,
        seed: int = 0,
        overlap: bool = False,
        on_progress: Callable[[int, int, int], None] | None = None,
        seating: Seating | None = None,
    ) -> None:
        self._vec, self._policies, self._engine, self._params = vec, policies, engine, params
        self._seed, self._overlap, self._on_progress, self._seating = seed, overlap, on_progress, seating
        self._snapshots: dict[int, dict[int, FlexEnv]] = {}

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
        goes on counting. States that are kept stand in ``info["snapshots"]``.

        A failed generation ends its own episode (its ``fault`` is ``engine``).

        Raises:
            OutageError: every episode was lost, so the fault is in the set-up and not in an episode; not with
                ``all_may_be_lost``, for those who count what else was played in the iteration, too.
        """
        self._vec.reset(seeds, options)
        played = self._play(len(seeds), iteration, first, keep)
        if played and not all_may_be_lost and all(t.infra for t in played):
            lost = [t.info["episode"] for t in played]
            raise faults.OutageError(f"All {len(lost)} episodes failed ({faults.blamed(lost)}).")
        return played

    def _play(self, total: int, iteration: int, first: int, keep: Keep = "nothing") -> list[Trajectory]:
        """Plays what is queued to its end."""
        self._snapshots = {}
        finished: list[Episode] = []
        tokens = 0
        while not self._vec.done:
            requests = self._vec.poll(wait=not self._overlap)
            if keep != "nothing":
                self._copy(requests, keep, iteration, first)
            asked, replies = self._answer(requests, iteration, first) if requests else ([], [])
            tokens += sum(len(reply.action_ids) for reply in replies)
            finished += self._hand_over(requests, asked, replies)
            if self._on_progress is not None:
                self._on_progress(len(finished), total, tokens)
        played = [self._trajectory(episode, first) for episode in sorted(finished, key=lambda episode: episode.index)]
        faults.settle(played)
        return played

    def _copy(self, requests: Sequence[Any], keep: Keep, iteration: int, first: int) -> None:
        """Copies the states that these requests stand at, as far as they are asked for."""
        layers: dict[int, list[Any]] = {}
        for request in requests:
            layers.setdefault(request.episode, []).append(request)
        for episode, layer in layers.items():
            owners = [self._owner(request.agent, iteration, first + episode) for request in layer]
            wanted = keep == "decisions" and any(map(self._trained, owners))
            if episode in self._snapshots and not wanted:
                continue
            env = self._vec.fork(layer[0])
            self._snapshots.setdefault(episode, {})[len(env.unwrapped.episode.layers)] = env

    def _trained(self, policy: str) -> bool:
        return self._policies is not None and self._policies.trainable(policy)

    def _answer(
        self, requests: Sequence[Any], iteration: int, first: int
    ) -> tuple[list[GenerationRequest], list[Generation]]:
        """What the engine is asked for these turns, and its replies."""
        seeds = [row_seed(self._seed, iteration, first + r.episode, r.index_hint) for r in requests]
        owners = [self._owner(r.agent, iteration, first + r.episode) for r in requests]
        asked = self._ask(requests, seeds, owners)
        return asked, self._engine.generate(asked, self._params)

    def _ask(
        self, requests: Sequence[Any], seeds: Sequence[int], owners: Sequence[str] | None = None
    ) -> list[GenerationRequest]:
        """Renders the prompts, all of one policy at once; hosted policies read the messages themselves."""
        if owners is None:
            owners = [self._policies.policy_of(r.agent) if self._policies else r.agent for r in requests]
        prompts: list[list[int]] = [[] for _ in requests]
        if self._policies is not None:
            for policy in dict.fromkeys(owner for owner in owners if owner in self._policies.policies):
                rows = [i for i, owner in enumerate(owners) if owner == policy]
                tools = [requests[i].tools for i in rows] if self._policies.shows_tools(policy) else None
                rendered = self._policies.render_many(policy, [requests[i].messages for i in rows], tools)
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
        return self._policies.policy_of(agent) if self._policies else agent

    def _fit(self, policy: str, request: Any, prompt: list[int]) -> list[int]:
        """Cuts a prompt's inputs, oldest first, until the reply fits the context; the environment records the cut.

        What cannot be cut (profile and template) stays too long, and the engine answers with a typed failure.
        """
        assert self._policies is not None
        room = self._policies.base(policy).context - self._params.max_new_tokens
        chars = sum(len(message["content"]) for message in request.messages)
        while len(prompt) > room and chars:
            chars = int(chars * min(0.9, max(room, 0) / len(prompt)))
            tools = request.tools if self._policies.shows_tools(policy) else ()
            prompt = self._policies.render(policy, request.render(chars), tools)
        return prompt

    def _hand_over(
        self, requests: Sequence[Any], asked: Sequence[GenerationRequest], replies: Sequence[Generation]
    ) -> list[Episode]:
        broken = {
            r.episode: (r, g) for r, g in zip(requests, replies, strict=True) if g.stop_reason == StopReason.ERROR
        }
        whole = [i for i, request in enumerate(requests) if request.episode not in broken]
        extras = [
            {
                "asked": asked[i],
                "reply": replies[i],
                "team_view": requests[i].team_view,
                "observation": requests[i].observation,
            }
            for i in whole
        ]
        ended = self._vec.push([requests[i] for i in whole], [replies[i].text for i in whole], extras)
        for request, reply in broken.values():
            ended += self._vec.fail(request, reply.error)
        return ended

    def _trajectory(self, episode: Episode, first: int) -> Trajectory:
        transitions = [self._transition(turn) for turn in episode.turns]
        trajectory = Trajectory(
            episode=first + episode.index,
            seed=episode.seed or 0,
            task_id=episode.task_id,
            transitions=transitions,
            layers=[
                LayerReward(layer.turns, layer.team_reward, layer.agent_rewards, layer.late_rewards)
                for layer in episode.layers
            ],
            terminated=episode.terminated,
            truncated=episode.truncated,
            success=episode.success,
            score=episode.team_return,
            metrics=dict(episode.metrics),
            fault=episode.fault,
            info={"episode": episode},
        )
        if episode.index in self._snapshots:
            trajectory.info[SNAPSHOTS] = self._snapshots[episode.index]
        planned = episode.info.get("next", ())
        if planned and self._policies is not None:
            trajectory.info["next"] = [self._planned(turn, episode) for turn in planned]
        return trajectory

    def _transition(self, turn: TurnRecord) -> Transition:
        """Turns that another hand played (a fixed partner in a wrapper) have no tokens and are not trained."""
        made = Transition(
            index=turn.index,
            round=turn.round,
            layer=turn.layer,
            agent=turn.agent,
            role=turn.role,
            policy="",
            sees=turn.sees,
            prompt_ids=[],
            action_ids=[],
            logprobs=np.zeros(0, np.float32),
            text=turn.text,
            stop_reason=StopReason.EOS,
            version=0,
            reward=turn.reward,
            trainable=False,
            temperature=self._params.temperature,
        )
        if turn.extras is None or "reply" not in turn.extras:
            return made
        asked, reply = turn.extras["asked"], turn.extras["reply"]
        made.policy, made.prompt_ids = asked.policy, asked.prompt_ids
        made.action_ids, made.logprobs = reply.action_ids, reply.logprobs
        made.stop_reason, made.version = reply.stop_reason, reply.version
        made.trainable = self._trained(asked.policy)
        made.team_view = turn.extras["team_view"]
        made.info["observation"] = turn.extras["observation"]
        # From here on the record is for reading: what it keeps of the tokens can be written as JSON.
        turn.extras = {
            "policy": asked.policy,
            "prompt_tokens": len(asked.prompt_ids),
            "tokens": len(reply.action_ids),
            "stop_reason": str(reply.stop_reason),
            "version": reply.version,
            "logprob": float(reply.logprobs.sum()),
        }
        return made

    def _planned(self, turn: Mapping[str, Any], episode: Episode) -> Transition:
        """A turn of the layer that would have run: its value is the bootstrap of a truncated episode."""
        assert self._policies is not None
        policy = self._policies.policy_of(turn["agent"])
        last = episode.layers[-1] if episode.layers else None
        local = policy in self._policies.policies
        prompt = self._policies.render(policy, turn["messages"], turn["tools"]) if local else []
        return Transition(
            index=turn["index"],
            round=last.round if last else 0,
            layer=len(episode.layers),
            agent=turn["agent"],
            role=turn["role"],
            policy=policy,
            sees=tuple(turn["sees"]),
            prompt_ids=prompt,
            action_ids=[],
            logprobs=np.zeros(0, np.float32),
            text="",
            stop_reason=StopReason.LENGTH,
            version=self._policies.version,
            trainable=False,
            team_view=turn["team_view"],
            info={"observation": turn["observation"]},
        )
