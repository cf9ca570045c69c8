"""How values are written on the command line: ``KEY=VALUE`` for tables, so ``--lr actor_0=1e-4 reasoner_0=2e-4``."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import shlex
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import tyro
from pydantic import TypeAdapter, ValidationError
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from marft_algos import terminal
from marft_algos.config import elsewhere, forms, manual
from marft_algos.config.forms import OPTIONS
from marft_algos.ranges import NONE, check, defaults, hints
from marft_algos.terminal import say
from marft_envs.errors import ConfigError


class UsageError(ConfigError):
    """A command's words cannot be: it ends with 2, as for words that no parser can read."""


SHOWN = 60
"""Characters of an environment's argument that a heading shows."""
registry = ConstructorRegistry()
"""Use as ``with registry: tyro.cli(…)``."""


def value(text: str) -> Any:
    """Reads a value as in TOML (``3``, ``true``, ``[0, 1]``) or JSON (``{"a": 1}``, ``null``), else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass  # it may be JSON
    try:
        return json.loads(text) if text[:1] in ("{", "[") or text == "null" else text
    except json.JSONDecodeError:
        return text


def over(base: Mapping[str, Any], typed: Mapping[str, Any], preset: bool) -> dict[str, Any]:
    """Returns an environment's arguments: those typed over those that stand already; ``null`` takes one away.

    Args:
        base: Of a preset, a file or a run.
        typed: As typed.
        preset: ``base`` is a preset's: made for the preset's domain of tools, and not kept for another one.
    """
    other = preset and typed.get("domain", base.get("domain")) != base.get("domain")
    return {key: inner for key, inner in {**({} if other else base), **typed}.items() if inner is not None}


def _written(words: list[str], plain: bool, convert: Callable[[str], Any]) -> Any:
    """Reads the words as a value or a table of values.

    Raises:
        ValueError: Something else than ``KEY=VALUE`` where only that will do.
    """
    if plain and len(words) == 1 and ("=" not in words[0] or words[0].startswith("{")):
        return convert(words[0])
    for word in words:
        if "=" not in word:
            raise ValueError(f"'{word}' is no KEY=VALUE")
    return {key: convert(text) for key, _, text in (word.partition("=") for word in words)}


_NUMBERS = {int: "whole number", float: "number"}


@registry.primitive_rule
def _option(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Numbers, or none where the type says so, and tables: an error says in words what cannot be read."""
    union = typing.get_origin(info.type) in (typing.Union, types.UnionType)
    parts = typing.get_args(info.type) if union else (info.type,)
    none, rest = type(None) in parts, [part for part in parts if part is not type(None)]
    if any(typing.get_origin(part) is dict for part in parts):
        words: Any = "*"
        plain = len(rest) > 1
        metavar, read = "VALUE|KEY=VALUE…" if plain else "KEY=VALUE…", partial(_table, TypeAdapter(info.type), plain)
    elif len(rest) == 1 and rest[0] in _NUMBERS:
        words = 1
        metavar, read = rest[0].__name__.upper() + "|none" * none, partial(_number, rest[0], none)
    else:
        return None
    return PrimitiveConstructorSpec(
        nargs=words, metavar=metavar, instance_from_str=read, is_instance=lambda _: True, str_from_instance=_typed
    )


def _number(kind: Any, none: bool, words: list[str]) -> Any:
    if none and words[0].lower() == NONE:
        return None
    try:
        return kind(words[0])
    except ValueError as error:
        raise ValueError(f"'{words[0]}' is no {_NUMBERS[kind]}{' and not none' * none}") from error


def _table(kind: TypeAdapter[Any], plain: bool, words: list[str]) -> Any:
    for convert in (value, str):  # "7" is a number, and may be meant as a name
        with contextlib.suppress(ValidationError):
            return kind.validate_python(_written(words, plain, convert))
    return _written(words, plain, value)  # the field's own check says what it may be


def _typed(default: Any) -> list[str]:
    if isinstance(default, dict):
        return [f"{key}={inner}" for key, inner in default.items()]
    return [NONE if default is None else str(default)]


def called(run: Callable[..., Any], argv: list[str], *, prog: str) -> Any:
    """Calls a command with ``argv``, or with the dataclass that its parameter is, which ``argv`` is parsed into."""
    (takes,) = inspect.signature(run, eval_str=True).parameters.values()
    return run(argv if takes.annotation == list[str] else parse(takes.annotation, argv, prog=prog))


def parse(kind: Any, argv: list[str], *, prog: str) -> Any:
    """Parses ``argv`` into ``kind`` (a dataclass); ``--help`` and unreadable words leave by ``SystemExit``.

    Raises:
        UsageError: A value that can be read, and cannot be.
    """
    command, types = prog.removeprefix("marft "), hints(kind)
    entry, positional = manual.MANUAL[command], [name for name, hint in types.items() if forms.is_positional(hint)]
    groups = {"arguments": positional, "common": entry.common, **entry.groups} if entry.common else {OPTIONS: [*types]}
    brief = ("arguments", "common") if len(types) - len(positional) > manual.MANY else tuple(groups)
    about = manual.About(prog, command, inspect.getdoc(kind) or "", brief)

    def made(values: dict[str, Any]) -> Any:
        settings = kind(**values)
        check(settings)
        return settings

    sections = {title: forms.section(kind, names, defaults(kind)) for title, names in groups.items()}
    # The first word may be typed as an option, too: other commands have it as one.
    names = {*positional[:1], *(["env"] if positional[:1] in (["id"], ["target"]) else [])}
    rest, first = take(argv, *names)
    try:
        return read(sections, [*first.values(), *rest], about, made)
    except SystemExit as refused:
        for word in argv if refused.code else []:
            if here := elsewhere.option(word, command):
                say(f"instead of {word}: {here}", error=True)
        raise


def read(
    sections: Mapping[str, forms.Form], argv: list[str], about: manual.About, make: Callable[[dict[str, Any]], Any]
) -> Any:
    """Reads words; ``--help`` and unreadable ones leave by ``SystemExit``.

    Args:
        sections: Title, one word -> the options in it; ``--help`` shows them so, and their names are as without.
        argv: What was typed.
        about: What help says beside the options.
        make: Makes the settings of name -> what was typed, or stood in the section.

    Raises:
        UsageError: A value that can be read, and cannot be.
    """
    if manual.asked(argv):
        _help(sections, about, whole=manual.WHOLE in argv)
    form, values = forms.joined(sections)
    try:
        with registry, terminal.taken() as (_, said):
            parts = tyro.cli(form, args=_gathered(argv), prog=f"marft {about.command}", default=values)
    except SystemExit:
        say(said.getvalue(), error=True, end="")
        raise
    parts = {OPTIONS: parts} if OPTIONS in sections else parts
    try:
        return make({name: each for part in parts.values() for name, each in part.items()})
    except ConfigError as error:
        if not argv:  # it is not the words that are wrong
            raise
        raise UsageError(str(error)) from error


def _gathered(argv: Sequence[str]) -> list[str]:
    """Puts the entries of a table that is typed in several places together: a parser keeps the last place alone."""
    options: list[list[str]] = [[]]
    tables: dict[str, list[str]] = {}
    for word in argv:
        name, _, entry = word.partition("=")
        if word.startswith("--"):
            options.append([name, entry] if "=" in entry else [word])
        else:
            options[-1].append(word)
    for option in options[1:]:
        if len(option) > 1 and all("=" in entry for entry in option[1:]):
            before = tables.setdefault(option[0].replace("_", "-"), option)
            if before is not option:
                before += option[1:]
                option.clear()
    return [word for option in options for word in option]


def _help(sections: Mapping[str, forms.Form], about: manual.About, whole: bool) -> NoReturn:
    """Prints what a command does, its usage, examples and options, and leaves by ``SystemExit``."""
    shown = {title: form for title, form in sections.items() if whole or title in about.sections}
    form, values = forms.joined(shown)
    first, _, rest = about.text.partition("\n")
    say(terminal.folded(terminal.plain(first), 80), end="\n\n")
    text = f"Examples:\n{manual.examples(about.command)}{manual.described(rest)}"
    with registry, terminal.taken() as (printed, _), contextlib.suppress(SystemExit):
        tyro.cli(form, args=["--help"], prog=about.prog, description=text, default=values)
    say(terminal.folded(printed.getvalue(), 80))
    if left := {title: len(values) for title, (_, values) in sections.items() if title not in shown}:
        rest = f"{sum(left.values())} more options ({', '.join(left)})"
        say(terminal.folded(f"{rest}: {typed(*about.command.split(), manual.WHOLE)}", 80))
    raise SystemExit(0)


def typed(*words: object) -> str:
    """Writes a command of ``marft`` as it is typed in a shell: what needs quotes has them."""
    return shlex.join(["marft", *map(str, words)])


def task(env: str, kwargs: Mapping[str, Any]) -> str:
    """Writes an environment with its arguments as they are typed: ``math-dual-v0 levels=[1,2]``; long ones are cut."""
    written = partial(json.dumps, default=str, separators=(",", ":"))
    parts = (f"{key}={inner if isinstance(inner, str) else written(inner)}" for key, inner in kwargs.items())
    shown = (part if len(part) <= SHOWN else f"{part[:SHOWN]}…" for part in parts)
    return terminal.clean(" ".join([env, *shown]), line=True)


def take(words: Sequence[str], *names: str) -> tuple[list[str], dict[str, str]]:
    """Splits the options of these names, with their values, off from the others: what tyro's defaults depend on.

    Raises:
        ConfigError: A name without a value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in names:
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS)
    try:
        values, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error.argument_name} needs a value. All options: marft train --help-all") from error
    return rest, vars(values)
