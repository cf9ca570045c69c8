r"""LaTeX as people and models write it, reduced to one spelling.

``clean`` rewrites notation that does not change what an answer means (spacing, ``\dfrac``, ``\left``, dollar
signs, typographic characters, thousands separators, emphasis, colours); ``key`` is what two equal strings share.
Everything is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from marft_envs.families.math.notation import BASES, COMMANDS, CURRENCIES, FUNCTIONS, REWRITES, UNICODE, UNITS, WORD

_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z$])")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*|\\,|\{\\,\}|\\!)(?=\d{3}(?!\d))")
_NULL_DELIMITER = re.compile(r"\\(?:left|right)\s*\.")
_SPACING = re.compile(r"(?<!\\)\\[,;:!> ]|~|(?<!\\)\$|\\\$")
_ESCAPES = (("\\{", "⦃"), ("\\}", "⦄"), ("\\%", "%"), ("\\|", "|"), ("\\_", "_"), ("\\&", " and "), ("\\#", ""))
_GROUP = r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
_STYLED = re.compile(
    r"\\(text|textbf|textit|textrm|textsf|texttt|textnormal|emph|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|mathcal"
    rf"|operatorname|boldsymbol|bm|pmb)\s*\*?{_GROUP}"
)
_NESTED = re.compile(r"\{[^{}]*\\text\s*\{")
_PROSE_STYLES = frozenset(
    ("text", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "emph", "mbox", "hbox")
)
_UPRIGHT_UNIT = re.compile(r"[a-zA-Zµμ°]+(?:\^\{?-?\d\}?)?(?:[\s/*·]+[a-zA-Zµμ]+(?:\^\{?-?\d\}?)?)*")
_NO_UNITS = frozenset(("i", "e", "d", "pi", "dx", "dy", "dt"))
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_INVISIBLE = re.compile(
    r"\\[hv]?phantom\s*\{[^{}]*\}|\\color\s*\{[^{}]*\}|\\(?:text|f)?color(?:box)?\s*(?:\{[^{}]*\})+(?=\s*\{)"
)
_UNDERLINED = re.compile(rf"\\(?:underline|uline){_GROUP}")
_EMPHASIS = re.compile(
    r"(?<![\w)}\]*])\*\*(?=[^\s*])([^*]*[^\s*])\*\*(?![\w({\\*])|<(b|i|u|em|strong|mark)>(.*?)</\2>", re.DOTALL
)
_WRAPPED = re.compile(r"([*_`]+|~~)(?=[^\s*_`~])([^*_`~]+)\1")
_LEAD_IN = re.compile(
    r"\s*(\\text\{)?\s*(?:(?:so|thus|hence|therefore),?\s+)?(?:(?:the|my|our)\s+)?(?:(?:final|correct|right)\s+)?"
    r"(?:an(?:swer|s\.?)|答案)\s*(?:(?:is|are|为|是)(?![a-z])|[:：=])[\s:]*(?=\S)",
    re.IGNORECASE,
)
_MONEY = re.compile(r"(\\\$|[€£¥₹])\s*(-?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?)(?<=\d)(?![\d^_])")
_RATIO = re.compile(r"(?<=\d)\s*(?:\\text\{\s*to\s*\}|\bto\b)\s*(?=\d)")
_DOTTED = re.compile(r"\.(\d*)\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?")
_BASE = re.compile(r"_\s*\{\s*\\text\{\s*(" + "|".join(BASES) + r")\s*\}\s*\}")
_CONJUNCTION = re.compile(r",?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])\s*,?")
_DEGREE = re.compile(r"\^\s*(?:\{\s*[∘°]\s*\}|[∘°])|∘|(?<=[\d}\)])\s*degrees?\b")
_PERCENT = re.compile(r"(?<=[\d}\)])[\s-]*(?:percent|per cent|pct|percentage)\b", re.IGNORECASE)
_PERCENT_WORD = re.compile(r"-?\s*(?:percents?|per cent|pct\.?|percentage)", re.IGNORECASE)
_RAISED = re.compile(r"[⁰¹²³⁴-⁹⁺⁻]+|[₀-₉]+|[¼-¾⅐-⅞]")
_PLAIN_RUN = re.compile(r"[^\u2460-\u24ff\u2776-\u2793]+")
_SPACES = re.compile(r"\s+")
_KEY_SPACES = re.compile(r"(?<!\d) | (?!\d)")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d ]*[\d/])")
_LONE_BRACED = re.compile(r"\{(\w)\}(?!\d)")

MAX_DEPTH = 20

_TEXT = re.compile(rf"\\text{_GROUP}")
_LETTERS = re.compile(rf"(?<![\\\w{WORD}])[^\W\d_]{{2,}}")


def _styled(match: re.Match[str]) -> str:
    style, inner = match.group(1), match.group(2).strip()
    if inner.strip(" ,;").lower() in ("and", "or"):
        return " , "
    if _PERCENT_WORD.fullmatch(inner):
        return "%"
    if style in _PROSE_STYLES or (style == "mathrm" and _upright(inner)) or (inner in UNITS and len(inner) > 1):
        return f" \\text{{{inner}}} "
    return f" {inner} "


def _upright(inner: str) -> bool:
    r"""Whether what ``\mathrm{}`` holds is a unit or a word, and no name of a point, a constant or a function."""
    if inner in FUNCTIONS or inner in _NO_UNITS or (inner.isupper() and len(inner) > 1):
        return False
    return _UPRIGHT_UNIT.fullmatch(inner) is not None and (len(inner) > 1 or inner in UNITS)


def _command(match: re.Match[str]) -> str:
    return COMMANDS.get(match.group(1), match.group(0))


def _raised(match: re.Match[str]) -> str:
    """Small digits keep their place: ``x⁵`` is no x5, and ``2⅓`` no 21/3."""
    plain = unicodedata.normalize("NFKC", match.group()).replace("−", "-")
    if "⁄" in plain:
        above, below = plain.split("⁄")
        return f"\\frac{{{above}}}{{{below}}} "
    return f"_{{{plain}}}" if match.group()[0] in "₀₁₂₃₄₅₆₇₈₉" else f"^{{{plain}}}"


def _ascii(text: str) -> str:
    """Digits of all scripts, full-width signs and typographic characters as those of ASCII or this module's own."""
    text = _RAISED.sub(_raised, text.translate(UNICODE))
    text = _PLAIN_RUN.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text).translate(UNICODE)
    return "".join(c if c.isascii() or not c.isdecimal() else str(unicodedata.decimal(c)) for c in text)


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    r"""Rewrites ``text`` in one spelling. ``\text{}`` stays; see ``without_text``, ``quantity`` and ``key``."""
    text = _SPACES.sub(" ", text)
    if not text.isascii():
        text = _ascii(text)
    if "*" in text or "<" in text or "_" in text or "`" in text or "~" in text:
        text = _EMPHASIS.sub(r"\1\3", text.strip())
        if (wrapped := _WRAPPED.fullmatch(text)) is not None:
            text = wrapped.group(2)
    for has, find, put in REWRITES:
        if has in text:
            text = find.sub(put, text)
    text = _clean_latex(text) if "\\" in text else _SPACING.sub(" ", _money(text)).replace("{,}", ",")
    for old, new in (("<=", "≤"), (">=", "≥"), ("!=", "≠"), ("==", "="), ("**", "^")):
        if old in text:
            text = text.replace(old, new)
    if (lead := _LEAD_IN.match(text)) is not None:
        text = (lead.group(1) or "") + text[lead.end() :]
    text = _CONJUNCTION.sub(" , ", _RATIO.sub(":", text))
    text = _PERCENT.sub("%", _DEGREE.sub("°", text))
    text = _SPACES.sub(" ", text.replace("\\text{}", "")).rstrip(" .,;:").lstrip(" ,;:=≈")
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
    text = _DELIMITERS.sub(" ", _NULL_DELIMITER.sub("", _money(text)))
    text = _SPACING.sub(lambda m: "" if m.group(0) == "\\!" else " ", text)
    for old, new in _ESCAPES:
        text = text.replace(old, new)
    if "_" in text:
        text = _BASE.sub(lambda m: f"_{{{BASES[m[1]]}}}", text)
    if "\\dot" in text:
        text = _DOTTED.sub(lambda m: f".{m[1]}\\overline{{{m[2]}{m[3] or ''}{m[4] or ''}}}", text)
    if "color" in text or "phantom" in text or "line" in text:
        text = _UNDERLINED.sub(r"\1", _INVISIBLE.sub("", text))
    text = _STYLED.sub(_styled, text)
    if _NESTED.search(text) is not None:
        text = _STYLED.sub(_styled, text)
    return _COMMAND.sub(_command, text)


def _money(text: str) -> str:
    """Amounts behind the sign of a currency, with its name behind them."""
    if "\\$" not in text and text.isascii():
        return text
    return re.sub("[€£¥₹]", "", _MONEY.sub(lambda m: f"{m[2].replace(',', '')} \\text{{ {CURRENCIES[m[1]]} }}", text))


def _depths(text: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """Yields place and character from ``start`` on, and how many brackets are open behind it. Kinds may differ."""
    depth = 0
    for index in range(start, len(text)):
        char = text[index]
        depth += (char in "([{⦃") - (char in ")]}⦄")
        yield index, char, depth


def closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start``, or -1. Kinds may differ: ``[0,1)`` closes."""
    return next((index for index, char, depth in _depths(text, start) if depth == 0 and char in ")]}⦄"), -1)


def balanced(text: str) -> bool:
    """Whether every bracket is closed, of whatever kind, and none is deeper than a reader would follow."""
    depths = [0, *(depth for _, _, depth in _depths(text))]
    return min(depths) == depths[-1] == 0 and max(depths) <= MAX_DEPTH


def outside(text: str) -> Iterator[tuple[int, str]]:
    """Yields place and character of what stands outside brackets, the brackets themselves left out."""
    return ((index, char) for index, char, depth in _depths(text) if depth == 0 and char not in "([{⦃)]}⦄")


def split(text: str, separators: str) -> list[str]:
    """Splits at any of the one-character ``separators`` outside brackets, and strips the parts."""
    parts, start = [], 0
    for index, char in outside(text):
        if char in separators:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


def without_text(text: str) -> str:
    r"""Takes the words out of their ``\text{}``, and marks them as words."""
    return _TEXT.sub(lambda m: f" {_marked(m[1])} ", text).strip() if "\\text" in text else text


def _marked(text: str) -> str:
    return _LETTERS.sub(lambda m: m[0] if m[0] in FUNCTIONS else WORD + m[0], text)


def spelling(text: str) -> str:
    """The text without spaces, needless braces and marks of words."""
    return _LONE_BRACED.sub(r"\1", _KEY_SPACES.sub("", text.replace(WORD, "")))


def key(text: str) -> str:
    """What two spellings of one answer share; words in small letters."""
    text = spelling(text.rstrip(" .,;"))
    return text.casefold() if text.isalpha() and (len(text) > 2 or text.lower() == "no") else text
