"""Registers environments by id: ``[namespace/]name-vN``, and ``module:id`` for those that a module registers.

Without ``-vN`` an id means its newest version. Gymnasium and PettingZoo know each id as ``marft/ID`` (their registries
have no entry points: an id is there once this package is imported). Environments of others go by
``pettingzoo:tictactoe_v3`` and the like, or ``module:function``.
From the first release on, anything that could move a score (data, prompt, grader, reward, limits) makes a new version
of an id.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from marft_envs.core.env import FlexEnv
from marft_envs.core.partners import FixedPartners, Partner, expert
from marft_envs.core.rewards import CompositeReward, RewardedTask
from marft_envs.errors import ConfigError, did_you_mean, here
from marft_envs.problems import rows

PLUGIN_GROUP = "marft.envs"
"""Entry-point group of plugins: name = namespace or id, value = a module whose import registers ids."""

FOREIGN = ("pettingzoo:", "gymnasium:", "textarena:", "gem:", "reasoning_gym:")
"""Prefixes of environments of others; ``module:function`` may return one, too. See ``adapters.inward.load``."""
PROGRAM = "program:"
"""Prefix of a command, or of ``module:function``, that is a team; see ``adapters.inward.program``."""
MEMBERS = ("judge", "partners", "reward")
"""What ``make`` adds to an environment itself, whatever its factory takes."""
LOADER = "marft_envs.adapters.inward.load:load"
_PROGRAMS = "marft_envs.adapters.inward.program:make"

_ID = re.compile(r"(?:(?P<ns>[\w.-]+)/)?(?P<name>[A-Za-z0-9_.-]+?)-v(?P<version>\d+)")


@dataclass(frozen=True)
class EnvSpec:
    """Says how to build one environment."""

    id: str
    entry_point: str | Callable[..., FlexEnv]
    """``module:callable``, or the callable; it returns a :class:`FlexEnv` (possibly wrapped)."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _known, (self.id,)  # entry points may be functions that cannot be pickled

    def make(self, **kwargs: Any) -> FlexEnv:
        """Builds the environment; see :func:`make`."""
        return make(self.id, **kwargs)

    def load(self) -> Callable[..., FlexEnv]:
        """Returns the callable, importing its module on first use."""
        if callable(self.entry_point):
            return self.entry_point
        module, _, name = self.entry_point.partition(":")
        return getattr(importlib.import_module(module), name)


def _known(id: str) -> EnvSpec | None:
    try:
        return spec(id)
    except ConfigError:
        return None


_specs: dict[str, EnvSpec] = {}
_plugins_loaded: set[str] = set()


def register(
    id: str, entry_point: str | Callable[..., FlexEnv], kwargs: Mapping[str, Any] | None = None, summary: str = ""
) -> EnvSpec:
    """Registers an environment id.

    Args:
        id: ``[namespace/]name-vN``.
        entry_point: ``"module:callable"`` or a callable that returns the environment.
        kwargs: Default keyword arguments of the callable.
        summary: One line for listings.

    Raises:
        ConfigError: If the id is malformed, or taken by something else.
    """
    if not _ID.fullmatch(id):
        raise ConfigError(f"'{id}' is not an environment id. Expected [namespace/]name-vN, for example 'my-task-v0'.")
    new = EnvSpec(id, entry_point, dict(kwargs or {}), summary)
    old = _specs.get(id)
    if old is not None and old != new:
        raise ConfigError(f"'{id}' is registered already, for {old.entry_point}. Register a new version: bump the -vN.")
    _specs[id] = new
    enter(id)
    return new


def enter(id: str, namespace: str = "marft") -> str:
    """Puts an id into the registries of Gymnasium and of PettingZoo, where it has one; returns its name there."""
    name = id if "/" in id else f"{namespace}/{id}"
    adapters = "marft_envs.adapters.outward"
    gymnasium.registry[name] = GymnasiumSpec(name, f"{adapters}.gymnasium_env:make", kwargs={"env_id": id})
    try:
        from pettingzoo.env_registry.registration import EnvSpec as ZooSpec
        from pettingzoo.env_registry.registration import aec_registry, parallel_registry
    except ModuleNotFoundError:  # before 1.27
        return name
    aec_registry[name] = ZooSpec(name, "marft_envs.registration:make", {"id": id})
    parallel_registry[name] = ZooSpec(name, f"{adapters}.parallel_play:make", {"env_id": id})
    return name


def _load_plugins(only: str | None = None) -> None:
    """Imports plugins whose entry-point name could hold the id (all of them for listings)."""
    for point in entry_points(group=PLUGIN_GROUP):
        wanted = only is None or only == point.name or only.startswith(point.name + "/")
        if wanted and point.value not in _plugins_loaded:
            _plugins_loaded.add(point.value)
            loaded = point.load()
            if callable(loaded):
                loaded()


def importable() -> None:
    """Makes modules of the current folder importable, behind all others: nothing there can stand in for another."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def import_for(wanted: str, module: str) -> ModuleType:
    """Imports a module that a user has named, as the front part of ``module:name``.

    Raises:
        ConfigError: There is none, or it fails when it is imported; the message has its line.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise ConfigError(
                f"There is no module '{module}' to import for '{wanted}'. Expected module:name, importable from here."
            ) from error
        raise broken(wanted, f"The module '{module}' cannot be imported", error) from error
    except Exception as error:  # whatever a module of others raises
        raise broken(wanted, f"The module '{module}' cannot be imported", error) from error


def broken(wanted: str, what: str, error: Exception) -> ConfigError:
    """Says which line of a user's own code failed, and how."""
    stack = traceback.extract_tb(error.__traceback__)
    # The line that asked: not the import system's, nor that of a package that has no such name.
    frames = [f for f in stack if not f.filename.startswith("<frozen") and f.name != "__getattr__"]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}"
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
    return ConfigError(
        f"{what} for '{wanted}': {type(error).__name__}: {error} ({where}). Fix it"
        " there; --debug shows the whole traceback."
    )


def spec(id: str) -> EnvSpec:
    """Returns the specification of an id.

    Raises:
        ConfigError: If nothing is registered under it; the message names the nearest id.
    """
    if id.startswith((*FOREIGN, PROGRAM)):
        return EnvSpec(id, _PROGRAMS if id.startswith(PROGRAM) else LOADER, {"target": id})
    module, colon, name = id.rpartition(":")
    if colon:
        imported = import_for(id, module)
        if name not in _specs and callable(getattr(imported, name, None)):
            return EnvSpec(id, LOADER, {"target": id})
    if name not in _specs:
        name = name.removeprefix("marft/")  # as Gymnasium's and PettingZoo's registries have it
        _load_plugins(name)
    if name in _specs:
        return _specs[name]
    _load_plugins()
    if name in _specs:
        return _specs[name]
    match = _ID.fullmatch(name)
    stem = name[: match.start("version") - 2] if match else name
    versions = sorted((n for n in _specs if n.rpartition("-v")[0] == stem), key=lambda n: int(n.rpartition("-v")[2]))
    if versions and match:
        raise ConfigError(f"There is no version {match['version']} of '{stem}'. There is: {', '.join(versions)}.")
    if versions:
        warnings.warn(f"'{name}' without a version is '{versions[-1]}', the newest.", stacklevel=2)
        return _specs[versions[-1]]
    if name in gymnasium.registry:
        raise ConfigError(f"'{name}' is an environment of Gymnasium's. Type: gymnasium:{name}")
    raise ConfigError(f"There is no environment '{name}'. {did_you_mean(name, _specs)} All of them: marft envs")


def versioned(id: str) -> str:
    """Returns an id with its version: the newest where it has none; as it is where nothing is registered so."""
    if ":" in id or _ID.fullmatch(id):
        return id
    known = _known(id)
    return id if known is None else known.id


class _Registry(Mapping[str, EnvSpec]):
    def __getitem__(self, id: str) -> EnvSpec:
        _load_plugins(id)
        return _specs[id]

    def __iter__(self) -> Iterator[str]:
        return (spec.id for spec in list_envs())

    def __len__(self) -> int:
        return len(list_envs())

    def __repr__(self) -> str:
        return repr(list(self))


registry: Mapping[str, EnvSpec] = _Registry()
"""Every environment by its id, plugins' too; read-only."""


def pprint_registry() -> None:
    """Prints every id and what it is, as ``marft envs`` does."""
    specs = list_envs()
    width = max(len(spec.id) for spec in specs)
    print(*(f"{spec.id:<{width}}  {spec.summary}".rstrip() for spec in specs), sep="\n")


def list_envs() -> list[EnvSpec]:
    """Returns every registered environment, plugins included, sorted by id."""
    _load_plugins()
    return [_specs[id] for id in sorted(_specs)]


def make(id: str, **kwargs: Any) -> FlexEnv:
    """Builds an environment: ``env = marft_envs.make("math-dual-v0")``.

    Args:
        id: A registered id, or ``module:id``; without ``-vN`` its newest version.
        **kwargs: Override the id's defaults: what is common to all is :class:`marft_envs.FlexEnv`'s (``dependency``,
            ``max_rounds``, ``history``, ``observation``, …); ``marft envs ID`` lists those of one. ``judge`` adds
            judges (:func:`marft_envs.core.judge.judged`); ``reward``, a function of an :class:`marft_envs.Episode` or
            ``module:function``, replaces the task's reward; ``partners`` names agents that the task's ``expert`` or a
            ``module:function`` plays (:class:`marft_envs.core.partners.FixedPartners`).

    Raises:
        ConfigError: If the id or a keyword is unknown.
    """
    env_spec = spec(id)
    fn = env_spec.load()
    arguments = {**env_spec.kwargs, **kwargs}
    check_keywords(env_spec.id, fn, arguments)
    taken = inspect.signature(fn).parameters
    if kwargs.get("data") is not None and "Path" in str(getattr(taken.get("data"), "annotation", "")):
        arguments["data"] = kwargs["data"] = rows.stored(kwargs["data"])
    reward = arguments.get("reward")  # those of a family have names
    function = callable(reward) and not isinstance(reward, CompositeReward)
    function |= isinstance(reward, str) and ":" in reward
    function &= "RowReward" not in str(getattr(taken.get("reward"), "annotation", ""))  # a function of episodes
    own = taken.keys() - ({"reward"} if function else set())
    members = {name: arguments.pop(name) for name in MEMBERS if name in arguments and name not in own}
    try:
        env = fn(**arguments)
    except TypeError as error:
        raise broken(id, "The environment cannot be made", error) from error
    env.unwrapped.env_id = env_spec.id
    env.unwrapped.env_kwargs = dict(kwargs)
    env.unwrapped.spec = env_spec
    env.unwrapped.metadata["name"] = env_spec.id
    return _with_members(env, **members) if members else env


def _with_members(env: FlexEnv, judge: Any = None, partners: Any = None, reward: Any = None) -> FlexEnv:
    """Returns an environment with the user's own reward, and with members that are not trained: judges and partners."""
    made = env.unwrapped
    if reward:
        function = reward if callable(reward) else named_function(str(reward))
        if function is None:
            raise ConfigError(f"reward is '{reward}'. Expected a function of an episode, or module:function.")
        made.task = RewardedTask(made.task, function)
    if judge:
        from marft_envs.core.judge import judged

        env = judged(env, judge)
        env.env_kwargs, env.spec = made.env_kwargs, made.spec
    if reward:
        made.task.env = env.unwrapped
    if not partners:
        return env
    return cast("FlexEnv", FixedPartners(env, {name: _partner(str(who)) for name, who in dict(partners).items()}))


def named_function(name: str) -> Callable[..., Any] | None:
    """Returns the function that ``module:function`` names; None if it names none."""
    module, colon, inner = name.partition(":")
    function = getattr(import_for(name, module), inner, None) if colon else None
    return function if callable(function) else None


def _partner(who: str) -> Partner:
    """Returns who plays an agent: ``expert``, or ``module:function``.

    Raises:
        ConfigError: It is neither, or the function is not there.
    """
    if who == "expert":
        return expert
    if (function := named_function(who)) is None:
        raise ConfigError(
            f"Nobody is played by '{who}'. Expected 'expert', or module:function of a function from chat messages"
            " to a reply. For a model, leave the agent out here, and give it an engine: --engines AGENT={…}."
        )
    return cast("Partner", function)


def check_keywords(id: str, fn: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` for an argument that an environment's factory does not take."""
    known = keywords(fn)
    for name in arguments:
        if name not in known:
            hint = f"{here('marft_envs', name)} {did_you_mean(name, known)}".lstrip()
            raise ConfigError(f"'{id}' takes no '{name}'. {hint}")


def keywords(fn: Callable[..., Any]) -> set[str]:
    """Returns what can be said to a factory; its ``**kwargs`` are FlexEnv's settings, without team, task and id.

    The dependency function is among them: a factory that sets one may let its caller choose another.
    """
    own = inspect.signature(fn).parameters.values()
    names = {p.name for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    if any(p.kind is p.VAR_KEYWORD for p in own):
        names |= {*inspect.signature(FlexEnv).parameters} - {"agents", "task", "env_id"}
    return names.union(MEMBERS)


def make_vec(id: str | Callable[..., FlexEnv], num_envs: int = 1, **kwargs: Any) -> Any:
    """Builds a poll/push vector environment of ``num_envs`` slots; see :class:`marft_envs.core.vector.VectorEnv`.

    Args:
        id: A registered id, or a function that makes an environment.
        num_envs: Slots.
        **kwargs: Arguments of the environment, or of the function.
    """
    from marft_envs.core.vector import VectorEnv

    return VectorEnv([partial(id, **kwargs) if callable(id) else partial(make, id, **kwargs)] * num_envs)
