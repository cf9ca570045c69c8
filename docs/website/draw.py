"""Draws small pictures as SVG: whose messages agents see, successors of turns, a timeline, points by evaluation.

A picture stands on a card of its own, so that it can be read on any page; where people want dark pages it is dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

INK, SOFT, EDGE, MAYBE, FILL = "#1f2937", "#64748b", "#4051b5", "#94a3b8", "#eef1fb"
COLOURS = ("#4051b5", "#c2410c", "#0f766e", "#a21caf", "#b45309")
"""Five that people with the common colour-blindnesses can distinguish; shapes differ, too, where it matters."""
DARK = {
    "#fff": "#1b1f27",
    INK: "#e6e8ec",
    SOFT: "#9aa5b6",
    EDGE: "#9fa8ff",
    MAYBE: "#7d8899",
    FILL: "#262c3d",
    "#e5e7eb": "#2e3440",
    "#fff3e8": "#3a2c1e",
    "#ecfdf5": "#16302a",
    COLOURS[1]: "#fb923c",
    COLOURS[2]: "#5eead4",
    COLOURS[3]: "#e879f9",
    COLOURS[4]: "#fbbf24",
}
"""Colour on light paper -> what it is on dark paper."""
NIGHT = "".join(
    f'[{kind}="{day}"]{{{kind}:{night}}}'
    for day, night in DARK.items()
    for kind in ("fill", "stroke")
    if kind == "fill" or day in (EDGE, MAYBE, "#e5e7eb", *COLOURS)
)
BOX, HIGH, ACROSS, DOWN = 128, 30, 172, 52
"""Width and height of an agent's box, and from one to the next, in pixels."""
SAID = 14
"""What a box is higher by that shows what was said."""


@dataclass
class Picture:
    """Elements on a card of ``width`` by ``height`` pixels; ``title`` is what a screen reader says."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, words: object, size: int = 12, colour: str = INK, anchor: str = "middle"
    ) -> None:
        """Writes words; ``anchor`` is start, middle or end."""
        style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(str(words))}</text>')

    def box(
        self, x: float, y: float, words: str, fill: str = FILL, stroke: str = EDGE, width: float = BOX, said: str = ""
    ) -> None:
        """Draws a named box, with what was said below the name; x and y are its upper left corner."""
        high = HIGH + SAID * bool(said)
        shape = f'width="{width:g}" height="{high}" rx="6" fill="{fill}" stroke="{stroke}"'
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" {shape}/>')
        size, said = 12 if len(words) * 7 < width else 10, said if len(said) < 20 else said[:18] + "…"
        self.text(x + width / 2, y + HIGH / 2 + 4 - 2 * bool(said), words, size)
        if said:
            self.text(x + width / 2, y + HIGH + 5, said, 12, EDGE)

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], bend: float = 0, dashed: bool = False
    ) -> None:
        """Draws an arrow, bent upwards (or downwards, below 0) by so many pixels."""
        (x0, y0), (x1, y1) = start, end
        reach = abs(x1 - x0) / 2
        line = f"M{x0:g} {y0:g}C{x0 + reach:g} {y0 - bend:g} {x1 - reach:g} {y1 - bend:g} {x1 - 3 * (x1 > x0):g} {y1:g}"
        colour, name = (MAYBE, "m") if dashed else (EDGE, "e")
        more = ' stroke-dasharray="5 4"' if dashed else ""
        style = f'fill="none" stroke="{colour}" stroke-width="1.4" marker-end="url(#{name})"'
        self.parts.append(f'<path d="{line}" {style}{more}/>')

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str = SOFT, width: float = 1) -> None:
        """Draws a straight line."""
        at = f'x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}"'
        self.parts.append(f'<line {at} stroke="{colour}" stroke-width="{width:g}"/>')

    def svg(self) -> str:
        """The whole file."""
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
            for name, colour in (("e", EDGE), ("m", MAYBE))
        )
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}"'
        card = f'<rect width="{self.width:g}" height="{self.height:g}" rx="8" fill="#fff"/>'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" role="img">',
                f"<title>{escape(self.title)}</title>"
                f"<style>@media (prefers-color-scheme: dark){{{NIGHT}}}</style>"
                f"<defs>{heads}</defs>{card}",
                *self.parts,
                "</svg>\n",
            )
        )


def matrix(picture: Picture, x: float, y: float, names: Sequence[str], D: Sequence[Sequence[int]]) -> None:
    """Draws D beside a graph: a row is an author of messages, a column a reader."""
    side = 20
    label = 7 * max(map(len, names)) + 10
    picture.text(x + label + side * len(names) / 2, y - 22, "D: row seen by column", 11, SOFT)
    for i, name in enumerate(names):
        picture.text(x + label - 6, y + side * i + 14, name, 11, INK, "end")
        picture.text(x + label + side * i + side / 2, y - 6, i + 1, 11, SOFT)
        for j in range(len(names)):
            at = f'x="{x + label + side * j:g}" y="{y + side * i:g}" width="{side - 2}" height="{side - 2}" rx="3"'
            picture.parts.append(f'<rect {at} fill="{EDGE if D[i][j] else "#e5e7eb"}"/>')
            if D[i][j]:
                picture.text(x + label + side * j + 9, y + side * i + 13, 1, 10, "#fff")


def layers(
    title: str,
    columns: Sequence[Sequence[str]],
    edges: Iterable[tuple[int, int]],
    D: tuple[Sequence[str], Sequence[Sequence[int]]] | None = None,
    dashed: Iterable[tuple[int, int]] = (),
    said: Sequence[str] = (),
) -> str:
    """Draws turns in columns, one column a layer, and arrows from an author to its readers.

    Args:
        title: For screen readers.
        columns: Names of who acts, by layer; turns are numbered through them, from 0.
        edges: Pairs of turns ``(author, reader)``.
        D: Agents in canonical order, and their matrix; drawn below.
        dashed: Pairs of turns, drawn dashed.
        said: Words of each turn, below the name of who said them; none at all: names alone.
    """
    most, higher = max(map(len, columns)), SAID * bool(said)
    edges, dashed = list(edges), list(dashed)
    column_of = [x for x, column in enumerate(columns) for _ in column]
    longest = max((column_of[end] - column_of[start] for start, end in (*edges, *dashed)), default=1)
    top = max(60, 36 + 27 * (longest - 1))  # an arrow over k layers rises by three quarters of its bend
    at = dict[int, tuple[float, float, int]]()
    for x, column in enumerate(columns):
        for y, _ in enumerate(column):
            at[len(at)] = (20 + x * ACROSS, top + (DOWN + higher) * (y + (most - len(column)) / 2), x)
    table = (44 + 20 * len(D[0])) if D else 0
    graph = top + (DOWN + higher) * most + (14 if D else 0)
    wide = 20 + ACROSS * len(columns) - (ACROSS - BOX) + 20
    room = 7 * max(map(len, D[0])) + 20 * len(D[0]) + 60 if D else 0
    picture = Picture(max(wide, room), graph + table, title)
    for x, _ in enumerate(columns):
        picture.text(20 + x * ACROSS + BOX / 2, 20, f"layer {x + 1}", 11, SOFT)
    for pairs, style in ((dashed, True), (edges, False)):
        for start, end in pairs:
            (x0, y0, here), (x1, y1, there) = at[start], at[end]
            bend = 36 * (there - here - 1) if there > here else 0
            picture.arrow((x0 + BOX, y0 + (HIGH + higher) / 2), (x1, y1 + (HIGH + higher) / 2), bend, style)
    for number, name in enumerate(name for column in columns for name in column):
        picture.box(at[number][0], at[number][1], name, said=said[number] if said else "")
    if D:
        matrix(picture, 20, graph + 30, *D)
    return picture.svg()


def small(columns: Sequence[Sequence[str]], edges: Iterable[tuple[int, int]]) -> str:
    """Draws turns and whose messages they see without words, as a thumbnail of one size: an agent is a colour."""
    wide, high = 200.0, 76.0
    picture = Picture(wide, high, "")
    names = list(dict.fromkeys(name for column in columns for name in column))
    across, down = (wide - 60) / max(1, len(columns) - 1), 54 / max(1, max(map(len, columns)) - 1)
    dots = list[tuple[float, float, str]]()
    for x, column in enumerate(columns):
        left = 30 + x * across if len(columns) > 1 else wide / 2
        dots += [(left, high / 2 + (y - (len(column) - 1) / 2) * min(down, 24), name) for y, name in enumerate(column)]
    radius = max(4.0, min(8.0, 0.36 * min(down, 24), 0.3 * across))
    for start, end in edges:
        (x0, y0, _), (x1, y1, _) = dots[start], dots[end]
        bend = 22 * (abs(x1 - x0) > 1.5 * across)
        picture.arrow((x0 + radius, y0), (x1 - radius, y1), bend)
    for at_x, at_y, name in dots:
        colour = COLOURS[names.index(name) % len(COLOURS)]
        picture.parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="{radius:.1f}" fill="{colour}"/>')
    return picture.svg()


def points(title: str, plots: Mapping[str, Mapping[float, Sequence[float]]], low: float, unit: str) -> str:
    """Draws scores by what was spent, one plot beside the other: a ring a seed, a bar the mean; nothing between.

    Args:
        title: For screen readers.
        plots: Name of a plot -> amount spent (0 at the left) -> scores in [0, 1], one a seed.
        low: Scores below it do not occur: the bottom of the axis.
        unit: What is spent.
    """
    wide, high, left = 190, 130, 40
    picture = Picture(left + (wide + 24) * len(plots), high + 74, title)
    for number, (name, marks) in enumerate(plots.items()):
        x0, y0 = left + (wide + 24) * number, 34
        end = max(marks) or 1
        picture.text(x0 + wide / 2, 20, name, 13)
        for tick in (0.0, 0.5, 1.0):
            y = y0 + high * (1 - (tick - low) / (1 - low))
            if y <= y0 + high:
                picture.line(x0, y, x0 + wide, y, "#e5e7eb")
                if not number:
                    picture.text(x0 - 6, y + 4, f"{tick:g}", 11, SOFT, "end")
        for spent, scores in marks.items():
            x = x0 + 20 + (wide - 40) * spent / end
            heights = [y0 + high * (1 - (score - low) / (1 - low)) for score in scores]
            for k, one in enumerate(heights):
                around = x + 4 * (k - (len(heights) - 1) / 2)
                style = f'fill="none" stroke="{COLOURS[0]}" stroke-opacity=".6"'
                picture.parts.append(f'<circle cx="{around:.1f}" cy="{one:.1f}" r="3.5" {style}/>')
            mean = sum(heights) / len(heights)
            picture.line(x - 12, mean, x + 12, mean, COLOURS[1], 2)
        picture.text(x0 + 20, y0 + high + 18, 0, 11, SOFT)
        picture.text(x0 + wide - 4, y0 + high + 18, f"{end:,.0f}", 11, SOFT, "end")
        picture.text(x0 + wide / 2, y0 + high + 34, unit, 11, SOFT)
    return picture.svg()
