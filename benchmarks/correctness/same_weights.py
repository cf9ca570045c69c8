"""Whether two checkouts train the same weights, to the bit: what a change that should move nothing has to show.

    python -m benchmarks same_weights --reference CHECKOUT [--algos marft grpo a2po] [--seeds 0 1] [--iterations 3]

CHECKOUT is another clone with its own ``.venv`` (``make setup``). Every run is made there and here by ``marft train``,
and every tensor that training saved is compared, and what was sampled. Exit code 1 where any differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

from marft_envs.errors import ConfigError

HERE = Path(__file__).resolve().parents[2]
SETTINGS = ("--preset", "quickstart", "--episodes-per-iteration", "32", "--eval-episodes", "16", "--eval-every", "0")


def train(checkout: Path, runs: Path, algo: str, seed: int, iterations: int) -> Path:
    """One run by a checkout's own command; returns its folder."""
    python = Path(sys.executable) if checkout == HERE else checkout / ".venv/bin/python"
    if not python.is_file():
        raise ConfigError(f"'{checkout}' has no .venv/bin/python. Type there: make setup")
    name = f"{algo}-{seed}"
    chosen = ("--algo", algo, "--seed", str(seed), "--iterations", str(iterations))
    command = [str(python), "-m", "marft_algos", "train", *SETTINGS, *chosen, "--runs-dir", str(runs), "--name", name]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=checkout, env=alone, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(command)} failed:\n{done.stderr}")
    return runs / name


def tensors(run: Path) -> dict[str, str]:
    """Saved tensor -> hash of its bytes."""
    digests = {}
    for file in sorted(run.rglob("*.safetensors")):
        for key, value in load_file(file).items():
            digests[f"{file.relative_to(run)}: {key}"] = hashlib.sha256(value.tobytes()).hexdigest()
    return digests


def scores(run: Path) -> list[tuple[float, int]]:
    """Return and tokens of every iteration."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["return"], line["tokens"]) for line in lines if "return" in line]


def main() -> int:
    """Prints a line for each run; 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--algos", nargs="+", default=["marft", "grpo", "a2po"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--iterations", type=int, default=3)
    args = parser.parse_args()
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for algo in args.algos:
            for seed in args.seeds:
                pair = [
                    train(checkout, Path(folder) / side, algo, seed, args.iterations)
                    for side, checkout in (("reference", args.reference.resolve()), ("here", HERE))
                ]
                before, after = map(tensors, pair)
                # Tensors are identified by their names in the files; a run that saves none shows nothing.
                apart = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
                sampled = scores(pair[0]) == scores(pair[1])
                bad = bool(apart) or not sampled or not before
                differing += bad
                print(
                    f"{algo} seed {seed}: {len(before)} tensors, {len(apart)} differ; what was sampled "
                    f"{'is equal' if sampled else 'differs'}{': ' + min(apart) if apart else ''}"
                )
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
