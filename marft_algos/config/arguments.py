"""How values are written on the command line: ``KEY=VALUE`` for tables, so ``--lr actor_0=1e-4 reasoner_0=2e-4``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import json
import shlex
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import tyro
from pydantic import TypeAdapter, ValidationError
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from marft_algos import terminal
from marft_algos.config import forms, manual
from marft_algos.config.values import NONE
from marft_algos.ranges import check, hints
from marft_algos.terminal import say
from marft_envs.errors import ConfigError


class UsageError(ConfigError):
    """A command's words cannot be: it ends with 2, as for words that no parser can read."""


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


def _has_table(kind: Any) -> bool:
    if typing.get_origin(kind) is dict:
        return True
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return union and any(_has_table(part) for part in typing.get_args(kind))


_NUMBERS = {int: "whole number", float: "number"}


@registry.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Numbers, or none where the type says so: what cannot be read is told in words."""
    union = typing.get_origin(info.type) in (typing.Union, types.UnionType)
    parts = set(typing.get_args(info.type)) if union else {info.type}
    kind = next((kind for kind in _NUMBERS if parts - {type(None)} == {kind}), None)
    if kind is None:
        return None
    none = type(None) in parts

    def read(words: list[str]) -> Any:
        if none and words[0].lower() == NONE:
            return None
        try:
            return kind(words[0])
        except ValueError as error:
            raise ValueError(f"'{words[0]}' is no {_NUMBERS[kind]}{' and not none' * none}") from error

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper() + "|none" * none,
        instance_from_str=read,
        is_instance=lambda default: (
            (none and default is None) or (isinstance(default, kind | int) and default is not True)
        ),
        str_from_instance=lambda default: [NONE if default is None else str(default)],
    )


@registry.primitive_rule
def _table(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if not _has_table(info.type):
        return None
    plain = typing.get_origin(info.type) is not dict
    kind: TypeAdapter[Any] = TypeAdapter(info.type)

    def read(words: list[str]) -> Any:
        try:
            return kind.validate_python(_written(words, plain, value))
        except ValidationError:  # "7" is a number, and may be meant as a name
            try:
                return kind.validate_python(_written(words, plain, str))
            except ValidationError:  # the field's own check says what it may be
                return _written(words, plain, value)

    def write(default: Any) -> list[str]:
        return [f"{k}={v}" for k, v in default.items()] if isinstance(default, dict) else [str(default)]

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="VALUE|KEY=VALUE…" if plain else "KEY=VALUE…",
        instance_from_str=read,
        is_instance=lambda default: isinstance(default, dict) or (plain and isinstance(default, str | int | float)),
        str_from_instance=write,
    )


def parse(kind: Any, argv: list[str], *, prog: str, **options: Any) -> Any:
    """Parses ``argv`` into ``kind`` (a dataclass); ``--help`` and unreadable words leave by ``SystemExit``.

    Raises:
        UsageError: A value that can be read, and cannot be.
    """
    if manual.asked(argv):
        _help(kind, prog, whole=manual.WHOLE in argv)
    try:
        with registry, terminal.taken() as (_, said):
            settings = tyro.cli(kind, args=argv, prog=prog, **options)
        if dataclasses.is_dataclass(settings):
            check(settings)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except SystemExit as leaving:
        if (cause := _own(leaving)) is not None:  # the parser would draw a box around it
            raise UsageError(str(cause)) from cause
        say(said.getvalue(), error=True, end="")
        raise
    return settings


def _help(kind: Any, prog: str, whole: bool) -> NoReturn:
    """Prints the help of a command whose options are a dataclass, and leaves."""
    about = manual.About(prog, prog.removeprefix("marft "), inspect.getdoc(kind) or "")
    entry, types = manual.MANUAL[about.command], hints(kind)
    if not entry.common:
        (form,) = forms.grouped(kind, {kind.__name__: [*types]}).values()
        print_help(form, about, left={})
    positional = [name for name, hint in types.items() if forms.is_positional(hint)]
    groups = {"arguments": positional, "common": entry.common, **entry.groups}
    short = len(types) - len(positional) > manual.MANY and not whole
    shown = {title: names for title, names in groups.items() if title in ("arguments", "common") or not short}
    form = dataclasses.make_dataclass(kind.__name__, [*forms.grouped(kind, shown).items()])
    print_help(form, about, left={title: names for title, names in groups.items() if title not in shown})


def print_help(form: Any, about: manual.About, left: Mapping[str, Sequence[str]], **options: Any) -> NoReturn:
    """Prints what a command does, its usage, examples and options, and leaves by ``SystemExit``.

    Args:
        form: Dataclass of options, or of groups of them.
        about: What is said above them.
        left: Title -> names of the options that are left to ``--help-all``.
        **options: Of ``tyro.cli``.
    """
    first, _, rest = about.text.partition("\n")
    say(first.replace("``", ""), end="\n\n")
    text = f"Examples:\n{manual.examples(about.command)}{manual.described(rest)}"
    plain = tyro.conf.OmitArgPrefixes[form]
    with registry, terminal.taken() as (shown, _), contextlib.suppress(SystemExit):
        tyro.cli(plain, args=["--help"], prog=about.prog, description=text, **options)
    say(shown.getvalue(), end="")
    if left:
        number = sum(map(len, left.values()))
        say(f"{number} more options ({', '.join(left)}): {typed(*about.command.split(), manual.WHOLE)}")
    raise SystemExit(0)


def _own(leaving: BaseException) -> ConfigError | None:
    """Finds the error of a check of ours for which a parser left."""
    reason: BaseException | None = leaving
    while reason is not None and not isinstance(reason, ConfigError):
        reason = reason.__cause__ or reason.__context__
    return reason


def parse_in_sections(default: Any, sections: Mapping[str, str], argv: list[str], about: manual.About) -> Any:
    """Parses ``argv`` over a dataclass whose options ``--help`` shows in sections; their names are as without.

    Args:
        default: An instance: what is not given comes from it. A field that holds a dataclass is a section of its own.
        sections: First field of each section, in the dataclass's order -> its title, one word.
        argv: What was typed.
        about: What help says beside the options.

    Returns:
        The instance with what was given.
    """
    kind: Any = type(default)
    title, groups, instances = "", dict[str, list[str]](), dict[str, Any]()
    for name in hints(kind):
        title = sections.get(name, title)
        if dataclasses.is_dataclass(getattr(default, name)):
            instances[name] = getattr(default, name)
        else:
            groups.setdefault(title, []).append(name)
    if manual.asked(argv):
        _help_in_sections(default, groups, instances, about, whole=manual.WHOLE in argv)
    parts = {title: part() for title, part in forms.grouped(kind, groups, default).items()} | instances

    def joined(sectioned: Any) -> Any:
        flat = {name: getattr(getattr(sectioned, title), name) for title, names in groups.items() for name in names}
        return kind(**flat, **{name: getattr(sectioned, name) for name in instances})

    # Joined as soon as it is made, what cannot be is told by the parser, as of any other dataclass.
    fields = [(name, type(part)) for name, part in parts.items()]
    whole: Any = dataclasses.make_dataclass(kind.__name__, fields, namespace={"__post_init__": joined})
    plain: Any = tyro.conf.OmitArgPrefixes[whole]  # type: ignore[misc]
    return joined(parse(plain, argv, prog=f"marft {about.command}", default=whole(**parts)))


def _help_in_sections(
    default: Any, groups: Mapping[str, Sequence[str]], instances: dict[str, Any], about: manual.About, whole: bool
) -> NoReturn:
    """Prints the common options, and of the sections those that ``about`` names, or all of them."""
    common = manual.MANUAL[about.command].common
    rest = {title: [name for name in names if name not in common] for title, names in groups.items()}
    made = forms.grouped(type(default), {"common": common, **rest}, default)
    parts = {title: part() for title, part in made.items()} | instances
    shown = {title: part for title, part in parts.items() if whole or title in ("common", *about.sections)}
    form = dataclasses.make_dataclass(type(default).__name__, [(title, type(part)) for title, part in shown.items()])
    left = {title: [f.name for f in dataclasses.fields(part)] for title, part in parts.items() if title not in shown}
    print_help(form, about, left, default=form(**shown))


def typed(*words: object) -> str:
    """Writes a command of ``marft`` as it is typed in a shell: what needs quotes has them."""
    return shlex.join(["marft", *map(str, words)])


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
