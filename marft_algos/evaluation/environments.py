"""Environments to play in: made, started once, and checked before a model is loaded; and evaluation sets."""

from __future__ import annotations

import copy
import hashlib
import inspect
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, cast

import marft_envs
from marft_algos import seeds
from marft_algos.config.presets import CUSTOM, accepts
from marft_algos.models.chat import Renderer
from marft_algos.rollout.episodes import InfrastructureError, Prompts, TaskError
from marft_envs import FlexEnv
from marft_envs.core.faults import is_infrastructure_error
from marft_envs.core.types import optional
from marft_envs.errors import ConfigError, MarftError, WorkerError

EnvFactory = Callable[[], FlexEnv]
UNNAMED = "python/custom-v"
"""How the ids begin of environments that have an id in this process alone."""
_NUMBERS = count()
PROMPTS_CHECKED = 64
"""Problems whose prompts are measured before anything is played."""
STARTS_CHECKED = 4
"""The same where a program starts for each of them."""


def given(env: FlexEnv | EnvFactory | None) -> EnvFactory | None:
    """Makes copies of an environment that was made; a function that makes some is one already.

    Raises:
        ConfigError: It is neither.
    """
    if env is None:
        return None
    if hasattr(env, "agent_iter"):
        return partial(copy.deepcopy, cast(FlexEnv, env))
    if not callable(env):
        raise ConfigError(
            f"env is of type {type(env).__name__}. Expected an environment (marft_envs.make(...)) or a function that"
            " makes one."
        )
    return env


def named(env: Any) -> tuple[str, dict[str, Any]]:
    """Returns id and arguments of what ``marft_envs.make`` makes or has made; others get an id, for this process.

    So does one whose limits or team were changed after it was made: no arguments say so.

    Raises:
        ConfigError: It is no environment, and no function that makes one.
    """
    if env is None or isinstance(env, str):
        return env or "", {}
    made = isinstance(env, partial) and env.func is marft_envs.make
    known = env() if made else env
    if isinstance(known, FlexEnv) and known.spec is not None and (made or _as_made(known)):
        return known.spec.id, dict(known.env_kwargs)
    id = f"{UNNAMED}{next(_NUMBERS)}"
    marft_envs.register(id, cast(EnvFactory, given(env)))
    return id, {}


def _as_made(env: FlexEnv) -> bool:
    with closing(env.spec.make(**env.env_kwargs)) as fresh:
        return (fresh.rules, fresh.team) == (env.rules, env.team)


def env_factory(env_id: str, kwargs: Mapping[str, Any], reply_tokens: int | None = None) -> EnvFactory:
    """Makes environments with these arguments; ``reply_tokens``: every profile says how long a reply may be."""
    if env_id == CUSTOM:
        raise ConfigError(
            "The run was trained on an environment that was made in Python, which no file can name. Pass it again:"
            " RUN.team(env=ENV), or marft_algos.evaluate(RUN, env=ENV)."
        )
    limit = {} if reply_tokens is None else {"reply_tokens": reply_tokens}
    return partial(marft_envs.make, env_id, **(limit | dict(kwargs)))


def function_id(function: Any) -> str:
    """Returns a function's name, and a digest of its source and of the plain values that it was made with."""
    cells = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    parts = [repr(value) for value in cells if isinstance(value, str | int | float)]
    with suppress(OSError, TypeError):  # typed at a prompt, or an object that is called
        parts.append(inspect.getsource(function))
    return f"{getattr(function, '__qualname__', '')} {hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def held_out_kwargs(env_id: str, kwargs: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an environment's arguments at evaluation: the test split if there is one, then those of ``over``."""
    split = {"split": "test"} if accepts(env_id, "split") else {}
    return {**kwargs, **split, **over}


def started(env_id: str, make: EnvFactory) -> FlexEnv:
    """Builds one environment and starts an episode, so that a bad team, D or data set shows itself.

    Args:
        env_id: For messages.
        make: Makes it.

    Raises:
        InfrastructureError: What the environment needs cannot be had.
        TaskError: Its code raised, and nobody had said anything yet.
    """
    with _starting(env_id):
        env = make()
        env.reset(seed=0)
    return env


@contextmanager
def _starting(env_id: str) -> Iterator[None]:
    """Wraps the start of episodes, where no text of an agent can be to blame for an error."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MarftError) and not isinstance(error, WorkerError):
            raise
        what = str(error).rstrip(".")
        if not isinstance(error, MarftError):
            frame = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {what} ({frame.filename}, line {frame.lineno})"
        if is_infrastructure_error(error):
            raise InfrastructureError(
                f"No episode of '{env_id}' can be started: {what}. Once all that it needs is there (a server, a "
                f"sandbox), try it alone: {shlex.join(['marft', 'play', env_id, '--random'])}"
            ) from error
        raise TaskError(
            f"The code of '{env_id}' raised before anybody had said anything: {what}. Expected an episode to start. "
            f"Fix it, and try it alone: {shlex.join(['marft', 'check', env_id])}"
        ) from error


def evaluation_set(n: int, ids: Sequence[str] | None) -> Prompts:
    """Returns the same n episodes for every run: task ids where there are some, fixed seeds in any case."""
    drawn = [int(s) for s in seeds.generator(seeds.held_out()).integers(2**31, size=n)]
    return Prompts(drawn, [{} for _ in drawn] if ids is None else [{"task_id": i} for i in ids])


def check_prompts(env: FlexEnv, renderer: Renderer, prompts: Prompts, max_new_tokens: int) -> None:
    """Checks that agents' views of these problems fit their models' contexts, replies of others not counted.

    Wherever a long problem stands, its text is cut when it is played (``Collector``), and it is named then.

    Raises:
        ConfigError: Most of the first problems do not fit, so the context is too short for the task.
        InfrastructureError: As ``started``.
        TaskError: As ``started``.
    """
    long: dict[int, tuple[str, str, int]] = {}
    most = STARTS_CHECKED if optional(env.unwrapped.task, "starts_slowly") else PROMPTS_CHECKED
    checked = list(zip(prompts.seeds[:most], prompts.options, strict=False))
    for number, (seed, options) in enumerate(checked, 1):
        with _starting(env.unwrapped.env_id):
            env.reset(seed=seed, options=options)
            views = {agent: env.unwrapped.messages(agent) for agent in renderer.agents if agent in env.possible_agents}
        for agent, messages in views.items():
            policy, tools = renderer.policy_of(agent), env.unwrapped.tools.get(agent, ())
            length = len(renderer.render(policy, messages, tools))
            if length + max_new_tokens > renderer.chat(policy).context:
                long[number] = env.unwrapped.task.task_id or f"number {number}", policy, length
    if 2 * len(long) > len(checked):
        problem, policy, length = next(iter(long.values()))
        chat = renderer.chat(policy)
        raise ConfigError(
            f"The prompts of {len(long)} of the first {len(checked)} problems do not fit: that of {problem} for policy"
            f" '{policy}' has {length} tokens and its reply may have {max_new_tokens}, but '{chat.spec}' has a"
            f" context of {chat.context}. Lower --max-new-tokens, shorten the profiles (or show fewer examples in"
            " them), cut long inputs with the environment's max_chars, or choose a model with a longer context."
        )
