"""Implements what algorithms with a critic share: λ-returns, whitened advantages, the clipped surrogate.

    A = G − V, G from ``functional.lambda_returns`` over the successors that ``chain_of`` names
    loss: −min(ρA, clip(ρ, 1 − ε_l, 1 + ε_h)A)                                     (PPO, arXiv 1707.06347)

with ρ of a token, or of a whole action: exp of the difference of (1/Z)·Σ_t log π, Z = 1, tokens or words. An
algorithm says which successors its returns run over and which observation its critic sees, and overrides the rest where
it differs.

With ``vtrace`` the returns are those of the present policies, though others sampled the turns (V-trace, arXiv
1802.01561, eq. 1, in ``functional.lambda_returns``). What leads from a turn to its successors is a step: the turn
itself, and every turn that commits before them, those of its own layer first, as a team's move is all that its agents
say at once. Its ratio is the product of theirs, truncated at ρ̄ where it corrects the step, and at c̄ where it passes
later corrections back (A2PO's trace, arXiv 2302.06205, eq. 3, for turns that are stale before any policy moves). At
token level a token is a step, and the others' replies stand beside the last one. The turn's own ratio weighs its loss
already; the others' weigh its advantage, truncated at ρ̄, after whitening.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from marft_algos import credit
from marft_algos import functional as F
from marft_algos.algorithms.base import Algorithm, ClipConfig, Rescore
from marft_algos.batching import Batch, Level, decision_points, has_loss, learnable
from marft_algos.credit import ReturnChain
from marft_algos.lazy import Tensor
from marft_algos.ranges import NOT_NEGATIVE, POSITIVE, SHARE
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.types import Estimates, SamplingParams, Trajectory, Transition
from marft_envs.errors import ConfigError

TOGETHER = 2048
"""Episodes whose returns are computed at once: enough to be fast, few enough for their float64 to be small."""


@dataclass(frozen=True)
class PPOConfig(ClipConfig):
    """Settings that every algorithm with a critic has."""

    level: Level = "token"
    """What a decision is: every token, or the whole action."""
    norm: F.Norm = "token"
    """Z of an action's log-prob (action level): 1 (sum), its tokens, or its words. ``token`` is GSPO's ratio: texts of
    all lengths weigh alike, but a clip of .2 hardly ever binds; choose the clip by the logged share."""
    gamma_tok: Annotated[float, SHARE] = 1.0
    """Discount from one token to the next; 1: a long answer is not worth less than a short one."""
    gamma_turn: Annotated[float, SHARE] = 1.0
    """Discount from a turn to its successors; 1: who spoke first is responsible for all of the outcome."""
    lambda_tok: Annotated[float, SHARE] = 1.0
    """λ inside a response; 1: Monte-Carlo, right as long as the critic knows little."""
    lambda_turn: Annotated[float, SHARE] = 1.0
    """λ from a turn to its successors; below 1 the critic's view must be a sound bootstrap."""
    credit: str | dict[str, Any] = "broadcast"
    """Credit rule, or a table of a rule and its arguments (docs/credit.md). ``broadcast`` leaves rewards where they
    fall due, ``last`` (released code) at a round's last layer."""
    whiten: Literal["global", "policy", "off"] = "global"
    """Whose statistics whiten advantages: all trained turns', each policy's own, or none."""
    std_floor: Annotated[float, NOT_NEGATIVE] = 0.0
    """Least σ that whitening divides by. Where nearly everything is right, σ is small, and whitening makes a few errors
    as large as a signal. With rewards in [0, 1], .1 acts where 99 of 100 are right, or wrong (DreamerV3 divides by
    max(1, spread) for this, arXiv 2301.04104). 0: σ as it is, as in the paper."""
    baseline: Literal["mean", "optimal"] = "mean"
    """What whitening subtracts: the mean, or the mean in which each advantage weighs as much as its gradient is long,
    squared, which makes the variance of the gradient least (docs/training.md). It is lower where failures are less
    likely texts than successes are: then a failure teaches less."""
    vtrace: bool = False
    """Correct returns for turns that older weights sampled (``staleness``); an episode of fresh turns stays as it is.
    Costs a forward pass over stale turns, unless ``old_logprobs='learner'`` makes it anyway."""
    rho_bar: Annotated[float, POSITIVE] = 1.0
    """Cap of V-trace's ρ, which decides what values converge to: those of the present policies at infinity, nearer to
    those of the policies that sampled the lower it is. 1: the original's. Below 1 it weighs fresh turns down, too, in
    episodes that have a stale one."""
    c_bar: Annotated[float, POSITIVE] = 1.0
    """Cap of V-trace's c, at most ``rho_bar``: how much of later corrections passes back; decides variance, not the
    limit. 1: the original's. Below 1 it is the c of fresh turns, too, as a λ would be, in episodes that have a stale
    one: there their returns lean on V."""

    @property
    def corrects_stale(self) -> bool:
        """Whether credit asks for the present log-probs of turns that older weights sampled."""
        return self.vtrace

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for caps in the wrong order, and for stale turns that no loss would weigh."""
        super().__post_init__()
        if self.c_bar > self.rho_bar:
            raise ConfigError(
                f"c_bar is {self.c_bar} and rho_bar {self.rho_bar}; expected c_bar at most rho_bar (V-trace)."
            )
        if self.baseline == "optimal" and self.whiten == "off":
            raise ConfigError(
                "baseline='optimal' is what whitening subtracts, and whiten='off' subtracts nothing. Set "
                "baseline='mean', or whiten='global' or 'policy' beside it."
            )
        if self.vtrace and self.old_logprobs == "learner" and self.tis_cap is None:
            raise ConfigError(
                "vtrace corrects what turns are credited with, and their own ratio to who sampled them is left to the "
                "loss, which has none at old_logprobs='learner' without tis_cap. Set tis_cap=2 beside it, or "
                "old_logprobs='sampler'."
            )


class PPO(Algorithm):
    """Base of the algorithms with a critic; a subclass sets ``chain``, which names its successor relation."""

    Config = PPOConfig
    config: PPOConfig
    traced: ClassVar[bool] = True
    """Whether its returns run from turn to turn, so that V-trace can correct them."""

    def __init__(self, config: PPOConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.level = self.config.level
        if self.config.vtrace and not self.traced:
            raise ConfigError(
                f"{self.name or type(self).__name__} has no trace from turn to turn that vtrace could correct. Leave "
                "it out, or use an algorithm that has one: marft, ippo, mappo, a2po, mat."
            )
        self.discounts = F.Discounts(
            self.config.gamma_tok, self.config.gamma_turn, self.config.lambda_tok, self.config.lambda_turn
        )
        left = self.config.gamma_tok**self.sampling.max_new_tokens
        if self.level == "token" and left < 0.5:
            warnings.warn(
                f"gamma_tok={self.config.gamma_tok} leaves {left:.3g} of a reward after {self.sampling.max_new_tokens} "
                "tokens: the first tokens get almost no signal. Use gamma_tok=1, or fewer new tokens.",
                stacklevel=2,
            )

    def traces(self, trajectory: Trajectory) -> list[float] | None:
        """Returns per turn the factor on λ_turn when it is looked back from; None: 1."""
        return None

    def moved_since(self, t: Transition) -> np.ndarray | float:
        """Returns [L] how much likelier a turn's tokens have become in this update; here policies move after credit."""
        return 0.0

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns returns, and advantages G − V, whitened over what is trained."""
        steps = self.run_returns(trajectories, estimates)
        self.whiten(trajectories, estimates)
        for step in steps:
            estimates.advantages[step.turn][-1] *= F.truncate(step.beside, self.config.rho_bar)
        return _traced(steps, self.config) if steps else {}

    def run_returns(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> list[SuccessorStep]:
        """Fills returns, and advantages G − V as they are; returns V-trace's steps of the turns that are trained."""
        taken, nodes = list[SuccessorStep](), [t for trajectory in trajectories for t in trajectory.transitions]
        if not nodes:
            return taken
        reduction = ReductionSlots() if self.config.vtrace else self.reduction  # every rank asks for V-trace's steps
        run = partial(self._run_together, estimates=estimates, taken=taken)
        advantages, returns, paid = map(np.concatenate, zip(*reduction.parts(trajectories, run, TOGETHER), strict=True))
        ends = np.cumsum([decision_points(t, self.level) for t in nodes])[:-1]
        estimates.advantages |= zip(nodes, np.split(advantages, ends), strict=True)
        estimates.returns |= zip(nodes, np.split(returns, ends), strict=True)
        estimates.rewards_to_go |= zip(nodes, paid.tolist(), strict=True)
        return taken

    def _run_together(
        self, trajectories: Sequence[Trajectory], estimates: Estimates, taken: list[SuccessorStep]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the returns of several episodes as those of one graph: they share the steps from token to token.

        Returns:
            Advantages and returns, fp32, end to end, and each turn's reward-to-go, float64; steps go to ``taken``.
        """
        nodes, totals = list[Transition](), list[float]()
        graph: defaultdict[str, list[Any]] = defaultdict(list)
        for trajectory in trajectories:
            turns, chain, first = trajectory.transitions, self.chain_of(trajectory, estimates), len(nodes)
            if self.view == "own" and self.config.lambda_turn < 1.0:
                credit.check_own_view(trajectory, chain)
            lengths = [decision_points(t, self.level) for t in turns]
            steps = self._steps(trajectory, chain, lengths, estimates) if self.config.vtrace else []
            off = any(s.off for s in steps)
            nodes += turns
            graph["lengths"] += lengths
            graph["rewards"] += chain.rewards
            graph["successors"] += [tuple(first + j for j in following) for following in chain.successors]
            graph["bootstraps"] += chain.bootstraps
            graph["traces"] += self.traces(trajectory) or [1.0] * len(turns)
            graph["token_rewards"] += chain.token_rewards(lengths)
            graph["truncated"] += [s.truncated(self.config) for s in steps] if off else [None] * len(turns)
            totals += chain.totals
            taken += [s for s in steps if has_loss(s.turn)]
        n = len(nodes)
        paid = F.lambda_returns([None] * n, [1] * n, totals, graph["successors"], F.Discounts())[1]
        found = F.lambda_returns([estimates.values.get(t) for t in nodes], discounts=self.discounts, **graph)
        advantages, returns = (np.concatenate(each).astype(np.float32) for each in found)
        return advantages, returns, np.concatenate(paid)

    def _steps(
        self, trajectory: Trajectory, chain: ReturnChain, lengths: Sequence[int], estimates: Estimates
    ) -> list[SuccessorStep]:
        """Finds what leads from each turn to its successors, and how much likelier it has become."""
        turns = trajectory.transitions
        stale = [_drift(t, estimates) for t in turns]
        drifts = [x + self.moved_since(t) if len(x) else x for t, x in zip(turns, stale, strict=True)]
        steps = []
        for k, (t, successors, n) in enumerate(zip(turns, chain.successors, lengths, strict=True)):
            end = min((turns[j].layer for j in successors), default=len(trajectory.layers))
            others = [j for j, u in enumerate(turns) if j != k and t.layer <= u.layer < end]
            decisions = drifts[k] if len(drifts[k]) == n else np.full(n, drifts[k].sum() / n)
            steps.append(SuccessorStep(t, decisions, _total(drifts, others), _total(stale, others)))
        return steps

    def whiten(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> None:
        """Whitens the trained turns' advantages, all together or policy by policy; each entry counts once.

        Where all turns have equal rewards, advantages are 0: what is left of them is what the critic does not know yet,
        and whitening would make it as large as a signal. Before that rule, teams that had solved a task unlearnt it.
        What counts are the rewards from a turn on (``Estimates.rewards_to_go``), whatever λ, discounts and V are.
        """
        if self.config.whiten == "off":
            return
        places = _places(trajectories)
        for group in sorted({t.policy if self.config.whiten == "policy" else "" for t in places}):
            turns = [t for t in places if group in ("", t.policy)]
            parts = [estimates.advantages[t] for t in turns]
            flat = np.concatenate(parts)
            norms = [self._score_norms(t, estimates) for t in turns] if self.config.baseline == "optimal" else None
            white = F.whiten(
                np.zeros_like(flat) if _alike(turns, places, estimates) else flat,
                weights=np.concatenate(norms) if norms else None,
                floor=self.config.std_floor,
            )
            ends = np.cumsum(list(map(len, parts)))[:-1]
            estimates.advantages |= zip(turns, np.split(white.astype(np.float32), ends), strict=True)

    def _score_norms(self, t: Transition, estimates: Estimates) -> np.ndarray:
        """Estimates [decision points] how long the gradient of each decision's log-prob is, squared.

        An action's is as ``ratio`` has it; those of its tokens add up, as on average they stand at right angles.
        """
        norms = F.score_norms(estimates.behaviour(t))
        if self.level == "token":
            return norms
        size = {"sum": 1, "token": len(norms), "word": len(t.turn.text.split())}[self.config.norm]
        return np.array([norms.sum() / max(size, 1) ** 2])

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns the clipped surrogate on the ratio of tokens or of actions."""
        return self.clipped(self.ratio(logprobs, batch), batch.advantages, batch)

    def ratio(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """Computes π_θ/π_old at this algorithm's level: [B, T-1] of tokens, or [B] of actions."""
        new, old = logprobs, batch.old_logprobs
        if self.level == "action":
            new = F.action_logprobs(new, batch.mask, self.config.norm, batch.n_words)
            old = F.action_logprobs(old, batch.mask, self.config.norm, batch.n_words)
        return F.ratio(new, old)

    def per_turn(self, numbers: Sequence[float], batch: Batch) -> Tensor:
        """Shapes a number per row so that it multiplies ratios and advantages: [B, 1] of tokens, or [B] of actions."""
        column = batch.advantages.new_tensor(numbers)
        return column[:, None] if self.level == "token" else column


@dataclass(frozen=True, slots=True, eq=False)
class SuccessorStep:
    """What leads from a turn to its successors, and how much likelier it is now than where it was sampled."""

    turn: Transition
    decisions: np.ndarray
    """[decision points] log π/μ of each."""
    others: float
    """Σ log π/μ of the other turns that commit before the successors do."""
    beside: float
    """The same without what they have moved in this update."""

    @property
    def off(self) -> bool:
        """Returns whether any of it was sampled by another policy."""
        return bool(self.others or self.decisions.any())

    def truncated(self, config: PPOConfig) -> tuple[np.ndarray, np.ndarray]:
        """Returns ρ and c of the decision points; the others' replies stand beside the last one."""
        ratios = self.decisions.copy()
        ratios[-1] += self.others
        return F.truncate(ratios, config.rho_bar), F.truncate(ratios, config.c_bar)


def _places(trajectories: Sequence[Trajectory]) -> dict[Transition, tuple[str, int]]:
    """Returns trained turn -> its place in the episode: the agent, and which of its turns it is."""
    places = {}
    for trajectory in trajectories:
        spoken = Counter[str]()
        for t in trajectory.transitions:
            spoken[t.agent] += 1
            if has_loss(t):
                places[t] = t.agent, spoken[t.agent]
    return places


def _alike(turns: Sequence[Transition], places: Mapping[Transition, tuple[str, int]], estimates: Estimates) -> bool:
    """Returns whether every turn has the reward-to-go of those in its place in other episodes, if there are any."""
    paid: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for t in turns:
        paid[places[t]].append(estimates.rewards_to_go[t])
    compared = [sums for sums in paid.values() if len(sums) > 1]
    return bool(compared) and all(np.ptp(sums) <= max(1e-6 * max(map(abs, sums)), F.MIN_STD) for sums in compared)


def _traced(steps: Sequence[SuccessorStep], config: PPOConfig) -> dict[str, float]:
    """Returns means over turns: of V-trace's c of a decision, of the product of a turn's, and of others' weights."""
    traces = [step.truncated(config)[1] for step in steps]
    return {
        "vtrace/c": float(np.mean(np.concatenate(traces))),
        "vtrace/turn": float(np.mean([c.prod() for c in traces])),
        "vtrace/others": float(np.mean([F.truncate(step.beside, config.rho_bar) for step in steps])),
    }


def _drift(t: Transition, estimates: Estimates) -> np.ndarray:
    """Returns [L] log π/μ of a turn's tokens, π being its policy as the update began; [0] where nothing is learnt."""
    learnt = t in estimates.shares
    return (estimates.current(t) - t.reply.logprobs).astype(np.float64) if learnt else np.zeros(0)


def _total(drifts: Sequence[np.ndarray], turns: Sequence[int]) -> float:
    return float(sum(drifts[j].sum() for j in turns))


def log_ratios(
    policies: Sequence[str], trajectories: Sequence[Trajectory], estimates: Estimates, rescore: Rescore
) -> dict[Transition, np.ndarray]:
    """Returns how far these policies have moved in this update: [L] log π_now − log π_then of turns with a loss."""
    return {
        t: now - estimates.current(t)
        for turns in learnable(trajectories, policies)[0].values()
        for t, now in zip(turns, rescore(turns) if turns else [], strict=True)
    }


def waiting(trajectory: Trajectory, updated: Sequence[str]) -> list[Transition]:
    """Returns the turns with a loss whose policy has yet to be updated."""
    return [t for t in trajectory.transitions if has_loss(t) and t.policy not in updated]
