"""One programming problem and its tests: the record that every room of the coding family shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["function", "stdio"]
"""``function``: a named function is called; ``stdio``: a program reads standard input and writes standard output."""

Kind = Literal["call", "expr", "stdio"]


@dataclass(frozen=True, slots=True)
class Test:
    """One test of a program."""

    __test__ = False  # not a test class of pytest's

    kind: Kind
    """``call`` and ``expr`` belong to function mode, ``stdio`` to stdio mode."""
    input: str
    """call: literal text of the positional arguments as a list, ``[1, [2, 3]]``; expr: a Python expression, evaluated
    after the program in its namespace; stdio: the whole standard input."""
    expected: str
    """call and expr: literal text of the value; stdio: the standard output expected."""
    check: str = ""
    """"" is the kind's default (call and expr: ``equal``; stdio: ``tokens``); else a checker's name: ``approx``,
    ``yesno``, ``set``, ``lines``, ``exact``, …; ``livecodebench`` and ``apps`` are the rules of these sets."""
    atol: float = 0.0
    """Absolute tolerance of ``approx``."""
    rtol: float = 0.0
    """Relative tolerance of ``approx``."""


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A problem. Agents may see ``prompt``, ``starter_code`` and ``public``, and nothing else of it."""

    id: str
    """Unique in its set; ``procedural/<generator>/<mode>/<level>/<key>`` regenerates the very same problem."""
    mode: Mode
    prompt: str
    """The statement."""
    public: tuple[Test, ...]
    """Tests that may be shown, with the values expected."""
    hidden: tuple[Test, ...]
    """Tests that decide the reward; never in an observation, a record or a log. Never empty in a loaded set."""
    starter_code: str = ""
    """Shown; a function's header."""
    entry_point: str = ""
    """Function mode: the function's name. ``Solution.f`` is method ``f`` of ``Solution``, made without arguments."""
    prelude: str = ""
    """Code run in the sandbox before the program, among its names: what the set's own harness puts before programs."""
    setup: str = ""
    """Code run in the sandbox after the program and before the tests (MBPP's ``test_setup_code``)."""
    solution: str = ""
    """A canonical solution, or an empty string where the source has none; never shown."""
    checker: str = ""
    """Source of the data set's own checker program, or an empty string; it too runs in the sandbox only."""
    level: int | None = None
    """0 (the embedded model's level) to 4; None where the source says nothing."""
    source: str = ""
    """Name of the data set, or of the file."""
    cpu_s: float | None = None
    """CPU seconds for one test, where the source sets a limit."""
    memory_mb: int | None = None
    """Memory in MB (2**20 bytes), where the source sets a limit."""
