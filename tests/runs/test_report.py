"""The report: self-contained, escaped, and true to the run's folder."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.runs import plots, report
from marft_algos.runs.folder import RunFolder
from marft_envs import trajectory
from marft_envs.errors import MissingExtraError

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)> & "quotes" \ud800 $title ${body}'


class Tags(HTMLParser):
    """Collects tags, and checks that they are balanced."""

    EMPTY = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        assert not {name for name, _ in attrs} & {"src", "href", "onerror", "onload"}
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open and self.open.pop() == tag


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("run")
    model = save_tiny(folder / "model", hidden=16, layers=1)
    return train(settings(model, folder))[1]


def poison(run: RunFolder) -> None:
    """Puts hostile text where a model could have put it."""
    for kind, iteration in (("eval", 4), ("train", 4)):
        rows = run.episodes(kind, iteration)
        for episode in rows:
            episode.success, episode.info["status"] = True, HOSTILE
            for turn in episode.turns:
                turn.text = HOSTILE
                turn.extras = {**(turn.extras or {}), "pieces": [HOSTILE], "advantages": [1.0]}
        run.write_episodes(kind, iteration, [trajectory.to_dict(e) for e in rows])


def test_the_page_is_whole_escaped_and_needs_no_network(run: RunFolder) -> None:
    poison(run)
    run.add_command("marft train --name '<b>'", 0, made=True)
    report.write(run)
    page = run.report_file.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert not tags.open and "script" not in tags.seen and "img" not in tags.seen
    assert tags.seen["svg"] >= 8 and tags.seen["article"] >= 8
    assert "&lt;script&gt;alert(1)" in page and "$title" in page and "&lt;b&gt;" in page
    # In the page's colors, which are light or dark.
    assert "var(--soft)" in page.partition("<svg")[2] and plots.INK not in page.partition("</style>")[2]
    assert not re.search(r"url\((?!#)|@import|https?://", page)


def test_the_page_shows_what_the_run_measured(run: RunFolder) -> None:
    page = report.render(run)
    gain = run.gain()
    assert gain is not None
    before, after, difference = gain
    for number in (f"{before.mean:.1%}", f"{after.mean:.1%}", f"{100 * difference.mean:+.1f} pts", f"n = {after.n}"):
        assert number in page
    for word in (
        "KL",
        "entropy",
        "clip share",
        "value error",
        "reply length",
        "advantage",
        "planner_0",
        "letters/",
        "lora_r = 2",
    ):
        assert word in page


def test_curves_are_drawn_in_both_formats(run: RunFolder) -> None:
    diagrams = plots.diagrams(run.metrics())
    assert [d.title for d in diagrams][:3] == ["score", "loss", "KL"]
    palette = plots.colors(diagrams)
    for diagram in diagrams:
        figure = plots.figure(3, 2)
        axes = figure.add_subplot()
        plots.draw(axes, diagram, palette)
        ElementTree.fromstring(plots.svg(figure))
        lines = [line for line in axes.lines if line.get_label() in diagram.series]
        # Evaluations are points with their intervals: between them, nothing was measured.
        joined = [line for line in lines if line.get_linestyle() != "None"]
        assert len(lines) == len(diagram.series) and len(joined) == len(lines) - bool(diagram.bars)
        low, high = axes.get_ylim()
        assert not (diagram.unit or diagram.share) or 0 == low < high <= 1
    plots.write_png(run.metrics(), run.curves_file)
    assert run.curves_file.read_bytes().startswith(b"\x89PNG")


def test_a_run_that_has_only_begun_has_a_report(run: RunFolder, tmp_path: Path) -> None:
    begun = RunFolder(tmp_path)
    (tmp_path / "config.toml").write_text(run.config_file.read_text())
    report.write(begun)
    assert "iterations" in begun.report_file.read_text()


def test_without_matplotlib_the_report_says_what_curves_need(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = report.render(run)
    assert "<svg" not in page and "pip install &#x27;marft[train]&#x27;" in page and "lora_r = 2" in page
    with pytest.raises(MissingExtraError, match="Drawing curves"):
        report.finish(run)
