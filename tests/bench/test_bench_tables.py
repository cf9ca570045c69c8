"""Tables, figures and checks of a benchmark's rows: rows made up here, no runs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import population, sampled, toys_matrix
from helpers import preloaded
from marft_algos.cli import main
from marft_algos.extras.bench import figures, page, tables
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.runs import plots
from marft_envs.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def row(algorithm: str, seed: int, outcomes: list[float], **changes: Any) -> dict[str, Any]:
    return {
        "key": f"{algorithm}{seed}", "algorithm": algorithm, "env": "relay-v0", "credit": "", "seed": seed,
        "kind": "train", "hidden": False, "status": "done", "error": "",
        "problems": [f"p{i}" for i in range(len(outcomes))], "outcomes": outcomes,
        "score": sum(outcomes) / len(outcomes), "tokens": 100, "seconds": 2.0, "peak_memory": 2**20, "curve": [],
        "drift": [],
    } | changes  # fmt: skip


def benchmark(level: float, names: tuple[str, ...] = ("a", "base"), problems: int = 40) -> list[dict[str, Any]]:
    """Three seeds that solve about ``level`` of the problems; the baseline half of them."""
    made = []
    for name in names:
        share = level if name != "base" else 0.5
        for seed in range(3):
            solved = round(share * problems) + seed - 1
            made.append(row(name, seed, [1.0] * solved + [0.0] * (problems - solved)))
    return made


def test_tables_pair_with_the_baseline_and_count_failures() -> None:
    rows = [*benchmark(0.8), row("a", 3, [0.0], status="failed", error="out of memory")]
    found = {x.algorithm: x for x in tables.lines(rows, "base")}
    line = found["a"]
    assert line.difference is not None and line.difference.mean == pytest.approx(0.3)
    assert line.difference.low > 0 and line.seeds == 3 and line.failed == 1
    assert line.improvement is not None and line.improvement.mean == 1.0
    assert found["base"].difference is None
    shown = tables.markdown(tables.sheet(list(found.values()), "base"))
    assert "points over base" in shown and "+30.0 [" in shown
    assert r"a\_b" in tables.latex(tables.sheet([dataclasses.replace(line, algorithm="a_b")], "base"))
    with pytest.raises(ConfigError, match="no row 'bose'"):
        tables.lines(rows, "bose")


STRANGE = "=HYPERLINK(1)|<script>x</script>[l](javascript:y)\n& \\input{z} $\\frac$"


def test_names_of_a_strangers_grid_are_text_in_every_format(tmp_path: Path) -> None:
    """They break no row, and nothing in them acts: a formula, a link, HTML, a command of LaTeX."""
    rows = [r | {"env": STRANGE} for r in [*benchmark(0.8, (STRANGE,)), *benchmark(0.5, ("base",))]]
    lines = tables.lines(rows, "base")
    sheet = tables.sheet(lines, "base")
    text = tables.markdown(sheet)
    assert {line.count("|") for line in text.splitlines()} == {len(sheet[0]) + 1} and len(text.splitlines()) == 4
    assert "<script" not in text and "](" not in text
    tex = tables.latex(sheet)
    assert len(tex.splitlines()) == 4 + 2 + 2 and r"\input" not in tex and r"\$" in tex
    assert {line.count(" & ") for line in tex.splitlines() if line.endswith(r" \\")} == {len(sheet[0]) - 1}
    first, *others = csv.DictReader(io.StringIO(tables.as_csv(lines)))
    for cell in (first["environment"], first["algorithm"]):
        assert cell.startswith("'=HYPERLINK(1)|") and "\n" not in cell
    assert float(others[0]["mean"]) == pytest.approx(0.5), "numbers stay numbers"
    bracket = tables.latex([["a", "b"], ["[5cm]", "x"]])
    drawn = figures.write(rows, lines, tmp_path)
    assert any(r"$\frac" in text for text in drawn.values()), "a name is no formula"
    assert "\\\\\n[" not in bracket and "{[}5cm]" in bracket


def test_what_was_processed_and_visited_is_told_and_not_made_up_for_older_runs() -> None:
    counted = [r | {"processed": 350_000, "prompts": 640, "critical_path": 41.6} for r in benchmark(0.8, ("a",))]
    head, *body = tables.sheet(tables.lines([*counted, *benchmark(0.5, ("base",))], "base"), "base")
    shown = {cells[1]: dict(zip(head, cells, strict=True)) for cells in body}
    assert (shown["a"]["processed"], shown["a"]["prompts"]) == ("350 000", "640")
    assert (shown["base"]["processed"], shown["base"]["prompts"]) == ("–", "–")
    assert (shown["a"]["critical path"], shown["base"]["critical path"]) == ("42", "–")
    head = tables.sheet(tables.lines(benchmark(0.5), "base"), "base")[0]
    assert not {"processed", "prompts", "critical path"} & set(head), "nobody has counted"


def test_sampled_answers_stand_beside_greedy_ones_where_there_are_any() -> None:
    rows = benchmark(0.8)
    head = tables.sheet(tables.lines(rows, "base"), "base")[0]
    assert not [title for title in head if title.startswith("avg@")]
    drawn = {"sampled": [0.5] * 40, "samples": 6}
    both = [r | drawn if r["algorithm"] == "a" else r for r in rows]
    head, *body = tables.sheet(tables.lines(both, "base"), "base")
    shown = {cells[1]: cells[head.index("avg@6")] for cells in body}
    assert shown["a"].startswith("0.500 [") and shown["base"] == "–"


def test_samples_of_another_number_than_the_grid_asks_for_are_in_no_table(tmp_path: Path) -> None:
    """A grid that was changed from 4 to 8, and of which one row has been sampled anew."""
    bench = BenchFolder(tmp_path / "bench")
    bench.prepare({})
    made = [r | {"skipped": "", "samples": 8} for r in benchmark(0.8)]
    bench.write_stage("main", made)
    for r in made:
        drawn = 8 if r["algorithm"] == "a" else 4
        bench.write_result(r["key"], r | {"sampled": [0.5] * 40, "samples": drawn})
    head, *body = tables.sheet(tables.lines(bench.rows(), "base"), "base")
    shown = {cells[1]: cells[head.index("avg@8")] for cells in body}
    assert shown["a"].startswith("0.500") and shown["base"] == "–"


def test_a_vote_of_one_is_no_row_of_scores(tmp_path: Path) -> None:
    bench = BenchFolder(tmp_path / "bench")
    bench.prepare({})
    made = [r | {"skipped": ""} for r in [*benchmark(0.9, ("vote",)), *benchmark(0.5, ("base",))]]
    bench.write_stage("main", made)
    for r in made:
        bench.write_result(r["key"], r | {"votes": 1 if r["algorithm"] == "vote" else None})
    line = next(x for x in tables.lines(bench.rows(), "base") if x.algorithm == "vote")
    assert line.mean is None and "no vote" in line.note
    for r in made:
        bench.write_result(r["key"], r | {"votes": 3})
    assert next(x for x in tables.lines(bench.rows(), "base") if x.algorithm == "vote").mean is not None


def test_problems_that_an_outage_took_are_in_no_score_and_are_counted(tmp_path: Path) -> None:
    """Lost ones would be failures, or be read as numbers: here they are None, and leave the pairs with them."""
    rows = benchmark(0.8)
    whole = {x.algorithm: x for x in tables.lines(rows, "base")}
    for lost in (rows[0], rows[4]):  # each is right on 0-1 and wrong on the last
        lost["outcomes"] = [None, *lost["outcomes"][1:-1], None]
        lost["infrastructure_errors"] = 2
    found = {x.algorithm: x for x in tables.lines(rows, "base")}
    assert found["a"].mean is not None and found["a"].mean.mean == pytest.approx(
        (31 + 30 + 32) / 3 / 38 - 0.0, abs=0.02
    )
    assert found["a"].difference is not None and found["a"].difference.mean == pytest.approx(12 / 38)
    assert found["a"].improvement == whole["a"].improvement
    assert [found[name].infrastructure_errors for name in ("a", "base")] == [2, 2] and whole[
        "a"
    ].infrastructure_errors == 0
    head, first, *_ = tables.sheet(list(found.values()), "base")
    assert first[head.index("infrastructure errors")] == "2"
    assert ",infrastructure_errors," in tables.as_csv(list(found.values()))
    exported = tables.marl_eval(rows, "marft")["marft"]["relay-v0"]["a"]["seed_0"]["absolute_metrics"]["return"]
    assert len(exported) == 38 and None not in exported
    assert page.compare(rows, benchmark(0.8)).departed == []
    assert figures.write(rows, list(found.values()), tmp_path)


def test_rows_of_which_outages_left_no_common_problem_say_so_and_the_report_is_written(tmp_path: Path) -> None:
    """Every seed has most of its problems, and no problem has every seed: nothing to pair, and no crash."""
    rows = benchmark(0.8, problems=39)
    for r in rows:
        if r["algorithm"] == "a":
            r["outcomes"] = [None if i % 3 == r["seed"] else x for i, x in enumerate(r["outcomes"])]
            r["infrastructure_errors"] = 13
    found = {x.algorithm: x for x in tables.lines(rows, "base")}
    lost = found["a"]
    assert lost.mean is None and lost.difference is None and lost.improvement is None
    assert "no problem is left" in lost.note and (lost.seeds, lost.infrastructure_errors) == (3, 39)
    assert found["base"].mean is not None and not found["base"].note
    head, first, _ = tables.sheet(list(found.values()), "base")
    shown = dict(zip(head, first, strict=True))
    assert "no problem is left" in shown["score"] and (shown["seeds"], shown["infrastructure errors"]) == ("3", "39")
    bench = BenchFolder(tmp_path / "bench")
    bench.prepare({})
    bench.write_stage("main", [r | {"skipped": ""} for r in rows])
    for r in rows:
        bench.write_result(r["key"], r)
    assert "no problem is left" in bench.report("base").read_text()
    checked = page.compare(rows, benchmark(0.8, problems=39))
    assert checked.departed == ["a · relay-v0"] and "cannot be compared" in checked.lines[0]


def test_a_lost_episode_without_its_problems_name_is_no_other_problem() -> None:
    """An outage may take an episode before its world has said which problem it is."""
    rows = benchmark(0.8)
    rows[0]["outcomes"], rows[0]["problems"] = [None, *rows[0]["outcomes"][1:]], ["", *rows[0]["problems"][1:]]
    found = next(x for x in tables.lines(rows, "base") if x.algorithm == "a")
    assert found.mean is not None and found.difference is not None and "39 of 40" in found.note
    assert page.compare(rows, benchmark(0.8)).departed == []
    rows[0]["outcomes"][0] = 1.0
    with pytest.raises(ConfigError, match="same problems"):
        tables.lines(rows, "base")


def test_a_row_says_on_how_many_problems_it_stands_where_outages_took_some() -> None:
    rows = benchmark(0.8)
    rows[0]["outcomes"] = [None, *rows[0]["outcomes"][1:]]
    note = next(x.note for x in tables.lines(rows, "base") if x.algorithm == "a")
    assert note == "39 of 40 problems: others were lost to infrastructure errors"


def test_an_environment_s_rows_stand_together_though_votes_are_made_after_all_runs() -> None:
    late = benchmark(0.9, ("vote",))
    rows = [*benchmark(0.8), *(r | {"env": "deaf"} for r in benchmark(0.6)), *late]
    found = [x.env for x in tables.lines(rows, "base")]
    assert found == ["relay-v0"] * 3 + ["deaf"] * 2 + [tables.EVERYTHING] * 2


def test_runs_on_other_problems_are_not_paired() -> None:
    rows = benchmark(0.8)
    for r in rows:
        if r["algorithm"] == "base":
            r["problems"] = [f"q{i}" for i in range(40)]
    with pytest.raises(ConfigError, match="same problems"):
        tables.lines(rows, "base")


def test_a_row_that_could_not_run_says_why_in_the_table() -> None:
    rows = [*benchmark(0.8), row("mat", 0, [1.0], status="skipped", error="needs one policy")]
    line = next(x for x in tables.lines(rows, "base") if x.algorithm == "mat")
    assert "needs one policy" in tables.sheet([line], "base")[1][2]


def test_environments_of_one_task_set_are_compared_with_one_of_them_algorithm_by_algorithm(tmp_path: Path) -> None:
    rows = [*benchmark(0.8), *(r | {"env": "deaf"} for r in benchmark(0.6))]
    found = {(x.env, x.algorithm): x for x in tables.lines(rows, "base", "relay-v0")}
    assert (deaf := found["deaf", "a"]).across is not None and deaf.across.mean == pytest.approx(-0.2)
    assert deaf.across.high < 0 and deaf.difference is not None and deaf.difference.mean == pytest.approx(0.1)
    assert (same := found["deaf", "base"].across) is not None and same.mean == 0
    assert found["relay-v0", "a"].across is None and found[tables.EVERYTHING, "a"].across is None
    head, *body = tables.sheet(list(found.values()), "base", "relay-v0")
    cells = dict(zip(head, next(c for c in body if c[:2] == ["deaf", "a"]), strict=True))
    assert cells["points over relay-v0"].startswith("-20.0 [")
    assert "points over relay-v0" not in tables.sheet(list(found.values()), "base")[0]
    assert {len(c) for c in body} == {len(head)}
    drawn = figures.write(rows, list(found.values()), tmp_path)
    assert "deaf" in drawn["environments"] and (tmp_path / "environments.png").is_file()
    with pytest.raises(ConfigError, match=r"no environment 'dead' to compare with.*'deaf'"):
        tables.lines(rows, "base", "dead")
    for r in rows:
        if r["env"] == "deaf":
            r["problems"] = [f"q{i}" for i in range(40)]
    with pytest.raises(ConfigError, match="not scored on the same problems"):
        tables.lines(rows, "base", "relay-v0")


def test_a_verdict_names_the_rows_above_the_baseline_and_a_terminal_gets_80_characters() -> None:
    rows = [*benchmark(0.8), *(r | {"env": "deaf"} for r in benchmark(0.6))]
    lines = tables.lines(rows, "base")
    said = page.verdict(lines, "base")
    assert said.startswith("relay-v0: above base: a. deaf: ") and "all environments" not in said
    text = page.brief(tables.sheet(lines, "base"))
    assert max(map(len, text)) <= 80 and text[0].split()[:3] == ["environment", "algorithm", "score"]


@pytest.mark.ci
def test_no_panel_is_without_a_word_and_evaluations_are_points(tmp_path: Path) -> None:
    rows = [*benchmark(0.8), *(r | {"env": "deaf"} for r in benchmark(0.6))]
    for r in rows:
        kl = 0.1 if r["env"] == "relay-v0" else 1e-13
        r["drift"] = [{"tokens": t, "kl": kl, "ess": 1 + 1e-13} for t in (10, 20)]
        r["curve"] = [{"tokens": t, "seconds": t, "score": 0.1 * r["seed"]} for t in (0, 50, 100)]
    drawn = figures.write(rows, tables.lines(rows, "base"), tmp_path)
    assert "relay-v0" in drawn["kl"] and "deaf" in drawn["kl"] and figures.NOTHING["kl"] in drawn["kl"]
    assert "ess" not in drawn
    axes = plots.figure(3, 2).add_subplot()
    figures._efficiency(axes, rows[:3], {tables.label(rows[0]): ("#000000", "-")}, "tokens")
    joined = {line.get_linestyle() for line in axes.lines if line.get_marker() == "None"}
    measured = [line for line in axes.lines if line.get_marker() != "None"]
    assert joined == {":"} and measured and all(line.get_linestyle() == "None" for line in measured)


def test_a_check_passes_on_the_same_runs_and_fails_on_worse_ones() -> None:
    old = benchmark(0.8)
    assert not page.compare(benchmark(0.8), old).departed
    worse = page.compare(benchmark(0.4), old)
    assert worse.departed == ["a · relay-v0"] and any("worse" in line for line in worse.lines)
    assert page.compare(benchmark(0.8, ("base",)), old).departed == ["a · relay-v0"], "a row that is gone"
    few = [r for r in old if r["seed"] < 2]
    assert "no interval" in page.compare(benchmark(0.4), few).lines[0]
    with pytest.raises(ConfigError, match="no finished row in common"):
        page.compare([], [])


def test_checks_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of stored rows: the command reports, and 3 says that something has departed."""
    folder = BenchFolder(tmp_path / "bench")
    folder.prepare({"baseline": "base"})
    rows = benchmark(0.8)
    folder.write_stage("main", [{**r, "skipped": ""} for r in rows])
    for r in rows:
        folder.write_result(
            r["key"],
            {k: r[k] for k in ("problems", "outcomes", "score", "tokens", "seconds", "curve", "drift", "peak_memory")},
        )
    stored = tmp_path / "results.jsonl"
    stored.write_text("".join(json.dumps(r) + "\n" for r in benchmark(0.8)))
    assert main(["bench", "report", str(folder.root), "--check", str(stored)]) == 0
    stored.write_text("".join(json.dumps(r) + "\n" for r in benchmark(0.2)))
    assert main(["bench", "report", str(folder.root), "--check", str(stored)]) == 3
    assert "better" in capsys.readouterr().out


def test_several_environments_make_a_matrix_and_a_sweep_its_table(tmp_path: Path) -> None:
    """The overview: algorithms down, environments across; a cell without runs is a dash."""
    folder = BenchFolder(tmp_path / "bench")
    folder.prepare({"baseline": "base"})
    main_rows = [
        row(name, seed, [score] * 4, env=env, key=f"{name}-{env}-{seed}", skipped="", lr=1e-3)
        for name, env, score in (("base", "one", 0.5), ("base", "two", 0.25), ("new", "one", 1.0))
        for seed in range(3)
    ]
    swept = [
        row("new", 9, [lr], env="one", key=f"swept-{lr}", skipped="", lr=lr, score=lr, train_score=lr / 2)
        for lr in (0.1, 0.2, 0.3)
    ]
    for stage, rows in (("main", main_rows), ("sweep", swept)):
        folder.write_stage(stage, rows)
        for made in rows[: len(rows) - (stage == "sweep")]:  # the sweep's last run is still to come
            folder.write_result(made["key"], made)
    page = folder.report().read_text()
    means, differences, rates = ((folder.root / f"{n}.md").read_text() for n in ("means", "differences", "rates"))
    assert [line.split(" [")[0] for line in means.splitlines()[2:]] == ["| base | 0.500", "| new | 1.000"]
    assert means.splitlines()[0] == "| algorithm | one | two | all environments |"
    assert means.endswith("] | – | – |\n"), "new has no run in two"
    assert "| new | +50.0 [" in differences and "| base | – | – | – |" in differences
    assert rates.splitlines()[-1] == "| one | new | 0.100 (0.050) | 0.200 (0.100) | – | pending |"
    assert all(title in page for title in ("Mean scores", "Differences to the baseline", "In full", "Learning rates"))
    assert (folder.root / "means.tex").read_text().startswith(r"\begin{tabular}{llrr}")


def test_the_toy_matrix_wants_four_seeds_of_five_or_a_reason_given_before() -> None:
    def runs(algorithm: str, env: str, scores: list[float]) -> list[dict[str, Any]]:
        return [row(algorithm, s, [1.0], env=env, score=score) for s, score in enumerate(scores)]

    shares, learnt = toys_matrix.verdict("grpo", "relay-v0", runs("grpo", "relay-v0", [1.0, 0.85, 0.9, 1.0, 0.3]))
    assert learnt and shares[2] == "4 of 5" and shares[3].split() == ["1.00", "0.80", "0.87", "1.00", "0.07"]
    assert not toys_matrix.verdict("grpo", "relay-v0", runs("grpo", "relay-v0", [1.0, 1.0, 1.0, 0.84, 0.3]))[1]
    few, learnt = toys_matrix.verdict("grpo", "relay-v0", runs("grpo", "relay-v0", [1.0, 1.0]))
    assert not learnt and few[-1] == "2 of 5 seeds so far", "too few to say either"
    pair = next(iter(toys_matrix.EXCEPTIONS))
    assert toys_matrix.verdict(*pair, runs(*pair, [0.5] * 5))[1]
    assert toys_matrix.verdict("mat", "relay-v0", [row("mat", 0, [1.0], status="skipped", error="shared")])[1]


def test_bad_calls_say_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert "marft bench run" in capsys.readouterr().out
    assert main(["bench", "reprot"]) == 1
    assert main(["bench", "report", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "Did you mean 'report'" in said and "is no benchmark" in said
    (tmp_path / "something").write_text("")
    with pytest.raises(ConfigError, match="no benchmark"):
        BenchFolder(tmp_path).prepare({})


def test_pass_at_k_counts_the_problems_of_which_some_answer_is_paid() -> None:
    means = {"a": [0.25] * 30 + [0.0] * 10, "base": [1.0] * 20 + [0.0] * 20}
    drawn = [r | {"sampled": means[r["algorithm"]], "samples": 4} for r in benchmark(0.8)]
    head, ours, theirs = sampled.rows(drawn, "base", score="pass")
    assert head[3] == "pass@4" and ours[3].startswith("0.750 [") and theirs[3].startswith("0.500 [")
    assert ours[4].startswith("+25.0 [")


def test_sampled_scores_have_differences_of_their_own() -> None:
    """Greedy answers may rank two algorithms the other way round than sampled ones."""
    shares = {"a": 0.25, "base": 0.5}
    drawn = [r | {"sampled": [shares[r["algorithm"]]] * 40, "samples": 4} for r in benchmark(0.8)]
    head, ours, theirs = sampled.rows(drawn, "base")
    assert head[3:] == ["avg@4", "avg@4 less base's"]
    assert ours[2].startswith("0.800 [") and ours[3].startswith("0.250 [") and ours[4].startswith("-25.0 [")
    assert theirs[4] == "–"
    with pytest.raises(ConfigError, match="samples = 8"):
        sampled.rows(benchmark(0.8), "base")


def test_team_sizes_are_told_with_the_memory_beyond_one_agent(tmp_path: Path) -> None:
    rows = [
        r | {"env": env}
        for env, level in (("agents-1", 0.8), ("agents-12-own", 0.7), ("agents-12-shared", 0.6))
        for r in benchmark(level)
    ]
    lines = [x for x in tables.lines(rows, "base") if x.algorithm == "a" and x.env != tables.EVERYTHING]
    needed = {"agents-1": 700.0, "agents-12-own": 840.0, "agents-12-shared": 690.0}
    found = population.rows(lines, needed)
    assert [(r[0], r[1], r[-1]) for r in found] == [("1", "own", "+0"), ("12", "own", "+140"), ("12", "shared", "-10")]
    assert found[1][2].startswith("0.700 [") and found[1][3].startswith("+20.0 [")
    assert {len(r) for r in found} == {len(population.COLUMNS)}
    population.draw(lines, needed, tmp_path / "images" / "population.png")
    assert (tmp_path / "images" / "population.png").stat().st_size > 5000


@pytest.mark.ci
@pytest.mark.parametrize("command", ["population", "sampled", "toys_matrix"])
def test_a_folder_that_is_no_benchmark_is_told_in_one_line(command: str, tmp_path: Path) -> None:
    done = preloaded.run(ROOT, "-m", "benchmarks", command, str(tmp_path / "nowhere"))
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert "is no benchmark" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_measurement_whose_reader_has_gone_ends_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shown:
        shown.stdout.close()  # type: ignore[union-attr]
        assert shown.wait(timeout=120) == 141
        assert shown.stderr.read() == b""  # type: ignore[union-attr]
