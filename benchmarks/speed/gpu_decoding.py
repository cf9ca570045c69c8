"""Parts of ``python -m benchmarks gpu``: captured steps, many rows, short turns, groups."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.speed.perf_throughput import WARM, Bench
from benchmarks.team import Stage
from marft_algos.engines import NativeEngine
from marft_algos.types import Generation, GenerationRequest, SamplingParams

Rows = dict[str, Any]


def decoding(bench: Bench) -> Rows:
    """Captured steps of few and many rows; what is computed first does not count."""
    policy, rows, new = bench.policies.policies[0], Rows(), bench.args.new
    few = min(WARM, new // 2)
    for n in (bench.args.episodes, 4 * bench.args.episodes):
        prompts = [[5 + (7 * i * j + j) % 500 for j in range(bench.args.prompt)] for i in range(n)]
        requests = [GenerationRequest(policy, prompt, seed=i) for i, prompt in enumerate(prompts)]
        engine, spent = NativeEngine(bench.policies, n, decode_graph=bench.cuda), dict[int, float]()
        for tokens in (few, new):
            work = partial(engine.generate, requests, SamplingParams(tokens))
            work()
            spent[tokens] = bench.seconds(work)
        step = (spent[new] - spent[few]) / (new - few)
        rows[f"a step, ms, {n} rows"] = 1e3 * step
        rows[f"decoding tokens/s, {n} rows"] = n / step
        rows[f"share of decoding's roofline, {n} rows"] = n / step / bench.roof(n)
    return rows


def many_rows(bench: Bench) -> Rows:
    """A rollout of four times as many episodes, prompts and environment included."""
    n = 4 * bench.args.episodes
    with bench.stages(bench.cuda, n) as (_, stage):
        stage.play(0)
        return {f"rollout tokens/s, {n} episodes": 2 * n * bench.args.new / bench.seconds(partial(stage.play, 0))}


class Forgetful(NativeEngine):
    """Captures its steps anew for every batch."""

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """As the native engine does."""
        self._captured.clear()
        return super().generate(requests, params)


def short_turns(bench: Bench) -> Rows:
    """Four rounds of replies an eighth as long, with graphs that are kept and such as are captured every time."""
    args, seconds = bench.args, dict[str, float]()
    for what, kind in (("kept", NativeEngine), ("captured every time", Forgetful)):
        engine = kind(bench.policies, args.episodes, decode_graph=bench.cuda)
        stage = Stage(bench.policies, args.episodes, args.prompt, max(args.new // 8, 4), engine, rounds=4)
        stage.play(0)
        seconds[what] = bench.seconds(partial(stage.play, 0))
        stage.close()
    return {f"rollout of 4 rounds of short turns, s, graphs {what}": spent for what, spent in seconds.items()}


def groups(bench: Bench) -> Rows:
    """An update of groups of eight replies to a prompt, which is read once, or with each."""
    args, group, seconds = bench.args, min(8, bench.args.episodes), dict[str, float]()
    engine = NativeEngine(bench.policies, args.episodes, decode_graph=bench.cuda)
    stage = Stage(bench.policies, args.episodes, args.prompt, max(args.new // 4, 4), engine, profile=0.1)
    first = [played.transitions[0] for played in stage.play(0, group)]
    stage.close()
    text, kept = bench.policies.forward_pass(first[0].policy)._text, bench.turns
    assert text is not None
    bench.use(first)
    try:
        for what, shared in (("once", True), ("with each", False)):
            text._shares = shared
            bench.update(shared)
            seconds[what] = statistics.median(bench.seconds(partial(bench.update, shared)) for _ in range(args.repeats))
    finally:
        text._shares = True
        bench.use(kept)
    return {f"update of groups of {group}, s, prompts read {what}": spent for what, spent in seconds.items()}
