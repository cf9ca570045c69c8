"""The figures of a benchmark, each as SVG and as PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marft_algos.extras.bench import statistics
from marft_algos.extras.bench.tables import EVERYTHING, Line, Row, complete, grouped, label, outcomes
from marft_algos.runs import plots
from marft_algos.runs.disk import writing
from marft_algos.runs.intervals import Interval
from marft_algos.runs.plots import COLORS, NOISE

Draw = Callable[[Any, Sequence[Row], Mapping[str, Any]], None]
"""Draws on axes what the rows of one environment say; label -> color and line."""
STYLES = ("-", "--", ":", "-.")
"""Colors repeat after eight algorithms; the lines differ."""
MARKERS = dict(zip(STYLES, "os^D", strict=True))
"""Points differ alike."""
BANDS = 6
"""With more algorithms than this there are lines alone: bands upon bands hide them."""

NOT_MEASURED = "not measured here"
NOTHING = dict.fromkeys(("kl", "ess"), "one step a batch: the ratio is 1, so there is nothing to draw")
"""Figure -> the text where an environment has no data."""


def write(rows: Sequence[Row], lines: Sequence[Line], folder: Path) -> dict[str, str]:
    """Writes all figures; returns name -> SVG text. With a reference, environments are drawn side by side too.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    done = [r for r in rows if r["status"] == "done" and not r["hidden"]]
    envs = list(dict.fromkeys(r["env"] for r in done))
    names = list(dict.fromkeys(map(label, done)))
    look = {name: (COLORS[i % len(COLORS)], STYLES[i // len(COLORS) % len(STYLES)]) for i, name in enumerate(names)}
    out: dict[str, str] = {}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    each = {env: [r for r in done if r["env"] == env] for env in envs}
    figures: dict[str, Draw] = {
        "efficiency_tokens": lambda axes, rows, look: _efficiency(axes, rows, look, "tokens"),
        "efficiency_seconds": lambda axes, rows, look: _efficiency(axes, rows, look, "seconds"),
        "iqm": lambda axes, rows, look: _iqm(axes, rows, look, lines),
        "profiles": _profiles,
        "contribution": _contribution,
        "kl": lambda axes, rows, look: _drift(axes, rows, look, "kl", "KL to the sampling policy"),
        "ess": lambda axes, rows, look: _drift(axes, rows, look, "ess", "effective sample size"),
    }
    drawn = {name: (draw, each) for name, draw in figures.items() if envs}
    if any(line.across for line in lines):
        drawn["environments"] = (lambda axes, rows, look: _environments(axes, look, lines), {"": done})
    for name, (draw, every) in drawn.items():
        height = -(-len(every) // 3)
        columns = -(-len(every) // height)
        figure = plots.figure(5.2 * columns, 3.6 * height)
        for i, (title, part) in enumerate(every.items()):
            axes = figure.add_subplot(height, columns, i + 1)
            draw(axes, part, look)
            plots.finish(axes, title)
            if not axes.has_data():
                axes.text(0.5, 0.5, NOTHING.get(name, NOT_MEASURED), ha="center", color=plots.INK, fontsize=8)
        if not any(axes.has_data() for axes in figure.axes):
            continue
        plots.legend(figure)
        out[name] = plots.svg(figure)
        with writing(folder):
            (folder / f"{name}.svg").write_text(out[name], encoding="utf-8")
            figure.savefig(folder / f"{name}.png", dpi=110)
    return out


def _beside(name: str, look: Mapping[str, Any]) -> float:
    """Returns where an algorithm stands among those drawn at one place, from -0.5 to 0.5."""
    return (list(look).index(name) + 0.5) / len(look) - 0.5


def _efficiency(axes: Any, rows: Sequence[Row], look: Mapping[str, Any], unit: str) -> None:
    """Draws evaluations' scores over what was spent, where it was measured: the mean of seeds, and their range."""
    for name, runs in grouped(rows, label).items():
        if not (curves := [r["curve"] for r in runs if len(r["curve"]) > 1]):
            continue
        together = min(map(len, curves))  # the k-th evaluation of every seed
        x = np.array([[p[unit] for p in c[:together]] for c in curves]).mean(0)
        x += _beside(name, look) * 0.04 * x.max()  # budgets are equal: points would cover each other
        read = np.array([[p["score"] for p in c[:together]] for c in curves])
        color, style = look[name]
        axes.plot(x, read.mean(0), MARKERS[style], color=color, label=name, markersize=4)
        axes.plot(x, read.mean(0), ":", color=color, linewidth=0.9, alpha=0.7)
        if len(look) <= BANDS:
            axes.vlines(x, read.min(0), read.max(0), color=color, linewidth=1.2, alpha=0.6)
    axes.set_xlabel("tokens sampled" if unit == "tokens" else "seconds of training")
    axes.set_ylabel("score")


def _iqm(axes: Any, rows: Sequence[Row], look: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """Draws the IQM and its interval, one line per algorithm; without an interval, the point alone."""
    env = rows[0]["env"]
    shown = [x for x in lines if x.env == env and x.iqm is not None and x.env != EVERYTHING]
    for y, line in enumerate(reversed(shown)):
        _interval(axes, line.iqm, y, look[line.algorithm][0], 5, marker="|", markersize=12, markeredgewidth=2)
    axes.set_yticks(range(len(shown)), [x.algorithm for x in reversed(shown)], fontsize=7)
    axes.set_xlabel("IQM of the score, 95 % interval")


def _environments(axes: Any, look: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """Draws the mean and its interval of every algorithm, one line per environment."""
    shown = [x for x in lines if x.mean is not None and x.env != EVERYTHING]
    envs = list(dict.fromkeys(x.env for x in shown))[::-1]
    names = list(dict.fromkeys(x.algorithm for x in shown))
    for line in shown:
        y = envs.index(line.env) - 0.6 * (names.index(line.algorithm) + 0.5) / len(names) + 0.3
        first = line is next(x for x in shown if x.algorithm == line.algorithm)
        name = line.algorithm if first else None
        _interval(axes, line.mean, y, look[line.algorithm][0], 2, marker="o", markersize=4, label=name)
    axes.set_yticks(range(len(envs)), envs, fontsize=7)
    axes.set_xlabel("mean score, 95 % interval")


def _interval(axes: Any, e: Interval | None, y: float, color: str, width: float, **marked: Any) -> None:
    """Draws a mean on its interval, if it has one; lines to nan are not drawn."""
    if e is not None:
        axes.plot([e.low, e.high], [y, y], color=color, linewidth=width, alpha=0.4, solid_capstyle="butt")
        axes.plot([e.mean], [y], color=color, **marked)


def _profiles(axes: Any, rows: Sequence[Row], look: Mapping[str, Any]) -> None:
    """Draws the share of runs that reach a score, with the bootstrap's band."""
    levels = np.linspace(0, 1, 101)
    for name, runs in grouped(rows, label).items():
        kept = complete(outcomes(runs)[1])
        if not kept[0].size:  # each problem was lost to an infrastructure error in one run or another
            continue
        share = statistics.profile(kept, levels)
        color, style = look[name]
        axes.step(levels, share[0], style, where="post", color=color, label=name, linewidth=1.4)
        if len(look) <= BANDS and not np.isnan(share[1]).all():
            axes.fill_between(levels, share[1], share[2], step="post", color=color, alpha=0.1, linewidth=0)
    axes.set_xlabel("score τ")
    axes.set_ylabel("share of runs with score ≥ τ")


def _contribution(axes: Any, rows: Sequence[Row], look: Mapping[str, Any]) -> None:
    """Draws the trained team's score, and that with one policy set back to its start; mean of seeds."""
    for name, runs in grouped(rows, label).items():
        if not (tables := [r["contribution"] for r in runs if isinstance(r.get("contribution"), dict)]):
            continue
        policies = list(tables[0])
        means = [float(np.mean([t[p] for t in tables])) for p in policies]
        color, style = look[name]
        axes.plot(
            np.arange(len(policies)) + 0.5 * _beside(name, look),
            means,
            MARKERS[style],
            markersize=5,
            color=color,
            label=name,
        )
        axes.set_xticks(range(len(policies)), [p or "none" for p in policies], fontsize=7)
    axes.set_xlabel("policy frozen at its start")
    axes.set_ylabel("score")


def _drift(axes: Any, rows: Sequence[Row], look: Mapping[str, Any], name: str, title: str) -> None:
    """Draws a quantity of the update over tokens, mean of policies: the mean of seeds, and their range."""
    nothing = 1.0 if name == "ess" else 0.0  # what one step a batch has, to the last bits
    for row_label, runs in grouped(rows, label).items():
        color, style = look[row_label]
        seeds = [[(p["tokens"], p[name]) for p in row["drift"] if name in p] for row in runs]
        seeds = [points for points in seeds if any(abs(value - nothing) > NOISE for _, value in points)]
        if seeds:
            together = min(map(len, seeds))
            x, y = np.array([points[:together] for points in seeds]).transpose(2, 0, 1)
            axes.plot(x.mean(0), y.mean(0), style, color=color, linewidth=1.4, label=row_label)
            if len(look) <= BANDS:
                axes.fill_between(x.mean(0), y.min(0), y.max(0), color=color, alpha=0.12, linewidth=0)
    axes.set_xlabel("tokens sampled")
    axes.set_ylabel(title)
