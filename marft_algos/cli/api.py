"""Evaluates from Python in one call: the command line's ``marft eval`` for notebooks and scripts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_algos.cli import evaluation
from marft_algos.config import elsewhere
from marft_algos.config.evaluation import EvalArguments
from marft_algos.lazy import frame
from marft_algos.ranges import hints
from marft_algos.runs.folder import EvalRecord, RunFolder, estimate
from marft_algos.runs.intervals import Interval
from marft_envs import Episode, FlexEnv
from marft_envs.errors import ConfigError
from marft_envs.records import trajectory


@dataclass(frozen=True, slots=True, repr=False)
class EvaluationResult:
    """What a team did at its evaluation."""

    episodes: Sequence[Episode]

    @property
    def score(self) -> Interval:
        """Returns the mean outcome with its 95 % interval: solved where the task says so, else the return."""
        return estimate(self._records())

    def __repr__(self) -> str:
        return f"<EvaluationResult {self.score}>"

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``: problem, outcome, tokens and so on, a row for each episode."""
        return frame([{name: getattr(record, name) for name in hints(EvalRecord)} for record in self._records()])

    def _records(self) -> list[EvalRecord]:
        return [EvalRecord.of(episode) for episode in self.episodes]


def evaluate(team: RunFolder | Path | str | Mapping[str, Any] = "", **options: Any) -> EvaluationResult:
    """Evaluates a run, an untrained team, or a team of engines, and prints what ``marft eval`` prints.

    Examples:
        >>> marft_algos.evaluate(run, episodes=100).score.mean
        >>> marft_algos.evaluate(env="math-solo-v0", untrained=True)
        >>> marft_algos.evaluate({"actor_0": {"kind": "openai", "url": URL, "model": NAME}}, env="math-solo-v0")

    Args:
        team: A run: what training returned, its folder or name, or a team on the hub. Or agent -> engine.
        **options: Those of ``marft eval`` that are about one evaluation: ``env``, an id or what ``marft_envs.make``
            returned; ``episodes``, ``checkpoint``, ``sampled``, ``samples``, ``out`` and so on.

    Raises:
        ConfigError: An option that there is not, or that cannot work.
    """
    about_two = {"compare", "cross", "seats", "scenarios", "swap"}
    elsewhere.check(options, hints(EvalArguments).keys() - about_two - {"run"}, "All: marft eval --help")
    if isinstance(env := options.get("env"), FlexEnv):
        if env.spec is None:
            raise ConfigError("No id names this environment. Next: marft_envs.register(ID, FUNCTION), and make(ID).")
        options |= {"env": env.spec.id, "env_kwargs": env.env_kwargs}
    run: list[str] = []
    if isinstance(team, Mapping):
        options["engines"] = team
    elif team:
        run = [str(team.root if isinstance(team, RunFolder) else team)]
    out = Path(options.pop("out", "") or tempfile.mkdtemp(prefix="marft-eval-"))
    file = out / "episodes.jsonl"
    try:
        evaluation.run_eval([*run, *_words(options), "--out", str(out if "engines" in options else file)])
    except SystemExit as refused:
        raise ConfigError("marft eval cannot read these options; what is wrong is said above.") from refused
    return EvaluationResult(list(trajectory.read(file)))


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    """Yields options as they are typed."""
    for name, value in options.items():
        if value not in (False, None, ""):
            yield f"--{name.replace('_', '-')}"
            parts = value.items() if isinstance(value, Mapping) else ()
            yield from (f"{key}={inner if isinstance(inner, str) else json.dumps(inner)}" for key, inner in parts)
            yield from () if isinstance(value, Mapping | bool) else (str(value),)
