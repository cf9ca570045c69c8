"""Finds a Ray cluster, or makes one of this machine, and asks whether the workers that are wanted fit on it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marft_algos.config.endpoints import parse
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import EngineError
from marft_algos.ranks.consistency import ProcessFacts, difference
from marft_envs.errors import ConfigError, imported
from marft_envs.workers.pool import NODE

CPU_OF_A_WORKER = 1
ANSWER_S, REPORT_S = 10.0, 30.0
"""How long a head node may take to answer, and a node to say what it has."""


def connect(cpus: int) -> tuple[Any, bool]:
    """Joins the cluster that ``RAY_ADDRESS`` names, or that this machine is part of; else makes one of this machine.

    ``RAY_ADDRESS=local`` makes one in any case.

    Args:
        cpus: Cores that a cluster of this machine counts, if that is more than it has.

    Returns:
        The package ray, and whether this process has to shut it down.

    Raises:
        MissingExtraError: Ray is not installed.
        EngineError: The cluster cannot be reached, or lets nobody in without its token.
    """
    ray = imported("ray", "Playing on a cluster", "cluster")
    if ray.is_initialized():
        return ray, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    _check_there(os.environ.get("RAY_ADDRESS", ""))
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by itself: next to nothing beside any other program
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if not _joined(ray, quiet):
            ray.init("local", num_cpus=max(cpus, os.cpu_count() or 1), include_dashboard=False, **quiet)
    except Exception as error:
        raise EngineError(
            f"The Ray cluster ({os.environ.get('RAY_ADDRESS') or 'of this machine'}) cannot be joined: {error} "
            + _advice(f"{type(error).__name__} {error}".lower())
        ) from error
    return ray, True


def _joined(ray: Any, quiet: Mapping[str, Any]) -> bool:
    """Joins a cluster that is there, unless ``RAY_ADDRESS=local`` asks for one of this run's own."""
    if os.environ.get("RAY_ADDRESS") == "local":
        return False
    try:
        ray.init("auto", **quiet)
    except ConnectionError:
        if os.environ.get("RAY_ADDRESS"):
            raise
        return False
    return True


def _check_there(address: str) -> None:
    """Checks that a cluster's head node listens: Ray itself asks for minutes.

    Raises:
        EngineError: It does not.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # a name that Ray knows, such as auto
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise EngineError(
            f"No Ray cluster listens at RAY_ADDRESS={address}: {error}. Expected the address of a head node, HOST:6379"
            " (ray start --head prints it); unset RAY_ADDRESS, and a cluster of this machine is made."
        ) from error


def free(ray: Any) -> dict[str, float]:
    """Returns what a cluster has to give; a node that has just come says so a moment later, on a busy machine late."""
    until = time.monotonic() + REPORT_S
    while not (found := dict(ray.available_resources())).get("CPU") and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _advice(error: str) -> str:
    if "token" in error or "authentication" in error:
        return "Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on its head node (ray get-auth-token prints one)."
    if "version mismatch" in error:
        return "Install the same ray and Python as on its head node."
    return (
        "Is it a head node's port, and is its token that of this process (RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, which"
        " ray get-auth-token prints there)? Without RAY_ADDRESS a cluster of this machine is made."
    )


def workers(config: TrainConfig, resources: Mapping[str, float], gpu: bool, ranks: int) -> tuple[int, dict[str, float]]:
    """Decides how many workers there are, and what each of them is given.

    Args:
        config: The run's settings.
        resources: What is free on the cluster, by Ray's names.
        gpu: Whether the run is on GPUs.
        ranks: Processes that learn, one of them here.

    Returns:
        Their number, and Ray's options of one.

    Raises:
        ConfigError: They do not fit.
    """
    of_one: dict[str, float] = {"num_cpus": max(CPU_OF_A_WORKER, config.threads)}
    if gpu:
        of_one["num_gpus"] = config.worker_gpus
    free = {"num_cpus": resources.get("CPU", 0.0), "num_gpus": resources.get("GPU", 0.0)}
    most = _fit(of_one, free)
    if config.max_workers:
        return config.max_workers, of_one  # what does not fit waits until the cluster has grown
    if config.workers and config.workers <= most:
        return config.workers, of_one
    # Not asked for: leave the ranks what they learn on, of which Ray knows nothing.
    free["num_gpus" if gpu else "num_cpus"] -= ranks
    if not config.workers and (chosen := _fit(of_one, free)):
        return chosen, of_one
    each = " and ".join(f"{share:g} {_NAMES[name]}" for name, share in of_one.items())
    there = " and ".join(f"{resources.get(_NAMES[name], 0.0):g} {_NAMES[name]}" for name in of_one)
    advice = "Add nodes to it (ray start --address …), or play here: --rollouts here"
    raise ConfigError(
        f"{config.workers or 'Some'} workers of {each} each do not fit on the cluster, which has {there} to give. "
        + (f"Type: --workers {most}" if most else advice)
    )


def share_node(ray: Any, of_one: Mapping[str, float], most: int) -> None:
    """Says to the pools of this worker how many workers there may be on its node: they share their sizes.

    Args:
        ray: The package.
        of_one: Ray's options of a worker.
        most: Workers of the run.
    """
    here = ray.get_runtime_context().get_node_id()
    has: dict[str, float] = next((node["Resources"] for node in ray.nodes() if node["NodeID"] == here), {})
    there = min(_fit(of_one, {name: has.get(_NAMES[name], 0.0) for name in of_one}), most)
    os.environ[NODE] = str(max(there, 1))


_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}


def _fit(of_one: Mapping[str, float], free: Mapping[str, float]) -> int:
    return min(int(max(free[name], 0.0) // share) for name, share in of_one.items() if share)


_SENT = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME")
"""Variables that say where models and indexes are."""


def variables(config: TrainConfig) -> dict[str, str]:
    """Returns a worker's environment variables: threads, where modules, models and indexes are, keys of hosted engines.

    Without them a worker would have those of ``ray start``.
    """
    hosted = [engine for engine in map(parse, config.engines.values()) if engine.kind != "native"]
    names = {*_SENT, *(engine.key_use()[0] for engine in hosted), *(["OPENAI_BASE_URL"] if hosted else [])}
    installed = tuple(os.path.abspath(prefix) for prefix in {sys.prefix, sys.base_prefix})
    own = [os.path.abspath(folder) for folder in sys.path]
    own = [folder for folder in own if os.path.isdir(folder) and not folder.startswith(installed)]
    return {name: os.environ[name] for name in sorted(names & os.environ.keys())} | {
        "OMP_NUM_THREADS": str(config.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(own)),
    }


def check_alike(worker: ProcessFacts, here: ProcessFacts) -> None:
    """Refuses a worker that would not play as this process does.

    Raises:
        ConfigError: It runs other code.
    """
    if differs := difference(worker, here):
        raise ConfigError(
            f"A worker is not what this process is: {differs}. Expected the same on all nodes: install one version"
            " everywhere, or ship it with ray job submit --runtime-env."
        )


def reap(pid: int) -> None:
    """Kills a worker's process that was stopped or is stuck in a call, if it is still one of Ray's."""
    try:
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)
    except OSError:
        return  # it has ended
