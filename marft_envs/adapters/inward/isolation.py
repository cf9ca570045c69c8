"""Keeps what a foreign environment does to the global random generators to itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class GlobalGenerators:
    """A state of ``random`` and ``numpy.random`` of one's own, in place while inside the ``with`` block.

    Environments that seed or draw from the global generators reproduce their runs this way, whatever runs beside
    them, and leave no trace. Not for environments that run in several threads at once.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, Any] | None = None

    def seed(self, seed: int) -> None:
        """Starts the own generators anew."""
        self._state = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def own(self) -> Iterator[None]:
        """Puts the own state in place, and afterwards the others' back."""
        before = random.getstate(), np.random.get_state()
        if self._state is not None:
            random.setstate(self._state[0])
            np.random.set_state(self._state[1])
        try:
            yield
        finally:
            self._state = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])
