"""A session of a run: its folder, who watches, and what ends it with its state saved, Ctrl-C and signals included.

And what is said of a team that cannot begin to learn: truncated replies, answers without a readable form.
"""

from __future__ import annotations

import faulthandler
import math
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from marft_algos import terminal
from marft_algos.config import presets
from marft_algos.config.settings import TrainConfig
from marft_algos.ranks.group import Alone, RankGroup
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.rollout.episodes import StoppedError, too_long
from marft_algos.runs import loggers, start
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.loggers import Display
from marft_algos.runs.progress import RunProgress
from marft_algos.types import Trajectory

SAME_S = 2.0
"""Seconds within which two signals to one of several ranks are one."""
STACK_S = 25.0
"""Seconds after which a rank that was asked to stop says where it hangs: after 30 its launcher kills it."""

REPETITIVE = 0.5
"""Below this share of distinct transcripts in a group a run says so, once."""
HALF = 0.5
"""Share of replies, or of episodes, from which on it is worth a word."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP, after the state was saved."""


class Interrupt:
    """Handles Ctrl-C, SIGTERM or SIGHUP: at once while nothing that a checkpoint holds changes, else as soon as it can.

    A second one takes effect at once, and leaves the last checkpoint as it is. Where several ranks train, all of them
    stop behind the same iteration.

    Args:
        group: The ranks.
    """

    def __init__(self, group: RankGroup | None = None) -> None:
        self._group = group or Alone()
        self.whole = False
        """The interruption came where the state can be saved."""
        self._requested = False
        self._when = -math.inf
        self._safe = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            terminal.leave()
        # A terminal's Ctrl-C reaches every rank, and then the launcher sends each of them a SIGTERM.
        same = self._group.size > 1 and time.monotonic() - self._when < SAME_S
        again, self._requested, self._when = self._requested and not same, True, time.monotonic()
        if self._safe or again:
            self.whole = self._safe
            raise KeyboardInterrupt
        if self._group.size > 1 and sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(STACK_S, file=sys.__stderr__)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Marks code in which nothing that a checkpoint holds changes."""
        if self._group.size > 1:  # the others would wait for this one: see ``agreed``
            yield
            return
        if self._requested:
            self.whole = True
            raise KeyboardInterrupt
        self._safe = True
        try:
            yield
        finally:
            self._safe = False

    def agreed(self) -> None:
        """Stops all ranks, if one is to stop; called behind an iteration."""
        if self._group.size > 1 and self._group.agree(self._requested):
            self.whole = True
            faulthandler.cancel_dump_traceback_later()
            raise KeyboardInterrupt

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Receives the signals while inside; a SIGHUP that is ignored stays so (``nohup``), which is said once."""
        with terminal.signals(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self)) as heard:
            if heard and signal.SIGHUP not in heard and self._group.rank == 0:
                warnings.warn("SIGHUP is ignored, as nohup has it: a closed terminal ends no run.", stacklevel=3)
            yield


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
                raise type(error)(f"{error} Fix it, and go on: marft train --resume {self.run.root}") from error

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


def unfamiliar(config: TrainConfig) -> str:
    """Returns a note where an embedded model has learnt no prompts like those of the environment; "" elsewhere."""
    if config.engines or not str(config.models).startswith("embedded") or presets.familiar(config.env):
        return ""
    text = "note: the embedded model knows only the prompts of MARFT's own environments, and begins with guesses on"
    return f"{text} {config.env}. Next: --warm-start N (demonstrations), or --models with an instruction-tuned model."


def advice(numbers: Mapping[str, float], config: TrainConfig) -> str:
    """Returns what an evaluation shows to be in the way of learning, and what to type; "" where nothing is.

    Args:
        numbers: Of an evaluation, as :func:`marft_algos.rollout.episodes.summary` counts them.
        config: The run's settings.
    """
    solved = numbers.get("success", numbers.get("return", 0.0))
    cut = {k.split("/")[1]: v for k, v in numbers.items() if k.startswith("agent/") and k.endswith("/truncated")}
    seen = [
        f"{share:.0%} of {agent}'s replies were truncated at max_new_tokens = {config.max_new_tokens}"
        for agent, share in cut.items()
        if share >= HALF and solved < start.LEAST  # else only their end is missing
    ]
    if (unread := _unread(numbers)) >= HALF:
        what = "turns" if "task/malformed" in numbers else "answers"
        seen.append(f"{unread:.0%} of {what} have no form that the task reads")
    if not seen:
        return ""
    examples = ""
    if "profiles" not in config.env_kwargs and presets.accepts(config.env, "profiles"):
        examples = (
            f"give the model examples (marft profiles {shlex.quote(config.env)} > profiles.json, then --env-kwargs"
            " profiles=profiles.json), "
        )
    return (
        f"note: {'; '.join(seen)}. A team like this may not start to learn. Next: {examples}start from demonstrations"
        " (marft sft, with the same options), or, if its replies are good but long, raise --max-new-tokens."
    )


class Hindrances:
    """Says what is in the way of learning: problems whose own text is too long, demonstrations that were left out.

    Args:
        demonstrations: What is learnt from beside the run's own episodes, if there is any.
    """

    def __init__(self, demonstrations: Demonstrations | None) -> None:
        self._demonstrations, self._named = demonstrations, set[str]()

    def show(self, display: Display, played: Sequence[Trajectory] = (), last: bool = False) -> None:
        """Shows what these episodes add; at the end, how many demonstrations were left out in all."""
        if words := too_long(played, self._named):
            display.note(words)
        if self._demonstrations is not None:
            words = self._demonstrations.summary() if last else self._demonstrations.news()
            if words:
                display.note(words)


def _unread(numbers: Mapping[str, float]) -> float:
    """Returns the share of answers, programs or calls without any form that the task reads."""
    if "task/parsed" in numbers:
        return 1.0 - numbers["task/parsed"] - numbers.get("task/timeout", 0.0)
    if "task/verdict/no_code" in numbers:
        return numbers["task/verdict/no_code"]
    return numbers.get("task/malformed", 0.0) / max(numbers.get("turns", 1.0), 1.0)


class Variety:
    """Counts what an iteration's episodes have to show.

    Args:
        group_size: Episodes of one start.
    """

    def __init__(self, group_size: int) -> None:
        self._size, self._warned = group_size, False

    def measure(self, played: Sequence[Trajectory]) -> dict[str, float]:
        """Returns numbers of the episodes of an iteration; warns, once, where groups mostly repeat themselves.

        Args:
            played: Each with its ``group``; those lost to infrastructure errors are left out.

        Returns:
            ``prompts``: distinct prompts, one for each group; with groups ``distinct``: different transcripts in a
            group, mean over groups.
        """
        groups: dict[int, set[tuple[tuple[str, str], ...]]] = {}
        for t in played:
            groups.setdefault(t.group, set()).add(tuple((x.agent, x.turn.text) for x in t.transitions))
        metrics: dict[str, float] = {"prompts": len(groups)}
        if self._size > 1 and groups:
            metrics["distinct"] = sum(map(len, groups.values())) / len(groups)
            self._warn(metrics["distinct"])
        return metrics

    def _warn(self, distinct: float) -> None:
        if self._warned or distinct >= REPETITIVE * self._size:
            return
        self._warned = True
        warnings.warn(
            f"A group of {self._size} episodes holds {distinct:.1f} different transcripts: the others repeat them, and "
            "their tokens teach little. Sample with more entropy (--temperature), in smaller groups (--group-size), or "
            "use an algorithm without groups.",
            stacklevel=2,
        )
