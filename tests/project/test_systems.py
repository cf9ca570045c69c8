"""The systems of the literature in ``examples/systems``: short, registered, playable, and trained."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import marft_envs
from examples.systems import claims, table
from examples.systems.run import HERE, NAMES, main, system
from examples.systems.system import System, Test, evaluations
from marft_envs.core.types import optional
from marft_envs.errors import UnsolvedError

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("rema", "search_r2", "hammer")


def found(name: str) -> System:
    """Returns a system, where what it needs is installed."""
    if name == "marshal":
        pytest.importorskip("pygame", reason="PettingZoo's classic games need pygame: pip install -e '.[pettingzoo]'")
    return system(name)


def reply(env: marft_envs.FlexEnv, rng: np.random.Generator) -> str:
    """What the expert says now, or one of the task's samples where there is none."""
    task, agent = env.unwrapped.task, env.agent_selection
    expert = optional(task, "expert")
    try:
        return str(expert(agent)) if expert else str(rng.choice(list(task.sample_actions(agent))))
    except UnsolvedError:
        return str(rng.choice(list(task.sample_actions(agent))))


@pytest.mark.parametrize("name", NAMES)
def test_a_system_is_short_and_its_team_plays(name: str) -> None:
    source = (HERE / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 120
    for said in ("Reproduced:", "Departs:", "python examples/systems/"):
        assert said in source
    one = found(name)
    assert one.env == f"systems/{name}-v0" and one.claim
    env = marft_envs.make(one.env, **one.settings.get("env_kwargs", {}))
    env.unwrapped.task.validate()
    rng = np.random.default_rng(0)
    successes, said = [], {}
    for seed in range(24):
        env.reset(seed=seed)
        while not env.unwrapped.done:
            seen = (env.agent_selection, str(env.messages(env.agent_selection)))
            said.setdefault(seen, set()).add(word := reply(env, rng))
            env.step(word)
        assert not env.unwrapped.episode.failed
        successes.append(env.unwrapped.episode.success)
    if optional(env.unwrapped.task, "expert"):
        assert all(successes)
    # A warm start imitates the expert: what it says follows from what its agent sees.
    assert not one.settings.get("warm_start") or {len(words) for words in said.values()} == {1}
    if one.single:
        assert len(marft_envs.make(one.single, **one.single_settings.get("env_kwargs", {})).possible_agents) == 1


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_system_is_trained(name: str, tmp_path: Path) -> None:
    one = found(name)
    run = one.train(2, runs=tmp_path)
    before, *imitated, after = evaluations(run)
    assert len(imitated) == bool(one.settings.get("warm_start"))
    assert 0 <= before["success"] <= 1 and 0 <= after["success"] <= 1 and run.report_file.is_file()


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs" / "systems.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}.py`" not in page] == []


def test_an_unknown_system_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["remma"])
    assert "There is no system remma" in capsys.readouterr().err


def rows(after: float, single: float) -> list[dict[str, object]]:
    """Returns results of one seed of a system that is to be ahead of its start and of one agent."""
    key = {"system": "search_r2", "seed": 0, "iterations": 0, "untrained": {"success": 0.4}}
    done = {"team": after, "single": single}
    return [
        key | {"who": who, "settings": system("search_r2").digest(who), "after": {"success": x}}
        for who, x in done.items()
    ]


@pytest.mark.parametrize(
    ("test", "wanted"),
    [(Test(by=0.1), True), (Test(by=0.11), False), (Test(by=-0.1, less=True), True), (Test("zero", by=0.51), False)],
)
def test_a_test_compares_a_metric(test: Test, wanted: bool) -> None:
    assert test.holds({"success": 0.5}, {"success": 0.4}) is wanted


def test_a_claim_comes_out_where_every_test_holds_in_every_seed() -> None:
    def verdict(found: list[dict[str, object]]) -> str:
        return table.line(system("search_r2"), found)[-1]

    second = [row | {"seed": 1} for row in rows(0.9, 0.88)]
    assert verdict(rows(0.9, 0.8)) == "yes" and verdict(rows(0.9, 0.88)) == "no"
    assert verdict([*rows(0.9, 0.8), *second]) == "in 1 of 2 seeds"
    none = {"superfluous": 0.0}
    nothing = {"system": "scma", "who": "team", "seed": 0, "untrained": none, "after": none}
    assert verdict(rows(0.9, 0.8)[:1]) == table.line(system("scma"), [nothing])[-1] == "cannot be asked"


def test_full_runs_of_a_folder_replace_kept_ones(tmp_path: Path) -> None:
    short = [row | {"iterations": 2, "after": {}} for row in rows(0.1, 0.1)]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, [*rows(0.9, 0.8), *short])))
    assert table.merged(rows(0.5, 0.5), tmp_path) == [dict(row) for row in reversed(rows(0.9, 0.8))]
    assert table.stale(rows(0.9, 0.8)) == []
    assert table.stale([row | {"settings": "0"} for row in rows(0.9, 0.8)]) == [
        "search_r2 team 0",
        "search_r2 single 0",
    ]


def test_the_page_has_the_tables_of_what_was_run(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "benchmarks/results/paper.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert claims.text(tmp_path / "paper") in table.PAGE.read_text(encoding="utf-8"), "claims.py runs/paper --write"
    kept = json.loads(table.RESULTS.read_text(encoding="utf-8"))
    assert table.page(kept) == table.PAGE.read_text(encoding="utf-8"), "python examples/systems/table.py --write"
    assert table.stale(kept) == []
