"""Finding episodes in files: filters, search in texts, files that grow, lines that are damaged."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.viewed import HOSTILE, episode, write_lines
from marft_algos.extras.view import index
from marft_algos.extras.view.index import EpisodeIndex, Filter
from marft_envs.errors import ConfigError, DataError


def row(number: int, text: str = "", **changes: Any) -> dict[str, Any]:
    """The least that is listed as an episode."""
    turns = [{"agent": "a_0", "text": text or f"word{number}", "reward": 0.0, "extras": {"observation": "look"}}]
    layers = [{"team_reward": float(number % 7)}]
    return {"task_id": f"task/{number}", "turns": turns, "layers": layers, "success": number % 2 == 0, **changes}


def indexed(place: Path) -> EpisodeIndex:
    made = EpisodeIndex(place)
    while (progress := made.refresh()).done < progress.total:
        pass
    return made


def lines(made: EpisodeIndex, **wanted: Any) -> list[int]:
    return [entry.line for entry in made.page(Filter(**wanted), limit=10_000).entries]


def everything(made: EpisodeIndex, wanted: Filter, limit: int, seconds: float) -> list[int]:
    """All pages of a search, one after the other."""
    after: int | None = 0
    found: list[int] = []
    while after is not None:
        page = made.page(wanted, after, limit, seconds)
        assert len(page.entries) <= limit
        found += [entry.line for entry in page.entries]
        after = page.next
    return found


def test_filters_take_what_a_loop_over_all_records_takes(tmp_path: Path) -> None:
    rows = [row(i) for i in range(300)]
    rows[5] |= {"fault": "engine"}
    rows[6] |= {"success": None}
    write_lines(tmp_path / "e.jsonl", rows)
    made = indexed(tmp_path / "e.jsonl")
    assert lines(made) == list(range(1, 301))
    outage = {6}
    solved = [i + 1 for i, r in enumerate(rows) if r["success"] is True and i + 1 not in outage]
    assert lines(made, outcome="solved") == solved
    assert lines(made, outcome="error") == [6] and lines(made, outcome="unjudged") == [7]
    assert lines(made, task="TASK/29") == [i + 1 for i in range(300) if f"task/{i}".startswith("task/29")]
    scores = [rows[line - 1]["layers"][0]["team_reward"] for line in lines(made, order="best")]
    assert scores == sorted(scores, reverse=True)
    assert lines(made, order="worst")[0] == 1


@pytest.mark.parametrize("limit", [1, 7, 50])
@pytest.mark.parametrize("seconds", [0.0, 10.0], ids=["in parts", "at once"])
def test_pages_of_a_search_are_the_whole_search(tmp_path: Path, limit: int, seconds: float) -> None:
    rows = [row(i, "a RED door" if i % 13 == 0 else "a blue one") for i in range(400)]
    write_lines(tmp_path / "e.jsonl", rows)
    made = indexed(tmp_path / "e.jsonl")
    wanted = [i + 1 for i in range(400) if i % 13 == 0]
    assert everything(made, Filter(text="red door"), limit, seconds) == wanted
    assert everything(made, Filter(text="red", outcome="solved"), limit, seconds) == wanted[::2]


@pytest.mark.parametrize("ascii_only", [True, False], ids=["escaped", "UTF-8"])
def test_words_are_found_as_people_write_them(tmp_path: Path, ascii_only: bool) -> None:
    texts = ["Straße ÉTÉ", 'a "quoted"\nline', "back\\slash", "turns", "<b>&", "plain"]
    dumped = [json.dumps(row(i, text), ensure_ascii=ascii_only) for i, text in enumerate(texts)]
    write_lines(tmp_path / "e.jsonl", dumped)
    made = indexed(tmp_path / "e.jsonl")
    for text, wanted in (
        ("straße", [1]), ("été", [1]), ('"QUOTED"', [2]), ('"\nline', [2]), ("back\\", [3]), ("<B>", [5]), ("task/5", [6]),
    ):  # fmt: skip
        assert lines(made, text=text) == wanted, text
    assert lines(made, text="turns") == [4], "a name of the format is none of the words"
    assert lines(made, text="look") == [1, 2, 3, 4, 5, 6] and lines(made, text="no such word") == []


def test_files_grow_are_written_again_and_vanish(tmp_path: Path) -> None:
    first, second = tmp_path / "train-000002.jsonl", tmp_path / "train-000010.jsonl"
    write_lines(second, [row(0)])
    write_lines(first, [row(i) for i in range(3)])
    made = indexed(tmp_path)
    assert made.files() == {"train-000002": 3, "train-000010": 1}, "in the order of iterations, not of names alone"
    with second.open("a") as file:
        file.write(json.dumps(row(1)) + "\n" + json.dumps(row(2))[:-9])
    made.refresh()
    assert made.files()["train-000010"] == 2, "half a line is none yet"
    with second.open("a") as file:
        file.write(json.dumps(row(2))[-9:] + "\n")
    made.refresh()
    assert [e.task for e in made.page(Filter(file="train-000010")).entries] == ["task/0", "task/1", "task/2"]
    other = tmp_path / "new.tmp"
    other.write_text(json.dumps(row(9)) + "\n")
    other.replace(first)
    made.refresh()
    assert [e.task for e in made.page(Filter(file="train-000002")).entries] == ["task/9"]
    first.unlink()
    made.refresh()
    assert list(made.files()) == ["train-000010"]


def test_damaged_lines_are_named_and_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "LONGEST", 4000)
    bad = [
        "{", "[1]", '{"turns": 3}', "[" * 3000, json.dumps(row(1, "x" * 9000)), "\x00", '{"turns": [], "layers": [5]}',
    ]  # fmt: skip
    huge = json.dumps(row(0)).replace("0.0", "1" + "0" * 400, 1)
    write_lines(tmp_path / "e.jsonl", [row(0), "", *bad, huge, row(4)])
    made = indexed(tmp_path / "e.jsonl")
    page = made.page(Filter(outcome="damaged"))
    assert [e.line for e in page.entries] == list(range(3, 3 + len(bad) + 1))
    assert "task_id" in page.entries[2].damage or "layers" in page.entries[2].damage
    assert "at most 4,000" in page.entries[4].damage
    assert lines(made, outcome="solved") == [1, 11] and lines(made, text="word4") == [11]
    assert lines(made, order="best")[-1] != 1, "what has no score comes last"
    with pytest.raises(DataError, match="line 3"):
        made.episode(page.entries[0])
    for line in (0, 2, 12, 10**9):
        with pytest.raises(ConfigError, match="no episode in line"):
            made.entry("e", line)


def test_an_episode_is_checked_when_it_is_read(tmp_path: Path) -> None:
    good = episode(1, True)
    write_lines(tmp_path / "e.jsonl", [good, {**good, "rounds": [{**good["rounds"][0], "D": [[7]]}]}, row(0)])
    made = indexed(tmp_path / "e.jsonl")
    assert made.episode(made.entry("e", 1)).team_return == 1.0
    for line in (2, 3):
        with pytest.raises(DataError, match="No episode record"):
            made.episode(made.entry("e", line))
    (tmp_path / "e.jsonl").write_text("{}\n")
    with pytest.raises(DataError):
        made.episode(made.entry("e", 1))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert indexed(tmp_path).files() == {}


def test_the_same_problem_is_found_in_other_files(tmp_path: Path) -> None:
    write_lines(tmp_path / "eval-000000.jsonl", [row(1), row(1), row(2)])
    write_lines(tmp_path / "eval-000004.jsonl", [row(2), row(1), row(3)])
    write_lines(tmp_path / "train-000004.jsonl", [row(7), row(8), row(7), row(1)])
    made = indexed(tmp_path)
    assert [(e.file, e.line) for e in made.alike("task/1", 2)] == [
        ("eval-000000", 2), ("eval-000004", 2), ("train-000004", 4),
    ]  # fmt: skip
    assert [e.line for e in made.alike("task/7", 1, beside="train-000004")] == [1, 3]


def test_a_look_at_many_files_ends_in_time_and_the_next_goes_on(tmp_path: Path) -> None:
    write_lines(tmp_path / "e.jsonl", [row(i) for i in range(5000)])
    made, looks = EpisodeIndex(tmp_path / "e.jsonl"), 0
    while (progress := made.refresh(0.002)).done < progress.total:
        looks += 1
        assert looks < 5000
    assert looks > 1 and len(lines(made)) == 5000
    started = time.monotonic()
    made.refresh()
    assert time.monotonic() - started < 1.0, "what is known is not read again"


def test_hostile_text_is_text(tmp_path: Path) -> None:
    write_lines(tmp_path / "e.jsonl", [row(0, HOSTILE), row(1)])
    assert lines(indexed(tmp_path / "e.jsonl"), text="<script>document") == [1]
