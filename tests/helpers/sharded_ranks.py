"""One rank that trains a random team with each of some algorithms, its base whole or sharded, and writes what came of it.

python sharded_ranks.py OUT MODEL whole|base LANES ALGORITHM...
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.teams import put
from helpers.updates import SETTINGS, data_for
from marft_algos.algorithms import base as algorithm
from marft_algos.engines.native import NativeEngine
from marft_algos.learner.learner import Learner
from marft_algos.models.critic import Critics
from marft_algos.models.layers import layers_of
from marft_algos.models.loading import ModelSettings
from marft_algos.models.policy import LoraSettings, PolicySet
from marft_algos.ranks import group as ranks
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.types import GenerationRequest, SamplingParams, Trajectory
from marft_envs.errors import ConfigError

TEAM = ("a0", "a1", "a2", "a3", "idle")
"""Policies; nobody plays with the last one, and ``a3`` is in some episodes only."""
GATHERS = ("all_gather_single", "all_gather_into_tensor")
"""What FSDP2 gathers layers with, by the version of torch."""
CALLS: Counter[str] = Counter()


def count() -> None:
    """Counts what this rank says to the others, and how often it gathers a layer."""
    for owner, names in ((dist, GATHERS), (ranks.Ranks, ("add", "gather", "agree", "first"))):
        for name in names:
            if (call := getattr(owner, name, None)) is not None:
                setattr(owner, name, counted(name, call))


def counted(name: str, call: Any) -> Any:
    def counts(*args: Any, **kwargs: Any) -> Any:
        CALLS[name] += 1
        return call(*args, **kwargs)

    return counts


def scored(data: list[Trajectory], policies: PolicySet) -> list[Trajectory]:
    for d in data:
        for t in (*d.transitions, *d.candidates):
            put(t, trainable=True)
            put(t.reply, version=policies.version)
    return data


def build(model: str, group: ranks.RankGroup, shard: str, **changes: Any) -> PolicySet:
    team = {name: name for name in TEAM}
    shards = group if shard == "base" else None
    lora = LoraSettings(targets=("q_proj", "down_proj"))
    return PolicySet.build(model, team, lora=lora, dtype="fp32", device="cpu", seed=1, shards=shards, **changes)


def train(
    name: str,
    model: str,
    group: ranks.RankGroup,
    shard: str,
    reduction: int,
    *,
    checkpointing: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Three updates: of many rows; of two episodes, so that most ranks have none; and one that stops by its KL."""
    kind = algorithm.get(name)
    settings = {"lr": 1e-3, "minibatches": 2, "micro_tokens": 64, "old_logprobs": "learner", "ratio_tolerance": 1e9}
    known = {**settings, **SETTINGS.get(name, {}), **more}
    config = kind.Config(**{key: value for key, value in known.items() if key in kind.Config.__dataclass_fields__})
    policies = build(model, group, shard, settings=ModelSettings(gradient_checkpointing=checkpointing))
    made = kind(config, SamplingParams(max_new_tokens=8))
    critics = None if made.view == "none" else Critics(policies)
    learner = Learner(made, policies, critics, 3, ReductionSlots(group, reduction, sharded=policies.sharded))
    stops = not made.imitates and config.epochs * config.minibatches > 1  # before the first step nothing has moved
    before, passes, stopped = Counter(CALLS), [], False
    for iteration, episodes in enumerate((8, 2 if made.prefers else 4, 4)):
        if iteration == 2 and stops:
            object.__setattr__(config, "kl_stop", 1e-12)
        metrics = learner.update(scored(data_for(name, iteration)[:episodes], policies), iteration)
        stopped |= any(value for key, value in metrics.items() if key.endswith("kl_stopped"))
        policies.version += 1
        passes.append(dict(CALLS - before))
    state = policies.state_dict() | ({} if critics is None else {f"v/{k}": v for k, v in critics.state_dict().items()})
    return {"calls": passes, "stops": stops, "stopped": stopped, "state": state}


def played(model: str, group: ranks.RankGroup, shard: str) -> dict[str, Any]:
    """What an engine says awake and asleep, and how many numbers this rank holds then."""
    policies = build(model, group, shard)
    for policy in TEAM[:2]:
        for i, tensor in enumerate(policies.parameters(policy)):
            tensor.data.normal_(std=0.1, generator=torch.Generator().manual_seed(i))
    engine = NativeEngine(policies)
    requests = [GenerationRequest(policy, [5, 6, 7 + i], i) for i, policy in enumerate(TEAM[:2] * 2)]
    params, found = SamplingParams(max_new_tokens=6), dict[str, Any]()
    for when in ("first", "again"):
        replies = engine.generate(requests, params)
        found[when] = [(reply.action_ids, reply.logprobs.tolist()) for reply in replies]
        found["awake"] = held(policies)
        engine.sleep()
        found["asleep"] = held(policies)
        try:
            engine.generate(requests, params)
        except ConfigError as error:
            found["refused"] = str(error)
        engine.wake()
    ids = torch.arange(24).view(2, 12)
    rows = ids[: 1 + group.rank % 2].tolist()  # another number of them on every other rank
    found["features"] = policies.features("a0", rows, [range(12)] * len(rows))[0]
    layers = layers_of(policies.base("a0").model)
    found |= {"layers": len(layers), "in layers": sum(p.numel() for p in layers.parameters())}
    found["reference"] = policies.reference_logprobs("a0", ids, ids > 3)
    return found


def held(policies: PolicySet) -> int:
    """Counts the numbers that this rank keeps of base models and adapters, whichever modules they are in."""
    weights = policies.weights("a0")
    trees = [weights.base.model, weights.peft, *(base._peft for base in policies._sharded.values())]
    tensors = [getattr(p, "_local_tensor", p) for tree in trees if tree is not None for p in tree.parameters()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // 4 for t in tensors}.values())


def main(out: str, model: str, shard: str, reduction: str, *names: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    count()
    group: ranks.RankGroup = (
        ranks.join(120.0, torch.device("cpu")) if int(os.environ["WORLD_SIZE"]) > 1 else ranks.Alone()
    )
    found: dict[str, Any] = {"played": played(model, group, shard)}
    for name in names:
        kind, _, option = name.partition("+")
        found[name] = train(kind, model, group, shard, int(reduction), checkpointing=option == "checkpointing")
    torch.save(found, Path(out) / f"{group.rank}.pt")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
