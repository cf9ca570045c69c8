"""Settings: presets to the digit, TOML there and back, errors that name the right word."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest

from marft_algos.algorithms.base import UpdateConfig
from marft_algos.algorithms.marft import MARFTConfig
from marft_algos.cli import training
from marft_algos.config import presets, values
from marft_algos.config import settings as config
from marft_algos.runs import paths
from marft_algos.training import resolve
from marft_envs.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", sorted(presets.PRESETS))
def test_toml_keeps_every_setting_of_every_preset(name: str, tmp_path: Path) -> None:
    made = config.build(presets.get(name))
    (tmp_path / "config.toml").write_text(made.to_toml())
    assert config.load(tmp_path / "config.toml") == made
    table = tomllib.loads(made.to_toml())
    assert set(table) == {f.name for f in dataclasses.fields(config.TrainConfig)}
    assert set(table["algorithm"]) == {f.name for f in dataclasses.fields(MARFTConfig)}


def test_a_command_makes_its_settings_once_and_its_run_makes_them_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    for kind in (config.TrainConfig, MARFTConfig):
        checked = kind.__post_init__

        def counted(settings: Any, checked: Any = checked) -> None:
            made.append(type(settings).__name__)
            checked(settings)

        monkeypatch.setattr(kind, "__post_init__", counted)
    settings, _ = training.typed_settings(["--clip", "0.3", "--runs-dir", str(tmp_path)])
    assert settings.algorithm.clip == 0.3 and sorted(made) == ["MARFTConfig", "TrainConfig"]
    resolve.settled(paths.absolute(settings))
    assert made.count("TrainConfig") == made.count("MARFTConfig") == 2


def test_the_words_choose_the_algorithm_whatever_a_file_says(tmp_path: Path) -> None:
    (tmp_path / "mappo.toml").write_text('algo = "mappo"\n[algorithm]\nlr = 1e-3\nclip = 0.1\n')
    settings, _ = training.typed_settings(["grpo", "--config", str(tmp_path / "mappo.toml")])
    assert (settings.algo, type(settings.algorithm).__name__) == ("grpo", "GRPOConfig")
    assert settings.algorithm.lr == 1e-3, "what every algorithm has is kept"


def test_toml_keeps_awkward_values(tmp_path: Path) -> None:
    awkward: dict[str, Any] = {
        "env_kwargs": {"a key": 'quote " back\\slash\nnew \x7f é', "nested": {"x": [1, 2.5, True]}, "levels": [0]},
        "models": {"solver_0": "a/b", "planner_0": "embedded"},
        "policies": {"solver": "one", "planner": "two"},
        "algorithm": {"lr": {"one": 1e-4, "two": 2e-4}, "kl_stop": 0.02, "huber_delta": values.NONE},
    }
    made = config.build(awkward)
    assert made.env_kwargs == awkward["env_kwargs"] and made.algorithm.huber_delta is None
    assert config.build(tomllib.loads(made.to_toml())) == made


def test_what_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env_kwargs\.filter.*cannot be written"):
        dataclasses.replace(config.TrainConfig(), env_kwargs={"filter": len}).to_toml()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"iteratoins": 3}, "no setting 'iteratoins'. Did you mean 'iterations'"),
        ({"algorithm": {"clipp": 0.2}}, "Did you mean 'clip'"),
        ({"lr": 1e-4, "algorithm": {"lr": 1e-4}}, "'lr' is there twice, alone and in the table 'algorithm'"),
        ({"algo": "mart"}, "Did you mean 'marft'"),
        ({"dtype": "bf61"}, "Did you mean 'bf16'"),
        ({"algorithm": {"level": "tokens"}}, "Did you mean 'token'"),
        ({"iterations": "many"}, "'iterations' cannot be 'many'"),
        ({"algorithm": {"lr": {"a": "fast"}}}, "'lr' cannot be"),
        ({"temperature": 0}, "expected more than 0"),
        ({"episodes_per_iteration": 0}, "expected at least 1"),
        ({"eval_every": -1}, "expected 0 or more"),
        ({"num_envs": 0}, "expected at least 1, or none"),
        ({"algorithm": 3}, "must be a table"),
    ],
)
def test_bad_settings_are_errors_with_a_suggestion(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build(table)


def test_bad_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the settings"):
        config.load(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("lr = = 3")
    with pytest.raises(ConfigError, match="is not TOML"):
        config.load(tmp_path / "bad.toml")


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'paper-table3'"):
        presets.get("paper-tabel3")


@pytest.mark.parametrize(("name", "entropy"), [("paper-table3", 0.1), ("paper-table4", 0.0), ("paper-table5", 0.01)])
def test_the_papers_presets_are_its_tables(name: str, entropy: float) -> None:
    """Appendix B.1 of arXiv 2504.16129; the KL threshold stands in the code sketch of appendix A."""
    made = config.build(presets.get(name))
    own = made.algorithm
    table = (own.lr, own.critic_lr, own.adam_eps, own.gamma_tok, own.gamma_turn, own.lambda_tok, own.lambda_turn)
    assert table == (1e-6, 1e-5, 1e-5, 0.99, 0.99, 0.95, 0.95)
    assert (own.epochs, own.minibatches, own.clip, own.clip_high, own.max_grad_norm) == (1, 1, 0.2, None, 0.5)
    assert own.entropy_coef == entropy and own.huber_delta is not None and own.kl_stop == 0.02
    assert (made.num_envs, made.context, made.max_new_tokens, made.critic_hidden) == (4, 2048, 512, (64,))
    assert made.models == "Qwen/Qwen2.5-Coder-3B-Instruct" and made.env == "math-paper-v0"


BF16 = [name for name in presets.PRESETS if name in ("default", "smollm2-bf16") or name.startswith(("paper-", "gpu-"))]


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_for_bf16_correct_for_its_sampler_and_take_whole_steps(name: str) -> None:
    learns = config.build(presets.get(name)).algorithm
    if name not in BF16:
        assert (learns.tis_cap, learns.old_logprobs, learns.adam_eps) == (None, "sampler", 1e-5)
        return
    assert (learns.tis_cap, learns.old_logprobs, learns.ratio_tolerance) == (2.0, "learner", 0.1)
    assert learns.adam_eps == (1e-5 if name.startswith(("paper-", "smollm2-")) else 1e-8)


@pytest.mark.parametrize("name", ["reinforce", "rloo", "magrpo", "spiral"])
def test_without_a_ratio_there_is_one_step_whatever_a_preset_says_of_others(name: str) -> None:
    quick = config.build(presets.get("quickstart"))
    other, made = config.build({"algo": "grpo"}, quick).algorithm, config.build({"algo": name}, quick).algorithm
    assert (other.epochs, other.minibatches, other.lr) == (2, 4, quick.algorithm.lr)
    assert (made.epochs, made.minibatches, made.lr) == (1, 1, quick.algorithm.lr)
    for setting in ("epochs", "minibatches"):
        with pytest.raises(ConfigError, match="expected 1 and 1: this algorithm has no ratio"):
            config.build({"algo": name, "algorithm": {setting: 2}}, quick)


@pytest.mark.parametrize("name", ["rft", "sdpo", "sft", "dpo"])
def test_a_kl_among_rewards_is_refused_where_no_reward_of_a_token_is_learnt_from(name: str) -> None:
    """It was scored, shown as a metric, and had no effect."""
    assert "kl_reward_coef" not in config.build({"algo": name}).algorithm.general()
    with pytest.raises(ConfigError, match=r"kl_reward_coef is 0.1; expected 0.* Next: kl_coef"):
        config.build({"algo": name, "algorithm": {"kl_reward_coef": 0.1}})


def test_presets_do_not_leak_into_each_other() -> None:
    presets.get("rag")["env_kwargs"]["recall_reward"] = 5
    assert presets.get("rag")["env_kwargs"] == {"recall_reward": 0.4}
    assert presets.get("paper-table3")["algorithm"]["entropy_coef"] == 0.1


@pytest.mark.parametrize("kind", [config.TrainConfig, UpdateConfig, MARFTConfig])
def test_every_setting_has_a_docstring(kind: type) -> None:
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            assert documented, f"{kind.__name__}.{statement.target.id} has no docstring"  # type: ignore[union-attr]


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    for made in (config.TrainConfig(runs_dir=tmp_path / "runs"), config.build({"runs_dir": tmp_path / "runs"})):  # type: ignore[arg-type]
        assert made.runs_dir == str(tmp_path / "runs")
        assert tomllib.loads(made.to_toml())["runs_dir"] == str(tmp_path / "runs")
    made = config.TrainConfig(models=tmp_path, adapter_dir=tmp_path)  # type: ignore[arg-type]
    assert (made.models, made.adapter_dir) == (str(tmp_path), str(tmp_path))
    with pytest.raises(ConfigError, match="iterations"):
        config.build({"iterations": tmp_path})


def test_engines_of_a_file_are_kept_as_tables(tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(
        '[engines]\na = {kind = "openai", model = "m", url = "http://h/v1", key_env = "MY_API_KEY", price_out = 2}\n'
        'b = "native"\n'
    )
    made = config.load(old, trusted=True)
    new.write_text(made.to_toml())
    assert tomllib.loads(new.read_text())["engines"] == {
        "a": {"kind": "openai", "url": "http://h/v1", "model": "m", "key_env": "MY_API_KEY", "price_out": 2.0},
        "b": {"kind": "native"},
    }
    assert config.load(new, trusted=True) == made


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"iteration": 3}, "There is no setting 'iteration'. Did you mean 'iterations'"),
        ({"learning_rate": 1e-4}, "no setting 'learning_rate'. In Python: lr=…; on the command line: --lr RATE"),
        ({"algorithm": {"epoch": 2}}, "There is no setting 'epoch'. Did you mean 'epochs'"),
        (
            {"algorithm": {"learning_rate": 1e-4}},
            "no setting 'learning_rate'. In Python: lr=…; on the command line: --lr RATE",
        ),
    ],
)
def test_a_setting_that_does_not_exist_names_the_one_that_does(given: dict[str, Any], told: str) -> None:
    for make in (lambda: config.build(given), lambda: config.TrainConfig(**given)):
        with pytest.raises(ConfigError, match=told):
            make()


def test_an_algorithms_settings_may_be_a_table() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'lr'\. Expected algorithm={.lr.: …} here"):
        config.TrainConfig(lr=0.5)
    assert config.TrainConfig(algorithm={"lr": 0.5}).algorithm == MARFTConfig(lr=0.5)
