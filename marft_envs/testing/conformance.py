"""Checks conformance: ``check_env`` runs PettingZoo's own tests and the invariants of a Flex environment."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from marft_envs.core.env import FlexEnv
from marft_envs.core.types import optional
from marft_envs.errors import ConfigError, MarftError
from marft_envs.registration import make, named_function
from marft_envs.testing import invariants
from marft_envs.testing.played import Build, Check


class CheckError(MarftError, AssertionError):
    """An environment breaks a promise; the message names it."""


@dataclass(slots=True)
class CheckReport:
    """What was checked; ``str()`` of it is a table."""

    env_id: str
    passed: dict[str, float] = field(default_factory=dict)
    """Check -> seconds."""
    remarks: dict[str, str] = field(default_factory=dict)
    """Check -> what it had to leave out."""

    def __str__(self) -> str:
        lines = [f"{self.env_id}: {len(self.passed)} checks passed"]
        for name, seconds in self.passed.items():
            remark = f"  ({self.remarks[name]})" if name in self.remarks else ""
            lines.append(f"  ok  {name:<24}{seconds:6.2f} s{remark}")
        return "\n".join(lines)


def check_env(env: str | FlexEnv | Build) -> CheckReport:
    """Runs PettingZoo's tests and the invariants of :mod:`marft_envs.testing.invariants`.

    Args:
        env: A registered id, ``module:id``, ``module:callable``, an environment, or a callable that builds one.

    Raises:
        CheckError: At the first promise that is broken.
        ConfigError: If there is no such environment.
    """
    build = _builder(env)
    with contextlib.closing(build()) as first:
        report = CheckReport(first.unwrapped.env_id)
        with _quietly():
            for check in PETTINGZOO:
                _run(check, build, report)
        # The invariants build dozens of environments; copies of an unused one save loading its data each time.
        copyable = optional(first.unwrapped.task, "copyable")
        for check in invariants.CHECKS:
            if check in (invariants.pickling, invariants.forking) and not copyable:
                report.remarks[check.__name__] = "left out: its worlds cannot be copied"
                report.passed[check.__name__] = 0.0
            else:
                _run(check, functools.partial(copy.deepcopy, first), report)
    return report


def _run(check: Check, build: Build, report: CheckReport) -> None:
    start = time.perf_counter()
    try:
        remark = check(build)
    except ConfigError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, invariants.Broken) else f"{type(error).__name__}: {error}"
        promise = (check.__doc__ or "").strip().splitlines()[0]
        raise CheckError(
            f"{report.env_id} breaks '{check.__name__}': {what.rstrip('.')}. The promise: {promise} Fix it, and check"
            " again; --debug shows where it broke."
        ) from error
    report.passed[check.__name__] = time.perf_counter() - start
    if remark:
        report.remarks[check.__name__] = remark


def _builder(env: str | FlexEnv | Build) -> Build:
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        if module and not re.search(r"-v\d+$", name):
            if (factory := named_function(env)) is None:
                raise ConfigError(f"'{module}' has no callable '{name}'. Expected module:callable or module:id.")
            return factory
        return functools.partial(make, env)
    if callable(env):
        return env
    return functools.partial(copy.deepcopy, env)


# PettingZoo's own tests -------------------------------------------------------------------------------


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silences PettingZoo, which prints, and warns of any space that is not a box of numbers."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def api_test(build: Build) -> None:
    """PettingZoo's api_test passes."""
    from pettingzoo.test import api_test as test

    test(build(), num_cycles=200)


def seed_test(build: Build) -> None:
    """PettingZoo's seed_test passes: equal seeds, equal episodes."""
    from pettingzoo.test import seed_test as test

    test(build, num_cycles=100)


def render_test(build: Build) -> None:
    """PettingZoo's render_test passes for every render mode."""
    from pettingzoo.test import render_test as test

    def rendering(render_mode: str) -> FlexEnv:
        env = build()
        env.unwrapped.render_mode = render_mode
        return env

    test(rendering)


def turn_based_parallel(build: Build) -> None:
    """PettingZoo's turn-based conversion to a parallel environment passes parallel_api_test."""
    from pettingzoo.test import parallel_api_test
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel

    parallel_api_test(turn_based_aec_to_parallel(build()), num_cycles=200)


def parallel(build: Build) -> str | None:
    """Under D = 0, PettingZoo's parallel conversion passes parallel_api_test and parallel_seed_test."""
    from pettingzoo.test import parallel_api_test, parallel_seed_test
    from pettingzoo.utils.conversions import aec_to_parallel

    if not build().metadata["is_parallelizable"]:
        return "for Independent only"
    parallel_api_test(aec_to_parallel(build()), num_cycles=200)
    parallel_seed_test(lambda: aec_to_parallel(build()), num_cycles=100)
    return None


PETTINGZOO: tuple[Check, ...] = (api_test, seed_test, render_test, turn_based_parallel, parallel)
