"""Teams as BenchMARL tasks: the environments that it builds play like the native loop, and MAPPO takes its steps."""

from __future__ import annotations

import functools

import pytest
from native_loop import CANDIDATES, Chooser, Say, assert_same, choice

pytest.importorskip(
    "benchmarl", reason="BenchMARL is not installed here; `make test-adapters` makes an environment for it"
)
import torch
from benchmarl.algorithms import MappoConfig
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig

import marft_envs
from marft_envs import FlexEnv
from marft_envs.adapters.outward.benchmarl import TeamTask
from marft_envs.adapters.outward.numeric import Numeric, decode
from marft_envs.adapters.outward.torchrl import totals
from marft_envs.errors import ConfigError


def play(id: str, env: FlexEnv, seed: int, say: Say) -> dict[str, float]:
    """Plays in the environment that a task builds for BenchMARL, over the very environment that is compared."""
    numeric = Numeric(env, CANDIDATES[id])
    numeric.close = lambda: None  # a task closes what it built to look at it; the comparison goes on with it
    team = TeamTask(lambda: numeric).get_env_fun(1, False, None, "cpu")()

    def policy(td):
        for group, agents in team.group_map.items():
            seen, legal, acts = td[group, "observation", "observation"], td[group, "action_mask"], td[group, "mask"]
            chosen = [choice(a, decode(s.numpy()), int(m.sum())) for a, s, m in zip(agents, seen, legal, strict=True)]
            td[group].set("action", torch.tensor(chosen) * acts)
        return td

    return totals(team, team.rollout(20, policy, tensordict=team.reset(seed=seed), auto_reset=False))


def test_episodes_equal_the_native_loops(case: str) -> None:
    assert_same(case, functools.partial(play, case), say=Chooser(case))


def test_a_team_of_equals_is_one_group_and_another_is_not() -> None:
    for candidates, groups in (({"planner": ["0", "1"], "solver": ["0", "1"]}, 1), ({"planner": ["0"]}, 2)):
        make = functools.partial(Numeric, marft_envs.make("relay-v0"), candidates)
        task = TeamTask(make)
        assert len(task.group_map(task.get_env_fun(1, False, 0, "cpu")())) == groups


def test_mappo_takes_steps(tmp_path) -> None:
    rewards = []

    class Watch(Callback):
        def on_batch_collected(self, batch):
            assert not batch["agents", "action"][~batch["agents", "action_mask"][..., 1]].any()  # idle: action 0
            rewards.append(float(batch["next", "agents", "reward"].sum()))

    config = ExperimentConfig.get_from_yaml()
    for name, value in {
        "on_policy_collected_frames_per_batch": 64, "on_policy_n_envs_per_worker": 2, "on_policy_minibatch_size": 32,
        "on_policy_n_minibatch_iters": 1, "max_n_iters": 2, "max_n_frames": None, "share_policy_params": False,
        "prefer_continuous_actions": False, "evaluation": False, "render": False, "loggers": [], "create_json": False,
        "save_folder": str(tmp_path),
    }.items():  # fmt: skip
        setattr(config, name, value)
    words = {"planner": list("0123"), "solver": list("0123")}
    task = TeamTask(lambda: Numeric(marft_envs.make("relay-v0"), words, length=2), "relay")
    model = MlpConfig.get_from_yaml()
    experiment = Experiment(
        task=task, algorithm_config=MappoConfig.get_from_yaml(), model_config=model, critic_model_config=model,
        seed=0, config=config,
    )  # fmt: skip
    experiment.callbacks.append(Watch())  # now: those given above are pickled
    policy = {name: p.clone() for name, p in experiment.policy.named_parameters()}
    experiment.run()
    assert len(rewards) == 2 and all(0 < reward < 64 for reward in rewards)
    assert any(not torch.equal(policy[name], p) for name, p in experiment.policy.named_parameters())


def test_text_or_numbers_without_a_mask_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"numbers with their mask"):
        TeamTask(lambda: Numeric(marft_envs.make("relay-v0"), mask=False))
