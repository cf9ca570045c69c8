"""What an evaluation and a comparison return in Python, for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from marft_algos.evaluation import changes, gates
from marft_algos.lazy import frame
from marft_algos.ranges import hints
from marft_algos.runs.folder import EvalRecord, RunFolder, estimate
from marft_algos.runs.intervals import Interval
from marft_algos.runs.intervals import mean as interval_of_mean
from marft_algos.types import Trajectory
from marft_envs import Episode
from marft_envs.errors import hinted


@hinted
@dataclass(frozen=True, slots=True, repr=False)
class EvaluationResult:
    """What a team did at its evaluation; ``len`` of it is the number of episodes, ``float`` its mean score."""

    episodes: Sequence[Episode]
    folder: Path = Path()
    """Where the evaluation lies: ``episodes.jsonl``, and of engines ``results.json`` and others."""
    results: Mapping[str, Any] = field(default_factory=dict)
    """What ``results.json`` holds; of an evaluation of a run nothing."""

    @property
    def score(self) -> Interval:
        """Returns the mean outcome with its 95 % interval: solved where the task says so, else the return."""
        return estimate(self._records())

    @property
    def success(self) -> Interval | None:
        """Returns the share of solved episodes with its 95 % interval; None where the task says of none."""
        solved = [float(e.success) for e in self.episodes if e.success is not None and not e.infrastructure_error]
        return interval_of_mean(solved) if solved else None

    @property
    def metrics(self) -> dict[str, float]:
        """Returns the means over episodes, without infrastructure errors, of what ``compare`` compares, by name."""
        kept = [Trajectory.of(e) for e in self.episodes if not e.infrastructure_error]
        return {name: mean(values(kept)) for name, values in changes.metrics(kept, kept).items()} if kept else {}

    @property
    def cost(self) -> float:
        """Returns what hosted models cost, where their engines say what tokens cost; else 0.0."""
        return float(self.results.get("cost", 0.0))

    @property
    def latency(self) -> dict[str, dict[str, float]]:
        """Returns seconds, ``p50`` and ``p95``: of a hosted agent's replies, and of an ``episode`` (``one_by_one``)."""
        found = {agent: used["seconds"] for agent, used in self.results.get("usage", {}).items() if used["seconds"]}
        if waited := [e.metrics["seconds"] for e in self.episodes if "seconds" in e.metrics]:
            found["episode"] = {f"p{p}": float(np.percentile(waited, p)) for p in (50, 95)}
        return found

    def __len__(self) -> int:
        return len(self.episodes)

    def __float__(self) -> float:
        return self.score.mean

    def __repr__(self) -> str:
        return f"<EvaluationResult {self.score}>"

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``: problem, outcome, tokens and so on, a row for each episode."""
        return frame([{name: getattr(record, name) for name in hints(EvalRecord)} for record in self._records()])

    def _records(self) -> list[EvalRecord]:
        return [EvalRecord.of(episode) for episode in self.episodes]


@hinted
@dataclass(frozen=True, slots=True, repr=False)
class ComparisonResult:
    """What changed from A to B on the same tasks: ``repr`` is the table of ``marft eval --compare``."""

    changes: Sequence[changes.Change]
    """Of every metric A, B, and the paired difference with its 95 % interval."""
    checks: Sequence[gates.Check] = ()
    """What the gate judged: of every metric that was asked for; without a gate the score, which has no margin."""
    head: str = ""
    """What was compared, and in what A and B differ."""

    @property
    def difference(self) -> Interval:
        """Returns the paired difference of the score, B - A, with its 95 % interval."""
        return next(c.difference for c in self.changes if c.name == changes.PRIMARY and not c.cohort)

    @property
    def outcome(self) -> gates.Outcome:
        """Returns ``passed``, ``failed`` or ``undecided``; without a gate nothing can pass."""
        return gates.outcome(self.checks)

    def __repr__(self) -> str:
        return changes.printed(self.changes)


def named(who: Any) -> Any:
    """Returns the folder of a run, or of a trained team's, as text; what is neither as it is."""
    who = getattr(who, "run", who)
    who = who.root if isinstance(who, RunFolder) else who
    return str(who) if isinstance(who, Path) else who
