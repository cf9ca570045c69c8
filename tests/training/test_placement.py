"""What every rank holds, its base whole or sharded: as the estimate says, and alike on all of them.

Counts are held against PEFT and brute force, memory against published models.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from helpers import families, published, runs
from helpers.thread_ranks import ThreadRank, together
from marft_algos.algorithms import base as algorithms
from marft_algos.config import presets
from marft_algos.config import settings as config
from marft_algos.config.settings import TrainConfig
from marft_algos.ranks.group import Alone
from marft_algos.ranks.reduction import USUAL
from marft_algos.training import environments, placement
from marft_algos.training.estimate import Estimate, Shape, shapes_of
from marft_algos.training.placement import RankMemory, placed, share_of_base, slot_sums, value_heads
from marft_algos.training.resolve import RunSpec, resolve
from marft_envs.errors import ConfigError

GIB = 2**30
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "pick_device", lambda name: GPU)
    monkeypatch.setattr(placement, "share", lambda device: 0)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TrainConfig]:
    """Settings of a run with a model of billions of parameters, of which there is only a configuration."""
    folder = tmp_path_factory.mktemp("models")

    def make(size: str, **changes: Any) -> TrainConfig:
        if not (folder / size).exists():
            published.save(folder, size)
        table = presets.get("default") | {"models": str(folder / size), "lora_r": 32} | changes
        return config.build(table)

    return make


def memory(made: TrainConfig, ranks: int) -> RankMemory:
    env = environments.make_env(made, made.env_kwargs)
    spec = resolve(made, env)
    return RankMemory(spec, env, shapes_of(spec, GPU), ranks, GPU)


def sizes(estimate: Estimate) -> dict[str, int]:
    return {item.what: item.bytes for item in estimate.held}


def shape_of(made: TrainConfig) -> Shape:
    assert isinstance(made.models, str)
    return Shape.of(made.models, made, torch.bfloat16)


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
    env = environments.make_env(made, made.env_kwargs)
    spec = resolve(made, env)

    one_by_one = threading.Lock()  # transformers changes torch's default type while it makes a model

    def one(rank: ThreadRank) -> tuple[RunSpec, str]:
        with one_by_one, pytest.MonkeyPatch.context() as patch:
            patch.setattr(rank, "gather", lambda own: list(rooms))
            return placed(spec, env, rank, loaded=loaded)

    return together(len(rooms), one)


def peaks(made: TrainConfig) -> tuple[int, int]:
    """The bytes that a rank of two takes with a whole base and with a share."""
    it = memory(made, 2)
    return it.held("whole").peak, it.held("base").peak


# Where the base is --------------------------------------------------------------------------------------


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
    env = environments.make_env(made, made.env_kwargs)
    with pytest.raises(ConfigError, match="Type: --nproc 2, or --shard auto"):
        placed(resolve(made, env), env, Alone())


@pytest.mark.parametrize(
    ("other", "said"), [({"full_finetune": True}, "--full-finetune"), ({"quantize": "nf4"}, "nf4")]
)
def test_a_base_that_cannot_be_sharded_is_refused_with_the_settings(other: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match="--shard"):
        config.build({"shard": "base", **other})
    assert config.build(other).shard == "auto", said


@pytest.mark.parametrize("changes", [{"quantize": "nf4"}, {"full_finetune": True}])
def test_only_a_frozen_unquantised_base_is_sharded(changes: dict[str, Any], large: Callable[..., TrainConfig]) -> None:
    assert memory(large("7B", **changes), 4).shards() == ["whole"]
    assert memory(large("7B"), 4).shards() == ["whole", "base"]


def test_a_base_whose_layers_are_not_known_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, of = settings(tmp_path, shard="base"), placement.shapes_of
    monkeypatch.setattr(
        placement, "shapes_of", lambda *a: {name: replace(shape, blocks=0) for name, shape in of(*a).items()}
    )
    with pytest.raises(ConfigError, match="Type: --shard whole"):
        place(made, 1 << 40, 1 << 40)
    assert {shard for _, shard in place(config.build({"shard": "auto"}, made), 1 << 40, 1 << 40)} == {"whole"}


def test_smaller_pieces_come_before_a_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = settings(tmp_path, engine_batch=256, episodes_per_iteration=256, fit_memory=True)
    whole = memory(made, 2).held("whole").peak
    found = place(made, whole - 1, 1 << 40)
    assert [shard for _, shard in found] == ["whole", "whole"] and found[0][0].config == found[1][0].config
    assert found[0][0].config != made and "GB would be needed" in capsys.readouterr().out


# What a rank holds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "r", "parameters"),
    [("7B", 8, 20_185_088), ("7B", 16, 40_370_176), ("7B", 32, 80_740_352), ("32B", 32, 268_435_456)],
)
def test_an_adapter_has_as_many_parameters_as_peft_gives_it(
    size: str, r: int, parameters: int, large: Callable[..., TrainConfig]
) -> None:
    made = large(size, lora_r=r)
    assert shape_of(made).adapter == parameters
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(published.config(size))
        adapted = get_peft_model(model, LoraConfig(r=r, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert sum(p.numel() for name, p in adapted.named_parameters() if "lora_" in name) == parameters


def test_a_rank_holds_a_sum_for_each_level_of_the_tree_of_its_lanes() -> None:
    def deepest(reduction: int) -> int:
        """Adds lanes up one after the other, always the two of one level; returns the most sums held before a lane."""
        held: list[int] = []
        most = 0
        for _ in range(reduction):
            most, level = max(most, len(held)), 0
            while held and held[-1] == level:
                held.pop()
                level += 1
            held.append(level)
        return most

    for ranks in (2, 4, 8, 16, 64):
        assert slot_sums(ranks) == max(deepest(max(USUAL, ranks) // ranks) + 1, 2), "its own and a partner's, at least"


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_layers_of_a_model_are_told_from_its_embeddings(name: str, tmp_path: Path) -> None:
    folder = families.save(tmp_path / "model", name)
    model = AutoModelForCausalLM.from_pretrained(folder)
    shape = Shape.of(str(folder), runs.settings(folder, tmp_path), torch.float32)
    assert shape.blocks == sum(p.numel() * 4 for n, p in model.named_parameters() if ".layers." in n)
    assert 0 < shape.blocks < shape.weights


@pytest.mark.parametrize(
    ("size", "whole", "sharded"), [("7B", 19, 8), ("14B", 36, 14), ("32B", 77, 26), ("72B", 161, 46)]
)
def test_what_a_rank_of_eight_holds_of_known_models(
    size: str, whole: int, sharded: int, large: Callable[..., TrainConfig]
) -> None:
    """GiB of a base in bf16 and four adapters of rank 32 with Adam, 16 bytes a parameter."""
    shape = shape_of(large(size))
    adapters = 4 * 16 * shape.adapter
    share, rest, gathered = share_of_base([shape], 8)
    assert round((shape.weights + adapters) / GIB) == whole
    assert round((share.bytes + rest.bytes + adapters) / GIB) == sharded
    assert gathered.bytes == pytest.approx(2 * shape.blocks / published.SHAPES[size]["num_hidden_layers"], abs=2)


def test_ranks_share_episodes_and_hold_adapters_whole(large: Callable[..., TrainConfig]) -> None:
    made = large("7B", episodes_per_iteration=64, eval_episodes=64)
    two, four = (memory(made, ranks).held("whole") for ranks in (2, 4))
    assert sizes(two).keys() == sizes(four).keys()
    assert sizes(two)["adapters, and Adam"] == sizes(four)["adapters, and Adam"] == 18 * 2 * 80_740_352
    assert sizes(two)["features for the value heads"] == 2 * sizes(four)["features for the value heads"] > 0
    assert (two.work.rows, four.work.rows) == (32, 16)
    assert sizes(four)["sums of gradients, by reduction slots"] == 2 * 4 * 80_740_352
    hidden = published.SHAPES["7B"]["hidden_size"]
    heads = torch.nn.Sequential(torch.nn.Linear(hidden, 64), torch.nn.Linear(64, 1))
    it = memory(made, 4)
    assert value_heads(it.spec, it.shapes) == 2 * sum(p.numel() for p in heads.parameters())


def test_a_frozen_policy_adds_no_gradients_and_a_whole_one_all_of_its_own(large: Callable[..., TrainConfig]) -> None:
    found = [{"frozen": ("reasoner_0",)}, {"frozen": ("reasoner_0", "actor_0")}, {"full_finetune": True}]
    sums = [
        sizes(memory(large("7B", **changes), 4).held("whole"))["sums of gradients, by reduction slots"]
        for changes in found
    ]
    assert sums == [2 * 4 * 80_740_352, 0, 2 * 4 * 7_615_616_512], "parameters of the model, as its card says"


def test_ranks_gather_the_layers_to_play(large: Callable[..., TrainConfig]) -> None:
    it = memory(large("7B"), 4)
    whole, shared = (it.held(shard).phases["rollout"] for shard in ("whole", "base"))
    assert shared[0].bytes == shape_of(large("7B")).blocks and shared[1:] == whole


def test_every_algorithm_is_estimated() -> None:
    assert len(algorithms.names()) >= 20
    for name in algorithms.names():
        it = memory(config.build({"algo": name, "models": "embedded", "env": "relay-v0"}), 2)
        heads = sizes(it.held("whole"))["value heads, and Adam"]
        assert bool(heads) == (algorithms.get(name)(it.spec.config.algorithm).view != "none"), name
