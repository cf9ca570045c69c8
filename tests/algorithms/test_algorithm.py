"""Settings, names and warnings of algorithms."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import warnings
from itertools import pairwise

import pytest
import torch

from helpers.teams import Tabular, episode
from marft_algos.algorithms import base as algorithm
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.learner.learner import Learner
from marft_algos.learner.steps import average, per_policy, rate_factor, summed
from marft_algos.types import SamplingParams
from marft_envs.errors import ConfigError


def test_learning_rates_per_policy() -> None:
    assert per_policy(0.1, ["a", "b"], "lr") == {"a": 0.1, "b": 0.1}
    assert per_policy({"a": 0.1, "b": 0.2}, ["a", "b"], "lr") == {"a": 0.1, "b": 0.2}
    with pytest.raises(ConfigError, match="Did you mean 'reasoner'"):
        per_policy({"reasoer": 1.0}, ["reasoner"], "lr")
    with pytest.raises(ConfigError, match=r"no value for \['b'\]"):
        per_policy({"a": 0.1}, ["a", "b"], "lr")
    policies = Tabular(["a", "b"])
    before = {p: table.detach().clone() for p, table in policies.tables.items()}
    data = policies.play([episode([["a"], ["b"]], number=i, rewards=[0.0, float(i % 2)]) for i in range(8)])
    Learner(MARFT(MARFTConfig(lr={"a": 0.1, "b": 0.0}, critic="none")), policies).update(data, 0)
    assert torch.equal(before["b"], policies.tables["b"]) and not torch.equal(before["a"], policies.tables["a"])


def test_a_discount_that_starves_the_first_tokens_draws_a_warning() -> None:
    with pytest.warns(UserWarning, match="first tokens get almost no signal"):
        MARFT(MARFTConfig(gamma_tok=0.99), SamplingParams(max_new_tokens=512))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MARFT(MARFTConfig(), SamplingParams(max_new_tokens=512))
        MARFT(MARFTConfig(gamma_tok=0.99, level="action"), SamplingParams(max_new_tokens=512))


def test_registry_finds_algorithms_by_name_and_by_path() -> None:
    assert algorithm.get("marft") is MARFT and MARFT.name == "marft" and "marft" in algorithm.names()
    assert algorithm.get("marft_algos.algorithms.marft:MARFT") is MARFT
    with pytest.raises(ConfigError, match="Did you mean 'marft'"):
        algorithm.get("mraft")
    with pytest.raises(ConfigError, match="Expected module:Class"):
        algorithm.get("marft_algos.algorithms.marft:Nothing")
    with pytest.raises(ConfigError, match="there are no value heads"):
        Learner(MARFT(), Tabular(["a", "b"])).update([episode([["a"], ["b"]])], 0)


def test_every_setting_has_a_reason() -> None:
    """A docstring stands under each field of the configurations: that is their ``--help``."""
    for cls in (MARFTConfig, algorithm.UpdateConfig):
        body = ast.parse(inspect.getsource(cls)).body[0].body
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), ast.unparse(field)
    assert len(dataclasses.fields(MARFTConfig)) > 20


def test_a_learning_rate_rises_in_a_line_and_falls_to_a_tenth() -> None:
    assert [rate_factor(i, warmup=4, anneal=0) for i in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert [rate_factor(i, warmup=0, anneal=10) for i in (0, 5, 10, 99)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert rate_factor(1, warmup=4, anneal=10) == pytest.approx(0.5 * 0.91)
    assert [rate_factor(i, 2, 0, first=3) for i in range(2, 6)] == [0.5, 0.5, 1.0, 1.0], "after value heads alone"


def test_numbers_of_pieces_are_summed_and_those_of_steps_averaged_but_the_largest_kept() -> None:
    both = [{"x": 1.0, "y_max": 3.0}, {"x": 2.0, "y_max": 2.0}]
    assert summed(both) == {"x": 3.0, "y_max": 3.0} and average(both) == {"x": 1.5, "y_max": 3.0}
