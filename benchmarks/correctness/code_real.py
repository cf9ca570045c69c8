"""Real programming problems through the sandbox: canonical solutions, and scripted teams on ``code-reflect-v0``.

::

    python -m benchmarks code_real --data FOLDER

FOLDER holds ``code/humaneval.jsonl`` and ``code/mbpp.jsonl``. Every canonical solution has to pass all its tests. A
team that writes it at once scores 1 in one round, a team that first writes a wrong program scores 1 in two, and a team
that never writes it scores 0 in three. Leaves with status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import marft_envs
from benchmarks.runs import table
from marft_envs import FlexEnv
from marft_envs.core.types import Episode
from marft_envs.families.code import CodeTask, Judge
from marft_envs.sandbox import Limits

SETS = ("humaneval", "mbpp")
PATIENT = Limits(cpu_s=60.0, wall_s=180.0, total_s=400.0)
"""For canonical solutions that take longer than an environment gives programs (mbpp/123 tries all divisors)."""
WRONG = "raise RuntimeError"
SCRIPTS = {"gold at once": ("gold",), "wrong, then gold": ("wrong", "gold"), "never right": ("wrong",)}
"""What the coder writes, the last of it again and again; and with it the score and the rounds to expect."""
EXPECTED = {"gold at once": (1.0, 1.0), "wrong, then gold": (1.0, 2.0), "never right": (0.0, 3.0)}


def task_of(env: FlexEnv) -> CodeTask:
    """The environment's task, which is one of programs."""
    assert isinstance(env.task, CodeTask)
    return env.task


def play(env: FlexEnv, task_id: str, script: tuple[str, ...]) -> Episode:
    """Plays one episode; the reflector's words do not matter."""
    env.reset(seed=0, options={"task_id": task_id})
    spoken = 0
    while not env.done:
        text = "Mend it."
        if env.profile(env.agent_selection).with_answer:
            which = script[min(spoken, len(script) - 1)]
            text = f"```python\n{task_of(env).gold() if which == 'gold' else WRONG}\n```"
            spoken += 1
        env.step(text)
    return env.episode


def rounds_of(env: FlexEnv, task_id: str, rounds: float) -> float:
    """Rounds to expect: without public tests, which would end the episode, all are played."""
    return rounds if task_of(env).problems.get(task_id).public else float(env.rules.max_rounds)


def canonical(task: CodeTask) -> tuple[list[str], list[str]]:
    """Runs every canonical solution; one that runs out of time runs again with ``PATIENT``.

    Returns:
        Cells of the table (passed in time, passed with patience, tests, seconds), and what failed for good.
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
    cells = [f"{in_time} of {n}", f"{n - len(failed)} of {n}", str(tests), f"{time.perf_counter() - start:.1f}"]
    return cells, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with code/humaneval.jsonl and code/mbpp.jsonl")
    parser.add_argument("--episodes", type=int, default=50, help="problems per set and script")
    parser.add_argument("--sandbox", default="auto", help="layer of the sandbox")
    args = parser.parse_args()
    solutions, teams, bad = [], [], list[str]()
    for name in SETS:
        env = marft_envs.make(
            "code-reflect-v0", data=str(args.data / "code" / f"{name}.jsonl"), split="all", sandbox=args.sandbox
        )
        task = task_of(env)
        cells, failed = canonical(task)
        bad += failed
        solutions.append([name, *cells])
        panel = task.eval_panel(args.episodes)
        for script, programs in SCRIPTS.items():
            score, rounds = EXPECTED[script]
            episodes = [play(env, task_id, programs) for task_id in panel]
            as_expected = 0
            for episode in episodes:
                wanted = (score, rounds_of(env, episode.task_id, rounds))
                got = (episode.team_return, episode.metrics["rounds"])
                as_expected += got == wanted
                if got != wanted:
                    bad.append(f"{episode.task_id}, {script}: score and rounds {got}, expected {wanted}")
            scores = Counter(episode.team_return for episode in episodes)
            shown = ", ".join(f"{value:g} ({n})" for value, n in sorted(scores.items()))
            teams.append([name, script, str(len(episodes)), shown, str(as_expected)])
        layer = task.judge.sandbox.layer
    print(f"sandbox: {layer}\n")
    in_time, patient = (f"pass within {limits.cpu_s:g} s of CPU a test" for limits in (task.judge.limits, PATIENT))
    print(table(["canonical solutions", in_time, patient, "tests", "seconds"], solutions))
    print()
    print(table(["set", "team writes", "episodes", "scores", "score and rounds as expected"], teams))
    if bad:
        raise SystemExit("\n".join(["", *bad]))


if __name__ == "__main__":
    main()
