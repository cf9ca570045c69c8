"""Is the boxed answer right? Tiers from cheap to dear, each of which may say yes, no, or pass the question on.

1. string: one canonical spelling (``canonical``); plain numerals never get further than this;
2. numeric: exact fractions and bounded numerics, expressions with variables too (``parse``, ``exact``);
3. structure: lists, tuples, intervals, unions, matrices, equations, inequalities (``structure``);
4. math-verify: what the others could not read and is worth it, in a worker process that is killed after 2 s of CPU.

Verdicts are remembered, but for a timeout and a crash: these say something of the machine, too. An answer on which the
clock on the wall runs out twice is a timeout, so that nobody opts out of a score by being slow.

The text is a model's: nothing of it is ever evaluated by Python or by sympy's parser, and whatever it says the answer
is a ``Grade``. A ``WorkerError`` speaks of the machine: no worker can start, or the clock on the wall ran out before
the worker had its CPU time. No score follows from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from marft_envs.core.faults import is_infrastructure_error
from marft_envs.errors import DataError, WorkerError
from marft_envs.families.math import canonical, comparison, quantity, structure
from marft_envs.families.math.evaluation import TooBig
from marft_envs.families.math.finished import restated
from marft_envs.families.math.notation import LATEX

if TYPE_CHECKING:
    from marft_envs.workers.untrusted import WorkerPool

CORRECT = "correct"
WRONG = "wrong"
NO_BOX = "no_box"
UNCLOSED_BOX = "unclosed_box"
EMPTY_BOX = "empty_box"
RESTATED = "restated"
TOO_LONG = "too_long"
TOO_BIG = "too_big"
TIMEOUT = "timeout"
CRASHED = "crashed"
STATUSES = (CORRECT, WRONG, NO_BOX, UNCLOSED_BOX, EMPTY_BOX, RESTATED, TOO_LONG, TOO_BIG, TIMEOUT, CRASHED)
"""What can be said of an output. Everything but ``correct`` scores 0."""

STRING = "string"
NUMERIC = "numeric"
STRUCTURE = "structure"
MATH_VERIFY = "math-verify"
TIERS = (STRING, NUMERIC, STRUCTURE, MATH_VERIFY)

MAX_ANSWER = 2000
"""Characters of an answer; the longest of the public data sets' gold answers have some hundreds."""
DEADLINE = 2.0
"""CPU seconds that math-verify may take, whatever else the machine does; ``workers.WALL`` times as many on the wall."""

_WORTH_VERIFYING = 300
_NUMERAL = re.compile(r"(?:\\\$)?([-+]?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d*))?", re.ASCII)
_BOX_START = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(
    r"\\(?:boxed|fbox)(?![a-zA-Z])\s*((?=[-+]?\.?\d|\\[a-zA-Z])"
    r"(?:[^\s$\\{}*`]|\\[a-zA-Z]+\s*|\{(?:[^{}]|\{[^{}]*\})*\})+|[A-Za-z](?=[\s.,;:!)]*(?:[$\\\n]|$)))"
)
_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])(?:\s*\{)?|\\.|(?:\{\})+|[{}]", re.DOTALL)
_PLAIN_MATH = re.compile(r"[A-Za-z0-9\s\\{}()\[\]^_+\-*/=<>≤≥≠≈∈∪∩∞±∓π°%⦃⦄,.;:|!'&]+")
_LATE: dict[str, None] = {}
_HOPELESS = re.compile(
    r"__|!\s*!|\d{100}|\d[eE][-+]?\d{4}|\^\s*\{?\s*-?\d{5}"  # code, double factorials, huge numbers
    r"|\^\s*\{?[^{}^]*\^\s*\{?[^{}^]*\^"  # towers
    r"|(?<![\\a-zA-Z])(?![pbvBV]?matrix)[a-zA-Z]{6,}"  # words
)
_BACK_TO_LATEX = str.maketrans(LATEX)


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on one output."""

    score: float
    """1.0 or 0.0."""
    status: str
    """One of ``STATUSES``."""
    tier: str
    """The tier that decided, one of ``TIERS``; ``""`` where none was asked (no box, too long, …)."""
    extracted: str | None
    """The content of the last closed box, or ``None``."""


def grade(output: str, gold: str, statement: str = "") -> Grade:
    r"""Grades the last closed ``\boxed{...}`` (or ``\fbox{...}``) of ``output`` against ``gold``.

    Args:
        output: All that was said.
        gold: The gold answer.
        statement: The problem's text, if an answer that only repeats an expression of it is to be wrong.

    Raises:
        DataError: The gold answer is empty: nothing could be right.
        WorkerError: The machine kept the last tier from its work.
    """
    answer = extract_boxed(output)
    if answer is not None:
        verdict = grade_answer(answer, gold)
        said_again = statement and _numeral(answer.strip()) is None  # a number says nothing again
        if verdict.score and said_again and restated(answer, gold, statement):
            return Grade(0.0, RESTATED, verdict.tier, answer)
        return verdict
    check_gold(gold)
    return Grade(0.0, UNCLOSED_BOX if _BOX_START.search(output) else NO_BOX, "", None)


def grade_answer(pred: str, gold: str) -> Grade:
    """Grades an answer that is out of its box already.

    Raises:
        DataError: The gold answer is empty: nothing could be right.
        WorkerError: The machine kept the last tier from its work.
    """
    check_gold(gold)
    answer = pred.strip()
    if not answer:
        return Grade(0.0, EMPTY_BOX, "", pred)
    if len(answer) > MAX_ANSWER:
        return Grade(0.0, TOO_LONG, "", pred)
    number = _numeral(answer)
    if number is not None:
        expected = _numeral(gold.strip())
        if expected is not None:
            equal = number == expected
            return Grade(float(equal), CORRECT if equal else WRONG, STRING, pred)
    status, tier, texts = _decide(gold, answer)
    if texts:
        status, tier = _verify(*texts)
    return Grade(float(status == CORRECT), status, tier, pred)


def check_gold(gold: str) -> None:
    """Raises ``DataError`` if no answer can be compared with ``gold``. For loaders of data, too."""
    if not gold.strip(" \t\n$.{}"):
        raise DataError(f"the gold answer {gold!r} is empty; give every row an answer, or drop the row")


def extract_boxed(output: str) -> str | None:
    r"""Content of the last box that is closed, or ``None``. Linear in the length of ``output``.

    A box without braces (``\boxed 5``, ``\boxed\frac12``) holds what stands next to it, if that is mathematics.
    """
    start = max(output.rfind("\\boxed"), output.rfind("\\fbox"))
    if start < 0:
        return None
    match = _BOX_START.match(output, start)
    if match is None and (bare := _BARE_BOX.match(output, start)) is not None:
        return bare.group(1)
    if match is not None:
        end = output.find("}", match.end())
        if end >= 0 and "{" not in output[match.end() : end] and output[end - 1] != "\\":
            return output[match.end() : end]
    span: tuple[int, int] | None = None
    open_braces: list[int] = []  # where the content of a box starts; -1 for any other brace
    for token in _BOX_TOKEN.finditer(output):
        text = token.group(0)
        if text == "}":
            content = open_braces.pop() if open_braces else -1
            if content >= 0 and (span is None or content > span[0]):
                span = (content, token.start())
        elif text == "{":
            open_braces.append(-1)
        elif text[0] == "\\" and text[1] in "bf":
            bare = _BARE_BOX.match(output, token.start())
            if text[-1] == "{":
                open_braces.append(token.end())
            elif bare is not None:
                span = bare.span(1)
    return None if span is None else output[span[0] : span[1]]


def warm_up() -> None:
    """Starts the workers of the last tier now rather than at their first use (about a second).

    Raises:
        WorkerStartError: ``math-verify`` cannot be imported.
    """
    _pool().warm_up()


def close() -> None:
    """Stops the workers of the last tier; the next use starts another."""
    _pool().close()
    _pool.cache_clear()


@lru_cache(maxsize=4096)
def _numeral(text: str) -> tuple[str, str, str] | None:
    """Sign, integer digits and decimals of a plain numeral, without what changes nothing."""
    match = _NUMERAL.fullmatch(text)
    if match is None:
        return None
    sign, whole, decimals = match.groups()
    whole, decimals = whole.replace(",", "").lstrip("0"), (decimals or "").rstrip("0")
    return ("-" if sign == "-" and (whole or decimals) else "", whole, decimals)


@lru_cache(maxsize=8192)
def _decide(gold: str, pred: str) -> tuple[str, str, tuple[str, str] | None]:
    """Status and tier, or the two texts that math-verify is to see. Cached: a group of rollouts repeats its answers."""
    texts = canonical.clean(gold), canonical.clean(pred)
    gold_key, pred_key = (canonical.key(canonical.without_text(text)) for text in texts)
    if not pred_key:
        return EMPTY_BOX, "", None
    if gold_key == pred_key:
        return CORRECT, STRING, None
    trees = [structure.read(text) for text in texts]
    tier = NUMERIC if all(isinstance(tree, (structure.Scalar, structure.Measured)) for tree in trees) else STRUCTURE
    try:
        equal = comparison.match(*trees)
    except (TooBig, RecursionError):
        return TOO_BIG, tier, None
    if equal is not None:
        return CORRECT if equal else WRONG, tier, None
    values = [canonical.without_text(quantity.split(text)[0]) for text in texts]
    if not all(map(_worth_verifying, values)):
        return WRONG, tier, None
    return "", MATH_VERIFY, (values[0], values[1])


def _worth_verifying(text: str) -> bool:
    """Whether math-verify could make something of ``text``: short, plain, balanced mathematics, no code, no tower."""
    return (
        len(text) <= _WORTH_VERIFYING
        and canonical.balanced(text)
        and _PLAIN_MATH.fullmatch(text) is not None
        and _HOPELESS.search(text) is None
        and text.count("{") <= 40
    )


def _verify(gold: str, pred: str) -> tuple[str, str]:
    try:
        return CORRECT if _asked(gold, pred) else WRONG, MATH_VERIFY
    except WorkerError as error:
        from marft_envs.workers.untrusted import WorkerLate, WorkerTimeout

        if is_infrastructure_error(error) and not (isinstance(error, WorkerLate) and _late_before(pred)):
            raise  # no fault of the answer's
        return TIMEOUT if isinstance(error, WorkerTimeout) else CRASHED, MATH_VERIFY


def _late_before(pred: str) -> bool:
    """Whether the wall clock ran out on this answer before, too: once says something of the machine, twice of it."""
    before = pred in _LATE
    _LATE[pred] = None
    while len(_LATE) > 8192:
        _LATE.pop(next(iter(_LATE)))
    return before


@lru_cache(maxsize=8192)
def _asked(gold: str, pred: str) -> bool:
    """What math-verify says. An exception is not remembered."""
    return bool(_pool().call([text.translate(_BACK_TO_LATEX) for text in (gold, pred)]))


@lru_cache(maxsize=1)
def _pool() -> WorkerPool:
    from marft_envs.workers.untrusted import WorkerPool

    return WorkerPool("marft_envs.families.math._verify_worker:verify", size=2, deadline=DEADLINE)
