"""What flows through a trainer: requests, generations, transitions, trajectories."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from marft_algos.ranges import COUNT, Range, Settings
from marft_envs.core.types import Episode, Fault, LayerRecord, TurnRecord

FloatArray = NDArray[np.float32]
Need = Literal["groups", "unshared", "blocks", "shared", "branches", "start", "critic", "team_state"]
"""Something that an algorithm cannot do without, and that a run may not offer; see ``algorithms.needs``."""
Keep = Literal["nothing", "start", "decisions"]
"""What to keep copies of: no state, an episode's first, or also the state before every layer with a trained policy."""

FOREIGN = -1
"""Version of weights that no update changes: a hosted model's, or another server's whose replies are trained on."""


class StopReason(StrEnum):
    """Why a generation ended."""

    EOS = "eos"
    """The model closed its turn; the end token is the last of ``action_ids``."""
    LENGTH = "length"
    """``max_new_tokens`` was reached. This is not a truncation of the episode."""
    REFUSED = "refused"
    """The prompt was refused: too long for the model, or against an endpoint's policy. An answer of nothing."""
    ERROR = "error"
    """The engine failed on this request: a typed event, never an empty string passed off as a reply."""


@dataclass(frozen=True, slots=True)
class SamplingParams(Settings):
    """How to sample. What is sampled from is what is scored: defaults leave the distribution whole."""

    max_new_tokens: Annotated[int, COUNT] = 64
    temperature: Annotated[float, Range(0.0, open_low=True, hint="For greedy decoding use greedy = true.")] = 1.0
    """Recorded, and used in scoring. Greedy decoding is ``greedy=True``, not temperature 0."""
    greedy: bool = False


STRAIGHT: dict[str, float] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""What servers and ``generation_config.json`` call the settings that bend a distribution -> where they do not."""


@dataclass(frozen=True, slots=True, eq=False)
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
    tools: Sequence[Mapping[str, Any]] = ()
    """What a hosted agent can call, in the form of OpenAI's chat API."""
    begun: int = 0
    """Last tokens of the prompt that are the beginning of the reply, which somebody else has set."""
    chain: Hashable = None
    """Names the requests of which each prompt may begin with the one before and its reply: one agent's, of one
    episode. None: no other request will extend it."""


@dataclass(frozen=True, slots=True, eq=False)
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
    """Why there is no text: what failed, or who refused the prompt."""
    usage: tuple[int, int] | None = None
    """Tokens of prompt and reply as a hosted model's server counts them; None: count the ids."""
    kept: int = 0
    """First tokens of the prompt that the engine had read for an earlier turn, as far as it says."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """What an evaluation knows: the ``seconds`` that it or its batch took, and its ``cost``, where that is known."""


NO_REQUEST = GenerationRequest("", [], 0)
"""Of turns that another hand played (a fixed partner in a wrapper): there is nothing to learn from."""
NO_REPLY = Generation([], np.zeros(0, np.float32), StopReason.EOS, 0)
"""Of turns that no engine wrote."""


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    """One turn of one agent, from the trainer's side: the environment's record, and the reply that it came from.

    Nothing changes it. What an update finds out about a turn stands in its ``Estimates``, which the turn is a key of.
    """

    turn: TurnRecord
    """What the agent said, which turns it saw, and its reward."""
    request: GenerationRequest = NO_REQUEST
    """What the engine was asked."""
    reply: Generation = NO_REPLY
    """What it sampled."""
    trainable: bool = True
    """False for frozen, scripted or hosted agents: a node of the chain with one value and no loss."""
    temperature: float = 1.0
    team_view: str = ""
    """Task state, role and the messages committed before this layer, for a team critic."""
    observation: str | None = None
    """The task's prompt to the agent, apart from messages of others; None: unknown."""
    worth: float | None = None
    """Of a turn that had candidates: what this one was worth; see ``TreeCollector``."""
    leaf: int = 0
    """Of the episode's tree, whose own turn it is; 0: the episode. See ``Trajectory.leaves``."""
    tokens_at: Mapping[int, int] = field(default_factory=dict)
    """End of a rewarded span of the text, in characters -> the token that completes it (``LayerRecord.segments``)."""

    @property
    def index(self) -> int:
        """History index of the turn."""
        return self.turn.index

    @property
    def round(self) -> int:
        """Time step of the Flex-POMDP."""
        return self.turn.round

    @property
    def layer(self) -> int:
        """Index of the layer in the episode."""
        return self.turn.layer

    @property
    def agent(self) -> str:
        """Who acted."""
        return self.turn.agent

    @property
    def length(self) -> int:
        """Tokens of the reply; where none are known here, what the record says (``TurnRecord.length``)."""
        return len(self.reply.action_ids) or self.turn.length

    @property
    def policy(self) -> str:
        """Which policy wrote it; empty: another hand."""
        return self.request.policy


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One finished episode of the whole team, in play order. Nothing changes it; ``with_rewards`` makes another."""

    episode: Episode
    """The environment's record."""
    transitions: Sequence[Transition]
    """``transitions[k].index == k``."""
    number: int = 0
    """Position among the iteration's prompts."""
    group: int = 0
    """Number of the start within the iteration: episodes of one group share task and environment seed, and differ in
    the sampling seed only."""
    planned: Sequence[Transition] = ()
    """The layer that would have run, of a ``truncated`` episode: its value is the bootstrap."""
    candidates: Sequence[Transition] = ()
    """Replies at states of this episode that did not become part of it, to be learnt from like its turns: ``index`` is
    that of the turn in whose place they stand."""
    leaves: Sequence[tuple[int, int, float]] = ()
    """Of a tree, whose turns are ``candidates``: per leaf beside the episode itself, which is leaf 0, the leaf that it
    branches from, before which layer, and its return."""
    replayed: Sequence[float] = ()
    """Per turn what branches say that it is answerable for; empty: nobody asked. See ``credit.Rule.replay``."""
    hindsight: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Turn -> its prompt, with what was known of the reply afterwards; for algorithms that learn from this."""
    replayed_tokens: int = 0
    """Tokens sampled to find out what else could have happened; they count like those of its turns."""
    replayed_prompts: int = 0
    """Tokens of the prompts that those were sampled after."""

    @classmethod
    def of(cls, episode: Episode) -> Trajectory:
        """Returns what is known of a recorded episode, of which nothing is learnt."""
        return cls(episode, [Transition(turn, trainable=False) for turn in episode.turns], episode.index)

    @property
    def task_id(self) -> str:
        """Which problem it was."""
        return self.episode.task_id

    @property
    def layers(self) -> Sequence[LayerRecord]:
        """The layers, with the rewards at each."""
        return self.episode.layers

    @property
    def truncated(self) -> bool:
        """Whether a limit cut it."""
        return self.episode.truncated

    @property
    def success(self) -> bool | None:
        """The task's verdict, if it gives one."""
        return self.episode.success

    @property
    def score(self) -> float:
        """Team return: team rewards plus turn rewards, undiscounted."""
        return self.episode.team_return

    @property
    def metrics(self) -> Mapping[str, float]:
        """What the task measured."""
        return self.episode.metrics

    @property
    def fault(self) -> Fault:
        """Whose fault ended the episode early; empty: none."""
        return self.episode.fault

    @property
    def infrastructure_error(self) -> bool:
        """Whether an infrastructure error ended the episode: it is neither learnt from nor scored."""
        return self.episode.infrastructure_error

    @property
    def tokens(self) -> int:
        """Everything that was sampled for this episode."""
        return self.replayed_tokens + sum(len(t.reply.action_ids) for t in (*self.transitions, *self.candidates))

    @property
    def processed(self) -> int:
        """The same, and every prompt that it was sampled after: what an episode costs beyond what is said in it."""
        prompts = sum(len(t.request.prompt_ids) for t in (*self.transitions, *self.candidates))
        return self.tokens + self.replayed_prompts + prompts

    @property
    def critical_path(self) -> int:
        """The sum over layers of the longest reply: tokens that have to be sampled one after the other."""
        return sum(max((self.transitions[k].length for k in layer.turns), default=0) for layer in self.layers)

    def with_rewards(self, layers: Sequence[LayerRecord], turns: Sequence[float], success: bool | None) -> Trajectory:
        """Returns the same episode with other rewards.

        Args:
            layers: With the new rewards of team and agents.
            turns: The new reward of every turn.
            success: The new verdict.
        """
        records = [replace(t.turn, reward=reward) for t, reward in zip(self.transitions, turns, strict=True)]
        episode = replace(self.episode, layers=list(layers), turns=records, success=success)
        transitions = [replace(t, turn=record) for t, record in zip(self.transitions, records, strict=True)]
        return replace(self, episode=episode, transitions=transitions)


@dataclass(slots=True)
class Estimates:
    """What one update finds out about the turns that it learns from: arrays by turn, made anew each time.

    Token level has an entry for every sampled token, action level one for the turn; so have turns without a loss.
    """

    features: dict[Transition, Any] = field(default_factory=dict)
    """Hidden states of the frozen critic trunk, [len(values), d]."""
    values: dict[Transition, FloatArray] = field(default_factory=dict)
    """V read before the token (the action) is known; not there where no critic looks."""
    advantages: dict[Transition, FloatArray] = field(default_factory=dict)
    """Shaped as ``values``."""
    returns: dict[Transition, FloatArray] = field(default_factory=dict)
    """Shaped as ``values``."""
    rewards_to_go: dict[Transition, float] = field(default_factory=dict)
    """Sum of all rewards from a turn on, no discount and no V in it; of algorithms that whiten advantages."""
    penalties: dict[Transition, FloatArray] = field(default_factory=dict)
    """[L] what ``kl_reward_coef`` takes off each token's reward; not there: nothing."""
    shares: dict[Transition, float] = field(default_factory=dict)
    """1 / (turns with a loss that this agent has in its episode): the weight at which agents count alike however
    often they act."""
    old_logprobs: dict[Transition, FloatArray] = field(default_factory=dict)
    """[L] recomputed by the learner; they win over the sampler's."""
    reference_logprobs: dict[Transition, FloatArray] = field(default_factory=dict)
    """[L] under the model that the policy started from."""
    current_logprobs: dict[Transition, FloatArray] = field(default_factory=dict)
    """[L] under the weights that the update began with, of turns that others sampled; where V-trace asks for them."""
    behind: dict[Transition, int] = field(default_factory=dict)
    """Updates between the weights that sampled a turn and those that learn from it; not there: none."""
    bootstraps: dict[Trajectory, float] = field(default_factory=dict)
    """Value of the layer that would have run, of truncated episodes that a critic looked at."""

    def behaviour(self, t: Transition) -> FloatArray:
        """[L] log-probs in the ratio's denominator."""
        return self.old_logprobs.get(t, t.reply.logprobs)

    def current(self, t: Transition) -> FloatArray:
        """[L] log-probs under the weights that the update began with, as far as anybody asked."""
        return self.current_logprobs.get(t, self.behaviour(t))
