"""Finds settings that execute or send: those that come out of a file need the user's consent.

A record of an episode names the environment that it was played in, and may be anybody's; see docs/trust.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_envs.errors import ConfigError
from marft_envs.registration import FOREIGN, PROGRAM

_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""``module:name``, in any setting."""
_IDS = frozenset({"env", "envs", "id", "single", "trained_on", "algo", "algorithms", "domain", "codec", "opponents"})
"""Settings in which whatever stands before a colon is imported, or handed to a library that does so."""
CODE, _PROGRAM, _SENDS = "runs code of that module", "starts this program", "sends to this address"
WRITES = "writes an index into this folder"
_FOLDER = "imports code from this folder"
_ISOLATION = "runs agents' programs without isolation"


class TrustError(ConfigError):
    """Settings of a file would run code, start programs or send something, and nobody has allowed it."""


@dataclass(frozen=True, slots=True)
class Power:
    """A setting that executes, sends or writes."""

    name: str
    """Its name, with dots: ``env_kwargs.domain_args.server``."""
    value: Any
    does: str
    """In words."""

    @property
    def executes(self) -> bool:
        """Returns whether something runs on this machine."""
        return self.does != _SENDS

    @property
    def is_engine_table(self) -> bool:
        """Returns whether the value is an engine's table, as JSON."""
        return self.hosts_a_policy and str(self.value).startswith("{")

    @property
    def hosts_a_policy(self) -> bool:
        """Returns whether it is an engine: nothing is sent before the first reply is wanted."""
        return ".engines." in f".{self.name}"

    def __str__(self) -> str:
        text = self.value if self.is_engine_table else json.dumps(self.value, ensure_ascii=False)
        key = re.search(r'[?&"]key_env"?[=:] ?"?(\w+)', text)
        also = f", with the key in {key[1]}" if key else ""
        return f"{self.name} = {text}   ({self.does}{also})"


def powers(table: Mapping[str, Any]) -> list[Power]:
    """Returns every setting of a table, at any depth, that executes or sends: of a run, of a grid, or arguments."""
    return list(dict.fromkeys(_powers(table, ())))


def _powers(value: Any, path: tuple[str, ...]) -> Iterator[Power]:
    does = _does(value, path)
    engine = does == _SENDS and isinstance(value, Mapping)
    if does:
        shown = value if isinstance(value, str | int | float | bool) else frozen(value)
        yield Power(".".join(path), shown, does)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not (engine and key in ("kind", "model", "url")):  # which the engine's own line shows
                yield from _powers(inner, (*path, str(key)))
    elif isinstance(value, list | tuple) and not does:
        for inner in value:
            yield from _powers(inner, path)


def frozen(value: Any) -> Any:
    """Returns a value that can be compared and hashed: a table is its JSON, keys sorted."""
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else str(value)


def _does(value: Any, path: tuple[str, ...]) -> str:
    """Returns what this setting does beyond computing; "" for the others."""
    key, parent = path[-1] if path else "", path[-2] if len(path) > 1 else ""
    if key == "server" and isinstance(value, list | tuple):
        return _PROGRAM
    if key == "unsafe" and value:
        return _ISOLATION
    if (parent == "engines" and isinstance(value, str | Mapping)) or (key == "proposer" and isinstance(value, Mapping)):
        kind = value.get("kind") if isinstance(value, Mapping) else value
        return "" if kind == "native" else _SENDS
    if not isinstance(value, str) or not path:
        return ""
    if (key == "worker_vllm" and value) or (key in _IDS and value.startswith(PROGRAM)):
        return _PROGRAM
    if key == "package":
        return _FOLDER
    if key == "index":
        return WRITES
    if "://" in value:
        return _SENDS
    return CODE if names_module(value, key in _IDS) else ""


def names_module(text: str, is_id: bool) -> bool:
    """Returns whether a text names a module to import; of an id, whatever stands before the colon is one."""
    scheme, colon, rest = text.partition(":")
    if not colon or (f"{scheme}:" in FOREIGN and ":" not in rest and not (scheme == "pettingzoo" and "." in rest)):
        return False  # an id that an installed package has registered
    return is_id or _MODULE.fullmatch(text) is not None


def refusal(settings: Sequence[Power], source: Path | str, allow: str) -> str:
    """Returns what a :class:`TrustError` says: what was found where, and what allows it."""
    lines = "".join(f"\n  {power}" for power in settings)
    return (
        f"'{source}' has settings that run code, start programs or send something:{lines}\n"
        f"A file may be anybody's, so expected is your word for it. Read them, and if you want that: {allow}"
    )
