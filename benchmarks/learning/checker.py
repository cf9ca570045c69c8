"""Is a checker worth what it costs? Teams that propose and check, beside best-of-n of one agent at equal tokens.

::

    marft bench run examples/configs/bench_checker.toml --out runs/checker
    python -m benchmarks checker runs/checker

Every trained team of the folder plays the held-out panel again, sampled, as in training; so the runs are needed, and
packed results, which hold no weights, are not enough. One agent that says an answer
(``search-solo-v0``) is sampled often: the majority of n answers, with n such that n answers sample, or process, as many
tokens an episode as the team; and, as a ceiling that only a perfect check reaches, whether some answer of the n was
right. ``offered`` is the same of a team's own proposals. Differences are paired by problem, 95 %.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runs import points, table
from marft_algos.config import settings as configs
from marft_algos.runs import intervals
from marft_algos.runs.folder import RunFolder
from marft_algos.types import Trajectory
from marft_algos.workbench.bench.folder import BenchFolder
from marft_algos.workbench.evaluation.held_out import HeldOut
from marft_envs.errors import ConfigError

HEAD = ["puzzle", "seed", "team", "greedy", "sampled", "offered", "tokens", "processed", "path"]
HEAD += [
    "best of n, equal sampled",
    "equal processed",
    "team less vote, equal processed",
    "some of n right",
    "exchanged",
]


@dataclass(frozen=True)
class Played:
    """What a trained team did on the panel."""

    greedy: np.ndarray
    """[P]: 1 where it solved the problem."""
    right: np.ndarray
    """[K, P]: the same of K sampled episodes."""
    answers: list[list[str]]
    """[K][P]: the answers, in their one spelling."""
    offered: float
    tokens: float
    """Sampled in an episode, mean."""
    processed: float
    """Sampled or read in an episode, mean."""
    exchanged: np.ndarray | None
    """[P]: as ``greedy``, with the words that the last speaker hears exchanged between puzzles; None: it hears none."""
    path: float
    """On the critical path of an episode, mean: over its layers, the longest reply."""


def main() -> None:
    """Prints the table of one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the benchmark")
    parser.add_argument("--samples", type=int, default=4, help="episodes that a team plays of each problem")
    parser.add_argument("--most", type=int, default=24, help="answers that one agent is sampled for")
    args = parser.parse_args()
    folder = BenchFolder(args.folder)
    rows = [row for row in folder.rows() if row["status"] == "done" and row["kind"] == "train"]
    rows = [row for row in rows if row["algorithm"] != "untrained"]
    check(folder, rows)
    runs = {(puzzle(folder, row), row["seed"], row["env"]): row for row in rows}
    lines = []
    for kind, seed, env in sorted(runs, key=lambda case: case[:2]):
        if folder.job(runs[kind, seed, env]["key"])["config"]["env"] != "search-solo-v0":
            continue
        alone = play(folder, runs[kind, seed, env], args.most)
        lines.append([kind, str(seed), env, *scores(alone), "", "", "", "", ""])
        for other in (e for k, s, e in runs if (k, s) == (kind, seed) and e != env):
            team = play(folder, runs[kind, seed, other], args.samples)
            lines.append([kind, str(seed), other, *scores(team), *against(team, alone)])
            print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    print(table(HEAD, lines))


def check(folder: BenchFolder, rows: Sequence[Mapping[str, Any]]) -> None:
    """Checks that there is everything to play with, before a model is loaded.

    Raises:
        ConfigError: A run is missing, or a base model that was made in a folder of this machine.
    """
    missing = [row["key"] for row in rows if not (folder.runs / row["key"] / "config.toml").is_file()]
    if missing or not rows:
        raise ConfigError(
            f"{len(missing)} of the {len(rows)} trained runs of {folder.root} are not in {folder.runs}, and this plays"
            " their teams again; packed results hold outcomes only, which `marft bench report` prints. To make the"
            f" runs: marft bench run examples/configs/bench_checker.toml --out {folder.root}"
        )
    for model in {name for row in rows for name in _bases(folder.job(row["key"])["config"]["models"])}:
        path = Path(model)
        if len(path.parts) > 1 and Path(path.parts[0]).is_dir() and not path.is_dir():
            raise ConfigError(
                f"There is no folder '{model}', the base model of these runs. To make it: python -m benchmarks"
                f" make_embedded --model {path.name} --out {model}"
            )


def _bases(models: str | Mapping[str, str]) -> Iterable[str]:
    """Returns the base models of a setting: one for all policies, or one for each."""
    return [models] if isinstance(models, str) else models.values()


def puzzle(folder: BenchFolder, row: Mapping[str, Any]) -> str:
    """The kind of puzzle that a run is about."""
    return str(folder.job(row["key"])["config"]["env_kwargs"].get("puzzle", "sum"))


def play(folder: BenchFolder, row: Mapping[str, Any], samples: int) -> Played:
    """Plays a trained team's panel greedily, and so many times sampled."""
    team = HeldOut(configs.build(folder.job(row["key"])["config"]))
    team.load(RunFolder.open(folder.runs / row["key"]))
    greedy = team.play()
    drawn = [team.sample(i) for i in range(samples)]
    every = [trajectory for played in drawn for trajectory in played]
    key = team.answer_key
    assert key is not None, "a search task has an answer_key"
    return Played(
        solved(greedy),
        np.stack([solved(played) for played in drawn]),
        [[key(t.transitions[-1].turn.text) for t in played] for played in drawn],
        float(np.mean([t.episode.metrics["offered"] for t in every])),
        float(np.mean([t.tokens for t in every])),
        float(np.mean([t.processed for t in every])),
        exchanged(team, greedy),
        float(np.mean([t.critical_path for t in every])),
    )


def exchanged(team: HeldOut, played: Sequence[Trajectory]) -> np.ndarray | None:
    """Plays the panel again, with the words of those who are heard by the last speaker from other problems."""
    heard = {t.agent for one in played for t in one.transitions if t.agent != one.transitions[-1].agent}
    return solved(team.exchange(sorted(heard), played)) if heard else None


def solved(played: Sequence[Trajectory]) -> np.ndarray:
    """[P]: 1 where the episode was a success."""
    return np.array([float(bool(t.success)) for t in played])


def voted(alone: Played, n: int) -> np.ndarray:
    """[P]: 1 where the commonest of the first n answers is right; the earliest of equals; no answer is no vote."""
    out = np.zeros(len(alone.greedy))
    for p in range(len(out)):
        answers = [alone.answers[k][p] for k in range(n)]
        votes = Counter(filter(None, answers))
        if votes:
            out[p] = alone.right[answers.index(votes.most_common(1)[0][0]), p]
    return out


def scores(played: Played) -> list[str]:
    """Greedy score, sampled score, offered, tokens an episode: sampled, processed, critical path."""
    cells = [played.greedy, played.right.mean(0)]
    return [
        *(f"{100 * i.mean:.1f} [{100 * i.low:.1f}, {100 * i.high:.1f}]" for i in map(interval, cells)),
        f"{100 * played.offered:.1f}",
        *(f"{n:.0f}" for n in (played.tokens, played.processed, played.path)),
    ]


def interval(outcomes: np.ndarray) -> intervals.Interval:
    """The mean over problems."""
    return intervals.mean(list(outcomes))


def against(team: Played, alone: Played) -> list[str]:
    """The vote at equal sampled and at equal processed tokens, the team's difference to the latter, and the ceiling."""
    most = len(alone.answers)
    by = [min(most, max(1, int(a / b))) for a, b in ((team.tokens, alone.tokens), (team.processed, alone.processed))]
    votes = [voted(alone, n) for n in by]
    less = intervals.paired(list(votes[1]), list(team.right.mean(0)))
    return [
        *(f"{100 * vote.mean():.1f} (n = {n})" for vote, n in zip(votes, by, strict=True)),
        points(less),
        f"{100 * alone.right[: by[1]].any(0).mean():.1f}",
        "" if team.exchanged is None else f"{100 * team.exchanged.mean():.1f}",
    ]


if __name__ == "__main__":
    main()
