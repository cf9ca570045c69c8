"""Ids, versions, keywords and plugins; errors name the nearest right word."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pettingzoo
import pytest

import marft_envs
from helpers.flex import flex
from marft_envs import ConfigError, FlexEnv, registration


@pytest.fixture(autouse=True)
def _own_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_specs", dict(registration._specs))
    monkeypatch.setattr(registration, "_plugins_loaded", set())


def small(n: int = 2, max_rounds: int = 1) -> FlexEnv:
    return flex(n, max_rounds=max_rounds)


def loose(**kwargs: Any) -> FlexEnv:
    return flex(2, **kwargs)


def test_make_sets_the_id_and_remembers_the_keywords() -> None:
    marft_envs.register("mine/small-v0", small, {"n": 3}, "three agents")
    env = marft_envs.make("mine/small-v0", max_rounds=2)
    assert env.env_id == "mine/small-v0" and str(env) == "mine/small-v0"
    assert len(env.possible_agents) == 3 and env.rules.max_rounds == 2 and env.env_kwargs == {"max_rounds": 2}
    assert marft_envs.spec("mine/small-v0").summary == "three agents"


@pytest.mark.parametrize(("id", "words"), [
    ("relai", "Did you mean 'relay-v0'"), ("relai-v0", "Did you mean 'relay-v0'"),
    ("relay-v7", "no version 7 of 'relay'. There is: relay-v0"),
    ("nowhere_at_all:relay-v0", "no module 'nowhere_at_all'"), ("math-duel-v0", "Did you mean 'math-dual-v0'"),
])  # fmt: skip
def test_unknown_ids(id: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        marft_envs.make(id)


def test_unknown_keywords_name_the_nearest() -> None:
    marft_envs.register("mine/small-v0", small)
    marft_envs.register("mine/loose-v0", loose)
    with pytest.raises(ConfigError, match=r"takes no 'max_round'\. Did you mean 'max_rounds'"):
        marft_envs.make("mine/small-v0", max_round=2)
    with pytest.raises(ConfigError, match=r"takes no 'attribtion'\. Did you mean 'attribution'"):
        marft_envs.make("mine/loose-v0", attribtion="team")


KEYWORDS: dict[str, Any] = {
    "attribution": "last", "dependency": "independent", "history": "own", "max_chars": 900, "max_path": 50,
    "max_rounds": 2, "max_turns": 4, "max_turns_per_agent": 2, "observation": "prompt", "on_invalid": "end_round",
    "render_mode": "ansi", "reply_tokens": 8, "reward": lambda episode: 0.5, "share_thoughts": True,
    "tag_first_round": True,
}  # fmt: skip
"""What ``make`` says that every id takes; ``judge`` and ``partners`` need a model and an expert."""


OWN = [spec.id for spec in marft_envs.list_envs() if str(spec.entry_point).startswith("marft_envs.families")]
"""Without what other tests register."""


@pytest.mark.parametrize("id", OWN)
def test_every_id_takes_every_keyword_that_is_listed(id: str) -> None:
    fn = marft_envs.spec(id).load()
    assert KEYWORDS.keys() == registration.keywords(loose) - {"judge", "partners"}
    own = {name: p.default for name, p in inspect.signature(fn).parameters.items() if p.default is not p.empty}
    own |= marft_envs.spec(id).kwargs
    here = {"data": "procedural"} if "data" in marft_envs.spec(id).kwargs else {}  # its own is downloaded
    for name in sorted(registration.keywords(fn) - {"judge", "partners"}):
        value = KEYWORDS.get(name, own.get(name))
        if name == "reward" or value is not None:
            env = marft_envs.make(id, **{name: value} | here)
            env.close()
            if name in ("max_rounds", "max_chars", "history", "max_path"):
                assert getattr(env.unwrapped.rules, name) == value


@pytest.mark.parametrize("id", ["small", "mine/small", "small-v", "a b-v0", "x/y/z-v0"])
def test_malformed_ids(id: str) -> None:
    with pytest.raises(ConfigError, match="name-vN"):
        marft_envs.register(id, small)


def test_an_id_has_one_meaning() -> None:
    marft_envs.register("mine/small-v0", small)
    marft_envs.register("mine/small-v0", small)
    with pytest.raises(ConfigError, match="registered already"):
        marft_envs.register("mine/small-v0", loose)


def test_module_colon_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_envs_module.py").write_text(
        "import marft_envs\nfrom helpers.flex import flex\nmarft_envs.register('mine/there-v0', lambda: flex(2))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert marft_envs.make("my_envs_module:mine/there-v0").env_id == "mine/there-v0"


def test_without_a_version_the_newest_is_made() -> None:
    for version in (2, 10, 9):
        marft_envs.register(f"mine/small-v{version}", small)
    with pytest.warns(UserWarning, match="'mine/small' without a version is 'mine/small-v10', the newest"):
        env = marft_envs.make("mine/small")
    assert env.env_id == "mine/small-v10" and env.spec == marft_envs.spec("mine/small-v10")
    assert env.spec.make(max_rounds=3).rules.max_rounds == 3 and small().spec is None
    assert (
        registration.versioned("mine/large") == "mine/large"
        and registration.versioned("a:mine/small") == "a:mine/small"
    )


def test_the_registry_is_a_mapping_of_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(marft_envs.registry) == [spec.id for spec in marft_envs.list_envs()]
    assert "relay-v0" in marft_envs.registry and "relay" not in marft_envs.registry
    marft_envs.pprint_registry()
    assert capsys.readouterr().out.count("\n") == len(marft_envs.registry)


def test_gymnasium_and_pettingzoo_know_an_id_once_it_is_registered() -> None:
    marft_envs.register("small-v0", small, {"n": 2})
    env = gymnasium.make("marft/small-v0", agent="b_0", partners={"a_0": "hello"}, max_rounds=2)
    assert env.reset(seed=0)[1]["skipped"] == 0 and env.spec is not None and env.spec.id == "marft/small-v0"
    assert pettingzoo.make("aec", "marft/small-v0").possible_agents == ["a_0", "b_0"]
    assert isinstance(pettingzoo.make("parallel", "marft/small-v0"), pettingzoo.ParallelEnv)
    assert gymnasium.make("marft/math-solo-v0", levels=[0]).unwrapped.agent == "actor_0"
    with pytest.raises(ConfigError, match=r"Expected agent='b_0', and partners="):
        gymnasium.make("marft/small-v0")


class _Point:
    def __init__(self, name: str, loaded: list[str]) -> None:
        self.name, self.value, self._loaded = name, f"{name}_plugin", loaded

    def load(self) -> object:
        self._loaded.append(self.name)
        marft_envs.register(f"{self.name}/thing-v0", small)
        return object()


def test_plugins_load_when_their_namespace_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    points = [_Point("ours", loaded), _Point("theirs", loaded)]
    monkeypatch.setattr(registration, "entry_points", lambda group: points if group == "marft.envs" else [])
    marft_envs.make("relay-v0")
    assert loaded == []
    marft_envs.make("theirs/thing-v0")
    assert loaded == ["theirs"]
    assert "ours/thing-v0" in [spec.id for spec in marft_envs.list_envs()] and loaded == ["theirs", "ours"]


def test_make_vec() -> None:
    vec = marft_envs.make_vec("relay-v0", 3)
    assert vec.num_envs == 3 and vec.agents[0].role == "planner"
    with pytest.raises(ConfigError, match="num_envs=1"):
        marft_envs.make_vec("relay-v0", 0)
    with pytest.raises(ConfigError, match="Did you mean 'relay-v0'"):
        marft_envs.make_vec("rely-v0", 3)


def test_the_import_is_light() -> None:
    code = (
        "import sys, time; start = time.process_time(); import marft_envs; took = time.process_time() - start\n"
        "heavy = {'torch', 'transformers', 'sympy', 'math_verify', 'pandas'} & set(sys.modules)\n"
        "families = [name for name in sys.modules if name.startswith(('marft_envs.families.math', 'marft_envs.families.toy'))]\n"
        "assert not heavy and not families, (heavy, families)\nassert took < 1.0, took\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", ["agents", "task", "env_id", "flex", "profiles"])
def test_what_an_environment_decides_itself_is_no_argument_and_no_suggestion(name: str) -> None:
    with pytest.raises(ConfigError, match=f"takes no '{name}'") as refused:
        marft_envs.make("relay-v0", **{name: "x"})
    suggested = str(refused.value).partition("takes no")[2].partition(".")[2]
    assert not {"'flex'", "'agents'", "agents,", "flex,", "env_id"} & set(suggested.split())
    assert "max_rounds" in suggested or "Did you mean" in suggested
