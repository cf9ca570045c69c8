"""The bytes of the protocol: what Tinker's own classes write is read, and what is written they would have written."""

from __future__ import annotations

import numpy as np
import pytest

from marft_algos.extras.tinker import wire
from marft_algos.extras.tinker.wire import Row, WireError

REQUEST = (
    "0a076d6f64656c5f3110ac021a740a0c0a0a0a08070000002c01000012280a0d7461726765745f746f6b656e7312170a102c0100000000"
    "000070110100000000001802220102121b0a086c6f6770726f6273120f0a08000000bf0000c0bf1801220102121d0a0a616476616e7461"
    "676573120f0a08000000000000004018012201021a2c0a080a060a040100000012200a0d7461726765745f746f6b656e73120f0a080200"
    "00000000000018022201012213696d706f7274616e63655f73616d706c696e673001"
)
SCORES = (
    "0a0a54656e736f7244617461125d0a017812160a10656c656d656e74776973655f6c6f737312021801123e0a086c6f6770726f62731232"
    "0a0c000080be000000bf000040c012200000000000000000080000000000000008000000000000000c00000000000000180118031a130a"
    "086c6f73733a73756d11000000000000f83f"
)
SAMPLES = "0a14120805000000701101001a08000000bf000080be0a0e08011204090000001a04000080bf12080000c07f000000c0"
"""Serialised by ``tinker.proto.tinker_public_pb2`` of SDK 0.25.0."""


def test_a_request_is_what_the_protocols_own_classes_write() -> None:
    inputs = {"logprobs": np.array([-0.5, -1.5], np.float32), "advantages": np.array([0.0, 2.0], np.float32)}
    rows = [Row([7, 300, 70000], inputs), Row([1, 2])]
    assert wire.work("model_1", 300, rows, "importance_sampling", True).hex() == REQUEST


def test_answers_are_read() -> None:
    scored = wire.scores(bytes.fromhex(SCORES))
    assert [x.tolist() for x in scored] == [[-0.25, -0.5], [], [-3.0]]
    first, second = wire.samples(bytes.fromhex(SAMPLES))
    assert (first.ids, first.logprobs.tolist(), first.stopped) == ([5, 70000], [-0.5, -0.25], True)
    assert (second.ids, second.logprobs.tolist(), second.stopped) == ([9], [-1.0], False)
    assert np.isnan(first.prompt[0]) and first.prompt[1:].tolist() == [-2.0]


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0a", b"\xff" * 12, b"\x0b", SCORES[:40]])
def test_what_is_cut_is_an_error(data: bytes | str) -> None:
    message = bytes.fromhex(data) if isinstance(data, str) else data
    with pytest.raises(WireError):
        wire.scores(message)
        wire.samples(message)
