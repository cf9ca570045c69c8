"""Where the agentdojo package is, for tests that run it."""

from __future__ import annotations

import importlib.util
import os

VARIABLE = "MARFT_TEST_DOJO"
ABSENT = (
    "the agentdojo package is not here: pip install --no-deps agentdojo, with deepdiff and pydantic[email], "
    f"or install them with --target FOLDER and set {VARIABLE}=FOLDER"
)


def place() -> tuple[bool, str | None]:
    """Returns whether the package is there, and the folder to give as ``package=`` (None: it is installed)."""
    named = os.environ.get(VARIABLE)
    return (True, named) if named else (importlib.util.find_spec("agentdojo") is not None, None)
