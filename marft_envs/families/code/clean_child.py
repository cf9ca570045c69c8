"""The program of the clean child, see ``expressions``. What it says is the row's word, not the program's."""

import builtins
import importlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn


class _Asked(BaseException):
    """The rest of an expression has stopped at a call that it needs."""


def written(value: Any) -> tuple[str, Any]:
    """An argument: data as it is; a type or function of Python's and a range as text; an iterator by its items."""
    if isinstance(value, range):
        return "text", repr(value)
    if isinstance(value, Iterator):
        return "items", list(value)
    name = getattr(value, "__name__", "")
    if callable(value) and getattr(builtins, name, None) is value:
        return "text", name
    return "data", value


def evaluate(
    setup: str, modules: Sequence[str], text: str, entry: str, kinds: Sequence[str], known: Sequence[Any]
) -> tuple[Any, ...]:
    """Returns the expression's value, or what it asks for that is not yet known."""
    answers = enumerate(zip(kinds, known, strict=True))
    asked: list[tuple[Any, ...]] = []

    def stop(*request: Any) -> NoReturn:
        asked.append(request)  # the first counts, whatever becomes of the exception
        raise _Asked

    def items(number: int, found: Sequence[Any], kind: str) -> Iterator[Any]:
        yield from found
        if kind == "more":
            stop("more", number)

    def ask(site: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        for number, (kind, answer) in answers:
            return answer if kind == "data" else items(number, answer, kind)
        stop("call", site, [written(a) for a in args], {key: written(a) for key, a in kwargs.items()})

    names: dict[str, Any] = {"__name__": "tests", "_program": lambda site, *args: ask(site, args, {})}
    names.update((name, importlib.import_module(name)) for name in modules)
    if entry:
        names[entry] = lambda *args, **kwargs: ask(-1, args, kwargs)
    value = None
    try:
        exec(compile(setup, "<setup>", "exec"), names)
        value = eval(compile(text, "<test>", "eval"), names)
    except BaseException:
        if not asked:
            raise
    return asked[0] if asked else ("value", value)
