"""Values as text: what the sandbox's child writes and the host reads."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fake_sandbox import in_containers
from marft_envs.sandbox import values, wire

LIMIT = 1 << 20
NUMBERS = st.booleans() | st.integers() | st.integers(-(10**60), 10**60) | st.floats() | st.complex_numbers()
LEAVES = st.none() | NUMBERS | st.text(max_size=9) | st.binary(max_size=9)
VALUES = in_containers(LEAVES, 4, 20)


def canonical(value: Any) -> str:
    """A text that two values share if and only if they are equal with equal types all the way down."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(canonical, value))})"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(canonical, value)))})"
    if isinstance(value, dict):
        return f"{type(value).__name__}({', '.join(canonical(pair) for pair in value.items())})"
    return repr(value)


@settings(max_examples=60)
@given(VALUES)
def test_every_value_comes_back_with_its_type(value: Any) -> None:
    assert canonical(values.decode(values.encode(value, LIMIT))) == canonical(value)


@settings(max_examples=60)
@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12))
def test_any_json_is_a_value_or_a_bad_value(node: Any) -> None:
    text = json.dumps(node, default=str)
    with contextlib.suppress(values.BadValue):
        values.decode(text)


@given(st.text())
def test_any_text_is_a_value_or_a_bad_value(text: str) -> None:
    with contextlib.suppress(values.BadValue):
        values.decode(text)


def test_subclasses_of_dict_are_dicts_and_their_methods_are_not_called() -> None:
    class Evil(dict):
        def items(self) -> Any:
            raise AssertionError("called")

        __iter__ = __len__ = keys = __eq__ = __hash__ = items  # type: ignore[assignment]

    for value in (Counter("aab"), defaultdict(int, {"a": 2}), OrderedDict(a=2, b=1), Evil(a=2)):
        back = values.decode(values.encode(value, LIMIT))
        assert type(back) is dict and back["a"] == 2


class Number(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    "value",
    [Number(3), [Number(3)], {Number(3): 1}, namedtuple("P", "x")(1), object, len, range(3), iter([]), bytearray(b"x"), 1j.__class__, ...],
)  # fmt: skip
def test_other_types_are_bad_values(value: Any) -> None:
    with pytest.raises(values.BadValue, match="not made of built-in types"):
        values.encode(value, LIMIT)


def test_cycles_and_depth_are_bad_values() -> None:
    cycle: list[Any] = [1]
    cycle.append({"a": (cycle,)})
    with pytest.raises(values.BadValue, match="itself"):
        values.encode(cycle, LIMIT)
    deep: Any = 0
    for _ in range(values.DEPTH):
        deep = [deep]
    assert values.decode(values.encode(deep, LIMIT)) == deep
    with pytest.raises(values.BadValue, match="deeper"):
        values.encode((deep,), LIMIT)
    for text in ("[" * 100_000 + "]" * 100_000, "[" * 102 + "]" * 102):
        with pytest.raises(values.BadValue):
            values.decode(text)


def test_large_values_are_found_out_while_writing() -> None:
    shared: Any = 0
    for _ in range(90):
        shared = [shared, shared]
    for value in (shared, "x" * 200, b"x" * 200, 1 << 10_000, list(range(200)), "é" * 80):
        with pytest.raises(values.TooLarge):
            values.encode(value, 100)
    assert values.encode([1, 2], 5) == "[1,2]"


@pytest.mark.parametrize("text", [
    '{"set":[[1]]}', '{"dict":[1]}', '{"dict":[[],1]}', '{"int":"x"}', '{"int":5}', '{"float":"x"}', '{"bytes":"0"}',
    '{"complex":["1"]}', '{"complex":[[],1]}', '{"tuple":"ab"}', '{"other":[]}', "{}", '{"int":"1","set":[]}', "",
    "nul",
    '{"set":' + json.dumps([k * ((1 << 61) - 1) for k in range(1, 2000)]) + "}",
    "9" * 5000,
])  # fmt: skip
def test_forged_texts_are_bad_values(text: str) -> None:
    with pytest.raises(values.BadValue):
        values.decode(text)


def test_special_floats() -> None:
    back = values.decode(values.encode([math.nan, math.inf, -math.inf, -0.0], LIMIT))
    assert math.isnan(back[0]) and back[1:3] == [math.inf, -math.inf] and math.copysign(1, back[3]) == -1


def test_frames_arrive_in_any_pieces() -> None:
    rng = random.Random(3)
    sent = [bytes(rng.randrange(256) for _ in range(rng.randrange(40))) for _ in range(50)]
    stream, frames, got = b"".join(map(wire.pack, sent)), wire.Frames(), []
    while stream:
        cut = rng.randrange(1, 9)
        frames.feed(stream[:cut])
        stream = stream[cut:]
        while (frame := frames.next(40)) is not None:
            got.append(frame)
    assert got == sent and len(frames) == 0
    frames.feed(wire.pack(b"x" * 41))
    with pytest.raises(wire.FrameError, match="41"):
        frames.next(40)
