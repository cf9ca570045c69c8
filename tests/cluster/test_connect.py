"""What workers on a cluster are told, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from marft_algos.config.settings import build
from marft_algos.extras.cluster import connect

KEY = {"kind": "openai", "model": "m", "url": "https://far.example/v1", "key_env": "MINE_API_KEY"}
SET = {
    "HF_HOME": "/models", "HF_HUB_CACHE": "/hub", "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": "/cache",
    "MINE_API_KEY": "k1", "OPENAI_API_KEY": "k2", "OTHER_API_KEY": "k3", "OPENAI_BASE_URL": "https://near.example/v1",
}  # fmt: skip
PLACES = {"HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"}


@pytest.mark.parametrize(("engines", "keys"), [
    ({}, set()), ({"planner_0": "native"}, set()), ({"planner_0": KEY}, {"MINE_API_KEY", "OPENAI_BASE_URL"}),
    ({"planner_0": {"kind": "openai", "model": "m"}}, {"OPENAI_API_KEY", "OPENAI_BASE_URL"}),
    ({"planner_0": {"kind": "openai", "model": "m", "url": "http://127.0.0.1:1"}}, {"OPENAI_BASE_URL"}),
])  # fmt: skip
def test_workers_have_the_runs_places_and_the_keys_of_its_engines(
    engines: dict[str, Any], keys: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    told = connect.variables(build({"env": "relay-v0", "engines": engines, "threads": 2}))
    assert {name: told[name] for name in told if name in SET} == {name: SET[name] for name in PLACES | keys}
    assert told["OMP_NUM_THREADS"] == "2" and told["PYTHONPATH"]
    for name in SET:
        monkeypatch.delenv(name)
    assert not SET.keys() & connect.variables(build({"env": "relay-v0", "engines": engines})).keys()
