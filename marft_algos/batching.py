"""Trajectories → batches: packs and pads what is learnt from.

Rows are padded on the right under explicit masks, so that the padding id may stand inside an action. A minibatch is
cut into length-sorted micro-batches of a token budget; every piece knows the size of its minibatch, so that summing
the pieces' losses gives the minibatch's mean, exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from marft_algos.functional import masked_mean, masked_sum
from marft_algos.lazy import Tensor, torch
from marft_algos.memory import passes, share, shared_passes
from marft_algos.types import FOREIGN, Estimates, FloatArray, StopReason, Trajectory, Transition
from marft_envs.errors import MarftError

Level = Literal["action", "token"]
VALUE_ROWS = 1 << 16
"""Features that a value head reads at once, as float32: .5 GB at a width of 2,048."""
PAD_ID = 0
"""Any id would do: nothing ever looks for it."""


class BatchError(MarftError, ValueError):
    """A transition whose parts do not fit together."""


class UpdateError(MarftError, RuntimeError):
    """An update that must not go on: log-probs that do not belong to the samples, or numbers that blew up."""


class StaleError(UpdateError):
    """Turns that were sampled by other weights than those that would learn from them."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Totals:
    """Size of a whole minibatch: the denominators of its means."""

    rows: int
    tokens: int
    acted: float = 0.0
    """Sum of the rows' shares: one for each (episode, agent) that acted."""
    episodes: float | None = None
    """Episodes that were played for it, of all agents; None: not given, and not to be seen from the rows."""
    fresh: int = 0
    """Those of the tokens that the present weights sampled, as far as versions tell."""


@dataclass(slots=True)
class Batch:
    """Some turns of one policy, packed. Column t of a [B, T-1] field is about the token ``input_ids[:, t + 1]``."""

    policy: str
    transitions: list[Transition]
    """The rows, in order."""
    input_ids: Tensor
    """[B, T] int64, prompt then action, right-padded."""
    attention_mask: Tensor
    """[B, T] bool."""
    action_mask: Tensor
    """[B, T] bool, True at sampled tokens."""
    old_logprobs: Tensor
    """[B, T-1] fp32 under the behaviour policy; 0 outside ``mask``."""
    sampler_logprobs: Tensor
    """[B, T-1] fp32 as sampled: ``old_logprobs`` unless the learner recomputed those; 0 outside ``mask``."""
    reference_logprobs: Tensor
    """[B, T-1] fp32 under the model that the policy started from; 0 where they were not asked for."""
    advantages: Tensor
    """[B] at action level, [B, T-1] at token level; fp32."""
    n_tokens: Tensor
    """[B] int64 sampled tokens."""
    n_words: Tensor
    """[B] int64 whitespace-separated words of the text."""
    temperature: Tensor
    """[B] fp32, as sampled."""
    shares: Tensor
    """[B] fp32, ``Estimates.shares``."""
    totals: Totals
    """Size of the minibatch that this batch is a piece of."""

    @property
    def scored(self) -> tuple[str, Tensor, Tensor, Tensor]:
        """What log-probabilities are computed of: policy, ids, which are actions, temperatures."""
        return self.policy, self.input_ids, self.action_mask, self.temperature

    @property
    def mask(self) -> Tensor:
        """[B, T-1] bool: where a [B, T-1] field is about a sampled token."""
        return self.action_mask[:, 1:]

    def mean(self, x: Tensor) -> Tensor:
        """This batch's share of the minibatch's mean of x: over rows for [B], over sampled tokens for [B, T-1]."""
        if x.dim() == 1:
            return x.sum() / self.totals.rows
        return torch.where(self.mask, x, x.new_zeros(())).sum() / max(self.totals.tokens, 1)

    def row_mean(self, x: Tensor) -> Tensor:
        """[B, T-1] -> [B]: the mean over each row's sampled tokens."""
        return masked_mean(x, self.mask, -1)

    def row_sum(self, x: Tensor) -> Tensor:
        """[B, T-1] -> [B]: the sum over each row's sampled tokens."""
        return masked_sum(x, self.mask)

    def episode_mean(self, x: Tensor) -> Tensor:
        """Returns this batch's share of the minibatch's mean over (episode, agent) of the agent's mean x; x is [B].

        Agents who act a different number of times weigh the same.
        """
        return (x * self.shares).sum() / self.totals.acted

    def episode_sum(self, x: Tensor) -> Tensor:
        """Returns this batch's share of (1/E) Σ_episodes of the policy's summed x; x is [B].

        What policy gradients of whole episodes ask for: E counts every episode, also those without a turn of the
        policy, and agents that share it add up.

        Raises:
            BatchError: The minibatch's size does not say how many episodes were played.
        """
        if self.totals.episodes is None:
            raise BatchError(
                "A mean over episodes wants to know how many episodes were played, and turns alone do not tell. Say it "
                "where the batch is packed: pack(…, minibatch=totals(rows, estimates, episodes))"
            )
        return x.sum() / self.totals.episodes


@dataclass(slots=True)
class ValueBatch:
    """Decision points of some turns for one value head, laid end to end."""

    features: Tensor
    """[N, d]."""
    returns: Tensor
    """[N] fp32 targets."""
    values: Tensor
    """[N] fp32, V at collection time."""


def has_loss(transition: Transition) -> bool:
    """Returns True for turns that a policy can learn from: trainable, generated, with at least one token."""
    return bool(
        transition.trainable and transition.reply.action_ids and transition.reply.stop_reason is not StopReason.ERROR
    )


def decision_points(transition: Transition, level: Level) -> int:
    """Counts a turn's values, advantages and returns: its tokens, or 1 at action level and without a loss."""
    return max(len(transition.reply.action_ids), 1) if level == "token" and transition.trainable else 1


def learnable(
    trajectories: Iterable[Trajectory], policies: Iterable[str]
) -> tuple[dict[str, list[Transition]], dict[Transition, float]]:
    """Finds the turns with a loss, candidates among them, of these policies.

    Returns:
        The turns of each policy (an empty list if it never acted), and ``Estimates.shares`` of them all.
    """
    rows: dict[str, list[Transition]] = {p: [] for p in policies}
    shares: dict[Transition, float] = {}
    for trajectory in trajectories:
        turns = (*trajectory.transitions, *trajectory.candidates)
        turns_with_loss = [t for t in turns if t.policy in rows and has_loss(t)]
        times = Counter(t.agent for t in turns_with_loss)
        for t in turns_with_loss:
            rows[t.policy].append(t)
            shares[t] = 1.0 / times[t.agent]
    return rows, shares


def behind(rows: Iterable[Transition], version: int, max_staleness: int = 0) -> dict[Transition, int]:
    """Counts the updates between the weights that sampled turns and those of this version that learn from them.

    The ratio's denominator may hide them: recomputed by the learner it is 1 for every sampler. Turns of another
    server's fixed weights (``FOREIGN``) belong to no version and count as fresh: they are known to be off-policy.

    Raises:
        StaleError: Some are of the future, or more than ``max_staleness`` updates old.
    """
    ages: dict[Transition, int] = {}
    for t in rows:
        sampled = t.reply.version
        ages[t] = 0 if sampled == FOREIGN else version - sampled
        if not 0 <= ages[t] <= max_staleness:
            raise StaleError(
                f"Turn {t.index} of {t.agent} was sampled by version {sampled} of policy '{t.policy}', which is at "
                f"version {version} now; expected at most {max_staleness} updates between. Collect new episodes after "
                "every update, publish the new weights to the engine (Publisher.publish), and give replies the version "
                "that sampled them."
            )
    return ages


def totals(rows: Sequence[Transition], estimates: Estimates, episodes: float | None = None) -> Totals:
    """Counts rows, sampled tokens and (episode, agent) pairs of a minibatch of so many episodes."""
    acted = sum(estimates.shares.get(t, 1.0) for t in rows)
    tokens = sum(len(t.reply.action_ids) for t in rows)
    fresh = sum(len(t.reply.action_ids) for t in rows if not estimates.behind.get(t))
    return Totals(len(rows), tokens, acted, episodes, fresh)


def context_tokens(rows: Sequence[Transition]) -> int:
    """Counts the tokens that a forward pass over all rows reads, prompts and actions, without padding."""
    return sum(map(_length, rows))


def minibatches(rows: Sequence[_T], n: int, rng: np.random.Generator) -> list[list[_T]]:
    """Returns a random split into at most n parts of nearly equal size."""
    parts = np.array_split(rng.permutation(len(rows)), max(n, 1))
    return [[rows[i] for i in part] for part in parts if len(part)]


def micro_batches(
    rows: Sequence[Transition], token_budget: int, *, shared: bool = False, least: int = 1
) -> list[list[Transition]]:
    """Cuts rows into pieces for one pass each, of at most ``token_budget`` padded tokens (but at least one row).

    Args:
        rows: of one policy.
        token_budget: of a piece.
        shared: rows that begin alike are put together, and what they share counts once; else rows of similar length.
        least: pieces to cut them into, where the budget asks for fewer: smaller ones, as far as that goes.
    """
    cut, most = partial(passes, list(map(_length, rows))), len(rows)
    pieces = cut(token_budget)
    if shared and max(len(pieces), least) > 1:
        texts = [[*t.request.prompt_ids, *t.reply.action_ids[:-1]] for t in rows]
        found = share(texts, [len(t.request.prompt_ids) - 1 for t in rows])
        cut, most = partial(shared_passes, texts, found), len(set(found.within))
        pieces = cut(token_budget)
    while len(pieces) < min(least, most):
        token_budget = min(token_budget, context_tokens(rows)) * 3 // 4
        pieces = cut(token_budget)
    return [[rows[i] for i in piece] for piece in pieces]


def pack(
    rows: Sequence[Transition],
    estimates: Estimates,
    level: Level,
    device: torch.device | str = "cpu",
    minibatch: Totals | None = None,
) -> Batch:
    """Pads some turns of one policy into tensors.

    Args:
        rows: Turns of one policy, at least one.
        estimates: What the update knows of them; advantages may be missing (scoring only: zeros).
        level: Whether ``advantages`` holds one number per action or one per token.
        device: Where the tensors go.
        minibatch: Size of the minibatch that the rows are a piece of; the rows themselves by default.

    Raises:
        BatchError: A row's parts do not fit together.
    """
    width = max(_length(t) for t in rows)
    size = (len(rows), width)
    ids, attended = np.full(size, PAD_ID, dtype=np.int64), np.zeros(size, dtype=bool)
    acted, old = np.zeros(size, dtype=bool), np.zeros(size, dtype=np.float32)
    sampler, reference = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.float32)
    advantages = np.zeros(size if level == "token" else len(rows), dtype=np.float32)
    for i, t in enumerate(rows):
        _check(t, estimates, rows[0].policy, level)
        start, end = len(t.request.prompt_ids), _length(t)
        ids[i, :start], ids[i, start:end] = t.request.prompt_ids, t.reply.action_ids
        attended[i, :end], acted[i, start:end] = True, True
        old[i, start:end] = estimates.behaviour(t)
        sampler[i, start:end] = t.reply.logprobs
        reference[i, start:end] = estimates.reference_logprobs.get(t, 0.0)
        advantage = estimates.advantages.get(t)
        if advantage is not None and level == "action":
            advantages[i] = advantage[0]
        elif advantage is not None and t.reply.action_ids:
            advantages[i, start:end] = advantage

    def send(x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(device)

    return Batch(
        policy=rows[0].policy,
        transitions=list(rows),
        input_ids=send(ids),
        attention_mask=send(attended),
        action_mask=send(acted),
        old_logprobs=send(old[:, 1:]),
        sampler_logprobs=send(sampler[:, 1:]),
        reference_logprobs=send(reference[:, 1:]),
        advantages=send(advantages[:, 1:] if level == "token" else advantages),
        n_tokens=send(acted.sum(1)),
        n_words=send(np.array([len(t.turn.text.split()) for t in rows], dtype=np.int64)),
        temperature=send(np.array([t.temperature for t in rows], dtype=np.float32)),
        shares=send(np.array([estimates.shares.get(t, 1.0) for t in rows], dtype=np.float32)),
        totals=minibatch or totals(rows, estimates),
    )


def unpack(field: Tensor, batch: Batch) -> list[np.ndarray]:
    """Returns the sampled tokens' entries of a [B, T-1] field, per row [n_tokens], fp32."""
    host, mask = field.detach().float().cpu().numpy(), batch.mask.cpu().numpy()
    return [row[kept] for row, kept in zip(host, mask, strict=True)]


def pack_values(rows: Sequence[Transition], estimates: Estimates, device: torch.device | str = "cpu") -> ValueBatch:
    """Lays the decision points of turns that have features, values and returns end to end."""

    def send(arrays: Mapping[Transition, FloatArray]) -> Tensor:
        return torch.from_numpy(np.concatenate([arrays[t] for t in rows])).float().to(device)

    return ValueBatch(
        features=torch.cat([torch.as_tensor(estimates.features[t]) for t in rows]).to(device),
        returns=send(estimates.returns),
        values=send(estimates.values),
    )


def value_batches(
    rows: Sequence[Transition], estimates: Estimates, device: torch.device | str = "cpu"
) -> Iterator[tuple[ValueBatch, float]]:
    """Packs turns as ``pack_values`` does, in pieces of at most ``VALUE_ROWS`` decision points (but at least one turn).

    Yields:
        A piece, and its share of all decision points.
    """
    sizes = [len(estimates.returns[t]) for t in rows]
    first = size = 0
    for i, count in enumerate(sizes):
        size += count
        if i + 1 == len(rows) or size + sizes[i + 1] > VALUE_ROWS:
            yield pack_values(rows[first : i + 1], estimates, device), size / sum(sizes)
            first, size = i + 1, 0


def _length(t: Transition) -> int:
    return len(t.request.prompt_ids) + len(t.reply.action_ids)


def _check(t: Transition, estimates: Estimates, policy: str, level: Level) -> None:
    where = f"turn {t.index} of {t.agent}"
    if t.policy != policy:
        raise BatchError(f"{where} belongs to policy '{t.policy}', the batch to '{policy}'; pack one policy at a time.")
    if not t.request.prompt_ids:
        raise BatchError(f"{where} has no prompt: its first token has nothing to be predicted from.")
    for whose, logprobs in (("sampled", t.reply.logprobs), ("recomputed", estimates.behaviour(t))):
        if len(logprobs) != len(t.reply.action_ids):
            count = len(t.reply.action_ids)
            raise BatchError(f"{where} has {len(logprobs)} {whose} log-probs for {count} tokens; expected one each.")
    expected = decision_points(t, level)
    entries = len(estimates.advantages[t]) if t in estimates.advantages else expected
    if entries != expected:
        raise BatchError(f"{where} has {entries} advantages at {level} level; expected {expected}.")
