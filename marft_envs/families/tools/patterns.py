"""Regular expressions of somebody else's schema, searched in text that a policy chose: neither can hang the trainer.

``re`` backtracks: ``(a+)+$`` takes longer than the universe for 40 letters. A bound on its work is read off the parsed
pattern; what stays below is searched here, the rest in a worker process with a limit of its CPU time.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from marft_envs.errors import WorkerError
from marft_envs.workers.untrusted import WorkerCrashed, WorkerLate, WorkerOutOfMemory, WorkerPool, WorkerTimeout

try:  # what the module itself parses with
    _parser: Any = importlib.import_module("re._parser")
    _c: Any = importlib.import_module("re._constants")
except ImportError:  # an interpreter that keeps them elsewhere: every search goes to the worker
    _parser = _c = None

LONGEST = 2_000
"""Characters of a pattern; a longer one is refused with its schema."""
CPU_S = 0.5
"""CPU seconds that the searches of one value may take."""
_WALL_S = 30.0
_QUICK = 200_000
"""Steps of a search that are left to this process: some milliseconds."""


class UndecidedError(Exception):
    """The searches of one value have had their CPU time, or their memory."""


_spent = threading.local()


@contextmanager
def budget() -> Iterator[None]:
    """All searches within share ``CPU_S`` seconds; then ``UndecidedError`` is raised."""
    _spent.cpu = 0.0
    yield


def compiled(pattern: str) -> Callable[[str], bool]:
    """Returns a function that says whether the pattern is found in a text; call it within ``budget``.

    The function raises ``UndecidedError`` where pattern and text together take too much time or memory, and
    ``WorkerError`` where the machine kept the worker from its work.

    Raises:
        ValueError: It is no regular expression, or longer than ``LONGEST``.
    """
    if len(pattern) > LONGEST:
        raise ValueError(f"it has {len(pattern)} characters, at most {LONGEST} are taken")
    try:
        search, cost = re.compile(pattern).search, _cost(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error

    def found(text: str) -> bool:
        if cost(len(text)) <= _QUICK:
            return search(text) is not None
        left = CPU_S - _spent.cpu
        try:
            answer, cpu = _pool().call([pattern, text, left]) if left > 0 else (None, 0.0)
        except WorkerOutOfMemory as error:
            raise UndecidedError from error
        except (WorkerLate, WorkerCrashed) as error:
            raise WorkerError(
                f"A pattern of a tool's schema was not matched: {error}. No agent's doing, so it counts nowhere; give "
                "the machine less to do if it happens often."
            ) from error
        except WorkerTimeout as error:
            raise UndecidedError from error
        _spent.cpu += cpu
        if answer is None:
            raise UndecidedError
        return bool(answer)

    return found


@functools.cache
def _pool() -> WorkerPool:
    return WorkerPool("marft_envs.families.tools.patterns:search", deadline=_WALL_S)


def search(payload: tuple[str, str, float]) -> tuple[bool | None, float]:
    """The worker's side: searches, gives up (None) when the CPU seconds are over, and says how many it took."""
    pattern, text, seconds = payload
    signal.signal(signal.SIGVTALRM, _give_up)
    started, matches = time.process_time(), None
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            matches = re.search(pattern, text) is not None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except UndecidedError:
        matches = None
    return matches, time.process_time() - started


def _give_up(number: int, frame: Any) -> None:
    raise UndecidedError


def _cost(pattern: str) -> Callable[[int], float]:
    """An upper bound on the steps of a search in a text of n characters.

    A search tries every position, and at each every combination of what its repeats and branches can choose. A choice
    within a repeat is made anew in every round, which has no useful bound.
    """
    if _parser is None:
        return lambda n: math.inf
    rounds: list[tuple[int, int]] = []
    size = _size(_parser.parse(pattern), rounds, repeated=False)
    return lambda n: (n + 1) * size * math.prod(max(min(high, n) - low, 0) + 1 for low, high in rounds)


def _size(part: Any, rounds: list[tuple[int, int]], *, repeated: bool) -> float:
    """How many items and branches a part holds; infinity if it has a choice and is repeated.

    Enters the least and the most rounds of each of its repeats.
    """
    size = 1.0
    for op, argument in part:
        low = high = 1
        if op in (_c.MAX_REPEAT, _c.MIN_REPEAT, getattr(_c, "POSSESSIVE_REPEAT", None)):
            low, high = int(argument[0]), int(argument[1])
        if repeated and (low < high or op is _c.BRANCH):
            return math.inf
        inner = [_size(below, rounds, repeated=repeated or high != 1) for below in _parts(argument)]
        size = (size + (sum(inner) or 1)) * max(low, len(inner) if op is _c.BRANCH else 1)
        rounds += [(low, high)] if low < high else []
    return size


def _parts(argument: Any) -> list[Any]:
    """The parts that an item is made of."""
    if isinstance(argument, _parser.SubPattern):
        return [argument]
    return [below for one in argument for below in _parts(one)] if isinstance(argument, list | tuple) else []
