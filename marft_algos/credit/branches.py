"""Describes branches of episodes as data: what credit rules ask of those who can play on from a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from marft_algos.types import Generation, GenerationRequest, StopReason, Trajectory, Transition

if TYPE_CHECKING:
    from marft_envs.core.env import FlexEnv
    from marft_envs.core.vector import Request

States = dict[int, dict[int, "FlexEnv"]]
"""Number of an episode, or place of a branch -> layer -> copy of the environment before it."""

Ablation = Literal["silent", "start"]
"""What an absent agent does: say nothing, or what the policy it started from would."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One continuation to play."""

    start: FlexEnv
    """The state to go on from; it is copied, and stays as it is."""
    episode: int
    """Number of the episode that it was copied from: seeds depend on it."""
    texts: Mapping[int, str | Callable[[Request], str | None]] = field(default_factory=dict)
    """History index -> what is said there, instead of asking the engine; or a function of the turn that says it, where
    None is: ask the engine."""
    samples: Mapping[int, int] = field(default_factory=dict)
    """History index -> number of the sample drawn there; 0 is the episode's own."""
    sample: int = 0
    """Number of the sample at all other turns."""
    absent: frozenset[str] = frozenset()
    """Agents that do not play as trained."""
    absence: Ablation = "silent"
    until_reward: bool = False
    """Ends at the first reward, or when the round is over."""
    policies: Mapping[int, str] = field(default_factory=dict)
    """History index -> the policy that plays the turn there, in place of its agent's."""


@dataclass(slots=True)
class Spent:
    """Counts the tokens that were sampled, and those that were read for it."""

    tokens: int = 0
    prompts: int = 0

    def add(self, request: GenerationRequest, reply: Generation) -> None:
        """Counts a reply, and its prompt unless the engine failed."""
        self.tokens += len(reply.action_ids)
        self.prompts += 0 if reply.stop_reason is StopReason.ERROR else len(request.prompt_ids)


class BranchReplayer(Protocol):
    """Plays branches; see :class:`marft_algos.rollout.replay.Replayer`."""

    seed: int
    """The run's."""

    def state(self, trajectory: Trajectory, layer: int | None = None) -> FlexEnv:
        """Returns the state before a layer; None: before the first that was kept."""

    def prompt(self, t: Transition, words: str) -> list[int]:
        """Returns a turn's prompt with further words behind its agent's prompt; [] if it is too long."""

    def play(
        self, branches: Sequence[Branch], iteration: int, states: States | None = None, *, learnt: bool = False
    ) -> list[Trajectory | None]:
        """Plays every branch to its end; None for those lost to infrastructure errors.

        Args:
            branches: Of any episodes of the iteration.
            iteration: Seeds depend on it.
            states: Where copies of the states before decisions are put, by place of the branch; None: none are kept.
            learnt: Whether their turns are learnt from: then they count as turns, and not as replays.
        """
