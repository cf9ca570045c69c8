"""Do the canonical solutions of HumanEval and MBPP pass all their tests in the sandbox?

::

    python -m benchmarks code_real --data FOLDER

FOLDER holds ``code/humaneval.jsonl`` and ``code/mbpp.jsonl``. What teams get that write them is tested beside the
environment. Leaves with status 1 if a solution fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import marft_envs
from benchmarks.runs import table
from marft_envs.families.code import CodeTask, Judge
from marft_envs.sandbox import Limits

PATIENT = Limits(cpu_s=60.0, wall_s=180.0, total_s=400.0)
"""For canonical solutions that take longer than an environment gives programs (mbpp/123 tries all divisors)."""


def canonical(task: CodeTask) -> tuple[list[str], list[str]]:
    """Runs every canonical solution; one that runs out of time runs again with ``PATIENT``.

    Returns:
        Entries of the table (passed in time, passed with patience, tests, seconds), and what failed for good.
    """
    in_time, failed = 0, list[str]()
    tests, start = 0, time.perf_counter()
    patient = Judge(task.judge.sandbox, PATIENT)
    for problem in task.problems:
        every = [*problem.public, *problem.hidden]
        tests += len(every)
        report = task.judge.report(problem, problem.solution, every)
        in_time += report.all_passed
        if "timeout" in report.counts:
            report = patient.report(problem, problem.solution, every)
        if not report.all_passed:
            failed.append(f"{problem.id}: {report.counts}")
    n = len(task.problems)
    entries = [f"{in_time} of {n}", f"{n - len(failed)} of {n}", str(tests), f"{time.perf_counter() - start:.1f}"]
    return entries, failed


def main() -> int:
    """Prints the table; 1 if a solution fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with code/humaneval.jsonl and code/mbpp.jsonl")
    parser.add_argument("--sandbox", default="auto", help="layer of the sandbox")
    args = parser.parse_args()
    rows, bad = [], list[str]()
    for name in ("humaneval", "mbpp"):
        path = str(args.data / "code" / f"{name}.jsonl")
        task = marft_envs.make("code-solo-v0", data=path, split="all", sandbox=args.sandbox).task
        assert isinstance(task, CodeTask)
        entries, failed = canonical(task)
        rows.append([name, task.judge.sandbox.layer, *entries])
        bad += failed
        given = task.judge.limits
    in_time, patient = (f"pass within {limits.cpu_s:g} s of CPU a test" for limits in (given, PATIENT))
    print(table(["canonical solutions", "sandbox", in_time, patient, "tests", "seconds"], rows), *bad, sep="\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
