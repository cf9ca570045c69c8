"""What a file may make this machine do: data < transcripts < settings < code.

Settings that run code, start programs or send something take effect when the user has typed them, or passed them in
Python. Taken from a file (a configuration, a run's folder, a benchmark's grid) they are shown, and refused without
``--trust`` (``trusted=True`` in Python): a file may be anybody's. What this user has started on this machine is
remembered in the user's own folder of states, where no file of others reaches. See docs/trust.md.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marft_algos.config.arguments import value
from marft_algos.terminal import say
from marft_envs.consent import CODE, WRITES, Power, TrustError, frozen, names_module, powers, refusal
from marft_envs.errors import ConfigError
from marft_envs.registration import importable

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class NotExecuted(ConfigError):
    """The settings cannot be looked into without starting what ``--dry-run`` leaves alone."""


# The command ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Command:
    """What the user has typed."""

    program: tuple[str, ...]
    words: tuple[str, ...]
    trust: bool
    dry: bool
    shown: set[Power] = field(default_factory=set)

    def typed(self, power: Power) -> bool:
        """Whether the user has typed this value himself: as a word, or behind the = of one."""
        texts = [text for word in self.words for text in (word, word.partition("=")[2])]
        return power.value in texts or (
            power.is_engine_table and any(power.value == frozen(value(text)) for text in texts if text[:1] == "{")
        )


_command: ContextVar[_Command | None] = ContextVar("marft_command", default=None)


@contextmanager
def command(words: Sequence[str], program: Sequence[str] = ("marft",)) -> Iterator[list[str]]:
    """The words of a command without ``--trust``; within, ``check`` knows what was typed, and before it ``program``."""
    rest = [word for word in words if word != "--trust"]
    dry = bool({"--dry-run", "--plan"} & set(words))
    token = _command.set(_Command(tuple(program), tuple(rest), len(rest) < len(words), dry))
    try:
        if any(_imports(part) for word in rest[1:] for part in (word, word.partition("=")[2])):
            importable()
        yield rest
    finally:
        _command.reset(token)


def _imports(word: str) -> bool:
    """Whether a typed word names a module, possibly inside of a table."""
    if "://" in word:
        return False
    return names_module(word, not re.search(r"[\s\"'{\[]", word)) or bool(re.search(r"[\"'][A-Za-z_][\w.]*:\w", word))


def check(table: Mapping[str, Any], source: Path | str, *, trust: bool = False) -> None:
    """Refuses what a file may not do, before any of it happens.

    Args:
        table: What the file says.
        source: The file.
        trust: The caller allows it; ``--trust`` of a command does so, too.

    Raises:
        TrustError: Settings that execute or send, neither typed nor allowed nor remembered.
        NotExecuted: The command starts nothing, and cannot go on without.
        ConfigError: Control characters, which no setting needs and a terminal obeys.
    """
    _check_text(table, source)
    current = _command.get()
    needed = [p for p in powers(table) if current is None or not current.typed(p)]
    if not needed:
        return
    allowed = trust or (current is not None and current.trust)
    strange = [p for p in needed if not _remembered(p)]
    if strange and not allowed:
        raise TrustError(_refusal(strange, source, current))
    if current is None:
        return
    if fresh := [p for p in strange if p not in current.shown]:
        current.shown |= set(fresh)
        say(f"trusted, from {source}:", *(f"\n  {power}" for power in fresh), sep="", error=True)
    if current.dry:
        check_dry(table)
    if any(p.executes for p in needed):
        importable()


def dry() -> bool:
    """Whether the command starts no program and sends nothing, because the user has typed so."""
    current = _command.get()
    return current is not None and current.dry


def check_dry(table: Mapping[str, Any]) -> None:
    """Checks that the settings can be looked into without starting a program or sending anything, as a dry run must.

    Modules that the user has typed or trusted are imported: without them nothing is known about a team or an algorithm.

    Raises:
        NotExecuted: It cannot.
    """
    if started := [p for p in powers(table) if p.does not in (CODE, WRITES) and not p.hosts_a_policy]:
        raise NotExecuted(_left_alone(started))


def _check_text(value: Any, source: Path | str, name: str = "") -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_text(str(key), source, "a setting's name")
            _check_text(inner, source, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_text(inner, source, name)
    elif isinstance(value, str) and (control := _CONTROL.search(value)):
        raise ConfigError(f"{name} in '{source}' holds the control character {control[0]!r}. Take it out of the file.")


def _refusal(needed: Sequence[Power], source: Path | str, current: _Command | None) -> str:
    if current is None:
        allow = f"trusted=True, as in config.load({str(source)!r}, trusted=True)"
    else:
        allow = shlex.join([*current.program, *current.words, "--trust"])
    return refusal(needed, source, allow)


def _left_alone(needed: Sequence[Power]) -> str:
    lines = "".join(f"\n  {power}" for power in needed)
    return f"not executed, so no more can be said about it:{lines}"


# What this user has started -------------------------------------------------------------------------


def remember(table: Mapping[str, Any]) -> None:
    """Notes that this user has started something with these settings: read from a file again, they need no ``--trust``.

    A folder of states that cannot be written costs a question next time, and no run.
    """
    needed = powers(table)
    try:
        for power in needed:
            file = _mark(power)
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.touch()
    except OSError as error:
        say(f"note: what was trusted cannot be noted ({error.strerror}); --trust will be asked for again", error=True)


def _remembered(power: Power) -> bool:
    try:
        return _mark(power).is_file()
    except OSError:
        return False  # nothing can have been noted


def _mark(power: Power) -> Path:
    """Names a file by a digest of the setting; for what runs here, of the current folder, too, where modules lie."""
    where = os.getcwd() if power.executes else ""
    text = json.dumps([power.name, power.value, power.does, where])
    return states() / "trusted" / hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def states() -> Path:
    """Returns the user's own folder, never one below the current folder, which may be a stranger's."""
    named, home = os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~")
    base = Path(named) if os.path.isabs(named) else Path(home) / ".local" / "state"
    if not base.is_absolute():
        raise OSError(errno.ENOENT, "there is no home folder")
    return base / "marft"
