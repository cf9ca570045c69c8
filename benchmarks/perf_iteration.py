"""A whole iteration of MARFT against a plain implementation in the shape of released code (``benchmarks/plain.py``).

::

    python -m benchmarks perf_iteration

2 agents, 8 episodes, 64 new tokens, 4 layers, hidden 128, vocabularies of 1,024 and 32,768, both levels. The reasoner
reads 48 prompt tokens, the actor 48 and the reasoner's reply. Rollout, credit, one epoch of policies and critics.
CPU seconds of one thread, runs in turn. Memory: the most that torch held at once above what it held before, while the
policies were updated (measured apart from the times, by the profiler).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import shapes
from benchmarks.paired import in_turn, publish, ratios
from benchmarks.plain import PlainEngine, PlainMARFT
from marft_algos.algos.marft import MARFT, MARFTConfig
from marft_algos.batching import Level
from marft_algos.critic import Critics
from marft_algos.engines import NativeEngine, row_seed
from marft_algos.engines.base import RolloutEngine
from marft_algos.policy import PolicySet
from marft_algos.types import GenerationRequest, LayerReward, SamplingParams, Trajectory, Transition
from marft_algos.update import Learner

PROMPT = 48
COLUMNS = [
    "vocabulary",
    "level",
    "plain, s",
    "marft, s",
    "plain / marft",
    "without its discarded pass",
    "rollout",
    "update",
    "plain, MB",
    "marft, MB",
]


def play(
    engine: RolloutEngine, policies: list[str], episodes: int, new: int, iteration: int, prompt: int = PROMPT
) -> list[Trajectory]:
    """One round of a chain of agents on random prompts: each reads its own prompt and the reply before it."""
    generator = torch.Generator().manual_seed(iteration)
    prompts = torch.randint(40, 400, (len(policies), episodes, prompt), generator=generator).tolist()
    turns: list[list[Transition]] = [[] for _ in range(episodes)]
    for i, policy in enumerate(policies):
        asked = [
            GenerationRequest(
                policy,
                prompts[i][e] + (turns[e][-1].action_ids if turns[e] else []),
                row_seed(0, iteration, e, i),
            )
            for e in range(episodes)
        ]
        for e, reply in enumerate(engine.generate(asked, SamplingParams(max_new_tokens=new))):
            turns[e].append(
                Transition(
                    index=i, round=0, layer=i, agent=policy, role=policy, policy=policy, sees=tuple(range(i)),
                    prompt_ids=asked[e].prompt_ids, action_ids=reply.action_ids, logprobs=reply.logprobs,
                    text=reply.text, stop_reason=reply.stop_reason, version=reply.version,
                )
            )  # fmt: skip
    return [
        Trajectory(
            episode=e, seed=e, task_id=str(e), transitions=own, terminated=True, truncated=False, success=False,
            score=float(e % 2),
            layers=[LayerReward((i,), float(e % 2) * (i == len(own) - 1), {}) for i in range(len(own))],
        )
        for e, own in enumerate(turns)
    ]  # fmt: skip


def peak(run: Callable[[], Any]) -> int:
    """Returns the most bytes that torch held at once during a call, beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    held, most = 0, 0
    for event in sorted(found.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def build(model: str, agents: Sequence[str]) -> PolicySet:
    """Returns a policy for each agent, whose replies have no end."""
    policies = PolicySet.build(model, {agent: agent for agent in agents}, device="cpu")
    for policy in policies.policies:
        policies.base(policy).end_ids = ()
    return policies


def learner(model: str, level: Level, agents: Sequence[str]) -> tuple[NativeEngine, Learner]:
    """Returns this project's engine and learner."""
    policies = build(model, agents)
    return NativeEngine(policies), Learner(MARFT(_config(level)), policies, Critics(policies))


def plain(model: str, level: Level, agents: Sequence[str]) -> tuple[PlainEngine, PlainMARFT]:
    """Returns the plain implementation's."""
    made = PlainMARFT(build(model, agents), _config(level))
    return PlainEngine(made), made


def _config(level: Level) -> MARFTConfig:
    return MARFTConfig(level=level, lr=1e-4)


def measure(folder: Path, vocabulary: int, level: Level, args: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    model = str(shapes.save(folder / f"{vocabulary}", shapes.tiny(128, 4, vocabulary)))
    agents = ["reasoner", "actor"]
    made: dict[str, tuple[Any, Any]] = {"plain": plain(model, level, agents), "marft": learner(model, level, agents)}
    iteration = {"plain": 0, "marft": 0}

    spent: dict[str, list[tuple[float, float, float]]] = {"plain": [], "marft": []}

    def run(name: str) -> None:
        engine, learning = made[name]
        before, start = getattr(learning, "discarded", 0.0), time.process_time()
        played = play(engine, agents, args.episodes, args.new, iteration[name])
        middle = time.process_time()
        learning.update(played, iteration[name])
        end, thrown = time.process_time(), getattr(learning, "discarded", 0.0) - before
        spent[name].append((middle - start, end - middle, end - start - thrown))
        iteration[name] += 1

    seconds = in_turn({name: partial(run, name) for name in made}, args.repeats)
    rollout, update, needed = ({name: [part[i] for part in spent[name][1:]] for name in made} for i in range(3))
    memory = {}
    for name, (engine, learning) in made.items():
        played = play(engine, agents, args.episodes, args.new, 0)
        memory[name] = peak(partial(learning.update, played, iteration[name])) / 1e6
    return {
        "vocabulary": vocabulary,
        "level": level,
        "plain, s": sorted(seconds["plain"])[args.repeats // 2],
        "marft, s": sorted(seconds["marft"])[args.repeats // 2],
        "plain / marft": ratios(seconds, "plain", "marft"),
        "without its discarded pass": ratios(needed, "plain", "marft"),
        "rollout": ratios(rollout, "plain", "marft"),
        "update": ratios(update, "plain", "marft"),
        "plain, MB": round(memory["plain"]),
        "marft, MB": round(memory["marft"]),
        "seconds": seconds,
    }


def main() -> None:
    """Prints the table and writes perf_iteration.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[1024, 32768])
    parser.add_argument("--levels", nargs="+", default=["token", "action"])
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for vocabulary in args.vocabularies:
            for level in args.levels:
                rows.append(measure(Path(folder), vocabulary, level, args))
                publish("perf_iteration", rows, COLUMNS, args.out)


if __name__ == "__main__":
    main()
