"""Settings have ranges: every one is declared with its field, and refused alike wherever it comes from."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import marft_algos
from marft_algos import credit, ranges
from marft_algos.algorithms import base as algorithm
from marft_algos.algorithms.base import UpdateConfig
from marft_algos.algorithms.ppo import PPOConfig
from marft_algos.algorithms.settings import ClipConfig, GroupConfig
from marft_algos.cli import main
from marft_algos.cli.app import ProfilesArguments
from marft_algos.config import presets, values
from marft_algos.config import settings as config
from marft_algos.config.endpoints import Endpoint
from marft_algos.config.evaluation import EvalArguments, EvalConfig
from marft_algos.config.settings import TrainConfig
from marft_algos.credit import Counterfactual, Local, Shapley, WithCosts
from marft_algos.credit.replayed import LeaveOneOut
from marft_algos.engines.server import ServerSettings
from marft_algos.extras.audit.commands import AuditArguments
from marft_algos.extras.bench import grid
from marft_algos.extras.bench.commands import RunArguments
from marft_algos.extras.bench.versus.commands import VersusArguments
from marft_algos.extras.bench.versus.trial import Trial
from marft_algos.extras.blame.blaming import BlameSettings
from marft_algos.extras.blame.commands import BlameArguments
from marft_algos.extras.play import PlayArguments
from marft_algos.extras.serve import ServeArguments
from marft_algos.extras.view.commands import ViewArguments
from marft_algos.models.loading import ModelSettings
from marft_algos.models.saved import LoraSettings
from marft_algos.types import SamplingParams
from marft_envs.errors import ConfigError

OF_ALGORITHMS = [algorithm.get(name).Config for name in algorithm.names()]
SETTINGS: list[Any] = [
    TrainConfig, UpdateConfig, ClipConfig, GroupConfig, PPOConfig, *OF_ALGORITHMS, SamplingParams, LoraSettings, ModelSettings,
    grid.Grid, grid.EnvEntry, grid.AlgorithmEntry, grid.Sweep, Endpoint, ServerSettings,
    Local, Counterfactual, Shapley, LeaveOneOut, WithCosts, EvalConfig, EvalArguments, PlayArguments, ProfilesArguments, ServeArguments,
    RunArguments, Trial, VersusArguments, ViewArguments, AuditArguments,
    BlameSettings, BlameArguments,
]  # fmt: skip
DECLARING = sorted(
    {
        base
        for kind in SETTINGS
        for base in kind.__mro__
        if dataclasses.is_dataclass(base) and inspect.get_annotations(base)
    },
    key=lambda kind: kind.__name__,
)
"""These, and what they inherit from: each field where it is declared."""


def kinds(hint: Any) -> Iterator[Any]:
    """All kinds of value in an annotation."""
    yield typing.get_origin(hint) or hint
    if typing.get_origin(hint) is not Literal:
        for part in typing.get_args(hint):
            yield from kinds(part)


@pytest.mark.parametrize("kind", DECLARING, ids=lambda kind: kind.__name__)
def test_every_number_among_settings_declares_its_range(kind: Any) -> None:
    """A new field cannot forget it: numbers need a range; text, truth values, choices and free tables need none."""
    hints = {name: hint for name, hint in ranges.hints(kind).items() if name in inspect.get_annotations(kind)}
    numbers = {name: hint for name, hint in hints.items() if {int, float} & set(kinds(hint))}
    without = [name for name, hint in numbers.items() if ranges.range_of(hint) is None]
    assert not without, f"declare what {without} may be: Annotated[…, Range(…)]"


def test_no_dataclass_of_settings_is_left_out() -> None:
    """Whatever users type ends in a dataclass called Config, Settings, Arguments, Params or Entry."""
    root = Path(marft_algos.__file__).parent
    known, found = {k.__name__ for k in SETTINGS}, set()
    for file in root.rglob("*.py"):
        for line in file.read_text().splitlines():
            if line.startswith("class ") and line.split("(")[0].rstrip(":").endswith(
                ("Config", "Settings", "Arguments", "Params", "Entry")
            ):
                found.add(line[6:].split("(")[0].rstrip(":"))
    without_numbers = {"EnvsArguments", "CheckArguments", "ShowArguments", "ReportArguments", "ExportArguments"}
    without_numbers |= {"ReplayArguments", "DoctorArguments", "CompletionArguments", "NewArguments"}
    without_numbers |= {"PackArguments", "DistillArguments", "TracesArguments", "AlgorithmsArguments"}
    without_numbers |= {"EpisodeEntry", "CommandEntry", "Settings"}  # nobody types them
    assert found - known <= without_numbers


WRONG: list[tuple[str, Any, str]] = [
    ("clip", -0.2, "more than 0 and at most 1"),
    ("max_grad_norm", -1, "more than 0, or none"),
    ("kl_coef", -1, "0 or more"),
    ("lr", math.inf, "between 0 and 1"),
    ("lr", math.nan, "between 0 and 1"),
    ("lr", -1, "between 0 and 1"),
    ("epochs", 0, "at least 1"),
    ("minibatches", 0, "at least 1"),
    ("gamma_turn", 2, "between 0 and 1"),
    ("lambda_tok", 5, "between 0 and 1"),
    ("huber_delta", -1, "more than 0, or none"),
    ("anneal", -3, "0 or more"),
    ("lr_warmup", -1, "0 or more, or none"),
    ("kl_stop", -1, "more than 0, or none"),
    ("micro_tokens", 0, "at least 1"),
    ("critic_epochs", -1, "at least 1"),
    ("critic_lr", -1, "between 0 and 1"),
    ("entropy_coef", math.nan, "0 or more"),
    ("value_norm", 1.5, "at least 0 and less than 1, or none"),
    ("interval", 0, "at least 1"),
]
WRONG_RUN: list[tuple[str, Any, str]] = [
    ("lora_alpha", 0, "at least 1"),
    ("temperature", 0, "more than 0"),
    ("temperature", math.inf, "more than 0"),
    ("seed", -1, "between 0 and 4294967295"),
    ("pool_share", 1.5, "between 0 and 1"),
    ("eval_episodes", 0, "at least 1"),
    ("context", 0, "at least 1, or none"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG)
def test_wrong_values_are_refused_in_python_and_toml_alike(
    name: str, value: Any, allowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = f"{name} is {value!r}; expected {allowed}."
    with pytest.raises(ConfigError) as error:
        algorithm.get("marft").Config(**{name: value})
    assert str(error.value) == told
    with pytest.raises(ConfigError, match=f"^{name} is .*expected {allowed}"):
        config.build({"algorithm": {name: value}})
    (tmp_path / "run.toml").write_text(f"[algorithm]\n{name} = {value}\n")
    with pytest.raises(ConfigError, match=f"^{name} is .*expected {allowed}"):
        config.load(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match=f"{name} is"):
        marft_algos.train("toy", algorithm={name: value}, runs_dir=str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG_RUN)
def test_wrong_settings_of_a_run_too(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is .*expected {allowed}"):
        TrainConfig(**{name: value})
    with pytest.raises(ConfigError, match=f"^{name} is .*expected {allowed}"):
        config.build({name: value})


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--clip", "-0.2"], ["train", "--max-grad-norm", "-1"], ["train", "--lr", "inf"],
        ["train", "--lr", "abc"], ["train", "--lr", "solver_0=-1"], ["train", "--critic-hidden", "-4"],
        ["train", "--lora-alpha", "0"], ["eval", "run", "--episodes", "0"], ["play", "relay-v0", "--episodes", "0"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_command_line_names_setting_value_and_range(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    name = words[-2].removeprefix("--").replace("-", "_")
    assert code != 0 and "Traceback" not in shown
    assert name in shown and words[-1].split("=")[-1] in shown and "expected" in shown


def test_each_number_of_a_table_or_list_is_checked_and_named() -> None:
    with pytest.raises(ConfigError, match=r"^lr\[solver_0\] is -1; expected between 0 and 1\.$"):
        UpdateConfig(lr={"planner_0": 1e-4, "solver_0": -1})
    with pytest.raises(ConfigError, match=r"^critic_hidden\[1\] is 0; expected at least 1\.$"):
        TrainConfig(critic_hidden=(64, 0))
    with pytest.raises(ConfigError, match=r"credit.*costs\[tokens\] is nan; expected 0 or more"):
        credit.get({"costs": {"tokens": math.nan}})


def test_values_of_the_wrong_kind_are_refused_in_python_too() -> None:
    marft = algorithm.get("marft").Config
    for wrong, told in (
        ({"lr": "abc"}, r"lr is 'abc'; expected a number \(between 0 and 1\) or a table"),
        ({"epochs": 2.5}, r"epochs is 2.5; expected a whole number \(at least 1\)"),
        ({"epochs": True}, "epochs is True; expected a whole number"),
        ({"epochs": None}, "epochs is None; expected a whole number"),
        ({"level": "tokens"}, "level is 'tokens'; expected one of 'action', 'token'"),
    ):
        with pytest.raises(ConfigError, match=told):
            marft(**wrong)
    with pytest.raises(ConfigError, match="eval_greedy is 'no'; expected true or false"):
        TrainConfig(eval_greedy="no")  # type: ignore[arg-type]


def test_grids_are_checked_where_they_are_read() -> None:
    good = {"algorithms": ["reinforce"], "envs": ["relay-v0"], "token_budget": 10}
    grid.build(good)
    for wrong, told in (
        ({"token_budget": 0}, "In the grid: token_budget is 0; expected at least 1"),
        ({"seeds": [0, -1]}, r"seeds\[1\] is -1"),
        ({"sweep": {"lr": [0.0], "seeds": [9]}}, r"In \[sweep\]: lr\[0\] is 0.0; expected more than 0 and at most 1"),
        ({"env": {"relay-v0": {"token_budget": 0}}}, r"In \[env.relay-v0\]: token_budget is 0"),
        ({"contribution": -1}, "contribution is -1; expected 0 or more"),
    ):
        with pytest.raises(ConfigError, match=told):
            grid.build({**good, **wrong})


def test_every_preset_and_example_is_inside_its_ranges() -> None:
    for name in presets.PRESETS:
        for algo in algorithm.names():
            config.build({"algo": algo}, config.build(presets.get(name)))
    for file in sorted((Path(__file__).parents[2] / "examples/configs").glob("*.toml")):
        (grid.load if "algorithms" in values.read(file) else config.load)(file, trusted=True)


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda k: k.__name__)
def test_defaults_are_inside_their_ranges(kind: Any) -> None:
    needed = {"algorithms": ("reinforce",), "envs": ("relay-v0",), "token_budget": 1, "kind": "native", "lr": (0.1,),
              "seeds": (0,), "id": "relay-v0", "env": "math-dual-v0", "grid": Path(), "out": Path(), "model": "embedded", "run": "runs/a"}  # fmt: skip
    required = [
        f.name for f in dataclasses.fields(kind)
        if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]  # fmt: skip
    ranges.check(kind(**{name: needed[name] for name in required}))


def test_a_range_says_what_it_holds() -> None:
    held = {
        ranges.Range(): "a finite number", ranges.Range(0): "0 or more", ranges.Range(2): "at least 2",
        ranges.Range(0, 1): "between 0 and 1", ranges.Range(0, open_low=True): "more than 0",
        ranges.Range(0, 1, open_low=True): "more than 0 and at most 1",
        ranges.Range(0, 1, open_high=True): "at least 0 and less than 1", ranges.Range(high=3): "at most 3",
    }  # fmt: skip
    assert all(str(limits) == told for limits, told in held.items())
    assert math.nan not in ranges.Range() and math.inf not in ranges.Range(0)
    assert math.inf in ranges.Range(0, endless=True) and math.nan not in ranges.Range(0, endless=True)
    assert 0.0 not in ranges.POSITIVE and 1.0 not in ranges.Range(0, 1, open_high=True) and 0 in ranges.NOT_NEGATIVE


def test_algorithms_of_users_inherit_the_check() -> None:
    """A field without a range is finite at least; one with a range needs no line of code."""
    assert inspect.isclass(Mine)
    with pytest.raises(ConfigError, match="beta is nan; expected a finite number"):
        Mine(beta=math.nan)
    with pytest.raises(ConfigError, match="temper is 3; expected between 0 and 2"):
        Mine(temper=3)
    assert Mine(beta=-5.0).beta == -5.0


@dataclass(frozen=True)
class Mine(UpdateConfig):
    """A user's own."""

    beta: float = 1.0
    temper: Annotated[float, ranges.Range(0, 2)] = 1.0


@pytest.mark.parametrize("digits", [401, 5000])
@pytest.mark.parametrize("name", ["iterations", "eval_every", "temperature", "seed", "context"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_that_nothing_can_hold_is_refused_like_any_other(name: str, digits: int, sign: int) -> None:
    large = sign * 10 ** (digits - 1)
    with pytest.raises(ConfigError, match=rf"^{name} .*{digits} digits.*expected"):
        TrainConfig(**{name: large})
    with pytest.raises(ConfigError, match=name):
        config.build({name: large})


def test_a_number_that_nothing_can_hold_in_a_file_and_in_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for digits in (401, 5000):
        (tmp_path / "x.toml").write_text(f"iterations = {'1' * digits}\n")
        with pytest.raises(ConfigError):
            config.load(tmp_path / "x.toml")
        try:
            code = main(["train", "--iterations", "1" * digits, "--dry-run"])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        assert code != 0 and "Traceback" not in capsys.readouterr().err
    assert TrainConfig(iterations=10**300).iterations == 10**300
