"""What flows through a trainer: requests, generations, transitions, trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from marft_algos.ranges import COUNT, Checked, Range
from marft_envs.types import Fault

FloatArray = NDArray[np.float32]
Need = Literal["groups", "unshared", "blocks", "shared", "static", "branches", "start", "critic", "team_state"]
"""Something that an algorithm cannot do without, and that a run may not offer; see ``algorithm.NEEDS``."""

FOREIGN = -1
"""Version of weights that no update changes: a hosted model's, or another server's whose replies are trained on."""


class StopReason(StrEnum):
    """Why a generation ended."""

    EOS = "eos"
    """The model closed its turn; the end token is the last of ``action_ids``."""
    LENGTH = "length"
    """``max_new_tokens`` was reached. This is not a truncation of the episode."""
    ERROR = "error"
    """The engine failed on this request: a typed event, never an empty string passed off as a reply."""


@dataclass(frozen=True, slots=True)
class SamplingParams(Checked):
    """How to sample. What is sampled from is what is scored: defaults leave the distribution whole."""

    max_new_tokens: Annotated[int, COUNT] = 64
    temperature: Annotated[float, Range(0.0, open_low=True, hint="For greedy decoding use greedy = true.")] = 1.0
    """Recorded, and used in scoring. Greedy decoding is ``greedy=True``, not temperature 0."""
    greedy: bool = False


@dataclass(slots=True)
class GenerationRequest:
    """One prompt for one policy."""

    policy: str
    prompt_ids: list[int]
    seed: int
    """Fixes this row's sample, whatever else is in the batch."""
    agent: str = ""
    """Who acts; engines without weights (scripted, hosted) choose their reply by it."""
    messages: Sequence[Mapping[str, str]] = ()
    """The chat ``prompt_ids`` was rendered from, for engines that read text."""

    def __deepcopy__(self, memo: dict[int, Any]) -> GenerationRequest:
        """Itself: nobody edits it, and the copies of an environment share what was asked and answered."""
        return self


@dataclass(slots=True)
class Generation:
    """One reply, as sampled."""

    action_ids: list[int]
    """Sampled token ids, the end token included when ``stop_reason`` is ``eos``."""
    logprobs: FloatArray
    """[L] log-probabilities of ``action_ids`` under the distribution sampled from, fp32."""
    stop_reason: StopReason
    version: int
    """Version of the policy's weights, or ``FOREIGN``."""
    text: str = ""
    """Decoded ``action_ids``, special tokens dropped."""
    error: str = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> Generation:
        """Itself: see ``GenerationRequest``."""
        return self


@dataclass(slots=True)
class Transition:
    """One turn of one agent, from the trainer's side."""

    index: int
    """History index of the turn."""
    round: int
    layer: int
    agent: str
    role: str
    policy: str
    sees: tuple[int, ...]
    prompt_ids: list[int]
    action_ids: list[int]
    logprobs: FloatArray
    """[L] as sampled."""
    text: str
    stop_reason: StopReason
    version: int
    reward: float = 0.0
    """The turn's own reward channel, all of it; what was paid late stands in ``LayerReward.late`` too."""
    trainable: bool = True
    """False for frozen, scripted or hosted agents: a node of the chain with one value and no loss."""
    temperature: float = 1.0
    team_view: str = ""
    """Task state, role and the messages committed before this layer, for a team critic."""
    values: FloatArray | None = None
    """[L] token level or [1] action level: V read before the token (the action) is known."""
    advantages: FloatArray | None = None
    """Same shape as ``values``."""
    returns: FloatArray | None = None
    """Same shape as ``values``."""
    features: Any = None
    """Cached hidden states of the frozen critic trunk, [len(values), d]."""
    share: float = 1.0
    """1 / (turns with a loss that this agent has in its episode): the weight at which agents count alike however
    often they act. Set by ``batching.rows_by_policy``."""
    penalties: FloatArray | None = None
    """[L] what ``kl_reward_coef`` takes off each token's reward (not in ``reward``), set anew by every update."""
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class LayerReward:
    """The reward channels of one layer: see ``marft_envs.types.LayerRecord``."""

    turns: tuple[int, ...]
    team: float = 0.0
    agents: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[int, float] = field(default_factory=dict)
    """Turn -> what was paid here for it though its own layer was an earlier one; a part of its ``reward``."""


@dataclass(slots=True)
class Trajectory:
    """One finished episode of the whole team, in play order."""

    episode: int
    """Position in the iteration's panel."""
    seed: int
    task_id: str
    transitions: list[Transition]
    """``transitions[k].index == k``."""
    layers: list[LayerReward]
    terminated: bool
    truncated: bool
    success: bool | None
    score: float
    """Team return: team rewards plus turn rewards, undiscounted."""
    bootstrap: float = 0.0
    """Value of the layer that would have run, for ``truncated`` episodes that paid nothing."""
    group: int = 0
    """Number of the start within the iteration: episodes of one group share task and environment seed, and differ in
    the sampling seed only."""
    candidates: list[Transition] = field(default_factory=list)
    """Replies at states of this episode that did not become part of it, to be learnt from like its turns: ``index`` is
    that of the turn in whose place they stand."""
    replayed_tokens: int = 0
    """Tokens sampled to find out what else could have happened; they count like those of its turns."""
    replayed_prompts: int = 0
    """Tokens of the prompts that those were sampled after."""
    metrics: dict[str, float] = field(default_factory=dict)
    fault: Fault = ""
    """Whose fault it is that the episode was broken off; empty: it was not."""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def infra(self) -> bool:
        """Whether an outage broke the episode off: it is neither learnt from nor scored."""
        return self.fault not in ("", "text")

    @property
    def tokens(self) -> int:
        """Everything that was sampled for this episode."""
        return self.replayed_tokens + sum(len(t.action_ids) for t in (*self.transitions, *self.candidates))

    @property
    def processed(self) -> int:
        """The same, and every prompt that it was sampled after: what an episode costs beyond what is said in it."""
        prompts = sum(len(t.prompt_ids) for t in (*self.transitions, *self.candidates))
        return self.tokens + self.replayed_prompts + prompts
