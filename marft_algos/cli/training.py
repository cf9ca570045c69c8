"""What the words behind ``marft train`` mean: the settings of a new run, or of one that goes on."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import marft_envs
from marft_algos.config import arguments, elsewhere, forms, manual, presets
from marft_algos.config.arguments import typed
from marft_algos.models import EMBEDDED
from marft_algos.ranges import hints
from marft_algos.runs import paths, start
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import say
from marft_envs.errors import ConfigError
from marft_envs.registration import versioned

if TYPE_CHECKING:
    from marft_algos.config.settings import Draft, TrainConfig


def typed_settings(argv: list[str]) -> tuple[TrainConfig, RunFolder | None]:
    """Reads the settings that the command line means, and the run to go on with if there is one."""
    from marft_algos.config import settings

    bare = list(itertools.takewhile(lambda word: not word.startswith("-"), argv[:2]))
    # ALGO, an environment's id, or both.
    named = {"--env" if versioned(word) in marft_envs.registry else "--algo": word for word in reversed(bare)}
    words = [*itertools.chain(*named.items()), *argv[len(named) :]]
    words = [re.sub(r"^--algorithm(?==|$)", "--algo", word) for word in words]
    words, files = arguments.take(words, "resume", "config", "data")
    _, first = arguments.take(words, "preset", "algo", "env", "models", "adapters", "start")
    first |= {"env": versioned(first["env"])} if "env" in first else {}
    run = RunFolder.open(files["resume"]) if "resume" in files else None
    base = _base_settings(run, files, first)
    command = argv[0] if argv and argv[0] in manual.MANUAL else "train"
    about = manual.About(
        prog=f"marft {command}{' [ALGO]' * (command == 'train')}",
        command=command,
        text=_about(base["preset"], command, whole=manual.WHOLE in argv),
        sections=("common", *["algorithm"] * ("algo" in first)),
    )

    def made(values: dict[str, Any]) -> TrainConfig:
        algorithm = {name: values.pop(name) for name in base["algorithm"]}
        # A key given here replaces that key, and leaves the others of the preset.
        preset = run is None and "config" not in files
        values["env_kwargs"] = arguments.over(base["env_kwargs"], values["env_kwargs"], preset)
        return settings.made(values | {"algorithm": algorithm})

    try:
        config = arguments.read(_sections(base, manual.MANUAL[command].common), words, about, made)
    except SystemExit as refused:
        for hint in _hints(argv, base) if refused.code else []:
            say(hint, error=True)
        raise
    if run is not None and config.seed != base["seed"]:
        raise ConfigError(
            f"'{run.root}' has drawn from seed {base['seed']}, and goes on so. Leave out --seed; to begin another run"
            f" with its weights: {typed('train', '--start', run.root, '--seed', config.seed)}"
        )
    return paths.fetched(config), run


def _sections(base: Draft, common: Sequence[str]) -> dict[str, forms.Form]:
    """Lists the options by the sections of the settings, the common ones first."""
    from marft_algos.config.settings import SECTIONS, TrainConfig, settings_of

    title, groups = "", {"common": [*common]}
    for name in hints(TrainConfig):
        title = SECTIONS.get(name, title)
        if name not in (*common, "algorithm"):
            groups.setdefault(title, []).append(name)
    kind = settings_of(base["algo"])
    of_run = {title: forms.section(TrainConfig, names, base) for title, names in groups.items()}
    return of_run | {"algorithm": forms.section(kind, hints(kind), base["algorithm"], inspect.getdoc(kind) or "")}


def _about(preset: str, command: str, whole: bool) -> str:
    """Writes what help says above the options."""
    first = {
        "train": "Trains a team, by the algorithm ALGO (marft by default).",
        "sft": "Starts a team from demonstrations: marft train sft.",
        "dpo": "Trains a team on pairs of recorded episodes, of which one ended better: marft train dpo.",
    }
    names = "  " + ", ".join(presets.SUMMARIES)
    described = "\n".join(f"  {name:<16}  {what}" for name, what in presets.SUMMARIES.items())
    return (
        f"{first[command]}\n\nBeside the settings:\n"
        "  --resume RUN      go on with a run\n"
        "  --config FILE     settings from TOML; a run's config.toml repeats it\n"
        "  --data PATH       math problems from a JSONL file, or a named data set\n"
        "  --dry-run         check the settings and estimate the memory; load no weights, start nothing, send nothing\n"
        "  --nproc N         on N processes of this machine; those of several: torchrun (docs/scale.md)\n"
        "  --trust           let a file's settings execute and send, after showing them (docs/trust.md)\n\n"
        f"Presets (the defaults below are those of {preset}):\n{described if whole else names}"
    )


def _hints(argv: list[str], base: Draft) -> list[str]:
    """Says what to type for an algorithm behind options, an environment's argument, another trainer's setting."""
    from marft_algos.config import settings

    known, algorithms = {*base, *base["algorithm"]}, settings.choices()["algo"]
    hints = []
    for i, word in enumerate(argv):
        option, _, value = word.removeprefix("--").partition("=")
        name = option.replace("-", "_")
        if i and word in algorithms and not argv[i - 1].startswith("--algo"):
            before = argv[int(argv[0] in algorithms) : i]  # `marft sft grpo` names two
            hints.append(f"The algorithm comes first: {typed('train', word, *before, *argv[i + 1 :])}")
        elif not word.startswith("--") or name in known:
            continue
        elif here := elsewhere.option(name):
            hints.append(f"--{option} is called here: {here}")
        elif here := elsewhere.of_environment(name, base["env"], value or "…"):
            hints.append(here)
    return hints


def _base_settings(run: RunFolder | None, files: Mapping[str, str], first: Mapping[str, str]) -> Draft:
    """Reads what the options change: the resumed run's settings, a file's, or a preset's."""
    from marft_algos.config import settings

    if run is not None:
        if odd := files.keys() - {"resume"}:
            raise ConfigError(f"A run goes on with its own settings and data. Leave out --{min(odd)} FILE.")
        return settings.draft(_before(run, first))
    first = start.named_in(files.get("config")) | dict(first)
    origin = first.get("start", "")
    # The presets of embedded models are made for them; a real model has others.
    if origin:
        base = settings.draft(start.defaults(origin, first.get("preset", ""), first.get("env", "")))
    else:
        embedded = first.get("models", "embedded") in EMBEDDED and "config" not in files
        default = presets.suited(first.get("env", "")) if embedded else "default"
        preset = presets.get(first.get("preset", default))
        if "env" in first:
            marft_envs.spec(first["env"])  # an id that is mistyped is an error before torch is loaded
        if "env" in first and first["env"] != preset.get("env"):
            preset["env_kwargs"] = presets.keep_accepted(first["env"], preset.get("env_kwargs", {}))
        base = settings.layered(preset, settings.draft())
    named: dict[str, Any] = {key: word for key, word in {**first, **files}.items() if key in ("algo", "env", "data")}
    base = settings.layered(named, base)
    if "config" in files:
        base = settings.layered(settings.read(files["config"]), base)
    return settings.layered({"algo": first.get("algo", base["algo"])}, base)


def _before(run: RunFolder, first: Mapping[str, str]) -> TrainConfig:
    """Reads the settings of a run that goes on.

    Raises:
        ConfigError: The words name another one.
    """
    if "start" in first:
        raise ConfigError(
            f"A run that goes on has begun. To begin another one with its weights: {typed('train', '--start')}"
            f" {run.root}"
        )
    before = paths.of_run(run, first)
    if any(first.get(key, getattr(before, key)) != getattr(before, key) for key in ("algo", "env")):
        algo = [first["algo"]] if "algo" in first else []
        env = ["--env", first["env"]] if "env" in first else []
        raise ConfigError(
            f"'{run.root}' has trained with {before.algo} on {before.env}, and goes on so. To begin another run"
            f" with its weights: {typed('train', *algo, '--start', run.root, *env)}"
        )
    return before
