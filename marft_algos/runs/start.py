"""Where a run begins: with the weights of another run's checkpoint (the setting ``start``)."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_algos.config import presets, values
from marft_algos.config import settings as configs
from marft_algos.config.settings import TrainConfig
from marft_algos.runs import paths
from marft_algos.runs.disk import copy, replacing, write_whole
from marft_algos.runs.folder import UNTRAINED, RunFolder
from marft_envs import artefacts
from marft_envs.errors import ConfigError, reading

_MODEL = ("full_finetune", "lora_r", "lora_alpha", "lora_targets")
"""Settings that decide what weights fit."""
LEAST = 0.1
"""Share of solved episodes below which reinforcement hardly ever improved a team (docs/map.md)."""
_TASK = ("env_kwargs", "eval_kwargs")
TEAM = (
    *("env", *_TASK, "models", "policies", *_MODEL, "quantize", "thinking", "template_tools", "date", "dtype"),
    *("chat_template", "gradient_checkpointing", "critic_hidden", "max_new_tokens", "context", "head_dtype"),
    "show_budget",
)
"""Settings that are the other run's unless they are given."""
_ORIGIN = "origin.json"
_DATA = "data.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint that another run begins with."""

    weights: Path
    """Folder that holds ``policies/``."""
    run: RunFolder
    """Whose checkpoint it is."""
    config: TrainConfig
    """That run's settings, its models where they are now."""

    @property
    def policies(self) -> list[str]:
        """Returns the policies whose weights are there."""
        return sorted(folder.name for folder in (self.weights / "policies").iterdir() if folder.is_dir())

    def __str__(self) -> str:
        return f"{self.run.root.name}, {self.weights.name} ({self.config.algo} on {self.config.env})"


def locate(start: str) -> Origin:
    """Finds the checkpoint that a setting names: of a run the last, or the one behind its name.

    Args:
        start: ``RUN``, ``RUN/last``, ``RUN/best``, ``RUN/100``, the checkpoint's folder, or a team on the hub,
            ``USER/NAME`` or ``USER/NAME@REVISION``.

    Raises:
        ConfigError: There is none.
    """
    from marft_algos.runs import checkpoint, hub

    path = Path(hub.local(start)).expanduser()
    if (path / "policies").is_dir():
        run = next((RunFolder(up) for up in path.absolute().parents[:2] if (up / "config.toml").is_file()), None)
        if run is None:
            raise ConfigError(
                f"'{start}' belongs to no run: there is no config.toml above it. Expected a run, or a checkpoint in"
                f" one. Weights alone: --adapters POLICY={path / 'policies'}/POLICY"
            )
        weights = path
    elif path.parent.name == "policies" and path.is_dir():
        raise ConfigError(
            f"'{start}' is one policy of a checkpoint. All of its policies: --start {path.parents[1]}. This one alone:"
            f" --adapters {path.name}={path}"
        )
    else:
        inside = path.parents[1] if path.parent.name == "checkpoints" else path.parent
        named = not _is_run(path) and _is_run(inside)
        run = RunFolder.open(inside if named else path)
        number = path.name.removeprefix("step_")
        which = str(int(number)) if number.isdecimal() else path.name
        weights = checkpoint.pick(run.checkpoints, which if named else "last")
    return Origin(weights.absolute(), run, paths.of_run(run, {"adapters": {}, "start": ""}))


def _is_run(path: Path) -> bool:
    return any((root / "config.toml").is_file() for root in (path, Path("runs") / path))


def named_in(path: Path | str | None) -> dict[str, str]:
    """Returns the start and the preset that a file of settings names; without a file, none."""
    table = values.read(path) if path else {}
    return {key: str(table[key]) for key in ("start", "preset") if table.get(key)}


def defaults(start: str, preset: str = "", env: str = "") -> TrainConfig:
    """Returns the settings of a run with this start in which nothing else is given.

    Args:
        start: As ``locate`` takes it; empty: none.
        preset: Where settings come from that are not about team, model and task; by default the other run's.
        env: Another environment: of the task's arguments those stay that it takes, too.
    """
    if not start:
        return configs.build(presets.get(preset or "default"))
    origin = locate(start)
    config = origin.config
    base = configs.build(presets.get(preset or (config.preset if config.preset in presets.PRESETS else "default")))
    team = {key: getattr(config, key) for key in TEAM}
    if env and env != config.env:
        team |= {key: presets.keep_accepted(env, team[key], general=True) for key in _TASK}
        team = {k: v for k, v in team.items() if k not in ("models", "policies") or isinstance(v, str)}
    return configs.build({**team, "start": start}, base)


def check(config: TrainConfig, models: Mapping[str, str], agents: Mapping[str, str]) -> None:
    """Checks that the start's weights fit the team, before any are loaded.

    Args:
        config: The settings.
        models: Policy with weights here -> its base model.
        agents: Agent -> policy.

    Raises:
        ConfigError: They do not; the message says what to type.
    """
    if not config.start:
        return
    origin = locate(config.start)
    for key in _MODEL:
        here, there = getattr(config, key), getattr(origin.config, key)
        if here != there:
            option = f"--{key.replace('_', '-')}"
            raise ConfigError(
                f"This run begins with {origin}, whose {key} is {there!r}; here it is {here!r}, and weights of one do"
                f" not fit the other. Leave {option} out, or --start."
            )
    for policy in loaded(config, [*models]):
        if policy not in origin.policies:
            raise ConfigError(_absent(origin, policy, agents))
        there = origin.config.models
        base = there if isinstance(there, str) else there.get(policy, "")
        if base != models[policy] and os.path.abspath(models[policy]) != base:
            raise ConfigError(
                f"Policy '{policy}' of {origin} stands on the model '{base}'; here it would stand on"
                f" '{models[policy]}'. Leave --models out, or --start."
            )
    for policy in models:
        if _is_bare(config, policy) and policy in origin.policies:
            raise ConfigError(
                f"Policy '{policy}' is frozen, and frozen policies of a full fine-tune are their base model. To play"
                f" with what {origin} learnt: --models {policy}={origin.weights / 'policies' / policy}, and no --start."
            )


def _is_bare(config: TrainConfig, policy: str) -> bool:
    """Whether the policy has no weights but its base model's."""
    return config.full_finetune and policy in config.frozen


def _absent(origin: Origin, policy: str, agents: Mapping[str, str]) -> str:
    there, first = origin.policies, origin.policies[0]
    shares = [f"{agent}={name if name in there else first}" for agent, name in agents.items()]
    rest = [f"{name}={origin.weights / 'policies' / name}" for name in there if name in agents.values()]
    fresh = f"with --adapters {' '.join(rest)} instead of --start" if rest else "without --start"
    return (
        f"{origin} has no policy '{policy}'; it has {', '.join(there)}. Say whose weights it begins with, such as"
        f" --policies {' '.join(shares)}; or begin it from its base model, {fresh}."
    )


def loaded(config: TrainConfig, names: Sequence[str]) -> list[str]:
    """Returns those of the policies that begin with the start's weights."""
    return [name for name in names if not (name in config.adapters or _is_bare(config, name))] if config.start else []


def create(config: TrainConfig, policies: Sequence[str]) -> RunFolder:
    """Makes the folder of a new run, with its settings in it."""
    stem = f"{config.env}-{config.algo}".replace("/", "_").replace(":", "_")
    text = config.to_toml()
    run = RunFolder.create(config.runs_dir, config.name, stem)
    keep(run, config, policies)
    run.write_config(text)
    return run


def keep(run: RunFolder, config: TrainConfig, names: Sequence[str]) -> None:
    """Copies the weights of another run that a run begins with into its folder, if it does.

    What it is compared with stays there, whatever becomes of the other run.

    Args:
        run: The new run.
        config: Its settings.
        names: Its policies with weights here.

    Raises:
        DamagedError: They are not what was saved.
        RunError: They cannot be written.
    """
    if not (names := loaded(config, names)):
        return
    origin = locate(config.start)
    artefacts.check(origin.weights, *(f"policies/{name}" for name in names))
    with run.locked(), replacing(run.start) as aside:
        for name in names:
            copy(origin.weights / "policies" / name, aside / "policies" / name)
        whose = {"run": str(origin.run.root.absolute()), "checkpoint": origin.weights.name, "policies": list(names)}
        whose |= {"algo": origin.config.algo, "env": origin.config.env}
        (aside / _ORIGIN).write_text(json.dumps(whose, indent=1) + "\n", encoding="utf-8")
        artefacts.write(aside)


def check_evaluation(run: RunFolder, problems: Sequence[Mapping[str, Any]]) -> None:
    """Compares the problems (options of ``reset``) of a run's evaluations with those that it began with.

    Raises:
        ConfigError: They are others, so that no gain could be measured.
    """
    before = run.evaluation(UNTRAINED) if run.recorded("eval")[:1] == [UNTRAINED] else []
    both = zip(problems, before, strict=False)
    others = [then for now, then in both if now.get("task_id", then.task_id) != then.task_id and not then.lost]
    if before and (others or len(problems) != len(before)):
        raise ConfigError(
            f"'{run.root}' is evaluated on {len(before)} other problems. Leave out --eval-episodes, --eval-kwargs and"
            f" --env-kwargs. Other problems have an evaluation of their own: marft eval {run.root}"
        )


def check_data(run: RunFolder, config: TrainConfig, data: Mapping[str, Mapping[str, Any]]) -> None:
    """Compares what a run draws from with what it drew from before, and notes it.

    Args:
        run: Its folder.
        config: The settings that it goes on with: with other ``env_kwargs`` it may train on something else.
        data: Part of the run -> digest of its problems, see :func:`marft_envs.problems.rows.digest`.

    Raises:
        ConfigError: It has changed; nothing is written.
        RunError: The folder cannot be written.
    """
    file, source, before = run.root / _DATA, getattr(config.algorithm, "demonstrations", ""), dict[str, Any]()
    found = dict(data) | {"demonstrations": {"name": source, "sha256": artefacts.sha256(Path(source))}}
    if file.is_file():
        with reading(f"'{file}' cannot be read", "Expected what marft train wrote. Take it away to go on."):
            before = dict(json.loads(file.read_text(encoding="utf-8")))
    other = run.config_file.is_file() and configs.load(run.config_file).env_kwargs != config.env_kwargs
    for part, now in found.items():
        then = before.get(part) or {}
        if part == ("training" if other else "") or not (then.get("sha256") and now.get("sha256")):
            continue
        if (then["sha256"], then.get("corpus")) != (now["sha256"], now.get("corpus")):
            again = shlex.join(["marft", "train", "--start", str(run.root)])
            raise ConfigError(
                f"What {part} draws from has changed since '{run.root}' began: {_change(then, now, config)}. Nothing"
                " was trained or written. Put back what was there, and give the same command again; or begin"
                f" another run with this one's weights: {again}"
            )
    if before != found:
        with run.locked():
            write_whole(file, json.dumps(found, indent=1) + "\n")


def _change(then: Mapping[str, Any], now: Mapping[str, Any], config: TrainConfig) -> str:
    """Says what is different, as far as it is known."""
    name = now["name"] or config.env
    if then["sha256"] == now["sha256"]:
        return f"the corpus of {name} ({config.env_kwargs.get('corpus', 'its own')}) is another one"
    if "rows" not in now:
        return f"the file {name} is another one"
    differ = [key for key, content in then["some"].items() if now["some"].get(key) != content]
    first = f"; '{differ[0]}' was another, or is gone" if differ else ""
    return f"{name} had {then['rows']} rows, and has {now['rows']} now{first}"


def record(run: RunFolder) -> str:
    """Says whose weights a run began with; empty if its own."""
    file = run.start / _ORIGIN
    if not file.is_file():
        return ""
    with reading(f"'{file}' cannot be read", "Expected what marft train --start wrote."):
        origin: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        names = ", ".join(map(str, origin["policies"]))
        return f"{origin['run']}, {origin['checkpoint']} ({origin['algo']} on {origin['env']}): {names}"
