"""Compares two runs on frozen scenarios, agent by agent (``marft eval --compare A B``).

A team's score can hide an agent that got worse while the others made up for it. So beside the team's numbers and each
agent's own, every policy of B is put into team A alone: what A gains or loses is that agent's own change.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation.changes import Change, judged, metrics, scores
from marft_algos.rollout.panel import Panel
from marft_algos.runs import checkpoint, paths
from marft_algos.runs.disk import reading, writing
from marft_algos.runs.folder import RunFolder
from marft_algos.training.environments import eval_kwargs
from marft_algos.training.held_out import HeldOut
from marft_algos.types import Trajectory
from marft_envs.errors import ConfigError

SHAPE = ("models", "lora_r", "lora_alpha", "lora_targets", "full_finetune")
"""Settings in which runs must agree, so that one's weights can play where another's have."""


def compare(a: RunFolder, b: RunFolder, scenarios: Path | None = None, which: str = "last") -> list[Change]:
    """Plays the scenarios with A, with B, and with A in which one policy is B's, for every policy.

    Args:
        a: The run to compare with.
        b: The run in question.
        scenarios: Where the frozen set lies; made of A's held-out panel if there is no such file, None: not kept.
        which: Checkpoint, see ``checkpoint.pick``.

    Raises:
        ConfigError: Teams, models or adapters differ, so nothing can be exchanged.
    """
    config = _common(paths.of_run(a), paths.of_run(b), a, b)
    both = HeldOut(config)
    if scenarios is not None:
        both.panel = frozen(scenarios, config.env, eval_kwargs(config), both.panel)
    old, new = (checkpoint.pick(run.checkpoints, which) for run in (a, b))
    both.load(b, which)
    after = both.play()
    both.load(a, which)
    before = both.play()
    old_kept, new_kept = _both(before, after)
    pairs = {("", name): (value(old_kept), value(new_kept)) for name, value in metrics(old_kept, new_kept).items()}
    pairs["", "infra"] = ([float(t.infra) for t in before], [float(t.infra) for t in after])
    for name in both.names if len(both.names) > 1 else []:
        both.policies.load_adapter(name, new / "policies" / name)
        old_kept, new_kept = _both(before, both.play())
        pairs["", f"team A with B's {name}"] = (scores(old_kept), scores(new_kept))
        both.policies.load_adapter(name, old / "policies" / name)
    return judged(pairs)


def _both(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """Leaves out the scenarios that an outage took from either."""
    indices = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if not (a.infra or b.infra)]
    return [before[i] for i in indices], [after[i] for i in indices]


def _common(one: TrainConfig, other: TrainConfig, a: RunFolder, b: RunFolder) -> TrainConfig:
    """Returns A's settings, once it is certain that agents can be exchanged with B.

    Raises:
        ConfigError: They cannot.
    """
    what = "agents cannot be exchanged. Compare their scores alone: marft eval RUN"
    check_alike(one, other, a, b, (*SHAPE, "policies"), what)
    return one


def check_alike(
    one: TrainConfig, other: TrainConfig, a: RunFolder, b: RunFolder, keys: Sequence[str], what: str
) -> None:
    """Refuses two runs that differ in one of these settings, and says what does not work then."""
    for key in keys:
        if (mine := getattr(one, key)) != (theirs := getattr(other, key)):
            raise ConfigError(f"{a.root.name} and {b.root.name} differ in '{key}' ({mine!r}, {theirs!r}): {what}")


def frozen(path: Path, env: str, kwargs: dict[str, Any], panel: Panel) -> Panel:
    """Reads the scenarios of the file, or writes those of ``panel`` if there is none yet.

    Raises:
        ConfigError: They are another environment's.
    """
    if not path.is_file():
        content = {"env": env, "env_kwargs": kwargs, "seeds": panel.seeds, "options": panel.options}
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content) + "\n", encoding="utf-8")
        return panel
    with reading(f"Cannot read the scenarios in '{path}'", "Expected a file written here."):
        content = json.loads(path.read_text(encoding="utf-8"))
        stored = Panel([int(s) for s in content["seeds"]], [dict(o) for o in content["options"]])
        of = content["env"], content["env_kwargs"]
    if of != (env, json.loads(json.dumps(kwargs))):
        raise ConfigError(f"'{path}' holds scenarios of {of[0]} ({of[1]}), not of {env} ({kwargs}).")
    return stored
