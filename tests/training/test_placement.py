"""Where the base of several ranks is whole, and where it is sharded: as the estimate says, and alike on all of them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from helpers import published
from helpers.thread_ranks import ThreadRank, together
from marft_algos.config import presets
from marft_algos.config import settings as config
from marft_algos.config.settings import TrainConfig
from marft_algos.ranks.group import Alone
from marft_algos.training import placement, setup
from marft_algos.training.placement import placed
from marft_algos.training.plan import GPU
from marft_algos.training.resolve import RunSpec, resolve
from marft_envs.errors import ConfigError


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "pick_device", lambda name: GPU)
    monkeypatch.setattr(placement, "share", lambda device: 0)


def settings(tmp_path: Path, **changes: object) -> TrainConfig:
    """Of a run with a model of which there is only a configuration."""
    if not (tmp_path / "7B").exists():
        published.save(tmp_path, "7B")
    table = presets.get("default") | {"models": str(tmp_path / "7B"), "dtype": "bf16", "fit_memory": False}
    # Few rows and activations: else these decide, and whole bases keep less of them.
    table |= {"gradient_checkpointing": True, "engine_batch": 8}
    return config.build(table | changes)


def place(made: TrainConfig, *rooms: int, loaded: bool = False) -> list[tuple[RunSpec, str]]:
    """What ranks with so many bytes each decide."""
    env = setup.make_env(made, made.env_kwargs)
    spec = resolve(made, env)

    one_by_one = threading.Lock()  # transformers changes torch's default type while it makes a model

    def one(rank: ThreadRank) -> tuple[RunSpec, str]:
        with one_by_one, pytest.MonkeyPatch.context() as patch:
            patch.setattr(rank, "gather", lambda own: list(rooms))
            return placed(spec, env, rank, loaded=loaded)

    return together(len(rooms), one)


def peaks(made: TrainConfig) -> tuple[int, int]:
    """The bytes that a rank of two takes with a whole base and with a share, ."""
    env = setup.make_env(made, made.env_kwargs)
    spec = resolve(made, env)
    it = placement.planner_of(spec, env, 0)
    both = [it.plan(placement.ProcessLayout(2, 2, per_node=2), shard).rank.peak for shard in ("whole", "base")]
    return both[0], both[1]


def test_the_base_is_sharded_where_a_whole_one_does_not_fit_the_smallest_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = settings(tmp_path)
    whole, share = peaks(made)
    assert share < whole
    large = 1 << 40
    assert [shard for _, shard in place(made, large, large)] == ["whole", "whole"]
    assert "sharded" not in capsys.readouterr().out
    assert [shard for _, shard in place(made, large, (whole + share) // 2)] == ["base", "base"]
    assert "the base is sharded" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="This run needs about"):
        place(made, large, share // 2)
    assert [shard for _, shard in place(config.build({"check_memory": False}, made), 1, 1)] == ["whole", "whole"]


def test_what_is_said_counts(tmp_path: Path) -> None:
    asked = settings(tmp_path, shard="base")
    assert {shard for _, shard in place(asked, 1 << 40, 1 << 40)} == {"base"}
    assert {shard for _, shard in place(config.build({"check_memory": False}, asked), 1, 1)} == {"base"}
    assert {shard for _, shard in place(config.build({"shard": "auto"}, asked), 1, 1, loaded=True)} == {"whole"}
    whole = config.build({"shard": "whole"}, asked)
    with pytest.raises(ConfigError, match="This run needs about"):
        place(whole, *[peaks(whole)[1]] * 2)


def test_one_process_has_nobody_to_share_with(tmp_path: Path) -> None:
    made = settings(tmp_path, shard="base")
    env = setup.make_env(made, made.env_kwargs)
    with pytest.raises(ConfigError, match="Type: --nproc 2, or --shard auto"):
        placed(resolve(made, env), env, Alone())


@pytest.mark.parametrize(
    ("other", "said"), [({"full_finetune": True}, "--full-finetune"), ({"quantize": "nf4"}, "nf4")]
)
def test_a_base_that_cannot_be_sharded_is_refused_with_the_settings(other: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match="--shard"):
        config.build({"shard": "base", **other})
    assert config.build(other).shard == "auto", said
