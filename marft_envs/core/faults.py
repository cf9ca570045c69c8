"""Decides whether an agent's text or an infrastructure error ended an episode.

After a fault of its text, an agent gets the worst return. An infrastructure error says nothing about the team, so it
has no score; it is counted, and left out of every other number. A policy must not escape a penalty by breaking the
code that judges it. So an exception out of a task's code is the text's fault, unless its type is that of an
infrastructure error.
"""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Mapping, Sequence, Set
from numbers import Integral
from typing import Any, cast, get_args

from marft_envs.core.types import AgentSpec, Fault
from marft_envs.errors import ConfigError, DependencyError, MarftError, WorkerError, check_known

_OF_NAMES = frozenset(
    {
        errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EINVAL, errno.ELOOP,
        errno.ENAMETOOLONG, errno.EXDEV, errno.ENOTEMPTY,
    }
)  # fmt: skip
"""What the system says of a file's name: a text that is taken for one can make it say so at will."""

_WORDS: dict[str, Fault] = {"error": "engine", "world_crashed": "world", "world_hung": "world"}

_shown: set[tuple[str, str, int]] = set()


_NAMED = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
"""The same where Python code raises them, without a number."""


def fault_of(error: BaseException) -> Fault:
    """Decides whose fault an exception is that a task's code raised while it worked on an agent's text.

    ``machine``: a worker or a sandbox that cannot be had, ``ConnectionError``, ``TimeoutError`` and any other
    ``OSError`` but those about the name of a file. ``text``: everything else. ``MemoryError`` is the text's: a machine
    without memory kills processes, while a text can ask for a number that no machine could hold. Clients of services
    wrap a lost connection in exceptions of their own, so what an exception was raised *from* counts, too.
    """
    cause: BaseException | None = error
    seen: set[int] = set()  # a client may say `raise error from error`
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, WorkerError):
            return cast("Fault", cause.fault)
        if isinstance(cause, OSError) and not isinstance(cause, _NAMED) and cause.errno not in _OF_NAMES:
            return "machine"
        cause = cause.__cause__
    return "text"


def is_infrastructure_error(error: BaseException) -> bool:
    """Returns whether an exception is an infrastructure error, and not the fault of an agent's text."""
    return fault_of(error) != "text"


def fault_by(reason: str) -> Fault:
    """Returns whose fault the first word of a stop reason names: an engine's (``error``), a world's, or nobody's."""
    word = re.match(r"\w*", reason)
    return _WORDS.get(word[0] if word else "", "")


def check_end(reason: str, fault: str) -> None:
    """Checks why an episode is to end, and by whose fault.

    Raises:
        ConfigError: There is no such fault; or the reason names an infrastructure error that would count as a score.
    """
    check_known(filter(None, [fault]), list(filter(None, get_args(Fault))), "There is no fault '{}'.")
    if not fault and (meant := fault_by(reason)):
        raise ConfigError(
            f"The reason '{reason}' names an infrastructure error, but without a fault the episode is scored. Next: "
            f"env.truncate({reason!r}, '{meant}') if it is one, else a reason that begins with another word."
        )


def check_start(seed: Any, options: Any) -> None:
    """Checks what an environment's ``reset`` is given.

    Raises:
        ConfigError: The seed is no whole number from 0 on, or the options are no mapping.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0):
        raise ConfigError(f"The seed is {seed!r}; expected a whole number from 0 on, or None. Next: env.reset(seed=0).")
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(
            f"The options are {type(options).__name__}; expected a mapping. Next: env.reset(options={{'task_id': …}})."
        )


def refuse_edges(value: Any) -> None:
    """Raises a :class:`DependencyError` for pairs of names, which are a graph library's edges and might be layers."""
    pairs = list(value) if isinstance(value, Mapping | Sequence | Set) else []
    if not pairs or any(not isinstance(pair, tuple) or list(map(type, pair)) != [str, str] for pair in pairs):
        return
    sees = {name: [seen for seen, other in pairs if other == name] for _, name in pairs}
    raise DependencyError(
        f"D got the pairs {pairs}, which may be edges or layers. For edges (seen, who sees) write a mapping from the "
        f"agent who sees to those whom it sees: {sees}. For layers, which act one after the other, write lists: "
        f"{list(map(list, pairs))}."
    )


def check_answer(agents: Sequence[AgentSpec], acting: frozenset[str] | None) -> None:
    """Raises a :class:`DependencyError` where D lets no agent act whose action is the team's answer."""
    answerers = [agent.name for agent in agents if agent.with_answer]
    if acting is not None and answerers and acting.isdisjoint(answerers):
        raise DependencyError(
            f"Under this D {', '.join(sorted(acting)) or 'nobody'} acts, and {' or '.join(answerers)} would answer:"
            f" no episode has an answer. Let D name {answerers[-1]}, too, or give with_answer=True to one who acts."
        )


def show(error: BaseException, what: str) -> None:
    """Writes an exception's traceback to standard error, once for each place in the code that raises it.

    Args:
        error: The exception. Errors of this project have no traceback here: their message says all.
        what: Where it happened, e.g. ``the task's code``.
    """
    if isinstance(error, MarftError):
        return
    frames = traceback.extract_tb(error.__traceback__)
    place = (type(error).__name__, frames[-1].filename, frames[-1].lineno or 0) if frames else ("", "", 0)
    if place in _shown:
        return
    _shown.add(place)
    text = "".join(traceback.format_exception(error))
    print(f"{type(error).__name__} in {what} (shown once; further ones are counted):\n{plain(text)}", file=sys.stderr)


def plain(text: str) -> str:
    """Returns text that may quote what an agent or a file said, so that nothing in it moves the terminal's cursor."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
