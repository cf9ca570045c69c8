"""The curves of a run, as inline SVG for the report and as one PNG."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marft_envs.errors import MissingExtraError

Points = list[tuple[float, float]]
COLORS = ("#3a6ea5", "#c8553d", "#5b8c5a", "#8e5ea2", "#b8860b", "#2a9d8f", "#d4598c", "#6b7280")
"""Distinguishable on light and dark paper; agents take them in order."""
NOISE = 1e-8
_SHARES = ("clip_share", "cut")
"""What lies between 0 and 1: its axis starts at 0, and ends at 1 at most."""
_OFF_POLICY = ("KL", "clip share")
"""Panels that one step a batch leaves empty (its ratio is 1, to the last bits): they are left out then."""
_POLICY = {
    "loss": ("loss", "policy loss per minibatch"),
    "kl": ("KL", "mean per token, to the policy that sampled"),
    "entropy": ("entropy", "nats per token"),
    "clip_share": ("clip share", "share of samples at which the clip binds"),
    "value_loss": ("value error", "loss of the value head"),
    "explained_variance": ("explained variance", "of the returns, by the value head"),
    "grad_norm": ("gradient norm", "before clipping"),
}


@dataclass(slots=True)
class Panel:
    """One diagram."""

    title: str
    note: str
    series: dict[str, Points]
    """Label -> points; agents and policies keep one color through all panels."""
    bars: list[tuple[float, float, float]] = field(default_factory=list)
    """(x, low, high) of the first series: its points are measured, and nothing between them."""
    dashed: float | None = None
    """A horizontal reference."""
    unit: bool = False
    """Values are in [0, 1], and so is the axis."""
    share: bool = False
    """Values are in [0, 1]; the axis ends at the largest."""


def panels(metrics: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """The diagrams of a run: accuracy first, then one per quantity with a line per policy or agent."""
    found = [_accuracy(metrics)]
    found += [_grouped(metrics, "policy", key, *words) for key, words in _POLICY.items()]
    if all(_zero(panel) for panel in found if panel.title == "KL"):
        found = [panel for panel in found if panel.title not in _OFF_POLICY]
    found.append(_grouped(metrics, "agent", "length", "reply length", "tokens per turn while training"))
    found.append(_grouped(metrics, "agent", "cut", "cut replies", "share that reached the token limit"))
    return [panel for panel in found if any(panel.series.values())]


def _accuracy(metrics: Sequence[Mapping[str, Any]]) -> Panel:
    evaluated = [m for m in metrics if "eval/success" in m]
    trained = [(float(m["iteration"]), float(m["score"])) for m in metrics if "score" in m]
    points = [(float(m["iteration"]), float(m["eval/success"])) for m in evaluated]
    band = [(float(m["iteration"]), float(m["eval/low"]), float(m["eval/high"])) for m in evaluated]
    baseline = points[0][1] if points and points[0][0] == 0 else None
    unit = all(0 <= y <= 1 for _, y in points + trained)
    held_out = any(m.get("eval/held_out") for m in evaluated)
    name = "held out" if held_out else "evaluated"
    note = f"{'held-out problems' if held_out else 'evaluations'} with 95 % interval; dashed: the untrained team"
    return Panel("score", note, {name: points, "while training": _smooth(trained)}, band, baseline, unit)


def _smooth(points: Points, window: int = 5) -> Points:
    """Running mean over a few iterations: single ones are noisy."""
    means = []
    for i, (x, _) in enumerate(points):
        recent = [y for _, y in points[max(0, i - window + 1) : i + 1]]
        means.append((x, sum(recent) / len(recent)))
    return means


def _grouped(metrics: Sequence[Mapping[str, Any]], kind: str, key: str, title: str, note: str) -> Panel:
    series: dict[str, Points] = {}
    for m in metrics:
        for name, value in m.items():
            parts = name.split("/")
            if len(parts) == 3 and parts[0] == kind and parts[2] == key and math.isfinite(value):
                # Rounding noise around 0 (the KL of a single minibatch) would fill the axis.
                y = float(value) if abs(value) > NOISE else 0.0
                series.setdefault(parts[1], []).append((float(m["iteration"]), y))
    return Panel(title, note, series, share=key in _SHARES)


def _zero(panel: Panel) -> bool:
    return all(y == 0.0 for points in panel.series.values() for _, y in points)


def colors(found: Sequence[Panel]) -> dict[str, str]:
    """Label -> color, the same in every panel."""
    labels = list(dict.fromkeys(label for panel in found for label in panel.series))
    return {label: COLORS[i % len(COLORS)] for i, label in enumerate(labels)}


# SVG ------------------------------------------------------------------------------------------------

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 8, 22


def svg(panel: Panel, palette: Mapping[str, str], width: int = 340, height: int = 170) -> str:
    """Draws a panel; text takes the page's color."""
    xs = [x for points in panel.series.values() for x, _ in points]
    ys = [y for points in panel.series.values() for _, y in points]
    ys += [y for _, low, high in panel.bars for y in (low, high)]
    x0, x1 = min(xs), max(max(xs), min(xs) + 1)
    y0, y1 = _axis(panel, ys)

    def at(x: float, y: float) -> str:
        px = _LEFT + (x - x0) / (x1 - x0) * (width - _LEFT - _RIGHT)
        py = _TOP + (y1 - y) / (y1 - y0) * (height - _TOP - _BOTTOM)
        return f"{px:.1f},{py:.1f}"

    marks = []
    for tick in _ticks(y0, y1):
        (left, y), right = at(x0, tick).split(","), at(x1, tick).split(",")[0]
        marks.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>')
        marks.append(f'<text x="{_LEFT - 6}" y="{y}" dy="0.35em" text-anchor="end">{tick:g}</text>')
    for x in (x0, x1):
        px = at(x, y0).split(",")[0]
        anchor = "start" if x == x0 else "end"
        marks.append(f'<text x="{px}" y="{height - 6}" text-anchor="{anchor}">{x:g}</text>')
    measured = next(iter(panel.series)) if panel.bars else ""
    for x, low, high in panel.bars:
        (px, bottom), top = at(x, low).split(","), at(x, high).split(",")[1]
        color = palette[measured]
        marks.append(f'<line x1="{px}" x2="{px}" y1="{bottom}" y2="{top}" stroke="{color}" stroke-width="1.4"/>')
    if panel.dashed is not None:
        (left, y), right = at(x0, panel.dashed).split(","), at(x1, panel.dashed).split(",")[0]
        marks.append(f'<line class="dashed" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>')
    for label, points in panel.series.items():
        color, path = palette[label], " ".join(at(x, y) for x, y in points)
        if label != measured:
            marks.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        if label == measured or len(points) <= 30:
            dots = (at(x, y).split(",") for x, y in points)
            marks += [
                f'<circle cx="{cx}" cy="{cy}" r="2.4" fill="{color}"><title>{html.escape(label)} {x:g}: {y:.4g}</title>'
                "</circle>"
                for (cx, cy), (x, y) in zip(dots, points, strict=True)
            ]
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(marks)}</svg>'


def _axis(panel: Panel, ys: Sequence[float]) -> tuple[float, float]:
    """Ends of the vertical axis."""
    if panel.unit or (panel.share and not max(ys)):
        return 0.0, 1.0
    return (0.0, min(max(ys) * 1.08, 1.0)) if panel.share else _span(ys)


def _span(ys: Sequence[float]) -> tuple[float, float]:
    low, high = min(ys), max(ys)
    pad = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return (0.0 if 0 <= low < 0.5 * high else low - pad), high + pad


def _ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers between the ends."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    count = math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1
    return [float(f"{(math.ceil(low / step - 1e-9) + i) * step:.10g}") for i in range(count)]


# PNG ------------------------------------------------------------------------------------------------


def write_png(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes all panels as one picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("Drawing curves", "train") from error
    found = panels(metrics)
    if not found:
        return
    palette, columns = colors(found), 3
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(4.4 * columns, 2.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for i, panel in enumerate(found):
        axes = figure.add_subplot(rows, columns, i + 1)
        measured = next(iter(panel.series)) if panel.bars else ""
        for label, points in panel.series.items():
            if points:
                style: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3.5} if label == measured else {}
                axes.plot(*zip(*points, strict=True), label=label, color=palette[label], linewidth=1.4, **style)
        for x, low, high in panel.bars:
            axes.plot([x, x], [low, high], color=palette[measured], linewidth=1.2)
        if panel.dashed is not None:
            axes.axhline(panel.dashed, color="gray", linestyle="--", linewidth=1)
        if panel.unit or panel.share:
            axes.set_ylim(*_axis(panel, [y for points in panel.series.values() for _, y in points]))
        axes.set_title(panel.title, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=110)
