"""Tools from typed functions, and strict validation, with jsonschema as the judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field

from marft_envs import ConfigError
from marft_envs.families.tools import Tool, marked, tool
from marft_envs.families.tools.schema import check_tool, closed, validate
from marft_envs.families.tools.validation import compiled


@dataclass
class Address:
    street: str
    zip: int


@marked(idempotent=True, timeout_s=2)
def refund(
    order_id: str,
    amount: Annotated[float, Field(gt=0, description="In euros")],
    why: Literal["late", "broken"] = "late",
    notes: list[str] | None = None,
    to: Address | None = None,
) -> str:
    """Refunds an order.

    Only delivered ones.

    Args:
        order_id: Which order; it must
            have been delivered.
        why: The reason.

    Returns:
        amount: not a parameter
    """
    return order_id


def test_a_typed_function_becomes_an_openai_tool() -> None:
    made = tool(refund)
    spec = made.openai()["function"]
    assert spec["name"] == "refund" and spec["description"] == "Refunds an order.\nOnly delivered ones."
    properties = spec["parameters"]["properties"]
    assert properties["order_id"] == {"type": "string", "description": "Which order; it must have been delivered."}
    assert properties["amount"] == {"type": "number", "exclusiveMinimum": 0, "description": "In euros"}
    assert properties["why"]["enum"] == ["late", "broken"] and properties["why"]["default"] == "late"
    assert spec["parameters"]["required"] == ["order_id", "amount"]
    assert spec["parameters"]["additionalProperties"] is False
    assert made.idempotent and not made.read_only and made.timeout_s == 2
    assert tool(refund, read_only=True, name="give_back").read_only


_NUMPY = """Finds a page.

    Parameters
    ----------
    key : str, optional
        The key
        to find.
    n, m : int
        How many.

    Returns
    -------
    str
        key : no parameter
    """
_SPHINX = """Finds a page.

    :param key: The key
        to find.
    :type key: str
    :param int n: How many.
    :param m: How many.
    :returns: key: no parameter
    """
_EPYDOC = """Finds a page.

    @param key: The key to find.
    @param n: How many.
    @param m: How many.
    @return: nothing
    """
_GOOGLE = """Finds a page.

    Args:
        key (str): The key
            to find.
        n: How many.
        m (int, optional): How many.
    """


@pytest.mark.parametrize("text", [_NUMPY, _SPHINX, _EPYDOC, _GOOGLE], ids=["numpy", "sphinx", "epydoc", "google"])
def test_words_about_parameters_are_read_from_docstrings_of_every_style(text: str) -> None:
    def find(key: str, n: int, m: int = 2) -> str:
        return key

    find.__doc__ = text
    made = tool(find)
    assert made.description == "Finds a page."
    about = {name: spec["description"] for name, spec in made.parameters["properties"].items()}
    assert about == {"key": "The key to find.", "n": "How many.", "m": "How many."}


def test_words_of_annotated_go_before_those_of_the_docstring() -> None:
    def find(key: Annotated[str, "The key"], n: Annotated[int, Field(description="How many")], m: int = 2) -> str:
        """Finds.

        Args:
            key: Not this.
            n: Nor this.
            m: This.
        """
        return key

    properties = tool(find).parameters["properties"]
    assert [properties[name]["description"] for name in properties] == ["The key", "How many", "This."]


def test_a_docstring_in_no_style_is_all_description() -> None:
    def find(key: str) -> str:
        return key

    find.__doc__ = "Finds: a key.\nAnd more.\n\nNote this.\n\n:param"
    assert tool(find).description.startswith("Finds: a key. And more.")


def test_arguments_are_checked_strictly_inner_objects_included() -> None:
    made = tool(refund)
    assert validate(made, {"order_id": "A1", "amount": 3, "to": {"street": "x", "zip": 1}}) == []
    wrong = validate(made, {"order_id": 1, "amount": 0, "why": "bored", "extra": 1, "notes": [1]})
    assert [w.split()[0] for w in wrong] == ["order_id", "amount", "why", "extra", "notes.0"]
    assert validate(made, {"amount": True, "order_id": "A1"}) == ["amount must be number, is boolean"]
    assert validate(made, {"order_id": "A1", "amount": 1, "to": {"street": "x", "zip": 1, "y": 2}})
    assert validate(made, {}) == ["order_id is missing", "amount is missing"]
    assert validate(made, [1]) == ["arguments must be object, is array"]


def _untyped(x): ...  # type: ignore[no-untyped-def]
def _callback(x: Callable[[int], int]) -> None: ...
def _many(*xs: int) -> None: ...
def _anything(x: Any) -> None: ...
def _unknown(x: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("fn", [_untyped, _callback, _many, _anything, _unknown])
def test_a_function_that_is_no_tool_is_named_with_its_parameter(fn: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError) as error:
        tool(fn)
    assert fn.__name__ in str(error.value)
    if fn is not _unknown:
        assert "'x'" in str(error.value) or "'xs'" in str(error.value)


@pytest.mark.parametrize(("schema", "word"), [
    ({"if": {}}, "'if'"), ({"propertys": {}}, "propertys"), ({"type": "dict"}, "dict"), ({"pattern": "("}, "pattern"),
    ({"enum": []}, "enum"), ({"minimum": "3"}, "minimum"), ({"$ref": "#/$defs/nothing"}, "nowhere"),
    ({"$ref": "http://example.org/x"}, "$ref"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "itself"), ({"anyOf": []}, "anyOf"),
    ({"items": 3}, "items"),
])  # fmt: skip
def test_a_schema_that_cannot_be_honoured_is_refused_not_ignored(schema: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match="T, schema at") as error:
        compiled(schema, "T")
    assert word in str(error.value)


def test_foreign_schemas_are_closed_and_open_ones_refused() -> None:
    foreign = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}}}
    with pytest.raises(ConfigError, match="additionalProperties"):
        check_tool(Tool("f", "", foreign))
    made = Tool("f", "", closed(foreign))
    assert validate(made, {"a": {"b": 1}}) == []
    assert validate(made, {"a": {"c": 1}}) and validate(made, {"c": 1})
    either = Tool("f", "", closed({"anyOf": [{"properties": {n: {"type": "string"}}, "required": [n]} for n in "xy"]}))
    assert validate(either, {"x": "a"}) == validate(either, {"y": "a"}) == [] and validate(either, {"z": "a"})
    member = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"$ref": "#/$defs/a"}}, "required": ["x"]}
    for root in ({"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#/$defs/b"}]}, {"oneOf": [{"$ref": "#/$defs/a"}]}):
        behind = Tool("f", "", closed({**root, "$defs": {"a": member, "b": {"$ref": "#/$defs/a"}}}))
        assert set(behind.parameters["properties"]) == {"x", "y"}
        assert validate(behind, {"x": 1, "y": {"x": 2}}) == [] and validate(behind, {"y": {"x": 2}})
        assert all(validate(behind, bad) for bad in ({"x": "1"}, {"x": 1, "z": 2}, {"x": 1, "y": {"z": 2}}))
    free = Tool("f", "", closed({"type": "object", "additionalProperties": {"type": "integer"}}))
    assert validate(free, {"any": 1}) == [] and validate(free, {"any": "word"})
    assert validate(Tool("f", "", closed({"type": "object", "additionalProperties": True})), {"any": []}) == []
    assert validate(Tool("f", "", closed({"type": "object"})), {"any": 1})
    assert validate(Tool("f", "", closed(foreign | {"additionalProperties": True})), {"any": 1})
    for name in ("", "with blank", "x" * 65, "né"):
        with pytest.raises(ConfigError):
            check_tool(Tool(name, "", closed({})))


def test_a_schema_may_hold_itself_and_depth_is_bounded() -> None:
    tree = {
        "$defs": {
            "tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}, "additionalProperties": False}
        },
        "$ref": "#/$defs/tree",
    }
    check = compiled(tree, "T")
    assert check({"next": {"next": {}}}) == [] and check({"next": {"next": {"x": 1}}})
    deep: Any = {}
    for _ in range(100_000):
        deep = {"next": deep}
    assert "nested deeper" in check(deep)[0]
    while deep:  # so that taking it apart does not recurse either
        deep = deep.get("next")


def test_nullable_is_openapis() -> None:
    check = compiled({"type": "string", "enum": ["a"], "nullable": True}, "T")
    assert check(None) == [] and check("a") == [] and check("b")


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from([0.0, 1.0, 0.5, -2.0, 1e300, 2**70]),
    st.sampled_from(["", "a", "ab", "abc", "1", "ä"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abcx"), inner, max_size=4)),
    max_leaves=8,
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"])


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3)},
        optional={
            "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "x$"]), inner, max_size=1),
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 3),
        },
    )


def _list(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"items": inner}, optional={
        "type": st.just("array"), "prefixItems": st.lists(inner, min_size=1, max_size=2), "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 3), "uniqueItems": st.booleans(),
    })  # fmt: skip


PLAIN = st.one_of(
    st.fixed_dictionaries({"type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True))}),
    st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)}), st.fixed_dictionaries({"const": VALUES}),
    st.fixed_dictionaries({"type": st.sampled_from(["integer", "number"])}, optional={
        "minimum": st.integers(-3, 3), "maximum": st.sampled_from([-1, 0.5, 3]), "exclusiveMinimum": st.integers(-3, 3),
        "exclusiveMaximum": st.integers(-3, 3), "multipleOf": st.sampled_from([1, 2, 0.5, 0.1, 3]),
    }),
    st.fixed_dictionaries({}, optional={
        "minLength": st.integers(0, 2), "maxLength": st.integers(0, 3),
        "pattern": st.sampled_from(["^a", "b", r"^\d+$", "."]),
    }),
    st.booleans(),
)  # fmt: skip
SCHEMAS = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        _object(inner),
        _list(inner),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(SCHEMAS, st.lists(VALUES, min_size=3, max_size=12))
def test_fuzzed_arguments_are_judged_as_jsonschema_judges_them(schema: Any, values: list[Any]) -> None:
    judge = Draft202012Validator(schema)
    check = compiled(schema, "T")
    for value in values:
        assert (check(value) == []) == judge.is_valid(value), (schema, value, check(value))
