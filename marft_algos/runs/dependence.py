"""D as a picture: in how many episodes each agent heard each other one, round by round, as SVG for a page."""

from __future__ import annotations

import html
from collections.abc import Sequence

from marft_envs import Episode

ROUNDS = 4
"""Rounds that are drawn; what later ones are like is said by the viewer, episode by episode."""
_CELL, _LETTER, _LONGEST = 22, 6.6, 16

Matrix = list[list[float]]
"""n x n; row i, column j: share of the episodes in which j's action was conditioned on i's."""


def shares(episodes: Sequence[Episode]) -> list[Matrix]:
    """Averages the executed D of each round over the episodes that had it.

    Args:
        episodes: Of one team.
    """
    rounds: dict[int, list[Sequence[Sequence[int]]]] = {}
    for episode in episodes:
        for record in episode.rounds:
            rounds.setdefault(record.index, []).append(record.D)
    return [_mean(rounds[index]) for index in sorted(rounds)]


def _mean(matrices: Sequence[Sequence[Sequence[int]]]) -> Matrix:
    n = range(len(matrices[0]))
    return [[sum(D[i][j] for D in matrices) / len(matrices) for j in n] for i in n]


def svg(names: Sequence[str], matrix: Matrix, title: str) -> str:
    """Draws one matrix: rows speak, columns hear; a cell is filled by its share, which stands in it if it is no 0 or 1.

    Args:
        names: The agents, in the matrix's order; any text.
        matrix: Shares.
        title: For who cannot see it; any text.
    """
    shown = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in names]
    left = _LETTER * max(map(len, shown)) + 24
    width, height = left + _CELL * len(names) + 2, _CELL * len(names) + 18
    parts = [f'<svg class="D" role="img" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">']
    parts.append(f"<title>{html.escape(title)}</title>")
    for i, name in enumerate(shown):
        y, x = 16 + _CELL * i, left + _CELL * i
        parts.append(f'<text x="{left - 6:.1f}" y="{y + 15}" text-anchor="end">{html.escape(name)} {i + 1}</text>')
        parts.append(f'<text x="{x + _CELL / 2:.1f}" y="11" text-anchor="middle">{i + 1}</text>')
        parts += [_cell(left + _CELL * j, y, matrix[i][j], i == j, f"{name} → {shown[j]}") for j in range(len(names))]
    return "".join([*parts, "</svg>"])


def _cell(x: float, y: float, share: float, own: bool, title: str) -> str:
    kind = "own" if own else "cell"
    box = f'<rect class="{kind}" x="{x + 1.5:.1f}" y="{y + 1.5}" width="{_CELL - 3}" height="{_CELL - 3}" rx="3"'
    told = "" if own else f"<title>{html.escape(title)}: {share:.0%}</title>"
    number = ""
    if 0 < share < 1:
        number = (
            f'<text x="{x + _CELL / 2:.1f}" y="{y + 15}" text-anchor="middle" class="share">{100 * share:.0f}</text>'
        )
    return f'{box} fill-opacity="{share:.3f}">{told}</rect>{number}'
