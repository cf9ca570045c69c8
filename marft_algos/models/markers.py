"""What a tokenizer or a chat template takes for structure, found by asking them, and broken up in text from others.

A *marker* is

* every special token of the tokenizer (of more than one character);
* every other added token that is written as a tag: ``<think>``, ``<｜User｜>``, ``[INST]``, ``|||NAME|||``. Added
  tokens that are plain words, blanks or scraps of text are vocabulary;
* every tag that the template itself writes around messages, calls, results and tools, token or not (``<<SYS>>``), or
  that its source spells out for other cases;
* a line that the template writes before each message and that ends with a colon (``User:``), where it begins a line.

A blank behind its first character (before the colon of a line) keeps a marker readable and makes it plain text. It is
looked for in the text as it is, and in the text as the tokenizer's normaliser rewrites it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Environment

from marft_envs.errors import ConfigError

SEPARATORS = (" ", "\u00b7", "\ufffd")
"""What is put into a marker: the first that the tokenizer's normaliser does not take out again."""

_TAG = re.compile(
    r"<+[^<>\s]*[\w|][^<>\s]*>+|\[/?\w+\]|\|+[^|<>\s]*\w[^|<>\s]*\|+"
    r"|<[^<>\s]*\w[^<>\s]*(?=(?:\s[^<>\n]*)?\Z)"  # opened here, closed behind a name: <function=
)
_HEAD = re.compile(r"[^\s:<>\[\]{}|][^:<>\[\]{}|\n]{0,39}:")
_ANGLES = re.compile(r"<[^\s]*\w[^\s]*>")
_MIRRORED = ("[]", "{}", "()", "><", "«»", "⟦⟧", "【】", "＜＞", "〈〉", "《》")
_QUOTES = "\"'`"
_PASSES = 20
"""Passes over a text: markers within markers are broken one level at a time."""
_LINE_START = r"(?:^|(?<=[\n\r\v\f\x85\u2028\u2029]))[^\S\n\r\v\f\x85\u2028\u2029]*"


def is_tag(token: str) -> bool:
    """Whether an added token is written as a tag, rather than a word or a scrap of text."""
    bare = token.strip()
    if len(bare) < 2 or any(char.isspace() for char in bare) or not any(char.isalpha() for char in bare):
        return False
    if _ANGLES.fullmatch(bare) or (bare[0] in "<|" and bare[-1] in ">|"):
        return True
    ends = bare[0] + bare[-1]
    symmetric = ends[0] == ends[1] and not ends[0].isalnum() and ends[0] not in _QUOTES
    return bare == token and (symmetric or ends in _MIRRORED)


def tags(text: str) -> set[str]:
    """The tags in what a template writes."""
    return set(_TAG.findall(text))


def spelt(tokenizer: Any) -> set[str]:
    """The tags that the source of a tokenizer's chat templates spells out, in whichever branch."""
    templates = tokenizer.chat_template
    sources = templates.values() if isinstance(templates, dict) else [templates]
    lexer = Environment().lexer
    return {
        tag
        for source in sources
        for token in lexer.tokenize(source)
        if token.type in ("data", "string")
        for tag in tags(token.value)
    }


def heads(text: str) -> set[str]:
    """The last line of what a template writes before a message, if it names a speaker: ``User:``."""
    line = text.rstrip().rpartition("\n")[2].strip()
    match = _HEAD.fullmatch(line)
    return {line} if match else set()


def special(tokenizer: Any) -> set[str]:
    """The special tokens of a tokenizer, but for single characters: these are not broken up."""
    listed = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return {name for name in listed | set(tokenizer.all_special_tokens) if len(name) > 1}


def added(tokenizer: Any) -> set[str]:
    """The added tokens of a tokenizer that are written as tags."""
    contents = (token.content for token in tokenizer.added_tokens_decoder.values())
    return {content.strip() for content in contents if is_tag(content)}


def pattern_of(words: Iterable[str]) -> str:
    """A pattern that matches the longest of these words, as a trie: a tokenizer may have thousands."""
    trie: dict[str, Any] = {}
    for word in words:
        node = trie
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _branches(trie)


def _branches(node: dict[str, Any]) -> str:
    prefix = ""
    while len(node) == 1 and "" not in node:
        (char, node), *_ = node.items()
        prefix += re.escape(char)
    longer = [re.escape(char) + _branches(below) for char, below in sorted(node.items()) if char]
    return f"{prefix}(?:{'|'.join(longer)}){'?' if '' in node else ''}" if longer else prefix


class Breaker:
    """Puts something into every marker that a text spells out. The answer to a text is remembered."""

    def __init__(self, tokenizer: Any, words: Iterable[str], lines: Iterable[str] = ()) -> None:
        words, lines = set(words), set(lines)
        self._raw = _compiled(words, lines)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._normalizer = getattr(backend, "normalizer", None)
        rewritten = words
        if self._normalizer is not None:  # what is looked for before the normaliser cannot be forged behind it
            as_is = {token.content for token in tokenizer.added_tokens_decoder.values() if not token.normalized}
            rewritten = {str(self._normalizer.normalize_str(word)).lstrip("▁ ") for word in words - as_is} - {""}
        self._normalized = _compiled(rewritten, lines) if self._normalizer is not None else None
        self._separator = self._choose(words | rewritten)
        self.broken: Callable[[str], str] = lru_cache(maxsize=1024)(self._broken)

    def _choose(self, words: set[str]) -> str:
        for separator in SEPARATORS:
            tried = (f"{word[0]}{separator}{word[1:]}" for word in words)
            if not any(self._cuts(text) for text in tried if len(text) > 2):
                return separator
        for separator in SEPARATORS:  # tokens within tokens: what is left is broken in the next pass
            if self._normalizer is None or separator in self._normalizer.normalize_str(f"<{separator}a"):
                return separator
        raise ConfigError("The tokenizer's normaliser takes out whatever would break its control tokens up.")

    def _broken(self, text: str) -> str:
        original = text
        for _ in range(_PASSES):
            if not (cuts := self._cuts(text)):
                return text
            pieces, start = [], 0
            for cut in sorted(cuts):
                pieces.append(text[start:cut])
                start = cut
            text = self._separator.join([*pieces, text[start:]])
        return self._separator.join(original)  # a normaliser hides where the markers are: nothing holds together

    def _cuts(self, text: str) -> set[int]:
        """Where markers are to be broken, as positions in ``text``."""
        cuts = {_cut(match) for match in self._raw.finditer(text)} if self._raw else set()
        if cuts or self._normalizer is None or self._normalized is None:
            return cuts
        if self._normalized.search(self._normalizer.normalize_str(text)) is None:
            return set()
        from tokenizers import NormalizedString  # of the train extra; who is hosted needs no template

        aligned = NormalizedString(text)
        self._normalizer.normalize(aligned)
        before = (aligned.slice((0, _cut(match))) for match in self._normalized.finditer(aligned.normalized))
        # A slice begins at the first character that the normaliser keeps.
        return {text.find(part.original) + len(part.original) for part in before if part is not None}


def _compiled(words: set[str], lines: set[str]) -> re.Pattern[str] | None:
    patterns = [pattern_of(words)] if words else []
    if lines:
        patterns.append(rf"{_LINE_START}(?:{pattern_of(line[:-1] for line in lines)})(?P<colon>:)")
    return re.compile("|".join(patterns)) if patterns else None


def _cut(match: re.Match[str]) -> int:
    return match.start("colon") if match.re.groups and match["colon"] else match.start() + 1


def framing(roles: Sequence[str], gaps: Sequence[str], closes: str) -> Iterator[tuple[str, str, str]]:
    """Yields the gaps of a plain conversation, with the two lines next to each system or user message."""
    for before, gap, after in zip(["", *roles], gaps, [*roles, closes], strict=True):
        lines, theirs = gap.splitlines(keepends=True), ("system", "user")
        opens = lines[-2:] if after in theirs else []
        ends = lines[:2] if before in theirs and after != "assistant" else []
        yield gap, "".join([*opens, *ends]), gap if after else ""


def token_behind(tokenizer: Any, text: str) -> int | None:
    """Returns the control token that stands first in what a template writes behind a reply; None: there is none."""
    tokens = special(tokenizer) | added(tokenizer)
    match = re.match(pattern_of(tokens), text.lstrip()) if tokens else None
    return None if match is None else int(tokenizer.convert_tokens_to_ids(match[0]))


def ended(ids: Sequence[int], end_ids: Collection[int], text: str, decoded: Callable[[Sequence[int]], str]) -> int:
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
