"""MARFT and the update step, on tables instead of language models."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from helpers.teams import Heads, Tabular, episode, put, random_team, say
from marft_algos import batching
from marft_algos import functional as F
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.batching import has_loss, pack
from marft_algos.learner.learner import Learner, UpdateError
from marft_algos.types import Estimates, StopReason, Trajectory
from marft_envs.errors import ConfigError


def team(n: int = 12, layers: Any = (("a",), ("b",)), seed: int = 0, **kw: Any) -> list[Trajectory]:
    return [
        episode(layers, seed=seed, number=i, rewards=[0.0] * (len(layers) - 1) + [float(i % 3 == 0)], **kw)
        for i in range(n)
    ]


def learner(policies: Tabular, critics: Heads | None = None, **config: Any) -> Learner:
    config.setdefault("critic", "own" if critics else "none")
    return Learner(MARFT(MARFTConfig(**config)), policies, critics)


def tables(policies: Tabular) -> dict[str, torch.Tensor]:
    return {p: t.detach().clone() for p, t in policies.tables.items()}


@pytest.mark.parametrize("level", ["action", "token"])
def test_one_step_follows_the_policy_gradient(level: str) -> None:
    """At ratio 1 the gradient is that of −mean(log π · A): written out here without any batch."""
    policies, data = Tabular(["a", "b"]), team()
    policies.play(data)
    before = tables(policies)
    trainer = learner(policies, level=level, norm="sum", lr=1e-3, max_grad_norm=None)
    trainer.update(data, 0)
    turns, advantages = [t for d in data for t in d.transitions], trainer.estimates.advantages
    returns = np.concatenate(
        [np.repeat(d.score, 1 if level == "action" else len(t.reply.action_ids)) for d in data for t in d.transitions]
    )
    white = (returns - returns.mean()) / returns.std()
    assert np.concatenate([advantages[t] for t in turns]) == pytest.approx(white, abs=1e-6)
    for p in ("a", "b"):
        table, loss, count = before[p].clone().requires_grad_(), 0.0, 0
        for t in (t for t in turns if t.policy == p):
            ids = torch.tensor(t.request.prompt_ids[-1:] + t.reply.action_ids)
            logp = torch.log_softmax(table, -1)[ids[:-1], ids[1:]]
            loss = loss - (logp * torch.from_numpy(np.broadcast_to(advantages[t], len(logp)).copy())).sum()
            count += 1 if level == "action" else len(logp)
        (loss / count).backward()
        optimizer = torch.optim.Adam([table], lr=1e-3, eps=1e-5)
        optimizer.step()
        assert torch.allclose(policies.tables[p], table, atol=1e-6)


@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("norm", ["sum", "token", "word"])
def test_micro_batches_do_not_change_the_update(level: str, norm: str) -> None:
    results = []
    for budget in (10**6, 20):
        policies, data = Tabular(["a", "b"]), team()
        policies.play(data)
        stats = learner(
            policies,
            Heads(["a", "b"]),
            level=level,
            norm=norm,
            lr=0.05,
            epochs=2,
            minibatches=2,
            entropy_coef=0.01,
            micro_tokens=budget,
        ).update(data, 0)
        results.append((tables(policies), stats, policies.forwards))
    assert results[1][2] > results[0][2]
    for p in ("a", "b"):
        assert torch.allclose(results[0][0][p], results[1][0][p], atol=1e-4)
    for key, value in results[0][1].items():
        assert results[1][1][key] == pytest.approx(value, abs=1e-4), key


def test_pieces_of_features_do_not_change_the_value_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for rows in (1 << 16, 5):
        monkeypatch.setattr(batching, "VALUE_ROWS", rows)
        policies, heads, data = Tabular(["a", "b"]), Heads(["a", "b"]), team()
        policies.play(data)
        stats = learner(
            policies, heads, level="token", critic_lr=0.1, critic_epochs=2, critic_minibatches=2, value_norm=0.9
        ).update(data, 0)
        results.append((heads.weights, stats))
    for p in ("a", "b"):
        assert results[0][0][p].abs().sum() > 0
        assert torch.allclose(results[0][0][p], results[1][0][p], atol=1e-5)
        key = f"policy/{p}/value_loss"
        assert results[1][1][key] == pytest.approx(results[0][1][key], rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({"anneal": 10}, [0.1, 0.055, 0.01, 0.01]),
        ({"lr_warmup": 8}, [0.0125, 0.075, 0.1, 0.1]),
        ({"lr_warmup": 8, "anneal": 10}, [0.0125, 0.04125, 0.01, 0.01]),
    ],
)
def test_the_learning_rate_rises_and_falls_and_a_resumed_run_goes_on_there(
    settings: dict[str, int], rates: list[float]
) -> None:
    """Adam's first step has the size of the rate (for gradients far above eps), whatever the gradient's."""
    steps = []
    for iteration in (0, 5, 10, 50):
        policies, data = Tabular(["a", "b"]), team()
        policies.play(data)
        before = tables(policies)
        learner(policies, lr=0.1, adam_eps=1e-12, max_grad_norm=None, **settings).update(data, iteration)
        steps.append(float((policies.tables["a"] - before["a"]).abs().max()))
    assert steps == pytest.approx(rates, rel=1e-3)


@pytest.mark.parametrize("level", ["action", "token"])
def test_the_reference_pulls_back_by_the_gradient_of_k3(level: str) -> None:
    """With equal scores everywhere only the reference acts: mean over tokens of e^d − 1 − d, d = log π_ref − log π."""
    policies, data = Tabular(["a", "b"]), team()
    with torch.no_grad():
        policies.tables["a"] += torch.randn(policies.tables["a"].shape, generator=torch.Generator().manual_seed(5))
    for d in data:
        d.layers[-1].team_reward = 1.0
    policies.play(data)
    before = tables(policies)
    stats = learner(policies, level=level, lr=1e-3, max_grad_norm=None, kl_coef=0.7).update(data, 0)
    table, terms = before["a"].clone().requires_grad_(), []
    for t in (t for d in data for t in d.transitions if t.policy == "a"):
        ids = torch.tensor(t.request.prompt_ids[-1:] + t.reply.action_ids)
        new, ref = (torch.log_softmax(x, -1)[ids[:-1], ids[1:]] for x in (table, policies.reference["a"]))
        terms.append((ref - new).exp() - 1 - (ref - new))
    drift = torch.cat(terms).mean()
    (0.7 * drift).backward()
    torch.optim.Adam([table], lr=1e-3, eps=1e-5).step()
    assert torch.allclose(policies.tables["a"], table, atol=1e-6)
    assert torch.equal(policies.tables["b"], before["b"])  # it stands where it started: no pull
    assert stats["policy/a/kl_reference"] == pytest.approx(float(drift), abs=1e-5)
    assert stats["policy/b/kl_reference"] == 0.0


@pytest.mark.parametrize("level", ["action", "token"])
def test_the_team_learns_what_pays(level: str) -> None:
    """Reward: the share of tokens that are 0. Both agents of the chain must come to say it."""
    policies = Tabular(["a", "b"])
    trainer = learner(policies, Heads(["a", "b"]), level=level, norm="sum" if level == "action" else "token", lr=0.1)
    scores = []
    for iteration in range(40):
        data = []
        for number in range(32):
            generator = torch.Generator().manual_seed(1000 * iteration + number)
            d = episode([["a"], ["b"]], seed=iteration, number=number, tokens=[3, 3])
            for t in d.transitions:
                last, ids = t.request.prompt_ids[-1], []
                for _ in range(3):
                    last = int(
                        torch.multinomial(torch.softmax(policies.tables[t.policy][last], -1), 1, generator=generator)
                    )
                    ids.append(last)
                say(t, action_ids=ids)
            d.layers[-1].team_reward = sum(i == 0 for t in d.transitions for i in t.reply.action_ids) / 6
            data.append(d)
        policies.play(data)
        trainer.update(data, iteration)
        scores.append(np.mean([d.score for d in data]))
    assert scores[0] < 0.3 and scores[-1] > 0.8, scores


def test_ratio_is_1_on_the_first_minibatch() -> None:
    policies, data = Tabular(["a", "b"]), team()
    policies.play(data)
    stats = learner(policies).update(data, 0)
    assert stats["policy/a/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert stats["policy/a/kl"] == pytest.approx(0.0, abs=1e-6) and stats["policy/a/sampler_gap"] < 1e-5
    for t in data[0].transitions + data[1].transitions:
        say(t, logprobs=t.reply.logprobs - 0.5)
    with pytest.raises(UpdateError, match="ratio should be 1"):
        learner(policies).update(data, 0)


def test_what_is_sampled_is_what_is_scored() -> None:
    """Sampled at temperature .5: scored at .5 the ratio is 1, scored at 1 the run stops."""
    policies, data = Tabular(["a", "b"]), team()
    for t in (t for d in data for t in d.transitions):
        put(t, temperature=0.5)
    policies.play(data)
    assert learner(policies).update(data, 0)["policy/b/sampler_gap"] < 1e-5
    policies = Tabular(["a", "b"])
    for t in (t for d in data for t in d.transitions):
        put(t, temperature=1.0)
    with pytest.raises(UpdateError, match="temperature"):
        learner(policies).update(data, 0)


def test_recomputed_logprobs_replace_the_samplers_in_the_ratio() -> None:
    policies, data = Tabular(["a", "b"]), team()
    policies.play(data)
    for t in (t for d in data for t in d.transitions):
        say(t, logprobs=t.reply.logprobs + np.float32(0.01))
    stats = learner(policies, old_logprobs="learner").update(data, 0)
    assert stats["policy/a/ratio_max"] == pytest.approx(1.0, abs=1e-6)
    assert stats["policy/a/sampler_gap"] == pytest.approx(0.01, abs=1e-4)


def test_a_trained_policy_changes_and_a_frozen_one_does_not() -> None:
    policies, data = Tabular(["a", "b"], frozen=["b"]), team()
    policies.play(data)
    before = tables(policies)
    trainer = learner(policies, Heads(["a", "b"]), lr=0.01)
    stats, found = trainer.update(data, 0), trainer.estimates
    assert not torch.equal(policies.tables["a"], before["a"]) and torch.equal(policies.tables["b"], before["b"])
    assert "policy/b/loss" not in stats
    frozen = data[0].transitions[1]
    sizes = len(found.values[frozen]), len(found.returns[frozen])
    assert sizes == (1, 1), "a frozen agent's turn is a node with one value"
    assert found.returns[data[0].transitions[0]] == pytest.approx(data[0].score)


@pytest.mark.parametrize("level", ["action", "token"])
def test_hosted_empty_and_failed_turns_are_nodes_without_a_loss(level: str) -> None:
    policies, data = Tabular(["a", "b"]), team(layers=(("a",), ("h",), ("b",)))
    for d in data:
        a, hosted, b = d.transitions
        for t in (a, b):
            policies.score(t)
        put(hosted, trainable=False, prompt_ids=[])
        say(hosted, action_ids=[], logprobs=np.zeros(0, np.float32))
    failed, empty = data[0].transitions[2], data[1].transitions[0]
    say(failed, stop_reason=StopReason.ERROR)
    for t in (failed, empty):
        say(t, action_ids=[], logprobs=np.zeros(0, np.float32), text="")
    trainer = learner(policies, Heads(["a", "b"]), level=level, norm="word")
    stats, returns = trainer.update(data, 0), trainer.estimates.returns
    assert stats["policy/a/rows"] == 11 and stats["policy/b/rows"] == 11
    assert all(math.isfinite(v) for v in stats.values())
    for d in data:
        assert [len(returns[t]) for t in d.transitions if not has_loss(t)] == [1] * sum(
            not has_loss(t) for t in d.transitions
        )
        assert all(returns[t] == pytest.approx(d.score) for t in d.transitions)


def test_an_action_without_words() -> None:
    policies, data = Tabular(["a", "b"]), team()
    policies.play(data)
    for d in data:
        say(d.transitions[0], text="   ")
    stats = learner(policies, level="action", norm="word").update(data, 0)
    assert all(math.isfinite(v) for v in stats.values())


def test_a_policy_without_rows_takes_no_step() -> None:
    policies, data = Tabular(["a", "b", "idle"]), team()
    policies.play(data)
    trainer = learner(policies, Heads(["a", "b", "idle"]))
    before = tables(policies)
    stats = trainer.update(data, 0)
    assert torch.equal(policies.tables["idle"], before["idle"]) and stats["policy/idle/steps"] == 0
    assert not trainer.optimizers["idle"].adam.state and trainer.optimizers["a"].adam.state


def test_agent_by_agent_cycles_over_policies() -> None:
    policies = Tabular(["a", "b", "c"])
    trainer = learner(policies, update="agent", interval=2, value_warmup=1, critic="none")
    trained = []
    for iteration in range(9):
        data = policies.play(team(layers=(("a",), ("b",), ("c",)), seed=iteration))
        before = tables(policies)
        trainer.update(data, iteration)
        trained.append("".join(p for p in before if not torch.equal(before[p], policies.tables[p])))
    assert trained == ["", "a", "a", "b", "b", "c", "c", "a", "a"]


def test_value_warmup_trains_only_the_heads() -> None:
    policies, heads = Tabular(["a", "b"]), Heads(["a", "b"])
    trainer = learner(policies, heads, value_warmup=1, critic_lr=0.1)
    before = tables(policies)
    stats = trainer.update(policies.play(team()), 0)
    assert all(torch.equal(before[p], policies.tables[p]) for p in before) and "policy/a/loss" not in stats
    assert heads.weights["a"].detach().abs().max() > 0 and "policy/a/value_loss" in stats
    trainer.update(policies.play(team(seed=1)), 1)
    assert not torch.equal(before["a"], policies.tables["a"])


def test_kl_stop_ends_the_remaining_minibatches() -> None:
    """The minibatch that is over the limit makes no step; the count of steps says so."""

    def run(limit: float | None, epochs: int) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        policies = Tabular(["a", "b"])
        data = policies.play(team())
        stats = learner(policies, lr=0.1, epochs=epochs, minibatches=2, kl_stop=limit).update(data, 0)
        return stats, tables(policies)

    free, moved = run(None, 3)
    stopped, after = run(1e-6, 3)
    sooner, same = run(1e-6, 1)
    assert free["policy/a/steps"] == 6 and free["policy/a/kl_stopped"] == 0
    assert stopped["policy/a/steps"] == sooner["policy/a/steps"] == 1 and stopped["policy/a/kl_stopped"] == 1
    assert torch.equal(after["a"], same["a"]) and not torch.equal(after["a"], moved["a"])


def test_the_effective_sample_size_is_that_of_the_ratios_before_each_step() -> None:
    """Two steps on one minibatch: 1 before the first, and before the second what the moved policy's ratios give."""
    policies, data = Tabular(["a"]), team(layers=(("a",),))
    policies.play(data)
    twin = copy.deepcopy(policies)
    moved, again = copy.deepcopy(data), learner(twin, lr=0.3, micro_tokens=8)
    assert again.update(moved, 0)["policy/a/ess"] == pytest.approx(1.0, abs=1e-6)
    turns = [t for d in data for t in d.transitions]
    rescored = Learner(MARFT(MARFTConfig(critic="none")), twin).rescore(turns)
    rho = np.exp(np.concatenate(rescored) - np.concatenate([t.reply.logprobs for t in turns]))
    expected = (1 + rho.sum() ** 2 / (len(rho) * np.square(rho).sum())) / 2
    assert expected < 0.99
    both = learner(policies, lr=0.3, micro_tokens=8, epochs=2).update(data, 0)
    assert both["policy/a/ess"] == pytest.approx(expected, abs=1e-4)


def test_entropy_coefficient_flattens_the_distribution() -> None:
    def run(coefficient: float) -> float:
        policies = Tabular(["a", "b"])
        data = policies.play([episode([["a"], ["b"]], number=i, rewards=[0.0, 0.0]) for i in range(16)])
        learner(policies, lr=0.05, epochs=10, entropy_coef=coefficient).update(data, 0)
        return float(F.entropy(policies.tables["a"].detach()).mean())

    start = float(F.entropy(Tabular(["a", "b"]).tables["a"].detach()).mean())
    assert run(0.0) == pytest.approx(start) and run(1.0) > start + 0.05


def test_clip_and_asymmetric_clip_change_the_loss_as_written() -> None:
    policies, data = Tabular(["a"]), team(layers=(("a",),))
    policies.play(data)
    for config, high in (({"clip": 0.1}, 0.1), ({"clip": 0.1, "clip_high": 0.3}, 0.3)):
        algo = MARFT(MARFTConfig(critic="none", **config))
        algo.credit(data, estimates := Estimates())
        batch = pack([d.transitions[0] for d in data], estimates, "token")
        shifted = torch.where(batch.mask, batch.old_logprobs + 0.2, 0.0)
        loss, stats = algo.surrogate(shifted, batch)
        a, rho = batch.advantages[batch.mask], math.exp(0.2)
        expected = -torch.where(a > 0, min(rho, 1 + high) * a, rho * a).mean()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert stats["clip_share"] == pytest.approx((a > 0).float().mean().item() if rho > 1 + high else 0.0)


def test_whitening_is_global_per_policy_or_off() -> None:
    def advantages(mode: str) -> dict[str, np.ndarray]:
        data = team(n=30)
        found = Estimates(values={d.transitions[1]: np.full(1, 0.5, np.float32) for d in data})
        MARFT(MARFTConfig(whiten=mode, level="action", critic="none")).credit(data, found)
        turns = [t for d in data for t in d.transitions]
        return {p: np.concatenate([found.advantages[t] for t in turns if t.policy == p]) for p in "ab"}

    both, own, raw = advantages("global"), advantages("policy"), advantages("off")
    together = np.concatenate([both["a"], both["b"]])
    assert together.mean() == pytest.approx(0, abs=1e-6) and together.std() == pytest.approx(1, rel=1e-5)
    assert abs(both["a"].mean()) > 0.1
    for p in "ab":
        assert own[p].mean() == pytest.approx(0, abs=1e-6) and own[p].std() == pytest.approx(1, rel=1e-5)
    assert set(raw["a"]) == {0.0, 1.0} and set(raw["b"]) == {-0.5, 0.5}


@pytest.mark.parametrize("whiten", ["global", "policy"])
@pytest.mark.parametrize(
    ("level", "norm"), [("token", "sum"), ("action", "sum"), ("action", "token"), ("action", "word")]
)
def test_the_optimal_baseline_weighs_by_the_length_of_gradients(level: str, norm: str, whiten: str) -> None:
    """Advantages are whitened ones that were moved, so that those of one policy, weighted, sum to 0."""
    data = team(n=30)
    Tabular(["a", "b"]).play(data)
    turns = [t for d in data for t in d.transitions]
    for t in turns:
        t.turn.text = "word " * (1 + t.reply.action_ids[0] % 3)
    config = {"level": level, "norm": norm, "critic": "none", "whiten": whiten}
    plain, found = Estimates(), Estimates()
    MARFT(MARFTConfig(**config)).credit(data, plain)
    MARFT(MARFTConfig(**config, baseline="optimal")).credit(data, found)
    for group in ("a", "b") if whiten == "policy" else ("ab",):
        sums = 0.0
        moved = set()
        for t in (t for t in turns if t.policy in group):
            weights = (1 - np.exp(t.reply.logprobs)) ** 2
            if level == "action":
                size = {"sum": 1, "token": len(weights), "word": len(t.turn.text.split())}[norm]
                weights = np.array([weights.sum() / size**2])
            sums += float((weights * found.advantages[t]).sum())
            moved |= {round(float(x), 5) for x in found.advantages[t] - plain.advantages[t]}
        assert sums == pytest.approx(0, abs=1e-4)
        assert len(moved) == 1 and moved != {0.0}


def test_the_optimal_baseline_has_less_variance_than_the_mean_where_failures_are_unlikely_texts() -> None:
    """Measured on gradients: the centre by score norms is nearer to the best one than the mean is."""
    policies, layers = Tabular(["a", "b"], seed=3), (("a",), ("b",))
    data = [episode(layers, number=i) for i in range(400)]
    policies.play(data)
    surprise = [-d.transitions[0].reply.logprobs.sum() for d in data]
    paid = surprise < np.quantile(surprise, 0.6)
    data = [episode(layers, number=i, rewards=[0.0, float(ok)]) for i, ok in enumerate(paid)]
    policies.play(data)
    turns = [d.transitions[0] for d in data]
    lengths = []
    for t in turns:
        table = policies.tables["a"].detach().clone().requires_grad_()
        ids = torch.tensor(t.request.prompt_ids[-1:] + t.reply.action_ids)
        torch.log_softmax(table, -1)[ids[:-1], ids[1:]].sum().backward()
        lengths.append(float(table.grad.square().sum()))

    def variance(baseline: str) -> float:
        algorithm = MARFT(MARFTConfig(level="action", norm="sum", critic="none", whiten="policy", baseline=baseline))
        algorithm.credit(data, found := Estimates())
        return float(np.mean([float(found.advantages[t][0]) ** 2 * w for t, w in zip(turns, lengths, strict=True)]))

    assert variance("optimal") < 0.9 * variance("mean")


def test_a_baseline_without_whitening_is_refused() -> None:
    with pytest.raises(ConfigError, match="whiten='off' subtracts nothing"):
        MARFTConfig(whiten="off", baseline="optimal")


def test_targets_are_never_whitened_and_frozen_turns_do_not_count() -> None:
    data = team(n=9)
    for d in data:
        put(d.transitions[1], trainable=False)
    MARFT(MARFTConfig(level="action", critic="none")).credit(data, found := Estimates())
    own = np.concatenate([found.advantages[d.transitions[0]] for d in data])
    assert own.mean() == pytest.approx(0, abs=1e-6) and own.std() == pytest.approx(1, rel=1e-5)
    assert {float(found.returns[t][0]) for d in data for t in d.transitions} == {0.0, 1.0}


@pytest.mark.parametrize("level", ["action", "token"])
@pytest.mark.parametrize("seed", range(5))
def test_random_teams_with_shared_policies_run(level: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sharing = {"a0": "x", "a1": "x", "a2": "y", "a3": "z"}
    data = [episode(random_team(rng), seed=seed, number=i, policies=sharing) for i in range(8)]
    policies, heads = Tabular(["x", "y", "z"], frozen=["z"]), Heads(["x", "y", "z"])
    policies.play(data)
    stats = learner(
        policies,
        heads,
        level=level,
        lambda_turn=0.9,
        lambda_tok=0.95,
        critic="team",
        epochs=2,
        minibatches=3,
        whiten="policy",
        critic_epochs=2,
    ).update(data, 0)
    assert all(math.isfinite(v) for v in stats.values())
    assert {view for view, _ in heads.seen} == {"team"}


def test_own_view_with_lambda_below_one_needs_a_sound_bootstrap() -> None:
    policies, heads = Tabular(["a", "b"]), Heads(["a", "b"])
    data = team()
    policies.play(data)
    learner(policies, heads, lambda_turn=0.9).update(data, 0)
    for d in data:
        d.transitions[1].turn.sees = ()
    with pytest.raises(ConfigError, match="critic='team'"):
        learner(policies, heads, lambda_turn=0.9).update(policies.play(data), 0)
    learner(policies, heads, lambda_turn=1.0).update(policies.play(data), 0)


def test_truncation_bootstraps_from_the_layer_that_would_have_run() -> None:
    policies, heads = Tabular(["a", "b"]), Heads(["a", "b"])
    with torch.no_grad():
        heads.weights["a"] += 0.25
        heads.weights["b"] += 0.75
    (cut,) = team(n=1)
    cut.episode.terminated, cut.episode.truncated, cut.layers[-1].team_reward = False, True, 0.0
    planned = copy.deepcopy(team(n=1, layers=(("a", "b"),))[0].transitions)
    for t in planned:
        say(t, action_ids=[], logprobs=np.zeros(0, np.float32))
    put(cut, planned=planned)
    policies.play([cut])
    trainer = learner(policies, heads, gamma_turn=0.5)
    trainer.update([cut], 0)
    assert trainer.estimates.bootstraps == {cut: 0.5}
    assert trainer.estimates.returns[cut.transitions[1]][-1] == 0.25
    (ended,) = team(n=1)
    ended.layers[-1].team_reward = 0.0
    found = Estimates(bootstraps={ended: 9.0})
    MARFT(MARFTConfig(critic="none")).credit([ended], found)
    assert found.returns[ended.transitions[0]][0] == 0.0, "a terminated episode never bootstraps"
    put(ended, planned=planned)
    again = learner(policies, heads)
    again.update(policies.play([ended]), 0)
    assert not again.estimates.bootstraps and again.estimates.returns[ended.transitions[0]][0] == 0.0


def test_the_critic_learns_the_returns() -> None:
    policies, heads = Tabular(["a", "b"]), Heads(["a", "b"])
    data = [episode([["a"], ["b"]], number=i, rewards=[0.0, 1.0 + 0.01 * i]) for i in range(16)]
    trainer = learner(policies, heads, critic_lr=0.05, critic_epochs=200, value_clip=None, huber_delta=1.0, lr=0.0)
    first = trainer.update(policies.play(data), 0)
    later = trainer.update(policies.play(data), 1)
    assert later["policy/a/value_loss"] < 0.1 * first["policy/a/value_loss"]
    values = trainer.estimates.values
    assert np.mean([values[t].mean() for d in data for t in d.transitions]) == pytest.approx(1.07, abs=0.1)


def test_updates_are_reproducible_and_survive_a_restart() -> None:
    def fresh() -> tuple[Tabular, Heads, Learner]:
        policies, heads = Tabular(["a", "b"]), Heads(["a", "b"])
        return policies, heads, learner(policies, heads, lr=0.02, epochs=2, minibatches=3)

    def go(policies: Tabular, trainer: Learner, iterations: range) -> list[dict[str, float]]:
        return [trainer.update(policies.play(team(seed=i)), i) for i in iterations]

    policies, heads, trainer = fresh()
    whole = go(policies, trainer, range(4))
    other, other_heads, second = fresh()
    go(other, second, range(2))
    state = copy.deepcopy(second.state_dict())
    third, third_heads, resumed = fresh()
    for p in ("a", "b"):
        third.tables[p].data.copy_(other.tables[p].data)
        third_heads.weights[p].data.copy_(other_heads.weights[p].data)
    resumed.load_state_dict(state)
    assert go(third, resumed, range(2, 4)) == whole[2:]
    assert all(torch.equal(third.tables[p], policies.tables[p]) for p in ("a", "b"))
    assert all(torch.equal(third_heads.weights[p], heads.weights[p]) for p in ("a", "b"))
    with pytest.raises(ConfigError, match="resume with the settings"):
        Learner(MARFT(), Tabular(["a"]), None).load_state_dict(state)


def test_numbers_that_blow_up_stop_the_run() -> None:
    policies, data = Tabular(["a", "b"]), team()
    policies.play(data)
    data[0].layers[-1].team_reward = math.inf
    with pytest.raises(UpdateError, match="policy 'a'"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner(policies, whiten="off").update(data, 0)


def test_every_epoch_splits_a_batch_anew() -> None:
    """Each pass has every turn once, in minibatches of its own; so have policies and iterations."""
    policies, data = Tabular(["a", "b"]), team(12)
    policies.play(data)
    trainer = learner(policies, lr=1e-9, epochs=3, minibatches=3)
    parts: dict[tuple[int, str], list[frozenset[tuple[int, int]]]] = {}
    numbers = {t: d.number for d in data for t in d.transitions}

    def note(part: Any, *others: Any) -> dict[str, float]:
        split = parts.setdefault((iteration, part[0].policy), [])
        split.append(frozenset(numbers[t] for t in part))
        return {}

    trainer.algorithm.before_step = note  # type: ignore[method-assign]
    for iteration in (0, 1):
        trainer.update(data, iteration)
    passes = [frozenset(split[i : i + 3]) for split in parts.values() for i in (0, 3, 6)]
    assert len(passes) == 2 * 2 * 3
    assert all(sorted(i for part in one for i in part) == list(range(12)) for one in passes)
    assert len(set(passes)) == len(passes), "12 turns fall into 3 fours in 5,775 ways"


@pytest.mark.parametrize("old", ["sampler", "learner"])
def test_a_kl_in_the_reward_is_of_the_log_probs_in_the_ratio(old: Any) -> None:
    """Under ``old_logprobs='learner'`` the learner's own: the sampler's noise is no distance from the reference."""
    policies, data = Tabular(["a", "b"]), team()
    policies.play(data)
    rng, noise = np.random.default_rng(0), {}
    for t in (t for d in data for t in d.transitions):
        noise[t] = rng.normal(scale=0.01, size=len(t.reply.action_ids)).astype(np.float32)
        say(t, logprobs=t.reply.logprobs + noise[t])
    trainer = learner(policies, lr=1e-9, old_logprobs=old, kl_reward_coef=0.5)
    stats = trainer.update(data, 0)
    for t, gap in noise.items():
        expected = -0.5 * gap * (old == "sampler")  # the weights are the reference's
        assert trainer.estimates.penalties[t] == pytest.approx(expected, abs=1e-6)
    assert (abs(stats["kl_reward"]) > 1e-5) == (old == "sampler")
