"""The kernel of ``attention.attend_rows``, which Triton compiles: imported where there is Triton alone."""

from typing import Any

import triton
import triton.language as tl


@triton.jit
def attend(
    q: Any, kv: Any, position: Any, column: Any, out: Any,
    q_row: Any, q_head: Any, kv_row: Any, kv_head: Any, kv_column: Any,
    scale: tl.constexpr, group: tl.constexpr, head_dim: tl.constexpr, block: tl.constexpr, queries: tl.constexpr,
) -> None:  # fmt: skip
    """Attends from the queries of one head of keys to one row's columns; in powers of two."""
    row, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    end = tl.load(column) + 1
    first = end - 1 - tl.load(position + row)
    g, d, n = tl.arange(0, queries), tl.arange(0, head_dim), tl.arange(0, block)
    mine = (g < group)[:, None]
    asked = tl.load(q + row * q_row + (head * group + g[:, None]) * q_head + d[None, :], mask=mine, other=0.0)
    keys = kv + row.to(tl.int64) * kv_row + head * kv_head
    values = keys + heads * kv_head
    most = tl.full([queries], float("-inf"), tl.float32)
    total = tl.zeros([queries], tl.float32)
    attended = tl.zeros([queries, head_dim], tl.float32)
    for start in range(first, end, block):
        there = (start + n) < end
        k = tl.load(keys + (start + n)[None, :] * kv_column + d[:, None], mask=there[None, :], other=0.0)
        score = tl.where(there[None, :], tl.dot(asked, k) * scale, float("-inf"))
        now = tl.maximum(most, tl.max(score, 1))
        weight, kept = tl.exp2(score - now[:, None]), tl.exp2(most - now)
        v = tl.load(values + (start + n)[:, None] * kv_column + d[None, :], mask=there[:, None], other=0.0)
        attended = attended * kept[:, None] + tl.dot(weight.to(v.dtype), v)
        total = total * kept + tl.sum(weight, 1)
        most = now
    place = out + (row * heads + head) * group * head_dim + g[:, None] * head_dim + d[None, :]
    tl.store(place, (attended / total[:, None]).to(asked.dtype), mask=mine)
