"""Pairs two evaluations that ``marft eval --engines`` wrote, task by task: any mixture of hosted and trained agents."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_algos.config import arguments
from marft_algos.evaluation import changes
from marft_algos.evaluation.changes import Change
from marft_algos.evaluation.differences import Values
from marft_algos.rollout.episodes import whole
from marft_algos.types import Trajectory
from marft_envs import Episode
from marft_envs.errors import ConfigError, reading
from marft_envs.problems.rows import of_file
from marft_envs.records.trajectory import read

SETTINGS = "eval.json"
"""The file that makes a folder an evaluation."""
KIND = "kind"
"""The cohort of a task whose id is ``KIND/NAME``."""
_NAMED = 3
Task = tuple[str, int | None]
"""Id, and where nobody has named it so, the seed of its start. An id that is a number names the environment as well."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a folder holds."""

    root: Path
    settings: Mapping[str, Any]
    samples: dict[Task, list[Trajectory]]
    """Of every task, those without infrastructure errors."""
    infrastructure_errors: dict[Task, list[float]]
    """Of every sample of a task, 1 if it was lost to an infrastructure error, else 0."""
    unknown: int
    """Tasks whose samples were all lost before anybody knew their id."""

    @classmethod
    def of(cls, root: Path) -> Evaluation:
        """Reads a folder.

        Raises:
            ConfigError: It cannot be read, or the evaluation has not ended.
        """
        with reading(f"The evaluation in '{root}' cannot be read", "Expected what marft eval --engines writes."):
            settings = json.loads((root / SETTINGS).read_text(encoding="utf-8"))
            k, total = int(settings["samples"]), int(settings["problems"]) * int(settings["samples"])
            file = root / "episodes.jsonl"
            episodes = list(read(file)) if file.is_file() else []
        if len(episodes) < total:
            raise ConfigError(
                f"'{root}' has {len(episodes)} of {total} episodes. Go on with it first: marft eval … --out {root}"
            )
        return cls.played(root, settings, episodes, k)

    @classmethod
    def played(cls, root: Path, settings: Mapping[str, Any], episodes: Sequence[Episode], k: int = 1) -> Evaluation:
        """Groups episodes by task; ``index`` says which are samples of one: ``k`` side by side."""
        starts = defaultdict(list)
        for e in episodes:
            starts[e.index // k].append(Trajectory.of(e))
        drawn = {k: v for k, v in settings["env_kwargs"].items() if k not in ("dependency", "profiles", "partners")}
        where = "" if settings.get("data") else f" of {arguments.task(settings['env'], drawn)}"
        samples, infrastructure_errors = dict[Task, list[Trajectory]](), dict[Task, list[float]]()
        for played in starts.values():
            kept = whole(played)
            for named in [*kept, *(t for t in played if t.task_id)][:1]:
                task_id = named.task_id + (where if named.task_id.isdecimal() else "")
                task = task_id, None if "task_id" in named.episode.options else named.episode.seed
                samples[task], infrastructure_errors[task] = kept, [float(t.infrastructure_error) for t in played]
        return cls(root, settings, samples, infrastructure_errors, len(starts) - len(samples))


def paired(a: Evaluation, b: Evaluation, cohort: str = "", gated: Collection[str] = ()) -> list[Change]:
    """Compares B with A: of every task the mean over its samples, and the differences over tasks.

    Args:
        a: What is compared with.
        b: In question; other agents, engines or settings on the same tasks.
        cohort: ``kind``, or a column of the tasks' rows; empty: by kind where ids name several kinds.
        gated: Metrics that are shown of every cohort, beside the score.

    Raises:
        ConfigError: Their tasks differ, or rows have no such column.
    """
    _check_tasks(a, b)
    if not (both := [task for task in a.samples if a.samples[task] and b.samples.get(task)]):
        raise ConfigError(f"Nothing to compare in '{a.root}' and '{b.root}': all was lost to infrastructure errors.")
    computed = changes.metrics(*([t for task in both for t in side.samples[task]] for side in (a, b)))
    named = {changes.PRIMARY, *gated, *(metric.rpartition("/")[0] for metric in gated)}
    pairs: dict[tuple[str, str], tuple[Values, Values]] = {}
    for name, tasks in {"": both, **_cohorts(a, both, cohort)}.items():
        for metric, values in computed.items():
            if not name or metric.removeprefix("task/") in named:
                old, new = ([values(side.samples[task]) for task in tasks] for side in (a, b))
                pairs[name, metric] = old, new
    lost, now_lost = a.infrastructure_errors, b.infrastructure_errors
    shared = [task for task in lost if task in now_lost]
    pairs["", "infrastructure_errors"] = [lost[task] for task in shared], [now_lost[task] for task in shared]
    return changes.judged(pairs)


def differing(a: Evaluation, b: Evaluation) -> list[str]:
    """Returns the agents that are played by another engine or model, or have other prompts; then other settings."""
    tables = ("engines", "models", "adapters")
    agents = [{agent["name"]: agent for agent in side.settings.get("agents", ())} for side in (a, b)]
    played = [
        {name: [agent, *(side.settings.get(key, {}).get(name) for key in tables)] for name, agent in team.items()}
        for side, team in zip((a, b), agents, strict=True)
    ]
    changed = [name for name in {**played[0], **played[1]} if played[0].get(name) != played[1].get(name)]
    rest = {**a.settings, **b.settings}.keys() - {*tables, "agents", "starts", "problems"}
    return changed + sorted(key for key in rest if a.settings.get(key) != b.settings.get(key))


def _check_tasks(a: Evaluation, b: Evaluation) -> None:
    """Refuses two evaluations of different tasks; a lost episode without an id may be any task."""
    for one, other in ((a, b), (b, a)):
        alone = [task for task in one.samples if task not in other.samples]
        if len(alone) > other.unknown:
            ids = ", ".join(name if seed is None else f"{name} (seed {seed})" for name, seed in alone[:_NAMED])
            more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
            raise ConfigError(
                f"'{a.root}' and '{b.root}' are evaluations of different tasks: only '{one.root}' has {ids}{more}."
                " Expected the same tasks: the same --env-kwargs, --data and --episodes."
            )


def _cohorts(a: Evaluation, tasks: Sequence[Task], column: str) -> dict[str, list[Task]]:
    """Groups tasks; by kind without being asked only where it says something (see ``runs.kinds``)."""
    rows = {} if column in ("", KIND) else _column(a, column)
    found: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        found[rows.get(task[0], "none") if rows else task[0].rpartition("/")[0]].append(task)
    if not column and not 1 < len(found) <= len(tasks) / 2:
        return {}
    return {f"{column or KIND} {name or 'none'}": found[name] for name in sorted(found)}


def _column(a: Evaluation, column: str) -> dict[str, str]:
    """Reads a column of the rows that an evaluation's tasks were made of: task id -> its value, as text."""
    data = a.settings["env_kwargs"].get("data", "")
    if not str(data).endswith(".jsonl"):
        raise ConfigError(f"--cohort {column}: '{a.root}' was not made from a file of rows. Expected --cohort {KIND}")
    file = Path(data)
    with reading(f"The rows of '{a.root}' cannot be read", "Expected the file of its --data where it was."):
        read = [(n, row) for n, _, row in of_file(file)]
    found = {str(row.get("id") or f"{file.stem}/{n}"): str(row[column]) for n, row in read if column in row}
    if not found:
        columns = ", ".join(sorted({key for _, row in read for key in row}))
        raise ConfigError(f"No row of '{file}' has a column '{column}'. Expected {KIND}, or one of: {columns}")
    return found
