"""Evaluates from Python in one call: the command line's ``marft eval`` for notebooks and scripts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import marft_envs
from marft_algos.cli import evaluation
from marft_algos.cli.comparison import named
from marft_algos.config import elsewhere
from marft_algos.config.evaluation import EvalArguments
from marft_algos.evaluation import changes, environments
from marft_algos.lazy import frame
from marft_algos.models import EMBEDDED, gguf
from marft_algos.models.assignment import played
from marft_algos.ranges import hints
from marft_algos.runs.folder import EvalRecord, estimate
from marft_algos.runs.intervals import Interval
from marft_algos.runs.intervals import mean as interval_of_mean
from marft_algos.types import Trajectory
from marft_envs import Episode
from marft_envs.errors import hinted
from marft_envs.problems import rows
from marft_envs.records import trajectory


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


def evaluate(team: Any = "", **options: Any) -> EvaluationResult:
    """Evaluates a run, an untrained team, or a team of engines, and prints what ``marft eval`` prints.

    Examples:
        >>> marft_algos.evaluate(run, episodes=100).score.mean
        >>> marft_algos.evaluate("embedded", env="math-solo-v0")
        >>> marft_algos.evaluate(env="math-solo-v0", untrained=True)
        >>> marft_algos.evaluate({"actor_0": {"kind": "openai", "url": URL, "model": NAME}}, env="math-solo-v0")
        >>> marft_algos.evaluate(lambda messages: "4", env=marft_envs.from_rows(rows))

    Args:
        team: A run: what training returned, its folder or name, or a team on the hub. Or who plays the agents, all of
            them or agent -> each: a model's name (``embedded``), an engine, or a function from messages to text.
        **options: Those of ``marft eval`` that are about one evaluation: ``env``, what ``train`` takes (an id, an
            environment, a function that makes one); ``episodes``, ``checkpoint``, ``sampled``, ``samples``, ``out``.

    Raises:
        ConfigError: An option that there is not, or that cannot work.
    """
    about_two = {"compare", "cross", "seats", "scenarios", "swap"}
    elsewhere.check(options, hints(EvalArguments).keys() - about_two - {"run"}, "All: marft eval --help", "eval")
    options["env"], kwargs = environments.named(options.get("env", ""))
    options["env_kwargs"] = {**kwargs, **options.get("env_kwargs", {})}
    if "data" in options:
        options["data"] = rows.stored(options["data"])
    if callable(team) and not hasattr(team, "run"):
        known = played(marft_envs.make(options["env"], **options["env_kwargs"])) if options["env"] else ()
        team = {agent.name: team for agent in known} or {"": team}
    if isinstance(team, Mapping):
        options["engines"] = {agent: named(who) for agent, who in team.items()}
    elif (name := named(team)) in (*EMBEDDED, *gguf.PACKAGED):
        options["engines"] = name
    elif name:
        options["run"] = name
    out = Path(options.pop("out", "") or tempfile.mkdtemp(prefix="marft-eval-"))
    file, results = out / "episodes.jsonl", out / "results.json"
    options = {name: str(value) if name == "checkpoint" else value for name, value in options.items()}
    made = EvalArguments(**options, out=str(out if options.get("engines") else file))
    if evaluation.evaluated(made, ["…"]):
        raise KeyboardInterrupt
    content = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
    return EvaluationResult(list(trajectory.read(file)), out, content)
