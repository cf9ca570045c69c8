"""Errors that say what happened, what was expected, and what to type next."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from typing import Any, TypeVar

_T = TypeVar("_T")


class MarftError(Exception):
    """Base class of every error this project raises on purpose."""


class ConfigError(MarftError, ValueError):
    """A setting, id, profile or dependency function that cannot work. Raised before anything starts."""


class DataError(MarftError, ValueError):
    """A data set or a row that cannot be used."""


class UnsolvedError(DataError):
    """A problem whose solution is not known, so that no expert can demonstrate it."""


class DependencyError(MarftError, ValueError):
    """A dependency function that breaks its contract: a cycle, a future turn, an unknown agent."""


class MissingExtraError(MarftError, ImportError):
    """An optional package is needed; the message holds the pip command."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the '{extra}' extra. Type in the clone: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Returns what installs an extra, typed in a clone of the repository: the package is on no index."""
    return f"pip install -e '.[{extra}]'"


def imported(module: str, what: str, extra: str) -> Any:
    """Imports a module of an optional package, which ``what`` needs.

    Raises:
        MissingExtraError: It is not installed; the message holds the pip command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


@contextmanager
def reading(what: str, expected: str, kind: type[MarftError] = ConfigError) -> Iterator[None]:
    """Turns what may be wrong with a file that anybody may have written into an error that says what to do.

    Args:
        what: Has happened, if it is not what was expected.
        expected: What was, and what to type.
        kind: Of the error that is raised.

    Raises:
        MarftError: It is missing, or holds something else.
    """
    try:
        yield
    except MarftError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        said = repr(error) if isinstance(error, KeyError) else error  # its text is the key alone
        raise kind(f"{what}: {said}. {expected}") from error


class WorkerError(MarftError, RuntimeError):
    """A worker process died, ran out of time or memory, or answered nonsense."""

    fault = "machine"
    """Whose fault that is (see ``marft_envs/core/faults.py``); of kinds that a text can bring about, ``text``."""


def check_known(
    names: Iterable[Any],
    known: Collection[Any],
    says: str,
    error: type[MarftError] = ConfigError,
    *,
    hint: Callable[[str], str] = lambda name: "",
    after: str = "",
) -> None:
    """Raises unless all names are known: with the first other one, and what is nearest to it.

    Args:
        names: What was asked for.
        known: What there is.
        says: A sentence, with ``{}`` in place of the name.
        error: What is raised.
        hint: What is said of a name instead of what is nearest to it; "": nothing.
        after: What is said behind it.

    Raises:
        MarftError: A name is not known.
    """
    for name in names:
        if name not in known:
            near = hint(name) or did_you_mean(str(name), known)
            raise error(f"{says.replace('{}', str(name))} {near} {after}".rstrip())


def of_fields(kind: type[_T], given: Mapping[str, Any], lacks: str) -> _T:
    """Returns settings made of a mapping; where a name is no field of theirs, the error begins with ``lacks``.

    Raises:
        ConfigError: A name is no field, one is missing that has no default, or a value is refused.
    """
    own = fields(kind)  # type: ignore[arg-type]
    known = [field.name for field in own]
    check_known(given, known, f"{lacks} '{{}}'.")
    needed = [field.name for field in own if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in needed if name not in given]:
        raise ConfigError(f"{kind.__name__} lacks {', '.join(missing)}. Expected {', '.join(known)}.")
    return kind(**given)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a sentence naming the nearest known word, or the known words when none is near."""
    names = sorted(set(known))
    near = [match for typed in (word, word.lower()) for match in difflib.get_close_matches(typed, names, 1, 0.5)]
    if near:
        return f"Did you mean '{near[0]}'?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"Known: {shown}." if names else "None are known."


@functools.cache
def elsewhere(package: str) -> dict[str, str]:
    """Returns what other libraries call things -> what does that here: ``elsewhere.txt`` of a package.

    A name is one of the package, ``CLASS.NAME`` an attribute or a keyword of a class, ``marft.NAME`` a command, and
    ``COMMAND--NAME`` an option of one (of ``marft train``, and a setting: ``--NAME``).
    """
    table = (resources.files(package) / "elsewhere.txt").read_text(encoding="utf-8")
    rows = (row.split(" | ", 1) for row in table.splitlines())
    return {name: here for names, here in rows for name in names.split()}


def here(package: str, name: str) -> str:
    """Says what does in a package what other libraries call by this name; "" where nothing is known."""
    hint = elsewhere(package).get(name, "")
    return f"Here: {hint}." if hint else ""


@dataclass(frozen=True)
class Absent:
    """Errors for names that a package lacks; they say what does the job of a name of other libraries.

    As the last finder of ``sys.meta_path`` it answers failed imports, too.
    """

    package: str

    def error(self, name: str) -> AttributeError:
        """Returns the error of ``package.name``."""
        text = f"module '{self.package}' has no attribute '{name}'. {here(self.package, name)}"
        return AttributeError(text.rstrip(), name=name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raises ``ImportError`` for a name of other libraries; finds nothing."""
        if name.startswith(f"{self.package}.") and (hint := here(self.package, name.rpartition(".")[2])):
            raise ImportError(f"There is no '{name}'. {hint}", name=name)


def hinted(kind: type[_T]) -> type[_T]:
    """Class decorator: errors about an attribute or a keyword say what does the job of a name of other libraries."""
    package, made = kind.__module__.partition(".")[0], kind.__init__
    known = inspect.signature(kind).parameters.keys()

    def of_kind(name: str) -> str:
        return here(package, f"{kind.__name__}.{name}")

    @functools.wraps(made)
    def init(self: Any, *args: Any, **values: Any) -> None:
        if not values.keys() <= known:
            check_known(values, known, f"{kind.__name__} takes no '{{}}'.", hint=of_kind)
        made(self, *args, **values)

    def missing(self: Any, name: str) -> Any:
        try:
            return object.__getattribute__(self, name)  # again: a property's own error is not to be hidden
        except AttributeError as error:
            hint = "" if hasattr(kind, name) else of_kind(name)
            error.args = (f"{error}. {hint}".removesuffix(". "),)
            raise

    kind.__init__, kind.__getattr__ = init, missing  # type: ignore[attr-defined, method-assign]
    return kind
