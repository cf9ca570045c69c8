"""Options in groups: to the parser a group is a dataclass in a dataclass, to users and in files there are none."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import tyro

from marft_algos.ranges import hints


def grouped(kind: type, groups: Mapping[str, Sequence[str]], default: Any = None) -> dict[str, type]:
    """Makes a dataclass of each group, which tyro shows under its title.

    Args:
        kind: A dataclass with a text below each field.
        groups: Title, one word -> names of the fields in it.
        default: An instance, from which defaults come; none: they are those of ``kind``.

    Returns:
        Title -> the group's dataclass.
    """
    about, types = documented(kind), hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}

    def started(name: str) -> Any:
        if default is None:
            field = fields[name]
            return dataclasses.field(default=field.default, default_factory=field.default_factory)
        current = getattr(default, name)
        return dataclasses.field(default_factory=lambda: current)

    def part(name: str) -> tuple[str, Any, Any]:
        described = tyro.conf.arg(help=" ".join(about[name].split()), metavar=metavar(name, types[name], started(name)))
        return name, Annotated[types[name], described], started(name)

    return {
        title: dataclasses.make_dataclass(title, [part(name) for name in names], kw_only=True)
        for title, names in groups.items()
    }


def metavar(name: str, hint: Any, field: Any) -> str | None:
    """What stands for a word without dashes in usage and help; none: what the type says."""
    if not is_positional(hint) or typing.get_origin(typing.get_args(hint)[0]) is typing.Literal:
        return None
    several = typing.get_origin(typing.get_args(hint)[0]) is tuple
    needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    word = name.upper().removesuffix("S" * several) + " …" * several
    return word if needed else f"[{word}]"


def is_positional(hint: Any) -> bool:
    """Whether a field is typed without dashes."""
    return tyro.conf.Positional in getattr(hint, "__metadata__", ())


def documented(kind: type) -> dict[str, str]:
    """Reads the text below each field of a dataclass, inherited ones, too."""
    texts = {}
    for base in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        (body,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return texts
