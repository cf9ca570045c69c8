"""``marft train --nproc N``: ranks of one machine, started again where one of them dies."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from marft_algos.config import arguments
from marft_algos.config.arguments import typed
from marft_algos.config.endpoints import check_one_process
from marft_algos.lazy import require_training
from marft_algos.memory import OutOfMemory
from marft_algos.ranks import group as ranks
from marft_algos.ranks import lanes
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import say
from marft_envs.errors import ConfigError, MarftError

if TYPE_CHECKING:
    from marft_algos.config.settings import TrainConfig

ENDED = "MARFT_ENDED"
"""Environment variable: a folder in which a rank leaves its exit code if it ended by an error that would come again,
and a mark if it was stopped. Other ends are a death, after which the launcher starts all ranks again."""
RESTARTS = 3


def take(argv: list[str]) -> tuple[list[str], int]:
    """Splits ``--nproc`` off; 0 where it is not given.

    Raises:
        ConfigError: No number of ranks.
    """
    words, given = arguments.take(argv, "nproc")
    text = given.get("nproc", "0")
    if not text.isdecimal() or ("nproc" in given and not ranks.power_of_two(int(text))):
        raise ConfigError(f"--nproc {text}: expected how many processes train together: 1, 2, 4, 8, …")
    return words, int(text)


def train(nproc: int, argv: list[str], config: TrainConfig, run: RunFolder | None) -> int:
    """Starts ranks that do what the command line says, and waits for them; returns the first one's exit code.

    Raises:
        ConfigError: The run's lanes cannot be dealt to so many ranks, or its name is taken.
        RanksError: Ranks died, again and again.
    """
    lanes.check(config.lanes or max(lanes.USUAL, nproc), nproc)
    check_one_process(config.engines, "one rank")
    words = list(argv)
    if run is None and not config.name:  # all of them, and those that are started again, must mean one folder
        stem = f"{config.env}-{config.algo}".replace("/", "_").replace(":", "_")
        words += ["--name", f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"]
    elif run is None:
        RunFolder.check_free(config.runs_dir, config.name)
    require_training()
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="marft-ranks-") as folder:
        os.environ[ENDED] = folder
        ended = Path(folder) / "code"
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
            elastic_launch(settings, sys.executable)("-m", "marft_algos.cli.launch", "train", *words)
        except ChildFailedError as error:
            raise RanksError(
                f"Ranks died {RESTARTS + 1} times; the first of the last ones: {error.get_first_failure()[1].message}"
                f" What was saved is whole. Go on: {typed('train', '--resume', 'RUN', '--nproc', nproc)}"
            ) from error
        except SignalException:
            say("stopped; what is saved is whole")
            return 130
        finally:
            del os.environ[ENDED]
        if any(Path(folder).glob("stopped-*")):
            return 130
        return int(ended.read_text()) if ended.is_file() else 0


class RanksError(MarftError, RuntimeError):
    """Ranks died, again and again."""


def joined(config: TrainConfig) -> ranks.Group:
    """Returns the ranks that a launcher has started, or this process alone.

    Raises:
        ConfigError: Settings that several ranks cannot have.
    """
    if not ranks.launched():
        return ranks.Alone()
    check_one_process(config.engines, "one rank")
    from marft_algos.models.loading import pick_device

    return ranks.join(config.collective_timeout, pick_device(config.device))


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
    folder = Path(os.environ[ENDED]) if ENDED in os.environ else None
    sizes = [int(file.read_text(encoding="utf-8")) for file in folder.glob("alone-*")] if folder else []
    if not sizes:
        return config
    least = min(sizes)
    say(f"memory: it ran out on a rank; all of them go on with --micro-tokens {least}")
    return dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, micro_tokens=least))


def broken_off(config: TrainConfig, group: ranks.Group) -> RunFolder | None:
    """Returns the run that the ranks had begun when one of them died; None where they begin."""
    if not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        return None
    root = Path(config.runs_dir) / config.name
    there = ranks.lead(group, lambda: bool(config.name) and (root / "config.toml").is_file())
    return RunFolder.open(root) if there else None


def main() -> int:
    """Runs one rank; returns 0 unless it died."""
    from marft_algos import cli

    ended, rank = Path(os.environ[ENDED]), int(os.environ["RANK"])
    if (ended / "code").is_file():  # another rank's end is not to be repeated
        return 0
    stopped = ended / f"stopped-{rank}"
    stopped.unlink(missing_ok=True)  # by the launcher, before it started this rank again
    before = {file.name: file.read_text(encoding="utf-8") for file in ended.glob("alone-*")}
    if rank:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
        warnings.simplefilter("ignore")  # rank 0 says it, too
    code = cli.main(sys.argv[1:])
    if code == 130:
        stopped.touch()
    elif code:
        alone = ended / f"alone-{rank}"
        left = alone.read_text(encoding="utf-8") if alone.is_file() else ""
        if left and left != before.get(alone.name):  # the others wait for this rank: the launcher ends them
            if left == "0":
                (ended / "code").write_text(str(code), encoding="utf-8")
            return code
        (ended / "code").write_text(str(code), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
