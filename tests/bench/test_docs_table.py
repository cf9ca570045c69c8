"""The tables of readers against one agent."""

from __future__ import annotations

from typing import Any

from benchmarks.learning import docs


def run(env: str, outcomes: list[float | None], seed: int = 0, **fields: Any) -> dict[str, Any]:
    counted = {"eval_tokens": 40, "eval_processed": 100, "critical_path": 7.6, "processed": 1000}
    problems = [f"{docs.place(env)[1]}/{i}" for i in range(len(outcomes))]
    made = {"env": env, "seed": seed, "algorithm": "marft", "status": "done", "hidden": False, "problems": problems}
    return made | {"outcomes": outcomes} | counted | fields


def test_rows_are_paired_by_length_and_seed() -> None:
    rows = [
        run("chain-2", [1.0, 1.0, None, 0.0]), run("chain-2", [1.0] * 4, seed=1), run("memory-2", [0.0, 1.0, 1.0, 0.0]),
        run("chain", [1.0] * 4), run("solo-all", [1.0] * 4), run("memory-2", [0.0] * 4, algorithm="untrained"),
        run("memory-2", [0.0] * 4, seed=1, status="failed"),
    ]  # fmt: skip
    cells = docs.finished(rows)
    assert {cell: len(runs) for cell, runs in cells.items()} == {("chain", 2): 2, ("memory", 2): 1, ("chain", 1): 1}
    ((length, what, each, over),) = docs.differences(cells)
    assert (length, what, over) == ("2", "chain less memory", "") and each.startswith("+33.3 ["), (
        "of three pairs that are known"
    )
    lines = {(line[0], line[1]): line for line in docs.scores(cells)}
    assert lines["2", "chain"][2].startswith("0.667 [") and " · 1.000 [" in lines["2", "chain"][2]
    assert lines["1", "chain"][3:] == ["4", "10", "25", "8", "1,000"]
    assert docs.means(cells) == (
        ["who", "1 window", "2 windows"],
        [["chain", "1.000 (1.00 to 1.00)", "0.833 (0.67 to 1.00)"], ["memory", "", "0.500 (0.50 to 0.50)"]],
    )


def test_three_seeds_have_an_interval_over_seeds() -> None:
    rows = [run("chain", [1.0, 1.0, None, 1.0], seed) for seed in range(3)]
    rows += [run("memory", [0.0, 1.0, 1.0, 0.0], seed) for seed in range(3)]
    ((*_, over),) = docs.differences(docs.finished(rows))
    assert over.startswith("+66.7 ["), "of the three documents that nobody has lost"


def test_what_training_added_is_the_last_evaluation_less_the_first() -> None:
    curve = [{"outcomes": [0.0, None, 0.0, 1.0]}, {"outcomes": [1.0, 1.0, 1.0, 1.0]}]
    ((length, who, first, gained),) = docs.gains(docs.finished([run("tree-2", [1.0] * 4, curve=curve)]))
    assert (length, who, first) == ("2", "tree", "0.333") and gained.startswith("+66.7 ["), "of three documents"


def test_a_figure_names_its_model_in_the_title() -> None:
    rows = [run("tree-8", [1.0, 0.0, 0.5]), run("memory-8", [0.0] * 3, critical_path=9.0), run("chain-8", [1.0] * 3)]
    rows[2]["critical_path"], check = 90.0, run("solo-8", [1.0] * 2)
    model, *words = docs.claim(docs.finished([*rows, check]), "tree", "embedded-docs", 10).splitlines()
    assert model == "embedded-docs (333 thousand parameters, taught on 52,000 merges of notes):"
    assert words == [
        "within a latency of 10 tokens readers in a tree solve 0.500 of 8-window ledgers,",
        "other methods at most 0.000 (1 and 1 seeds, 3 ledgers each)",
    ]
