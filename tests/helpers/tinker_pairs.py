"""The same run twice: its weights on a stand-in of a Tinker server, and here, from the same start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import marft_algos
from helpers.runs import settings
from helpers.tinker_server import ALPHA, TinkerServer
from marft_algos.evaluation.environments import evaluation_set
from marft_algos.extras.tinker.policies import RemoteTeam
from marft_algos.rollout.episodes import Prompts
from marft_algos.training.trainer import Trainer
from marft_algos.types import Trajectory

POLICIES = ("planner_0", "solver_0")


@dataclass
class Pair:
    """Two trainers of one run."""

    server: TinkerServer
    remote: Trainer
    local: Trainer

    @property
    def team(self) -> RemoteTeam:
        team = self.remote.policies
        assert isinstance(team, RemoteTeam)
        return team

    def collect(self, iteration: int) -> list[Trajectory]:
        """Episodes that the server's samplers wrote, or demonstrations."""
        if self.remote.parts.demonstrations is not None:
            return self.remote.parts.demonstrations.draw(prompts(8), iteration, self.team.version)
        queue = self.remote._queue
        queue.fill(self.remote.progress, self.team.version, lambda *_: None)
        return queue.take().learnt_from(self.remote.config, iteration)

    def update(self, iteration: int) -> float:
        """One update of both on the same episodes; returns how far their advantages are apart."""
        played = self.collect(iteration)
        for trainer in (self.remote, self.local):
            trainer.learner.update(played, iteration)
            trainer.policies.version += 1
        self.remote.rollouts.publish(self.remote.learner.trainable, self.team.version)
        self.remote.progress.iteration += 1
        ours, theirs = (t.learner.estimates.advantages for t in (self.local, self.remote))
        assert ours.keys() == theirs.keys()
        return max((float(abs(ours[t] - theirs[t]).max()) for t in ours), default=0.0)

    def weights(self, policy: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The adapter here, and on the server."""
        here = {name: tensor.detach().clone() for name, tensor in self.local.policies.weights(policy).tensors.items()}
        return here, self.server.adapter(self.team.remote[policy].model.id)

    def apart(self, policy: str) -> float:
        """Largest difference of a policy's adapters."""
        here, there = self.weights(policy)
        assert here.keys() == there.keys()
        return max(float((here[name] - there[name]).abs().max()) for name in here)


def prompts(size: int) -> Prompts:
    return evaluation_set(size, None)


def pair(server: TinkerServer, tmp_path: Path, table: dict[str, Any] | None = None, **changes: Any) -> Pair:
    """Builds both; the one here starts from what the server gives to download."""
    shape = {"lora_r": 4, "lora_alpha": ALPHA, "episodes_per_iteration": 8, "eval_episodes": 4, **changes}
    config = settings(Path(server.base), tmp_path, **shape)
    where = {"url": server.url, "timeout": 30, **(table or {})}
    remote = Trainer(marft_algos.build(marft_algos.config.settings.build({"tinker": where}, config)))
    local = Trainer(marft_algos.build(config))
    for policy in POLICIES:
        folder = remote.policies.save_adapter(policy, tmp_path / "start" / policy)
        assert load_file(folder / "adapter_model.safetensors")
        local.policies.load_adapter(policy, folder)
    remote.rollouts.prepare()
    remote.rollouts.publish(remote.policies.policies, 0)
    return Pair(server, remote, local)
