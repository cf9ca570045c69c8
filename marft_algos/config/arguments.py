"""How values are written on the command line: ``KEY=VALUE`` for tables, so ``--lr actor_0=1e-4 reasoner_0=2e-4``."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import inspect
import io
import json
import shlex
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import tyro
from pydantic import TypeAdapter, ValidationError
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

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


def parse(kind: Any, argv: list[str], *, prog: str, description: str = "", **options: Any) -> Any:
    """Parses ``argv`` into ``kind`` (a dataclass or callable); ``--help`` and unreadable words leave by ``SystemExit``.

    Raises:
        UsageError: A value that can be read, and cannot be.
    """
    said = io.StringIO()
    try:
        with registry, contextlib.redirect_stderr(said):
            settings = tyro.cli(kind, args=argv, prog=prog, description=description or None, **options)
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


def _own(leaving: BaseException) -> ConfigError | None:
    """Finds the error of a check of ours for which a parser left."""
    reason: BaseException | None = leaving
    while reason is not None and not isinstance(reason, ConfigError):
        reason = reason.__cause__ or reason.__context__
    return reason


def parse_in_sections(
    default: Any, sections: Mapping[str, str], argv: list[str], *, prog: str, description: str = ""
) -> Any:
    """Parses ``argv`` over a dataclass whose options ``--help`` shows in sections; their names are as without.

    Args:
        default: An instance: what is not given comes from it. A field that holds a dataclass is a section of its own.
        sections: First field of each section, in the dataclass's order -> its title, one word.
        argv: What was typed.
        prog: As it is typed.
        description: What it does.

    Returns:
        The instance with what was given.
    """
    # To the parser a section is a dataclass in a dataclass; for users and in files there is one without parts.
    kind: Any = type(default)
    about, title, fields = _documented(kind), "", dict[str, list[tuple[str, Any, Any]]]()
    instances: dict[str, Any] = {}
    for name, hint in hints(kind).items():
        title, current = sections.get(name, title), getattr(default, name)
        if dataclasses.is_dataclass(current):
            instances[name] = current
        else:
            described = Annotated[hint, tyro.conf.arg(help=about[name])]  # type: ignore[valid-type]
            start = dataclasses.field(default_factory=lambda current=current: current)  # type: ignore[misc]
            fields.setdefault(title, []).append((name, described, start))
    instances = {title: dataclasses.make_dataclass(title, part)() for title, part in fields.items()} | instances

    def joined(sectioned: Any) -> Any:
        flat = {name: getattr(getattr(sectioned, title), name) for title, part in fields.items() for name, *_ in part}
        return kind(**flat, **{name: getattr(sectioned, name) for name in instances.keys() - fields.keys()})

    parts = [(name, type(part)) for name, part in instances.items()]
    # Joined as soon as it is made, what cannot be is told by the parser, as of any other dataclass.
    whole: Any = dataclasses.make_dataclass(kind.__name__, parts, namespace={"__post_init__": joined})
    plain: Any = tyro.conf.OmitArgPrefixes[whole]  # type: ignore[misc]
    return joined(parse(plain, argv, prog=prog, description=description, default=whole(**instances)))


def _documented(kind: type) -> dict[str, str]:
    """Reads the text below each field of a dataclass."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            texts[ast.unparse(field.target)] = inspect.cleandoc(str(below.value.value))
    return texts


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
        raise ConfigError(f"{error.argument_name} needs a value. All options: marft train --help") from error
    return rest, vars(values)
