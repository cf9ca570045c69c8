"""A small parser for one mathematical expression, in LaTeX or plain notation, into nested tuples.

Never ``eval``: a tokenizer and a recursive descent, both bounded, that know nothing but numbers, names and the
functions below. What they do not know is a ``ParseError``, and the next tier's business.

Nodes: ``("num", exact)``, ``("float", approximate)``, ``("var", name)``, ``("const", name)``, ``("+", a, b)``,
``("*", a, b)``, ``("/", a, b)``, ``("^", a, b)``, ``("neg", a)``, ``("fn", name, a)``, ``("root", a, n)``,
``("log", a, base)``, ``("binom", n, k)``, ``("max", a, b)``, ``("min", a, b)``.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from marft_envs.families.math.notation import ACCENTS, FUNCTIONS, SYMBOLS, WORD

Node = tuple[Any, ...]

MAX_TOKENS = 400
MAX_DEPTH = 40
MAX_DIGITS = 400
LONG_DECIMAL = 16
"""A decimal with so many significant digits is a printed double, not an exact number."""


class ParseError(ValueError):
    """The text is not an expression that this parser knows."""


_NAMES = "|".join(sorted((*FUNCTIONS, "pi"), key=len, reverse=True))
_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<repeat>\d*\.\d*\\overline\s*\{{?\d+\}}?)
    | (?P<number>(?:\d{{1,3}}(?:,\d{{3}})+(?![\d,])(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)
    | (?P<command>\\[a-zA-Z]+)
    | (?P<name>{_NAMES}|(?:max|min)(?=\s*[(⦃])|[a-zA-Z]'*)
    | (?P<symbol>[-+*/^_!()\[\]{{}}⦃⦄,|°%π∞])
    )""",
    re.VERBOSE,
)
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "sign": "sgn"}
_MARKS = {"!": "factorial", "°": "degree", "%": "percent"}
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_SHORT_WORDS = frozenset(
    ("yes", "no", "on", "off", "odd", "not", "all", "any", "one", "two", "six", "ten", "tie", "win", "red")
)
LONG_NAMES = re.compile(_NAMES)
_REPEAT = re.compile(r"(\d*)\.(\d*)\\overline\s*\{?(\d+)\}?")


def has_words(text: str) -> bool:
    """Whether ``text`` holds a run of letters that no product of variables or function name explains."""
    if WORD in text or text.strip().lower() in _SHORT_WORDS:
        return True
    if "\\begin" in text:
        return False  # the words are names of environments
    return any(len(LONG_NAMES.sub("", word)) > 3 for word in _WORD.findall(text))


@lru_cache(maxsize=4096)
def parse(text: str) -> Node:
    """Parses a cleaned expression.

    Raises:
        ParseError: The text is no expression, or is longer or deeper than the bounds above.
    """
    if has_words(text):
        raise ParseError("words")
    parser = _Parser(_tokenize(text))
    node = parser.sum(0)
    if parser.peek() == "\\choose":
        parser.take()
        node = ("binom", node, parser.sum(0))
    if parser.position < len(parser.tokens):
        raise ParseError(f"unexpected {parser.tokens[parser.position][1]!r}")
    return node


def variables(node: Node) -> frozenset[str]:
    """Names of the variables in ``node``."""
    names, stack = set(), [node]
    while stack:
        top = stack.pop()
        if top[0] == "var":
            names.add(top[1])
        stack.extend(child for child in top[1:] if isinstance(child, tuple))
    return frozenset(names)


def _tokenize(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise ParseError(f"unknown character {text[position]!r}")
        tokens.append((match.lastgroup, match.group(match.lastgroup)))
        if len(tokens) > MAX_TOKENS:
            raise ParseError("too long")
        position = match.end()
    return tokens


def number(text: str) -> Node:
    """The node of a numeral: exact, unless it is a long decimal (a printed float)."""
    text = text.replace(",", "")
    if len(text) > MAX_DIGITS:
        raise ParseError("too many digits")
    mantissa, _, exponent = text.lower().partition("e")
    if abs(int(exponent or 0)) > MAX_DIGITS:
        raise ParseError("exponent too large")
    if "." in mantissa and len(mantissa.replace(".", "").lstrip("0")) >= LONG_DECIMAL:
        return ("float", float(text))
    if "." not in mantissa and not exponent:
        return ("num", int(mantissa))
    value = Fraction(mantissa.rstrip(".") + ("e" + exponent if exponent else ""))
    return ("num", value.numerator if value.denominator == 1 else value)


def _repeating(text: str) -> Node:
    match = _REPEAT.fullmatch(text)
    if match is None or len(text) > 100:
        raise ParseError("repeating decimal")
    whole, fixed, period = match.groups()
    shift = 10 ** len(fixed)
    value = Fraction(int((whole + fixed) or "0"), shift) + Fraction(int(period), shift * (10 ** len(period) - 1))
    return ("num", value)


class _Parser:
    """Recursive descent; every method returns a node and leaves ``position`` behind what it read."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.position = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> str:
        index = self.position + ahead
        return self.tokens[index][1] if index < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        index = self.position + ahead
        return self.tokens[index][0] if index < len(self.tokens) else ""

    def take(self) -> str:
        text = self.peek()
        if not text:
            raise ParseError("unexpected end")
        self.position += 1
        return text

    def expect(self, symbol: str) -> None:
        if self.take() != symbol:
            raise ParseError(f"expected {symbol!r}")

    def sum(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ParseError("too deep")
        node = self.product(depth)
        while (operator := self.peek()) in ("+", "-"):
            self.take()
            right = self.product(depth)
            node = ("+", node, ("neg", right) if operator == "-" else right)
        return node

    def product(self, depth: int) -> Node:
        start = self.position
        node = self.unary(depth)
        while True:
            following = self.peek()
            lone_number = self.position - start == 1 and self.kind(-1) == "number"
            if following in ("*", "/"):
                self.take()
                start = self.position
                node = (following, node, self.unary(depth))
            elif self.starts_factor():
                if lone_number and self.kind() == "number":
                    raise ParseError("two numbers side by side")
                start = self.position
                node = ("*", node, self.power(depth))
            else:
                return node

    def starts_factor(self) -> bool:
        kind, text = self.kind(), self.peek()
        if kind == "symbol":
            return text in ("(", "[", "{", "π", "∞") or (text == "|" and not self.bars)
        return kind != "" and text not in ("\\choose", "\\rfloor", "\\rceil")

    def unary(self, depth: int) -> Node:
        if (operator := self.peek()) in ("+", "-"):
            if depth > MAX_DEPTH:
                raise ParseError("too deep")
            self.take()
            right = self.unary(depth + 1)
            return ("neg", right) if operator == "-" else right
        return self.power(depth)

    def power(self, depth: int) -> Node:
        node = self.postfix(self.atom(depth))
        if self.peek() == "^":
            self.take()
            node = self.postfix(("^", node, self.exponent(depth + 1)))
        return node

    def exponent(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ParseError("too deep")
        if self.peek() in ("-", "+"):
            return self.unary(depth)
        node = self.atom(depth)
        if self.peek() == "^":
            self.take()
            node = ("^", node, self.exponent(depth + 1))
        return node

    def postfix(self, node: Node) -> Node:
        mark = _MARKS.get(self.peek())
        if mark is None:
            return node
        self.take()
        if self.peek() in _MARKS:
            raise ParseError("double factorial")
        return ("fn", mark, node)

    def atom(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise ParseError("too deep")
        kind, text = self.kind(), self.take()
        if kind == "number":
            return self.numeral(text, depth)
        if kind == "repeat":
            return _repeating(text)
        if kind == "command" or text in FUNCTIONS or text in ("max", "min"):
            return self.command(text.lstrip("\\"), depth)
        return self.name(text, depth) if kind == "name" else self.bracketed(text, depth)

    def bracketed(self, text: str, depth: int) -> Node:
        if text in ("π", "∞"):
            return ("const", "pi" if text == "π" else "inf")
        if text == "|":
            self.bars += 1
            node = self.sum(depth + 1)
            self.bars -= 1
            self.expect("|")
            return ("fn", "abs", node)
        if text not in ("(", "[", "{"):
            raise ParseError(f"unexpected {text!r}")
        bars, self.bars = self.bars, 0
        node = self.sum(depth + 1)
        if text == "{" and self.peek() == "\\choose":
            self.take()
            node = ("binom", node, self.sum(depth + 1))
        self.expect({"(": ")", "[": "]", "{": "}"}[text])
        self.bars = bars
        return node

    def numeral(self, text: str, depth: int) -> Node:
        if self.peek() == "_":
            return ("var", f"{text}_{self.subscript()}")  # digits in a written base: equal to themselves only
        node = number(text)
        if not text.isdigit():
            return node
        start, tokens = self.position, self.tokens
        if self.peek() == "\\frac":
            self.tokens = list(tokens)  # reading \frac12 splits a token
            fraction = self.atom(depth + 1)
            if proper(fraction):
                return ("+", node, fraction)
            self.position, self.tokens = start, tokens
        elif self.kind() == self.kind(2) == "number" and self.peek(1) == "/":
            fraction = ("/", number(self.peek()), number(self.peek(2)))
            if proper(fraction):
                self.position += 3
                return ("+", node, fraction)
        return node

    def name(self, text: str, depth: int) -> Node:
        if self.peek() == "_":
            return ("var", f"{text}_{self.subscript()}")
        return ("const", text) if text in ("pi", "e", "i") else ("var", text)

    def subscript(self) -> str:
        """Reads ``_{...}`` or ``_x`` as part of a name."""
        self.expect("_")
        return self.label()

    def label(self) -> str:
        if self.peek() != "{":
            return self.take().lstrip("\\")
        self.take()
        parts: list[str] = []
        while self.peek() != "}":
            parts.append(self.take().lstrip("\\"))
            if parts[-1] == "{":
                raise ParseError("nested group in a name")
        self.take()
        return "".join(parts)

    def command(self, name: str, depth: int) -> Node:
        if name == "frac":
            return ("/", self.digit_or_atom(depth), self.digit_or_atom(depth))
        if name == "binom":
            return ("binom", self.digit_or_atom(depth), self.digit_or_atom(depth))
        if name == "sqrt":
            return self.root(depth)
        if name in ("lfloor", "lceil"):
            node = self.sum(depth + 1)
            self.expect("\\r" + name[1:])
            return ("fn", "floor" if name == "lfloor" else "ceil", node)
        if name in ("max", "min"):
            return self.extreme(name, depth)
        if name in FUNCTIONS:
            return self.function(name, depth)
        if name in ACCENTS:
            return ("var", f"{name} {self.label()}" + (f"_{self.subscript()}" if self.peek() == "_" else ""))
        if name in SYMBOLS:
            return ("var", name + (f"_{self.subscript()}" if self.peek() == "_" else ""))
        raise ParseError(f"unknown command \\{name}")

    def extreme(self, name: str, depth: int) -> Node:
        """Reads what is in brackets behind ``max`` or ``min``."""
        end = {"(": ")", "{": "}"}.get(self.take(), "⦄")
        bars, self.bars = self.bars, 0
        node = self.sum(depth + 1)
        while self.peek() == ",":
            self.take()
            node = (name, node, self.sum(depth + 1))
        self.expect(end)
        self.bars = bars
        return node

    def digit_or_atom(self, depth: int) -> Node:
        r"""An argument of ``\frac``: a group, a command, or one character (``\frac12`` is a half)."""
        kind, text = self.kind(), self.peek()
        if kind == "number" and text.isdigit() and len(text) > 1:
            self.tokens[self.position] = ("number", text[1:])
            return ("num", int(text[0]))
        if kind == "number":
            self.take()
            return number(text)
        return self.atom(depth + 1)

    def root(self, depth: int) -> Node:
        index: Node = ("num", 2)
        if self.peek() == "[":
            self.take()
            index = self.sum(depth + 1)
            self.expect("]")
        if self.kind() == "number":
            return ("root", number(self.take()), index)
        return ("root", self.atom(depth + 1), index)

    def function(self, name: str, depth: int) -> Node:
        power = base = None
        while self.peek() in ("^", "_"):
            if self.take() == "^":
                power = self.exponent(depth + 1)
            else:
                base = self.digit_or_atom(depth) if self.peek() != "{" else self.atom(depth + 1)
        argument = self.argument(depth + 1)
        inverse = power == ("neg", ("num", 1)) and "arc" + name in FUNCTIONS
        name = "arc" + name if inverse else _ALIASES.get(name, name)
        if name == "lg":
            base = ("num", 10)
        node = ("log", argument, base) if base is not None else ("fn", "ln" if name == "log" else name, argument)
        return node if power is None or inverse else ("^", node, power)

    def argument(self, depth: int) -> Node:
        """What a function applies to: a bracket, or the factors up to an operator or another function."""
        if depth > MAX_DEPTH:
            raise ParseError("too deep")
        if self.peek() in ("(", "[", "{", "|"):
            return self.bracketed(self.take(), depth)
        if self.peek() == "-":
            self.take()
            return ("neg", self.argument(depth + 1))
        node = self.power(depth)
        while self.starts_factor() and not self.applies():
            node = ("*", node, self.power(depth))
        return node

    def applies(self) -> bool:
        return self.peek() in ("(", "[") or self.peek().lstrip("\\") in FUNCTIONS - {"sqrt"}


def proper(node: Node) -> bool:
    r"""Whether ``node`` is a fraction of two integers below 1, so that ``2\frac13`` is a mixed number."""
    if node[0] != "/" or node[1][0] != "num" or node[2][0] != "num":
        return False
    above, below = node[1][1], node[2][1]
    return isinstance(above, int) and isinstance(below, int) and 0 < above < below
