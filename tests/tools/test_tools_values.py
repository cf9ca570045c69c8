"""JSON values as agents pass them: copies, stand-ins, depth."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft_envs.call_formats.call import too_deep
from marft_envs.families.tools.types import copied, encode, frozen

scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from(("", "a", "b", "1"))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


def boxes(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict | list) else []), *(box for item in inner for box in boxes(item))]


def canonical(value: Any) -> str:
    """Equal for what JSON calls equal: whole floats are integers, and order in objects is none."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict):
        return f"{{{sorted((key, canonical(item)) for key, item in value.items())}}}"
    return f"[{', '.join(map(canonical, value))}]" if isinstance(value, list) else json.dumps(value)


@given(values)
def test_copies_are_equal_and_share_no_box(value: Any) -> None:
    made = copied(value)
    assert made == value and canonical(made) == canonical(value)
    assert not {id(box) for box in boxes(made)} & {id(box) for box in boxes(value)}


def test_mappings_and_tuples_are_copied_as_objects_and_lists() -> None:
    inner = {"b": [1]}
    made = copied(MappingProxyType({"a": MappingProxyType(inner), "c": ({"d": 1},)}))
    assert made == {"a": {"b": [1]}, "c": [{"d": 1}]} and made["a"]["b"] is not inner["b"]


@given(values, values)
def test_stand_ins_are_equal_exactly_for_equal_values(one: Any, other: Any) -> None:
    hash(frozen(one))
    assert (frozen(one) == frozen(other)) == (canonical(one) == canonical(other))
    assert frozen(one) == frozen(copied(one))


@pytest.mark.parametrize(
    ("one", "other", "equal"), [(1, 1.0, True), (1, True, False), (0, False, False), ("1", 1, False)]
)
def test_numbers_truth_and_text_are_distinguished(one: Any, other: Any, equal: bool) -> None:
    for wrap in (lambda v: v, lambda v: {"a": v}, lambda v: [v], lambda v: {"a": v, "b": [True]}):
        assert (frozen(wrap(one)) == frozen(wrap(other))) == equal


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_depth_counts_levels_that_hold_something(levels: int) -> None:
    value: Any = 0
    for i in range(levels):
        value = [value] if i % 2 else {"a": value}
    assert not too_deep(value, levels) and too_deep([value], levels)


@given(values)
def test_text_is_what_json_writes(value: Any) -> None:
    assert encode(value) == json.dumps(value, ensure_ascii=False, allow_nan=False)


def test_text_is_strict() -> None:
    assert encode({"ß": ["\u2028", '"', 1e300, True]}) == '{"ß": ["\u2028", "\\"", 1e+300, true]}'
    loop: list[Any] = []
    loop.append(loop)
    for value, error in ((float("nan"), ValueError), ({"a": {1}}, TypeError), (b"", TypeError), (loop, RecursionError)):
        with pytest.raises(error):
            encode([value])
