"""``marft train --nproc N``: ranks of one machine, started again where one dies. Torchrun starts those of several."""

from __future__ import annotations

import dataclasses
import gc
import os
import shlex
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_algos.config import arguments
from marft_algos.config.arguments import typed
from marft_algos.memory import OutOfMemory
from marft_algos.ranks import group as ranks
from marft_algos.ranks import reduction
from marft_algos.ranks.consistency import check_code, check_folder, check_settings
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import say
from marft_envs.errors import ConfigError, MarftError

if TYPE_CHECKING:
    from marft_algos.config.settings import TrainConfig

ENDED = "MARFT_ENDED"
"""Environment variable: a folder in which a rank leaves its exit code if it ended by an error that would come again,
and a mark if it was stopped. Other ends are a death, after which the launcher starts all ranks again."""
AGAIN = "again"
"""File in that folder: fewer ranks go on with what more have begun."""
RESTARTS = 3
HEARTBEAT_S = 30
"""Seconds that a heartbeat may last at most."""


def take(argv: list[str]) -> tuple[list[str], int]:
    """Splits ``--nproc`` off, the ranks that this process has to start; 0: nobody has asked for any, or they are there.

    Raises:
        ConfigError: It is no number of ranks, or several machines were asked for.
    """
    words, given = arguments.take(argv, "nproc", "nnodes", "rdzv-endpoint")
    text = given.pop("nproc", None)
    if given:
        option, name = next(iter(given)).replace("_", "-"), [] if "--name" in words else ["--name", "NAME"]
        raise ConfigError(
            f"--{option} is an option of torchrun, which starts the ranks of several machines. Type on each of them:"
            f" torchrun --nnodes {given.get('nnodes', 2)} --nproc-per-node {text or 8} --max-restarts {RESTARTS}"
            f" --rdzv-backend c10d --rdzv-endpoint {given.get('rdzv_endpoint', 'HOST:29400')}"
            f" -m marft_algos {shlex.join(['train', *words, *name])}"
        )
    if text is not None and not (text.isdecimal() and ranks.power_of_two(int(text))):
        raise ConfigError(f"--nproc {text}: expected how many processes train together on a machine: 1, 2, 4, 8, …")
    return words, 0 if ranks.launched() else int(text or 0)


def train(nproc: int, argv: list[str], config: TrainConfig, run: RunFolder | None) -> int:
    """Starts ranks, which do what the command line says, and waits for them; returns the exit code.

    Raises:
        ConfigError: The run's reduction slots cannot be dealt to so many ranks, or its name is taken.
        RanksError: Ranks died, again and again.
    """
    reduction.check(config.reduction_slots or max(reduction.USUAL, nproc), nproc)
    words = [*argv, *_name(config)] if run is None else list(argv)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Ranks that are started again meet at a new port, and not among what those that have died have left.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    before = {*threading.enumerate()}
    with tempfile.TemporaryDirectory(prefix="marft-ranks-") as folder:
        os.environ[ENDED] = folder
        try:
            while True:
                settings = LaunchConfig(
                    min_nodes=1,
                    max_nodes=1,
                    nproc_per_node=nproc,
                    run_id=uuid.uuid4().hex,
                    rdzv_backend="c10d",
                    rdzv_endpoint="127.0.0.1:0",
                    local_addr="127.0.0.1",
                    max_restarts=RESTARTS,
                    monitor_interval=0.5,
                )
                try:
                    elastic_launch(settings, sys.executable)("-m", "marft_algos.cli.rank", "train", *words)
                    break
                except ChildFailedError as error:
                    if ended(Path(folder)):  # no attempt is left, and none is needed
                        break
                    nproc = _fewer(nproc, error)
                    # The sums stay what they were.
                    if run is None and not config.reduction_slots and "--reduction-slots" not in words:
                        words += ["--reduction-slots", str(max(reduction.USUAL, 2 * nproc))]
                    (Path(folder) / AGAIN).touch()
        except SignalException:
            say("stopped; what is saved is whole")
            return 130
        finally:
            del os.environ[ENDED]
            _end_threads(before)
        return 130 if any(Path(folder).glob("stopped-*")) else ended(Path(folder))


def _end_threads(before: set[threading.Thread]) -> None:
    """Waits for heartbeats to end: one that talks to its store when Python ends makes it abort this process.

    After a signal, torch leaves the thread that they come from to the garbage collector, and that may find it at work.
    """
    gc.collect()
    for thread in {*threading.enumerate()} - before:
        thread.join(HEARTBEAT_S)


def _fewer(nproc: int, error: Any) -> int:
    """Returns half as many ranks, where those that there were have died too often: one may lack memory, or its GPU.

    Raises:
        RanksError: There is one rank.
    """
    died = f"Ranks died {RESTARTS + 1} times; the first of the last ones: {error.get_first_failure()[1].message}"
    if nproc == 1:
        raise RanksError(
            f"{died} What was saved is whole. Go on: {typed('train', '--resume', 'RUN', '--nproc', nproc)}"
        ) from error
    say(f"{died} Half as many go on: {nproc // 2} of {nproc}.")
    return nproc // 2


def _name(config: TrainConfig) -> list[str]:
    """Returns words that name a new run: all ranks, and those that are started again, must mean one folder."""
    if config.name:
        RunFolder.check_free(config.runs_dir, config.name)
        return []
    stem = f"{config.env}-{config.algo}".replace("/", "_").replace(":", "_")
    return ["--name", f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"]


class RanksError(MarftError, RuntimeError):
    """Ranks died, again and again."""


def joined(config: TrainConfig) -> ranks.RankGroup:
    """Returns the ranks that a launcher has started, or this process alone.

    Raises:
        ConfigError: Settings that several ranks cannot have, or ranks that are not alike.
    """
    if not ranks.launched():
        return ranks.Alone()
    from marft_algos.models.loading import pick_device

    group = ranks.join(config.collective_timeout, pick_device(config.device))
    try:
        check_code(group)
        check_folder(group, config.runs_dir)
    except BaseException:
        group.close()
        raise
    return group


@contextmanager
def ending_together(config: TrainConfig) -> Iterator[None]:
    """Ends all ranks where memory runs out on one while others wait inside a pass over a base of which it has a share.

    The launcher then starts all of them again, with half as much computed at once, if that helps.
    """
    try:
        yield
    except OutOfMemory as error:
        if error.alone and ENDED in os.environ:
            folder, rank = Path(os.environ[ENDED]), os.environ["RANK"]
            smaller = min(error.tried, config.algorithm.micro_tokens) // 2
            (folder / f"alone-{rank}").write_text(str(smaller), encoding="utf-8")
        raise


def lessened(config: TrainConfig) -> TrainConfig:
    """Returns the settings with as little computed at once as ranks could that ran out of memory before.

    They are those of all ranks, and are written into the run's config.toml.
    """
    sizes = [int(file.read_text(encoding="utf-8")) for file in _marked("").glob("alone-*")]
    if not sizes:
        return config
    least = min(sizes)
    say(f"memory: it ran out on a rank; all of them go on with --micro-tokens {least}")
    return dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, micro_tokens=least))


def settled(config: TrainConfig, run: RunFolder | None, group: ranks.RankGroup) -> tuple[TrainConfig, RunFolder | None]:
    """Returns the settings and the run that all ranks mean: one that they had begun when one of them died, too.

    Raises:
        ConfigError: They were started with different commands.
    """
    if not ranks.launched():
        return config, run
    if run is None and not config.name:
        raise ConfigError("All ranks write to one run, and need one name for it. Type on all machines: --name NAME")
    root = run.root if run is not None else Path(config.runs_dir) / config.name
    before = ranks.restarts() > 0 or _marked(AGAIN).is_file()
    again = group.agree(before)
    resumed = group.gather(run is not None)
    if again or any(resumed) != all(resumed):  # a machine that takes another's place is sent what to do
        there = ranks.lead(group, lambda: (bool(config.name) or run is not None) and (root / "config.toml").is_file())
        if there and run is None:
            run = RunFolder.open(root)
            config = paths.of_run(run)
        elif not there and run is None and any(resumed):
            raise ConfigError(
                f"Some machines go on with a run, and others begin '{config.name}'. Type the same on all."
            )
    check_settings(group, config.table())
    return config, run


def ended(folder: Path) -> int:
    """Returns with what a rank has ended, so that it is not to be repeated; 0: none has."""
    file = folder / "code"
    return int(file.read_text(encoding="utf-8")) if file.is_file() else 0


def _marked(name: str) -> Path:
    """Returns a file of the launcher's folder; without a launcher it is none."""
    return Path(os.environ.get(ENDED, os.devnull)) / name


def quiet() -> None:
    """Keeps ranks behind the first from saying what it says."""
    if ranks.launched() and int(os.environ["RANK"]):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
        warnings.simplefilter("ignore")
