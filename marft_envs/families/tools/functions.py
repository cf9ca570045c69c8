"""A domain from typed functions, or from the methods of a class: bring your own tools.

``FunctionDomain(Notes, problems, grade)`` makes every public method of the class ``Notes`` a tool on the state that an
instance is. With functions, those that have a parameter ``state`` are given it; agents do not see that parameter.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, get_args

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from marft_envs.call_formats.call import ToolCall
from marft_envs.core.faults import is_infrastructure_error, show
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.families.tools.schema import model_of, tool
from marft_envs.families.tools.types import Shared, StateGrade, Tool, ToolError, ToolProblem, encode, graded
from marft_envs.problems.sets import ProblemSet, of_split

STATE = "state"
"""The parameter that functions take the state by."""

GradeFn = Callable[..., "StateGrade | bool | float"]
"""Takes the state and the problem, and, if it has a parameter ``messages``, the messages to the user. A number is the
progress, and 1 (or True) is completion."""
OnException = Literal["tool_error", "crash"]
"""What an exception in a function is to the calling agent: an error of the tool's, or the end of the world."""


class _Function(Shared):
    """One tool's function, and how JSON becomes its arguments."""

    def __init__(self, fn: Callable[..., Any], receiver: str) -> None:
        try:
            parameters = inspect.signature(fn).parameters
        except (TypeError, ValueError) as error:  # a builtin
            raise ConfigError(
                f"The signature of '{_shown(fn)}' cannot be read: {error}. Call it in a typed function of your own."
            ) from error
        plain = inspect.unwrap(fn)
        if inspect.isasyncgenfunction(plain):
            raise ConfigError(
                f"'{_shown(fn)}' is an asynchronous generator, and a tool gives one result. Let it return a list of "
                "what it yields."
            )
        self.fn = fn
        self.receiver = receiver if receiver in parameters else ""
        hidden = (self.receiver,) if self.receiver else ()
        self.tool = tool(fn, hidden=hidden)
        self._model = model_of(fn, hidden)

    def __call__(self, state: Any, arguments: Mapping[str, Any]) -> Any:
        try:
            validated = self._model.model_validate_json(json.dumps(dict(arguments)))
        except ValidationError as error:  # what the schema cannot say (a date that does not exist)
            raise ToolError("; ".join(e["msg"] for e in error.errors()[:3])) from error
        values = {name: getattr(validated, name) for name in validated.model_fields_set}
        if self.receiver:
            values[self.receiver] = state
        returned = self.fn(**values)
        if inspect.isawaitable(returned):
            returned = _awaited(returned)
        try:
            return to_jsonable_python(returned)
        except PydanticSerializationError as error:
            raise TypeError(f"'{self.tool.name}' returned what JSON cannot hold: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _Function, (self.fn, self.receiver)


def _awaited(awaitable: Awaitable[Any]) -> Any:
    """What an asynchronous tool returns: run to its end, in a thread of its own where a loop runs in this one."""

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, asyncio.run, wait()).result()


class FunctionWorld:
    """A state, changed by functions; an exception in one of them undoes what it did."""

    def __init__(
        self, state: Any, functions: Mapping[str, _Function], on_exception: OnException = "tool_error"
    ) -> None:
        self.state, self._functions, self._on_exception = state, functions, on_exception
        self._hash: str | None = None
        self._said: tuple[Any, str] = (None, "null")

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Calls the function.

        Raises:
            ToolError: What the function says; or that it raised something else, without its words.
            Exception: As the function raised it, if it is an infrastructure error, or ``on_exception`` is ``crash``.
        """
        function = self._functions[name]
        writes = not function.tool.read_only
        self._hash = None if writes else self._hash
        if self._on_exception == "crash":
            return function(self.state, arguments)
        before = self.snapshot() if writes else self.state
        try:
            value = function(self.state, arguments)
            self._said = value, encode(value)  # NaN and the like are no JSON
        except (ToolError, ConfigError):
            raise
        except Exception as error:
            self.state, self._hash = before, None
            if is_infrastructure_error(error):
                raise
            show(error, f"the tool '{name}'")
            undone = ", and nothing was changed" if writes else ""
            raise ToolError(f"the tool failed ({type(error).__name__}){undone}") from error
        return value

    def text_of(self, value: Any) -> str:
        """Returns a result as text; that of the last call is there already."""
        return self._said[1] if value is self._said[0] else encode(value)

    def snapshot(self) -> Any:
        """Returns a copy of the state."""
        return copy.deepcopy(self.state)

    def restore(self, snapshot: Any) -> None:
        """Goes back to a copy."""
        self.state, self._hash = copy.deepcopy(snapshot), None

    def state_hash(self) -> str:
        """Returns a digest of the state's JSON form."""
        if self._hash is None:
            text = json.dumps(as_json(self.state), sort_keys=True)
            self._hash = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return self._hash

    def close(self) -> None:
        """Nothing is held."""


def as_json(state: Any) -> Any:
    """Returns a state in a form that is equal for equal states: of an object, its attributes.

    Raises:
        ConfigError: If it holds something (a connection, a function) that has no such form.
    """
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return {f.name: as_json(getattr(state, f.name)) for f in dataclasses.fields(state)}
    if isinstance(state, Mapping):
        # Keys 1 and "1" differ; pairs keep that, sorted whatever the order of insertion.
        return sorted(([repr(key), as_json(value)] for key, value in state.items()), key=lambda pair: pair[0])
    if isinstance(state, set | frozenset):
        return sorted((as_json(item) for item in state), key=repr)
    if isinstance(state, list | tuple):
        return [as_json(item) for item in state]
    if state is None or isinstance(state, bool | int | float | str):
        return state
    if hasattr(state, "__dict__") and not callable(state):
        return as_json(vars(state))
    raise ConfigError(
        f"The state holds a {type(state).__name__}, which has no form to compare. Use dataclasses, dicts, lists, sets "
        "and plain values, or write a World of your own with a state_hash."
    )


class FunctionDomain:
    """A :class:`marft_envs.families.tools.types.ToolDomain` of functions.

    Args:
        tools: Typed functions; or a class, whose public methods (static and class methods, too) are the tools and
            whose instances are states. One that is asynchronous is run to its end, each call in a loop of its own.
        problems: What the user can want, one list for all splits or a mapping from split to list. ``secret`` of a
            problem is yours: ``grade`` and ``state`` may read it, agents never see it.
        grade: Judges a state; see :data:`GradeFn`.
        state: Makes the state at an episode's start from the problem; default: ``tools()`` for a class, else ``{}``.
        oracle: Gold calls per user turn; default: ``secret["calls"]`` of a problem whose secret is such a mapping.
        policy: Text that every acting agent is shown.
        specialists: Role -> names of its tools.
        user_tools: Names of the user-agent's tools.
        on_exception: What an exception in a function is, ``ToolError`` apart. ``tool_error``: the agent reads that the
            tool failed, what the function did to the state is undone, and the traceback is shown once. ``crash``: the
            world has crashed, an infrastructure error. ``ConnectionError`` and every other ``OSError`` that is not
            about a file's name always count as a crash. ``TimeoutError`` is a call that was given up, nobody's fault.
        user_policy: Text that the user-agent is shown in place of ``policy``.
        name: The domain's name.

    Raises:
        ConfigError: If a function is no tool, or a named tool does not exist.
    """

    def __init__(
        self,
        tools: type | Sequence[Callable[..., Any]],
        problems: Sequence[ToolProblem] | Mapping[str, Sequence[ToolProblem]],
        grade: GradeFn,
        *,
        state: Callable[[ToolProblem], Any] | None = None,
        oracle: Callable[[ToolProblem], list[list[ToolCall]]] | None = None,
        policy: str = "",
        specialists: Mapping[str, Sequence[str] | frozenset[str]] | None = None,
        user_tools: Sequence[str] | frozenset[str] = (),
        on_exception: OnException = "tool_error",
        user_policy: str = "",
        name: str = "functions",
    ) -> None:
        if on_exception not in (known := get_args(OnException)):
            raise ConfigError(f"on_exception cannot be {on_exception!r}. {did_you_mean(str(on_exception), known)}")
        for word, fn in (("grade", grade), ("state", state), ("oracle", oracle)):
            if inspect.iscoroutinefunction(fn):
                raise ConfigError(f"{word}={_shown(fn)} is asynchronous; only tools may be. Write it without async.")
        self._on_exception: OnException = on_exception
        members = _methods(tools) if isinstance(tools, type) else list(tools)
        receiver = "self" if isinstance(tools, type) else STATE
        functions = [_Function(fn, receiver) for fn in members]
        self.functions = {function.tool.name: function for function in functions}
        if len(self.functions) < len(functions):
            raise ConfigError(f"Two functions of '{name}' have one name. Rename one.")
        if not functions:
            raise ConfigError(f"'{name}' has no tools. Give typed functions, or a class with public methods.")
        self.name, self.policy = name, policy
        self.tools: Mapping[str, Tool] = {key: function.tool for key, function in self.functions.items()}
        self.specialists = {role: frozenset(names) for role, names in (specialists or {}).items()}
        self.user_tools, self.user_policy = frozenset(user_tools), user_policy
        self.same_world = state is None
        """Whether an episode's world does not depend on the problem, so that any text can be one (``marft serve``)."""
        self._problems, self._grade, self._oracle = problems, grade, oracle
        self._state = _maker(state) or (partial(_instance, tools) if isinstance(tools, type) else _empty)

    def problems(
        self, split: str, levels: Sequence[int] | None = None, limit: int | None = None
    ) -> ProblemSet[ToolProblem]:
        """Returns the problems of a split."""
        return of_split(self.name, self._problems, split, levels, limit)

    def open(self, problem: ToolProblem) -> FunctionWorld:
        """Returns a world with a fresh state.

        Raises:
            ConfigError: The state cannot be copied, and a tool that fails could not be undone.
        """
        world = FunctionWorld(self._state(problem), self.functions, self._on_exception)
        if self._on_exception == "tool_error" and not all(tool.read_only for tool in self.tools.values()):
            try:
                world.snapshot()
            except Exception as error:
                raise ConfigError(
                    f"The state of '{self.name}', a {type(world.state).__name__}, cannot be copied "
                    f"({type(error).__name__}: {error}), and what a tool has done before it fails is undone by a copy. "
                    "Keep out of the state what cannot be copied (a lock, a connection), give its class a "
                    "__deepcopy__, or say on_exception='crash'."
                ) from error
        return world

    def begin_turn(self, problem: ToolProblem, world: FunctionWorld, turn: int) -> None:
        """Nothing happens between user turns."""

    def grade(self, problem: ToolProblem, world: FunctionWorld, messages: Sequence[str] = ()) -> StateGrade:
        """Judges the state, and the messages to the user if ``grade`` takes them."""
        return StateGrade.of(graded(self._grade, world.state, problem, messages))

    def oracle(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns gold calls."""
        missing = f"'{self.name}' has no oracle. Give oracle=…, or a problem with secret={{'calls': [[…]]}}."
        return problem.asked(self._oracle, missing)


def _maker(state: Any) -> Callable[[ToolProblem], Any] | None:
    """Checks what makes states: a function of the problem. A class would take the problem for its first field."""
    if state is None:
        return None
    shown = _shown(state)
    if isinstance(state, type) or not callable(state):
        what = f"the class {shown}" if isinstance(state, type) else f"{shown!s:.60}, which cannot be called"
        raise ConfigError(
            f"state= is {what}. Expected a function that takes the problem and returns a fresh state, like "
            f"def start(problem): return {shown if isinstance(state, type) else '…'}()."
        )
    try:
        inspect.signature(state).bind(None)
    except TypeError as error:
        raise ConfigError(f"state={shown} does not take the problem, and only that: {error}.") from error
    except ValueError as error:  # a builtin
        raise ConfigError(
            f"state={shown} has no signature that can be read, so whether it takes the problem is not known. Expected "
            f"a function of your own, like def start(problem): return {shown}(…)."
        ) from error
    return state


def _shown(fn: Any) -> str:
    return str(getattr(fn, "__name__", repr(fn)))


def _instance(cls: Callable[[], Any], problem: ToolProblem) -> Any:
    return cls()


def _empty(problem: ToolProblem) -> dict[str, Any]:
    return {}


def _methods(cls: type) -> list[Callable[..., Any]]:
    """The public methods, static ones and class methods included, in the order of their definition."""
    names = dict.fromkeys(key for base in reversed(cls.__mro__[:-1]) for key in vars(base) if not key.startswith("_"))
    methods = []
    for name in names:
        value = inspect.getattr_static(cls, name)
        if isinstance(value, functools.partialmethod | functools.singledispatchmethod):
            raise ConfigError(
                f"'{cls.__name__}.{name}' is a {type(value).__name__}, which has no signature of its own. Write a "
                "plain method, or begin its name with '_'."
            )
        method = callable(value) and hasattr(value, "__get__") and not isinstance(value, type)
        if method or isinstance(value, classmethod):
            methods.append(getattr(cls, name))
    return methods
