"""Tools from typed Python functions, and strict checks of what agents pass to tools.

``tool(fn)`` reads the signature and the docstring; pydantic turns the types into JSON Schema. Tools that come with a
schema (imported domains, MCP servers) go through the same checks.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import docstring_parser
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from marft_envs.errors import ConfigError
from marft_envs.families.tools.types import Tool
from marft_envs.families.tools.validation import compiled

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a tool may be called: what OpenAI's API and MCP allow."""

_MARKS = "__marft_tool__"


def marked(
    *, read_only: bool = False, idempotent: bool = False, timeout_s: float = 5.0, name: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function with what its types cannot say; :func:`tool` reads it. The arguments are Tool's."""

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        setattr(fn, _MARKS, {"read_only": read_only, "idempotent": idempotent, "timeout_s": timeout_s, "name": name})
        return fn

    return mark


def tool(
    fn: Callable[..., Any],
    read_only: bool | None = None,
    idempotent: bool | None = None,
    timeout_s: float | None = None,
    name: str | None = None,
    hidden: tuple[str, ...] = (),
) -> Tool:
    """Returns the tool that a typed function is.

    The docstring's text is the description; descriptions of parameters come from ``Annotated[…, Field(description=…)]``
    or ``Annotated[…, "words"]``, else from the docstring's section of parameters (see :func:`docstring`).

    Args:
        fn: A function whose parameters all have types that JSON can hold.
        read_only: A call never changes the state. None here and below: as :func:`marked`, else the default.
        idempotent: A second call with the same arguments changes nothing more.
        timeout_s: Wall seconds for one call, in worlds that may block.
        name: Default: the function's own.
        hidden: Parameters that the environment fills in (the state); agents do not see them.

    Raises:
        ConfigError: If a parameter has no type, or one that JSON Schema cannot express.
    """
    marks = dict(getattr(fn, _MARKS, {}))
    overrides = {"read_only": read_only, "idempotent": idempotent, "timeout_s": timeout_s, "name": name}
    marks.update({key: value for key, value in overrides.items() if value is not None})
    called = marks.pop("name", None) or getattr(fn, "__name__", "")
    description, about = docstring(fn)
    model = model_of(fn, hidden, about)
    try:
        schema = model.model_json_schema()
    except (PydanticInvalidForJsonSchema, PydanticUserError) as error:  # what fits parameter by parameter may clash
        raise ConfigError(f"Tool '{called}': its parameters have no common JSON Schema: {error}.") from error
    new_tool = Tool(called, description, _plain(schema), **marks)
    check_tool(new_tool)
    return new_tool


def model_of(fn: Callable[..., Any], hidden: tuple[str, ...] = (), about: Mapping[str, str] | None = None) -> Any:
    """Returns the pydantic model of a function's parameters; it also turns JSON into the types that ``fn`` names.

    Raises:
        ConfigError: Naming the function and the parameter that cannot be expressed.
    """
    where = getattr(fn, "__name__", repr(fn))
    try:
        parameters = inspect.signature(fn, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"The signature of '{where}' cannot be read: {error}. Import the types it names.") from error
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if key in hidden:
            continue
        fields[key] = _field(where, parameter, (about or {}).get(key, ""))
    return create_model(where, __config__=ConfigDict(extra="forbid"), **fields)


def _field(where: str, parameter: inspect.Parameter, about: str) -> tuple[Any, Any]:
    key = f"parameter '{parameter.name}' of '{where}'"
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise ConfigError(f"The {key} cannot be passed by name. Tools take named parameters only.")
    kind = parameter.annotation
    if kind is inspect.Parameter.empty:
        raise ConfigError(f"The {key} has no type. Write one, for example `{parameter.name}: str`.")
    if kind is Any or kind is object:
        raise ConfigError(f"The {key} has the type {kind!r}, which says nothing. Name what it takes.")
    if parameter.name.startswith("_") or parameter.name.startswith("model_"):
        raise ConfigError(f"The {key} needs another name: it must begin neither with '_' nor with 'model_'.")
    try:
        schema = TypeAdapter(kind).json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise ConfigError(
            f"The {key} has the type {kind!r}, which JSON Schema cannot express. "
            "Use str, int, float, bool, None, Literal, list, dict, a dataclass or a pydantic model."
        ) from error
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    about = next((mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, str)), about)
    if about and "description" not in schema:
        return kind, FieldInfo(description=about) if default is ... else FieldInfo(default=default, description=about)
    return kind, default


def docstring(fn: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Returns a function's description (the docstring up to its sections) and parameter -> description.

    Sections are those of Google's, NumPy's, Sphinx's and Epydoc's style.
    """
    text = inspect.getdoc(fn) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:  # in no style: it is all description
        parsed = docstring_parser.Docstring()
        parsed.short_description = text
    between = "\n\n" if parsed.blank_after_short_description else "\n"
    head = between.join(part for part in (parsed.short_description, parsed.long_description) if part)
    about = {
        name.strip(" *"): " ".join((parameter.description or "").split())
        for parameter in parsed.params
        for name in parameter.arg_name.split(",")
    }
    return "\n".join(" ".join(p.split()) for p in head.split("\n\n") if p.strip()), about


def _plain(schema: Any, names: bool = False) -> Any:
    """Without the titles that pydantic makes up from names; ``names``: the keys are names of members, not keywords."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for key, value in schema.items():
        if names or key not in ("title", "default", "const", "enum", "examples"):
            out[key] = _plain(value, names=not names and key in ("properties", "$defs", "patternProperties"))
        elif key != "title":
            out[key] = value
    if not names and out.get("type") == "object" and "properties" in out:
        out.setdefault("additionalProperties", False)
    return out


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema of somebody else's in which objects that name their members allow no others.

    An object that says itself whether it is open (``additionalProperties``) is left as it is, but for the topmost:
    arguments of a tool are closed, unless it names none of them and says that it is open.
    """
    out: dict[str, Any] = {"type": "object", "properties": {}, **_plain(dict(schema))}
    named = {name: {} for name in _members(out, out, set())} | out["properties"]
    others = False if named else out.get("additionalProperties", False)
    return out | {"properties": named, "additionalProperties": others}


def _members(schema: Any, document: Mapping[str, Any], followed: set[str]) -> Iterator[str]:
    """Gives the members that a schema names, also in its branches and where its reference leads."""
    if not isinstance(schema, Mapping):
        return
    yield from schema.get("properties", ())
    for branch in (one for key in ("allOf", "anyOf", "oneOf") for one in schema.get(key, ())):
        yield from _members(branch, document, followed)
    if (ref := str(schema.get("$ref", ""))).startswith("#/") and ref not in followed:
        followed.add(ref)
        target: Any = document
        for part in ref.split("/")[1:]:
            target = target.get(part) if isinstance(target, Mapping) else None
        yield from _members(target, document, followed)


@functools.lru_cache(maxsize=512)
def check_tool(tool: Tool) -> Callable[[Any], list[str]]:
    """Returns the compiled check of a tool's arguments (sentences; none when they are fine).

    A tool is compiled once: hundreds of environments share one check.

    Raises:
        ConfigError: If the name, the marks or the schema cannot be used.
    """
    if not NAME.fullmatch(tool.name):
        raise ConfigError(f"'{tool.name}' cannot name a tool. Use up to 64 letters, digits and '_', '-', '.'.")
    schema = tool.parameters
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    if schema.get("type") != "object" or (others is not False and (known or others is None)):
        raise ConfigError(
            f"Tool '{tool.name}': the schema must be of an object with additionalProperties false. "
            "Next: marft_envs.families.tools.schema.closed(schema)."
        )
    for name in schema.get("required", ()):
        if name not in known:
            raise ConfigError(f"Tool '{tool.name}' requires '{name}', which its properties do not name.")
    if not tool.timeout_s > 0:
        raise ConfigError(f"Tool '{tool.name}': timeout_s must be above 0; got {tool.timeout_s}.")
    return compiled(schema, f"Tool '{tool.name}'")


def validate(tool: Tool, arguments: Any) -> list[str]:
    """Returns what is wrong with the arguments of a call, in sentences; none when they are fine.

    Raises:
        ConfigError: If the tool's own schema cannot be used.
    """
    return check_tool(tool)(arguments)
