"""What a trial asks: which team against which single agent, trained how, within which budgets. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

import marft_envs
from marft_algos.algorithms import base as algorithms
from marft_algos.config import presets
from marft_algos.extras.bench.grid import LEARNING, GridTable
from marft_algos.ranges import COUNT, NOT_NEGATIVE, SEED, SHARE
from marft_envs.errors import ConfigError

SINGLE_AGENTS = ("marft", "reinforce", "rft", "grpo")
"""Algorithms that may train either side: a critic, none, imitation of luck, groups."""

OF_THE_TRIAL = {"iterations", "token_budget", "processed_budget", "latency_budget", "seed", "algo", "env", "env_kwargs"}
"""Settings of a run that a trial sets itself."""


@dataclass(frozen=True)
class Question:
    """What the command line asks for, and a trial answers."""

    env: Annotated[str, tyro.conf.Positional]
    """The team's environment."""
    token_budget: Annotated[int, COUNT]
    """Tokens that the team samples for training in one run."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment; the single agent's gets those that it takes, too."""
    single: str = ""
    """Environment in which one agent does the same task on the same problems; empty: its family's solo environment."""
    single_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of that environment, over the team's."""
    single_team: tuple[str, ...] = ()
    """Instead of --single: only these agents of the team act, one after the other; usually one."""
    algorithms: tuple[str, ...] = SINGLE_AGENTS
    """May train the single agent; the sweep chooses."""
    team_algorithms: tuple[str, ...] = ()
    """May train the team, with D and without; empty: the same."""
    seeds: Annotated[tuple[int, ...], SEED] = (0, 1, 2, 3, 4)
    """Of the runs that count."""
    lr: Annotated[tuple[float, ...], LEARNING] = (1e-4, 3e-4, 1e-3)
    """Learning rates, tried for every algorithm on either side."""
    sweep_seeds: Annotated[tuple[int, ...], SEED] = (100,)
    """Of the sweep."""
    margin: Annotated[float, SHARE] = 0.05
    """The smallest gain in score that is worth a team."""
    tolerance: Annotated[float, SHARE] = 0.1
    """Budgets are equal if what was spent differs by no larger share."""
    answer_latency: Annotated[int, NOT_NEGATIVE] = 0
    """Tokens that an answer may wait for, on every side, in training and at test: an episode whose critical path is
    longer ends unanswered. 0: any number."""
    start: tuple[str, ...] = ()
    """Runs whose weights the team and the single agent begin with, one run for both; empty: their models as they
    are."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of every run, such as preset=toy eval_episodes=200."""


@dataclass(frozen=True)
class Trial(Question, GridTable):
    """A team against the best single agent; see docs/versus.md.

    Raises:
        ConfigError: Values outside their ranges, unknown algorithms, or no single agent that could be the rival.
    """

    algorithm: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Algorithm -> its own settings, on either side."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for what no training would fix."""
        super().__post_init__()
        if self.answer_latency:
            object.__setattr__(self, "env_kwargs", {**self.env_kwargs, "max_path": self.answer_latency})
        for name in (*self.algorithms, *self.team_algorithms, *self.algorithm):
            algorithms.get(name)
        for key in ("algorithms", "seeds", "lr", "sweep_seeds"):
            if not (chosen := getattr(self, key)) or len(set(chosen)) < len(chosen):
                raise ConfigError(f"'{key}' is {list(chosen)}; expected at least one, and none twice.")
        if both := set(self.sweep_seeds) & set(self.seeds):
            raise ConfigError(f"Seeds {sorted(both)} are in sweep_seeds and seeds: rates chosen on a seed flatter it.")
        if said := sorted(OF_THE_TRIAL & set(self.settings)):
            raise ConfigError(
                f"settings has {', '.join(said)}, which the trial itself decides: budgets end its runs, and each side "
                "has an environment and algorithms of its own. Leave them out; see marft versus --help-all."
            )
        if len(self.start) > 2:
            raise ConfigError(
                f"start names {len(self.start)} runs. Expected the team's and the single agent's, or one."
            )
        if self.single and self.single_team:
            raise ConfigError(
                "--single names an environment, --single-team agents of the team's own: give one of them."
            )
        self.rival()

    def rival(self) -> tuple[str, dict[str, Any]]:
        """Returns the single agent's environment and its arguments.

        Raises:
            ConfigError: There is none, or it has no such agents.
        """
        if self.single_team:
            env = marft_envs.make(self.env, **self.env_kwargs)
            known = env.possible_agents
            env.close()
            if unknown := [name for name in self.single_team if name not in known]:
                raise ConfigError(f"--single-team names {', '.join(unknown)}; the team is {', '.join(known)}.")
            if not presets.accepts(self.env, "dependency"):
                raise ConfigError(f"'{self.env}' takes no dependency, so that all of it acts. Type: --single ENV")
            alone = [[name] for name in self.single_team]
            return self.env, {**self.env_kwargs, **self.single_kwargs, "dependency": alone}
        name = self.single or self._counterpart()
        marft_envs.spec(name)
        kwargs = {k: v for k, v in self.env_kwargs.items() if k not in ("dependency", "profiles")}
        limit = {"max_path": self.answer_latency} if self.answer_latency else {}  # all environments take it
        return name, presets.keep_accepted(name, kwargs, general=True) | self.single_kwargs | limit

    def _counterpart(self) -> str:
        known = {spec.id for spec in marft_envs.list_envs()}
        solo = "-".join((self.env.split("-")[0], "solo", "v0"))
        if solo not in known or solo == self.env:
            raise ConfigError(
                f"Nobody has said who the single agent of '{self.env}' is. Name an environment with one agent and the "
                "same problems: --single ENV; or an agent of the team that can do it alone: --single-team AGENT"
            )
        return solo

    @property
    def team_trainers(self) -> tuple[str, ...]:
        """Returns the algorithms that may train the team."""
        return self.team_algorithms or self.algorithms
