"""Environments of others by name: ``pettingzoo:tictactoe_v3``, ``gymnasium:FrozenLake-v1``, ``my_module:my_function``.

============== ======================================================================================
prefix         what stands behind it
============== ======================================================================================
pettingzoo     a module with ``env()`` (``parallel_env()`` with ``parallel=true``), of PettingZoo's own
               by its last name, any other by its dotted one
gymnasium      an id of Gymnasium's registry
textarena      an id of TextArena's registry
gem            an id of GEM's registry
reasoning_gym  a data set of reasoning-gym
a module       a function in it that returns an environment of any of these kinds
============== ======================================================================================
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marft_envs.adapters.inward.codecs import Codec
from marft_envs.adapters.inward.game import GlobalGenerators
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError, MarftError, MissingExtraError, check_known
from marft_envs.registration import FOREIGN, broken, import_for

if TYPE_CHECKING:
    from marft_envs.adapters.inward.compliance import Clause


def load(
    target: str,
    *,
    settings: Mapping[str, Any] | None = None,
    codec: Codec | str | Mapping[str, Codec] | None = None,
    parallel: bool = False,
    players: int | None = None,
    sees: int | str | None = None,
    opponents: str | Mapping[str, Any] | None = None,
    illegal: str | None = None,
    cooperative: bool | None = None,
    roles: Sequence[str] | None = None,
    profiles: Mapping[str, str] | str | None = None,
    **kwargs: Any,
) -> FlexEnv:
    """Builds a foreign environment by name.

    Args:
        target: ``prefix:name``, see the table above.
        settings: Keyword arguments of the foreign environment, or of the function.
        codec: A codec, ``module:name`` of one (or of a function that makes one), or one per agent.
        parallel: Take PettingZoo's parallel form.
        players: Seats of a TextArena game.
        sees: See ``foreign.team``; so are ``opponents``, ``illegal`` and ``cooperative``.
        opponents: The fixed players of other seats.
        illegal: What an illegal move does.
        cooperative: Reward the team, not each seat.
        roles: Who deliberates, where there is one seat; see ``foreign.deliberating``.
        profiles: System messages.
        **kwargs: Settings of :class:`FlexEnv`.

    Raises:
        ConfigError: No such environment, or one that cannot be trained; the message says what is missing.
        MissingExtraError: Its package is not installed.
    """
    named: dict[str, Any] = {
        "codec": _named(codec),
        "players": players,
        "sees": sees,
        "opponents": opponents,
        "illegal": illegal,
        "cooperative": cooperative,
        "roles": roles,
        "profiles": profiles,
    }
    options = {key: value for key, value in named.items() if value is not None} | kwargs
    scheme, _, name = target.partition(":")
    if scheme == "reasoning_gym":
        from marft_envs.adapters.inward import reasoning_gym

        return reasoning_gym.make(name, settings=settings, **options)
    with GlobalGenerators().own():
        env = raw(target, settings or {}, parallel=parallel)
    if isinstance(getattr(env, "unwrapped", None), FlexEnv):
        if options:
            raise ConfigError(f"'{target}' is an environment of this project: put its arguments in settings.")
        return env
    return wrap(env, **options)


def clauses(
    target: str,
    *,
    settings: Mapping[str, Any] | None = None,
    codec: Codec | str | Mapping[str, Codec] | None = None,
    parallel: bool = False,
    **kwargs: Any,
) -> list[Clause]:
    """What a foreign environment offers, clause by clause; empty for one of this project. Arguments as of ``load``."""
    from marft_envs.adapters.inward import compliance

    if target.startswith("reasoning_gym:"):
        return []
    try:
        env = raw(target, settings or {}, parallel=parallel)
    except TypeError:
        return []  # a function that takes other arguments makes an environment of this project
    return [] if compliance.kind_of(env) == "flex" else compliance.check(env, _named(codec))


def raw(target: str, settings: Mapping[str, Any], *, parallel: bool = False) -> Any:
    """Builds the foreign environment itself."""
    scheme, _, name = target.partition(":")
    if scheme == "pettingzoo":
        return _pettingzoo(name, settings, parallel=parallel)
    if scheme == "gymnasium":
        import gymnasium

        try:
            return gymnasium.make(name, **settings)
        except gymnasium.error.UnregisteredEnv as error:
            raise ConfigError(f"Gymnasium has no environment '{name}': {error}") from error
        except gymnasium.error.DependencyNotInstalled as error:
            raise ConfigError(f"'{target}' lacks a package: {error}") from error
    if target.startswith(FOREIGN):
        return importlib.import_module(f"marft_envs.adapters.inward.{scheme}").build(name, settings)
    module, _, function = target.rpartition(":")
    build = getattr(importlib.import_module(module), function)
    try:
        return build(**settings)
    except (MarftError, OSError, TypeError):  # said already; an infrastructure error; other arguments
        raise
    except Exception as error:  # whatever a function of others raises
        raise broken(target, f"'{function}' makes no environment", error) from error


def wrap(env: Any, **settings: Any) -> FlexEnv:
    """Puts an environment of any kind that is known into a FlexEnv.

    Raises:
        ConfigError: Of no known kind, or clauses of the compliance page are not met; the message names them.
    """
    import gymnasium
    from pettingzoo import AECEnv, ParallelEnv

    from marft_envs.adapters.inward import aec, compliance, gem, gym_text, textarena
    from marft_envs.adapters.inward import parallel as simultaneous

    compliance.require_trainable(env, settings.get("codec"))
    if isinstance(env, AECEnv):
        return aec.wrap(env, **settings)
    if isinstance(env, ParallelEnv):
        return simultaneous.wrap(env, **settings)
    if isinstance(env, gymnasium.Env):
        return gym_text.wrap(env, **settings)
    return (textarena if compliance.kind_of(env) == "textarena" else gem).wrap(env, **settings)


def _pettingzoo(name: str, settings: Mapping[str, Any], *, parallel: bool) -> Any:
    import pettingzoo

    if "." in name:
        where = name
    else:
        known: dict[str, str] = {}
        for family in pkgutil.iter_modules(pettingzoo.__path__):
            if family.ispkg and family.name not in ("test", "utils", "env_registry"):
                package = f"pettingzoo.{family.name}"
                folder = [f"{pettingzoo.__path__[0]}/{family.name}"]
                known |= {m.name: f"{package}.{m.name}" for m in pkgutil.iter_modules(folder) if "_v" in m.name}
        others = "Others by their dotted name: pettingzoo:package.name_v0"
        check_known([name], known, "PettingZoo has no environment '{}'.", after=others)
        where = known[name]
    try:
        module = importlib.import_module(where)
    except ImportError as error:
        if "." in name and error.name and where.startswith(error.name):
            raise ConfigError(f"There is no module '{where}'. Expected one with env() or parallel_env().") from error
        if where.startswith("pettingzoo."):
            raise MissingExtraError(f"'{name}' ({error})", "pettingzoo") from error
        raise ConfigError(f"'{where}' cannot be imported: {error}") from error
    if (build := getattr(module, "parallel_env" if parallel else "env", None)) is None:
        have = "env()" if hasattr(module, "env") else "parallel_env(): say parallel=true"
        raise ConfigError(f"{where} has no {'parallel_env' if parallel else 'env'}(); it has {have}.")
    return build(**settings)


def _named(name: Any) -> Any:
    """Returns the codec of a name; a codec as it is."""
    if not isinstance(name, str):
        return name
    module, colon, attribute = name.partition(":")
    codec = getattr(import_for(name, module), attribute, None) if colon else None
    if codec is None:
        raise ConfigError(f"There is no codec '{name}'. Expected module:name of one, or of a function that makes one.")
    return codec if hasattr(codec, "show") and not isinstance(codec, type) else codec()
