"""``marft completion SHELL``: what bash, zsh or fish needs to complete commands, options, ids and names."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Annotated, Any, Literal

import tyro

from marft_algos.cli import app
from marft_algos.config import forms, settings
from marft_algos.ranges import hints
from marft_algos.terminal import say

_EVERYWHERE = ("--help", "--help-all", "--trust", "--debug")
_TRAINS = ("train", "sft", "dpo")
_TRAIN_ONLY = ("--resume", "--config", "--data", "--dry-run", "--nproc")


@dataclass(frozen=True)
class CompletionArguments:
    """Prints a script that completes commands, options, environments and algorithms."""

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """Which one."""


def run_completion(options: CompletionArguments) -> None:
    """``marft completion SHELL``."""
    say(_fish() if options.shell == "fish" else _bash(zsh=options.shell == "zsh"), end="")


def options_of() -> dict[str, Any]:
    """Command -> the dataclass that its options are read into; those of ``train`` are its settings."""
    verbs = app.module_of("bench").VERBS
    spoken = [(command, command, command) for command in app.COMMANDS]
    spoken += [(f"bench {verb}", "bench", verb) for verb in verbs]
    found = {typed: getattr(app.module_of(place), f"{name.title()}Arguments", None) for typed, place, name in spoken}
    return {typed: form for typed, form in found.items() if form is not None}


def words() -> dict[str, list[str]]:
    """What may follow each command: its verbs, ids or algorithms, then its options."""
    found: dict[str, list[str]] = {"": [*app.COMMANDS, "--version", "--help"]}
    found |= {command: _options(form) for command, form in options_of().items()}
    known = settings.choices()
    for command in ("envs", "play", "check", "profiles"):
        found[command] = [*known["env"], *found[command]]
    found["algorithms"] = [*known["algo"], *found["algorithms"]]
    found["bench"] = list(app.module_of("bench").VERBS)
    found["new"] = ["env", *found["new"]]
    found["completion"] = ["bash", "zsh", "fish"]
    trained = [*_options(settings.TrainConfig), *_TRAIN_ONLY]
    own = {option for name in known["algo"] for option in _options(settings.settings_of(name))}
    trained += sorted(own - set(trained))
    for command in _TRAINS:
        first = known["algo"] if command == "train" else []
        found[command] = list(dict.fromkeys([*first, *found.get(command, []), *trained]))
    return found


def _options(form: Any) -> list[str]:
    """The options of a dataclass, as they are typed; what has no dashes is left out."""
    named = [name for name, hint in hints(form).items() if name != "algorithm" and not forms.is_positional(hint)]
    return [*map(_flag, named), *_EVERYWHERE]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _bash(zsh: bool) -> str:
    """A function for bash; zsh understands it once bashcompinit is loaded."""

    def cases(listed: dict[str, list[str]]) -> str:
        return "\n".join(f"    {word}) words={shlex.quote(' '.join(w))} ;;" for word, w in listed.items())

    text = (resources.files("marft_algos.cli") / "completion.bash").read_text(encoding="utf-8")
    quoted = {shlex.quote(command): following for command, following in words().items()}
    known = {_flag(name): words for name, words in settings.choices().items()}
    script = Template(text).substitute(options=cases(known), commands=cases(quoted))
    return "autoload -U +X bashcompinit && bashcompinit\n" * zsh + script


def _fish() -> str:
    """Lines for fish: a condition, and what it may be followed by."""
    lines = [
        f"complete -c marft -n __fish_use_subcommand -f -a {name} -d {shlex.quote(what)}"
        for name, what in app.COMMANDS.items()
    ]
    known = {_flag(name): words for name, words in settings.choices().items()}
    for command, following in words().items():
        if not command:
            continue
        condition = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        for word in following:
            if not word.startswith("--"):
                lines.append(f"complete -c marft -n '{condition}' -f -a {shlex.quote(word)}")
                continue
            listed = f" -x -a {shlex.quote(' '.join(known[word]))}" if word in known else ""
            lines.append(f"complete -c marft -n '{condition}' -l {word.removeprefix('--')}{listed}")
    return "\n".join([*lines, ""])
