"""Coding teams: ``code-solo-v0``, ``code-reflect-v0``, … write programs, which run in a sandbox.

>>> env = marft_envs.make("code-reflect-v0", levels=[1, 2], split="test")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marft_envs.core.env import FlexEnv
from marft_envs.core.teams import Profiles, Team, named
from marft_envs.families.code import rewards as rewards_mod
from marft_envs.families.code.judge import VERDICTS, Judge, Report, TestResult
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.task import CodeTask
from marft_envs.families.code.teams import TEAMS
from marft_envs.problems.sets import levels_of
from marft_envs.sandbox import Limits, Sandbox, shared

__all__ = [
    "TEAMS", "VERDICTS", "CodeProblem", "CodeTask", "Judge", "Report", "Team", "Test", "TestResult", "make",
]  # fmt: skip


def make(
    team_name: str = "reflect",
    data: str | Path = "procedural",
    split: str = "train",
    levels: int | Sequence[int] | None = None,
    tags: str | Sequence[str] | None = None,
    filter: Callable[[CodeProblem], bool] | None = None,
    limit: int | None = None,
    profiles: Profiles | None = None,
    dependency: Any = None,
    rounds: int | None = None,
    reward: str = "mixed",
    format_penalty: float = 0.0,
    code_block: str = "lenient",
    feedback: bool = True,
    sandbox: str | Sandbox = "auto",
    workers: int = 2,
    cpu_s: float = 2.0,
    memory_mb: int = 512,
    url: str | None = None,
    unsafe: bool = False,
    **flex: Any,
) -> FlexEnv:
    """Builds a coding environment.

    All environments of a process share one sandbox per layer. Whether it works is checked here, before training; its
    workers start with the first program.

    Args:
        team_name: One of :data:`TEAMS`; the environment's id sets it.
        data: A data set's name or the path of a JSONL file, see :func:`marft_envs.families.code.data.load`.
        split: ``train`` or ``test``.
        levels: Only these (0 to 4). None: level 0 of the procedural problems, which the embedded model can learn; all
            levels of another set.
        tags: Only problems of these kinds: ``function``, ``stdio``, or a generator's name; None: all.
        filter: A function of a problem; only problems for which it is true are kept.
        limit: The most problems, chosen evenly from the set; None: all.
        profiles: Agent or role -> another profile. To replace the team: a list (or a JSON file) of profiles with
            ``role``, ``prompt`` and ``with_answer``. The agents act in the order listed, unless ``dependency`` is set.
        dependency: Replaces the team's D: anything :func:`marft_envs.core.dependency.as_dependency` takes.
        rounds: Most rounds in an episode; by default 3 for the teams ``reflect`` and ``retry``, else 1. An episode ends
            with the round after which all public tests pass.
        reward: ``mixed``, ``fraction``, ``all`` or ``difference``, see :mod:`marft_envs.families.code.rewards`.
        format_penalty: The penalty of a reply that should hold a program and does not.
        code_block: ``lenient`` takes a reply without any fence for a program if it looks like one; ``strict`` does not.
        feedback: Whether agents see the results of public tests on their programs. If not, the tests only decide
            whether another round is played.
        sandbox: Name of a layer; ``auto``: the strongest that passes its self-test; or a sandbox.
        workers: The most programs that run at once on a machine, for any number of ranks or workers there.
        cpu_s: CPU seconds of one test, unless the problem sets its own; the wall clocks of a test and of a whole run
            are 3 and 10 times as long.
        memory_mb: MiB of a program; a problem may ask for more.
        url: The address of a remote sandbox.
        unsafe: Allow running without isolation; see the sandbox's page.
        **flex: Settings of :class:`FlexEnv` (``history``, ``observation``, ``attribution``, …). With several
            rounds ``history`` is ``"team"`` by default: all agents see the earlier rounds, unless D = 0. The D of the
            teams ``reflect`` and ``retry`` itself says what is seen of earlier rounds.

    Raises:
        ConfigError: If the team, profiles, D or a setting cannot work.
        SandboxUnavailable: If no sandbox, or not the named one, can be had on this machine.
        DataError: If the data cannot be loaded.
    """
    team = named("coding", team_name, TEAMS).changed(profiles, dependency)
    rewards_mod.check(reward, format_penalty)
    limits = Limits(cpu_s, 3 * cpu_s, 10 * cpu_s, memory_mb)
    if isinstance(sandbox, str):
        sandbox = shared(sandbox, workers=workers, url=url, unsafe=unsafe)
    from marft_envs.families.code import data as data_mod  # the generators load with the first environment

    problems = data_mod.load(data, split, levels_of(data, levels), tags, filter, limit)
    task = CodeTask(problems, team.agents, sandbox, limits, reward, format_penalty, code_block, feedback)
    return team.on(task, rounds, **flex)
