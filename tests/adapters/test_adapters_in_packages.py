"""TextArena, GEM, reasoning-gym and mpe2; each test is skipped where its package is not installed."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest

import marft_envs
from marft_envs import ConfigError, FlexEnv, MissingExtraError, check_env
from marft_envs.adapters.inward import reasoning_gym as questions


def need(package: str, extra: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[{extra}]'")


def steps(env: FlexEnv, seed: int) -> Any:
    """Yields what is shown at every turn, then the rewards."""
    env.reset(seed=seed)
    n = 0
    while not env.done:
        (agent,) = env.ready_agents
        yield env.messages(agent)
        env.step(f"[{n % 9}] \\boxed{{{n % 9}}}")
        n += 1
    yield [layer.agent_rewards for layer in env.episode.layers], env.episode.team_return


@pytest.mark.parametrize(("package", "extra", "name"), [
    ("textarena", "textarena", "textarena:TicTacToe-v0"), ("textarena", "textarena", "textarena:KuhnPoker-v0"),
    ("gem", "gem", "gem:game:GuessTheNumber-v0-easy"),
])  # fmt: skip
def test_two_games_side_by_side_reproduce_their_runs(package: str, extra: str, name: str) -> None:
    """Both packages seed the global generators when they reset."""
    need(package, extra)
    alone = [list(steps(marft_envs.make(name), seed)) for seed in (1, 2)]
    before = random.getstate(), np.random.get_state()[1].tolist()
    running = [steps(marft_envs.make(name), seed) for seed in (1, 2)]
    together: list[list[Any]] = [[], []]
    while running:
        for one in running[:]:
            try:
                together[0 if one.gi_frame.f_locals["seed"] == 1 else 1].append(next(one))
            except (StopIteration, AttributeError):
                running.remove(one)
    assert together == alone
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_textarena_game_is_one_of_ours_and_d_says_which_player_received_which_messages() -> None:
    need("textarena", "textarena")
    check_env(lambda: marft_envs.make("textarena:KuhnPoker-v0"))
    env = marft_envs.make("textarena:TicTacToe-v0")
    env.reset(seed=0)
    for move in ("[4]", "[0]", "[5]"):
        env.step(move)
    first, second, third = env.episode.turns
    assert (first.sees, second.sees, third.sees) == ((), (0,), (0, 1))
    assert " X | 1 | 2" in env.messages("player_1")[-1]["content"] or "X | 1 | 2" in env.task.observe("player_1")
    with pytest.raises(ConfigError, match="TicTacToe-v0"):
        marft_envs.make("textarena:TicTacToo-v0")
    with pytest.raises(ConfigError, match="players"):
        marft_envs.make("textarena:TicTacToe-v0", players=3).reset(seed=0)


def test_a_player_alone_can_be_a_team_and_remembers_what_it_did() -> None:
    need("textarena", "textarena")
    env = marft_envs.make("textarena:GuessTheNumber-v0", players=1, roles=["adviser", "actor"])
    env.reset(seed=0)
    env.step("Try one.")
    env.step("[1]")
    assert env.ready_agents == ["adviser_0"]
    said = "".join(message["content"] for message in env.messages("adviser_0"))
    assert "[1]" in said and "higher" in said
    twin = copy.deepcopy(env)
    for one in (env, twin):
        while not one.done:
            one.step("[7]")
    assert env.episode.team_return == twin.episode.team_return


def test_a_cooperative_game_of_mpe2_runs_by_its_dotted_name_and_rewards_the_team() -> None:
    pytest.importorskip("mpe2", reason="mpe2 is not installed: pip install mpe2")
    env = marft_envs.make(
        "pettingzoo:mpe2.simple_speaker_listener_v4",
        parallel=True,
        cooperative=True,
        illegal="random",
        settings={"max_cycles": 3},
    )
    env.reset(seed=0)
    assert env.ready_agents == ["speaker_0", "listener_0"]
    while not env.done:
        env.step("1")
    assert len(env.episode.layers) == 3 and env.episode.team_return < 0
    assert all(layer.team_reward < 0 and not layer.agent_rewards for layer in env.episode.layers)


def test_reasoning_gym_asks_and_we_grade() -> None:
    need("reasoning_gym", "reasoning-gym")
    env = marft_envs.make("reasoning_gym:chain_sum", settings={"max_digits": 1}, roles=["planner", "actor"])
    env.reset(seed=3)
    answer = env.task.gold()
    env.step("Add them up.")
    env.step(f"That makes \\boxed{{{answer}}}.")
    assert env.episode.success and env.episode.team_return == 1.0
    again = marft_envs.make("reasoning_gym:chain_sum", settings={"max_digits": 1})
    again.reset(seed=9, options={"task_id": env.episode.task_id})
    assert again.task.gold() == answer
    again.step("__import__('os').getcwd()")
    assert again.episode.success is False
    with pytest.raises(ConfigError, match="Did you mean 'chain_sum'"):
        marft_envs.make("reasoning_gym:chain_sums")


def test_answers_are_the_same_text_or_the_same_number() -> None:
    assert questions.same(" Knight  A", "knight a")
    assert questions.same("0.5", "1/2")
    assert not questions.same("", "0")
    assert not questions.same("knight", "knave")
    assert not questions.same("9" * 1_000_000 + "!", "3")


@pytest.mark.parametrize("name", ["textarena:TicTacToe-v0", "gem:game:GuessTheNumber-v0", "reasoning_gym:chain_sum"])
def test_a_missing_package_is_answered_with_the_pip_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real = importlib.import_module

    def without(module: str, package: str | None = None) -> Any:
        if module.partition(".")[0] in ("textarena", "gem", "reasoning_gym"):
            raise ModuleNotFoundError(f"No module named '{module}'", name=module)
        return real(module, package)

    monkeypatch.setattr("marft_envs.adapters.optional.importlib.import_module", without)
    with pytest.raises((MissingExtraError, ModuleNotFoundError), match="pip install -e '"):
        marft_envs.make(name)
