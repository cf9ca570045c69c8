r"""LaTeX as people and models write it, reduced to one spelling.

``clean`` rewrites notation that does not change what an answer means (spacing, ``\dfrac``, ``\left``, dollar
signs, typographic characters, thousands separators); ``split_unit`` takes a trailing unit off; ``key`` is what
two equal strings share. Everything is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from marft_envs.math.notation import COMMANDS, UNICODE, UNITS

_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z$])")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*|\\,|\{\\,\}|\\!)(?=\d{3}(?!\d))")
_NULL_DELIMITER = re.compile(r"\\(?:left|right)\s*\.")
_SPACING = re.compile(r"(?<!\\)\\[,;:!> ]|~|(?<!\\)\$|\\\$")
_ESCAPES = (("\\{", "⦃"), ("\\}", "⦄"), ("\\%", "%"), ("\\|", "|"), ("\\_", "_"), ("\\&", " and "), ("\\#", ""))
_STYLED = re.compile(
    r"\\(text|textbf|textit|textrm|textsf|texttt|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|mathcal"
    r"|operatorname|boldsymbol|bm|pmb)\s*\*?\s*\{([^{}]*)\}"
)
_PROSE_STYLES = frozenset(("text", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "mbox", "hbox"))
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_CONJUNCTION = re.compile(r",?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])\s*,?")
_DEGREE = re.compile(r"\^\s*(?:\{\s*[∘°]\s*\}|[∘°])|∘|(?<=[\d}\)])\s*degrees?\b")
_PERCENT = re.compile(r"(?<=[\d}\)])[\s-]*(?:percent|per cent|pct)\b", re.IGNORECASE)
_PERCENT_WORD = re.compile(r"-?\s*(?:percents?|per cent|pct\.?)", re.IGNORECASE)
_SPACES = re.compile(r"\s+")
_KEY_SPACES = re.compile(r"(?<!\d) | (?!\d)")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d ]*[\d/])")
_LONE_BRACED = re.compile(r"\{(\w)\}(?!\d)")

_UNIT_WORD = "|".join(sorted((a for a in UNITS if len(a) > 1), key=len, reverse=True))
_POWER = r"(?:\^\s*\{?\s*(\d)\s*\}?)?"
_TEXT_UNIT = re.compile(
    rf"(.*[\w)}}\]°%π])\s*\\text\{{([^{{}}]+)\}}\s*(?:/\s*\\text\{{([^{{}}]+)\}}\s*)?{_POWER}", re.DOTALL
)
_BARE_UNIT = re.compile(
    rf"(.*[\d)}}π])\s*((?:square|cubic|sq\.?|cu\.?)?\s*(?:{_UNIT_WORD})s?\.?)"
    rf"(?:\s*(?:/|per)\s*({_UNIT_WORD}))?\s*{_POWER}",
    re.DOTALL,
)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def _styled(match: re.Match[str]) -> str:
    style, inner = match.group(1), match.group(2).strip()
    if inner.strip(" ,;").lower() in ("and", "or"):
        return " , "
    if _PERCENT_WORD.fullmatch(inner):
        return "%"
    if style in _PROSE_STYLES or (inner in UNITS and len(inner) > 1):
        return f" \\text{{{inner}}} "
    return f" {inner} "


def _command(match: re.Match[str]) -> str:
    return COMMANDS.get(match.group(1), match.group(0))


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    r"""Rewrites ``text`` in one spelling. Units and ``\text{}`` stay; see ``split_unit`` and ``key``."""
    text = _SPACES.sub(" ", text)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(UNICODE))
    text = _clean_latex(text) if "\\" in text else _SPACING.sub(" ", text).replace("{,}", ",")
    for old, new in (("<=", "≤"), (">=", "≥"), ("!=", "≠"), ("==", "="), ("**", "^")):
        if old in text:
            text = text.replace(old, new)
    text = _CONJUNCTION.sub(" , ", text)
    text = _PERCENT.sub("%", _DEGREE.sub("°", text))
    text = _SPACES.sub(" ", text).rstrip(" .,;:").lstrip(" ,;:=≈")
    if " " in text:
        text = _SPACED_THOUSANDS.sub(lambda match: match.group(0).replace(" ", ""), text)
    while text[:1] == "{" and text[-1:] == "}" and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _clean_latex(text: str) -> str:
    if "\\\\" in text:
        text = text.replace("\\\\", "\\") if "\\\\begin" in text else text
        text = text if "\\begin" in text else _DOUBLED.sub(r"\\", text)
    text = _THOUSANDS.sub("", text)
    text = _DELIMITERS.sub(" ", _NULL_DELIMITER.sub("", text))
    text = _SPACING.sub(lambda m: "" if m.group(0) == "\\!" else " ", text)
    for old, new in _ESCAPES:
        text = text.replace(old, new)
    return _COMMAND.sub(_command, _STYLED.sub(_styled, text))


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start``, or -1. Kinds may differ: ``[0,1)`` closes."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] in "([{⦃":
            depth += 1
        elif text[index] in ")]}⦄":
            depth -= 1
            if depth == 0:
                return index
    return -1


def outside(text: str) -> Iterator[tuple[int, str]]:
    """Yields place and character of what stands outside brackets, the brackets themselves left out."""
    depth = 0
    for index, char in enumerate(text):
        if char in "([{⦃":
            depth += 1
        elif char in ")]}⦄":
            depth -= 1
        elif depth == 0:
            yield index, char


def split(text: str, separators: str) -> list[str]:
    """Splits at any of the one-character ``separators`` outside brackets, and strips the parts."""
    parts, start = [], 0
    for index, char in outside(text):
        if char in separators:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


def split_unit(text: str) -> tuple[str, str]:
    r"""Takes a trailing unit off a cleaned answer: ``10 \text{cm}^2`` gives ``("10", "cm2")``.

    The unit is ``""`` when there is none and ``"?"`` when it is no unit of the table. Single letters count
    as units only inside ``\text{}``: ``10m`` is ten times m.
    """
    if text[-1:].isdigit() and "^" not in text:
        return text, ""
    match = _TEXT_UNIT.fullmatch(text) or _BARE_UNIT.fullmatch(text)
    if match is None:
        return text, ""
    value, words, per, power = match.groups()
    return value.rstrip(" ,"), _unit_name(f"{words}/{per}" if per else words, power or "")


def without_text(text: str) -> str:
    r"""Takes the words out of their ``\text{}``."""
    return _TEXT.sub(r" \1 ", text).strip() if "\\text" in text else text


def _unit_name(words: str, power: str) -> str:
    words = words.strip(" .()").lower()
    for prefix, exponent in (("square ", "2"), ("sq. ", "2"), ("sq ", "2"), ("cubic ", "3"), ("cu ", "3")):
        if words.startswith(prefix):
            words, power = words.removeprefix(prefix), exponent
    parts = [part.strip() for part in re.split(r"/|\bper\b", words)]
    names = [UNITS.get(part) or UNITS.get(part.removesuffix("s")) for part in parts]
    name = "/".join(name for name in names if name) + power if all(names) else "?"
    return {"mi/h": "mph", "km/h": "kmh"}.get(name, name)


def same_unit(first: str, second: str) -> bool:
    """Whether two units from ``split_unit`` may belong to one answer: only two different known ones may not."""
    known = [unit for unit in (first, second) if unit not in ("", "?") and not unit.startswith("unit")]
    return len(known) < 2 or known[0] == known[1]


def key(text: str) -> str:
    """What two spellings of one answer share: no spaces, no needless braces; words in lower case."""
    text = _LONE_BRACED.sub(r"\1", _KEY_SPACES.sub("", text))
    return text.casefold() if len(text) > 2 and text.isalpha() else text
