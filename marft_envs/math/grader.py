"""Is the boxed answer right? Tiers from cheap to dear, each of which may say yes, no, or pass the question on.

1. string: one canonical spelling (``canonical``); plain numerals never get further than this;
2. numeric: exact fractions and bounded numerics, expressions with variables too (``parse``, ``exact``);
3. structure: lists, tuples, intervals, unions, matrices, equations, inequalities (``structure``);
4. math-verify: what the others could not read and is worth it, in a worker process that is killed after 2 s of CPU.

Verdicts are remembered, but for a timeout and a crash: these say something of the machine, too.

The text is a model's: nothing of it is ever evaluated by Python or by sympy's parser, and whatever it says the answer
is a ``Grade``. A ``WorkerError`` speaks of the machine: no worker can start, or the clock on the wall ran out before
the worker had its CPU time. No score follows from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from marft_envs.errors import DataError, WorkerError
from marft_envs.faults import outage
from marft_envs.math import canonical, structure
from marft_envs.math.evaluation import TooBig
from marft_envs.math.restated import restated
from marft_envs.workers import WorkerPool, WorkerTimeout

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
_NUMERAL = re.compile(r"([-+]?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d*))?")
_BOX_START = re.compile(r"\\f?box(?:ed)?\s*\{")
_BOX_TOKEN = re.compile(r"\\f?box(?:ed)?\s*\{|\\.|[{}]", re.DOTALL)
_PLAIN_MATH = re.compile(r"[A-Za-z0-9\s\\{}()\[\]^_+\-*/=<>≤≥≠≈∈∪∩∞±∓π°%⦃⦄,.;:|!'&]+")
_HOPELESS = re.compile(
    r"__|!\s*!|\d{100}|\d[eE][-+]?\d{4}|\^\s*\{?\s*-?\d{5}"  # code, double factorials, huge numbers
    r"|\^\s*\{?[^{}^]*\^\s*\{?[^{}^]*\^"  # towers
    r"|(?<![\\a-zA-Z])(?![pbvBV]?matrix)[a-zA-Z]{6,}"  # words
)
_BACK_TO_LATEX = str.maketrans(
    {
        "≤": " \\leq ", "≥": " \\geq ", "≠": " \\neq ", "≈": " \\approx ", "∈": " \\in ", "∪": " \\cup ",
        "∩": " \\cap ", "∞": " \\infty ", "±": " \\pm ", "∓": " \\mp ", "π": " \\pi ", "°": "^{\\circ}",
        "%": "\\%", "⦃": "\\{", "⦄": "\\}",
    }
)  # fmt: skip


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
        if verdict.score and statement and restated(answer, gold, statement):
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
    status, tier = _compare(gold, answer)
    return Grade(float(status == CORRECT), status, tier, pred)


def check_gold(gold: str) -> None:
    """Raises ``DataError`` if no answer can be compared with ``gold``. For loaders of data, too."""
    if not gold.strip(" \t\n$.{}"):
        raise DataError(f"the gold answer {gold!r} is empty; give every row an answer, or drop the row")


def extract_boxed(output: str) -> str | None:
    """Content of the last box that is closed, or ``None``. Linear in the length of ``output``."""
    start = max(output.rfind("\\boxed"), output.rfind("\\fbox"))
    if start < 0:
        return None
    match = _BOX_START.match(output, start)
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
        elif text[-1] == "{" and text != "\\{":
            open_braces.append(-1 if text == "{" else token.end())
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


def _compare(gold: str, pred: str) -> tuple[str, str]:
    """Status and tier."""
    status, tier, texts = _decide(gold, pred)
    return _verify(*texts) if texts else (status, tier)


@lru_cache(maxsize=8192)
def _decide(gold: str, pred: str) -> tuple[str, str, tuple[str, str] | None]:
    """Status and tier, or the two texts that math-verify is to see. Cached: a group of rollouts repeats its answers."""
    gold_text, gold_unit = canonical.split_unit(canonical.clean(gold))
    pred_text, pred_unit = canonical.split_unit(canonical.clean(pred))
    if not canonical.same_unit(gold_unit, pred_unit):
        return WRONG, STRING, None
    gold_text, pred_text = canonical.without_text(gold_text), canonical.without_text(pred_text)
    gold_key, pred_key = canonical.key(gold_text), canonical.key(pred_text)
    if not pred_key:
        return EMPTY_BOX, "", None
    if gold_key == pred_key:
        return CORRECT, STRING, None
    gold_tree, pred_tree = structure.read(gold_text), structure.read(pred_text)
    simple = isinstance(gold_tree, structure.Scalar) and isinstance(pred_tree, structure.Scalar)
    tier = NUMERIC if simple else STRUCTURE
    try:
        equal = structure.match(gold_tree, pred_tree)
    except (TooBig, RecursionError):
        return TOO_BIG, tier, None
    if equal is not None:
        return CORRECT if equal else WRONG, tier, None
    if not (_worth_verifying(gold_text) and _worth_verifying(pred_text)):
        return WRONG, tier, None
    return "", MATH_VERIFY, (gold_text, pred_text)


def _worth_verifying(text: str) -> bool:
    """Whether math-verify could make something of ``text``: short, plain mathematics, no code, no tower."""
    return (
        len(text) <= _WORTH_VERIFYING
        and _PLAIN_MATH.fullmatch(text) is not None
        and _HOPELESS.search(text) is None
        and text.count("{") <= 40
    )


def _verify(gold: str, pred: str) -> tuple[str, str]:
    try:
        return CORRECT if _asked(gold, pred) else WRONG, MATH_VERIFY
    except WorkerError as error:
        if outage(error):
            raise  # no fault of the answer's
        return TIMEOUT if isinstance(error, WorkerTimeout) else CRASHED, MATH_VERIFY


@lru_cache(maxsize=8192)
def _asked(gold: str, pred: str) -> bool:
    """What math-verify says. An exception is not remembered."""
    return bool(_pool().call([text.translate(_BACK_TO_LATEX) for text in (gold, pred)]))


@lru_cache(maxsize=1)
def _pool() -> WorkerPool:
    return WorkerPool("marft_envs.math._verify_worker:verify", size=2, deadline=DEADLINE)
