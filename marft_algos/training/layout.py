"""Which process of a run goes to which GPU: ranks, which learn, and workers, which only play."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from marft_algos.ranks.group import power_of_two
from marft_envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ProcessLayout:
    """Counts the processes of a run; ranks take the first GPUs, workers the next ones, none across two nodes.

    Raises:
        ConfigError: The GPUs do not suffice, or ranks are no power of two.
    """

    gpus: int
    ranks: int
    workers: int = 0
    """0: the ranks play themselves."""
    worker_gpus: int = 1
    """GPUs of one worker's engine (tensor parallel)."""
    per_node: int = 8

    def __post_init__(self) -> None:
        """Checks that the processes have a place."""
        _check_counts(self.gpus, self.ranks, self.worker_gpus, self.per_node)
        if len(self._worker_starts()) < self.workers:
            most = len(dataclasses.replace(self, workers=0)._worker_starts(self.gpus))
            raise ConfigError(
                f"{self.ranks} ranks and {self.workers} workers of {self.worker_gpus} GPUs do not fit on {self.gpus}"
                f" GPUs, {self.per_node} a node. Beside the ranks there is room for {most}: --workers {most}; or name"
                f" more GPUs: --gpus {2 * self.gpus}"
            )

    def places(self) -> list[tuple[str, int, int]]:
        """Lists the processes, each with its first and last GPU."""
        ranks = [(f"rank {i}", i, i) for i in range(self.ranks)]
        starts = enumerate(self._worker_starts())
        return ranks + [(f"worker {i}", first, first + self.worker_gpus - 1) for i, first in starts]

    def table(self) -> str:
        """Returns a line a node and kind of process."""
        lines = []
        for node in range(ceil(self.gpus, self.per_node)):
            first, end = node * self.per_node, min((node + 1) * self.per_node, self.gpus)
            here = [place for place in self.places() if first <= place[1] < end]
            free = end - first - sum(last - start + 1 for _, start, last in here)
            for kind in ("rank", "worker"):
                if some := [place for place in here if place[0].startswith(kind)]:
                    used = _span("GPU", some[0][1] - first, some[-1][2] - first)
                    numbers = [int(name.split()[1]) for name, *_ in some]
                    lines.append(f"  node {node}  {used:<9}  {_span(kind, numbers[0], numbers[-1])}")
            if free:
                lines.append(f"  node {node}  {free} of its GPUs are idle")
        return "\n".join(lines)

    def _worker_starts(self, most: int | None = None) -> list[int]:
        """Lists the first GPUs of the workers, as far as there is room."""
        starts: list[int] = []
        at, most = self.ranks, self.workers if most is None else most
        while len(starts) < most:
            if at % self.per_node + self.worker_gpus > self.per_node:
                at = (at // self.per_node + 1) * self.per_node
            if at + self.worker_gpus > self.gpus:
                break
            starts.append(at)
            at += self.worker_gpus
        return starts


def most_workers(gpus: int, ranks: int, worker_gpus: int = 1, per_node: int = 8) -> int:
    """Returns how many workers there is room for beside the ranks."""
    return len(ProcessLayout(gpus, ranks, 0, worker_gpus, per_node)._worker_starts(gpus))


def largest_power(most: int) -> int:
    """Returns the largest power of two that is at most this number."""
    return 1 << (most.bit_length() - 1)


def _check_counts(gpus: int, ranks: int, worker_gpus: int, per_node: int) -> None:
    if gpus < 1:
        raise ConfigError(f"gpus is {gpus}; expected at least 1. On a CPU: marft train --dry-run")
    if ranks > gpus:
        raise ConfigError(
            f"{ranks} ranks were asked for, and there are {gpus} GPUs: a rank has one of its own. Type: --ranks"
            f" {largest_power(gpus)}, or --gpus {ranks}"
        )
    if not power_of_two(ranks):
        below = largest_power(max(ranks, 1))
        raise ConfigError(
            f"ranks is {ranks}; expected a power of two, as ranks add up in pairs. Type: --ranks {below}"
            + (f" or --ranks {2 * below}" if 2 * below <= gpus else "")
        )
    if worker_gpus > per_node:
        raise ConfigError(
            f"A worker of {worker_gpus} GPUs does not fit in a node of {per_node}. Type: --worker-gpus"
            f" {largest_power(per_node)}"
        )


def layouts(
    gpus: int,
    ranks: int | None = None,
    workers: int | None = None,
    worker_gpus: int | None = None,
    per_node: int = 8,
) -> list[ProcessLayout]:
    """Lists the layouts to try, in this order.

    Without ``ranks``: all GPUs learn and play; half of them learn and the others play; as many learn as can while
    somebody plays. With ``ranks`` only: the GPUs that are left play. Without ``worker_gpus``: workers of one GPU, then
    larger ones.

    Raises:
        ConfigError: See ``ProcessLayout``.
    """
    _check_counts(gpus, 1 if ranks is None else ranks, worker_gpus or 1, per_node)
    sizes = [1 << n for n in range(per_node.bit_length())] if worker_gpus is None else [worker_gpus]
    chosen = [ProcessLayout(gpus, largest_power(gpus), 0, 1, per_node)] if ranks is None and not workers else []
    if ranks is not None and (workers == 0 or gpus == ranks):
        chosen = [ProcessLayout(gpus, ranks, workers or 0, worker_gpus or 1, per_node)]
    for size in sizes if workers != 0 else []:
        counts = [gpus // 2, gpus - size] if workers is None else [gpus - workers * size]
        for n in dict.fromkeys(largest_power(n) for n in counts if n > 0) if ranks is None else [ranks]:
            room = most_workers(gpus, n, size, per_node)
            if room >= (workers or 1):
                chosen.append(ProcessLayout(gpus, n, workers or room, size, per_node))
    # Where nothing has room, the smallest layout says so.
    return chosen or [ProcessLayout(gpus, ranks or 1, workers or 0, sizes[0], per_node)]


def ceil(n: int, parts: int) -> int:
    """Returns the larger share of a number that is cut into equal parts as far as they go."""
    return -(-n // parts)


def _span(name: str, first: int, last: int) -> str:
    return f"{name} {first}" if first == last else f"{name}s {first}-{last}"
