"""What people type who know other libraries: it does what was meant, or the answer names what does.

One row for each guess: what is typed | what the answer has. Nothing behind the bar: it works.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pettingzoo
import pytest

import marft_algos
import marft_envs
from marft_algos.cli import main
from marft_algos.cli.training import typed_settings
from marft_algos.config import settings
from marft_algos.extras.bench.grid import Grid
from marft_algos.runs.folder import RunFolder
from marft_envs.adapters.outward import parallel_play

CLI = """\
envs |
envs math-dual |
envs math-dual-v0 |
-V |
--version |
help |
help train |
train --help |
doctor --help |
bench |
list | marft envs
environments | marft envs
ls | marft show
runs | marft show
status | marft show
plot | marft view
curves | marft view
dashboard | marft view
compare a b | marft eval --compare RUN_A RUN_B
diff a b | marft eval --compare
version | marft --version
run | marft train
fit | marft train
finetune | marft train
ppo | marft train ALGO
grpo | marft train grpo
resume | marft train --resume RUN
test | marft eval RUN
evaluate | marft eval RUN
generate | marft play ID
chat | marft play ID
deploy | marft serve RUN
push | marft export RUN
sweep | marft bench run GRID
init | marft new env NAME
config | marft train --help-all
profile | marft profiles ID
login | hf auth login
stop | saves its state
envs --json | marft_envs.registry
envs --tag math | grep WORD
eval --json | marft eval --compare A B
eval --k 3 | --samples N
eval --pass-at-k 3 | --samples N
eval --model x | --engines MODEL
play --model x | marft eval --engines MODEL
show --csv | to_pandas()
show --full | marft show RUN --all
train --dryrun | --dry-run
train grpoo | Did you mean 'grpo'
train --env math-duall-v0 | Did you mean 'math-dual-v0'
train --env nothing-v0 | marft envs
train --config x.yaml | Expected a TOML file
train --lr abc | expected a number
train --num-envs 0 | expected at least 1
play nope-v0 | marft envs
eval nowhere | is no run
train --resume nowhere | is no run
--env relay-v0 train | marft train --env relay-v0
"""
"""Behind ``marft``."""
NAMES = """\
model | models
model_name_or_path | models
learning_rate | lr
num_train_epochs | iterations
max_steps | iterations
batch_size | episodes_per_iteration
per_device_train_batch_size | episodes_per_iteration
gradient_accumulation_steps | micro_tokens
num_generations | group_size
num_iterations | epochs
max_completion_length | max_new_tokens
max_model_len | context
beta | kl_coef
epsilon | clip
gamma | gamma_tok
gae_lambda | lambda_tok
save_steps | save_every
eval_steps | eval_every
report_to | loggers
wandb | loggers
output_dir | runs_dir
dataset | data
dataset_name | data
reward_funcs | env_kwargs
gpus | device
use_vllm | engines
fp16 | dtype
bf16 | dtype
lora_rank | lora_r
load_in_4bit | quantize
agents | env
system_prompt | env_kwargs
"""
"""A setting of another trainer | the first name that it has here; on the command line, in Python, in files and grids."""
ENVS = """\
make("math-dual") |
make("marft/math-dual-v0") |
make("math-dual-v0").spec.id |
make("relay-v0", reward=len_of) |
make("relay-v0", render_mode="ansi") |
make("math-solo-v0", data=[{"problem": "1+1", "answer": "2"}]) |
make("gymnasium:FrozenLake-v1") |
make_vec("relay-v0", 2) |
registry["math-dual-v0"] |
list(registry) |
"relay-v0" in registry |
pprint_registry() |
list_envs() |
spec("math-dual").kwargs |
spec("relay-v0").make() |
check_env("relay-v0") |
gymnasium.make("marft/math-solo-v0") |
gymnasium.make("marft/relay-v0", agent="solver_0", partners={"planner_0": "1"}) |
gymnasium.spec("marft/math-dual-v0") |
pettingzoo.make("aec", "marft/math-dual-v0") |
pettingzoo.make("parallel", "marft/math-debate-v0") |
parallel_play.register() |
env.episode.to_dict() |
env.episode.to_json() |
env.episode._repr_html_() |
str(env.episode) |
env.last() |
env.num_agents |
env.observation_space("solver_0") |
env.action_space("solver_0").sample() |
gymnasium.make("marft/math-dual-v0") | agent='actor_0'
make("math_dual_v0") | math-dual-v0
make("CartPole-v1") | gymnasium:CartPole-v1
make("relay-v7") | relay-v0
make("math-dual-v0", D="chain") | dependency=D
make("math-dual-v0", agents=3) | FlexEnv
make("math-dual-v0", rubric={}) | judge=
make("math-dual-v0", level=1) | levels
make("math-dual-v0", seed=1) | env.reset(seed=SEED)
make("math-dual-v0", system_prompt="x") | profiles=
make("math-dual-v0", dataset="x") | data
make("relay-v0", max_episode_steps=3) | max_rounds=N
make("relay-v0", render_mode="rgb_array") | 'ansi'
make("relay-v0", reward=3) | function of an episode
env.observe("solver") | solver_0
env.reset(seed="a") | env.reset(seed=0)
env.step(3) | env.step(text)
marft_envs.list() | list_envs()
marft_envs.load("relay-v0") | marft_envs.make(ID)
marft_envs.parallel_env() | parallel_play
marft_envs.to_parallel(env) | parallel_play
marft_envs.register_envs() | gymnasium.make
marft_envs.RecordEpisodeStatistics(env) | RecordEpisodes
marft_envs.TimeLimit(env, 3) | max_turns
marft_envs.SyncVectorEnv() | make_vec
marft_envs.wrappers | core.wrappers
marft_envs.Agent("a") | AgentSpec
marft_envs.MultiTurnEnv() | FlexEnv
marft_envs.ToolEnv() | ToolTask
marft_envs.Judge() | judge=
marft_envs.Sequential() | Chain()
"""
"""Expressions with all names of ``marft_envs``; ``env`` is of relay-v0, and has begun."""
ALGOS = """\
TrainConfig(iterations=3) |
settings.build({"lr": 1e-3}).algorithm.lr |
settings.build({"algo": "grpo", "group_size": 4}) |
settings.build({"data": [{"problem": "1+1", "answer": "2"}]}).env_kwargs["data"] |
settings.build({"env": "math-dual"}).env |
Grid(["marft"], ["relay-v0"], 100, settings={"lr": 1e-3}) |
RunFolder.open(here) |
repr(RunFolder.open(here)) |
RunFolder.open(here).to_pandas() |
RunFolder.open(here).plot() |
RunFolder.open(here)._repr_html_() |
RunFolder.open(here).push_to_hub("nobody") | USER/NAME
RunFolder.open("nowhere") | marft train
evaluate("nowhere") | is no run
evaluate(here, episode=3) | episodes
evaluate(env=3, untrained=True) | marft_envs.make
train(env=3, callbacks=[print]) | marft_envs.make
train(env="relay-v0", callbacks=[3]) | on_iteration(metrics)
train(env="relay-v0", reward_funcs=len) | env_kwargs=
train("quikstart") | quickstart
TrainConfig(lr=1e-3) | algorithm={"lr"
TrainConfig(learning_rate=1e-3) | lr=
Grid(["marft"], ["relay-v0"], 100, lr=1e-3) | [settings]
marft_algos.Trainer.train |
marft_algos.TrainingArguments() | marft_algos.TrainConfig
marft_algos.GRPOConfig() | marft_algos.TrainConfig
marft_algos.TrainerCallback | callbacks=
marft_algos.GRPOTrainer() | algo="grpo"
marft_algos.list_algorithms() | algorithms.base.names()
marft_algos.load("run") | RunFolder.open
marft_algos.PolicySet.from_pretrained("x") | policies
marft_algos.push_to_hub() | RUN.push_to_hub
marft_algos.save_model() | RUN.push_to_hub
marft_algos.plot() | RUN.plot()
marft_algos.make("relay-v0") | marft_envs.make
marft_algos.fit() | marft_algos.train
marft_algos.compute_gae() | marft_algos.functional
"""
"""Expressions with all names of ``marft_algos``; ``here`` is a run's folder."""


PARTS = re.split(r"(?m)^= (\w+)\n", Path(__file__).with_name("guesses.txt").read_text(encoding="utf-8"))
MORE = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))
"""What newcomers typed, in more rows for these tables."""


def rows(table: str) -> Iterator[Any]:
    for row in table.splitlines():
        typed, _, told = row.rpartition(" |")
        yield pytest.param(typed, told.strip(), id=typed)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(tmp_path / "mine")
    run.root.mkdir()
    run.write_config(settings.build({"env": "relay-v0"}).to_toml())
    run.append_metrics(
        {"iteration": 0, "time_elapsed": 0.0, "return": 0.5, "eval/success": 0.5, "eval/low": 0.4, "eval/high": 0.6}
    )
    return run.root


def test_there_are_enough() -> None:
    typed = [row for table in (CLI, NAMES, ENVS, ALGOS, *MORE.values()) for row in table.splitlines()]
    assert len(set(typed)) == len(typed) > 360


@pytest.mark.parametrize(("typed", "told"), rows(CLI + MORE["CLI"]))
def test_the_command_line(typed: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(typed.split())
    except SystemExit as left:
        code = int(left.code or 0)
    said = re.sub(r"[\s│]+", " ", "".join(capsys.readouterr()))
    assert (code == 0) == (told == "") and told in said, said


@pytest.mark.parametrize(("typed", "told"), rows(NAMES))
def test_a_setting_of_another_trainer_is_answered_alike_everywhere(
    typed: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        typed_settings([f"--{typed.replace('_', '-')}", "1"])
    said = capsys.readouterr().err
    assert f"is called here: --{told.replace('_', '-')}" in said or f"is called here: --{told}" in said, said
    file = Path("settings.toml")
    file.write_text(f"{typed} = 1\n")
    grid = {"algorithms": ["marft"], "envs": ["relay-v0"], "token_budget": 100}
    for make in (
        lambda: marft_algos.train("toy", **{typed: 1}),
        lambda: settings.load(file),
        lambda: settings.build({"algorithm": {typed: 1}}),
        lambda: settings.TrainConfig(**{typed: 1}),
        lambda: Grid(**grid, **{typed: 1}),  # type: ignore[arg-type]
    ):
        with pytest.raises(marft_envs.ConfigError) as refused:
            make()
        assert f"There is no setting '{typed}'. In Python: {told}=…" in str(refused.value)


def evaluated(typed: str, names: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(typed, names)


def check(typed: str, told: str, names: dict[str, Any]) -> None:
    if not told:
        evaluated(typed, names)
        return
    with pytest.raises((marft_envs.MarftError, AttributeError, ImportError, TypeError)) as refused:
        evaluated(typed, names)
    assert told in str(refused.value)


@pytest.mark.parametrize(("typed", "told"), rows(ENVS + MORE["ENVS"]))
def test_environments(typed: str, told: str) -> None:
    env = marft_envs.make("relay-v0")
    env.reset(seed=0)
    turn = marft_envs.TurnRecord(0, 0, 0, "planner_0", "planner", (), "1")
    names = {name: getattr(marft_envs, name) for name in marft_envs.__all__}
    others = {
        "marft_envs": marft_envs,
        "gymnasium": gymnasium,
        "pettingzoo": pettingzoo,
        "parallel_play": parallel_play,
    }
    check(typed, told, {**names, **others, "env": env, "turn": turn, "len_of": lambda episode: len(episode.turns)})


@pytest.mark.parametrize(("typed", "told"), rows(ALGOS + MORE["ALGOS"]))
def test_training(typed: str, told: str, here: Path) -> None:
    names = {name: getattr(marft_algos, name) for name in marft_algos.__all__}
    mine = marft_envs.FlexEnv([marft_envs.AgentSpec("a_0", "a")], marft_envs.make("relay-v0").task, "chain")
    others = {"marft_algos": marft_algos, "settings": settings, "Grid": Grid, "here": here, "env_of_mine": mine}
    check(typed, told, {**names, **others, "run": RunFolder.open(here)})
