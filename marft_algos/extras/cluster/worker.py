"""What one worker does: it builds the run's parts once, takes over weights, and plays chunks. It knows no Ray."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from marft_algos.config.endpoints import Endpoint
from marft_algos.config.settings import TrainConfig
from marft_algos.engines import server
from marft_algos.engines.base import Publisher
from marft_algos.ranks.consistency import ProcessFacts
from marft_algos.rollout.episodes import Chunk, Played
from marft_algos.training.environments import make_env
from marft_algos.training.parts import build
from marft_algos.training.resolve import resolve
from marft_algos.training.rollouts import RolloutWorker
from marft_envs.errors import MarftError


class TransferError(MarftError, RuntimeError):
    """Something did not arrive as it was sent."""


@dataclass(frozen=True, slots=True)
class HashedBytes:
    """Bytes, and what they have to hash to where they arrive."""

    data: bytes
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> HashedBytes:
        """Packs bytes."""
        return cls(data, hashlib.sha256(data).hexdigest())

    def checked(self, what: str) -> bytes:
        """Returns the bytes.

        Args:
            what: They are, for the message.

        Raises:
            DamagedError: They are not those that were packed.
        """
        if hashlib.sha256(self.data).hexdigest() != self.sha256:
            raise TransferError(f"{what} arrived damaged ({len(self.data)} bytes)")
        return self.data


def pack(tensors: Mapping[str, Tensor]) -> HashedBytes:
    """Packs the tensors of a policy."""
    return HashedBytes.of(safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}))


class RayWorker:
    """Plays chunks of a run.

    Args:
        config: The run's settings, as the learner's process has fitted them to memory.
        chunk: Episodes of a chunk at most.

    Raises:
        ConfigError: Something that the settings name is not on this machine.
    """

    def __init__(self, config: TrainConfig, chunk: int) -> None:
        self._server, venv = ExitStack(), config.worker_vllm
        mine: dict[str, Any] = {"rollouts": "here", "worker_vllm": "", "shard": "whole"}
        config = dataclasses.replace(config, check_memory=False, fit_memory=False, **mine)
        if venv:
            config = self._served(config, venv)
        self._parts = parts = build(config)
        self._worker = RolloutWorker(parts, chunk)
        self._publisher = Publisher(parts.engine, parts.policies)
        self._versions: dict[str, int] = {}

    def _served(self, config: TrainConfig, venv: str) -> TrainConfig:
        """Starts a vLLM server on this worker's GPUs; returns the settings of who plays through it.

        Raises:
            ConfigError: There is no such virtual environment here.
            EngineError: The server does not start.
        """
        env = make_env(config, config.env_kwargs)
        spec = resolve(config, env)
        env.close()
        played = [policy for policy, endpoint in spec.endpoints.items() if endpoint.kind == "native"]
        gpus = f"--tensor-parallel-size {int(config.worker_gpus)}" if config.worker_gpus >= 2 else ""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = server.ServerSettings(
            spec.models[played[0]],
            venv=venv,
            policies=len(played),
            rank=config.lora_r,
            context=config.context or 0,
            dtype="float32" if config.dtype == "fp32" else "bfloat16",
            port=port,
            extra=gpus,
        )
        file, log = tempfile.mkstemp(prefix="marft-vllm-", suffix=".log")
        os.close(file)
        self._server.enter_context(server.serving(settings, timeout=config.worker_start, log=Path(log)))
        endpoint = Endpoint("vllm", settings.url)
        engines = {**config.engines, **dict.fromkeys(played, endpoint)}
        # The GPUs are the server's: here are only adapters, and what they are saved from.
        return dataclasses.replace(config, engines=engines, device="cpu")

    def facts(self) -> ProcessFacts:
        """Returns who this is, once it can play."""
        return ProcessFacts.here(str(self._parts.policies.device))

    def lacks(self, versions: Mapping[str, int]) -> list[str]:
        """Returns the policies that this worker has in other versions."""
        return [policy for policy, version in versions.items() if self._versions.get(policy) != version]

    def take(self, policy: str, version: int, weights: HashedBytes) -> None:
        """Plays a policy with these weights from now on.

        Raises:
            DamagedError: They did not arrive whole.
        """
        tensors = safetensors.torch.load(weights.checked(f"version {version} of policy '{policy}'"))
        self._versions.pop(policy, None)  # until all of it is there
        self._parts.policies.weights(policy).copy_from(tensors, f"version {version} of policy '{policy}'")
        self._parts.policies.version = version
        self._publisher.publish([policy], version)
        self._versions[policy] = version

    def play(self, chunk: Chunk) -> tuple[HashedBytes, float]:
        """Plays a chunk; returns what it came to, pickled, and the seconds that it took."""
        started = time.monotonic()
        played: Played = self._worker.play(chunk)
        played.engine = self._parts.engine.metrics()
        return HashedBytes.of(pickle.dumps(played)), time.monotonic() - started

    def close(self) -> None:
        """Ends environments and engine."""
        self._worker.close()
        self._parts.engine.close()
        self._publisher.close()
        self._server.close()
