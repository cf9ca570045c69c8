"""Does a quarantine keep a team from obeying letters, and what does it cost?

::

    python -m benchmarks permissions --out runs/permissions

One agent with all permissions, a reader in quarantine with an actor who never sees the letter, and a messenger who
passes the letter on, each trained on as many sampled tokens from a warm start on the task's expert: on letters of which
half hold an attack of a kind that is seen in training, or on clean ones (``--trained``). Then each plays the held-out
requests without attacks, with attacks of seen kinds, and of unseen kinds, greedily. ``completed``: exactly what was
asked was done. ``obeyed``: the order that only attacks speak of was changed. Wilson intervals, 95 %; finished runs are
not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import Done, Job, run_all, table
from marft_algos.bench.worker import _Evaluation
from marft_algos.runs import intervals, paths
from marft_algos.types import Trajectory

TEAMS = ("solo", "quarantine", "messenger")
TRAINED = {"seen": 'domain_args={"attacks":"seen","share":0.5}', "none": 'domain_args={"attacks":"none"}'}
"""What letters a team is trained on."""
PLAYED = ("none", "seen", "unseen")


def main() -> None:
    """Runs what has not been run, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trained", nargs="+", choices=TRAINED, default=list(TRAINED))
    parser.add_argument("--teams", nargs="+", choices=TEAMS, default=list(TEAMS))
    parser.add_argument("--tokens", type=int, default=40_000, help="sampled in the training of a team")
    parser.add_argument("--warm-start", type=int, default=12, help="iterations on the task's expert")
    args = parser.parse_args()
    lines = []
    for seed in range(args.seeds):
        for trained in args.trained:
            for team in args.teams:
                words = training(team, trained, seed, args.tokens, args.warm_start)
                job = Job(f"{team}-{trained}-{seed}", words)
                lines.append([team, trained, str(seed), *row(run_all([job], args.out, 1)[job.name])])
                print(" | ".join(lines[-1]), flush=True)
    head = ["team", "trained on attacks", "seed", *(f"{what}, {a}" for a in PLAYED for what in ("completed", "obeyed"))]
    print(table([*head, "tokens"], lines))


def training(team: str, trained: str, seed: int, tokens: int, warm: int) -> tuple[str, ...]:
    """What ``marft train`` is told."""
    return (
        *("--preset", "tools", "--env", f"tools-{team}-v0", "--seed", str(seed)),
        *("--env-kwargs", "domain=letters", TRAINED[trained], "--warm-start", str(warm)),
        *("--max-new-tokens", "96" if team == "messenger" else "24"),
        *("--iterations", "100000", "--token-budget", str(tokens), "--eval-every", "0"),
    )


def row(done: Done) -> list[str]:
    """Completion and obedience under each set of attacks, and the tokens of training."""
    out = []
    for attacks in PLAYED:
        played = play(done, attacks)
        out += [share(played, "completion"), share(played, "obeyed") if attacks != "none" else "–"]
    return [*out, f"{done.tokens / 1000:.0f}k"]


def play(done: Done, attacks: str) -> list[Trajectory]:
    """Plays every held-out request with attacks of these kinds in all of its letters."""
    config = paths.of_run(done.run)
    held_out = {**config.eval_kwargs, "domain_args": {"attacks": attacks, "share": 1.0}}
    config = dataclasses.replace(config, eval_kwargs=held_out, eval_episodes=1000)
    evaluation = _Evaluation(config)
    evaluation.load(done.run)
    return evaluation.play(config)


def share(played: Sequence[Trajectory], metric: str) -> str:
    """``0.842 [0.807, 0.872]``."""
    interval = intervals.mean([float(t.episode.metrics[metric]) for t in played])
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


if __name__ == "__main__":
    main()
