"""Where a run's numbers may go beside metrics.jsonl: TensorBoard, trackio, wandb, MLflow; local by default.

Each is imported when a run asks for it, and writes into the run's folder (trackio beside it). Nothing is sent anywhere
unless the tracker's own environment variable says so: WANDB_MODE=online, MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from marft_algos.runs import metrics as table
from marft_algos.runs.folder import RunFolder
from marft_envs.errors import ConfigError, imported


def numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers among one iteration's metrics that a curve can have."""
    for key, value in metrics.items():
        if isinstance(value, int | float) and key != "iteration" and math.isfinite(value):
            yield key, float(value)


def described(seen: set[str], metrics: Mapping[str, Any]) -> dict[str, str]:
    """What the keys are that have not been seen before, with their units; notes them as seen."""
    fresh = {key: table.describe(key) for key, _ in numbers(metrics) if key not in seen}
    seen.update(fresh)
    return {key: f"{m.meaning} [{m.unit or '1'}]" for key, m in fresh.items() if m is not None}


def _named(run: RunFolder, iteration: int) -> dict[str, str]:
    """Names a run for trackers; what it writes before and after it was resumed stands together, as a group."""
    name = run.root.name
    return {"project": "marft", "name": f"{name} from {iteration}" if iteration else name, "group": name}


class TensorBoard:
    """Writes to ``<run>/tensorboard``."""

    def __init__(self, run: RunFolder, iteration: int) -> None:
        module = imported("torch.utils.tensorboard", "TensorBoard logging", "track")
        # Steps that a resumed run will write again are purged.
        self._writer = module.SummaryWriter(str(run.root / "tensorboard"), purge_step=iteration + 1)
        self._seen = set[str]()

    def log(self, metrics: Mapping[str, Any]) -> None:
        for key, text in described(self._seen, metrics).items():
            self._writer.add_text(f"what/{key}", text, 0)
        for key, value in numbers(metrics):
            self._writer.add_scalar(key, value, metrics["iteration"])

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Writes to ``<run>/wandb``, offline unless WANDB_MODE says otherwise; ``wandb sync`` sends it later."""

    def __init__(self, run: RunFolder, iteration: int) -> None:
        wandb = imported("wandb", "Tracking with wandb", "wandb")
        self._run = wandb.init(
            **_named(run, iteration),
            dir=str(run.root),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._seen = set[str]()

    def log(self, metrics: Mapping[str, Any]) -> None:
        if fresh := described(self._seen, metrics):
            self._run.config.update({f"what/{key}": text for key, text in fresh.items()}, allow_val_change=True)
        self._run.log(dict(numbers(metrics)), step=int(metrics["iteration"]))

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """Writes to ``<run>/mlflow.db``, or where MLFLOW_TRACKING_URI says. MLflow refuses to write into plain folders."""

    BATCH = 100
    """Metrics or tags of one request; a server of MLflow takes no more tags."""

    def __init__(self, run: RunFolder, iteration: int) -> None:
        self._mlflow = mlflow = imported("mlflow", "Tracking with MLflow", "mlflow")
        root, uri, files = run.root.absolute(), os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:
            for module in ("sqlalchemy", "alembic"):  # which mlflow-skinny leaves out
                imported(module, "Tracking with MLflow in a file", "mlflow")
            uri, files = f"sqlite:///{root / 'mlflow.db'}", (root / "mlflow").as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name("marft")
        experiment = known.experiment_id if known is not None else self._client.create_experiment("marft", files)
        tags = {"marft.run": str(run.root), "marft.from_iteration": str(iteration)}
        self._id = self._client.create_run(experiment, run_name=run.root.name, tags=tags).info.run_id
        self._seen = set[str]()

    def log(self, metrics: Mapping[str, Any]) -> None:
        now, step, entities = int(1000 * time.time()), int(metrics["iteration"]), self._mlflow.entities
        fresh = described(self._seen, metrics)
        tags = [entities.RunTag(f"what/{key}", text) for key, text in fresh.items()]
        points = [entities.Metric(key, value, now, step) for key, value in numbers(metrics)]
        for i in range(0, max(len(tags), len(points)), self.BATCH):
            batch = slice(i, i + self.BATCH)
            self._client.log_batch(self._id, metrics=points[batch], tags=tags[batch])

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """Writes to ``trackio`` beside the runs, or TRACKIO_DIR, where ``trackio show`` finds all of them.

    The package looks for its folder once in a process, so the runs of one process share it.
    """

    _chosen: ClassVar[str] = ""
    """The folder that was put into TRACKIO_DIR here, rather than by the user."""

    def __init__(self, run: RunFolder, iteration: int) -> None:
        folder = str(run.root.absolute().parent / "trackio")
        if not os.environ.get("TRACKIO_DIR"):
            os.environ["TRACKIO_DIR"] = Trackio._chosen = folder
        elif os.environ["TRACKIO_DIR"] == Trackio._chosen != folder:
            raise ConfigError(
                f"trackio writes into one folder in a process, and that is {Trackio._chosen} already. Set"
                " TRACKIO_DIR to a folder for all runs, or start this one in another process."
            )
        self._trackio = imported("trackio", "Tracking with trackio", "trackio")
        self._trackio.init(**_named(run, iteration))

    def log(self, metrics: Mapping[str, Any]) -> None:
        self._trackio.log(dict(numbers(metrics)), step=int(metrics["iteration"]))

    def close(self) -> None:
        self._trackio.finish()


TRACKERS: dict[str, type[TensorBoard | Wandb | MLflow | Trackio]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
    "mlflow": MLflow,
}
"""By the names that the setting ``loggers`` has for them."""
