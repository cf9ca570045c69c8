"""The leaderboard: packed benchmarks made up here, on the real problems of ``relay-v0``; no run is made."""

from __future__ import annotations

import dataclasses
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft_algos.cli import main
from marft_algos.config import settings as configs
from marft_algos.runs.folder import PanelFacts
from marft_algos.workbench.bench import board, evidence, leaderboard, packed
from marft_algos.workbench.bench.cells import Cell
from marft_algos.workbench.bench.evidence import EvidenceError
from marft_algos.workbench.bench.folder import BenchFolder
from marft_algos.workbench.bench.leaderboard import Entry
from marft_envs.errors import ConfigError, DataError
from marft_envs.powers import TrustError

PROBLEMS = 60
BUDGET = 1000
Levels = Mapping[str, Sequence[float]]
"""Label -> share of problems that each seed solves."""
LEVELS = {"grpo": (0.9, 0.92, 0.88), "rloo": (0.91, 0.89, 0.9), "untrained": (0.25, 0.25, 0.25)}


def config(label: str, seed: int, **changes: Any) -> dict[str, Any]:
    algo = label if label in ("grpo", "rloo") else "marft"
    iterations = {"iterations": 0} if label == "untrained" else {}
    return configs.build(
        {"env": "relay-v0", "algo": algo, "token_budget": BUDGET, "eval_episodes": PROBLEMS, "seed": seed}
        | iterations
        | changes
    ).table()


def outcomes(level: float, seed: int, problems: int = PROBLEMS) -> list[float]:
    solved = np.zeros(problems)
    solved[np.random.default_rng(seed).permutation(problems)[: round(level * problems)]] = 1
    return [float(y) for y in solved]


def result(table: Mapping[str, Any], solved: list[float]) -> dict[str, Any]:
    names, _ = evidence.panel(configs.build(dict(table)))
    score, tokens = sum(solved) / len(solved), 0 if table["iterations"] == 0 else BUDGET + 20
    point = {"iteration": 2, "tokens": tokens, "seconds": 1.0, "score": score, "outcomes": solved}
    drift = [{"tokens": BUDGET - 100}, {"tokens": tokens}] if tokens else []
    found = {"problems": list(names), "outcomes": solved, "infra": 0, "score": score, "tokens": tokens}
    return found | {"seconds": 1.0, "peak_memory": 1, "curve": [point], "drift": drift}


def benchmark(root: Path, levels: Levels = LEVELS, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> BenchFolder:
    """Writes the folder of a benchmark that has been run."""
    folder = BenchFolder(root)
    folder.prepare({"algorithms": list(levels)})
    cells = []
    for label, shares in levels.items():
        for seed, share in zip(seeds, shares, strict=True):
            cell = Cell("main", label, "relay-v0", "", seed, config=config(label, seed, **changes))
            cells.append(cell)
            folder.write_result(cell.key, result(cell.config, outcomes(share, seed + 10 * len(cells))))
    folder.write_stage("main", [cell.row() for cell in cells])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> BenchFolder:
    return benchmark(tmp_path / "mine")


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def first(folder: BenchFolder) -> str:
    return str(folder.described()["stages"]["main"][0]["key"])


# Ranking ----------------------------------------------------------------------------------------------


def test_those_that_noise_could_have_ordered_otherwise_share_a_rank_and_those_apart_do_not(folder: BenchFolder) -> None:
    [setting] = leaderboard.rank(leaderboard.read([folder.root]))
    ranks = {place.entry.algorithm: place.ranks for place in setting.places}
    assert ranks == {"grpo": (1, 2), "rloo": (1, 2), "untrained": (3, 3)}
    best, second, last = setting.places
    assert best.difference is None and not second.distinct and last.distinct
    assert last.difference is not None and last.difference.high < -0.4
    assert best.entry.score is not None and best.entry.score.mean == pytest.approx(0.9, abs=0.01)


def test_equal_algorithms_are_hardly_ever_separated() -> None:
    """Fifty rankings of six that are alike: any of the fifteen pairs is called apart in about 5 % at most."""
    rng = np.random.default_rng(0)
    facts, table = PanelFacts(PROBLEMS, PROBLEMS, True), configs.build(config("grpo", 0))
    wrong = 0
    for _ in range(50):
        entries = []
        for name in "abcdef":
            levels = np.clip(0.5 + rng.normal(0, 0.05, 3), 0, 1)
            runs = tuple(
                evidence.Run(
                    Cell("main", name, "e", "", s), table, tuple(rng.binomial(1, p, PROBLEMS)), (), facts, 1, None
                )
                for s, p in enumerate(levels)
            )
            entries.append(Entry(name, name, ("x",), runs, 3, 0))
        wrong += any(place.ranks != (1, 6) for place in leaderboard.placed(entries))
    assert wrong <= 6, "P(7 or more of 50 at 5 %) is 1 %"


def test_seeds_that_nobody_else_has_share_no_rank_by_being_different(tmp_path: Path) -> None:
    benchmark(tmp_path / "a", {"grpo": LEVELS["grpo"]})
    benchmark(tmp_path / "b", {"untrained": LEVELS["untrained"]}, seeds=(7, 8, 9))
    [setting] = leaderboard.rank(leaderboard.read([tmp_path / "a", tmp_path / "b"]))
    assert [place.ranks for place in setting.places] == [(1, 1), (2, 2)]


def test_too_few_seeds_have_no_rank_and_missing_ones_are_told(folder: BenchFolder) -> None:
    key = first(folder)
    folder.result_file(key).unlink()
    evidence_ = leaderboard.read([folder.root])
    [setting] = leaderboard.rank(evidence_)
    assert setting.places[-1].entry.algorithm == "grpo" and setting.places[-1].ranks is None
    text = board.markdown(board.blocks(evidence_, [setting]))
    assert "| – | grpo |" in text and "| 2 of 3 |" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"token_budget": 999},
        {"eval_episodes": 40},
        {"env_kwargs": {"hint": "x"}},
        {"models": "embedded-docs"},
        {"policies": "shared"},
        {"max_new_tokens": 3},
        {"eval_greedy": False},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_was_done_in_another_setting_is_in_another_ranking(changes: dict[str, Any]) -> None:
    one = configs.build(config("grpo", 0))
    assert leaderboard.settings(dataclasses.replace(one, **changes)) != leaderboard.settings(one)


def test_groups_of_two_files_with_two_budgets_stay_apart_and_own_choices_do_not(tmp_path: Path) -> None:
    benchmark(tmp_path / "a", {"grpo": LEVELS["grpo"]})
    benchmark(tmp_path / "b", {"rloo": LEVELS["rloo"]}, episodes_per_iteration=16, eval_every=3)
    benchmark(tmp_path / "c", {"marft": LEVELS["rloo"]}, token_budget=BUDGET + 10)
    packs = leaderboard.read([tmp_path / name for name in "abc"])
    members = {tuple(place.entry.algorithm for place in s.places) for s in leaderboard.rank(packs)}
    assert {frozenset(names) for names in members} == {frozenset({"grpo", "rloo"}), frozenset({"marft"})}
    text = board.markdown(board.blocks(packs, leaderboard.rank(packs)))
    assert "Alone in their settings" in text and "token_budget = 1000\n" in text


def test_runs_that_two_files_hold_are_one_entry(tmp_path: Path) -> None:
    benchmark(tmp_path / "a", LEVELS)
    benchmark(tmp_path / "b", LEVELS)
    [setting] = leaderboard.rank(leaderboard.read([tmp_path / "a", tmp_path / "b"]))
    assert len(setting.places) == 3 and setting.packs == ("a.tar.xz", "b.tar.xz")


# Evidence ---------------------------------------------------------------------------------------------


def _score(r: dict[str, Any]) -> None:
    r["score"] += 0.05


def _outcome(r: dict[str, Any]) -> None:
    r["outcomes"][r["outcomes"].index(0.0)] = 1.0


def _whole_outcome(r: dict[str, Any]) -> None:
    """Adjusts the score, too, but not the curve."""
    _outcome(r)
    r["score"] = sum(r["outcomes"]) / len(r["outcomes"])


TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "its score is": (_score, "its score is 0.95, and that of its outcomes 0.9"),
    "an outcome": (_outcome, "and that of its outcomes"),
    "the curve": (_whole_outcome, "its curve does not end with its outcomes"),
    "other problems": (lambda r: r["problems"].__setitem__(0, "relay/99"), "is not what this version of relay-v0"),
    "fewer problems": (lambda r: (r["problems"].pop(), r["outcomes"].pop()), "59 outcomes, where its settings ask"),
    "over its budget": (lambda r: r["drift"].__setitem__(0, {"tokens": BUDGET}), "went on after its budget"),
    "tokens": (lambda r: r.update(tokens=5), "its tokens"),
    "lost": (lambda r: r["outcomes"].__setitem__(0, None), "more outcomes are missing than it counts"),
    "another name": (lambda r: r.update(algorithm="marft"), "says what only its cell may say"),
    "text": (lambda r: r.update(score="0.9"), "score: input should be a valid number"),
    "not a number": (lambda r: r["outcomes"].__setitem__(0, float("nan")), "outcomes.0: input should be a finite"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_result_that_was_changed_is_refused(folder: BenchFolder, how: str) -> None:
    change, message = TAMPERED[how]
    rewrite(folder.result_file(first(folder)), change)
    with pytest.raises(EvidenceError, match=message):
        leaderboard.read([folder.root])


def test_settings_that_were_changed_are_refused(folder: BenchFolder) -> None:
    rewrite(folder.job_file(first(folder)), lambda job: job["config"].update(token_budget=5 * BUDGET))
    with pytest.raises(EvidenceError, match="were changed later"):
        leaderboard.read([folder.root])


@pytest.mark.parametrize(("field", "name"), [("algorithm", "rloo"), ("algorithm", "untrained"), ("seed", 5)])
def test_a_row_is_called_what_it_is(folder: BenchFolder, field: str, name: Any) -> None:
    rewrite(folder.bench_file, lambda bench: bench["stages"]["main"][0].update({field: name}))
    with pytest.raises(EvidenceError, match=r"it is (called|seed 5)"):
        leaderboard.read([folder.root])


def test_another_version_is_refused(folder: BenchFolder) -> None:
    rewrite(folder.bench_file, lambda bench: bench.update(version="0.0.9"))
    with pytest.raises(ConfigError, match="not comparable"):
        leaderboard.read([folder.root])


def test_the_rate_must_be_the_one_that_the_sweep_chose(tmp_path: Path) -> None:
    folder, cells = benchmark(tmp_path / "swept", {}), {}
    for stage, rate, share, seed in (("sweep", 1e-3, 0.5, 100), ("sweep", 1e-2, 0.9, 100), ("main", 1e-2, 0.8, 0)):
        table = config("grpo", seed)
        table["algorithm"]["lr"] = rate
        cell = Cell(stage, "grpo", "relay-v0", "", seed, rate, config=table)  # type: ignore[arg-type]
        folder.write_result(cell.key, result(table, outcomes(share, 1)))
        cells.setdefault(stage, []).append(cell.row())
    for stage, rows in cells.items():
        folder.write_stage(stage, rows)
    assert leaderboard.read([folder.root])[0].tuning == {("grpo", "relay-v0"): 2}
    for row in cells["sweep"]:
        worse = result(row["config"], outcomes(0.4 if row["lr"] == 1e-2 else 0.5, 1))
        folder.write_result(row["key"], worse)
    with pytest.raises(EvidenceError, match=r"its learning rate is 0.01, and the sweep's choice 0.001"):
        leaderboard.read([folder.root])


def test_a_file_runs_nothing_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    folder = benchmark(tmp_path / "evil", {"grpo": LEVELS["grpo"]})
    [row, *others] = folder.described()["stages"]["main"]
    job = folder.job(row["key"])
    cell = Cell("main", "grpo", "relay-v0", "", 0, config=job["config"] | {"env": "stranger:env-v0"})
    folder.result_file(row["key"]).rename(folder.result_file(cell.key))
    folder.write_stage("main", [cell.row(), *({**r, "config": folder.job(r["key"])["config"]} for r in others)])
    with pytest.raises(TrustError, match="runs code of that module"):
        leaderboard.read([folder.root])


# Files ------------------------------------------------------------------------------------------------


def test_a_folder_is_read_as_the_file_that_it_packs_to(folder: BenchFolder, tmp_path: Path) -> None:
    out = tmp_path / "mine.tar.xz"
    assert packed.pack(folder, out) == 9
    with packed.unpacked(out) as one, packed.unpacked(folder.root) as other:
        assert one.sha256 == other.sha256 and one.name == other.name == "mine.tar.xz"
    assert packed.files([tmp_path]) == [out]
    with pytest.raises(DataError, match="marft bench pack"):
        packed.files([tmp_path / "nothing"])


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "none at all"])
def test_a_damaged_file_is_refused(folder: BenchFolder, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "mine.tar.xz"
    packed.pack(folder, out)
    content = bytearray(out.read_bytes())
    content[len(content) // 2] ^= 255 * (damage == "flipped")
    whole = {"flipped": content, "cut": content[:-9], "longer": content + b"more", "none at all": b"{}"}[damage]
    out.write_bytes(whole)
    with pytest.raises(DataError, match="damaged"), packed.unpacked(out):
        pass


def _archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "name", ["../bench.json", "/x/bench.json", "x/evil.sh", "x/results/../../a.json", "x/jobs/1.json", ".x/bench.json"]
)
def test_a_file_writes_nowhere_else(tmp_path: Path, name: str) -> None:
    path = _archive(tmp_path / "evil.tar.xz", (tarfile.TarInfo(name), b"{}"))
    with pytest.raises(DataError, match="which no packed benchmark does"), packed.unpacked(path):
        pass


def test_links_repetitions_and_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tarfile.TarInfo("x/bench.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
    twice = [(tarfile.TarInfo("x/bench.json"), b"{}")] * 2
    for path in (_archive(tmp_path / "a.tar.xz", (link, b"")), _archive(tmp_path / "b.tar.xz", *twice)):
        with pytest.raises(DataError, match="which no packed benchmark does"), packed.unpacked(path):
            pass
    monkeypatch.setattr(packed, "LARGEST", 2**20)
    bomb = tmp_path / "c.tar.xz"
    bomb.write_bytes(lzma.compress(bytes(2**21)))
    with pytest.raises(DataError, match="unpack to more than 1 MiB"), packed.unpacked(bomb):
        pass


def test_long_names_and_nested_lists_are_refused(tmp_path: Path) -> None:
    path = _archive(tmp_path / "long.tar.xz", (tarfile.TarInfo(f"{'n' * 5000}/bench.json"), b"{}"))
    with pytest.raises(DataError, match="cannot be unpacked: File name too long"), packed.unpacked(path):
        pass
    for content in (b"[" * 100_000, b"[1, 2]", b"null"):
        deep = _archive(tmp_path / "deep.tar.xz", (tarfile.TarInfo("x/bench.json"), content))
        with pytest.raises((ConfigError, DataError), match=r"bench\.json"):
            leaderboard.read([deep])
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "x/bench.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"bench\.json cannot be read"), packed.unpacked(tmp_path / "x"):
            pass


# The page ---------------------------------------------------------------------------------------------


def test_the_command_writes_both_pages_and_computes_a_row_again(
    folder: BenchFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "pack", "mine"]) == 0
    for page in ("a.md", "a.html"):
        assert main(["bench", "leaderboard", "mine.tar.xz", "--out", page]) == 0
    text, web = Path("a.md").read_text(), Path("a.html").read_text()
    [pack] = leaderboard.read([Path("mine.tar.xz")])
    assert f"| mine.tar.xz | 0.1.0 | 9 | 9 | {pack.packed.sha256} |" in text and pack.packed.sha256 in web
    assert "<td>1 (1–2)</td>" in web and "tar -xf mine.tar.xz mine/grid.toml" in text
    [command] = [line for line in text.splitlines() if line.startswith("marft bench leaderboard")]
    capsys.readouterr()
    assert main(command.split()[1:]) == 0
    again = capsys.readouterr().out
    row = next(line for line in text.splitlines() if "| untrained |" in line)
    assert row in again and "0: 25.0, 1: 25.0, 2: 25.0" in again
    assert main(["bench", "leaderboard", "mine.tar.xz", "--setting", "0000"]) == 1


def test_a_refused_file_writes_no_page(folder: BenchFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(folder.result_file(first(folder)), _score)
    assert main(["bench", "leaderboard", str(folder.root), "--out", str(tmp_path / "a.md")]) == 1
    assert "Nothing of this file is ranked" in capsys.readouterr().err and not (tmp_path / "a.md").exists()
    assert main(["bench", "leaderboard", str(folder.root), "--out", "a.pdf"]) == 1
    assert main(["bench", "leaderboard"]) == 1


def test_names_in_a_file_are_text_on_the_page(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>|[x](http://evil)`{: onclick=x}"
    packs = leaderboard.read([benchmark(tmp_path / "evil", {name: (0.5, 0.5, 0.5), "grpo": LEVELS["grpo"]}).root])
    page = board.blocks(packs, leaderboard.rank(packs))
    text, web = board.markdown(page), board.webpage(page)
    assert "<script>" not in text and "<script>alert" not in web
    assert "](http" not in text and "{: on" not in text
    rows = [line for line in text.splitlines() if "alert" in line]
    columns = next(line for line in text.splitlines() if line.startswith("| rank")).count("|")
    assert rows and all(line.count("|") == columns for line in rows)


def test_entries_of_one_name_with_two_settings_are_told_to_have_two_names(tmp_path: Path) -> None:
    folder = benchmark(tmp_path / "mixed", {"grpo": LEVELS["grpo"]})
    rows = folder.described()["stages"]["main"]
    jobs = [folder.job(row["key"]) for row in rows]
    table = jobs[2]["config"] | {"algorithm": jobs[2]["config"]["algorithm"] | {"lr": 0.5}}
    cell = Cell("main", "grpo", "relay-v0", "", 2, config=table)
    folder.result_file(jobs[2]["key"]).rename(folder.result_file(cell.key))
    folder.write_stage("main", [*jobs[:2], cell.row()])
    with pytest.raises(ConfigError, match="Give each a name of its own"):
        leaderboard.rank(leaderboard.read([folder.root]))


def test_every_setting_that_does_not_separate_is_one() -> None:
    assert {f.name for f in dataclasses.fields(configs.TrainConfig)} >= leaderboard.FREE


def test_entries_that_begin_with_other_demonstrations_are_in_other_rankings() -> None:
    def of(**changes: Any) -> dict[str, Any]:
        return leaderboard.settings(configs.build({"env": "relay-v0", **changes}))

    small, large = {"episodes_per_iteration": 16}, {"episodes_per_iteration": 64}
    assert of(**small) == of(**large), "a batch is an entry's choice"
    assert of(**small, warm_start=2) != of(**large, warm_start=2), "and not what it begins with"
    assert of(**small, warm_start=2, warm_episodes=64) == of(**large, warm_start=2)
