"""Plans for several GPUs: counts against PEFT and brute force, memory against published models, bytes against pickles."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from helpers import families, published, runs
from helpers.marks import rest_in_ci
from marft_algos.algorithms import base as algorithms
from marft_algos.config import presets
from marft_algos.config import settings as config
from marft_algos.config.settings import TrainConfig
from marft_algos.ranks.lanes import USUAL
from marft_algos.rollout.collector import Collector
from marft_algos.training import setup
from marft_algos.training.estimate import GB, Shape, shapes_of
from marft_algos.training.layout import ProcessLayout, layouts, most_workers
from marft_algos.training.parts import build
from marft_algos.training.plan import (
    GPU,
    MemoryPlanner,
    episode_bytes,
    gathered_bytes,
    gradient_bytes,
    lane_sums,
    share_of_base,
    updates,
    value_heads,
)
from marft_algos.training.resolve import resolve
from marft_algos.types import Generation, GenerationRequest, StopReason, Trajectory
from marft_envs.errors import ConfigError

GIB = 2**30
ROOM = 80 * int(GB)


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


def planner(made: TrainConfig, room: int = ROOM, **more: Any) -> MemoryPlanner:
    env = setup.make_env(made, made.env_kwargs)
    spec = resolve(made, env)
    return MemoryPlanner(spec, env, shapes_of(spec, GPU), room, **more)


def shape_of(made: TrainConfig) -> Shape:
    assert isinstance(made.models, str)
    return Shape.of(made.models, made, torch.bfloat16)


# What crosses the wire --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "r", "parameters"),
    rest_in_ci([("7B", 8, 20_185_088), ("7B", 16, 40_370_176), ("7B", 32, 80_740_352), ("32B", 32, 268_435_456)]),
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


def test_every_trained_policy_publishes_its_adapter_and_frozen_ones_nothing(large: Callable[..., TrainConfig]) -> None:
    both = planner(large("32B"))
    listed = updates(both.spec, both.shapes)
    assert [u.policy for u in listed] == ["reasoner_0", "actor_0"]
    assert {(u.fp32, u.bf16) for u in listed} == {(1_073_741_824, 536_870_912)}
    one = planner(large("32B", frozen=("reasoner_0",)))
    assert [u.policy for u in updates(one.spec, one.shapes)] == ["actor_0"]
    whole = planner(large("7B", full_finetune=True))
    assert {u.parameters for u in updates(whole.spec, whole.shapes)} == {7_615_616_512}, "as the model's card says"


def test_gradients_go_to_one_partner_a_level(large: Callable[..., TrainConfig]) -> None:
    it = planner(large("7B"))
    [first, _] = updates(it.spec, it.shapes)
    for ranks in (1, 2, 4, 8, 64):
        partners = {bit for bit in range(10) if 1 << bit < ranks}  # rank ^ 1, 2, 4 …
        assert gradient_bytes(first, ranks) == len(partners) * first.fp32


def test_a_rank_receives_the_layers_that_it_does_not_hold(large: Callable[..., TrainConfig]) -> None:
    shape = shape_of(large("7B"))
    for ranks in (1, 2, 3, 8):
        held = share_of_base([shape], ranks)[0].bytes
        assert held + gathered_bytes(shape, ranks) == shape.blocks
        assert shape.blocks <= ranks * held < shape.blocks + ranks


def test_a_rank_holds_a_sum_for_each_level_of_the_tree_of_its_lanes() -> None:
    def deepest(lanes: int) -> int:
        """Adds lanes up one after the other, always the two of one level; returns the most sums held before a lane."""
        held: list[int] = []
        most = 0
        for _ in range(lanes):
            most, level = max(most, len(held)), 0
            while held and held[-1] == level:
                held.pop()
                level += 1
            held.append(level)
        return most

    assert lane_sums(1) == 0, "one process adds pieces into the gradient, as ever"
    for ranks in (2, 4, 8, 16, 64):
        assert lane_sums(ranks) == max(deepest(max(USUAL, ranks) // ranks) + 1, 2), "its own and a partner's, at least"


@pytest.mark.parametrize(("env", "preset"), [("math-dual-v0", "quickstart"), ("math-debate-v0", "quickstart"),
                                             ("relay-v0", "toy")])  # fmt: skip
def test_an_episode_has_the_bytes_of_the_formula(env: str, preset: str, tmp_path: Path) -> None:
    table = presets.get(preset) | {"env": env, "runs_dir": str(tmp_path), "device": "cpu"}
    table["env_kwargs"] = {} if env == "relay-v0" else {"levels": [0]}
    parts = build(config.build(table))
    import marft_envs

    vec = marft_envs.make_vec(env, 8, **table["env_kwargs"])
    collector = Collector(vec, parts.policies.renderer, parts.engine, setup.sampling(parts.config), seed=0)
    panel = parts.problems.train(0, 0, 8)
    played = collector.collect(panel.seeds, panel.options, iteration=0)
    measured = len(pickle.dumps(played)) / len(played)
    turns = [t for trajectory in played for t in trajectory.transitions]
    prompt = sum(len(t.request.prompt_ids) for t in turns) / len(turns)
    reply = sum(len(t.reply.action_ids) for t in turns) / len(turns)
    each = len(turns) // len(played)
    found = episode_bytes(each, round(prompt), round(reply), 1024)
    assert found == pytest.approx(measured, rel=0.3)
    assert env != "math-dual-v0" or 1100 < measured < 1700, "1.4 kB, as docs/planning.md says"

    # The same episodes with the tokens and texts of a large model.
    long = [_long(trajectory, 400, 600) for trajectory in played]
    assert episode_bytes(each, 400, 600, 152_064) == pytest.approx(len(pickle.dumps(long)) / len(long), rel=0.1)


def _long(trajectory: Trajectory, prompt: int, reply: int) -> Trajectory:
    rng = np.random.default_rng(trajectory.number)
    transitions, records = [], []
    for t in trajectory.transitions:
        ids = rng.integers(1 << 16, 152_064, prompt + reply).tolist()
        text = "".join(rng.choice(list("abcdefgh"), 4 * reply))
        messages = [{"role": "user", "content": "".join(rng.choice(list("abcdefgh"), 4 * prompt))}]
        record = dataclasses.replace(t.turn, text=text)
        request = GenerationRequest(t.policy, ids[:prompt], 0, t.agent, messages)
        answer = Generation(ids[prompt:], rng.random(reply, np.float32), StopReason.EOS, 0, text)
        transitions.append(dataclasses.replace(t, turn=record, request=request, reply=answer))
        records.append(record)
    episode = dataclasses.replace(trajectory.episode, turns=records)
    return dataclasses.replace(trajectory, episode=episode, transitions=transitions)


# What fits ----------------------------------------------------------------------------------------------


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
    it = planner(large("7B", episodes_per_iteration=64, eval_episodes=64))
    alone, four = (it.rank(ProcessLayout(8, n), "whole") for n in (1, 4))
    sizes = [{item.what: item.bytes for item in est.held} for est in (alone, four)]
    assert sizes[0].keys() == sizes[1].keys()
    assert sizes[0]["adapters, and Adam"] == sizes[1]["adapters, and Adam"] == 18 * 2 * 80_740_352
    assert sizes[0]["features for the value heads"] == 4 * sizes[1]["features for the value heads"] > 0
    assert (alone.work.rows, four.work.rows) == (64, 16)
    assert sizes[0]["sums of gradients, by lanes"] == 0
    assert sizes[1]["sums of gradients, by lanes"] == 2 * 4 * 80_740_352
    hidden = published.SHAPES["7B"]["hidden_size"]
    heads = torch.nn.Sequential(torch.nn.Linear(hidden, 64), torch.nn.Linear(64, 1))
    assert value_heads(it.spec, it.shapes) == 2 * sum(p.numel() for p in heads.parameters())


def test_what_leaves_the_playing_to_workers_does_not_decode(large: Callable[..., TrainConfig]) -> None:
    it = planner(large("7B"))
    assert "rollout" in it.rank(ProcessLayout(8, 4), "whole").phases
    assert "rollout" not in it.rank(ProcessLayout(8, 4, 4), "whole").phases
    assert list(it.worker(ProcessLayout(8, 4, 4)).phases) == ["rollout"]
    one, two = (it.worker(ProcessLayout(8, 4, 2, n)) for n in (1, 2))
    assert two.held[0].bytes * 2 == one.held[0].bytes == 2 * 7_615_616_512
    fresh, stale = (planner(large("7B"), staleness=k).worker(ProcessLayout(8, 4, 4)).held[1].bytes for k in (0, 2))
    assert stale == 2 * fresh == 4 * 2 * 2 * 80_740_352, "versions, policies, bytes"


def test_the_base_is_sharded_where_it_does_not_fit_whole(large: Callable[..., TrainConfig]) -> None:
    small = planner(large("7B"))
    plan = small.best(layouts(8))
    assert (plan.layout.ranks, plan.layout.workers, plan.shard) == (8, 0, "whole")
    big = planner(large("32B"))
    plan = big.best(layouts(8))
    assert (plan.layout.ranks, plan.shard) == (4, "base") and plan.layout.workers >= 1
    assert plan.excess(ROOM) <= 0
    big.check(plan)
    whole = big.plan(plan.layout, "whole")
    assert whole.rank.peak > ROOM, "so it had to be"
    assert plan.rank.peak < whole.rank.peak


def test_a_plan_that_does_not_fit_says_what_would(large: Callable[..., TrainConfig]) -> None:
    it = planner(large("72B"), 40 * int(GB))
    plan = it.best(layouts(8))
    with pytest.raises(ConfigError, match=r"does not fit.*GB on 'cuda', which has 40 GB") as refused:
        it.check(plan)
    advice = re.search(r"--gpus (\d+) --ranks (\d+) --workers (\d+), the base sharded", str(refused.value))
    assert advice is not None
    gpus, ranks, workers = map(int, advice.groups())
    room = it.room
    assert it.plan(ProcessLayout(gpus, ranks, workers, plan.layout.worker_gpus), "base").rank.peak <= room
    assert it.plan(ProcessLayout(gpus, ranks // 2, workers, plan.layout.worker_gpus), "base").rank.peak > room, (
        "the least"
    )
    assert re.search(r"cards of [\d.]+ GB \(--memory\)", str(refused.value))


@pytest.mark.parametrize("changes", [{"quantize": "nf4"}, {"full_finetune": True}])
def test_only_a_frozen_unquantised_base_is_sharded(changes: dict[str, Any], large: Callable[..., TrainConfig]) -> None:
    it = planner(large("7B", **changes))
    assert it.shards(ProcessLayout(8, 4, 4)) == ["whole"]
    with pytest.raises(ConfigError, match="Type: --shard whole"):
        it.best(layouts(8), "base")
    plain = planner(large("7B"))
    assert plain.shards(ProcessLayout(8, 4, 4)) == ["whole", "base"]
    assert plain.shards(ProcessLayout(8, 8)) == ["whole", "base"] and plain.shards(ProcessLayout(8, 1, 4)) == ["whole"]


def test_ranks_that_play_gather_the_layers_for_it(large: Callable[..., TrainConfig]) -> None:
    it = planner(large("7B"))
    plays, learns = it.rank(ProcessLayout(8, 4), "base"), it.rank(ProcessLayout(8, 4, 4), "base")
    assert plays.phases["rollout"][0].bytes == shape_of(large("7B")).blocks
    assert plays.phases["rollout"][1:] == it.rank(ProcessLayout(8, 4), "whole").phases["rollout"]
    assert plays.held == learns.held and "rollout" not in learns.phases


def test_every_algorithm_is_planned() -> None:
    assert len(algorithms.names()) >= 20
    for name in algorithms.names():
        it = planner(config.build({"algo": name, "models": "embedded", "env": "relay-v0"}))
        plan = it.best(layouts(2))
        assert (plan.layout.ranks, plan.shard) == (2, "whole"), name
        heads = [item.bytes for item in plan.rank.held if item.what == "value heads, and Adam"]
        assert bool(heads[0]) == (algorithms.get(name)(it.spec.config.algorithm).view != "none"), name


# Who goes where -----------------------------------------------------------------------------------------


def test_processes_have_gpus_of_their_own_and_workers_one_node() -> None:
    seen = 0
    for gpus in (1, 2, 6, 8, 12, 24):
        for worker_gpus in (1, 2, 4):
            for per_node in (4, 8):
                for layout in layouts(gpus, None, None, worker_gpus, per_node):
                    used = [gpu for _, first, last in layout.places() for gpu in range(first, last + 1)]
                    assert len(used) == len(set(used)) and max(used) < gpus
                    for name, first, last in layout.places():
                        assert last - first + 1 == (1 if name.startswith("rank") else layout.worker_gpus)
                        assert first // per_node == last // per_node
                    assert len(layout.places()) == layout.ranks + layout.workers
                    seen += 1
    assert seen > 50


def test_the_table_of_places_counts_every_gpu_once() -> None:
    text = ProcessLayout(16, 4, 2, 4).table()
    assert text.splitlines() == [
        "  node 0  GPUs 0-3   ranks 0-3",
        "  node 0  GPUs 4-7   worker 0",
        "  node 1  GPUs 0-3   worker 1",
        "  node 1  4 of its GPUs are idle",
    ]
    assert ProcessLayout(6, 4).table().splitlines()[-1] == "  node 0  2 of its GPUs are idle"


def test_layouts_follow_what_was_asked_for() -> None:
    assert layouts(8, 8) == [ProcessLayout(8, 8)]
    assert layouts(8, 2, None, 1) == [ProcessLayout(8, 2, 6)], "those that are left play"
    assert layouts(8, 2, 0) == [ProcessLayout(8, 2)]
    assert layouts(8, None, 3, 2) == [ProcessLayout(8, 2, 3, 2)]
    assert layouts(1) == [ProcessLayout(1, 1)]
    assert layouts(8, None, None, 1) == [ProcessLayout(8, 8), ProcessLayout(8, 4, 4)]
    assert [(x.ranks, x.workers, x.worker_gpus) for x in layouts(12, None, None, 4)] == [
        (8, 0, 1),
        (4, 2, 4),
        (8, 1, 4),
    ]
    assert most_workers(16, 4, 8) == 1, "the rest of the first node is too small"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpus": 0}, "expected at least 1. On a CPU: marft train --dry-run"),
        ({"gpus": 8, "ranks": 6}, "expected a power of two.*--ranks 4 or --ranks 8"),
        ({"gpus": 8, "ranks": 16}, "Type: --ranks 8, or --gpus 16"),
        ({"gpus": 8, "ranks": 4, "workers": 5}, "room for 4: --workers 4"),
        ({"gpus": 8, "workers": 9}, "room for 7: --workers 7"),
        ({"gpus": 8, "worker_gpus": 16}, "Type: --worker-gpus 8"),
    ],
)
def test_processes_without_a_place_are_refused(asked: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        layouts(**asked)
