"""Separates what a model thinks aloud from what it says: ``<think>…</think>`` and what other families write for it.

Of one kind of mark, everything from an opening to the next closing is a thought; a closing that nothing opened ends a
thought whose opening stood in the prompt, so everything before it is one; and what is opened and not closed is a
thought to the end. Every character is looked at a fixed number of times.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PAIRS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought\n", "<channel|>"),
)
"""What opens and closes a thought: most families; Mistral; Cohere; Seed; Gemma 4. Harmony (gpt-oss) has channels."""

HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
"""The special tokens with which gpt-oss frames its messages."""

MARKS = frozenset(
    [mark.strip() for pair in PAIRS for mark in pair] + ["<|channel>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"]
) | frozenset(HARMONY)
"""Special tokens that tell thoughts from words: decoding must keep them."""

_ANY = (
    "think>", "THINK]", "_THINKING|>", "<channel|", "<|channel", "_RESPONSE|>", "<|message|>", "<|return|>", "<|call|>",
)  # fmt: skip
"""A reply that holds none of these has neither thoughts nor frames; searched one by one, as long texts allow."""
_PATTERNS = tuple(
    (re.compile(rf"{re.escape(opening)}|(?P<close>{re.escape(closing)})"), closing) for opening, closing in PAIRS
)
_RESPONSE = re.compile(r"<\|(?:START|END)_RESPONSE\|>")
_NEXT = re.compile(r"<\|(?:end|return|call)\|>(?:\s*<\|start\|>)?|<\|start\|>")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis\b")
_ADDRESSEE = re.compile(r"\bto=\S")


class Reply(NamedTuple):
    """A reply in two parts."""

    spoken: str
    """What is said, calls among it; blanks around it stay."""
    unclosed: bool = False
    """A thought was opened and not closed: the reply was cut, or all of it is thought."""


def split(text: str) -> Reply:
    """Returns what a reply says without its thoughts, and whether a thought is open at its end."""
    if not any(map(text.__contains__, _ANY)):
        return Reply(text)
    unclosed = False
    for pattern, closing in _PATTERNS:
        if closing in text or pattern.search(text):
            text, left_open = _without(text, pattern)
            unclosed = unclosed or left_open
    if "<|message|>" in text or "<|channel|>" in text:
        text = _without_analysis(text)
    return Reply(_RESPONSE.sub("", text) if "_RESPONSE|>" in text else text, unclosed)


def spoken(text: str) -> str:
    """Returns what others see of a reply: no thoughts, and a final message without its frame; as it is without any."""
    if not any(map(text.__contains__, _ANY)):
        return text
    said = split(text).spoken
    if "<|message|>" in said:
        messages = [_framed(message) for message in _NEXT.split(said)]
        said = "\n\n".join(content.strip() for header, content in messages if content.strip())
    return said.strip()


def harmony(text: str) -> list[tuple[str, str, str]]:
    """Returns the messages of a reply of gpt-oss: header, content, and the mark that ends each ("" at the reply's end).

    The reply goes on from ``<|start|>assistant``, which stands in the prompt.
    """
    messages, start = [], 0
    for match in _NEXT.finditer(text):
        if part := text[start : match.start()]:
            messages.append((*_framed(part), match[0]))
        start = match.end()
    if rest := text[start:]:
        messages.append((*_framed(rest), ""))
    return messages


def _framed(message: str) -> tuple[str, str]:
    """Returns header and content of one message of gpt-oss; a text without a header is all content."""
    header, mark, content = message.partition("<|message|>")
    return (header, content) if mark else ("", message)


def _without(text: str, pattern: re.Pattern[str]) -> tuple[str, bool]:
    kept: list[str] = []
    start, opened = 0, -1
    for match in pattern.finditer(text):
        if match["close"] is None:
            opened = match.start() if opened < 0 else opened
            continue
        if opened >= 0:
            kept.append(text[start:opened])
        else:
            kept.clear()
        start, opened = match.end(), -1
    return "".join([*kept, text[start : opened if opened >= 0 else None]]), opened >= 0


def _without_analysis(text: str) -> str:
    """The messages of a reply of gpt-oss but for those that only think."""
    kept: list[str] = []
    start = 0
    for match in [*_NEXT.finditer(text), None]:
        end = len(text) if match is None else match.start()
        header = text[start:end].partition("<|message|>")[0]
        if _ANALYSIS.search(header) is None or _ADDRESSEE.search(header) is not None:
            kept.append(text[start : None if match is None else match.end()])
        start = end if match is None else match.end()
    return "".join(kept)
