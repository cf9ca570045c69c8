"""Evaluates any team in a folder of its own: many samples of a problem, in parallel, to be gone on with when stopped.

eval.json        what is evaluated; a folder is gone on with by the same settings, agents and problems only
episodes.jsonl   one line per episode as soon as it has ended, in the order of the evaluation set when all have
replies.jsonl    every reply of a hosted model, and what it cost
results.json     scores, intervals, infrastructure errors, tokens, costs
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_algos.config.evaluation import EvalConfig
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.ledger import Ledger
from marft_algos.evaluation import records
from marft_algos.evaluation.environments import check_prompts, env_factory, evaluation_set, held_out_kwargs, started
from marft_algos.evaluation.play import Player
from marft_algos.evaluation.players import Players
from marft_algos.models.chat import Renderer
from marft_algos.rollout.episodes import (
    ErrorLimits,
    InfrastructureError,
    Prompts,
    blamed,
    check,
    counts,
    settle,
    summary,
    too_long,
    whole,
)
from marft_algos.runs import disk, intervals
from marft_algos.types import SamplingParams, Trajectory
from marft_envs import FlexEnv
from marft_envs.core.types import AgentSpec, Episode, optional
from marft_envs.errors import ConfigError, reading
from marft_envs.problems.rows import digest
from marft_envs.records.trajectory import read

if TYPE_CHECKING:
    from marft_algos.models.policy import PolicySet

_SHOWN = ("env", "env_kwargs", "models", "engines", "max_new_tokens", "temperature", "seed", "problems", "samples")
"""Settings that results repeat; all that are compared stand in eval.json."""
_OF_ENGINE = ("timeout", "retries", "concurrency", "key_env", "price_in", "price_out", "max_cost")
"""Of an engine's table what changes no reply."""


@dataclass(frozen=True, slots=True)
class ResumableEvaluation:
    """What is evaluated, and where its records lie."""

    config: EvalConfig
    players: Players
    problems: Prompts
    team: Sequence[AgentSpec]
    """The agents, with their profiles; these may come from a file that has changed meanwhile."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The digest of what problems are drawn from, a file as well."""

    @property
    def root(self) -> Path:
        """Its folder."""
        return Path(self.config.out)

    @property
    def evaluation_set(self) -> Prompts:
        """The episodes, the samples of a problem side by side."""
        return self.problems.repeated(self.config.samples)

    episodes_file = disk.Inside("episodes.jsonl")
    replies_file = disk.Inside("replies.jsonl")
    results_file = disk.Inside("results.json")

    def table(self) -> dict[str, Any]:
        """Returns what makes it this evaluation and no other: what changes prompts or replies."""
        players = self.players.table()
        engines = {
            agent: {key: value for key, value in engine.items() if key not in _OF_ENGINE}
            for agent, engine in players["engines"].items()
        }
        starts = json.dumps([self.problems.seeds, self.problems.options], default=str)
        return {
            "env": self.config.env,
            "env_kwargs": self.config.env_kwargs,
            "temperature": None if self.config.greedy else self.config.temperature or 1.0,
            "seed": self.config.seed,
            **players,
            "engines": engines,
            "problems": len(self.problems),
            "starts": hashlib.sha256(starts.encode()).hexdigest()[:16],
            "samples": self.config.samples,
            "agents": [asdict(agent) for agent in self.team],
            "data": {key: value for key, value in self.data.items() if key not in ("name", "some")},
        }

    def open(self) -> None:
        """Makes the folder, or goes on with it.

        Raises:
            ConfigError: It holds something else, or another evaluation.
            RunError: It cannot be written.
        """
        file, text = self.root / "eval.json", json.dumps(self.table(), indent=1, default=str) + "\n"
        if self.root.is_file() or (self.root.is_dir() and any(self.root.iterdir()) and not file.is_file()):
            raise ConfigError(f"'{self.root}' exists and is no evaluation. Choose another folder: --out DIR")
        if not file.is_file():
            with disk.writing(self.root):
                self.root.mkdir(parents=True, exist_ok=True)
            disk.write_whole(file, text)
        now = json.loads(text)
        with reading(f"{file} cannot be read", "Choose another folder: --out DIR"):
            before = dict(json.loads(file.read_text(encoding="utf-8")))
        if differ := [key for key in now if before.get(key) != now[key]]:
            values = f"{before.get(differ[0])!r}; now {now[differ[0]]!r}"
            shown = f" ({values})" if len(values) <= 200 else ""  # profiles are long
            raise ConfigError(
                f"'{self.root}' holds an evaluation with another '{differ[0]}'{shown}."
                " Go on with it by the same settings, or choose another folder: --out DIR"
            )

    def finished(self) -> dict[int, Episode]:
        """Returns the ended episodes by their position, without those lost to infrastructure errors."""
        if not self.episodes_file.is_file():
            return {}
        disk.fix(self.episodes_file)
        return {episode.index: episode for episode in read(self.episodes_file) if not episode.infrastructure_error}


def run(
    config: EvalConfig,
    command: str,
    opened: Callable[[ResumableEvaluation], None],
    on_progress: Callable[[int, int, int], None],
) -> tuple[ResumableEvaluation, Mapping[str, Any], str]:
    """Plays a team, or what is left to play; returns the evaluation, its results, and what ``too_long`` says of it.

    Args:
        config: Of the evaluation; its folder, ``out``, is named.
        command: Stands in the folder's lock while it is played.
        opened: Called with the evaluation when its folder is open.
        on_progress: See ``play``.

    Raises:
        ConfigError: Settings that cannot work; nothing has been written.
        InfrastructureError, TaskError: See ``play``.
    """
    players, make_env = seated(config)
    with closing(started(config.env, make_env)) as env:
        problems, team, data = _problems(config, env), env.unwrapped.team, digest(env.unwrapped.task)
        policies = players.load(config)
        check_prompts(env, _renderer(players, policies), problems, players.max_new_tokens)
    evaluation = ResumableEvaluation(config, players, problems, team, data)
    evaluation.open()
    opened(evaluation)
    lent = playing(config, players, make_env, policies, evaluation.replies_file)
    with disk.held(evaluation.root, command), lent as (player, ledger):
        played = play(evaluation, player, on_progress)
        return evaluation, results(evaluation, played, ledger), too_long(played, set())


def _renderer(players: Players, policies: PolicySet | None) -> Renderer:
    names = {agent: agent for agent in (*players.models, *players.hosted, *players.functions)}
    return Renderer({}, names) if policies is None else policies.renderer


@contextmanager
def playing(
    config: EvalConfig, players: Players, make_env: Callable[[], FlexEnv], policies: PolicySet | None, replies: Path
) -> Iterator[tuple[Player, Ledger]]:
    """Lends what plays episodes, and the ledger of hosted models' replies, in the file ``replies``.

    Args:
        config: Of the evaluation.
        players: Who plays.
        make_env: What ``seated`` has returned.
        policies: What ``players.load`` has returned.
        replies: Made if it is not there.
    """
    sampling = SamplingParams(players.max_new_tokens, config.temperature or 1.0, greedy=config.greedy)
    with closing(Ledger(replies)) as ledger, closing(players.engine(config, policies, ledger)) as engine:
        renderer = _renderer(players, policies)
        yield Player(make_env, renderer, engine, sampling, config.seed, config.jobs, config), ledger


def seated(config: EvalConfig) -> tuple[Players, Callable[[], FlexEnv]]:
    """Returns who plays the agents of an evaluation's environment, and what makes this environment for them.

    Raises:
        ConfigError: See ``Players.of``.
    """
    kwargs = held_out_kwargs(config.env, {}, config.env_kwargs)  # a split that is asked for counts
    with closing(started(config.env, env_factory(config.env, kwargs))) as env:
        players = Players.of(config, env)
    reply_tokens = players.max_new_tokens if players.spoken["show_budget"] else None
    return players, env_factory(config.env, kwargs, reply_tokens)


def _problems(config: EvalConfig, env: FlexEnv) -> Prompts:
    """Returns the problems: ids where the task lists some, else draws that are the same every time."""
    episodes, listing = config.episodes or TrainConfig.eval_episodes, optional(env.unwrapped.task, "evaluation_set")
    ids = None if listing is None else listing(episodes)
    return evaluation_set(episodes if ids is None else len(ids), ids)


def play(
    evaluation: ResumableEvaluation, player: Player, on_progress: Callable[[int, int, int], None]
) -> list[Trajectory]:
    """Plays what is left of an evaluation; returns all of its episodes, in order.

    Args:
        evaluation: Its folder is open.
        player: Plays its episodes.
        on_progress: Called with (ended, all, lost) after every episode.

    Raises:
        InfrastructureError: More were lost to infrastructure errors than ``max_error_rate`` allows; the others are
            kept.
        TaskError: The task's code does not work.
    """
    evaluation_set = evaluation.evaluation_set
    done = evaluation.finished()
    ended = {number: Trajectory.of(episode) for number, episode in done.items()}
    left = [number for number in range(len(evaluation_set)) if number not in ended]
    with closing(player.stream(evaluation_set, left)) as stream:
        for trajectory in stream if left else ():
            ended[trajectory.number] = trajectory
            with disk.writing(evaluation.episodes_file), evaluation.episodes_file.open("a", encoding="utf-8") as sink:
                sink.write(json.dumps(_row(trajectory)) + "\n")
            lost = [t.episode for t in ended.values() if t.infrastructure_error]
            on_progress(len(ended), len(evaluation_set), len(lost))
            _check_lost(lost, player.limits, len(evaluation_set))
    played = settle([ended[number] for number in sorted(ended)])
    check(played, player.limits, "an evaluation")
    rows = "".join(json.dumps(_row(t)) + "\n" for t in played)
    disk.write_whole(evaluation.episodes_file, rows)
    return played


def results(evaluation: ResumableEvaluation, played: Sequence[Trajectory], ledger: Ledger) -> dict[str, Any]:
    """Returns scores with intervals, what was lost, and what it cost; writes them, too.

    ``average`` is the mean over problems of the mean of their samples (avg@k); ``pass`` holds pass@j and ``pass_hat``
    pass^j for powers of two and for k, over the problems of which j samples are left. Intervals are over problems.
    """
    rates = _rates(evaluation, played)
    average = [sum(samples) / len(samples) for samples in rates if samples]
    judged = all(t.success is not None for t in whole(played))
    hosted, table, k = evaluation.players.hosted, evaluation.table(), evaluation.config.samples
    usage = {agent: {**asdict(ledger.usage(agent)), "seconds": ledger.waited(agent)} for agent in hosted}
    content = {
        **{key: table[key] for key in _SHOWN},
        "average": asdict(intervals.mean(average)),
        "pass": {str(j): asdict(passed(rates, j)) for j in powers(k)} if judged else {},
        "pass_hat": {str(j): asdict(passed(rates, j, intervals.pass_hat_k)) for j in powers(k)} if judged else {},
        **{key: number for key, number in counts(played).items() if key in ("infrastructure_errors", "task_errors")},
        "metrics": {
            key: number
            for key, number in summary(played).items()
            if key.startswith(("task/", "return", "turns", "prompts_truncated", "tokens", "critical_path"))
        },
        "usage": usage,
        "cost": sum(used["cost"] for used in usage.values()),
    }
    disk.write_whole(evaluation.results_file, json.dumps(content, indent=1) + "\n")
    return content


def passed(
    rates: Sequence[Sequence[float]], k: int, chance: Callable[[int, int, int], float] = intervals.pass_at_k
) -> intervals.Interval:
    """Estimates pass@k, or pass^k with that for ``chance``, with its interval over problems.

    Args:
        rates: For each problem, 1 or 0 for each sample without an infrastructure error.
        k: Samples that one is allowed.
        chance: Of samples, those that are right, and k.
    """
    return intervals.mean([chance(len(s), int(sum(s)), k) for s in rates if len(s) >= k])


def _rates(evaluation: ResumableEvaluation, played: Sequence[Trajectory]) -> list[list[float]]:
    rates: list[list[float]] = [[] for _ in range(len(evaluation.problems))]
    for t in whole(played):
        rates[t.number // evaluation.config.samples].append(t.episode.score)
    return rates


def powers(k: int) -> list[int]:
    """Returns 1, 2, 4, … below k, and k."""
    return [*(1 << i for i in range(k.bit_length()) if 1 << i < k), k]


def _check_lost(lost: Sequence[Episode], limits: ErrorLimits, total: int) -> None:
    """Stops where infrastructure errors go on: what is left would be lost, too."""
    if lost and len(lost) > limits.max_error_rate * total:
        raise InfrastructureError(
            f"{len(lost)} of {total} episodes were lost to infrastructure errors ({blamed(lost)}), others not tried."
            f" At most a share of {limits.max_error_rate:g} may be. What has ended is kept: type the command again."
        )


def _row(trajectory: Trajectory) -> dict[str, Any]:
    return records.row(replace(trajectory, episode=replace(trajectory.episode, index=trajectory.number)))
