"""Codecs: what a foreign environment shows as text, and what an agent's text means as an action.

A codec has two methods. ``show`` turns an observation into text. ``moves`` lists the legal actions by their names, or
says None: any text is an action. ``chosen`` finds the move that a reply names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from marft_envs.errors import ConfigError
from marft_envs.problems.scripts import HANGUL, UNSPACED

MOST_NUMBERS = 64
"""Longest vector of numbers that is shown as text; what is larger is an image or the like, and needs an own codec."""


class Codec(Protocol):
    """Between the values of an environment and the texts of its agents."""

    def show(self, observation: Any, mask: Any = None) -> str:
        """Returns the observation as text. Pure."""

    def moves(self, mask: Any = None) -> Mapping[str, Any] | None:
        """Returns name -> action of the legal moves (``mask``: 1 where legal; none: all), or None: any text goes."""


class Text:
    """Text in, text out."""

    def show(self, observation: Any, mask: Any = None) -> str:
        """Returns the text itself; of a mapping, ``observation`` or every entry on a line."""
        if isinstance(observation, Mapping) and "observation" in observation:
            return str(observation["observation"])
        if isinstance(observation, Mapping):
            return "\n".join(f"{key}: {value}" for key, value in observation.items())
        return str(observation)

    def moves(self, mask: Any = None) -> None:
        """Returns None: any text is an action."""
        return None


class Discrete:
    """A discrete action space: every action has a name.

    Args:
        names: Names of the actions 0, 1, …; a number: they are called by their numbers, from ``start``.
        show: Renders an observation; by default numbers in a row, and an integer as itself.
        start: Number of the first action.
        first: What the environment calls its first action (``Discrete(n, start=…)``).
    """

    def __init__(
        self, names: int | Sequence[str], show: Callable[[Any], str] | None = None, start: int = 0, first: int = 0
    ) -> None:
        self.names = [str(start + i) for i in range(names)] if isinstance(names, int) else list(names)
        self.first = first
        self._show = show

    def show(self, observation: Any, mask: Any = None) -> str:
        """Returns the observation, without its mask, as text."""
        plain = unmasked(observation)
        return self._show(plain) if self._show is not None else numbers(plain)

    def moves(self, mask: Any = None) -> dict[str, int]:
        """Returns the legal actions by name."""
        legal = range(len(self.names)) if mask is None else np.flatnonzero(np.asarray(mask)).tolist()
        return {self.names[i]: self.first + i for i in legal}


class BoardPlanes(Discrete):
    """A board in planes ``[rows, columns, 2]``: the own pieces (``x``), then the other's (``o``).

    If there are as many actions as squares, action i fills square i, and a free square shows the name of its move
    (from 1). If there are as many actions as columns, the names of the columns stand below the board. For any other
    board, use ``Discrete`` with a ``show`` function.
    """

    def __init__(self, rows: int, columns: int, actions: int) -> None:
        if actions not in (rows * columns, columns):
            raise ConfigError(
                f"{actions} actions on a board of {rows} x {columns}: expected one per square or per column. "
                "Give Discrete(names, show=…) a function that draws the board."
            )
        super().__init__(actions, start=1)
        self.rows, self.columns = rows, columns

    def show(self, observation: Any, mask: Any = None) -> str:
        """Draws the board as its agent sees it."""
        planes = np.asarray(unmasked(observation)).reshape(-1, 2)
        squares = ["x" if mine else "o" if other else "" for mine, other in planes]
        by_square = len(self.names) == len(squares)
        shown = [square or (self.names[i] if by_square else ".") for i, square in enumerate(squares)]
        width = max(map(len, [*shown, *self.names]))
        lines = [shown[i : i + self.columns] for i in range(0, len(shown), self.columns)]
        lines += [] if by_square else [self.names]
        return "\n".join(" ".join(square.rjust(width) for square in line) for line in lines)


def unmasked(observation: Any) -> Any:
    """Returns what an observation holds beside its ``action_mask``."""
    if isinstance(observation, Mapping) and "action_mask" in observation:
        rest = {key: value for key, value in observation.items() if key != "action_mask"}
        return rest.get("observation", rest) if "observation" in rest or len(rest) != 1 else next(iter(rest.values()))
    return observation


def numbers(value: Any) -> str:
    """Returns integers and vectors of numbers as text, at most three decimals each."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {numbers(part)}" for key, part in value.items())
    if isinstance(value, tuple | list):
        return " ".join(map(numbers, value))
    return " ".join(f"{x:.3f}".rstrip("0").rstrip(".") for x in np.asarray(value, float).ravel())


def chosen(text: str, moves: Sequence[str]) -> str | None:
    """Returns the move that a reply names last, as a word of its own; None if it names none.

    ``Rock`` is the move ``rock``, but for moves of one letter, and where capital letters tell moves apart.
    """
    if (plain := text.strip()) in moves:
        return plain
    folded = {move.casefold(): move for move in moves if len(move) > 1}
    known = folded if len({*map(str.casefold, moves)}) == len(moves) else {}
    return _last(text[-1000:], moves) or known.get(_last(text[-1000:].casefold(), known))


def _last(text: str, moves: Iterable[str]) -> str:
    # Longest first, so that "up" is not read inside "up left".
    words = sorted(map(re.escape, filter(None, moves)), key=len, reverse=True)
    beside = rf"[^\W{UNSPACED}{HANGUL}]"  # a letter, beside which a move is part of another word
    matches = re.findall(rf"(?<!{beside})(?<!\.)(?:{'|'.join(words)})(?!{beside})", text) if words else []
    return matches[-1] if matches else ""


def missing(actions: spaces.Space[Any], observations: spaces.Space[Any]) -> list[str]:
    """Says, a sentence each, why these spaces have no codec by themselves; empty: they have."""
    faults = []
    if not isinstance(actions, spaces.Text | spaces.Discrete):
        kind = "continuous actions" if isinstance(actions, spaces.Box) else "such actions"
        faults.append(
            f"{actions} is an action space that text cannot name: {kind} are not supported. Needed: a wrapper with "
            "Discrete or Text actions, or a codec whose moves() lists them."
        )
    if not readable(observations):
        faults.append(
            f"{_short(observations)} cannot be read by a language model: images and vectors of more than "
            f"{MOST_NUMBERS} numbers are not supported. Needed: a codec whose show() says what is seen in words."
        )
    return faults


def readable(space: spaces.Space[Any]) -> bool:
    """Whether observations can be shown as text without a function of the user's."""
    if isinstance(space, spaces.Dict):
        return all(readable(part) for key, part in space.spaces.items() if key != "action_mask")
    if isinstance(space, spaces.Tuple):
        return all(map(readable, space.spaces))
    if isinstance(space, spaces.Box) and _board(space) is None:
        return int(np.prod(space.shape)) <= MOST_NUMBERS
    return isinstance(space, spaces.Text | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box)


def suited(actions: spaces.Space[Any], observations: spaces.Space[Any]) -> Codec:
    """Returns the codec that these spaces need.

    Raises:
        ConfigError: There is none; the message says what would be needed.
    """
    if faults := missing(actions, observations):
        raise ConfigError(" ".join(faults))
    if isinstance(actions, spaces.Text):
        return Text()
    assert isinstance(actions, spaces.Discrete)
    inner = observations
    if isinstance(inner, spaces.Dict) and "observation" in inner.spaces:
        inner = inner.spaces["observation"]
    board = _board(inner)
    if board is not None and int(actions.n) in (board[0] * board[1], board[1]):
        return BoardPlanes(*board, int(actions.n))
    return Discrete(int(actions.n), first=int(actions.start))


def _board(space: spaces.Space[Any]) -> tuple[int, int] | None:
    """Rows and columns where a space looks like a board in two planes of 0 and 1."""
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.shape[2] == 2 and np.all(space.high == 1):
        return int(space.shape[0]), int(space.shape[1])
    return None


def _short(space: Any) -> str:
    text = str(space)
    return text if len(text) < 120 else text[:120] + "…"
