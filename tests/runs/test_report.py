"""The report: self-contained, escaped, and true to the run's folder."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from helpers import flex
from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.extras import view
from marft_algos.runs import loggers, plots, report
from marft_algos.runs.folder import RunFolder
from marft_envs.core.types import RoundRecord
from marft_envs.errors import MissingExtraError
from marft_envs.records import trajectory

pytestmark = pytest.mark.pictures

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
    for number in (f"{before.mean:.3f}", f"{after.mean:.3f}", f"{100 * difference.mean:+.1f}</b>", f"n = {after.n}"):
        assert number in page
    curves = ("KL", "entropy", "clip share", "value error", "reply length")
    for word in (*curves, "advantage", "planner_0", "letters/", "lora_r = 2"):
        assert word in page


def test_more_agents_than_colors_are_drawn_by_role() -> None:
    """A line per agent could not be told apart, and a legend of thirty names leaves no room for a curve."""
    judge, lengths = {"agent/judge/length": 2.0}, {f"agent/mapper_{i}/length": float(i) for i in range(8)}
    few, many = (plots.diagrams([{"iteration": 1, **lengths, **more}])[0] for more in ({}, judge))
    assert few.series == {f"mapper_{i}": [(1, i)] for i in range(8)} and "role" not in few.note
    assert many.series == {"mapper": [(1, 3.5)], "judge": [(1, 2.0)]} and "role" in many.note


def test_what_is_solved_and_what_is_paid_are_two_diagrams() -> None:
    """On one axis, an evaluation's success beside the return of training would look like a gap between the two."""
    ends = {"eval/low": 0.3, "eval/high": 0.6, "eval/held_out": 1.0}
    lines = [{"iteration": 0, "eval/success": 0.44, **ends}, {"iteration": 1, "return": 0.811, "success": 0.5}]
    success, paid = plots.diagrams(lines)
    assert success.title == "success" and success.series == {
        "evaluation (held out)": [(0, 0.44)],
        "training": [(1, 0.5)],
    }
    assert paid.title == "return" and paid.series == {"training": [(1, 0.811)]}

    alike = [lines[0], {"iteration": 1, "return": 0.5, "success": 0.5}]
    assert [d.title for d in plots.diagrams(alike)] == ["success"], "1 for success: the same number twice"
    unjudged = [lines[0], {"iteration": 1, "return": 0.811}]
    assert [d.title for d in plots.diagrams(unjudged)] == ["return"], "an evaluation measures returns there, too"
    shown = [lines[0], lines[1] | {"rejected": 12.0}]
    assert [list(d.series)[-1] for d in plots.diagrams(shown)] == ["demonstrations", "demonstrations"]


def test_the_progress_line_names_return_and_success() -> None:
    text = StringIO()
    with loggers.Display(12, 0, "t", Console(file=text, width=200)) as display:
        display.log({"iteration": 1, "return": 0.811, "success": 0.44, "time_total": 1.0})
        display.log({"iteration": 2, "return": 1.3, "success": 1, "rejected": 12, "policy/a/loss": 2, "time_total": 1})
    one, two = text.getvalue().splitlines()
    assert "  return 0.811  success 0.440  " in one
    assert "  return of demonstrations 1.300  a loss 2.0000  infra" in two and "success" not in two


def test_curves_are_drawn_in_both_formats(run: RunFolder) -> None:
    diagrams = plots.diagrams(run.metrics())
    assert [d.title for d in diagrams][:4] == ["success", "return", "loss", "KL"]
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


def test_the_page_has_the_team_d_and_its_profiles(run: RunFolder) -> None:
    page = report.render(run)
    assert "Plan." in page and "Solve." in page, "what each agent is told"
    figures = re.findall(r'<svg class="D".*?</svg>', page, re.DOTALL)
    assert len(figures) == 1, "one round, and the untrained team's D is the trained one's"
    cells = re.findall(r'<rect class="edge".*?fill-opacity="(.*?)"><title>(.*?)</title>', figures[0])
    assert cells == [("1.000", "planner_0 → solver_0: 100%"), ("0.000", "solver_0 → planner_0: 0%")]


def test_d_is_the_share_of_episodes_that_had_the_round() -> None:
    rng, played = np.random.default_rng(0), []
    for rounds in (1, 3, 2, 3):
        made = flex.play(flex.flex(3)).episode
        made.rounds = [RoundRecord(i, rng.integers(0, 2, (3, 3)).tolist(), []) for i in range(rounds)]
        played.append(made)
    shown = report.shares(played)
    assert [len(m) for m in shown] == [3, 3, 3]
    for i, matrix in enumerate(shown):
        np.testing.assert_allclose(matrix, np.mean([e.rounds[i].D for e in played if len(e.rounds) > i], axis=0))
    assert report.shares([]) == []
    picture: Any = report.pages().get_template("dependence.svg.jinja").module
    drawn = ElementTree.fromstring(picture.svg(["<b>&", "a" * 99, "c"], shown[0], HOSTILE[:40]))
    assert len(drawn.findall("rect")) == 9 and not drawn.findall("b")


SIGHTS = {
    "all colours": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What is left of linear RGB (Machado, Oliveira, Fernandes 2009, severity 1)."""


def lab(color: str, sight: str) -> np.ndarray:
    """CIE L*a*b* of a colour as somebody sees it, under D65."""
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.clip(SIGHTS[sight] @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = to_xyz @ linear / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHTS)
def test_colors_can_be_told_apart(sight: str) -> None:
    """A just noticeable difference is about 2.3; lines are thin, so more is asked, and most of the first four."""
    seen = [lab(color, sight) for color in plots.COLORS]
    apart = {(i, j): np.linalg.norm(seen[i] - seen[j]) for j in range(len(seen)) for i in range(j)}
    assert min(apart.values()) > 10
    assert min(distance for (_, j), distance in apart.items() if j < 4) > 15


def test_the_viewer_has_the_same_colors() -> None:
    style = (Path(view.__file__).parent / "web/style.css").read_text()
    assert tuple(re.findall(r"--c\d: (#\w+)", style)) == plots.COLORS


def test_what_lies_below_the_floor_flattens_nothing() -> None:
    lines = [{"iteration": i, "policy/a/explained_variance": v} for i, v in enumerate([0.5, -1e9, 0.25])]
    (diagram,) = plots.diagrams(lines)
    axes = plots.figure(3, 2).add_subplot()
    plots.draw(axes, diagram, plots.colors([diagram]))
    low, high = axes.get_ylim()
    assert low == -1 and 0.5 < high < 2


def test_a_run_that_has_only_begun_has_a_report(run: RunFolder, tmp_path: Path) -> None:
    begun = RunFolder(tmp_path)
    (tmp_path / "config.toml").write_text(run.config_file.read_text())
    report.write(begun)
    assert "iterations" in begun.report_file.read_text()


def test_without_matplotlib_the_report_says_what_curves_need(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = report.render(run)
    assert (
        "<svg style" not in page
        and '<svg class="D"' in page
        and "pip install -e &#39;.[train]&#39;" in page
        and "lora_r = 2" in page
    )
    with pytest.raises(MissingExtraError, match="Drawing curves"):
        report.finish(run)
