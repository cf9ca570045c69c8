"""How replies end: by a control token, or by the text that a template without one writes before the next message."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any

from marft_algos.models import markers


def token_behind(tokenizer: Any, text: str) -> int | None:
    """Returns the control token that stands first in what a template writes behind a reply; None: there is none."""
    tokens = markers.special(tokenizer) | markers.added(tokenizer)
    match = re.match(markers.pattern_of(tokens), text.lstrip()) if tokens else None
    return None if match is None else int(tokenizer.convert_tokens_to_ids(match[0]))


def length(ids: Sequence[int], end_ids: Collection[int], text: str, decoded: Callable[[Sequence[int]], str]) -> int:
    """Returns the tokens of a reply up to its end, which is the last of them; 0: it has not ended.

    Args:
        ids: The reply, and what may have been sampled behind it.
        end_ids: Tokens that end it.
        text: What ends it, too; empty: nothing else.
        decoded: Gives the text of tokens.
    """
    many = next((i for i, token in enumerate(ids, 1) if token in end_ids), 0)
    read = ids[: many or None]
    if not text or text not in decoded(read):
        return many
    return 1 + bisect_left(range(1, len(read)), True, key=lambda i: text in decoded(read[:i]))
