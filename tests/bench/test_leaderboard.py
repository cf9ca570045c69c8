"""The leaderboard: packed benchmarks made up here; no run is made."""

from __future__ import annotations

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
from marft_algos.extras.bench import leaderboard, packed
from marft_algos.extras.bench.cells import Cell
from marft_algos.extras.bench.folder import BenchFolder
from marft_envs.errors import ConfigError, DataError

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
    names = [f"relay-{i}" for i in range(len(solved))]
    score, tokens = sum(solved) / len(solved), 0 if table["iterations"] == 0 else BUDGET + 20
    point = {"iteration": 2, "tokens": tokens, "seconds": 1.0, "score": score, "outcomes": solved}
    drift = [{"tokens": BUDGET - 100}, {"tokens": tokens}] if tokens else []
    found = {"problems": list(names), "outcomes": solved, "infra": 0, "score": score, "tokens": tokens}
    return found | {"seconds": 1.0, "peak_memory": 1, "curve": [point], "drift": drift}


def benchmark(root: Path, levels: Levels = LEVELS, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> BenchFolder:
    """Writes the folder of a benchmark that has been run."""
    folder = BenchFolder(root)
    folder.prepare({"algorithms": list(levels), "baseline": "untrained"})
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


# Shown ------------------------------------------------------------------------------------------------


def test_entries_are_sorted_by_score_and_compared_with_the_baseline_of_their_file(folder: BenchFolder) -> None:
    [pack] = leaderboard.read([folder.root])
    assert pack.name == "mine.tar.xz" and pack.results == 9
    head, *rows = leaderboard.sheets([pack])["relay-v0"]
    assert head == list(leaderboard.COLUMNS) and [row[2] for row in rows] == ["grpo", "rloo", "untrained"]
    scores = {row[2]: row[3] for row in rows}
    assert scores["grpo"].startswith("90.0 [") and scores["untrained"].startswith("25.0 [")
    gains = {row[2]: row[4] for row in rows}
    assert gains["untrained"] == "–" and gains["grpo"].startswith("+65.0 [")
    assert {row[5] for row in rows} == {"3"} and [row[6] for row in rows] == ["1 020", "1 020", "0"]


def test_entries_of_two_files_are_in_one_table_of_their_environment(tmp_path: Path) -> None:
    benchmark(tmp_path / "a", {"grpo": LEVELS["grpo"], "untrained": LEVELS["untrained"]})
    benchmark(tmp_path / "b", {"rloo": (0.99, 0.99, 0.99), "untrained": LEVELS["untrained"]})
    packs = leaderboard.read([tmp_path / "a", tmp_path / "b"])
    sheets = leaderboard.sheets(packs)
    assert list(sheets) == ["relay-v0", "The files"]
    assert [row[:3] for row in sheets["relay-v0"][1:3]] == [
        ["b.tar.xz", "relay-v0", "rloo"],
        ["a.tar.xz", "relay-v0", "grpo"],
    ]


def test_a_run_without_a_result_is_no_seed(folder: BenchFolder) -> None:
    folder.result_file(first(folder)).unlink()
    [pack] = leaderboard.read([folder.root])
    grpo = next(row for row in leaderboard.sheets([pack])["relay-v0"] if row[2] == "grpo")
    assert pack.results == 8 and grpo[5] == "2"


def _fewer(result: dict[str, Any]) -> None:
    del result["outcomes"][0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_fewer, "59 outcomes of 60 problems"),
        (lambda result: result.update(outcomes="many"), "outcomes"),
        (lambda result: result.update(outcomes=[[1.0]] * PROBLEMS), "outcomes.0"),
        (lambda result: result.update(tokens=-1), "tokens"),
        (lambda result: result.pop("problems"), "problems: field required"),
        (lambda result: result.update(seconds=float("nan")), "seconds"),
    ],
)
def test_a_result_that_is_none_is_refused(
    folder: BenchFolder, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    rewrite(folder.result_file(first(folder)), change)
    with pytest.raises(DataError, match=says):
        leaderboard.read([folder.root])


def test_a_key_that_names_another_file_is_refused(folder: BenchFolder, tmp_path: Path) -> None:
    packed.pack(folder, tmp_path / "mine.tar.xz")
    with packed.unpacked(tmp_path / "mine.tar.xz") as opened:
        rewrite(opened.folder.bench_file, lambda bench: bench["stages"]["main"][0].update(key="../../evil"))
        with tarfile.open(tmp_path / "evil.tar.xz", "w:xz") as archive:
            archive.add(opened.folder.root, "evil", filter=lambda member: member)
    with tarfile.open(tmp_path / "evil.tar.xz") as archive:
        members = [(member, archive.extractfile(member)) for member in archive if member.isreg()]
        content = [(member, handle.read()) for member, handle in members if handle is not None]
    _archive(tmp_path / "evil.tar.xz", *content)
    with pytest.raises(DataError, match=r"bench\.json: stages\.main\.0\.key"):
        leaderboard.read([tmp_path / "evil.tar.xz"])


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


def test_the_command_prints_and_writes_the_page(
    folder: BenchFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "pack", "mine"]) == 0
    for page in ("a.md", "a.html"):
        assert main(["bench", "leaderboard", "mine.tar.xz", "--out", page]) == 0
    text, web = Path("a.md").read_text(), Path("a.html").read_text()
    [pack] = leaderboard.read([Path("mine.tar.xz")])
    assert f"| mine.tar.xz | 0.1.0 | 9 | {pack.sha256} |" in text and pack.sha256 in web
    assert "<td>25.0 [" in web
    capsys.readouterr()
    assert main(["bench", "leaderboard", "mine.tar.xz"]) == 0
    assert capsys.readouterr().out.strip() == text.strip()


def test_a_refused_file_writes_no_page(folder: BenchFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(folder.result_file(first(folder)), _fewer)
    assert main(["bench", "leaderboard", str(folder.root), "--out", str(tmp_path / "a.md")]) == 1
    assert "make it again: marft bench pack" in capsys.readouterr().err and not (tmp_path / "a.md").exists()
    assert main(["bench", "leaderboard", str(folder.root), "--out", "a.pdf"]) == 1
    assert main(["bench", "leaderboard"]) == 1


def test_names_in_a_file_are_text_on_the_page(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>|[x](http://evil)`{: onclick=x}"
    levels = {name: (0.5, 0.5, 0.5), "untrained": LEVELS["untrained"]}
    packs = leaderboard.read([benchmark(tmp_path / "evil", levels).root])
    text, web = leaderboard.markdown(packs), leaderboard.webpage(packs)
    assert "<script>" not in text and "<script>alert" not in web
    assert "](http" not in text and "{: on" not in text
    rows = [line for line in text.splitlines() if "alert" in line]
    columns = next(line for line in text.splitlines() if line.startswith("| file")).count("|")
    assert rows and all(line.count("|") == columns for line in rows)
