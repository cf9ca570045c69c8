"""Words of any language, by which passages are found and cut, and answers compared.

Texts are compared in Unicode's form NFKC. Where a script has no blanks, words are pairs of neighbouring characters, as
in Lucene's ``CJKAnalyzer``, and a passage is cut by characters. A combining mark stays with its letter.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import pairwise
from typing import NamedTuple

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf\u1b00-\u1b7f\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303c"
    "\u3041-\u3096\u309d-\u30fa\u30fc-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua980-\ua9ff"
    "\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Thai, Lao, Myanmar, Khmer and others of their family; Han, kana, Bopomofo."""
HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
"""Has blanks, but words grow endings, so parts of them are looked for."""
_IGNORED = re.compile("[\u00ad\u200b-\u200d\u2060\ufe00-\ufe0f\ufeff]")
"""What is not seen: soft hyphens, joiners, selectors of glyphs, marks of byte order."""
_OPENING = r"「『（《〈【〔“‘(\["
_LAST = 0x10000
"""Where marks of living scripts end; with single ones beyond, ``re`` would take twenty times as long."""
_END = re.compile(r"[。！？｡។။][^\w\s]*$")
_WORD = re.compile(r"\w+")


class _Patterns(NamedTuple):
    word: re.Pattern[str]
    """A run of characters of scripts without blanks, or a word of others."""
    paired: re.Pattern[str]
    """A character of which pairs are looked for."""
    alone: re.Pattern[str]
    """A character of a script without blanks."""
    strange: re.Pattern[str]
    """What ``re`` knows no words of."""
    atom: re.Pattern[str]
    """What a passage is never cut in."""


@cache
def _patterns() -> _Patterns:
    """Made when the first text comes that is not ASCII: ``re`` does not know marks, and to list them takes 20 ms."""
    marks = "".join(re.escape(chr(c)) for c in range(_LAST) if unicodedata.category(chr(c))[0] == "M")
    alone, paired = rf"(?=\w)[{UNSPACED}][{marks}]*", rf"(?=\w)[{UNSPACED}{HANGUL}][{marks}]*"
    other = rf"[^\W{UNSPACED}{HANGUL}]+"
    word, strange = rf"(?:{paired})+|{other}(?:[{marks}]+(?:{other})?)*", f"[{UNSPACED}{HANGUL}{marks}]"
    atom = rf"[{_OPENING}]*(?:{alone}){{1,2}}[^\w\s{_OPENING}]*|(?:(?!{alone})\S)+?(?=[{_OPENING}]*(?:{alone})|$)"
    return _Patterns(*map(re.compile, (word, paired, alone, strange, atom)))


def plain(text: str) -> str:
    """Returns a text in the form in which texts are compared, but for capital letters."""
    return text if text.isascii() else unicodedata.normalize("NFKC", _IGNORED.sub("", text))


def words(text: str, *, singles: bool = False) -> list[str]:
    """Returns the words by which passages are found; of scripts without blanks pairs of characters.

    Args:
        text: Any.
        singles: Each character of a pair, too: a passage is found by one of its characters.
    """
    text = plain(plain(text).casefold())
    if text.isascii() or not (known := _patterns()).strange.search(text):
        return _WORD.findall(text)
    out = list[str]()
    for word in known.word.findall(text):
        characters = known.paired.findall(word) if known.paired.match(word) else [word]
        out += map("".join, pairwise(characters))
        out += characters if singles or len(characters) == 1 else ()
    return out


def pairs(text: str) -> bool:
    """Returns whether words of the text are pairs of characters."""
    return not text.isascii() and _patterns().paired.search(text) is not None


def ends(atom: str, following: str) -> bool:
    """Returns whether a sentence ends between two atoms."""
    return atom[-1] in ".!?" if following[0] == " " else _END.search(atom) is not None


def atoms(text: str) -> list[str]:
    """Returns a text in parts of about a word's size, in which no passage is cut, with the blank before each."""
    found = list[str]()
    for word in text.split():
        first, *more = [word] if word.isascii() else _patterns().atom.findall(word)
        found += [f" {first}", *more]
    return found


def apart(text: str) -> str:
    """Returns a text with each character of a script without blanks as a word, and no punctuation beside such."""
    if text.isascii() or not (alone := _patterns().alone).search(text):
        return text
    kept = "".join(" " if unicodedata.category(c)[0] == "P" else c for c in text)
    return alone.sub(r" \g<0> ", kept)
