"""Where a run's numbers may go beside metrics.jsonl: TensorBoard, trackio, wandb, MLflow; local by default.

Each is imported when a run asks for it, and writes into the run's folder. Nothing is sent anywhere unless the tracker's
own environment variable says so: WANDB_MODE=online, MLFLOW_TRACKING_URI, TRACKIO_SPACE_ID.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from marft_algos.runs import metrics as table
from marft_algos.runs.folder import RunFolder
from marft_envs.errors import MissingExtraError


def numbers(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers among one iteration's metrics that a curve can have."""
    for key, value in metrics.items():
        if isinstance(value, int | float) and key != "iteration" and math.isfinite(value):
            yield key, float(value)


def imported(module: str, what: str, extra: str) -> Any:
    """Imports a tracker.

    Raises:
        MissingExtraError: It is not installed; the message holds the pip command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


def described(seen: set[str], metrics: Mapping[str, Any]) -> dict[str, str]:
    """What the keys are that have not been seen before, with their units; notes them as seen."""
    fresh = {key: table.describe(key) for key, _ in numbers(metrics) if key not in seen}
    seen |= fresh.keys()
    return {key: f"{m.meaning} [{m.unit or '1'}]" for key, m in fresh.items() if m is not None}


class TensorBoard:
    """Writes to ``<run>/tensorboard``."""

    def __init__(self, run: RunFolder, iteration: int) -> None:
        module = imported("torch.utils.tensorboard", "TensorBoard logging", "track")
        # Steps that a resumed run will write again are purged.
        self._writer, self._seen = (
            module.SummaryWriter(str(run.root / "tensorboard"), purge_step=iteration + 1),
            set[str](),
        )

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
        name = run.root.name
        self._run = wandb.init(
            project="marft",
            name=name if not iteration else f"{name} from {iteration}",
            group=name,  # what a run writes before and after it was resumed stands together
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
    """Writes to ``<run>/mlruns``, or where MLFLOW_TRACKING_URI says."""

    def __init__(self, run: RunFolder, iteration: int) -> None:
        mlflow = imported("mlflow", "Tracking with MLflow", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (run.root.absolute() / "mlruns").as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name("marft")
        experiment = self._client.create_experiment("marft") if known is None else known.experiment_id
        tags = {"marft.run": str(run.root), "marft.from_iteration": str(iteration)}
        self._id = self._client.create_run(experiment, run_name=run.root.name, tags=tags).info.run_id
        self._seen = set[str]()

    def log(self, metrics: Mapping[str, Any]) -> None:
        for key, text in described(self._seen, metrics).items():
            self._client.set_tag(self._id, f"what/{key}", text)
        for key, value in numbers(metrics):
            self._client.log_metric(self._id, key, value, step=int(metrics["iteration"]))

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """Writes to ``<run>/trackio``, or TRACKIO_DIR; ``trackio show`` reads it there."""

    def __init__(self, run: RunFolder, iteration: int) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(run.root.absolute() / "trackio"))
        self._trackio = imported("trackio", "Tracking with trackio", "trackio")
        name = run.root.name
        self._trackio.init(project="marft", name=name if not iteration else f"{name} from {iteration}", group=name)

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
