"""A session of a run: its folder, who watches, and what ends it with its state saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from marft_algos.ranks.group import RankGroup
from marft_algos.rollout.panel import StoppedError
from marft_algos.runs import loggers
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.progress import RunProgress
from marft_algos.training.interrupt import Interrupt, Interrupted


class TrainingSession:
    """Holds one run of the loop: where it writes, who watches, and what ends it.

    Args:
        run: Its folder.
        display: Shows people how far it is.
        sinks: Are handed each line of metrics beside it, and closed at the end.
        group: The ranks.
    """

    def __init__(
        self, run: RunFolder, display: loggers.Display, sinks: Sequence[loggers.Logger], group: RankGroup
    ) -> None:
        self.run, self.display, self.interrupt = run, display, Interrupt(group)
        self._sinks, self._cpu = sinks, time.process_time()

    @contextmanager
    def guarded(self, save: Callable[[], None]) -> Iterator[None]:
        """Holds the folder's lock; what stops the run inside lets go of it only when the state is saved.

        Args:
            save: Saves it; called if it is whole.
        """
        with self.run.locked():
            try:
                yield
            except KeyboardInterrupt:
                if self.interrupt.whole:
                    save()
                raise Interrupted from None
            except StoppedError as error:
                save()
                raise type(error)(f"{error} Mend it, and go on: marft train --resume {self.run.root}") from error

    def log(self, metrics: dict[str, Any], progress: RunProgress, started: float) -> None:
        """Writes and shows a line of metrics, with the time since ``started`` and in all."""
        spent = time.monotonic() - started
        progress.seconds += spent
        cpu, self._cpu = self._cpu, time.process_time()
        metrics |= {"time_total": spent, "time_elapsed": progress.seconds, "time_cpu": self._cpu - cpu}
        progress.metrics_bytes = self.run.append_metrics(metrics)
        for sink in (self.display, *self._sinks):
            sink.log(metrics)

    def close(self) -> None:
        """Closes who was handed the metrics."""
        for sink in self._sinks:
            sink.close()
