"""Grids: what they expand to, what they refuse, and that the shipped ones are valid. Nothing is trained here."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.marks import rest_in_ci
from marft_algos.algorithms import base as algorithms
from marft_algos.config import settings as configs
from marft_algos.extras.bench import grid, grid_runs, sweep
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.grid_runs import GridRun
from marft_envs.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"


def table(**changes: Any) -> dict[str, Any]:
    return {"algorithms": ["marft", "grpo"], "envs": ["relay-v0"], "token_budget": 4000, "seeds": [0, 1]} | changes


def expand(**changes: Any) -> list[GridRun]:
    return grid_runs.expand(grid.build(table(**changes)), "main")


def rows(found: list[GridRun]) -> set[tuple[str, str, int]]:
    return {(c.algorithm, c.env, c.seed) for c in found if not c.hidden}


@pytest.mark.parametrize("path", rest_in_ci(sorted(CONFIGS.glob("*.toml")), 2), ids=lambda p: p.stem)
def test_the_shipped_grids_are_valid_and_their_cells_read_back_equal(path: Path, tmp_path: Path) -> None:
    made = grid.load(path, trusted=True)
    rates = None
    if made.sweep is not None:
        swept = grid_runs.expand(made, "sweep")
        rates = {(c.algorithm, c.env): c.lr for c in swept}
        assert {c.seed for c in swept}.isdisjoint(made.seeds)
    found = grid_runs.expand(made, "main", rates)
    assert {c.env for c in found} == set(made.envs)
    for grid_run in {(c.algorithm, c.env, c.skipped): c for c in found}.values():  # of one seed
        assert grid_run.skipped or configs.build(grid_run.config).table() == grid_run.config
    for grid_run in found[:2]:
        settings = configs.build(grid_run.config)
        (tmp_path / "config.toml").write_text(settings.to_toml())
        assert configs.load(tmp_path / "config.toml", trusted=True) == settings
        assert configs.build(json.loads(json.dumps(settings.table()))) == settings


def test_the_toy_grid_trains_every_algorithm_somewhere_and_the_core_grid_ten() -> None:
    toys = grid_runs.expand(grid.load(CONFIGS / "bench_toys.toml"), "main")
    trained = {c.algorithm for c in toys if not c.skipped}
    rewarded = {name for name in algorithms.names() if not algorithms.get(name).imitates}
    assert trained == {*rewarded, "untrained", "rft-turns"}
    core = grid.load(CONFIGS / "bench_core.toml")
    assert len(core.algorithms) >= 10 and len(core.envs) == 4 and len(core.seeds) == 5
    assert set(core.controls) == set(grid.CONTROLS)


def test_controls_are_always_in_the_grid() -> None:
    limited = {"single": "math-solo-v0", "settings": {"env_kwargs": {"max_path": 40}}}
    found = expand(envs=["math-dual-v0"], env={"math-dual-v0": limited})
    labels = {c.algorithm for c in found}
    assert labels == {"marft", "grpo", "reinforce", "rft", "untrained", "single", "vote"}
    by_label = {c.algorithm: c for c in found if c.seed == 0}
    assert by_label["untrained"].config["iterations"] == 0
    single, vote = by_label["single"], by_label["vote"]
    assert (
        single.config["env"] == "math-solo-v0"
        and single.config["env_kwargs"]["max_path"] == 40
        and single.config["token_budget"] == by_label["marft"].config["token_budget"]
    )
    assert vote.sources == (single.key,) and vote.reference == by_label["marft"].key
    assert found.index(vote) > found.index(single), "made of others, so after them"


def test_every_run_has_the_same_budget_and_the_presets_update_step() -> None:
    found = [c for c in expand() if c.algorithm in ("marft", "grpo", "reinforce", "rft")]
    assert {c.config["token_budget"] for c in found} == {4000}
    assert len({c.config["algorithm"]["lr"] for c in found}) == 1
    assert len({c.config["episodes_per_iteration"] for c in found}) == 1


def test_settings_go_from_grid_to_environment_to_algorithm() -> None:
    found = expand(
        envs=["relay-v0", "deaf"],
        settings={"eval_episodes": 7, "algorithm": {"epochs": 2}},
        env={"deaf": {"id": "relay-v0", "settings": {"eval_episodes": 9, "env_kwargs": {"dependency": "independent"}}}},
        algorithm={"marft": {"settings": {"epochs": 3}}},
    )
    deaf = {c.algorithm: c.config for c in found if c.env == "deaf" and c.seed == 0}
    assert deaf["marft"]["eval_episodes"] == 9 and deaf["marft"]["env_kwargs"] == {"dependency": "independent"}
    assert deaf["marft"]["algorithm"]["epochs"] == 3 and deaf["grpo"]["algorithm"]["epochs"] == 2
    assert deaf["reinforce"]["algorithm"]["epochs"] == 1  # what is for all is not for who has no ratio
    assert next(c for c in found if c.env == "relay-v0").config["eval_episodes"] == 7


def test_an_algorithm_may_have_settings_on_one_environment() -> None:
    found = expand(
        envs=["relay-v0", "xor-v0"],
        settings={"algorithm": {"kl_coef": 0.2}},
        algorithm={"reinforce": {"settings": {"momentum": 0.5}, "on": {"xor-v0": {"kl_coef": 0.05, "eval_every": 7}}}},
    )
    coefs = {(c.algorithm, c.env): c.config["algorithm"]["kl_coef"] for c in found if not c.skipped}
    assert coefs["reinforce", "xor-v0"] == 0.05 and coefs["reinforce", "relay-v0"] == coefs["grpo", "xor-v0"] == 0.2
    assert {c.config["algorithm"]["momentum"] for c in found if c.algorithm == "reinforce"} == {0.5}
    assert {(c.algorithm, c.env) for c in found if c.config and c.config["eval_every"] == 7} == {
        ("reinforce", "xor-v0")
    }


def test_a_cells_name_is_its_content() -> None:
    first, again = expand(), expand()
    assert [c.key for c in first] == [c.key for c in again]
    assert len({c.key for c in first}) == len(first)
    other = {c.key for c in expand(settings={"eval_episodes": 7}) if not c.skipped}
    assert other.isdisjoint(c.key for c in first)
    moved = expand(settings={"runs_dir": "elsewhere", "threads": 2})
    assert [c.key for c in moved] == [c.key for c in first]


def test_what_does_not_fit_is_a_row_with_the_reason() -> None:
    found = expand(algorithms=["marft", "mat", "magrpo"], envs=["route-v0"])
    why = {c.algorithm: c.skipped for c in found}
    assert "one policy for all agents" in why["mat"] and not why["magrpo"] and not why["marft"]
    assert "no environment for a single agent" in why["single"] and "no environment" in why["vote"]


def test_credit_rules_multiply_the_algorithms_that_have_the_choice() -> None:
    found = expand(algorithms=["marft", "grpo"], credit=["broadcast", "last"], controls=[], baseline="marft")
    assert {(c.algorithm, c.credit): bool(c.skipped) for c in found} == {
        ("marft", "broadcast"): False,
        ("marft", "last"): False,
        ("grpo", "broadcast"): True,
        ("grpo", "last"): True,
    }


def test_a_credit_rule_with_arguments_has_a_label() -> None:
    rule = {"rule": "shapley", "absence": "start"}
    found = expand(algorithms=["ippo"], credit=["local", "start"], rule={"start": rule}, controls=[], baseline="ippo")
    assert {c.credit: c.config["algorithm"]["credit"] for c in found} == {"local": "local", "start": rule}


def test_members_share_the_budget_and_vote() -> None:
    found = expand(envs=["three"], env={"three": {"id": "math-solo-v0", "members": 3}}, controls=[], baseline="marft")
    vote = next(c for c in found if c.kind == "vote" and c.algorithm == "marft" and c.seed == 0)
    parts = [c for c in found if c.key in vote.sources]
    assert len(parts) == 3 and all(c.hidden and c.config["token_budget"] == 4000 // 3 for c in parts)
    assert len({c.config["seed"] for c in parts}) == 3 and not vote.hidden
    assert rows(found) == {(a, "three", s) for a in ("marft", "grpo") for s in (0, 1)}


def test_an_ablation_scores_the_trained_team_of_the_same_seed() -> None:
    env = {
        "deaf": {"id": "relay-v0", "trained_on": "relay-v0", "settings": {"env_kwargs": {"dependency": "independent"}}}
    }
    found = expand(envs=["relay-v0", "deaf"], env=env)
    trained = {(c.algorithm, c.seed): c.key for c in found if c.env == "relay-v0"}
    made = [c for c in found if c.env == "deaf"]
    assert made and all(c.kind == "ablation" and c.sources == (trained[c.algorithm, c.seed],) for c in made)


def test_the_sweep_is_equal_and_never_looks_at_test_problems() -> None:
    made = grid.build(
        table(
            envs=["math-dual-v0"],
            env={"math-dual-v0": {"single": "math-solo-v0"}},
            sweep={"lr": [1e-3, 2e-3], "seeds": [9]},
        )
    )
    swept = grid_runs.expand(made, "sweep")
    tried: dict[str, set[float | None]] = {}
    for grid_run in swept:
        tried.setdefault(grid_run.algorithm, set()).add(grid_run.lr)
        assert grid_run.config["eval_kwargs"]["split"] == "train" and grid_run.config["seed"] == 9
        assert grid_run.config["eval_every"] == 0, "only the last score chooses"
    assert set(tried) == {"marft", "grpo", "reinforce", "rft", "single"}
    assert all(rates == {1e-3, 2e-3} for rates in tried.values())
    main = grid_runs.expand(made, "main", {(a, "math-dual-v0"): 2e-3 for a in tried if a != "grpo"})
    assert {c.config["algorithm"]["lr"] for c in main if c.algorithm == "marft"} == {2e-3}
    assert all("no learning rate" in c.skipped for c in main if c.algorithm == "grpo")
    assert all(c.config["eval_kwargs"] == {} and c.config["eval_every"] for c in main if c.algorithm == "marft")


def test_the_best_of_several_algorithms_trains_the_single_agent(tmp_path: Path) -> None:
    env = {"envs": ["math-dual-v0"], "env": {"math-dual-v0": {"single": "math-solo-v0"}}}
    made = grid.build(table(**env, sweep={"lr": [1e-3, 2e-3], "seeds": [9]}, single=["marft", "rft"]))
    swept = grid_runs.expand(made, "sweep")
    alone = {(c.algorithm, c.config["algo"], c.lr) for c in swept if c.algorithm.startswith("single")}
    assert alone == {(f"single ({a})", a, lr) for a in ("marft", "rft") for lr in (1e-3, 2e-3)}
    bench = BenchFolder(tmp_path / "bench")
    bench.prepare({})
    bench.write_stage("sweep", [c.row() for c in swept])
    for c in swept:
        best = c.algorithm == "single (rft)" and c.lr == 1e-3
        bench.write_result(c.key, {"score": 0.9 if best else 0.5, "train_score": 0.4})
    main = [c for c in grid_runs.expand(made, "main", sweep.chosen(made, bench)) if not c.hidden]
    rows = {c.algorithm for c in main}
    assert "single (rft)" in rows and "single (marft)" not in rows and "single" not in rows
    chosen = next(c for c in main if c.algorithm == "single (rft)")
    assert chosen.config["algo"] == "rft" and chosen.config["algorithm"]["lr"] == 1e-3
    vote = next(c for c in main if c.algorithm == "vote" and c.seed == chosen.seed)
    assert vote.sources == (chosen.key,)


def test_replies_are_voted_on_only_where_the_task_says_what_they_answer() -> None:
    env = {"envs": ["code-dual-v0"], "env": {"code-dual-v0": {"single": "code-solo-v0"}}, "controls": ["vote"]}
    votes = [c for c in expand(**env, baseline="marft") if c.algorithm == "vote"]
    assert votes and all("code-solo-v0 has no answer_key(text)" in c.skipped for c in votes)


def test_an_environment_may_be_swept_over_rates_of_its_own() -> None:
    changes = {"envs": ["relay-v0", "xor-v0"], "env": {"relay-v0": {"sweep_lr": [2e-3, 4e-3]}}}
    made = grid.build(table(**changes, sweep={"lr": [1e-3], "seeds": [9]}))
    tried: dict[tuple[str, str], set[float | None]] = {}
    for grid_run in grid_runs.expand(made, "sweep"):
        tried.setdefault((grid_run.algorithm, grid_run.env), set()).add(grid_run.lr)
    assert {env for _, env in tried} == {"relay-v0", "xor-v0"}
    assert all(rates == ({2e-3, 4e-3} if env == "relay-v0" else {1e-3}) for (_, env), rates in tried.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sedes": [0]}, "In the grid: There is no setting 'sedes'. Did you mean 'seeds'"),
        (
            {"env": {"relay-v0": {"singel": "x"}}},
            r"In \[env.relay-v0\]: There is no setting 'singel'. Did you mean 'single'",
        ),
        ({"sweep": {"lr": [1e-3]}}, r"In \[sweep\]: 'seeds' is not there, and has no default"),
        ({"token_budget": "many"}, "'token_budget' cannot be 'many'"),
        ({"token_budget": 0}, "expected at least 1"),
        ({"seeds": [0, 0]}, "none twice"),
        ({"controls": ["untraind"]}, "controls"),
        ({"algorithms": ["marft", "grpoo"]}, "no algorithm 'grpoo'. Did you mean 'grpo'"),
        ({"credit": ["brodcast"]}, "no credit rule 'brodcast'. Did you mean 'broadcast'"),
        ({"rule": {"last": {"rule": "last"}}}, r"\[rule.last\] is not in 'credit'"),
        ({"credit": ["priced"], "rule": {"priced": {"rule": "lastt"}}}, "Did you mean 'last'"),
        ({"algorithm": {"marft": {"on": {"relai-v0": {}}}}}, r"marft.on.relai-v0\] is not in 'envs'. Did you mean"),
        ({"baseline": "happo"}, "baseline 'happo' is in neither algorithms nor controls"),
        ({"reference": "relay"}, "reference 'relay' is not in .envs.. Did you mean"),
        ({"env": {"relai-v0": {}}}, r"\[env.relai-v0\] is not in 'envs'. Did you mean 'relay-v0'"),
        ({"env": {"relay-v0": {"trained_on": "xor-v0"}}}, "trained on 'xor-v0', which is no label"),
        ({"env": {"relay-v0": {"members": 1}}}, "two or more"),
        ({"sweep": {"lr": [1e-3], "seeds": [1]}}, "in both stages"),
        ({"env": {"relay-v0": {"sweep_lr": [1e-3]}}}, "has sweep_lr, and no sweep"),
    ],
)
def test_a_wrong_grid_says_what_is_wrong(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grid.build(table(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"envs": ["relai-v0"]}, "Did you mean 'relay-v0'"),
        ({"settings": {"eval_epsiodes": 3}}, "Did you mean 'eval_episodes'"),
        ({"settings": {"algorithm": {"epoch": 3}}}, "Did you mean 'epochs'"),
        ({"algorithm": {"grpo": {"settings": {"grup_size": 3}}}}, "Did you mean 'group_size'"),
        (
            {"algorithms": ["sft"], "baseline": "sft", "controls": [], "settings": {"algorithm": {"lr": 1e-3}}},
            r"none takes it from there.*\[algorithm.sft\] settings = { lr = … }",
        ),
    ],
)
def test_settings_that_no_run_could_have_are_errors_before_anything_runs(
    changes: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(**changes)


def test_a_grid_from_python_is_the_grid_of_the_file(tmp_path: Path) -> None:
    """Lists, ranges, tables and their dataclasses; the benchmark's folder keeps it as TOML."""
    made = grid.Grid(
        algorithms=["marft", "grpo"],
        envs=["relay-v0", "deaf"],
        token_budget=4000,
        seeds=range(3),
        settings={"eval_episodes": 7},
        env={
            "deaf": grid.EnvEntry(
                id="relay-v0", trained_on="relay-v0", settings={"env_kwargs": {"dependency": "independent"}}
            )
        },
        algorithm={"grpo": {"settings": {"group_size": 4}}},
        sweep={"lr": [1e-3], "seeds": [9]},  # type: ignore[arg-type]
    )
    assert made.seeds == (0, 1, 2) and made.algorithm["grpo"].settings == {"group_size": 4}
    bench = BenchFolder(tmp_path / "bench")
    bench.prepare(made.table())
    assert grid.load(bench.grid_file) == made == grid.build(made.table())
    assert [c.key for c in grid_runs.expand(grid.load(bench.grid_file), "sweep")] == [
        c.key for c in grid_runs.expand(made, "sweep")
    ]
    with pytest.raises(ConfigError, match="Did you mean 'grpo'"):
        grid.Grid(["grppo"], ["relay-v0"], 4000)
    with pytest.raises(ConfigError, match=r"Write: envs = \[\"relay-v0\"\]"):
        grid.Grid(["grpo"], "relay-v0", 4000)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no \[sweep\]"):
        grid.Grid(["grpo"], ["relay-v0"], 4000).run(tmp_path / "none", stage="sweep")


def test_a_folder_of_temporary_files_whose_name_is_too_long_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/" + "t" * 75)  # of 75 bytes a socket still fits
    with pytest.raises(ConfigError, match=r"76 bytes.*TMPDIR=/tmp marft bench run"):
        grid.Grid(["grpo"], ["relay-v0"], 4000).run(tmp_path / "none")
    assert not (tmp_path / "none").exists()
