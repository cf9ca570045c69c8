"""Options in sections: to the parser a section is a table in a table, to users and in files there are none."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypedDict

import tyro

from marft_algos import terminal
from marft_algos.ranges import hints

Form = tuple[Any, dict[str, Any]]
"""What tyro reads words into, and what is in it where nothing is typed."""
OPTIONS = "options"
"""Title of the only section of a command without others."""


def section(kind: type, names: Iterable[str], values: Mapping[str, Any], text: str = "") -> Form:
    """Makes the form of a section.

    Args:
        kind: A dataclass with a text below each field.
        names: Fields of it.
        values: What they are if they are not typed; a field without one has to be.
        text: What help says above them.
    """
    about, types = documented(kind), hints(kind)

    def option(name: str) -> Any:
        text = terminal.plain(" ".join(about[name].split()))
        return Annotated[types[name], tyro.conf.arg(help=text, metavar=metavar(name, types[name], name not in values))]

    form = TypedDict(kind.__name__, {name: option(name) for name in names})  # type: ignore[misc]
    form.__doc__ = terminal.plain(text)
    return form, {name: values.get(name, tyro.MISSING) for name in names}


def joined(sections: Mapping[str, Form]) -> Form:
    """Makes one form of the sections."""
    if OPTIONS in sections:
        return sections[OPTIONS]
    form = TypedDict("Sections", {title: part for title, (part, _) in sections.items()})  # type: ignore[misc]
    return tyro.conf.OmitArgPrefixes[form], {title: values for title, (_, values) in sections.items()}


def metavar(name: str, hint: Any, needed: bool) -> str | None:
    """What stands for a word without dashes in usage and help; none: what the type says."""
    if not is_positional(hint) or typing.get_origin(typing.get_args(hint)[0]) is typing.Literal:
        return None
    several = typing.get_origin(typing.get_args(hint)[0]) is tuple
    word = name.upper().removesuffix("S" * several) + " …" * several
    return word if needed else f"[{word}]"


def is_positional(hint: Any) -> bool:
    """Whether a field is typed without dashes."""
    return tyro.conf.Positional in getattr(hint, "__metadata__", ())


@functools.cache
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
