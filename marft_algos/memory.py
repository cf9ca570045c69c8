"""How much is computed at once; and when memory runs out, half of it, once: then an error names the setting."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from marft_algos.lazy import torch
from marft_envs.errors import MarftError

PASS_TOKENS = 256
"""Pads that may cost less than a pass of its own for what would be padded."""
MIN_PREFIX = 8
"""Shared tokens from which a forward pass of their own is worth its cost."""
GROUP_TOKENS = 256
"""Tokens that may cost less than attending to them in a group of their own."""
FROZEN_BY_PYTHON = 10_000
"""Objects that Python itself may have frozen when it started: 3.12 begins with some hundreds."""


class OutOfMemory(MarftError, RuntimeError):
    """Memory ran out, and nothing here makes up for it.

    Args:
        message: What happened, and what to type.
        tried: How much was computed at once; 0: that does not help.
        alone: Other ranks know nothing of it, and wait.
    """

    def __init__(self, message: str, *, tried: int = 0, alone: bool = False) -> None:
        super().__init__(message)
        self.tried, self.alone = tried, alone


def passes(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Splits rows into passes, longest first: at most ``budget`` padded tokens each (but at least one row), few pads.

    Args:
        lengths: of the rows, in tokens.
        budget: padded tokens at once.

    Returns:
        Numbers of rows, pass by pass.
    """
    rows: list[list[int]] = []
    longest = pads = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        pads += longest - lengths[i]
        size = longest * (len(rows[-1]) + 1) if rows else 0
        if not rows or size > budget or pads > max(PASS_TOKENS, size // 8):
            rows.append([])
            longest, pads = lengths[i], 0
        rows[-1].append(i)
    return rows


@dataclass(frozen=True, slots=True)
class Sharing:
    """What of some texts has to be computed: no beginning twice."""

    within: list[int]
    """For each text the one that begins with it, whose states it takes; itself, if that is none but it."""
    groups: list[tuple[list[int], int]]
    """The texts that are computed, in groups, and how many first tokens are computed once for all of a group."""


def share(texts: Sequence[list[int]], free: Sequence[int]) -> Sharing:
    """Finds what texts have in common.

    Chains: an agent's prompts in one episode extend each other, so that the last one holds them all. Groups: episodes
    of one start begin with the same prompt. Neighbours in lexicographic order are put together, those with most in
    common first, as long as that saves tokens.

    Args:
        texts: token ids.
        free: of each text how many first tokens nothing is read at: no more are computed for others as well.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)  # a beginning stands before what begins with it
    within, kept, most = list(range(len(texts))), list[int](), list(free)
    for i in reversed(order):
        if kept and texts[kept[-1]][: len(texts[i])] == texts[i]:
            within[i] = host = kept[-1]
            most[host] = min(most[host], most[i])
        else:
            kept.append(i)
    # Clusters of neighbours: number of the first -> (number behind the last, tokens shared); lone ones share nothing.
    clusters = {k: (k + 1, 0) for k in range(len(kept))}
    owner = list(range(len(kept)))  # of a cluster's last place: its first one
    alike = [min(most[a], most[b], common(texts[a], texts[b])) for a, b in pairwise(kept)]
    for k in sorted(range(len(alike)), key=lambda k: -alike[k]):
        first, (_, left), (end, right) = owner[k], clusters[owner[k]], clusters[k + 1]
        saved = (k - first) * left + (end - k - 2) * right
        if alike[k] >= MIN_PREFIX and (end - first - 1) * alike[k] + GROUP_TOKENS > saved:
            del clusters[k + 1]
            clusters[first], owner[end - 1] = (end, alike[k]), first
    groups = [(sorted(kept[first:end]), shared) for first, (end, shared) in clusters.items() if shared]
    if lone := [first for first, (_, shared) in clusters.items() if not shared]:
        shared = min(alike[lone[0] : lone[-1]], default=0)
        groups.append((sorted(kept[k] for k in lone), shared if shared >= MIN_PREFIX else 0))
    return Sharing(within, sorted(groups))


def shared_passes(texts: Sequence[list[int]], shared: Sharing, budget: int) -> list[list[int]]:
    """Splits texts into passes as ``passes`` does, but that what they share is computed, and counted, once.

    Args:
        texts: token ids.
        shared: what they share.
        budget: computed tokens at once, padded within groups.
    """
    pieces, sizes = list[list[int]](), list[int]()
    held: dict[int, list[int]] = {}
    for i, host in enumerate(shared.within):
        held.setdefault(host, []).append(i)
    for rows, tokens in shared.groups:
        lengths = [len(texts[i]) - tokens for i in rows]
        for part in passes(lengths, max(budget - tokens, 1)):
            size = tokens + len(part) * max(lengths[k] for k in part)
            if sizes and len(shared.groups) > 1 and sizes[-1] + size <= budget:
                sizes[-1] += size
            else:
                pieces.append([])
                sizes.append(size)
            pieces[-1] += [i for k in part for i in held[rows[k]]]
    return pieces


@contextmanager
def settled() -> Iterator[None]:
    """Keeps Python's garbage collector from going through what is there now, again and again, while the block runs.

    Libraries and a model are a million objects that stay; reference counts free what does not, and cycles among what is
    made in the block are still found. Where the caller has frozen what is there, it has done this, and it stays frozen.
    """
    if gc.get_freeze_count() > FROZEN_BY_PYTHON:
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns how many first tokens two texts share."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Budget:
    """How much of something is computed at once.

    The work stands in a loop over the sizes to try, so that it can be repeated; in most cases there is one::

        for size in budget.sizes(len(rows)):
            with budget:
                replies = decode(rows, size)

    Args:
        size: to start with.
        unit: what is counted, for messages.
        flag: the setting to lower, for messages.
        again: whether the work can be repeated: not where other processes wait in the middle of it.
    """

    def __init__(self, size: int, unit: str, flag: str, *, again: bool = True) -> None:
        self.size, self._unit, self._flag, self._again = size, unit, flag, again
        self._tried, self._halved = size, False

    def sizes(self, wanted: int) -> Iterator[int]:
        """Yields the size to compute with; a second one, half as large, if memory runs out within ``with budget``.

        Args:
            wanted: how much there is in all: half of what was really tried is half of the smaller of both.
        """
        size = self.size
        self._tried = min(size, wanted)
        yield size
        if self.size == size:
            return
        gc.collect()  # here, because the error with all that its frames held is gone by now
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"Memory ran out with {self._tried} {self._unit} at once; going on with {self.size} (set {self._flag} to"
            " that).",
            stacklevel=3,
        )
        yield from self.sizes(wanted)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Halves the size if memory ran out for the first time in this object's life.

        Raises:
            OutOfMemory: it was halved before, or cannot be, or the work cannot be repeated.
        """
        if error is None or not out_of_memory(error):
            return False
        if self._halved or self._tried < 2 or not self._again:
            raise OutOfMemory(
                f"Memory ran out with {self._tried} {self._unit} at once. Lower {self._flag} below {self._tried}.",
                tried=self._tried,
                alone=not self._again,
            ) from error
        self._halved, self.size = True, self._tried // 2
        return True


def out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out, on a GPU or on a CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
