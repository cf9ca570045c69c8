"""Sums over ranks in a fixed order: work is dealt to reduction slots, and slots to ranks.

Floating-point sums depend on their order. Here the order belongs to the slots, whose number is fixed when a run starts:
a slot adds its pieces one after the other, slots are added as one binary tree, neighbours first, and a rank owns some
neighbours. So 1, 2, 4, … ranks, up to the number of slots, build the same tree, and the sums have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from marft_algos.lazy import torch
from marft_algos.memory import out_of_memory
from marft_algos.ranks.group import Alone, RankGroup, power_of_two
from marft_envs.errors import ConfigError

USUAL = 8
"""Reduction slots of a run with several ranks, if there are not more ranks."""
T = TypeVar("T")
R = TypeVar("R")


class ReductionSlots:
    """Deals pieces of work to the ranks of a group.

    Args:
        group: The ranks.
        count: Of slots: a power of two, and no fewer than ranks; 0: ``usual``. With one, pieces are added in order.
        sharded: Ranks hold shares of the base models. A pass over one is made by all of them together: those with fewer
            pieces make up for it with passes that count nothing.

    Raises:
        ConfigError: Another count.
    """

    def __init__(self, group: RankGroup | None = None, count: int = 1, *, sharded: bool = False) -> None:
        self.group: RankGroup = group or Alone()
        self.count, self.sharded = count or usual(self.group.size), sharded
        check(self.count, self.group.size)

    @property
    def mine(self) -> range:
        """Returns the slots of this rank."""
        share = self.count // self.group.size
        return range(self.group.rank * share, (self.group.rank + 1) * share)

    def of(self, piece: int) -> int:
        """Returns the slot of a piece, by its number.

        The digits of the number are reversed: pieces that follow each other are of similar size, and go to ranks as far
        apart as can be.
        """
        place, slot = piece % self.count, 0
        for _ in range(self.count.bit_length() - 1):
            slot, place = 2 * slot + place % 2, place // 2
        return slot

    def spread(self, pieces: Sequence[T], work: Callable[[T], R], *, passes: bool = False) -> list[R]:
        """Does each piece of work on one rank, and returns all results on every one, in the order of the pieces.

        Args:
            pieces: Of the work, the same on every rank.
            work: Computes a piece.
            passes: Each piece is one pass over a base model.

        Raises:
            MemoryError: Memory ran out, here or on another rank; as torch's own error where it happened.
        """
        done: dict[int, R] = {}
        with self.together(passes=passes):
            for number in self.numbers(len(pieces)):
                done[number] = work(pieces[number])
            self._make_up(pieces, work, passes=passes)
        return self.merged(done)

    def parts(self, items: Sequence[T], work: Callable[[Sequence[T]], R], most: int) -> list[R]:
        """Does work on parts of the items, one after the other and at most so many each, as ``spread`` does pieces."""
        size = min(most, -(-len(items) // self.count) or 1)
        return self.spread([items[start : start + size] for start in range(0, len(items), size)], work)

    def gradient(
        self, parameters: Sequence[torch.Tensor], pieces: Sequence[T], work: Callable[[T], R], *, passes: bool = False
    ) -> dict[int, R]:
        """Leaves the summed gradient of all pieces in ``parameters``' ``grad``, on every rank.

        Args:
            parameters: Tensors that require a gradient.
            pieces: Of the work, the same on every rank.
            work: Computes a piece, and goes backward through it.
            passes: Each piece is one pass over a base model.

        Returns:
            What this rank's pieces gave, by their number.

        Raises:
            MemoryError: As ``spread``.
        """
        done: dict[int, R] = {}
        tree = _Tree()
        with self.together(passes=passes):
            for slot in self.mine:
                for tensor in parameters:
                    tensor.grad = None
                for number in self.numbers(len(pieces), range(slot, slot + 1)):
                    done[number] = work(pieces[number])
                if self.count > 1:
                    tree.add(torch.cat([_gradient(tensor).flatten() for tensor in parameters]))
            self._make_up(pieces, work, passes=passes)  # its gradient is overwritten
        if self.count > 1:
            total = self.group.add(tree.sum)
            sizes = [tensor.numel() for tensor in parameters]
            for tensor, part in zip(parameters, total.split(sizes), strict=True):
                tensor.grad = part.view_as(tensor)
        return done

    def merged(self, done: Mapping[int, R]) -> list[R]:
        """Returns what all ranks found, in the order of the pieces; what this one found must be picklable."""
        found: dict[int, R] = {}
        for part in self.group.gather(done):
            found |= part
        return [found[number] for number in sorted(found)]

    def numbers(self, pieces: int, slots: range | None = None) -> list[int]:
        """Returns the numbers of these slots' pieces; this rank's if none are named."""
        slots = self.mine if slots is None else slots
        return [number for number in range(pieces) if self.of(number) in slots]

    def _make_up(self, pieces: Sequence[T], work: Callable[[T], R], *, passes: bool) -> None:
        """Computes the last piece, the shortest, as often as this rank has fewer pieces than another."""
        if not (passes and self.sharded):
            return
        share = self.count // self.group.size
        counts = [len(self.numbers(len(pieces), range(slot, slot + share))) for slot in range(0, self.count, share)]
        for _ in range(max(counts) - counts[self.group.rank]):
            work(pieces[-1])

    @contextmanager
    def together(self, *, passes: bool = False) -> Iterator[None]:
        """Lets memory run out on all ranks where it does on one: all of them go on with smaller pieces.

        Not in a pass over a sharded base: the others wait inside it.
        """
        if passes and self.sharded:
            yield
            return
        failed: BaseException | None = None
        try:
            yield
        except Exception as error:
            if not out_of_memory(error):
                raise
            failed = error
        if self.group.agree(failed is not None):
            raise failed or MemoryError("memory ran out on another rank")


def check(count: int, ranks: int) -> None:
    """Checks that slots can be dealt to so many ranks.

    Raises:
        ConfigError: They cannot.
    """
    if not power_of_two(count) or count < ranks:
        raise ConfigError(
            f"{count} reduction slots cannot be dealt to {ranks} ranks. Expected a power of two, no fewer than ranks:"
            f" --reduction-slots {max(USUAL, ranks)}. (A run that goes on with other slots differs in the last bits.)"
        )


def usual(ranks: int) -> int:
    """Returns how many slots a run has by default: one on one rank, else 8, or as many as there are ranks."""
    return 1 if ranks == 1 else max(USUAL, ranks)


class _Tree:
    """Adds what comes as a binary tree of neighbours, at the memory of one sum for each of its levels."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, torch.Tensor]] = []

    def add(self, x: torch.Tensor) -> None:
        level = 0
        while self._waiting and self._waiting[-1][0] == level:
            x = self._waiting.pop()[1].add_(x)
            level += 1
        self._waiting.append((level, x))

    @property
    def sum(self) -> torch.Tensor:
        """Returns the sum of what has come: as many as a power of two."""
        ((_, total),) = self._waiting
        return total


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
