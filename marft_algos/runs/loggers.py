"""Where a run's numbers go while it runs, beside metrics.jsonl: the terminal, and by option a tracker."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any, Protocol

import rich.panel
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from marft_algos.runs.folder import RunFolder
from marft_algos.runs.intervals import Interval
from marft_algos.runs.plots import DEMONSTRATED, NOISE
from marft_algos.runs.trackers import TRACKERS
from marft_algos.terminal import clean
from marft_envs.errors import ConfigError

BARS = "▁▂▃▄▅▆▇█"


class Logger(Protocol):
    """Takes one line of metrics after each iteration."""

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Takes the numbers of one iteration."""

    def close(self) -> None:
        """Flushes; by default there is nothing to flush."""
        return


class Callback(Logger):
    """A logger that hands each line of metrics to a function, or to the method ``on_iteration`` of an object.

    Raises:
        ConfigError: It is neither.
    """

    def __init__(self, target: Any) -> None:
        self._take = getattr(target, "on_iteration", target)
        if not callable(self._take) or isinstance(target, type):
            raise ConfigError(
                f"A callback is {target!r}. Expected a function of an iteration's metrics, or an object with"
                " on_iteration(metrics), or with log(metrics) and close()."
            )

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Takes the numbers of one iteration."""
        self._take(metrics)


def of_callback(callback: Any) -> Logger:
    """Returns a callback as a logger: itself where it is one."""
    is_one = all(hasattr(callback, name) for name in ("log", "close")) and not isinstance(callback, type)
    return callback if is_one else Callback(callback)


def make(name: str, run: RunFolder, iteration: int) -> Logger:
    """Returns a logger by the name that the setting ``loggers`` has for it.

    Raises:
        MissingExtraError: Its package is not installed.
    """
    return TRACKERS[name](run, iteration)


def minutes(seconds: float) -> str:
    """Writes ``75`` as ``1:15``."""
    total = max(round(seconds), 0)
    hours, rest = divmod(total, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def sparkline(values: list[float], width: int = 40) -> str:
    """Values in [0, 1] or rescaled to their range, the last ``width`` of them, as little bars."""
    shown = values[-width:]
    low, high = min([*shown, 0.0]), max([*shown, 1.0])
    return "".join(BARS[min(int((v - low) / (high - low) * len(BARS)), len(BARS) - 1)] for v in shown)


class Display:
    """Progress for people: a live display on a terminal, plain lines otherwise.

    Args:
        total: Iterations of the run.
        done: Iterations that the run had when it was started or resumed.
        title: Shown above.
        console: Where to; standard error's by default, so that standard output stays clean.
        share: Returns how much of the run is over, from 0 to 1, if that is not ``done`` of ``total``: budgets end runs.
    """

    def __init__(
        self,
        total: int,
        done: int,
        title: str,
        console: Console | None = None,
        share: Callable[[], float] | None = None,
    ) -> None:
        self.total, self.done, self.title = total, done, clean(title, line=True)
        self._share_of = share or (lambda: self.done / max(self.total, 1))
        self._first = self._share_of()
        self.console = console or Console(file=sys.stderr, highlight=False)
        self._start = time.monotonic()
        self._returns: list[float] = []
        self._lost = 0
        self._last: Mapping[str, Any] = {}
        self._evaluations: list[tuple[str, str]] = []
        self._evaluation_set = ""
        self._phase = "starting"
        self._live = Live(self, console=self.console, refresh_per_second=4) if self.console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def close(self) -> None:
        """The caller's ``with`` ends the display."""

    def phase(self, text: str) -> None:
        """Shows what is being done now (on a terminal only)."""
        self._phase = text

    def note(self, text: str) -> None:
        """Prints one line that stays."""
        self.console.print(clean(text), markup=False, soft_wrap=True)

    def evaluated(self, iteration: int, now: Interval, gain: Interval | None, evaluation_set: str = "") -> None:
        """Shows a new evaluation; ``evaluation_set``: what on, in words."""
        if self._live is None and evaluation_set != self._evaluation_set:
            self.note(f"evaluated on {evaluation_set}")
        self._evaluation_set = evaluation_set
        what = "untrained" if iteration == 0 else f"iteration {iteration}"
        text = str(now) + (f"; against untrained {gain.points()}" if gain else "")
        self._evaluations.append((what, text))
        if self._live is None:
            self.note(f"evaluation ({what}): {text}")

    def log(self, metrics: Mapping[str, Any]) -> None:
        """The numbers of one iteration."""
        self._last, self.done = metrics, int(metrics["iteration"])
        if "return" in metrics:
            self._returns.append(float(metrics["return"]))
            self._lost += int(metrics.get("infrastructure_errors", 0))
            if self._live is None:
                what, end = ("loss", "/loss") if DEMONSTRATED in metrics else ("KL", "/kl")
                per = [(k.split("/")[1], v) for k, v in metrics.items() if k.endswith(end) and abs(v) > NOISE]
                lost = f"infrastructure errors {metrics.get('infrastructure_errors', 0)}"
                parts = [f"iteration {self._where()}", *_outcome(metrics), *(f"{p} {what} {v:.4f}" for p, v in per)]
                self.note("  ".join([*parts, lost, f"{metrics['time_total']:.1f} s", f"left {self.left()}"]))

    def left(self) -> str:
        """Estimates the time left, from the run's mean pace since it was started or resumed."""
        share = self._share_of()
        if share <= self._first:
            return "?"
        return minutes((time.monotonic() - self._start) / (share - self._first) * (1 - share))

    def _where(self) -> str:
        """``3/40``, or ``3 (12 % of its budget)`` where a budget will end the run."""
        share = self._share_of()
        by_budget = share > self.done / max(self.total, 1)
        return f"{self.done} ({100 * share:.0f} % of its budget)" if by_budget else f"{self.done}/{self.total}"

    def __rich__(self) -> rich.panel.Panel:
        share = self._share_of()
        bar = Text("━" * round(40 * share), "green") + Text("━" * (40 - round(40 * share)), "bright_black")
        spent = minutes(time.monotonic() - self._start)
        clock = f"  {self._where()}   {spent} spent, {self.left()} left   "
        head = Text.assemble(bar, clock, (self._phase, "cyan"))
        rows: list[Any] = [head]
        if self._returns:
            now = "  ".join([*_outcome(self._last), f"infrastructure errors {self._lost}"])
            rows.append(Text(f"training  {sparkline(self._returns)}  {now}"))
        if policies := self._policies():
            rows.append(policies)
        if pace := brief(self._last):
            rows.append(Text(pace, "bright_black"))
        if self._evaluations and self._evaluation_set:
            rows.append(Text(f"evaluated on {self._evaluation_set}", "bright_black"))
        rows += [Text(f"{what}: {text}") for what, text in self._evaluations[:1] + self._evaluations[1:][-3:]]
        return rich.panel.Panel(Group(*rows), title=Text(self.title), title_align="left", border_style="bright_black")

    def _policies(self) -> Table | None:
        """Makes a table of the last numbers of every policy."""
        shown = {"loss": "loss", "kl": "KL", "entropy": "entropy", "clip_share": "clipped", "value_loss": "value loss"}
        names = list(dict.fromkeys(k.split("/")[1] for k in self._last if k.startswith("policy/")))
        if not names:
            return None
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
        for column in ("policy", *shown.values()):
            table.add_column(column, justify="left" if column == "policy" else "right")
        for name in names:
            values = [self._last.get(f"policy/{name}/{key}") for key in shown]
            numbers = ("–" if v is None else f"{v if abs(v) > NOISE else 0.0:.4g}" for v in values)
            table.add_row(clean(name, line=True), *numbers)
        return table


def _outcome(metrics: Mapping[str, Any]) -> list[str]:
    """Says what an iteration's episodes earned; demonstrations are nothing that the team has done."""
    if "return" not in metrics:
        return []
    if DEMONSTRATED in metrics:
        return [f"return of demonstrations {metrics['return']:.3f}"]
    return [f"{name} {metrics[name]:.3f}" for name in ("return", "success") if name in metrics]


# The pace of several processes --------------------------------------------------------------------

_LOSSES = {"replaced": "restarts", "redone": "chunks_redone", "lost": "chunks_lost", "restarts": "rank_restarts"}


def brief(line: Mapping[str, Any]) -> str:
    """Returns how fast an iteration was, who waited for whom, and what was lost; empty where one process does all.

    Args:
        line: Of ``metrics.jsonl``. What it lacks, or is no number, counts as 0. Shares are of the time without
            evaluations.
    """
    workers, ranks = int(_number(line, "engine/workers")), max(int(_number(line, "engine/ranks")), 1)
    if "time_update" not in line or (ranks == 1 and not workers):
        return ""
    seconds = max(_number(line, "time_total") - _number(line, "time_eval"), 1e-9)
    tokens = _number(line, "tokens_played") or _number(line, "tokens")
    words = [f"{tokens / seconds:,.0f} tokens/s"]
    if workers:
        played = sum(_number(row, "seconds") for row in _list(line, "time_players") if isinstance(row, Mapping))
        idle = max(1 - played / (workers * seconds), 0.0)
        words += [f"{workers} workers", f"learners wait {_number(line, 'time_wait') / seconds:.0%}"]
        words += [f"workers {idle:.0%}"]
    if ranks > 1:
        waits = [x for x in _list(line, "time_ranks") if isinstance(x, int | float)]
        words += [f"{ranks} ranks", f"wait for each other {mean(waits or [0.0]) / seconds:.0%}"]
    losses = {what: _number(line, f"engine/{key}") for what, key in _LOSSES.items()}
    return " · ".join([*words, *(f"{what} {count:.0f}" for what, count in losses.items() if count)])


def _number(line: Mapping[str, Any], key: str) -> float:
    value = line.get(key, 0.0)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _list(line: Mapping[str, Any], key: str) -> list[Any]:
    value = line.get(key)
    return value if isinstance(value, list) else []
