"""Evaluates from Python in one call: the command line's ``marft eval`` for notebooks and scripts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import marft_envs
from marft_algos.cli import evaluation
from marft_algos.cli.results import EvaluationResult, named
from marft_algos.config import elsewhere
from marft_algos.config.evaluation import EvalArguments
from marft_algos.evaluation import environments
from marft_algos.models import EMBEDDED, gguf
from marft_algos.models.assignment import played
from marft_algos.ranges import hints
from marft_envs.problems import rows
from marft_envs.records import trajectory


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
    made = EvalArguments(**options, out=str(out if options.get("engines") and not options.get("run") else file))
    if evaluation.evaluated(made, ["…"]):
        raise KeyboardInterrupt
    content = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
    return EvaluationResult(list(trajectory.read(file)), out, content)
