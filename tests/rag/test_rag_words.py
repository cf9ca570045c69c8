"""Words of languages without blanks and letters in several forms: found, cut, and compared as answers."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest

import marft_envs
from marft_envs.families.rag.data import WORDS, cut, pieces
from marft_envs.problems.answers import em, f1, substring
from marft_envs.problems.index import QUERY_WORDS, Index, Passage
from marft_envs.problems.scripts import words

TEXTS = {
    "tokyo": "東京は日本の首都です。人口は約千四百万人。", "osaka": "大阪は日本の西にあります。ｵｵｻｶ。", "beijing": "北京是中国的首都，有故宫。电话号码是４０２。",
    "cat": "她养了一只猫。", "bangkok": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "vientiane": "ນະຄອນຫຼວງວຽງຈັນແມ່ນເມືອງຫຼວງ",
    "angkor": "អង្គរវត្តជាប្រាសាទ", "yangon": "ရန်ကုန်မြို့သည်မြို့တော်ဟောင်း", "seoul": "서울특별시는 대한민국의 수도이다.",
    "delhi": "दिल्ली भारत की राजधानी है।",
    "gothenburg": unicodedata.normalize("NFD", "Göteborg has a café called Über."),
    "firm": "ＡＣＭＥ Ltd. sells ﬁne soft\u00adware.",
}  # fmt: skip


@pytest.mark.parametrize(("query", "found"), [
    *(("東京", "tokyo"), ("千四百万", "tokyo"), ("大阪", "osaka"), ("オオサカ", "osaka"), ("故宫", "beijing")),
    *(("猫", "cat"), ("402", "beijing"), ("４０２", "beijing"), ("ประเทศไทย", "bangkok"), ("ວຽງຈັນ", "vientiane")),
    *(("អង្គរ", "angkor"), ("ရန်ကုန်", "yangon"), ("서울", "seoul"), ("대한민국", "seoul"), ("दिल्ली", "delhi")),
    *(("राजधानी", "delhi"), ("göteborg", "gothenburg"), ("CAFÉ", "gothenburg"), ("ÜBER", "gothenburg")),
    *(("acme", "firm"), ("ＦＩＮＥ", "firm"), ("software", "firm")),
])  # fmt: skip
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_of_any_language_and_form_find_their_passage_first(query: str, found: str, form: str) -> None:
    index = Index.of(Passage(name, "", text) for name, text in TEXTS.items())
    assert [p.id for p, _ in index.search(unicodedata.normalize(form, query), 1)] == [found]  # type: ignore[arg-type]


@pytest.mark.parametrize(("query", "absent"), [("दल", "delhi"), ("京東", "tokyo"), ("cafe", "gothenburg")])
def test_words_are_not_cut_at_marks_nor_letters_taken_for_others(query: str, absent: str) -> None:
    index = Index.of(Passage(name, "", text) for name, text in TEXTS.items())
    assert absent not in [p.id for p, _ in index.search(query, len(TEXTS))]


def test_english_words_are_what_they_were() -> None:
    for text in ("Ann's 3rd e-mail, to_do: x=1.", "naïve café Zürich", "don’t – “stop”", "", "Ωμέγα МИР"):
        assert words(text) == re.findall(r"\w+", text.casefold()) == words(text, singles=True)


@pytest.mark.parametrize("limit", [QUERY_WORDS, 2 * QUERY_WORDS])
def test_as_much_of_a_query_without_blanks_is_looked_up(limit: int) -> None:
    long = "".join(chr(0x4E00 + i) for i in range(limit + 1))
    index = Index.of([Passage("a", "", "猫狗")])
    assert bool(index.search(f"{long}。猫狗", 1)) is (limit == QUERY_WORDS)


@pytest.mark.parametrize(("text", "most"), [
    ("今天天气很好，我们去公园散步。" * 2200, 230), ("「元気ですか」と聞いた。" * 900, 260), ("กรุงเทพมหานครเป็นเมืองหลวง" * 400, 400),
])  # fmt: skip
def test_texts_without_blanks_are_cut_into_passages_and_nothing_is_lost(text: str, most: int) -> None:
    parts = pieces(text, WORDS)
    assert "".join(parts) == text
    assert len(text) / most <= len(parts) <= len(text) / 100
    assert max(map(len, parts)) <= most
    assert not any(unicodedata.category(part[0])[0] in "MP" and part[0] != "「" for part in parts)


def test_sentences_without_blanks_are_ends_of_passages_and_no_blank_comes_between() -> None:
    assert pieces("东京很大。大阪不大。", 3) == ["东京很大。", "大阪不大。"]
    assert pieces("The 东京塔 is tall. It stands.", 4) == ["The 东京塔 is", "tall. It stands."]
    assert pieces("Ein Café. Zwei Übel.", 2) == ["Ein Café.", "Zwei Übel."]


@pytest.mark.parametrize(("answer", "gold", "equal", "inside", "overlap"), [
    ("東京。", "東京", 1, 1, 1.0), ("答えは東京です", "東京", 0, 1, 4 / 9), ("４０２", "402", 1, 1, 1.0),
    (unicodedata.normalize("NFD", "Göteborg"), "göteborg", 1, 1, 1.0),
    ("กรุงเทพฯ", "กรุงเทพ", 0, 1, None), ("the U.S.", "us", 1, 1, 1.0), ("don’t", "dont", 0, 0, 0.0),
])  # fmt: skip
def test_answers_without_blanks_are_compared_by_characters(
    answer: str, gold: str, equal: float, inside: float, overlap: float | None
) -> None:
    assert (em(answer, [gold]), substring(answer, [gold])) == (equal, inside)
    assert overlap is None or f1(answer, [gold]) == pytest.approx(overlap)


def test_needed_documents_are_known_in_any_form_and_by_any_of_their_pieces(tmp_path: Path) -> None:
    corpus, asked = tmp_path / "corpus.jsonl", tmp_path / "asked.jsonl"
    rows = [{"id": unicodedata.normalize("NFD", "Café"), "text": "東京は首都です。" * 100}, {"id": "b", "text": "大阪"}]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    question = {"question": "首都は？", "answer": "東京", "needed": [unicodedata.normalize("NFC", "Café")]}
    asked.write_text(json.dumps(question) + "\n", encoding="utf-8")
    env = marft_envs.make("rag-solo-v0", data=str(asked), corpus=str(corpus), k=1, recall_reward=0.5)
    env.reset(seed=0)
    env.step("首都")
    assert env.episode.turns[0].result.startswith(f"[{rows[0]['id']}#1] ")
    env.step(rf"\boxed{{東京}} [{rows[0]['id']}#1]")
    metrics = env.episode.metrics
    assert env.episode.success
    assert metrics["recall"] == metrics["cited"] == metrics["cited_precision"] == 1.0
    assert len(list(cut("a", "", rows[0]["text"]))) > 1
