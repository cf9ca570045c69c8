"""The command line: ``marft COMMAND …``.

A command's module is imported when it is used: ``envs``, ``play``, ``check`` and ``show`` load no torch.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from types import FrameType, ModuleType
from typing import Annotated, Any

import tyro

import marft_envs
from marft_algos import terminal
from marft_algos.config import arguments, manual, trust
from marft_algos.ranges import COUNT, NOT_NEGATIVE
from marft_algos.terminal import clean, fail, say
from marft_envs.errors import ConfigError, MarftError, did_you_mean, elsewhere
from marft_envs.registration import FOREIGN, LOADER, PROGRAM, broken, check_keywords, import_for

COMMANDS = {command: entry.what for command, entry in manual.MANUAL.items() if entry.module}
GROUPS = {title: [c for c in COMMANDS if manual.MANUAL[c].title == title] for title in manual.TITLES}
"""Title, as ``marft`` alone lists them -> commands."""

FOLDED = ("envs", "algorithms", "doctor", "train", "sft", "dpo", "show", "eval", "bench", "versus")
"""Commands whose lines are folded to the terminal's width; others print data, or the prompts of agents as they are."""

WELCOME = (resources.files("marft_algos.cli") / "welcome.txt").read_text(encoding="utf-8").rstrip()


def welcome() -> str:
    """Writes what ``marft`` alone says: how to begin, and every command in its group."""
    lines = []
    for title, listed in GROUPS.items():
        lines += [f"{title}:", *(f"  {command:<12}{COMMANDS[command]}" for command in listed)]
    return WELCOME.format(commands="\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code (130 after Ctrl-C, SIGTERM or SIGHUP)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    folds = words[:1] in ([command] for command in FOLDED) and "--json" not in words
    try:
        with _terminable(), terminal.prepared(folds=folds), trust.command(words) as words:
            return _dispatch(words)
    except trust.NotExecuted as reason:
        say(reason)
        return 0
    except (MarftError, UnicodeEncodeError) as error:
        if debug:
            raise
        fail(_explained(error, words))
        return 2 if isinstance(error, arguments.UsageError) else 1
    except KeyboardInterrupt as stop:
        say(str(stop) or "stopped", error=True)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: `marft envs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _explained(error: Exception, words: list[str]) -> str:
    """Says what is wrong, and what to type where an error's own words name no command and no option."""
    if isinstance(error, UnicodeEncodeError):  # wherever a name comes into a text
        near = ascii(error.object[max(error.start - 80, 0) : error.end + 80])
        return f"A name is no UTF-8, as what is written must be: {near}. Expected a name in UTF-8: rename it first."
    if re.search(r"\bmarft [a-z]|--[a-z]", str(error)) or words[:1] not in ([command] for command in COMMANDS):
        return str(error)
    verb = words[1:2] if words[0] == "bench" and words[1:2] in (["run"], ["report"]) else []
    return f"{error}\nAll options: {shlex.join(['marft', words[0], *verb, manual.WHOLE])}"


@contextmanager
def _terminable() -> Iterator[None]:
    """Makes SIGTERM, and the SIGHUP of a terminal that is closed, a Ctrl-C: what was started ends, and is saved.

    A SIGHUP that is ignored stays so: ``nohup``.
    """
    hook = sys.unraisablehook
    with terminal.signals({signal.SIGTERM: signal.default_int_handler, signal.SIGHUP: _hung_up}) as heard:
        sys.unraisablehook = partial(_repeated, hook) if heard else hook
        try:
            yield
        finally:
            sys.unraisablehook = hook


def _repeated(hook: Callable[[Any], object], error: Any) -> None:
    """Repeats a Ctrl-C that came while a destructor ran, from where nothing can be raised: Python only prints it."""
    if not issubclass(error.exc_type, KeyboardInterrupt):
        hook(error)
        return
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()


def _hung_up(number: int, frame: FrameType | None) -> None:
    terminal.leave()
    signal.default_int_handler(number, frame)


def _dispatch(words: list[str]) -> int:
    if words[0:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    if not words or words == ["help"] or manual.asked(words[:1]):
        say(terminal.folded(welcome(), 80))
        return 0
    if words[0] in ("--version", "-V"):
        say(f"marft {marft_envs.__version__}")
        return 0
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        fail(_meant(words))
        return 2
    run = getattr(module_of(command), f"run_{command}")
    return arguments.called(run, rest, prog=f"marft {command}") or 0  # most commands return nothing


def module_of(command: str) -> ModuleType:
    """Imports the module that a command is in."""
    return importlib.import_module(f"marft_algos.{manual.MANUAL[command].module}")


def _meant(words: list[str]) -> str:
    """Says what to type instead of words that do not begin with a command."""
    first, later = words[0], next((i for i, word in enumerate(words) if word in COMMANDS), None)
    if first.startswith("-") and later is not None:
        return f"the command comes first: {shlex.join(['marft', words[later], *words[:later], *words[later + 1 :]])}"
    if first in importlib.import_module("marft_algos.config.settings").choices()["algo"]:
        return f"there is no command '{first}'; as an algorithm: {shlex.join(['marft', 'train', *words])}"
    if here := elsewhere("marft_algos").get(f"marft.{first}"):
        return f"there is no command '{first}'. Type: {here}"
    return f"there is no command '{first}'. {did_you_mean(first, COMMANDS)}"


# marft envs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EnvsArguments:
    """Lists the environments, or describes one."""

    id: Annotated[str, tyro.conf.Positional] = ""
    """Which one to describe; empty: list all."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""


def run_envs(options: EnvsArguments) -> None:
    """``marft envs [ID]``."""
    if options.id:
        say(describe(options.id, options.env_kwargs))
        return
    specs = marft_envs.list_envs()
    say(*terminal.aligned([[spec.id, spec.summary] for spec in specs]), sep="\n")
    say(f"\nOne of them: marft envs {specs[0].id}")


def describe(env_id: str, kwargs: dict[str, Any]) -> str:
    """Describes an environment: what it is, who is in the team, who sees whom, what they see."""
    spec = marft_envs.spec(env_id)
    env = marft_envs.make(spec.id, **kwargs)
    env.reset(seed=0)
    base = env.unwrapped
    lines = [f"{spec.id}: {spec.summary}" if spec.summary else spec.id, ""]
    build = spec.load()
    for text in (inspect.getdoc(inspect.getmodule(build)), inspect.getdoc(build)):
        lines += [terminal.plain(text), ""] if text else []
    lines += ["Team:"]
    for agent in base.team:
        lines.append(f"  {agent.name}{' (gives the answer)' if agent.with_answer else ''}")
        lines += [f"      {line}" for line in agent.prompt.splitlines()]
    lines += ["", f"D: {type(base.dependency).__name__}; with seed 0 the first to act: {', '.join(base.ready_agents)}"]
    first = base.ready_agents[0]
    lines += ["", f"What {first} sees with seed 0 (task {clean(base.task.task_id, line=True)}):"]
    for message in base.messages(first):
        lines += [f"  <{message['role']}>", *(f"  {line}" for line in message["content"].splitlines())]
    env.close()
    typed = shlex.quote(env_id)
    lines += ["", f"Next: marft play {typed}   ·   marft train --env {typed}"]
    return "\n".join(lines)


# marft algorithms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlgorithmsArguments:
    """Lists the algorithms of marft train, or describes one."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """Which one to describe; empty: list all."""


def run_algorithms(options: AlgorithmsArguments) -> None:
    """``marft algorithms [NAME]``."""
    base = importlib.import_module("marft_algos.algorithms.base")
    names = [options.name] if options.name else base.names()
    texts = {name: terminal.plain(inspect.getdoc(inspect.getmodule(base.get(name))) or name) for name in names}
    rows = terminal.aligned([[name, text.partition("\n")[0]] for name, text in texts.items()])
    say(*[texts[options.name]] if options.name else rows, sep="\n")
    say(f"\nTrain with it:  marft train {names[0]} --env relay-v0\nIts settings:   marft train {names[0]} --help")


# marft profiles -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfilesArguments:
    """Writes the agents' profiles of an environment as JSON, to be edited and given back.

    ``marft train --env ID --env-kwargs profiles=FILE`` plays with it.
    """

    id: Annotated[str, tyro.conf.Positional]
    """The environment's id."""
    shots: Annotated[int, COUNT] = 4
    """Episodes of the task's expert that each profile shows as worked examples (few-shot prompting)."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Of the first of these episodes; they are of the training split, where there is one."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""


def run_profiles(options: ProfilesArguments) -> None:
    """``marft profiles ID > FILE``."""
    from marft_algos.config import presets
    from marft_envs.records import experts

    if not presets.accepts(options.id, "profiles"):
        raise ConfigError(
            f"'{options.id}' takes no profiles, so these would not be shown. Expected an environment with that"
            " argument, such as those of mathematics, code and tools: marft envs"
        )
    env = marft_envs.make(options.id, **options.env_kwargs)
    profiles = experts.few_shot(env, options.shots, options.seed)
    env.close()
    say(json.dumps(profiles, indent=2, ensure_ascii=False))


# marft check ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckArguments:
    """Runs PettingZoo's own tests and the Flex invariants on an environment.

    Of an environment of others it first says, clause by clause, what it offers and what is missing.
    """

    target: Annotated[str, tyro.conf.Positional]
    """An id, ``module:id``, or ``module:callable`` where the callable returns an environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""


def run_check(options: CheckArguments) -> int:
    """``marft check ID|MODULE:ENV``."""
    clauses = foreign_clauses(options.target, options.env_kwargs)
    say(*clauses, sep="\n" if clauses else "", end="\n" if clauses else "")
    if not all(clause.met for clause in clauses):
        return 1
    say(marft_envs.check_env(factory(options.target, options.env_kwargs)))
    return 0


def foreign_clauses(target: str, kwargs: dict[str, Any]) -> list[Any]:
    """Lists what an environment of others offers, clause by clause; empty for those of this project."""
    try:
        foreign = "target" in marft_envs.spec(target).kwargs and not target.startswith(PROGRAM)
    except ConfigError:
        return []  # `factory` says what is wrong
    return list(importlib.import_module(LOADER.partition(":")[0]).clauses(target, **kwargs)) if foreign else []


def factory(target: str, kwargs: dict[str, Any]) -> Any:
    """Returns a callable without arguments that builds ``target``: an id, ``module:id`` or ``module:callable``."""
    module, _, name = target.rpartition(":")
    if not module or not name.isidentifier() or target.startswith((*FOREIGN, PROGRAM)):
        return lambda: marft_envs.make(target, **kwargs)
    try:
        build = getattr(import_for(target, module), name)
    except AttributeError as error:
        raise ConfigError(f"Cannot load '{target}': {error}. Expected an importable module:callable.") from error
    if not callable(build):
        return lambda: build
    if foreign_clauses(target, kwargs):
        return lambda: marft_envs.make(target, **kwargs)
    check_keywords(target, build, kwargs)

    def built() -> Any:
        try:
            return build(**kwargs)
        except MarftError:
            raise
        except Exception as error:  # whatever a user's own function raises
            raise broken(target, f"'{name}' makes no environment", error) from error

    return built


if __name__ == "__main__":
    sys.exit(main())
