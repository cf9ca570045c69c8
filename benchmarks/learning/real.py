"""Real problems, end to end: GSM8K from a local path, with the embedded model, a random one, and both in one team.

::

    python -m benchmarks real --data FOLDER --out runs/real

FOLDER holds ``math/gsm8k_train.jsonl`` and ``math/gsm8k_test.jsonl``. The random model has Qwen2's architecture and
a chat template of its own, saved in Hugging Face format. Models this small solve none of these problems: what is
shown is that training, checkpoint and evaluation run on them, and the accuracies are printed as they are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks.runs import Job, interval, run_all, table
from tests.helpers.tiny import save_tiny


def main() -> None:
    """Trains and evaluates all three teams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with math/gsm8k_{train,test}.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=200, help="held-out problems")
    args = parser.parse_args()
    random = save_tiny(args.out / "random-qwen2", context=2048)
    models: dict[str, tuple[str, ...]] = {
        "embedded": ("embedded",),
        "random": (str(random),),
        "mixed": ("reasoner_0=embedded", f"actor_0={random}"),
    }
    common: tuple[str, ...] = ("--preset", "quickstart", "--data", str(args.data / "math" / "gsm8k_{split}.jsonl"))
    common += ("--iterations", str(args.iterations), "--episodes-per-iteration", "32")
    common += ("--eval-episodes", str(args.episodes))
    jobs = [Job(name, (*common, "--models", *spec)) for name, spec in models.items()]
    rows = []
    for name, done in run_all(jobs, args.out, 1).items():
        command = [sys.executable, "-m", "marft_algos", "eval", str(done.run.root)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        again = next(line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("step"))
        rows.append([name, interval(done.metrics[0]), interval(done.metrics[-1]), again])
    print(table(["models", "untrained", "trained", "trained, by `marft eval`"], rows))


if __name__ == "__main__":
    main()
