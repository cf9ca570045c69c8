"""How right and how fast the math grader is, on real answer pairs.

    python -m benchmarks grader --data FOLDER [--json FILE]

``FOLDER`` holds ``grading/pairs.jsonl`` (gold, pred, correct, source, kind) and ``math/gsm8k_{train,test}.jsonl``.
Rates are per CPU-second of this process and its workers, their start included, on cold caches.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

from marft_algos.runs.intervals import wilson
from marft_envs.families.math import grader


def rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def bounds(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    found = wilson(hits, n)
    return found.low, found.high


def judge(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Agreement with the labels; the answer of a pair of kind ``answer`` is put in a box first."""
    start, tiers = cpu_seconds(), Counter[str]()
    false_accepts, false_rejects = list[dict[str, Any]](), list[dict[str, Any]]()
    for pair in pairs:
        output = pair["pred"] if pair["kind"] == "output" else f"\\boxed{{{pair['pred']}}}"
        grade = grader.grade(output, pair["gold"])
        tiers[grade.tier or grade.status] += 1
        if bool(grade.score) != pair["correct"]:
            wrong = {key: pair[key] for key in ("gold", "pred", "source")} | {"status": grade.status}
            (false_accepts if grade.score else false_rejects).append(wrong | {"tier": grade.tier})
    grader.close()
    seconds = cpu_seconds() - start
    n, errors = len(pairs), len(false_accepts) + len(false_rejects)
    incorrect = sum(not pair["correct"] for pair in pairs)
    return {
        "n": n,
        "agreement": 1 - errors / n,
        "agreement_95": bounds(n - errors, n),
        "incorrect": incorrect,
        "false_accepts": len(false_accepts),
        "false_accept_rate": len(false_accepts) / max(incorrect, 1),
        "false_accept_95": bounds(len(false_accepts), incorrect),
        "tiers": dict(tiers.most_common()),
        "false_accept_rows": false_accepts,
        "false_reject_rows": false_rejects,
        "false_rejects_by_source": dict(Counter(row["source"] for row in false_rejects).most_common()),
        "grades_per_cpu_second": n / seconds,
    }


def own_golds(folder: Path) -> dict[str, Any]:
    """Every gold answer of GSM8K in a box against itself, and how fast simple answers are graded."""
    golds = [row["answer"] for part in ("train", "test") for row in rows(folder / f"gsm8k_{part}.jsonl")]
    outputs = [f"So the total is {gold} in the end.\nThe answer is \\boxed{{{gold}}}." for gold in golds]
    start = time.process_time()
    scores = [grader.grade(output, gold).score for output, gold in zip(outputs, golds, strict=True)]
    shifted = [grader.grade(output, gold).score for output, gold in zip(outputs[1:], golds, strict=False)]
    seconds = time.process_time() - start
    same = sum(_plain(first) == _plain(second) for first, second in zip(golds[1:], golds, strict=False))
    return {
        "n": len(golds),
        "golds_right": int(sum(scores)),
        "neighbours_right": int(sum(shifted)),
        "neighbours_equal": same,
        "grades_per_cpu_second": 2 * len(golds) / seconds,
    }


def _plain(answer: str) -> float:
    return float(answer.replace(",", ""))


def show(result: dict[str, Any]) -> None:
    answers, outputs, golds = result["answer"], result["output"], result["gsm8k"]
    low, high = answers["agreement_95"]
    print(f"answer rows       {answers['n']}: agreement {answers['agreement']:.2%} (95 % {low:.2%} to {high:.2%})")
    low, high = answers["false_accept_95"]
    print(
        f"false accepts     {answers['false_accepts']} of {answers['incorrect']} incorrect rows: "
        f"{answers['false_accept_rate']:.3%} (95 % {low:.3%} to {high:.3%})"
    )
    for row in answers["false_accept_rows"]:
        print(f"    gold {row['gold']!r}, pred {row['pred']!r} [{row['tier']}] {row['source']}")
    print(f"false rejects     {len(answers['false_reject_rows'])}, by source:")
    for source, count in answers["false_rejects_by_source"].items():
        print(f"    {count:4d}  {source}")
    for row in answers["false_reject_rows"]:
        print(f"    gold {row['gold']!r}, pred {row['pred']!r} [{row['tier']}]")
    print(f"tiers             {answers['tiers']}")
    print(
        f"output rows       {outputs['n']}: agreement {outputs['agreement']:.2%}, false accepts "
        f"{outputs['false_accepts']} of {outputs['incorrect']}, decided by {outputs['tiers']}"
    )
    print(
        f"GSM8K golds       {golds['golds_right']} of {golds['n']} right against themselves; against their "
        f"neighbours {golds['neighbours_right']} right, {golds['neighbours_equal']} equal"
    )
    print(f"simple answers    {golds['grades_per_cpu_second']:,.0f} grades per CPU-second")
    print(f"mixed answers     {answers['grades_per_cpu_second']:,.0f} grades per CPU-second, workers included")


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy and speed of the math grader")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with grading/pairs.jsonl and math/gsm8k_*.jsonl"
    )
    parser.add_argument("--json", type=Path, help="write the figures and the misgraded rows to this file")
    arguments = parser.parse_args()
    pairs = rows(arguments.data / "grading" / "pairs.jsonl")
    result = {
        "gsm8k": own_golds(arguments.data / "math"),
        "answer": judge([pair for pair in pairs if pair["kind"] == "answer"]),
        "output": judge([pair for pair in pairs if pair["kind"] == "output"]),
    }
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
