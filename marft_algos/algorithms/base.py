"""Defines an algorithm: hooks, a name, and what it needs of a run.

The substrate (``Learner``) owns collecting, packing, stepping and saving; an algorithm owns the idea. An algorithm is
one file of this folder: a class with ``@register("name")`` and a frozen ``Config``. This file holds no algorithm's
name: a module that lies here, unless it is ``SHARED``, is had by its name, a class elsewhere as ``module:Class``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from marft_algos import credit as credit_rules
from marft_algos import functional as F
from marft_algos.algorithms.settings import ClipConfig as ClipConfig
from marft_algos.algorithms.settings import GroupConfig as GroupConfig
from marft_algos.algorithms.settings import UpdateConfig as UpdateConfig
from marft_algos.batching import Batch, Level
from marft_algos.lazy import Tensor, torch
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition
from marft_algos.types import Need as Need
from marft_envs.errors import ConfigError, check_known
from marft_envs.registration import import_for

View = Literal["own", "team", "none"]
Rescore = Callable[[Sequence[Transition]], list[np.ndarray]]
"""Turns of one policy -> per turn the [L] log-probs under the policy as it is now."""


class ValueHeads(Protocol):
    """The value heads, one per policy id, on cached features of a frozen trunk."""

    @property
    def policies(self) -> list[str]:
        """Returns the policies that have a head."""

    @property
    def device(self) -> torch.device:
        """Returns the device of the heads."""

    def parameters(self, policy: str) -> Sequence[Tensor]:
        """Returns the trainable tensors of one head."""

    def featurise(
        self, transitions: Sequence[Transition], *, view: Any, level: Level, logprobs: Any = None
    ) -> Mapping[Transition, Tensor]:
        """Computes features [n, d] of turns: n = 1 at action level or without a loss, else one per token."""

    def values(self, policy: str, features: Tensor) -> Tensor:
        """Predicts values: [N, d] -> [N] fp32."""


class Reader(Protocol):
    """Reads V of turns with the value heads; the Learner has one for ``Algorithm.values``."""

    @property
    def policies(self) -> list[str]:
        """Returns the policies that have a head."""

    def read(self, turns: Sequence[Transition], estimates: Estimates, *, view: Any, level: Level) -> None:
        """Fills ``values`` of these turns: [1] at action level or for turns without a loss, else one per token."""


class Algorithm:
    """Base class: override the hooks that make the idea, keep the rest.

    The hooks, as an iteration calls them: ``values``, ``credit``, ``order``, ``together``, ``before_step``,
    ``surrogate``, ``after_block``. ``credit`` and ``surrogate`` have no default.

    Attributes:
        name: What users type; set by ``register``.
        Config: Frozen dataclass of settings, a subclass of ``UpdateConfig``.
        needs: What a run must offer; ``needs.check`` refuses others, and tests and benchmarks skip by it.
    """

    name: ClassVar[str] = ""
    Config: ClassVar[type[UpdateConfig]] = UpdateConfig
    needs: ClassVar[frozenset[Need]] = frozenset()
    level: Level = "token"
    """Whether advantages, values and returns are one number per action or one per token."""
    view: View = "none"
    """Which observation the critic sees; ``none``: no critic."""
    chain: credit_rules.Relation = "team"
    """What its returns run over (``chain_of`` has ``team`` and ``agent``); some credit rules fit only some."""
    rule: credit_rules.Rule = credit_rules.get("broadcast")
    """Which rewards each turn is credited with; that of ``credit``, where the ``Config`` has it."""
    imitates: ClassVar[bool] = False
    """Whether it learns from demonstrations (``config.demonstrations``) and not from what the policies say."""
    prefers: ClassVar[bool] = False
    """Whether these demonstrations are pairs of a better and a worse episode of one start, in this order."""
    ask: Callable[[str, int], str] | None = None
    """Asks the hosted model of ``config.proposer``, for those that have one: text, and most tokens of the answer."""
    trains: ClassVar[bool] = True
    """Whether it updates weights. Who does not has nobody to train, and all policies may be frozen or hosted."""
    candidates: int = 1
    """Replies that are drawn and tried at every turn; the one with the highest ``worth`` advances."""
    seed: int = 0
    """The run's seed, for hooks that draw; the Learner sets it. Draws also hang on the iteration, on nothing else."""
    reduction: ReductionSlots = ReductionSlots()
    """Who computes what, where several processes train, for hooks that share their work; the Learner sets it."""

    def __init__(self, config: Any = None, sampling: SamplingParams | None = None) -> None:
        self.config: Any = self.Config() if config is None else config
        self.sampling = sampling or SamplingParams()
        if rule := getattr(self.config, "credit", None):
            self.rule = credit_rules.get(rule)
        self.chain = getattr(self.config, "chain", self.chain)

    @property
    def group_size(self) -> int:
        """Returns the number of episodes of each start."""
        return self.config.group_size if isinstance(self.config, GroupConfig) else 1

    @property
    def refills(self) -> int:
        """Returns how often unwanted groups are replaced."""
        return self.config.refills if isinstance(self.config, GroupConfig) else 0

    def chain_of(self, trajectory: Trajectory, estimates: Estimates) -> credit_rules.ReturnChain:
        """Returns each turn's successors, whose values bootstrap it, and the rewards before them (``lambda_returns``).

        ``team``: layer by layer through the whole episode. ``agent``: a turn's successor is its agent's own next turn.
        """
        relations = {"team": credit_rules.team_chain, "agent": credit_rules.agent_chain}
        return relations[self.chain](trajectory, self.rule(trajectory), estimates)

    def profiles(self, member: int | None) -> Mapping[str, str]:
        """Returns the prompts that replace the agents' profiles, by agent or role; here none.

        Args:
            member: Place of the episode in its group; None: the team is evaluated.
        """
        return {}

    def wanted(self, group: Sequence[Trajectory]) -> bool:
        """Returns whether these episodes of one start are worth learning from; others are dropped, and refilled.

        Args:
            group: Those that did not fail, maybe none.
        """
        return True

    def worth(self, branch: Trajectory, index: int) -> float:
        """Returns what a candidate is worth, for algorithms that draw several.

        Args:
            branch: The episode with the candidate in it, played until there is a reward or the round is over.
            index: Of the candidate's turn.
        """
        raise NotImplementedError

    def values(self, trajectories: Sequence[Trajectory], critics: Reader | None, estimates: Estimates) -> None:
        """Hook 1. Fills ``values`` (of turns that a critic looks at) and ``bootstraps`` of the estimates."""
        fill_values(trajectories, critics, self.view, self.level, estimates)

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Hook 2. Fills ``advantages`` and ``returns`` of the estimates; returns numbers to log.

        Args:
            trajectories: The iteration's episodes, which nobody changes.
            estimates: Of this update; they hold what ``values`` found.
        """
        raise NotImplementedError

    def order(
        self, rows: Mapping[str, Sequence[Transition]], estimates: Estimates, iteration: int
    ) -> Iterable[list[str]]:
        """Hook 3. Returns blocks of policies to update one after the other; here all at once.

        A generator is asked for its next block after the last one was updated and ``after_block`` has run.

        Args:
            rows: Every trainable policy with its turns of this iteration (maybe none).
            estimates: Of this update; they change from block to block where ``after_block`` changes them.
            iteration: Counts updates of policies: value warm-up iterations are not in it.
        """
        return [list(rows)]

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, Mapping[str, float | Tensor]]:
        """Hook 4. Returns one batch's share of the minibatch's loss (``batch.mean``), and numbers to log.

        Args:
            logprobs: [B, T-1] under the current weights, with gradient.
            batch: The packed turns.

        Returns:
            A scalar, and numbers that are summed over a minibatch's batches (maximised if their key ends in ``_max``);
            as tensors with one element they wait on the device until the minibatch is done.
        """
        raise NotImplementedError

    def together(self, rows: Sequence[Transition]) -> list[list[Transition]]:
        """Returns a policy's turns in bundles that no minibatch takes apart; here each turn is one."""
        return [[turn] for turn in rows]

    def before_step(self, part: Sequence[Transition], estimates: Estimates, rescore: Rescore) -> dict[str, float]:
        """Prepares a minibatch's turns of one policy at the present weights; returns numbers to log. Does nothing here.

        For losses in which turns depend on each other: what they depend on goes into ``estimates``.
        """
        return {}

    def reduce(self, x: Tensor, batch: Batch) -> Tensor:
        """Averages one number per token into a loss. KL and entropy terms are averaged like the surrogate.

        Args:
            x: [B, T-1].
            batch: The packed turns.
        """
        return batch.mean(x)

    def clipped(
        self,
        ratio: Tensor,
        advantages: Tensor,
        batch: Batch,
        *,
        scale: float = 1.0,
        mean: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns the surrogate that ``ClipConfig`` names, and its numbers.

        Args:
            ratio: π_θ/π_old with gradient: [B, T-1] of tokens, or [B] of actions.
            advantages: In a shape that multiplies it.
            batch: The packed turns.
            scale: Factor on every ε.
            mean: How one number per ratio becomes a loss; by default ``reduce``.

        Returns:
            A scalar; the share of samples whose gradient or weight is cut, and the largest ratio.
        """
        low, high = self.config.clip * scale, (self.config.clip_high or self.config.clip) * scale
        if self.config.surrogate == "cispo":
            terms, bound = F.cispo(ratio, advantages, high), ratio.detach() > 1.0 + high
        elif self.config.surrogate == "sapo":
            terms, bound = F.sapo(ratio, advantages, self.config.tau_pos, self.config.tau_neg), torch.zeros_like(ratio)
        else:
            limits = low, high, self.config.dual_clip
            terms = F.clipped_surrogate(ratio, advantages, *limits)
            bound = F.clip_binds(ratio.detach(), advantages, *limits)
        loss = self.reduce(terms, batch) if mean is None else mean(terms)
        return loss, {"clip_share": batch.mean(bound.float()), "ratio_max": ratio.detach().max()}

    def after_block(
        self, block: Sequence[str], trajectories: Sequence[Trajectory], estimates: Estimates, rescore: Rescore
    ) -> dict[str, float]:
        """Hook 5. Prepares later blocks for the policies just updated; returns numbers to log. Does nothing here."""
        return {}

    def length_bias(self) -> str:
        """Returns the settings that bias the update where policies choose how long an episode is; here none."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Returns what must survive a restart beside weights and optimisers; tensors and plain Python only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""


class PolicyGradient(Algorithm):
    """Base of the algorithms with the plain score function, without ratio and clip."""

    def reduce(self, x: Tensor, batch: Batch) -> Tensor:
        """Returns the sum over the policy's tokens of an episode, mean over all episodes."""
        return batch.episode_sum(batch.row_sum(x))

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Returns −log π · A."""
        return self.reduce(-logprobs * batch.advantages[:, None], batch), {}


def fill_values(
    trajectories: Sequence[Trajectory], critics: Reader | None, view: View, level: Level, estimates: Estimates
) -> None:
    """Reads V for every turn that a critic can see, and for the layer that a truncated episode would have run."""
    if view == "none":
        return
    if critics is None:
        raise ConfigError(f"The algorithm's critic sees '{view}', but there are no value heads; use critic='none'.")
    nodes = [t for trajectory in trajectories for t in (*trajectory.transitions, *trajectory.planned)]
    seen = [t for t in nodes if t.request.prompt_ids and t.policy in critics.policies]
    critics.read(seen, estimates, view=view, level=level)
    for trajectory in trajectories:
        beyond = [float(estimates.values[t][0]) for t in trajectory.planned if t in estimates.values]
        if trajectory.truncated and beyond:
            estimates.bootstraps[trajectory] = sum(beyond) / len(beyond)


_REGISTRY: dict[str, type[Algorithm]] = {}
SHARED = {"base", "groups", "needs", "ppo", "settings"}
"""Modules of this folder that are no algorithms."""


def register(name: str) -> Callable[[type[Algorithm]], type[Algorithm]]:
    """Class decorator: makes an algorithm known as ``name``."""

    def add(cls: type[Algorithm]) -> type[Algorithm]:
        if name in _REGISTRY:
            raise ConfigError(f"Algorithm '{name}' is registered already; choose another name.")
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return add


def get(name: str) -> type[Algorithm]:
    """Returns the algorithm class of that name, or of ``module:Class``.

    Raises:
        ConfigError: No such algorithm.
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            algorithm = getattr(import_for(name, module), attribute)
        except AttributeError as error:
            raise ConfigError(f"Cannot load algorithm '{name}': {error}. Expected module:Class, importable.") from error
        if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
            raise ConfigError(
                f"'{name}' is no algorithm. Expected a subclass of marft_algos.Algorithm with a Config:"
                " examples/contributing/algorithm.py is a whole one."
            )
        return algorithm
    if name not in _REGISTRY and name in pages():
        importlib.import_module(f"{__package__}.{name}")
    if name not in _REGISTRY:
        check_known([name], names(), "There is no algorithm '{}'.", after="All of them: marft algorithms")
    return _REGISTRY[name]


def names() -> list[str]:
    """Returns the names that ``get`` knows: files of ``marft_algos/algorithms``, and what was registered elsewhere."""
    return sorted(pages() | set(_REGISTRY))


def pages() -> set[str]:
    """Returns the names of the algorithms that come with the package."""
    return {m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)])} - SHARED
