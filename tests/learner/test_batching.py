"""Packing: what was sampled is what is trained, whatever stands next to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from helpers.teams import Tabular, episode, put, say
from marft_algos import batching as B
from marft_algos.types import Estimates, StopReason, Transition


def turns(lengths: list[int], policy: str = "p") -> Sequence[Transition]:
    """Turns of one policy with these numbers of tokens."""
    trajectory = episode([["a"]] * len(lengths), tokens=lengths, policies={"a": policy})
    Tabular([policy]).play([trajectory])
    return trajectory.transitions


def estimated(rows: Sequence[Transition]) -> Estimates:
    """An advantage for every token, all of them different."""
    return Estimates(
        advantages={t: np.arange(1, len(t.reply.action_ids) + 1, dtype=np.float32) + 10 * t.index for t in rows}
    )


def test_rows_hold_the_tokens_and_numbers_of_their_turns() -> None:
    rows = turns([3, 1, 5])
    estimates = estimated(rows)
    batch = B.pack(rows, estimates, "token")
    assert batch.input_ids.shape == (
        3,
        8,
    ) and batch.old_logprobs.shape == batch.advantages.shape == batch.mask.shape == (3, 7)
    for i, t in enumerate(rows):
        ids = [*t.request.prompt_ids, *t.reply.action_ids]
        assert batch.input_ids[i][batch.attention_mask[i]].tolist() == ids
        assert batch.input_ids[i][batch.action_mask[i]].tolist() == t.reply.action_ids
        assert batch.old_logprobs[i][batch.mask[i]].tolist() == t.reply.logprobs.tolist()
        assert batch.advantages[i][batch.mask[i]].tolist() == estimates.advantages[t].tolist()
        assert batch.old_logprobs[i][~batch.mask[i]].abs().sum() == 0
    assert batch.n_tokens.tolist() == [3, 1, 5] and batch.n_words.tolist() == [3, 1, 5]
    assert batch.old_logprobs.dtype == batch.advantages.dtype == torch.float32
    assert [x.tolist() for x in B.unpack(batch.old_logprobs, batch)] == [t.reply.logprobs.tolist() for t in rows]


def test_a_pad_inside_an_action() -> None:
    """The padding id is a token like any other when it was sampled."""
    row, longer = turns([4, 6])
    say(row, action_ids=[B.PAD_ID, 3, B.PAD_ID, B.PAD_ID])
    policies = Tabular(["p"])
    policies.score(row)
    batch = B.pack([row, longer], estimated([row, longer]), "token")
    logprobs, _ = policies.logprobs("p", batch.input_ids, batch.action_mask, batch.temperature)
    assert batch.n_tokens.tolist() == [4, 6]
    assert torch.allclose(logprobs, batch.old_logprobs, atol=1e-6)
    assert [len(x) for x in B.unpack(logprobs, batch)] == [4, 6]


def test_an_empty_action() -> None:
    full, empty = turns([3, 2])
    say(empty, action_ids=[], logprobs=np.zeros(0, np.float32), text="")
    levels: tuple[B.Level, ...] = ("action", "token")
    for level in levels:
        ones = np.ones(1 if level == "action" else 3, np.float32)
        estimates = Estimates(advantages={empty: np.ones(1, np.float32), full: ones})
        batch = B.pack([empty, full], estimates, level)
        assert batch.n_tokens.tolist() == [0, 3] and not batch.mask[0].any()
        assert torch.isfinite(batch.mean(batch.old_logprobs))
        assert torch.isfinite(B.pack([empty], estimates, level).mean(torch.zeros(1, 2)))
    assert not B.has_loss(empty) and B.has_loss(full)


def test_frozen_failed_and_foreign_turns_have_no_rows() -> None:
    trajectory = episode([["a"], ["b"], ["c"], ["d"]], tokens=[2] * 4)
    put(trajectory.transitions[1], trainable=False)
    say(trajectory.transitions[2], stop_reason=StopReason.ERROR)
    rows, _ = B.learnable([trajectory], ["a", "b", "c", "nobody"])
    assert {p: [t.index for t in ts] for p, ts in rows.items()} == {"a": [0], "b": [], "c": [], "nobody": []}


def test_action_level_has_one_advantage_a_row() -> None:
    rows = turns([3, 1])
    estimates = Estimates(advantages={t: np.array([t.index + 0.5], np.float32) for t in rows})
    assert B.pack(rows, estimates, "action").advantages.tolist() == [0.5, 1.5]


def test_micro_batches_sort_by_length_and_keep_the_budget() -> None:
    rows = turns([1, 9, 3, 20, 4, 2, 2])
    pieces = B.micro_batches(rows, 30)
    assert sorted(t.index for piece in pieces for t in piece) == list(range(7))
    for piece in pieces:
        lengths = [len(t.request.prompt_ids) + len(t.reply.action_ids) for t in piece]
        assert len(piece) == 1 or len(piece) * max(lengths) <= 30
    assert [len(t.reply.action_ids) for piece in pieces for t in piece] == [20, 9, 4, 3, 2, 2, 1]
    assert len(B.micro_batches(rows, 1)) == 7 and len(B.micro_batches(rows, 10**6)) == 1


def test_more_pieces_than_the_budget_asks_for_are_hardly_more_than_were_wanted() -> None:
    rows = turns([5] * 8)
    assert [len(B.micro_batches(rows, 10**6, least=n)) for n in (1, 2, 3, 8, 99)] == [1, 2, 3, 8, 8]


def test_what_rows_share_counts_once_up_to_where_their_replies_are_read() -> None:
    rows = turns([3, 3])
    for row, ids in zip(rows, ([1, 2, 3], [1, 5, 4]), strict=True):
        put(row, prompt_ids=[7] * 10)
        say(row, action_ids=ids)
    # Nine tokens once; of each row the tenth, behind which its reply begins, and all of the reply but its last.
    assert [len(B.micro_batches(rows, budget, shared=True)) for budget in (15, 14)] == [1, 2]


def test_pieces_of_a_minibatch_add_up_to_its_mean() -> None:
    rows = turns([1, 9, 3, 20, 4])
    estimates = estimated(rows)
    whole = B.pack(rows, estimates, "token")
    size = B.totals(rows, estimates)
    pieces = [B.pack(piece, estimates, "token", minibatch=size) for piece in B.micro_batches(rows, 24)]
    assert len(pieces) > 1
    assert sum(p.mean(p.old_logprobs) for p in pieces).item() == pytest.approx(
        whole.mean(whole.old_logprobs).item(), rel=1e-5
    )
    assert sum(p.mean(p.n_tokens.float()) for p in pieces).item() == pytest.approx(37 / 5)


def test_minibatches_are_a_seeded_partition() -> None:
    rows = turns([2] * 10)

    def split(seed: int, n: int = 3) -> list[list[int]]:
        return [[t.index for t in part] for part in B.minibatches(rows, n, np.random.default_rng(seed))]

    assert split(0) == split(0) != split(1)
    assert sorted(i for part in split(0) for i in part) == list(range(10)) and {len(p) for p in split(0)} == {3, 4}
    assert len(split(0, 99)) == 10


def test_value_batches_lay_decision_points_end_to_end() -> None:
    rows = turns([2, 3])
    estimates = Estimates()
    for t in rows:
        n = len(t.reply.action_ids)
        estimates.features[t] = torch.full((n, 4), float(t.index))
        estimates.returns[t], estimates.values[t] = np.arange(n) + 0.5, np.zeros(n, np.float32)
    batch = B.pack_values(rows, estimates)
    assert batch.features[:, 0].tolist() == [0, 0, 1, 1, 1]
    assert batch.returns.tolist() == [0.5, 1.5, 0.5, 1.5, 2.5] and batch.returns.dtype == torch.float32


def test_value_batches_come_in_pieces_of_whole_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = turns([2, 3, 1, 9, 2])
    estimates = Estimates()
    for t in rows:
        n = len(t.reply.action_ids)
        estimates.features[t] = torch.full((n, 4), float(t.index))
        estimates.returns[t], estimates.values[t] = np.arange(n) + 0.5, np.zeros(n, np.float32)
    ((whole, share),) = B.value_batches(rows, estimates)
    assert share == 1.0 and torch.equal(whole.features, B.pack_values(rows, estimates).features)
    monkeypatch.setattr(B, "VALUE_ROWS", 6)
    pieces = list(B.value_batches(rows, estimates))
    assert [(len(piece.returns), share) for piece, share in pieces] == [(6, 6 / 17), (9, 9 / 17), (2, 2 / 17)]
    assert torch.equal(torch.cat([piece.returns for piece, _ in pieces]), whole.returns)


def test_learner_logprobs_win_over_the_samplers() -> None:
    (row,) = turns([2])
    estimates = Estimates(old_logprobs={row: np.array([-1.0, -2.0], np.float32)})
    assert B.pack([row], estimates, "token").old_logprobs[0].tolist()[-2:] == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, _: put(t, prompt_ids=[]), "no prompt"),
        (lambda t, _: say(t, logprobs=np.zeros(1, np.float32)), "1 sampled log-probs for 3 tokens"),
        (
            lambda t, estimates: estimates.old_logprobs.update({t: np.zeros(2, np.float32)}),
            "2 recomputed log-probs for 3",
        ),
        (lambda t, estimates: estimates.advantages.update({t: np.zeros(0, np.float32)}), "0 advantages"),
        (lambda t, estimates: estimates.advantages.update({t: np.zeros(9, np.float32)}), "expected 3"),
        (lambda t, _: put(t, policy="q"), "one policy at a time"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: Callable[[Transition, Estimates], None], message: str) -> None:
    rows = turns([2, 3])
    estimates = estimated(rows)
    change(rows[1], estimates)
    with pytest.raises(B.BatchError, match=message):
        B.pack(rows, estimates, "token")


def test_a_mean_over_episodes_wants_to_know_how_many_were_played() -> None:
    """Rows alone do not say it: episodes in which the policy never acted count, too."""
    rows, estimates = turns([3, 1]), Estimates()
    x = torch.ones(2)
    with pytest.raises(B.BatchError, match=r"how many episodes.*minibatch=totals\(rows, estimates, episodes\)"):
        B.pack(rows, estimates, "token").episode_sum(x)
    with pytest.raises(B.BatchError, match="how many episodes"):
        B.pack(rows, estimates, "token", minibatch=B.totals(rows, estimates)).episode_sum(x)
    assert B.pack(rows, estimates, "token", minibatch=B.totals(rows, estimates, 4)).episode_sum(x) == 0.5
