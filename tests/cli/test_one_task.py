"""One id is one task: presets and commands play the problems that ``make`` gives."""

from __future__ import annotations

import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from marft_algos.cli import held_out, training
from marft_algos.config import arguments, presets
from marft_algos.config.evaluation import EvalArguments
from marft_algos.evaluation.environments import held_out_kwargs
from marft_algos.runs.folder import RunFolder
from marft_envs.core.types import optional

EASIEST: dict[str, dict[str, Any]] = {
    "math-dual-v0": {"levels": [0]},
    "code-reflect-v0": {"levels": [0]},
    "tools-router-v0": {"levels": [0]},
    "docs-chain-v0": {"level": 0, "kinds": "total", "lengths": 1},
    "rag-chain-v0": {"level": 0, "hops": 2},
    "relay-v0": {},
}
"""Of each family an id, and its default problems, named."""


def starts(env_id: str, **kwargs: Any) -> list[str]:
    """Returns the tasks of some seeds, and those of an evaluation where the task lists some."""
    with closing(marft_envs.make(env_id, **kwargs)) as env:
        listing, found = optional(env.unwrapped.task, "evaluation_set"), []
        for seed in range(8):
            env.reset(seed=seed)
            found.append(env.unwrapped.task.task_id)
    return found if listing is None else found + list(listing(20))


@pytest.mark.parametrize("name", presets.PRESETS)
def test_no_preset_selects_problems(name: str) -> None:
    kwargs = presets.get(name).get("env_kwargs", {})
    ids = [spec.id for spec in marft_envs.list_envs() if "/" not in spec.id and "data" not in spec.kwargs]
    for env_id in ids:
        if kept := presets.keep_accepted(env_id, kwargs):
            assert starts(env_id, **kept) == starts(env_id), env_id


@pytest.mark.parametrize("env_id", EASIEST)
def test_train_and_eval_play_what_make_makes(env_id: str, request: pytest.FixtureRequest) -> None:
    if env_id.startswith("code-"):
        request.getfixturevalue("sandbox")
    by_default = starts(env_id)
    assert by_default == starts(env_id, **EASIEST[env_id])
    assert by_default == starts(env_id, **training.typed_settings(["--env", env_id])[0].env_kwargs)
    scored = held_out._eval_settings(EvalArguments(env=env_id, untrained=True))[0].env_kwargs
    hosted = EvalArguments(env=env_id, engines="embedded").of_engines().env_kwargs
    held = [starts(env_id, **held_out_kwargs(env_id, {}, kwargs)) for kwargs in (scored, hosted, {})]
    assert held[0] == held[1] == held[2] and (held[0] != by_default or env_id == "relay-v0")


def test_a_heading_writes_an_environment_as_it_is_typed() -> None:
    kwargs = {"levels": [1, 2], "domain": "tau:files\n", "profiles": {"actor": "x" * 99}}
    heading = arguments.task("math-dual-v0", kwargs)
    assert heading.startswith('math-dual-v0 levels=[1,2] domain=tau:files\ufffd profiles={"actor":"xxx')
    assert heading.endswith("x…") and arguments.task("relay-v0", {}) == "relay-v0"


def test_another_environment_keeps_what_every_environment_takes(tmp_path: Path) -> None:
    """Limits, histories and members of a run vanished with ``--env``: scores were of another task."""
    kwargs = 'max_rounds = 2\nmax_path = 80\nhistory = "public"\nlevels = [1]\n'
    run = RunFolder.create(tmp_path, "x", "x")
    run.write_config(f'env = "math-dual-v0"\n[env_kwargs]\n{kwargs}')
    asked = EvalArguments(run=str(run.root), env="math-solo-v0")
    assert held_out._eval_settings(asked)[0].env_kwargs == tomllib.loads(kwargs)
