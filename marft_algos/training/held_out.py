"""A team at its held-out panel, outside training: as it was trained, or as another run left it, greedy or sampled."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation.environments import check_prompts, started
from marft_algos.evaluation.play import Player, records
from marft_algos.rollout.curriculum import told
from marft_algos.rollout.panel import Panel
from marft_algos.runs import checkpoint
from marft_algos.runs import folder as runs
from marft_algos.runs.disk import reading
from marft_algos.runs.folder import RunFolder
from marft_algos.training import environments, hosting
from marft_algos.training.evaluate import player
from marft_algos.training.policies import make_policies, sampling, saved_policies
from marft_algos.training.resolve import resolve
from marft_algos.types import Trajectory
from marft_envs.core.types import optional

VOTE_SEEDS = 7919
"""Between the seeds of the answers that are sampled to one problem."""


class HeldOut:
    """The held-out problems of a run's settings, and policies to play them.

    Args:
        config: The run's settings.
        episodes: Only so many of the problems, the first; None: all.

    Attributes:
        panel: The problems.
        apart: Whether none of them is trained on.
        team: The agents.
        policies: As they are before training, until :meth:`load`.
        names: Those of them whose weights a checkpoint holds.
        answer_key: What makes two replies the same answer, if the task says so.
        waited: Seconds from one episode's end to the next one's, in the last play; none for those that were lost.
    """

    def __init__(self, config: TrainConfig, episodes: int | None = None) -> None:
        self.config, self.make_env = config, environments.env_factory(config, environments.eval_kwargs(config))
        held_out = started(config.env, self.make_env)
        with closing(environments.make_env(config, config.env_kwargs)) as env, closing(held_out):
            problems = environments.problems(config, env, held_out)
            panel, self.apart, self.team = problems.held_out, problems.apart, env.unwrapped.team
            spec = resolve(config, env, held_out)
            self.answer_key: Callable[[str], str] | None = optional(held_out.unwrapped.task, "answer_key")
        self.panel = panel if episodes is None else Panel(panel.seeds[:episodes], panel.options[:episodes])
        self.policies = make_policies(spec)
        self.names = saved_policies(config, self.policies)
        engine = hosting.make_engine(spec, self.policies, local=True)
        self._player = player(config, self.make_env, self.policies.renderer, engine)
        self._told: dict[str, str] = {}
        self.waited: list[float] = []

    def check(self) -> None:
        """Checks that the problems fit the models' contexts, and that calls are read as models write them.

        Raises:
            ConfigError: As ``check_prompts`` and ``check_dialects``.
        """
        with closing(started(self.config.env, self.make_env)) as env:
            check_prompts(env, self.policies.renderer, self.panel, self.config.max_new_tokens)
            environments.check_dialects(env, self.policies.renderer)

    def load(self, run: RunFolder, which: str = "last") -> None:
        """Takes over what a run has learnt: policies (``which``: see ``checkpoint.pick``), and its best profiles."""
        self._told = {}
        if run.profiles_file.is_file():
            with reading(f"Cannot read the profiles in '{run.profiles_file}'", "Expected a file that a run wrote."):
                self._told = dict(json.loads(run.profiles_file.read_text(encoding="utf-8")))
        checkpoint.load_policies(checkpoint.pick(run.checkpoints, which), self.policies, self.names)

    def play(self) -> list[Trajectory]:
        """Plays every problem as the settings say."""
        return self._play(self._player)

    def sample(self, i: int) -> list[Trajectory]:
        """Plays every problem sampled, for the ``i``-th time."""
        seed = self.config.seed + VOTE_SEEDS * (i + 1)
        return self._play(dataclasses.replace(self._player, sampling=sampling(self.config), seed=seed))

    def exchange(self, agents: Sequence[str], played: Sequence[Trajectory]) -> list[Trajectory]:
        """Plays every problem once more, with these agents' words taken from other problems.

        Args:
            agents: Whose words.
            played: What :meth:`play` has returned.

        Raises:
            ConfigError: One of them never spoke, or there are fewer than two problems.
        """
        exchanging = self._player
        for agent in agents:
            exchanging = exchanging.exchanging(agent, played)
        return self._play(exchanging)

    def _play(self, by: Player) -> list[Trajectory]:
        self.waited, began = [], time.perf_counter()

        def ended(trajectory: Trajectory) -> None:
            nonlocal began
            now = time.perf_counter()
            self.waited += [] if trajectory.infra else [now - began]
            began = now

        return by.play(told(self.panel, [self._told]), ended)


def score(played: Sequence[Trajectory]) -> float:
    """Averages the outcomes of what was played, outages left out."""
    return runs.estimate(records(played)).mean
