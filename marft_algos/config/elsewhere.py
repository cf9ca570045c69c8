"""What settings of other trainers are called here, whoever writes them: on the command line, in Python, in a file."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import resources

from marft_algos.config.presets import BF16_OPTIONS

_TABLE = (resources.files("marft_algos.config") / "elsewhere.txt").read_text(encoding="utf-8")
_ROWS = [row.split(" | ") for row in _TABLE.replace("BF16", BF16_OPTIONS).splitlines()]
ELSEWHERE = {name: here for names, here in _ROWS for name in names.split()}
"""What settings of this name, of other trainers, are called here."""


def advice(name: str, settings: Collection[str], of_algorithm: Collection[str]) -> str:
    """Says what to write in Python or in a file instead of a setting that does not exist; "" where nothing is known.

    Args:
        name: As it was written.
        settings: Names of the run's settings.
        of_algorithm: Names of the algorithm's.
    """
    typed, words = ELSEWHERE.get(name, "--data PATH" if name == "data" else ""), []
    for option in re.findall(r"--([a-z][a-z-]*)", typed):
        key = option.replace("-", "_")
        if key in of_algorithm:
            words.append(f'algorithm={{"{key}": …}}')
        elif key in settings:
            words.append(f"{key}=…")
        elif key == "data":
            words.append('env_kwargs={"data": …}')
    return f"In Python: {', '.join(dict.fromkeys(words))}; on the command line: {typed}." if words else ""
