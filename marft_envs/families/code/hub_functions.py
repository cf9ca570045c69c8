"""Rows of HumanEval, MBPP and their EvalPlus versions: functions whose tests are assertions in Python."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from marft_envs import tables
from marft_envs.errors import DataError
from marft_envs.families.code import hub_asserts as asserts
from marft_envs.families.code.hub_asserts import NotLiteral
from marft_envs.families.code.hub_rows import Context, Refused, Row, finish, need
from marft_envs.families.code.problem import CodeProblem, Test

# --- HumanEval and EvalPlus -------------------------------------------------------------------------------------------

_ROOTS, _TEXTS = tables.read(__package__, "hub")["humaneval"].values()
_ROUND_TRIPS = {"decode_cyclic": "encode_cyclic", "decode_shift": "encode_shift"}
"""HumanEval/38 and /50 assert ``decode(encode(random text)) == text``; the texts are ours, the form is theirs."""


def _read_prompt(prompt: str, name: str) -> tuple[str, str, str]:
    """The function's docstring (or the whole prompt), the prompt's imports, and its other functions."""
    try:
        body = asserts.parse(prompt.rstrip() + "\n    pass\n").body
    except NotLiteral:
        return prompt, "", ""
    functions = [n for n in body if isinstance(n, ast.FunctionDef)]
    words = next(filter(None, (ast.get_docstring(n) for n in functions if n.name == name)), prompt)
    imports = "\n".join(ast.unparse(n) for n in body if isinstance(n, ast.Import | ast.ImportFrom))
    return words, imports, "\n\n".join(ast.unparse(n) for n in functions if n.name != name)


def humaneval(row: Row, context: Context) -> CodeProblem:
    """openai/openai_humaneval and evalplus/humanevalplus: ``check(candidate)`` asserts, or has inputs and results."""
    prompt, solution, test, name = need(row, context, "prompt", "canonical_solution", "test", "entry_point")
    if not name:
        raise DataError(f"{context.where}: no 'entry_point'. Every row names its function.")
    gold, setup = prompt + solution, ""
    words, imports, functions = _read_prompt(prompt, name)
    try:
        tree = asserts.parse(test)
        check = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check"), None)
        if check is None:
            raise Refused("a test program without check(candidate)")
        body = [asserts.substituted(n, {"candidate": ast.Name(name)}) for n in check.body]
        tests = _listed(body, name, context, gold)
        if tests is None and name == "find_zero":
            tests = [Test("call", repr([c]), "0.0", "poly_root", 1e-4) for c in _ROOTS]
        elif tests is None and name in _ROUND_TRIPS:
            setup = functions  # again, for the tests are not to depend on a program's own versions
            tests = [Test("expr", f"{name}({_ROUND_TRIPS[name]}({text!r}))", repr(text)) for text in _TEXTS]
        elif tests is None:
            tests = _asserted(body, name, gold, context)
    except NotLiteral as error:
        raise Refused("a test program that cannot be read") from error
    return finish(context, tests, prompt=words, starter_code=prompt, entry_point=name, setup=setup,
                  prelude=f"{imports}\n{functions}".strip(), solution=gold)  # fmt: skip


def _asserted(body: list[ast.stmt], name: str, gold: str, context: Context) -> list[Test]:
    """Tests from assertions; where both sides call the function, the reference gives the value (HumanEval/33)."""
    tests = list(asserts.read_asserts(body, name, context.lost))
    if context.reference is None:
        return tests
    for test in (n.test for n in body if isinstance(n, ast.Assert) and isinstance(n.test, ast.Compare)):
        sides = (test.left, test.comparators[0])
        left, right = (next(filter(None, (asserts.direct(c, name) for c in ast.walk(side))), None) for side in sides)
        if left is not None and left == right and (value := context.reference(gold, name, [left])[0]) is not None:
            context.lost["assertions whose value cannot be read off"] -= 1
            tests.append(Test("call", left, value))
    return tests


def _floats(value: Any) -> bool:
    return isinstance(value, float) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(v, float) for v in value)
    )


def _listed(body: list[ast.stmt], name: str, context: Context, gold: str, *, loose: bool = False) -> list[Test] | None:
    """EvalPlus: ``inputs = […]; results = […]``, a loop of ``assertion(f(*inp), exp, atol)``; None for other forms."""
    lists = {t.id: n.value for n in body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    inputs, results, loop = lists.get("inputs"), lists.get("results"), body[-1] if body else None
    loop = next((n for n in reversed(body) if isinstance(n, ast.For)), loop)
    if not isinstance(inputs, ast.List) or loop is None:
        return None
    calls = [n for n in ast.walk(loop) if isinstance(n, ast.Call) and ast.unparse(n.func) == "assertion"]
    thirds = [call.args[2] for call in calls if len(call.args) == 3]
    atol = next((float(asserts.fold(third)) for third in thirds if isinstance(third, ast.Constant)), 0.0)
    texts = [_literal(node, list) for node in inputs.elts]
    if "_poly(" in ast.unparse(loop):
        return [Test("call", text, "0.0", "poly_root", 1e-4) for text in texts if text]
    if isinstance(results, ast.List):
        values = [_literal(node) for node in results.elts]
    else:
        outputs = iter(context.reference(gold, name, [t for t in texts if t]) if context.reference else [])
        values = [next(outputs, None) if text else None for text in texts]
    tests = []
    for text, value in zip(texts, values, strict=False):
        if text is None or value is None:
            context.lost["inputs or values that are no literals"] += 1
            continue
        near = atol or (1e-6 if _floats(ast.literal_eval(value)) else 0.0)
        check = "approx" if near else "loose" if loose else ""
        tests.append(Test("call", text, value, check, near, 1e-7 if near else 0.0))
    return tests


def _literal(node: ast.expr, kind: Callable[[Any], Any] = lambda value: value) -> str | None:
    """The literal text of an expression's value, made something of this kind; None where there is none."""
    try:
        return asserts.to_text(kind(asserts.fold(node)))
    except (NotLiteral, TypeError):
        return None


# --- MBPP -------------------------------------------------------------------------------------------------------------


def _called(code: str, lines: Sequence[str]) -> str:
    """The function of ``code`` that the assertions call."""
    defined = [n.name for n in ast.walk(asserts.parse(code)) if isinstance(n, ast.FunctionDef)]
    seen = Counter(
        c.func.id
        for line in lines
        for c in ast.walk(asserts.parse(line))
        if isinstance(c, ast.Call) and isinstance(c.func, ast.Name) and c.func.id in defined
    )
    if not seen:
        raise Refused("no function of the solution is called by the tests")
    return seen.most_common(1)[0][0]


def mbpp(row: Row, context: Context) -> CodeProblem:
    """google-research-datasets/mbpp (full): a sentence and three asserts."""
    text, code, lines, setup = need(row, context, "text", "code", "test_list", "test_setup_code")
    lines = [*lines, *(row.get("challenge_test_list") or [])]
    try:
        name = _called(code, lines)
        tests = [t for line in lines for t in asserts.read_asserts(asserts.parse(line).body, name, context.lost)]
    except NotLiteral as error:
        raise Refused("tests or a solution that cannot be parsed") from error
    return finish(context, tests, prompt=text, entry_point=name, setup=setup or "", solution=code)


def mbpp_plus(row: Row, context: Context) -> CodeProblem:
    """evalplus/mbppplus: lists of inputs and results, in which tuples and sets were flattened to lists."""
    text, code, lines, test = need(row, context, "prompt", "code", "test_list", "test")
    try:
        name = _called(code, lines)
        body = asserts.parse(test).body
        if (tests := _listed(body, name, context, code, loose=True)) is None:
            tests = [replace(t, check=t.check or "loose") for t in asserts.read_asserts(body, name, context.lost)]
    except NotLiteral as error:
        raise Refused("tests or a solution that cannot be parsed") from error
    return finish(context, tests, prompt=text, entry_point=name, solution=code)
