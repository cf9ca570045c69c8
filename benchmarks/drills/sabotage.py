"""What goes wrong inside a process, on purpose: algorithms that are MARFT, but for one moment of a test's run.

Outside a fault-injection test nothing happens: the moment stands in a file of the test's folder.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.drills.stage import DEADLY, MARK, PLAN, STRUCK
from marft_algos.algorithms.marft import MARFT
from marft_algos.batching import Batch
from marft_algos.extras.cluster import worker
from marft_algos.extras.cluster.rollouts import RayRollouts
from marft_algos.extras.cluster.worker import HashedBytes, RayWorker
from marft_algos.types import Trajectory

GONE_S = 30.0
"""How long an object may outlive its owner."""


class Saboteur(MARFT):
    """Counts calls of one hook in this process; whichever process comes first to the planned one strikes, once."""

    _calls = 0

    def now(self) -> bool:
        """Returns whether this is the moment."""
        folder = os.environ.get(MARK, "")
        if not folder or not (plan := Path(folder, PLAN)).is_file():
            return False
        self._calls += 1
        if self._calls < int(plan.read_text()):
            return False
        try:
            with Path(folder, STRUCK).open("x") as file:
                file.write(str(time.time()))
        except FileExistsError:
            return False
        return True


class WhileLearning(Saboteur):
    """Strikes where a loss is computed; the others do so where episodes are played."""

    rank: ClassVar[str] = "0"
    """Who strikes where ranks learn."""

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns MARFT's loss."""
        if os.environ.get("RANK", self.rank) == self.rank and self.now():
            self.strike(logprobs)
        return super().surrogate(logprobs, batch)

    def strike(self, logprobs: Tensor) -> None:
        """Does what the test is about, in the process that learns."""


class Flips(WhileLearning):
    """Flips a bit of rank 1's weights."""

    rank = "1"

    def strike(self, logprobs: Tensor) -> None:
        """Flips a bit of the largest weight of a tensor that the loss depends on: one that no step rounds away."""
        weight = next(_leaves(logprobs.grad_fn)).data.view(-1)
        weight[weight.abs().argmax(), None].view(torch.int32).bitwise_xor_(1 << 20)


class Scarce(WhileLearning):
    """Finds no memory on rank 1."""

    rank = "1"

    def strike(self, logprobs: Tensor) -> None:
        """Says so."""
        raise torch.OutOfMemoryError("there is none left, says a fault-injection test")


class Hangs(WhileLearning):
    """Rank 1 hangs in a call that does not return."""

    rank = "1"

    def strike(self, logprobs: Tensor) -> None:
        """Waits for ever."""
        while True:
            time.sleep(3600)


class Breaks(Saboteur):
    """Rank 1 dies, and dies again whenever it is started."""

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns MARFT's loss, where it comes to that."""
        if os.environ.get("RANK") == "1" and (Path(os.environ.get(MARK, os.devnull), STRUCK).is_file() or self.now()):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().surrogate(logprobs, batch)


class Loses(WhileLearning):
    """Weights that are put into the store are lost, once, before a worker has read them."""

    def strike(self, logprobs: Tensor) -> None:
        """Lets an actor put what is published next, and kills it: its objects end with it."""
        give, done = RayRollouts._give, list[int]()

        def losing(self: RayRollouts, *args: Any) -> None:
            for of in self._playing.values():
                if of.ref is None and not done:
                    done.append(1)
                    owner = self._ray.remote(num_cpus=0)(_Owner).remote()
                    [of.ref] = self._ray.get(owner.put.remote(of.packed))
                    self._ray.kill(owner)
                    _gone(self._ray, of.ref)
            give(self, *args)

        RayRollouts._give = losing  # type: ignore[method-assign,assignment]


class DamagesEpisodes(Saboteur):
    """A byte of the episodes that a worker sends is another one, once."""

    def wanted(self, group: Sequence[Trajectory]) -> bool:
        """Wants every group; asked by the worker, before it packs them."""
        if self.now():
            of = HashedBytes.of

            def damaged(data: bytes) -> HashedBytes:
                HashedBytes.of = of  # type: ignore[method-assign]
                return _damaged(of(data))

            worker.HashedBytes.of = damaged  # type: ignore[method-assign]
        return super().wanted(group)


class DamagesWeights(Saboteur):
    """A byte of the weights that a worker gets is another one, once."""

    def wanted(self, group: Sequence[Trajectory]) -> bool:
        """Wants every group; asked by the worker, after it has got them."""
        if self.now():
            take = RayWorker.take

            def damaged(self: RayWorker, policy: str, version: int, weights: HashedBytes) -> None:
                RayWorker.take = take  # type: ignore[method-assign]
                take(self, policy, version, _damaged(weights))

            RayWorker.take = damaged  # type: ignore[method-assign]
        return super().wanted(group)


class Deadly(Saboteur):
    """Every process that plays a certain episode dies of it, every time."""

    def wanted(self, group: Sequence[Trajectory]) -> bool:
        """Kills this process after the episode."""
        file = Path(os.environ.get(MARK, os.devnull), DEADLY)
        seeds = str([trajectory.episode.seed for trajectory in group])
        if self.now():
            file.write_text(seeds)
        if file.is_file() and file.read_text() == seeds:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().wanted(group)


class _Owner:
    """Puts something into the store."""

    def put(self, what: Any) -> list[Any]:
        """Returns where it is, in a list: so it is not fetched."""
        import ray

        return [ray.put(what)]


def _gone(ray: Any, ref: Any) -> None:
    """Waits until an object is lost: for a moment it outlives its owner."""
    until = time.monotonic() + GONE_S
    while time.monotonic() < until:
        try:
            ray.get(ref, timeout=1)
        except ray.exceptions.GetTimeoutError:
            continue
        except ray.exceptions.RayError:
            return
        time.sleep(0.1)


def _damaged(packed: HashedBytes) -> HashedBytes:
    middle = len(packed.data) // 2
    return HashedBytes(
        packed.data[:middle] + bytes([packed.data[middle] ^ 1]) + packed.data[middle + 1 :], packed.sha256
    )


def _leaves(node: Any) -> Iterator[Tensor]:
    """Yields the parameters that a result depends on."""
    waiting, seen = [node], set()
    while waiting:
        here = waiting.pop()
        if here is None or here in seen:
            continue
        seen.add(here)
        if (variable := getattr(here, "variable", None)) is not None:
            yield variable
        waiting += [inner for inner, _ in here.next_functions]
