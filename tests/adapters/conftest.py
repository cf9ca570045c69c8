"""What the tests of adapters share; the comparison with the native loop is in ``native_loop.py``."""

from __future__ import annotations

import pytest
from native_loop import CASES


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """Each environment that every outward adapter must play like the native loop."""
    return str(request.param)
