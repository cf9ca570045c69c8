"""Budgets end a run: sampled tokens, processed tokens, and the critical path; of several, each is evaluated."""

from __future__ import annotations

from pathlib import Path

from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.config.settings import TrainConfig
from marft_algos.runs.progress import RunProgress


def test_a_run_is_done_when_all_budgets_are_used_up() -> None:
    budgets = TrainConfig(iterations=9, token_budget=100, processed_budget=1000, latency_budget=50)
    progress = RunProgress()
    progress.spend({"tokens": 60, "tokens_played": 100, "tokens_processed": 300, "latency_played": 50})
    assert progress.reached(budgets) == 2 and not progress.done(budgets)
    progress.spend({"tokens": 60, "tokens_processed": 700})  # demonstrations: nobody has sampled them
    assert (progress.tokens, progress.processed, progress.latency) == (160, 1000, 50)
    assert progress.done(budgets)
    assert RunProgress(iteration=9).done(budgets) and not RunProgress(iteration=8).done(TrainConfig(iterations=9))


def test_a_run_is_evaluated_where_it_reaches_each_budget_and_ends_at_the_last(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model")
    config = settings(model, tmp_path, iterations=50, eval_every=0, token_budget=100, processed_budget=5000)
    _, run = train(config)
    lines = run.metrics()
    sampled = [line["tokens_total"] for line in lines[1:]]
    processed = [sum(line["tokens_processed"] for line in lines[1 : i + 2]) for i in range(len(sampled))]
    first = next(i for i, n in enumerate(sampled) if n >= 100) + 1
    last = next(i for i, n in enumerate(processed) if n >= 5000) + 1
    assert first < last == len(lines) - 1, (sampled, processed)
    assert [line["iteration"] for line in lines if "eval/success" in line] == [0, first, last]
    assert all(0 < line["latency_played"] <= line["tokens_played"] for line in lines[1:])
