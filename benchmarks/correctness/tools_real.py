"""Published tool-use tasks in our environments: are the gold results reproduced?

    python -m benchmarks tools_real --data FOLDER [--bfcl FOLDER] [--tau2 FOLDER] [--wrong 1000]
    python -m benchmarks tools_real --tau2 FOLDER [--domains retail airline]     # this part alone, or some of it

FOLDER holds ``tools/tau`` and, for ``bfcl``, ``tools/bfcl``. ``--bfcl`` names the folder of the ``bfcl-eval`` package
where it is not installed (``pip install --no-deps --target FOLDER bfcl-eval mpmath``); without the package the bfcl
part is left out, and the report says so. With it, all 800 tasks are taken from the package, and the rows of FOLDER are
compared with them.

* tau: tasks whose gold actions give the published difference of the database and the published number of refusals;
  parts of the gold (every subset of the actions that change something) that score strictly between nothing and gold.
* bfcl: ground truths that the router team plays under per-class permissions, accepted by our grader and by upstream's
  own checker; wrong trajectories (a call dropped, an argument changed, two swapped) with equal verdicts.
* tau2 (``--tau2``, the folder of ``tau2`` and ``inspect_evals``): golds that teams play, complete by our grader and, of
  the router team, by upstream's evaluator, which compares every result; wrong trajectories with equal verdicts.
* all: a team that does nothing beside it, split by split.

Everything is played as text: every agent's observation is rendered before it acts, and what it does is parsed from what
it writes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marft_envs.errors import MissingExtraError
from marft_envs.families.tools import make, oracle
from marft_envs.families.tools.bfcl import BfclDomain
from marft_envs.families.tools.session import Toolbox, ToolSession
from marft_envs.families.tools.store import as_set
from marft_envs.families.tools.tau import TauDomain
from marft_envs.families.tools.tau2 import Tau2Domain
from marft_envs.families.tools.types import ToolDomain, ToolProblem
from marft_envs.records import experts
from tests.helpers import bfcl_upstream as upstream
from tests.helpers import tau2_upstream as packages
from tests.helpers.tools_ordering import Scripted

REACHED = ("", "tool_error", "too_large")
"""Errors of calls that reached the world."""
LIMITS: dict[str, Any] = {"max_turns": 200, "max_calls": 200, "max_result_chars": 100_000}
"""Wide enough for every gold: one task of long context has an answer of 30,000 characters."""


def nothing(domain: ToolDomain, split: str) -> str:
    """Returns what a team that never makes a call gets: completion, progress and reward, averaged."""
    sums, done = {"progress": 0.0, "reward": 0.0}, 0
    env = make("solo", domain, split=split, **LIMITS)
    problems = env.unwrapped.task.problems
    for problem in problems:
        env.reset(seed=0, options={"task_id": problem.id})
        while not env.done:
            experts.turn(env, {env.agent_selection: "I can do nothing."})
        done += bool(env.episode.success)
        sums["progress"] += env.episode.metrics["progress"]
        sums["reward"] += env.episode.team_return
    means = ", ".join(f"{name} {sums[name] / len(problems):.3f}" for name in sums)
    return f"completed {done} of {len(problems)} ({done / len(problems):.3f}), {means}"


# -- tau -------------------------------------------------------------------------------------------------------------


def tau(folder: Path) -> dict[str, Any]:
    domain = TauDomain(folder)
    rows, reproduced, played, failed, parts, between = 0, 0, 0, [], 0, 0
    splits = [split for split in ("train", "dev") if (folder / f"retail_{split}.jsonl").is_file()]
    for split in splits:
        lines = (folder / f"retail_{split}.jsonl").read_text(encoding="utf-8").splitlines()
        team = Scripted(domain, split)
        env = make("router", domain, split=split, **LIMITS)
        for line, problem in zip(lines, domain.problems(split), strict=True):
            derived = json.loads(line)["derived"]
            world, refused = domain.replay(problem)
            same = as_set(world.store.difference()) == as_set(derived["gold_diff"])
            rows += 1
            reproduced += same and refused == derived["gold_errors"]
            failed += [] if same else [problem.id]
            played += bool(oracle.play(env, options={"task_id": problem.id}).success)
            counted, good = subsets(team, problem)
            parts, between = parts + counted, between + good
    return {
        "gold differences reproduced": f"{reproduced} of {rows}" + (f", not: {failed[:5]}" if failed else ""),
        "gold through the router team, completed": f"{played} of {rows}",
        "null team": {split: nothing(domain, split) for split in domain.splits},
        "parts of the gold strictly between null and gold": f"{between} of {parts}",
    }


def subsets(team: Scripted, problem: ToolProblem) -> tuple[int, int]:
    """Returns how many proper subsets of the gold's writes do something, and how many of them score in between."""
    writes = [call for call in team.domain.oracle(problem)[0] if not team.domain.tools[call.name].read_only]
    counted = good = 0
    for size in range(1, len(writes)):
        for part in itertools.combinations(writes, size):
            team.paid(problem, [list(part)])
            done = any(entry.result.changed for entry in team.solo.unwrapped.task.live.log)
            counted += done
            good += done and 0 < team.solo.episode.metrics["progress"] < 1
    return counted, good


# -- bfcl ------------------------------------------------------------------------------------------------------------


def bfcl(folder: Path, package: Path | None, wrong: int) -> dict[str, Any]:
    domain = BfclDomain(package=package)
    problems = list(domain.problems("all"))
    env = make("router", domain, split="all", **LIMITS)
    task = env.unwrapped.task
    completed, accepted = Counter[str](), Counter[str]()
    for problem in problems:
        episode = oracle.play(env, options={"task_id": problem.id})
        reached = [entry for entry in task.session.log if entry.result.error in REACHED]
        calls_made = [[entry.result.call for entry in reached if entry.turn == i] for i in range(len(problem.turns))]
        completed[problem.secret.category] += bool(episode.success)
        accepted[problem.secret.category] += upstream.accepts(problem.secret, calls_made)
    sizes = Counter(problem.secret.category for problem in problems)
    shown = {name: f"{accepted[name]} and {completed[name]} of {size}" for name, size in sizes.items()}
    findings = {
        "ground truths through the router team: accepted by upstream, and by us": shown,
        "left out as defective, and indeed refused": f"{defective(domain)} of {len(domain.defective())}",
        f"equal verdicts on {wrong} wrong trajectories": verdicts(domain, problems, wrong),
        "null team": {split: nothing(domain, split) for split in ("train", "test")},
    }
    if folder.is_dir():
        theirs = BfclDomain(folder, package=package)
        same = [theirs.oracle(p) == domain.oracle(domain.problems("all").get(p.id)) for p in theirs.problems("all")]
        findings[f"rows of {folder.name}/ equal to the package's"] = f"{sum(same)} of {len(same)}"
    return findings


def defective(domain: BfclDomain) -> int:
    """Returns how many of the tasks left out have a call in their gold that a session refuses."""
    box = Toolbox(domain.tools.values())
    return sum(_refused(domain, box, problem) for problem in domain.defective())


def _refused(domain: BfclDomain, box: Toolbox, problem: ToolProblem) -> bool:
    world, errors = domain.open(problem), set[str]()
    session = ToolSession(box, lambda: world, {"a": frozenset(domain.tools)}, {}, 1000, 10**6)
    for turn, calls in enumerate(domain.oracle(problem)):
        session.turn, session.withheld = turn, problem.withheld[turn]
        errors |= {session.call("a", call).error for call in calls}
    return bool(errors - set(REACHED))


def verdicts(domain: BfclDomain, problems: Sequence[ToolProblem], wrong: int) -> dict[str, str]:
    """Returns per kind of mistake how many verdicts agree, and how often upstream accepts all the same."""
    rng, seen, team = random.Random(0), Counter[tuple[str, str]](), Scripted(domain, "all")
    for _ in range(wrong):
        problem = rng.choice(problems)
        kind, turns = upstream.spoiled(domain.oracle(problem), rng)
        team.paid(problem, turns)
        reached = [entry for entry in team.solo.unwrapped.task.live.log if entry.result.error in REACHED]
        calls_made = [[entry.result.call for entry in reached if entry.turn == i] for i in range(len(turns))]
        theirs = upstream.accepts(problem.secret, calls_made)
        seen[kind, "all"] += 1
        seen[kind, "equal"] += bool(team.solo.episode.success) == theirs
        seen[kind, "accepted"] += theirs
    return {
        kind: f"{seen[kind, 'equal']} of {seen[kind, 'all']} equal ({seen[kind, 'accepted']} accepted by both or one)"
        for kind in ("dropped", "changed", "swapped")
    }


# -- tau2 ------------------------------------------------------------------------------------------------------------


def tau2(package: Path, name: str, wrong: int) -> dict[str, Any]:
    counted = Counter[str]()
    split = "full" if name == "telecom" else "base"
    for team_name in ("router", "solo", "dual_control"):
        domain = Tau2Domain(name, package=package, dual=team_name == "dual_control")
        env = make(team_name, domain, split=split, **LIMITS)
        task = env.unwrapped.task
        for problem in task.problems:
            counted[team_name] += bool(oracle.play(env, options={"task_id": problem.id}).success)
            if team_name == "router":
                counted["accepted"] += packages.verdict(domain, problem, task)
    domain = Tau2Domain(name, package=package)
    problems, team, rng, seen = list(domain.problems(split)), Scripted(domain, split), random.Random(0), Counter[str]()
    for _ in range(wrong):
        problem = rng.choice([one for one in problems if domain.oracle(one)[0]])
        kind, turns = upstream.spoiled(domain.oracle(problem), rng)
        team.paid(problem, turns)
        theirs = packages.verdict(domain, problem, team.solo.unwrapped.task)
        seen["equal"] += theirs == bool(team.solo.episode.success)
        seen[kind] += 1
        seen["accepted"] += theirs
    gold = {problem.id: len(domain._task(problem).evaluation_criteria.actions or ()) for problem in problems}
    left = sum(gold[problem.id] > len(domain.oracle(problem)[0]) for problem in problems)
    return {
        "tasks, left out": f"{len(problems)}, {len(domain.skipped)}",
        "gold completed": {team_name: f"{counted[team_name]}" for team_name in ("router", "solo", "dual_control")},
        "of the router team's, accepted by upstream": counted["accepted"],
        "tasks with gold actions that upstream refuses": left,
        f"equal verdicts on {wrong} wrong trajectories": dict(seen),
        "null team": {split: nothing(domain, split) for split in ("train", "test")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with tools/tau and tools/bfcl")
    parser.add_argument("--bfcl", type=Path, help="folder of the bfcl-eval package, if it is not installed")
    parser.add_argument("--tau2", type=Path, help="folder of the packages tau2 and inspect_evals")
    parser.add_argument("--domains", nargs="+", choices=packages.EVERY, default=packages.EVERY, help="those of tau2")
    parser.add_argument("--wrong", type=int, default=1000, help="wrong trajectories to compare verdicts on")
    args = parser.parse_args()
    findings: dict[str, Any] = {}
    if args.data is None and args.tau2 is None:
        parser.error("say --data FOLDER, --tau2 FOLDER, or both")
    if args.data is not None:
        findings["tau"] = tau(args.data / "tools" / "tau")
        try:
            findings["bfcl"] = bfcl(args.data / "tools" / "bfcl", args.bfcl, args.wrong)
        except MissingExtraError as error:
            findings["bfcl"] = {"left out": str(error)}
    for name in args.domains if args.tau2 is not None else ():
        findings[f"tau2/{name}"] = tau2(args.tau2, name, args.wrong // 5)
    for part, rows in findings.items():
        print(part)
        for name, value in rows.items():
            lines = [f"{key}: {entry}" for key, entry in value.items()] if isinstance(value, dict) else [str(value)]
            print(f"  {name}: {lines[0]}" if len(lines) == 1 else f"  {name}:")
            for line in lines if len(lines) > 1 else []:
                print(f"    {line}")


if __name__ == "__main__":
    main()
