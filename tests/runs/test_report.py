"""The report: self-contained, escaped, and true to the run's folder."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.runs import plots, report
from marft_algos.runs.folder import RunFolder
from marft_envs import trajectory

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)> & "quotes" \ud800 $title ${body}'


class Tags(HTMLParser):
    """Collects tags, and checks that they are balanced."""

    EMPTY = ("meta", "img", "br", "line", "circle", "polyline", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        assert not {name for name, _ in attrs} & {"src", "href", "onerror", "onload"}
        if tag not in self.EMPTY:
            self.open.append(tag)

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
    assert not re.search(r"url\(|@import|https?://", page)


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
    panels = plots.panels(run.metrics())
    assert [p.title for p in panels][:3] == ["score", "loss", "KL"]
    palette = plots.colors(panels)
    for panel in panels:
        root = ElementTree.fromstring(plots.svg(panel, palette))
        # Evaluations are points with their intervals: between them, nothing was measured.
        assert len(root.findall("polyline")) == len(panel.series) - bool(panel.bars)
    plots.write_png(run.metrics(), run.curves_file)
    assert run.curves_file.read_bytes().startswith(b"\x89PNG")


def test_a_run_that_has_only_begun_has_a_report(run: RunFolder, tmp_path: Path) -> None:
    begun = RunFolder(tmp_path)
    (tmp_path / "config.toml").write_text(run.config_file.read_text())
    report.write(begun)
    assert "iterations" in begun.report_file.read_text()


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3e-4, 2e-3), (5.0, 5.1), (0.0, 123456.0), (-2.0, -1.0)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = plots._ticks(low, high)
    assert 3 <= len(ticks) <= 8 and all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert len(steps) == 1
