"""What settings of other trainers are called here, whoever writes them: on the command line, in Python, in a file."""

from __future__ import annotations

import re
from collections.abc import Collection

from marft_algos.config.presets import BF16_OPTIONS
from marft_envs import errors

ELSEWHERE = {name: here.replace("BF16", BF16_OPTIONS) for name, here in errors.elsewhere("marft_algos.config").items()}
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
