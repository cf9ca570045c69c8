"""Tables of the families (dialects, notation, profiles), which are TOML files beside the code that reads them."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def read(package: str, name: str) -> dict[str, Any]:
    """Returns the table ``name.toml`` of a package."""
    return tomllib.loads(resources.files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
