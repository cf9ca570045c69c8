"""Work is dealt to lanes, and lanes to ranks: sums have the same bits however many ranks there are.

Floating-point sums depend on their order. Here the order belongs to the lanes, whose number is fixed when a run starts:
a lane adds its pieces one after the other, lanes are added as one binary tree, neighbours first, and a rank owns some
neighbours. So 1, 2, 4, … ranks, up to the number of lanes, build the same tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from marft_algos.lazy import torch
from marft_algos.memory import out_of_memory
from marft_algos.ranks.group import Alone, Group, power_of_two
from marft_envs.errors import ConfigError

USUAL = 8
"""Lanes of a run with several ranks, if there are not more ranks."""
T = TypeVar("T")
R = TypeVar("R")


class Lanes:
    """Deals pieces of work to the ranks of a group.

    Args:
        group: The ranks.
        count: Of lanes: a power of two, and no fewer than ranks. With one, pieces are added in their order.

    Raises:
        ConfigError: Another count.
    """

    def __init__(self, group: Group | None = None, count: int = 1) -> None:
        self.group: Group = group or Alone()
        self.count = count
        check(count, self.group.size)

    @property
    def mine(self) -> range:
        """Returns the lanes of this rank."""
        share = self.count // self.group.size
        return range(self.group.rank * share, (self.group.rank + 1) * share)

    def of(self, piece: int) -> int:
        """Returns the lane of a piece, by its number.

        The digits of the number are reversed: pieces that follow each other are of similar size, and go to ranks as far
        apart as can be.
        """
        place, lane = piece % self.count, 0
        for _ in range(self.count.bit_length() - 1):
            lane, place = 2 * lane + place % 2, place // 2
        return lane

    def spread(self, pieces: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """Does each piece of work on one rank, and returns all results on every one, in the order of the pieces.

        Raises:
            MemoryError: Memory ran out, here or on another rank; as torch's own error where it happened.
        """
        done: dict[int, R] = {}
        with self._together():
            for number in self._numbers(len(pieces)):
                done[number] = work(pieces[number])
        return self.merged(done)

    def gradient(self, parameters: Sequence[torch.Tensor], pieces: Sequence[T], work: Callable[[T], R]) -> dict[int, R]:
        """Leaves the summed gradient of all pieces in ``parameters``' ``grad``, on every rank.

        Args:
            parameters: Tensors that require a gradient.
            pieces: Of the work, the same on every rank.
            work: Computes a piece, and goes backward through it.

        Returns:
            What this rank's pieces gave, by their number.

        Raises:
            MemoryError: As ``spread``.
        """
        done: dict[int, R] = {}
        tree = _Tree()
        with self._together():
            for lane in self.mine:
                for tensor in parameters:
                    tensor.grad = None
                for number in self._numbers(len(pieces), lane):
                    done[number] = work(pieces[number])
                if self.count > 1:
                    tree.add(torch.cat([_gradient(tensor).flatten() for tensor in parameters]))
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

    def _numbers(self, pieces: int, lane: int | None = None) -> list[int]:
        """Returns the numbers of a lane's pieces, or of all of this rank's."""
        mine = self.mine if lane is None else range(lane, lane + 1)
        return [number for number in range(pieces) if self.of(number) in mine]

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Lets memory run out on all ranks where it does on one: all of them go on with smaller pieces."""
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
    """Checks that lanes can be dealt to so many ranks.

    Raises:
        ConfigError: They cannot.
    """
    if not power_of_two(count) or count < ranks:
        raise ConfigError(
            f"{count} lanes cannot be dealt to {ranks} ranks. Expected a power of two, at least as many as ranks:"
            f" --lanes {max(USUAL, ranks)}. (A run that goes on with other lanes differs in the last bits.)"
        )


def usual(group: Group | None = None) -> int:
    """Returns how many lanes a run has that says nothing: one on one rank, else 8, or as many as there are ranks."""
    size = 1 if group is None else group.size
    return 1 if size == 1 else max(USUAL, size)


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
