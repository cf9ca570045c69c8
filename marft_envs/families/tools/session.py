"""One episode's use of a world: who may call what, how often, with what arguments, and what came of it.

A session stands between replies and the world. The world sees only calls of tools that the agent holds and that are
there in this user turn, within budgets, with arguments that fit the schema, and copied.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from marft_envs.call_formats.call import ToolCall
from marft_envs.core.faults import show
from marft_envs.core.plain_data import escaped, one_line
from marft_envs.errors import ConfigError, check_known, did_you_mean
from marft_envs.families.tools.schema import check_tool
from marft_envs.families.tools.types import Shared, Tool, ToolError, ToolResult, World, copied, encode, frozen
from marft_envs.families.tools.validation import UNDECIDED

_LOG = logging.getLogger(__name__)
_LONGEST_MESSAGE = 400
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CallLimits:
    """What ends an episode or a call early.

    Raises:
        ConfigError: If a limit is below 1.
    """

    max_turns: int = 64
    """Agents' turns within one user turn; then the episode ends (``max_turns``). Depot's oracle takes up to 38."""
    max_idle: int = 8
    """Layers in a row that bring nothing new (no change, no value that was not there before); then the episode ends
    (``stalled``). One more than a handoff loop needs."""
    max_calls: int = 64
    """Calls of the team in an episode; one more ends it (``max_calls``)."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Agent or role -> calls in an episode; a call beyond is refused, and the episode goes on."""
    max_result_chars: int = 20_000
    """Longest result; a longer one is cut and counts as an error."""

    def __post_init__(self) -> None:
        limits = {name: value for name, value in vars(self).items() if name != "budgets"}
        for name, limit in {**limits, **{f"budgets['{k}']": v for k, v in self.budgets.items()}}.items():
            if limit < 1:
                raise ConfigError(f"{name} must be at least 1; got {limit}.")

    def of_agents(self, roles: Mapping[str, str]) -> dict[str, int]:
        """Returns agent -> calls in an episode, for agents that have such a limit.

        Args:
            roles: Agent -> its role.

        Raises:
            ConfigError: If a budget names no agent and no role.
        """
        caps, known = self.budgets, {*roles, *roles.values()}
        check_known(caps, known, "There is no agent or role '{}' to have a budget.")
        return {name: caps.get(name, caps.get(role, 0)) for name, role in roles.items() if name in caps or role in caps}


class Toolbox(Shared):
    """The tools of a domain with their compiled checks; never changes, so forks share it.

    Raises:
        ConfigError: If two tools have one name, or one cannot be used.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools: dict[str, Tool] = {}
        self.problems: dict[str, Callable[[Any], list[str]]] = {}
        """Tool -> what is wrong with arguments."""
        for tool in tools:
            if tool.name in self.tools:
                raise ConfigError(f"Two tools are called '{tool.name}'. Rename one.")
            self.tools[tool.name] = tool
            self.problems[tool.name] = check_tool(tool)
        self._warned: set[str] = set()

    def warn_of_pattern(self, name: str) -> None:
        """Says once that a tool's patterns could not be matched against what an agent sent."""
        if name not in self._warned:
            self._warned.add(name)
            _LOG.warning(
                "tool '%s': a pattern of its schema takes too long to match against an argument; the call was refused, "
                "and is no fault of the agent. Write the pattern without repeats within repeats, as in (a+)+.", name
            )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return Toolbox, (list(self.tools.values()),)  # checks are closures: they are compiled anew


class CallEntry(NamedTuple):
    """A call in the session's log."""

    result: ToolResult
    line: str
    """What agents read of it."""
    turn: int
    """User turn, from 0."""
    duplicate: bool = False
    """The same name, arguments and state version as an earlier call."""
    fault: bool = False
    """The call failed, and that is the agent's doing (a transient failure of a tool is not, nor a world that broke, nor
    a pattern of its schema that cannot be matched in time)."""


class ToolSession:
    """Calls on one world.

    Args:
        toolbox: The domain's tools.
        open_world: Opens the world as it is at the episode's start.
        holds: Agent -> tools that it may call.
        budgets: Agent -> most calls in the episode; agents left out have no limit of their own.
        max_calls: Most calls of the team in the episode.
        max_result_chars: Longest result; a longer one is cut and reported as ``too_large``.
        free: Tools whose calls are not counted, and that no budget limits.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        open_world: Callable[[], World],
        holds: Mapping[str, frozenset[str]],
        budgets: Mapping[str, int],
        max_calls: int,
        max_result_chars: int,
        free: frozenset[str] = frozenset(),
    ) -> None:
        self.toolbox, self.holds, self.budgets, self.free = toolbox, holds, budgets, free
        self.max_calls, self.max_result_chars = max_calls, max_result_chars
        self._open = open_world
        self.world = open_world()
        self.log: list[CallEntry] = []
        self.spent: defaultdict[str, int] = defaultdict(int)
        """Agent -> calls so far."""
        self.total = 0
        self.turn = 0
        self.withheld: frozenset[str] = frozenset()
        """Tools that are missing in this user turn."""
        self.broken = ""
        """``world_crashed`` or ``world_hung`` once the world cannot be used any more."""
        self.fault = ""
        """What broke it; for records, not for agents. A broken world is an infrastructure error, without rewards."""
        self.exhausted = False
        """The team asked for more than ``max_calls``."""
        self._seen: set[Any] = set()

    def available(self, agent: str) -> list[Tool]:
        """Returns the tools that an agent can call now, in the domain's order."""
        held = self.holds.get(agent, _NONE)
        return [tool for name, tool in self.toolbox.tools.items() if name in held and name not in self.withheld]

    def call(self, agent: str, call: ToolCall) -> ToolResult:
        """Carries out a call, or says why not; raises nothing that comes from the agent or the world.

        Raises:
            WorkerError: The machine kept a pattern of the tool's schema from being matched: an infrastructure error.
        """
        if (refusal := self._refusal(agent, call)) is not None:
            refused = ToolResult(call, agent, False, None, *refusal)
            undecided = refused.message == UNDECIDED
            if undecided:
                self.toolbox.warn_of_pattern(call.name)
            return self._enter(refused, shown(refused), self._repeated(refused), not undecided)
        if (before := self._version()) is None:
            lost = ToolResult(call, agent, False, None, "crashed", "the world failed")
            return self._enter(lost, shown(lost), False, False)
        arguments = copied(call.arguments)
        key = (call.name, frozen(arguments), self.turn, before)
        duplicate = key in self._seen
        value, text, error, message, transient = self._answer(call.name, arguments)
        changed = self.broken != "world_hung" and self._version() != before
        if self.broken == "world_crashed" and not error:
            error, message = "crashed", "the world failed"
        if not transient:
            self._seen.add(key)
        result = ToolResult(call, agent, not error, value, error, message, changed)
        line = shown(result) if error else f"{call.name}: {escaped(text)}"
        return self._enter(result, line, duplicate, bool(error) and not (transient or self.broken))

    def _enter(self, result: ToolResult, line: str, duplicate: bool, fault: bool) -> ToolResult:
        if not self.exhausted and result.call.name not in self.free:
            self.spent[result.agent] += 1
            self.total += 1
        self.log.append(CallEntry(result, line, self.turn, duplicate, fault))
        return result

    def _repeated(self, refused: ToolResult) -> bool:
        """Whether a refused call was refused before at this state."""
        call, error = refused.call, refused.error
        if error == "budget" or self.broken:
            return False
        key = (call.name, error, _stand_in(call.arguments), self.turn, self._version())
        repeated = key in self._seen
        self._seen.add(key)
        return repeated

    def _refusal(self, agent: str, call: ToolCall) -> tuple[str, str] | None:
        """What keeps a call from the world, as an error code and words."""
        name = call.name
        held = self.holds.get(agent, _NONE)
        if self.broken:
            return "crashed", "the world cannot be used any more"
        if name not in self.free:
            if self.total >= self.max_calls:
                self.exhausted = True
                return "budget", f"the team has used its {self.max_calls} calls"
            if agent in self.budgets and self.spent[agent] >= self.budgets[agent]:
                return "budget", f"you have used your {self.budgets[agent]} calls"
        if name not in self.toolbox.tools:
            return "unknown_tool", f"there is no such tool. {did_you_mean(name[:64], held - self.withheld)}"
        if name not in held:
            return "not_permitted", "you do not hold this tool"
        if name in self.withheld:
            return "withheld", "this tool is not available now"
        problems = self.toolbox.problems[name](call.arguments)
        return ("invalid_arguments", "; ".join(problems)) if problems else None

    def _answer(self, name: str, arguments: dict[str, Any]) -> tuple[Any, str, str, str, bool]:
        """What a permitted call gives: value and text of it, an error code and words, and whether that is passing."""
        try:
            ask = self._wait_for if getattr(self.world, "may_block", False) else self.world.call
            value = ask(name, arguments)
        except ToolError as refused:
            return None, "", "tool_error", str(refused), refused.transient
        except TimeoutError as late:  # the world's own deadline: it has given the call up
            return None, "", "timeout", str(late) or "the tool did not answer in time", True
        except ConfigError:
            raise
        except Exception as fault:  # a defect of the world, whatever it is, is this episode's record
            self._crashed(fault)
            return None, "", "crashed", "the tool failed", False
        try:
            text = getattr(self.world, "text_of", encode)(value)
        except (TypeError, ValueError, RecursionError) as fault:
            self._crashed(fault)
            return "", "", "crashed", "the tool returned what is not JSON", False
        if len(text) > self.max_result_chars:
            cut = text[: self.max_result_chars]
            return cut, cut, "too_large", f"the result has {len(text)} characters; its first {len(cut)}: {cut}", False
        return value, text, "", "", False

    def _version(self) -> str | None:
        """Hash of the world's state; None if that crashed it."""
        try:
            return self.world.state_hash()
        except ConfigError:
            raise
        except Exception as fault:  # a world that cannot say its state cannot be gone on with
            self._crashed(fault)
            return None

    def _crashed(self, fault: Exception) -> None:
        self.broken = self.broken or "world_crashed"
        self.fault = self.fault or f"{type(fault).__name__}: {fault}"[:_LONGEST_MESSAGE]
        show(fault, "a world")

    def _wait_for(self, name: str, arguments: dict[str, Any]) -> Any:
        """What a world that may block answers within the tool's deadline."""
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result(self.world.call(name, arguments))
            except BaseException as error:  # raised again where the call was made
                answer.set_exception(error)

        threading.Thread(target=ask, daemon=True, name=f"marft-tool-{name}").start()
        if not wait([answer], self.toolbox.tools[name].timeout_s).done:
            # The thread may still change the world at any time, so nothing can be built on it any more.
            self.broken = "world_hung"
            raise TimeoutError("the tool did not answer in time, and the world is given up")
        return answer.result()

    # Copies ------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolSession:
        new = object.__new__(ToolSession)
        memo[id(self)] = new
        shared = {"log": list(self.log), "_seen": set(self._seen), "holds": self.holds, "budgets": self.budgets}
        for name, value in self.__dict__.items():
            setattr(new, name, shared[name] if name in shared else copy.deepcopy(value, memo))
        return new

    def __getstate__(self) -> dict[str, Any]:
        """A world may hold what cannot be pickled; its snapshot can."""
        return {**self.__dict__, "world": None, "_snapshot": self.world.snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        snapshot = state.pop("_snapshot")
        self.__dict__.update(state)
        self.world = self._open()
        self.world.restore(snapshot)


def _stand_in(arguments: Any) -> Any:
    """Hashable, whatever an agent passed."""
    try:
        return frozen(arguments)
    except (TypeError, RecursionError):
        return None


def shown(result: ToolResult) -> str:
    """Returns the one line that agents read: ``get_order: {"id": 3}`` or ``get_order: error (tool_error): …``."""
    name = one_line(result.call.name)[:64]
    if not result.error:
        return f"{name}: {escaped(encode(result.value))}"
    message = one_line(result.message)
    return f"{name}: error ({result.error}): {message if result.error == 'too_large' else message[:_LONGEST_MESSAGE]}"
