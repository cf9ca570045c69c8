"""The folder of a run: what lies where, and reading it back. No torch: ``marft show`` works on the base install.

* ``config.toml``: every resolved setting
* ``metrics.jsonl``: one object per iteration; line 0 is the untrained team; ``time_*`` fields are wall-clock
* ``episodes/``: ``train-*.jsonl`` and ``eval-*.jsonl``, numbered by iteration; ``checkpoints/``: complete states
* ``data.json``: hashes of what is trained and evaluated on, compared when the run goes on
* ``start/``: the weights of another run that this one began with (``policies/``), and whose they were
* ``lost/``: chunks that ended every worker that they were given to, for ``marft replay``
* ``commands.jsonl``: what was typed, when and where: the command that made the run (``made``), then its resumes
* ``profiles.json``: the best profiles, of runs that learn prompts
* ``curves.png``, ``report.html``; ``.lock``: held by the process that writes here, see ``disk``
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import json
import os
import re
import shlex
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from marft_algos.config import manual, trust
from marft_algos.lazy import frame
from marft_algos.runs.disk import FILE, Inside, fix, held, lines, write_whole, writing
from marft_algos.runs.intervals import Interval, mean, paired
from marft_envs import Episode
from marft_envs.errors import ConfigError, MarftError, did_you_mean, hinted
from marft_envs.records import trajectory

UNTRAINED = 0
"""Iteration number of what was measured before the first update."""


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """Outcome of one evaluated episode."""

    task_id: str
    outcome: float
    """1 or 0 where the task says whether it was solved, else the team's return."""
    lost: bool = False
    """An infrastructure error ended it, and its outcome says nothing."""
    tokens: int = 0
    """Sampled for it."""
    processed: int = 0
    """The same with its prompts."""
    critical_path: int = 0
    """The sum over its layers of the longest reply, in tokens."""

    @classmethod
    def of(cls, episode: Episode) -> EvalRecord:
        """Reads a finished episode; tokens are its words where nobody has counted them."""
        tokens, processed = sum(t.length for t in episode.turns), sum(t.processed for t in episode.turns)
        known = (episode.task_id, episode.score, episode.infrastructure_error)
        return cls(*known, tokens, processed, episode.critical_path)


@dataclass(frozen=True, slots=True)
class EvaluationSetFacts:
    """What a team is evaluated on."""

    episodes: int
    instances: int
    """Distinct problems among them: what the task calls by different ids; 0 where it names none."""
    held_out: bool
    """Whether none of them is trained on."""

    @classmethod
    def of(cls, task_ids: Sequence[str], *, held_out: bool = False) -> EvaluationSetFacts:
        """Counts episodes with these ids, and the instances among them."""
        return cls(len(task_ids), len(set(task_ids) - {""}), held_out)

    def __str__(self) -> str:
        """As people read it: draws are not called problems, and held out is what is kept from training."""
        if self.held_out:
            return f"{self.instances} held-out problems"
        if not self.instances:
            return f"{self.episodes} episodes"
        named = f"{self.instances} instance{'s' * (self.instances != 1)}"
        return named if self.instances == self.episodes else f"{self.episodes} episodes of {named}"


@hinted
@dataclass(frozen=True, slots=True, repr=False)
class RunFolder:
    """Paths and records of one run."""

    root: Path
    writes: ClassVar[bool] = True
    """Whether this process writes here, and not another rank of the run alone."""

    lost = Inside("lost")
    config_file = Inside("config.toml")
    metrics_file = Inside("metrics.jsonl")
    checkpoints = Inside("checkpoints")
    start = Inside("start")
    report_file = Inside("report.html")
    curves_file = Inside("curves.png")
    commands_file = Inside("commands.jsonl")
    profiles_file = Inside("profiles.json")

    def __repr__(self) -> str:
        """Names the run, how far it is, and what its first and last evaluation measured."""
        try:
            lines = self.metrics()
        except (MarftError, OSError):
            lines = []
        scores = " → ".join(f"{m['eval/success']:.3f}" for m in (lines[:1] + lines[1:][-1:]) if "eval/success" in m)
        state = f"iteration {lines[-1]['iteration'] if lines else 0}, success {scores or '–'}"
        return f"<RunFolder {self.root}: {state if self.config_file.exists() else 'there is no run here'}>"

    def _repr_html_(self) -> str:
        from marft_algos.runs import plots

        return f"<p>{html.escape(repr(self))}</p>{plots.inline(plots.svg(self.plot()))}"

    def to_pandas(self) -> Any:
        """Returns ``metrics()`` as a ``pandas.DataFrame``, a row for each iteration."""
        return frame(self.metrics())

    def plot(self) -> Any:
        """Returns the curves as a figure of matplotlib: what ``curves.png`` shows."""
        from marft_algos.runs import plots

        return plots.sheet(self.metrics())

    def push_to_hub(self, name: str, *, private: bool = False) -> None:
        """Exports the team and pushes it to the Hugging Face hub: ``marft export RUN --push USER/NAME``.

        Args:
            name: ``USER/NAME``.
            private: Make new repositories private.

        Raises:
            ConfigError: It is no such name, there is no token, or nothing to export.
            HubError: The hub did not take it; the export stays where it is.
        """
        export = importlib.import_module(f"marft_algos.{manual.MANUAL['export'].module}")
        export.run_export(export.ExportArguments(str(self.root), push=name, private=private))

    def episodes_file(self, kind: str, iteration: int) -> Path:
        """Names the file of an iteration's ``train`` or ``eval`` episodes."""
        return self.root / "episodes" / f"{kind}-{iteration:06d}.jsonl"

    @classmethod
    def create(cls, runs_dir: str | Path, name: str, stem: str) -> RunFolder:
        """Makes the folder of a new run: ``name``, or ``stem`` and the time.

        Raises:
            ConfigError: The folder exists and is not empty.
            RunError: It cannot be written.
        """
        root = Path(runs_dir) / (name or f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
        _check_inside(root, runs_dir, name)
        number = 2
        while not name and root.exists():  # two runs in one second
            root = root.with_name(f"{root.name.removesuffix(f'-{number - 1}')}-{number}")
            number += 1
        run = cls(root)
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
        if not (root / FILE).exists():
            run._check_new()  # before anything is written into a folder that is none of ours
        with run.locked():
            run._check_new()
            with writing(root):
                (root / "episodes").mkdir()
                run.checkpoints.mkdir()
        return run

    @classmethod
    def check_free(cls, runs_dir: str | Path, name: str) -> None:
        """Checks that a new run can have this name, before anything is done for it.

        Raises:
            ConfigError: It would lie elsewhere, or there is something.
        """
        root = Path(runs_dir) / name
        _check_inside(root, runs_dir, name)
        if root.is_dir():
            cls(root)._check_new()

    def _check_new(self) -> None:
        if any(not path.name.startswith(".") for path in self.root.iterdir()):
            resume = shlex.join(["marft", "train", "--resume", str(self.root)])
            raise ConfigError(f"'{self.root}' exists already. Go on with it: {resume}. Or choose another --name.")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Returns the run at ``path``, or of that name below ``runs``.

        Raises:
            ConfigError: There is none.
        """
        for root in (Path(path), Path("runs") / path):
            if (root / "config.toml").is_file():
                return cls(root)
        for inside in (up for root in (Path(path), Path("runs") / path) for up in root.parents):
            if (inside / "config.toml").is_file():
                raise ConfigError(
                    f"'{path}' is no run, but lies in one: '{inside}'. Type that, and which checkpoint where it"
                    " matters: --checkpoint last, best or a number."
                )
        near = [str(config.parent) for top in (Path(path).parent, Path("runs")) for config in top.glob("*/config.toml")]
        raise ConfigError(
            f"'{path}' is no run: there is no config.toml in it. {did_you_mean(str(path), near)} Start one: marft train"
        )

    @classmethod
    def find(cls, name: str) -> RunFolder:
        """Returns the run at a path, of a name, or what the hub has of it (``USER/NAME``, ``USER/NAME@REVISION``).

        Raises:
            ConfigError: There is none.
        """
        from marft_algos.runs import hub

        return cls.open(hub.local(name))

    def team(self, **options: Any) -> Any:
        """Loads the trained team, to play and to answer: ``marft_algos.load_team(RUN, **options)``, which see."""
        return importlib.import_module("marft_algos").load_team(self, **options)

    @classmethod
    def newest(cls) -> str:
        """Returns the path of the newest run in ``runs``.

        Raises:
            ConfigError: There is none.
        """
        configs = sorted(Path("runs").glob("*/config.toml"), key=lambda path: path.stat().st_mtime)
        if not configs:
            raise ConfigError("There is no run in runs/ yet. Start one: marft train. Or name its folder.")
        return str(configs[-1].parent)

    @contextmanager
    def locked(self, command: str = "") -> Iterator[None]:
        """Keeps other processes from writing here; see ``disk.held``.

        Args:
            command: What is done, as a refusal says it.

        Raises:
            InUse: Another process is writing here.
            RunError: The folder cannot be written.
        """
        with ExitStack() as lock:
            with writing(self.root):
                lock.enter_context(held(self.root, command))
            yield

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        with self.locked(), writing(path):
            yield

    def add_command(self, command: str, iteration: int, *, made: bool = False) -> None:
        """Keeps what was typed, whether it made the run, where the run was then, and where it lay."""
        here = {"folder": os.getcwd(), "root": os.path.abspath(self.root)}
        line = {"time": time.time(), "iteration": iteration, "made": made, **here, "command": command}
        with self._writing(self.commands_file):
            fix(self.commands_file)
            with self.commands_file.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")

    def commands(self) -> list[dict[str, Any]]:
        """Reads what was typed, in order; empty for runs that no command has made or resumed.

        Raises:
            DataError: A line is no record of a command; the message names it.
        """
        return lines(self.commands_file, _COMMAND, needed=True)

    def write_config(self, text: str) -> None:
        """Writes config.toml, whole or not at all; what it may do, this user has just started."""
        with self.locked():
            write_whole(self.config_file, text)
        trust.remember(tomllib.loads(text))

    # Metrics ---------------------------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """Reads every complete line of metrics.jsonl, in order.

        Raises:
            DataError: A line is no record of an iteration; the message names it.
        """
        return lines(self.metrics_file, _METRICS)

    def append_metrics(self, metrics: Mapping[str, Any]) -> int:
        """Adds a line; returns the file's size after it."""
        with self._writing(self.metrics_file), self.metrics_file.open("ab") as file:
            file.write(json.dumps(metrics).encode() + b"\n")
            file.flush()
            return file.tell()

    def silent(self) -> float:
        """Returns the seconds since metrics.jsonl was last written; 0: there is none."""
        return time.time() - self.metrics_file.stat().st_mtime if self.metrics_file.exists() else 0.0

    def rewind(self, iteration: int, metrics_bytes: int) -> None:
        """Forgets what was written after a checkpoint."""
        with self._writing(self.root):
            if self.metrics_file.exists():
                os.truncate(self.metrics_file, min(metrics_bytes, self.metrics_file.stat().st_size))
            for kind in ("train", "eval"):
                for number in self.recorded(kind):
                    if number > iteration:
                        self.episodes_file(kind, number).unlink()

    # Episodes --------------------------------------------------------------------------------------

    def recorded(self, kind: str) -> list[int]:
        """Iterations with ``train`` or ``eval`` episodes, ascending."""
        names = (re.fullmatch(rf"{kind}-(\d+)\.jsonl", p.name) for p in (self.root / "episodes").glob("*.jsonl"))
        return sorted(int(match[1]) for match in names if match)

    def write_episodes(self, kind: str, iteration: int, episodes: Sequence[Mapping[str, Any]]) -> None:
        """Writes the episodes of an iteration as one file, whole or not at all."""
        with self.locked():
            write_whole(self.episodes_file(kind, iteration), "".join(json.dumps(e) + "\n" for e in episodes))

    def episodes(self, kind: str, iteration: int) -> list[Episode]:
        """Reads the episodes of an iteration."""
        return list(trajectory.read(self.episodes_file(kind, iteration)))

    def evaluation(self, iteration: int) -> list[EvalRecord]:
        """Outcomes of one evaluation, in order."""
        return [EvalRecord.of(episode) for episode in self.episodes("eval", iteration)]

    def evaluation_set(self) -> EvaluationSetFacts | None:
        """Says what the run's team is evaluated on; None before there is an evaluation."""
        for line in reversed(self.metrics()):
            if "eval/instances" in line:
                return EvaluationSetFacts(int(line["eval/n"]), int(line["eval/instances"]), bool(line["eval/held_out"]))
        return None

    def gain(self, iteration: int | None = None) -> tuple[Interval, Interval, Interval] | None:
        """Returns untrained and trained outcome, and the paired difference; None before there are two evaluations.

        Args:
            iteration: Of the trained team's evaluation, the last by default.
        """
        both = self.before_and_after(iteration)
        return compare(*both) if both else None

    def before_and_after(self, iteration: int | None = None) -> tuple[list[EvalRecord], list[EvalRecord]] | None:
        """Returns the outcomes of the untrained and of the trained team, see ``gain``."""
        done = self.recorded("eval")
        if len(done) < 2 or done[0] != UNTRAINED:
            return None
        return self.evaluation(UNTRAINED), self.evaluation(done[-1] if iteration is None else iteration)


_METRICS = {"iteration": (int, "a number"), "time_elapsed": (int | float, "a number")}
_COMMAND = {"iteration": (int, "a number"), "root": (str, "a path"), "command": (str, "what was typed")}
"""What those who read a line count on: key -> its type, and what that is."""


def estimate(records: Sequence[EvalRecord]) -> Interval:
    """Averages the outcomes of the episodes that were not lost, with the interval, and counts the others."""
    kept = [r.outcome for r in records if not r.lost]
    return dataclasses.replace(mean(kept), infrastructure_errors=len(records) - len(kept))


def compare(before: Sequence[EvalRecord], after: Sequence[EvalRecord]) -> tuple[Interval, Interval, Interval]:
    """Averages both outcomes, and the paired difference ``after - before`` over the problems that neither has lost.

    Raises:
        ConfigError: They are not on the same problems.
    """
    if len(before) != len(after):
        raise ConfigError("The two evaluations are not of the same problems, so they cannot be paired.")
    known = [(a, b) for a, b in zip(before, after, strict=True) if not (a.lost or b.lost)]
    # An episode that was lost before any agent acted may lack its problem's name.
    if any(a.task_id != b.task_id for a, b in known):
        raise ConfigError("The two evaluations are not of the same problems, so they cannot be paired.")
    pairs = [(a.outcome, b.outcome) for a, b in known]
    gain = paired([a for a, _ in pairs], [b for _, b in pairs])
    return estimate(before), estimate(after), dataclasses.replace(gain, infrastructure_errors=len(before) - len(pairs))


def _check_inside(root: Path, runs_dir: str | Path, name: str) -> None:
    """Checks that a run's folder lies below that of all runs."""
    top = os.path.abspath(runs_dir)
    if os.path.commonpath([top, os.path.abspath(root)]) != top or os.path.abspath(root) == top:
        raise ConfigError(
            f"A run named '{name}' would lie outside {runs_dir}. Expected a name such as 'first', or 'study/first'."
            " For another place: --runs-dir FOLDER"
        )
