"""What settings of other trainers are called here, whoever writes them: on the command line, in Python, in a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from marft_algos.config.presets import BF16_OPTIONS
from marft_envs import errors

ELSEWHERE = {name: here.replace("BF16", BF16_OPTIONS) for name, here in errors.elsewhere("marft_algos.config").items()}
"""What settings of this name, of other trainers, are called here."""


def advice(name: str) -> str:
    """Says what to write in Python, a file or a grid instead of another trainer's setting; "" for any other name."""
    typed = ELSEWHERE.get(name, "")
    words = [f"{option.replace('-', '_')}=…" for option in re.findall(r"--([a-z][a-z-]*)", typed)]
    return f"In Python: {', '.join(dict.fromkeys(words))}; on the command line: {typed}." if words else ""


def check(names: Iterable[str], known: Collection[str], help_: str) -> None:
    """Raises ``ConfigError`` for a name that is not known, with what is called so here, or what is near."""
    for name in names:
        if name not in known:
            told = advice(name) or errors.did_you_mean(name, known)
            raise errors.ConfigError(f"There is no setting '{name}'. {told} {help_}".rstrip())
