"""Errors that say what happened, what was expected, and what to type next."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any


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


class WorkerError(MarftError, RuntimeError):
    """A worker process died, ran out of time or memory, or answered nonsense."""

    fault = "machine"
    """Whose fault that is (see ``marft_envs/core/faults.py``); of kinds that a text can bring about, ``text``."""


def check_known(names: Iterable[Any], known: Collection[Any], says: str, error: type[MarftError] | None = None) -> None:
    """Raises unless all names are known: with the first other one, and what is nearest to it.

    Args:
        names: What was asked for.
        known: What there is.
        says: A sentence, with ``{}`` in place of the name.
        error: A :class:`ConfigError` where nothing else is said.

    Raises:
        MarftError: A name is not known.
    """
    for name in names:
        if name not in known:
            raise (error or ConfigError)(f"{says.replace('{}', str(name))} {did_you_mean(str(name), known)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a sentence naming the nearest known word, or the known words when none is near."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if near:
        return f"Did you mean '{near[0]}'?"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"Known: {shown}." if names else "None are known."
