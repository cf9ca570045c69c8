"""The curves of a run, drawn by matplotlib: inline SVG for the report, and one PNG."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from marft_envs.errors import imported

Points = list[tuple[float, float]]
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6d5bd0", "#7a7f87")
"""Distinguishable on light and dark paper, with colour blindness too (after Okabe and Ito); agents take them in
order. The page of ``marft view`` has the same."""
INK, LINE = "#667085", "#dfe3ea"
"""Of text and of grids; a page has them lighter or darker."""
NOISE = 1e-8
"""KLs below are rounding: one step a batch has none, and nothing is said of it."""
READABLE = 0.7
"""Share of its size at which the text of a diagram can still be read."""
FEW = 30
"""Points that are marked; one alone would be no line."""
DEMONSTRATED = "rejected"
"""Is counted where an iteration has demonstrations: their returns are not the team's."""
_SHARES = ("clip_share", "truncated")
"""What lies between 0 and 1: its axis starts at 0, and ends at 1 at most."""
_FLOORS = {"explained_variance": -1.0}
"""No value head is of use there, and where returns hardly vary it is any number."""
_OFF_POLICY = ("KL", "clip share")
"""Diagrams that one step a batch leaves empty (its ratio is 1, to the last bits): they are left out then."""
_POLICY = {
    "loss": ("loss", "policy loss per minibatch"),
    "kl": ("KL", "mean per token, to the policy that sampled"),
    "entropy": ("entropy", "nats per token"),
    "clip_share": ("clip share", "share of samples at which the clip binds"),
    "value_loss": ("value error", "loss of the value head"),
    "explained_variance": ("explained variance", "of the returns, by the value head; the axis ends at −1"),
    "grad_norm": ("gradient norm", "before clipping"),
}


@dataclass(slots=True)
class Diagram:
    """One diagram."""

    title: str
    note: str
    series: dict[str, Points]
    """Label -> points; agents and policies keep one color through all diagrams."""
    bars: list[tuple[float, float, float]] = field(default_factory=list)
    """(x, low, high) of the first series: its points are measured, and nothing between them."""
    dashed: float | None = None
    """A horizontal reference."""
    unit: bool = False
    """Values are in [0, 1], and so is the axis."""
    share: bool = False
    """Values are in [0, 1]; the axis ends at the largest."""
    floor: float | None = None
    """Values below are not drawn: they would flatten the others."""


def diagrams(metrics: Sequence[Mapping[str, Any]]) -> list[Diagram]:
    """Returns the diagrams of a run: what evaluations measure, then one per quantity, a line per policy or agent."""
    shown = _outcomes(metrics)
    shown += [_grouped(metrics, "policy", key, *words) for key, words in _POLICY.items()]
    if not any(
        y for diagram in shown if diagram.title == "KL" for points in diagram.series.values() for _, y in points
    ):
        shown = [diagram for diagram in shown if diagram.title not in _OFF_POLICY]
    shown.append(_grouped(metrics, "agent", "length", "reply length", "tokens per turn in training"))
    shown.append(_grouped(metrics, "agent", "truncated", "truncated replies", "share that reached the token limit"))
    return [diagram for diagram in shown if any(diagram.series.values())]


def single(metrics: Sequence[Mapping[str, Any]], key: str) -> Diagram:
    """Returns the diagram of one key of ``metrics.jsonl``."""
    values = [(m["iteration"], m.get(key)) for m in metrics]
    points = [(float(x), float(y)) for x, y in values if isinstance(y, int | float) and math.isfinite(y)]
    return Diagram(key, "", {key: points})


def _outcomes(metrics: Sequence[Mapping[str, Any]]) -> list[Diagram]:
    """Returns the diagram of success, in training and at evaluations, and that of returns where these are others.

    Where a task does not say what is solved, an evaluation's ``success`` is the mean return, and so is its name.
    """
    evaluated = [m for m in metrics if "eval/success" in m]
    solved, returns = (single(metrics, key).series[key] for key in ("success", "return"))
    name, trained = ("success", solved) if solved or not returns else ("return", returns)
    points = [(float(m["iteration"]), float(m["eval/success"])) for m in evaluated]
    band = [(float(m["iteration"]), float(m["eval/low"]), float(m["eval/high"])) for m in evaluated]
    baseline = points[0][1] if points and points[0][0] == 0 else None
    unit = all(0 <= y <= 1 for _, y in points + trained)
    held_out = any(m.get("eval/held_out") for m in evaluated)
    label = "evaluation (held out)" if held_out else "evaluation"
    while_training = "demonstrations" if any(DEMONSTRATED in m for m in metrics) else "training"
    note = "evaluations with 95 % interval; training: sampled episodes, mean of 5 iterations; dashed: untrained"
    shown = [Diagram(name, note, {label: points, while_training: _smooth(trained)}, band, baseline, unit)]
    if solved and returns != solved:
        shown.append(Diagram("return", "mean return of the team's episodes", {while_training: _smooth(returns)}))
    return shown


def _smooth(points: Points) -> Points:
    """Averages over the last five iterations: single ones are noisy."""
    return [(x, fmean(y for _, y in points[max(0, i - 4) : i + 1])) for i, (x, _) in enumerate(points)]


def _grouped(metrics: Sequence[Mapping[str, Any]], kind: str, key: str, title: str, note: str) -> Diagram:
    """Returns a line per policy or agent; where they are more than the colors, a line per role: its agents' mean."""
    entries = [(m["iteration"], *name.split("/"), v) for m in metrics for name, v in m.items() if name.count("/") == 2]
    found = [(x, name, y) for x, of, name, what, y in entries if (of, what) == (kind, key) and math.isfinite(y)]
    many, lines = len({name for _, name, _ in found}) > len(COLORS), dict[str, dict[float, list[float]]]()
    for x, name, y in found:
        line = lines.setdefault(re.sub(r"_\d+$", "", name) if many else name, {})
        # Rounding noise around 0 (the KL of a single minibatch) would fill the axis.
        line.setdefault(float(x), []).append(float(y) if abs(y) > NOISE else 0.0)
    series = {label: [(x, fmean(ys)) for x, ys in line.items()] for label, line in lines.items()}
    note += "; means of the agents of a role" if many else ""
    return Diagram(title, note, series, share=key in _SHARES, floor=_FLOORS.get(key))


def colors(shown: Sequence[Diagram]) -> dict[str, str]:
    """Gives each label a color, the same in every diagram."""
    labels = list(dict.fromkeys(label for diagram in shown for label in diagram.series))
    return {label: COLORS[i % len(COLORS)] for i, label in enumerate(labels)}


# Drawing --------------------------------------------------------------------------------------------


def figure(width: float, height: float) -> Any:
    """Returns an empty figure of matplotlib, in inches, that no window shows.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawing, agg = (imported(f"matplotlib.{m}", "Drawing curves", "train") for m in ("figure", "backends.backend_agg"))
    empty = drawing.Figure(figsize=(width, height), dpi=110, layout="constrained")
    agg.FigureCanvasAgg(empty)
    return empty


def finish(axes: Any, title: str = "") -> None:
    """Gives axes the look of all diagrams."""
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.spines[:].set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(INK)
    axes.grid(axis="y", color=LINE)


def legend(drawn: Any) -> None:
    """Draws one legend for all diagrams, beside them: the names of twenty algorithms would cover the curves."""
    entries = [pair for axes in drawn.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    if entries:
        by_name = {text: line for line, text in entries}
        look = {"loc": "outside right upper", "fontsize": 7, "frameon": False, "labelcolor": INK}
        drawn.legend(by_name.values(), by_name.keys(), **look)


def svg(drawn: Any) -> str:
    """Returns a figure as the text of an SVG file. Names in it are text: a ``$`` begins no formula."""
    import matplotlib
    from matplotlib.text import Text

    for written in drawn.findobj(Text):
        written.set_parse_math(False)
    text, metadata = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # The same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "marft", "svg.fonttype": "none"}):
        drawn.savefig(text, format="svg", transparent=True, metadata=metadata)
    return text.getvalue()


def inline(text: str) -> str:
    """Returns an SVG file as a part of a page, in the page's colors; in a narrow one it scrolls in its box."""
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text[text.index("<svg") :])
    width = re.search(r' width="([\d.]+)pt"', text)
    assert width, "matplotlib gives its pictures a width in points"
    text = text.replace("<svg", f'<svg style="min-width: {READABLE * float(width[1]):.0f}pt"', 1)
    return f'<div class="scroll">{text.replace(INK, "var(--soft)").replace(LINE, "var(--line)")}</div>'


def draw(axes: Any, diagram: Diagram, palette: Mapping[str, str]) -> None:
    """Draws a diagram."""
    measured = next(iter(diagram.series)) if diagram.bars else ""
    for label, points in diagram.series.items():
        if points:
            style: dict[str, Any] = {"marker": "." if len(points) <= FEW else ""}
            style = {"linestyle": "", "marker": "o", "markersize": 3.5} if label == measured else style
            axes.plot(*zip(*points, strict=True), label=label, color=palette[label], linewidth=1.4, **style)
    for x, low, high in diagram.bars:
        axes.plot([x, x], [low, high], color=palette[measured], linewidth=1.2)
    if diagram.dashed is not None:
        axes.axhline(diagram.dashed, color=INK, linestyle="--", linewidth=1)
    values = [y for points in diagram.series.values() for _, y in points]
    if diagram.floor is not None and min(values, default=0.0) < diagram.floor:
        axes.set_ylim(diagram.floor, max(*values, diagram.floor + 1) + 0.1)
    if diagram.unit or diagram.share:
        largest = max(values)
        axes.set_ylim(0.0, 1.0 if diagram.unit or not largest else min(1.08 * largest, 1.0))
    axes.tick_params(labelsize=8)
    axes.set_xlabel("iteration", fontsize=8)
    axes.locator_params(axis="x", integer=True)


def sheet(metrics: Sequence[Mapping[str, Any]]) -> Any:
    """Returns all diagrams as one figure of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    shown, columns = diagrams(metrics), 3
    palette, rows = colors(shown), max(-(-len(shown) // columns), 1)
    drawn = figure(4.4 * columns, 2.7 * rows)
    for i, diagram in enumerate(shown):
        axes = drawn.add_subplot(rows, columns, i + 1)
        draw(axes, diagram, palette)
        finish(axes, diagram.title)
        axes.legend(fontsize=7, frameon=False, labelcolor=INK)
    return drawn


def write_png(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes all diagrams as one picture; see ``sheet``."""
    if diagrams(metrics):
        sheet(metrics).canvas.print_png(path)  # ``savefig`` draws twice
