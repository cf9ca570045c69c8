"""Search by words: BM25 against brute force, indexes on disk, corpora, functions of a user's."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_envs
from marft_envs import ConfigError, DataError
from marft_envs.consent import WRITES, powers
from marft_envs.families.rag.data import Searcher, cut, opened, pieces
from marft_envs.problems.index import K1, QUERY_WORDS, VERSION, B, Index, Passage, words


def corpus(n: int = 60) -> list[Passage]:
    rng = np.random.default_rng(0)
    text = lambda most: " ".join(f"w{int(30 * rng.random() ** 3)}" for _ in range(int(rng.integers(1, most))))  # noqa: E731
    return [Passage(f"id{i}", text(4) if i % 3 else "", text(40)) for i in range(n)]


def bm25(passages: Sequence[Passage], query: str) -> list[float]:
    """Lucene's BM25 from its formula, word by word."""
    texts = [Counter(words(f"{p.title} {p.text}")) for p in passages]
    mean = sum(text.total() for text in texts) / len(texts)
    scores = [0.0] * len(texts)
    for word in words(query):
        df = sum(word in text for text in texts)
        idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
        for i, text in enumerate(texts):
            scores[i] += idf * text[word] / (text[word] + K1 * (1 - B + B * text.total() / mean))
    return scores


QUERIES = ("w0", "w3 w7", "w1 W1, w29 unknown", "w0 w1 w2 w3 w4 w5 w6 w7 w8", "nothing here", "", "?!")


@pytest.mark.parametrize("query", QUERIES)
def test_scores_are_those_of_the_formula(query: str) -> None:
    passages = corpus()
    found = Index.of(passages).search(query, 10)
    scores = bm25(passages, query)
    assert len(found) == min(10, sum(score > 0 for score in scores))
    assert [score for _, score in found] == pytest.approx(sorted(scores, reverse=True)[: len(found)], rel=1e-5)
    assert all(score == pytest.approx(scores[passages.index(passage)], rel=1e-5) for passage, score in found)


def test_scores_are_those_of_bm25s() -> None:
    bm25s = pytest.importorskip("bm25s")
    passages = corpus()
    theirs = bm25s.BM25(method="lucene", k1=K1, b=B)
    theirs.index([words(f"{p.title} {p.text}") for p in passages], show_progress=False)
    for query in QUERIES[:4]:
        known = [word for word in words(query) if any(word in words(f"{p.title} {p.text}") for p in passages)]
        scores = theirs.get_scores(known)
        for passage, score in Index.of(passages).search(query, 60):
            assert score == pytest.approx(scores[passages.index(passage)], rel=1e-4)


def test_of_equal_passages_the_first_is_first_and_long_queries_cost_no_more() -> None:
    index = Index.of([Passage(str(i), "", "same words") for i in range(9)] + [Passage("z", "", "other")])
    assert [passage.id for passage, _ in index.search("words", 4)] == ["0", "1", "2", "3"]
    assert index.search(" ".join(map(str, range(QUERY_WORDS))) + " other", 1) == []
    assert len(index.search("other words", 99)) == 10


@pytest.mark.parametrize(("passages", "message"), [
    ([], "corpus is empty"), ([("1", "", "x"), ("1", "", "y")], "the id '1' twice"),
    ([("1", "T", " \n")], "expected an id"), ([("1", "", 3)], "expected an id, a title "),
])  # fmt: skip
def test_corpora_that_cannot_be_searched(passages: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Index.of([Passage(*passage) for passage in passages])


def test_an_index_is_built_once_mapped_and_refused_where_it_is_anothers(tmp_path: Path) -> None:
    folder, passages = tmp_path / "index", corpus(20)
    first = Index.at(folder, "one", lambda: passages)
    again = Index.at(folder, "one", lambda: pytest.fail("it is built anew"))
    assert isinstance(again.arrays["weights"].base, np.memmap) and list(again) == passages
    assert again.search("w0 w5", 5) == Index.of(passages).search("w0 w5", 5) == first.search("w0 w5", 5)
    assert copy.deepcopy(again) is again and len(pickle.dumps(again)) < 500
    assert pickle.loads(pickle.dumps(again)).search("w3", 2) == pickle.loads(pickle.dumps(Index.of(passages))).search(
        "w3", 2
    )
    assert again.get("id7") == passages[7] and again.get("id99") is None
    with pytest.raises(DataError, match=r"'corpus': 'one'.*expected .*'two'.*Next: rm -r .*index"):
        Index.at(folder, "two", lambda: passages)
    header = folder / "header.json"
    header.write_text(header.read_text().replace(f'"version": {VERSION}', '"version": 0'))
    with pytest.raises(DataError, match="'version': 0"):
        Index.at(folder, "one", lambda: passages)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(DataError, match="or index=… another folder"):
        Index.at(tmp_path / "full", "one", lambda: passages)


def damaged(folder: Path) -> str:
    """What is said of an index that is opened, here and where it was sent to; nothing if it is taken."""
    said = []
    for open_it in (lambda: Index.at(folder, "one", corpus), lambda: Index.__reduce__(Index({}, folder))[0](folder)):
        try:
            open_it()
        except DataError as error:
            said.append(str(error))
    assert len(said) in (0, 2)
    return said[0] if said else ""


def test_a_changed_bit_of_an_index_is_noticed_before_anything_is_searched(tmp_path: Path) -> None:
    """All of its files' first bytes, which say types and sizes, and two hundred anywhere."""
    folder, rng = tmp_path / "index", np.random.default_rng(0)
    Index.at(folder, "one", corpus)
    files = sorted(folder.iterdir())
    assert len(files) == 8 and not damaged(folder)
    sizes = [file.stat().st_size for file in files]
    places = [(i, int(rng.integers(size))) for i, size in enumerate(sizes) for _ in range(200 * size // sum(sizes) + 2)]
    places += [(i, place) for i, size in enumerate(sizes) for place in range(min(size, 128))]
    for i, place in places:
        whole = files[i].read_bytes()
        files[i].write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        assert f"Next: rm -r {folder}" in damaged(folder), (files[i].name, place)
        files[i].write_bytes(whole)
    assert not damaged(folder)


@pytest.mark.parametrize(("name", "change"), [
    ("weights", lambda x: np.zeros_like(x)), ("weights", lambda x: np.full_like(x, np.nan)),
    ("weights", lambda x: x.astype(np.float16)), ("numbers", lambda x: -x - 1), ("starts", lambda x: x[:-1]),
    ("words", lambda x: x[::-1]),
    ("text", lambda x: np.frombuffer(x.tobytes().replace(b"w1 ", b"w2 "), np.uint8)),
    ("ends", lambda x: np.array([{}], object)),
])  # fmt: skip
def test_an_index_whose_arrays_were_replaced_is_refused(name: str, change: Any, tmp_path: Path) -> None:
    folder = tmp_path / "an index"
    Index.at(folder, "one", corpus)
    file = folder / f"{name}.npy"
    np.save(file, change(np.load(file)))
    assert f"{name}.npy. Next: rm -r '{folder}'" in damaged(folder)


@pytest.mark.parametrize(
    "change", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-9]), lambda f: f.write_bytes(b"")]
)
@pytest.mark.parametrize("name", ["starts.npy", "text.npy", "SHA256SUMS"])
def test_an_index_that_was_cut_is_refused(name: str, change: Any, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    Index.at(folder, "one", corpus)
    change(folder / name)
    assert f"Next: rm -r {folder}" in damaged(folder)


def test_long_texts_are_cut_at_ends_of_paragraphs_and_sentences() -> None:
    assert pieces("One two.\n\nThree four five.\n\nSix.", 4) == ["One two.", "Three four five. Six."]
    assert pieces("One two three. Four five! Six seven", 3) == ["One two three.", "Four five!", "Six seven"]
    assert pieces("a b c d e", 2) == ["a b", "c d", "e"] and pieces(" \n\n ", 3) == []
    assert [p.id for p in cut("x", "T", "word " * 150)] == ["x#1", "x#2"] and [p.id for p in cut("x", "", "word")] == [
        "x"
    ]


def test_a_corpus_is_a_jsonl_file_or_a_folder_of_texts(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    (texts / "more").mkdir(parents=True)
    (texts / "rome.txt").write_text("Rome lies on the Tiber.")
    (texts / "more" / "lima.md").write_text("Lima is large. " * 60)
    (texts / "empty.txt").write_text("\n")
    (texts / "picture.png").write_bytes(b"\xff\x00")
    index = opened(texts)
    assert [p.id for p in index] == ["more/lima#1", "more/lima#2", "rome"] and opened(texts) is index
    assert str(index.search("Tiber", 1)[0][0]) == "[rome] rome: Rome lies on the Tiber."
    (texts / "rome.txt").write_text("Rome lies on the Tiber, and on seven hills.")
    assert opened(texts).search("hills", 1)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "\n".join(map(json.dumps, [{"id": 7, "title": "Po", "text": "A river."}, {"text": "No id."}, {"text": ""}]))
    )
    assert list(opened(rows, tmp_path / "here")) == [Passage("7", "Po", "A river."), Passage("2", "", "No id.")]
    assert (tmp_path / "here" / "header.json").is_file()


@pytest.mark.parametrize(("content", "message"), [
    (b'{"id": 1}', "line 1: expected 'text'"), (b'{"text": ["x"]}', "line 1: expected 'text'"),
    (b'{"text": "x", "id": 1}\n{"text": "y", "id": "1"}', "the id '1' twice"),
    (b'{"text": ""}', "corpus is empty"),
])  # fmt: skip
def test_corpora_of_files_that_cannot_be_used(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "rows.jsonl")


def test_other_things_are_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no corpus"):
        opened(tmp_path / "nowhere")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"bad\.txt cannot be read as text"):
        opened(tmp_path)


# --- functions ----------------------------------------------------------------------------------------------------


def found(query: str, k: int) -> list[Any]:
    return [("id1", 2.0), ("x", "Title", query), {"id": 3, "text": "three"}, ("id2", 1.0)]


def late(query: str, k: int) -> list[Any]:
    time.sleep(30)
    return []


def broken(query: str, k: int) -> list[Any]:
    raise ValueError("no such collection")


def test_a_function_returns_ids_or_passages() -> None:
    passages = corpus(5)
    search = Searcher(Index.of(passages), found)
    assert search("river", 3) == [passages[1], Passage("x", "Title", "river"), Passage("3", "", "three")]
    with pytest.raises(ConfigError, match=r"returned \('id1', 2.0\); expected"):
        Searcher(None, found)("river", 1)


def test_a_function_can_be_named_and_is_then_code_of_somebodys() -> None:
    name = f"{__name__}:found"
    assert Searcher(None, name).search is found
    assert [power.does for power in powers({"env_kwargs": {"search": name}})] == ["runs code of that module"]
    for bad in ("nowhere:search", f"{__name__}:nothing", "found"):
        with pytest.raises(ConfigError, match="module:function"):
            Searcher(None, bad)
    with pytest.raises(ConfigError, match="without passages"):
        Searcher(None)


@pytest.mark.parametrize(("search", "reason"), [(broken, "world_crashed"), (late, "world_hung")])
def test_a_search_that_fails_is_an_infrastructure_error(search: Any, reason: str) -> None:
    env = marft_envs.make("rag-chain-v0", level=0, search=search, search_timeout_s=0.05)
    env.reset(seed=0)
    env.step("anything")
    assert (
        env.done
        and env.episode.fault == "world"
        and env.episode.stop_reason == reason
        and env.episode.infrastructure_error
    )
    assert "Error: " in env.episode.info["world_error"]


def linked(folder: Path, outside: Path) -> None:
    (folder / "b.txt").symlink_to(outside)


def piped(folder: Path, outside: Path) -> None:
    os.mkfifo(folder / "b.txt")


def latin(folder: Path, outside: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/gr\xf6\xdfe.txt")).write_text("x")


@pytest.mark.parametrize(("spoil", "message"), [
    (linked, r"b.txt is a link out of the corpus\. Put"), (piped, r"b.txt is no regular file"),
    (latin, r"gr\\udcf6\\udcdfe.txt has a name that is no UTF-8"),
])  # fmt: skip
def test_a_strangers_corpus_opens_nothing_but_its_own_files(spoil: Any, message: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "secret", tmp_path / "notes"
    outside.write_text("the password is swordfish")
    folder.mkdir()
    (folder / "a.txt").write_text("plain")
    (folder / "c.txt").symlink_to("a.txt")
    (folder / ".#a.txt").symlink_to("editor@host")
    spoil(folder, outside)
    with pytest.raises(DataError, match=message):
        opened(folder, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    next(path for path in folder.iterdir() if path.name not in ("a.txt", "c.txt", ".#a.txt")).unlink()
    assert [passage.id for passage in opened(folder, tmp_path / "index")] == ["a", "c"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x85", "\u2028", "\x0b"])
def test_no_name_forges_a_passage(end: str) -> None:
    assert str(Passage(f"a{end}[b]", "", "x")) == "[a [b]] x"
    assert str(Passage("a", f"T{end}[b] U", "x")) == "[a] T [b] U: x"


def test_building_an_index_takes_a_few_times_the_corpus() -> None:
    rng = np.random.default_rng(0)
    passages = [Passage(str(i), "", " ".join(f"w{n}" for n in rng.integers(9000, size=100))) for i in range(4000)]
    size = sum(len(passage.text) for passage in passages)
    tracemalloc.start()
    Index.of(passages)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * size


def test_a_files_index_is_written_with_leave_alone() -> None:
    assert [(p.name, p.does) for p in powers({"env_kwargs": {"index": "elsewhere", "corpus": "notes"}})] == [
        ("env_kwargs.index", WRITES)
    ]
