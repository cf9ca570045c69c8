"""Which cases of a parametrised test the fast suite runs, where each takes about a second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def rest_in_ci(cases: Iterable[Any], fast: int = 1) -> list[Any]:
    """The cases of ``parametrize``, all but the first ones marked ``ci``."""
    made = [
        case if hasattr(case, "marks") else pytest.param(*(case if type(case) is tuple else (case,))) for case in cases
    ]
    return made[:fast] + [
        pytest.param(*case.values, marks=(*case.marks, pytest.mark.ci), id=case.id) for case in made[fast:]
    ]
