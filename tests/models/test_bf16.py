"""bf16 on a CPU: a run on one without instructions for it says so before it takes hours."""

from __future__ import annotations

import warnings

import pytest
import torch

from marft_algos.extras import doctor
from marft_algos.extras.doctor import Finding
from marft_algos.models import bf16
from marft_algos.models.policy import PolicySet

TEAM = {"a_0": "a"}


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> dict[torch.dtype, float]:
    """Seconds that a product takes; to be changed."""
    seconds = {torch.float32: 0.5, torch.bfloat16: 4.0}
    monkeypatch.setattr(bf16, "_seconds", seconds.__getitem__)
    monkeypatch.setattr(bf16, "bf16_cost", bf16.bf16_cost.__wrapped__)
    return seconds


def built(dtype: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PolicySet.build("embedded", TEAM, dtype=dtype, device="cpu")
    return [str(each.message) for each in caught if "bf16" in str(each.message)]


def test_a_cpu_that_is_slow_in_bf16_is_named_with_what_to_type(taking: dict[torch.dtype, float]) -> None:
    (said,) = built("bf16")
    assert "8 times as fast in fp32" in said and "--dtype fp32" in said
    assert not built("fp32") and not built("auto")
    taking[torch.bfloat16] = 0.25
    assert not built("bf16")


def test_the_doctor_says_what_bf16_costs(taking: dict[torch.dtype, float]) -> None:
    works = Finding("torch", "ok", "")
    (slow,) = doctor.bf16(works)
    taking[torch.bfloat16] = 0.25
    (fast,) = doctor.bf16(works)
    assert (slow.state, fast.state) == ("off", "ok") and "8 times" in slow.text and "0.5 times" in fast.text
    assert doctor.bf16(Finding("torch", "off", "not here")) == []


def test_it_is_measured_on_this_cpu() -> None:
    assert 0.05 < bf16.bf16_cost.__wrapped__() < 500
