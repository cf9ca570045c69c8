"""Training a program: token ids, log-probs, values and advantages are those of the same team as a task."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from helpers.programs import PROBLEMS, SUM, TEAM, twin, twin_of_sum
from helpers.runs import settings, train
from marft_algos.cli.app import main
from marft_algos.engines import NativeEngine
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.collector import Collector
from marft_algos.types import SamplingParams
from marft_envs.core.vector import VectorEnv

DATA: dict[str, Any] = {"data": PROBLEMS, "grader": "helpers.programs:length"}
KWARGS = {"agents": TEAM, **DATA}


@pytest.mark.ci
def test_prompts_and_replies_are_the_same_to_the_id(model: Path) -> None:
    for name, agents, native in (("program_team:team", TEAM, twin), ("programs:together", SUM, twin_of_sum)):
        policies = PolicySet.build(str(model), {agent: agent for agent in agents}, device="cpu")
        program = partial(marft_envs.make, f"program:helpers.{name}", agents=agents, window=0.5, **DATA)
        played = []
        for make in (program, native):
            with closing(VectorEnv([make] * 4)) as vec:
                params = SamplingParams(max_new_tokens=6)
                played.append(Collector(vec, policies.renderer, NativeEngine(policies), params).collect(range(6)))
        for mine, other in zip(*played, strict=True):
            assert mine.episode.rounds == other.episode.rounds and mine.episode.task_id == other.episode.task_id
            for one, two in zip(mine.transitions, other.transitions, strict=True):
                assert one.request.prompt_ids == two.request.prompt_ids and one.request.seed == two.request.seed
                assert one.reply.action_ids == two.reply.action_ids
                assert one.reply.logprobs.tolist() == two.reply.logprobs.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["marft", "grpo"])
def test_a_program_is_trained_like_the_same_team_as_a_task(algo: str, model: Path, tmp_path: Path) -> None:
    pairs: list[list[Any]] = []
    for env, kwargs in (("program:helpers.program_team:team", KWARGS), ("twin-v0", {})):
        changes = {
            "algo": algo, "iterations": 2, "episodes_per_iteration": 16, "record_every": 1, "record_episodes": 16,
        }  # fmt: skip
        changes |= {"eval_every": 0, "algorithm": {"epochs": 1}}
        _, run = train(settings(model, tmp_path / env.replace(":", "_"), env=env, env_kwargs=kwargs, **changes))
        pairs.append([episode for i in (1, 2) for episode in run.episodes("train", i)])
    assert len(pairs[0]) == len(pairs[1]) == 32
    told = ("pieces", "logprobs", "advantages", "prompt_tokens", "tokens", "return", "values")
    for mine, native in zip(*pairs, strict=True):
        assert mine.rounds == native.rounds and mine.task_id == native.task_id
        for one, other in zip(mine.turns, native.turns, strict=True):
            assert (one.agent, one.text, one.sees) == (other.agent, other.text, other.sees)
            for name in told:
                assert (one.extras or {}).get(name) == (other.extras or {}).get(name), name
    assert any((turn.extras or {})["advantage"] for episode in pairs[0] for turn in episode.turns)


def test_the_command_line_trains_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "problems.jsonl"
    data.write_text("".join(f'{{"problem": "Say {w}.", "answer": "{w}"}}\n' for w in ("yes", "no", "all", "none")))
    typed = ["train", "--preset", "toy", "--env", "program:helpers.program_team:team", "--iterations", "1"]
    typed += ["--episodes-per-iteration", "4", "--eval-every", "0", "--runs-dir", str(tmp_path / "runs")]
    kwargs = ['agents=["writer_0","reader_0"]', f"data={data}", "grader=helpers.programs:length"]
    assert main([*typed, "--env-kwargs", *kwargs]) == 0
    (folder,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert (folder / "metrics.jsonl").read_text().count("\n") >= 1
