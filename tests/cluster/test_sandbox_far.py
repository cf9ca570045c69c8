"""Ranks and workers run programs on another machine's sandbox: by a setting, and with no process of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.marks import rest_in_ci
from helpers.runs import settings
from helpers.tiny import save_tiny
from marft_algos.extras.cluster.worker import RayWorker
from marft_algos.training.parts import build
from marft_envs.sandbox import Sandbox
from marft_envs.sandbox.service import SandboxServer
from marft_envs.sandbox.types import SandboxUnavailable
from marft_envs.workers.pool import NODE


@pytest.fixture(scope="module")
def service() -> Iterator[SandboxServer]:
    with Sandbox(workers=1) as local, SandboxServer(local) as server:
        server.start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("who", rest_in_ci(["rank", "worker"]))
def test_programs_of_a_team_run_where_the_setting_says(
    who: str, service: SandboxServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = {"sandbox": "remote", "url": service.url, "levels": [0], "limit": 4}
    model = save_tiny(tmp_path / "tiny")
    config = settings(model, tmp_path, env="code-solo-v0", policies="own", env_kwargs=far, rollouts="ray")
    asked: list[str] = []
    answer = service.RequestHandlerClass._do  # type: ignore[attr-defined]

    def watched(self: Any, request: dict[str, Any]) -> dict[str, Any]:
        asked.append(self.path)
        return answer(self, request)

    monkeypatch.setattr(service.RequestHandlerClass, "_do", watched)
    monkeypatch.setenv(NODE, "2")
    if who == "worker":
        worker = RayWorker(config, 4)
        env = worker._parts.make_env()
    else:
        env = build(settings(model, tmp_path, env="code-solo-v0", policies="own", env_kwargs=far)).make_env()
    env.reset(seed=0)
    program = f"{env.task.problem.solution}\n# by a {who}"  # what was judged before is not run again
    while not env.done:
        env.select(env.ready_agents[0])
        env.step(f"```python\n{program}\n```")
    assert env.episode.success and "/calls" in asked
    sandbox = env.task.judge.sandbox
    assert sandbox.layer == "remote" and all(slot.process is None for slot in sandbox.slots)
    if who == "worker":
        worker.close()


def test_a_service_that_is_not_there_is_found_before_anything_is_played(tmp_path: Path) -> None:
    far = {"sandbox": "remote", "url": "http://token@127.0.0.1:9", "levels": [0]}
    config = settings(save_tiny(tmp_path / "tiny"), tmp_path, env="code-solo-v0", policies="own", env_kwargs=far)
    with pytest.raises(SandboxUnavailable, match=r"127\.0\.0\.1:9"):
        RayWorker(config, 4)
