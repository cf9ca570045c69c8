"""The recipe of the searching model: whoever checks hears wrong proposals, and checks them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from benchmarks.embedded import recipes

RECIPE = recipes.load("embedded-search")


def test_demonstrators_hear_wrong_proposals_and_check_them() -> None:
    pairs = recipes.play("search-pick-v0", replace(RECIPE.teams["search-pick-v0"], episodes=60), random.Random(0))
    checks = [reply for messages, reply in pairs if "Checker" in messages[0]["content"]]
    assert len(checks) == 60 and all(reply.endswith(" yes") for reply in checks)
    first = [reply.split("\n")[0].endswith(" no") for reply in checks]
    assert 0.45 < sum(first) / len(first) < 0.85
