"""Draws prompts, cuts them into chunks, settles episodes that errors ended, and computes metrics of episodes.

A chunk's episodes are the same for every player, on every machine and every time. What is sampled for a row does
not depend on its batch, but its log-probabilities do, in their last bits. The episodes of a chunk are always decoded
together, and with nothing else. So a chunk follows from the run's settings, the versions of the policies and what
stands in it: it can be dealt to any rank or worker, and be played again where one has died.

A text's fault gets the worst return. Infrastructure errors are excluded from update, groups, scores and metrics, and
counted. Whose fault it was stands in the record (``core.types.Fault``). Too many are an error, never a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from marft_algos import seeds
from marft_algos.engines.base import EngineError
from marft_algos.types import Keep, StopReason, Trajectory
from marft_envs.core.types import Episode, LayerRecord
from marft_envs.errors import MarftError

if TYPE_CHECKING:
    from marft_algos.config.settings import TrainConfig
    from marft_algos.credit.diagnostics import Judged

NAMED = 10
"""Problems that a note names."""
TASK = -2
"""How ``Episode.cuts`` calls the task's own text."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Episodes to play: one seed each, and the options of ``reset``."""

    seeds: list[int]
    options: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.seeds)

    def repeated(self, times: int) -> Prompts:
        """Repeats each prompt in a row: groups of episodes."""
        each = [i for i in range(len(self)) for _ in range(times)]
        return Prompts([self.seeds[i] for i in each], [self.options[i] for i in each])


@dataclass(frozen=True, slots=True)
class ProblemSplit:
    """Where a run's problems come from: a held-out evaluation set, and what is left to train on."""

    held_out: Prompts
    remaining: tuple[str, ...] | None
    """Task ids to train on when training and evaluation share one data set; None: the environment draws."""
    apart: bool = False
    """Whether nothing in the evaluation set is trained on; without a split, or lists of ids to tell, an environment is
    evaluated on draws of what it trains on."""
    reserved: frozenset[str] = frozenset()
    """Task ids that nobody may learn from: of the whole test split, for a later evaluation may use more of it."""

    def train(self, seed: int, iteration: int, n: int, refill: int = 0) -> Prompts:
        """Draws the prompts of one training iteration; ``refill``: further, fresh ones."""
        rng = seeds.generator(seeds.training_problems(seed, iteration, refill))
        drawn = [int(s) for s in rng.integers(2**31, size=n)]
        if self.remaining is None:
            return Prompts(drawn, [{} for _ in drawn])
        return Prompts(drawn, [{"task_id": self.remaining[i]} for i in rng.integers(len(self.remaining), size=n)])


CHUNK = 8
"""Episodes of a chunk where prompts are shared out on CPUs, if the settings do not say; on GPUs at least so many."""


def chunk_of(config: TrainConfig, players: int, *, on_gpus: bool) -> int:
    """Returns the episodes of a chunk where so many players share an iteration."""
    size = chunk_size(config.episodes_per_iteration, players, config.engine_batch)
    return config.chunk or (size if on_gpus else CHUNK)


def chunk_size(episodes: int, players: int, most: int) -> int:
    """Returns how many episodes GPUs that share an iteration decode together by default: a whole share.

    Args:
        episodes: Of the iteration; a step takes a GPU about as long for 8 rows as for 64.
        players: Reduction slots or workers, as the settings name them: weights depend on it.
        most: Rows that are decoded together.
    """
    return max(min(-(-episodes // max(players, 1)), most), CHUNK)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive episodes of an iteration, whole groups."""

    prompts: Prompts
    iteration: int
    """Seeds depend on it; ``seeds.EVALUATION``: of the held-out evaluation set, played as at evaluation."""
    first: int = 0
    """Number of its first episode among those of the iteration."""
    refill: int = 0
    place: int = 0
    """Among the chunks of its iteration."""
    group_size: int = 1
    keep: Keep = "nothing"
    """States that replays will begin at."""
    judged: int = 0
    """Turns of so many of its first episodes are judged by replays (``diagnostics.judge``)."""


@dataclass(slots=True)
class Played:
    """What a chunk came to. Episodes that a text ended are not settled with those of other chunks yet."""

    trajectories: list[Trajectory]
    """In the chunk's order, with what the credit rule's replays credited their turns with."""
    kept: frozenset[int]
    """Numbers of the episodes whose groups the algorithm wants."""
    judged: Sequence[Judged] = ()
    branches: int = 0
    """How many replays there were, their episodes' costs included in ``trajectories``."""
    lost: Sequence[Episode] = ()
    """Replays lost to infrastructure errors."""
    engine: Mapping[str, float] = field(default_factory=dict)
    """What a worker's engine counted meanwhile."""
    player: str = ""
    """Rank or worker that played it, and its machine: ``rank 1 on HOST``."""
    seconds: float = 0.0
    """That it took."""


def cut(batch: Prompts, size: int, iteration: int, *, first: int = 0, group_size: int = 1, **rest: Any) -> list[Chunk]:
    """Cuts prompts into chunks.

    Args:
        batch: What is to be played.
        size: Episodes of a chunk, rounded up to whole groups; 0: one chunk.
        iteration: See ``Chunk``, as for what follows.
        first: Number of the first episode.
        group_size: Episodes of one start, which stay together.
        **rest: Other fields of the chunks; ``judged`` counts episodes of the iteration.
    """
    size = -(-size // group_size) * group_size or max(len(batch), 1)
    judged = rest.pop("judged", 0)
    chunks = []
    for place, start in enumerate(range(0, len(batch), size)):
        part = Prompts(batch.seeds[start : start + size], batch.options[start : start + size])
        few = min(max(judged - first - start, 0), len(part))
        chunks.append(Chunk(part, iteration, first + start, place=place, group_size=group_size, judged=few, **rest))
    return chunks


def lost(chunk: Chunk, env_id: str, why: str) -> Played:
    """Returns what a chunk came to that nobody could play: episodes lost to an infrastructure error.

    Args:
        chunk: Whose episodes they are.
        env_id: Of the environment.
        why: Stands in their records.
    """
    trajectories = []
    for i, (seed, options) in enumerate(zip(chunk.prompts.seeds, chunk.prompts.options, strict=True)):
        task = str(options.get("task_id", ""))
        episode = Episode(env_id, seed, task, (), [], [], [], stop_reason=f"error: lost: {why}", fault="machine")
        episode.options, episode.index = dict(options), i
        number = chunk.first + i
        trajectories.append(Trajectory(episode, (), number, number // chunk.group_size))
    return Played(trajectories, frozenset(t.number for t in trajectories))


# Ended by errors ------------------------------------------------------------------------------------------


class StoppedError(MarftError, RuntimeError):
    """Episodes failed in a way that makes no number out of the rest. The run's state is whole, and can be resumed."""


class InfrastructureError(StoppedError, EngineError):
    """Too many episodes were lost to faults of engine, world or machine."""


class TaskError(StoppedError):
    """The code of a task raised on every episode, or on any where ``on_task_error`` is ``stop``."""


class ErrorLimits(Protocol):
    """Says how many episodes a run may lose."""

    @property
    def max_error_rate(self) -> float:
        """Returns the largest share of episodes that may be lost."""

    @property
    def on_task_error(self) -> Literal["worst", "stop"]:
        """Returns what an exception of a task's code does."""


def whole(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Leaves out the episodes lost to infrastructure errors: the others are learnt from and scored."""
    return [t for t in played if not t.infrastructure_error]


def counts(played: Sequence[Trajectory]) -> dict[str, float]:
    """Counts episodes that errors ended: of the infrastructure, of the task's code (``task_errors``), or any."""
    lost = sum(t.infrastructure_error for t in played)
    return {
        "failed": sum(bool(t.fault) for t in played) / len(played),
        "infrastructure_errors": lost,
        "infrastructure_error_rate": lost / len(played),
        "task_errors": sum(bool(t.episode.task_error) for t in played),
    }


def settle(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Gives those that a text ended no more than the lowest return of the others that were played with them.

    The environment has given them the task's ``worst_return``, or at most 0; the rest is booked at the last layer. The
    agents there get no more than 0, and than their lowest rewards elsewhere, by rewards of their own: where
    agents are rivals, a broken game is no draw. Where nobody's success is judged, theirs is not either: the return
    counts.
    """
    others = [t for t in played if not t.fault]
    return [_settled(t, others) if t.fault == "text" else t for t in played]


def _settled(t: Trajectory, others: Sequence[Trajectory]) -> Trajectory:
    owed = min([t.score, *(other.score for other in others)]) - t.score
    layers = list(t.layers)
    if layers:
        last = layers[-1]
        agents = dict(last.agent_rewards)
        for agent in {t.transitions[i].agent for i in last.turns}:
            earned = _agent_reward(t, agent)
            if missing := min([earned, 0.0, *(_agent_reward(other, agent) for other in others)]) - earned:
                agents[agent] = agents.get(agent, 0.0) + missing
        layers[-1] = replace(last, team_reward=last.team_reward + owed, agent_rewards=agents)
    unjudged = bool(others) and all(other.success is None for other in others)
    return t.with_rewards(layers, [turn.turn.reward for turn in t.transitions], None if unjudged else t.success)


def _agent_reward(t: Trajectory, agent: str) -> float:
    """Sums the rewards of this agent alone."""
    return sum(layer.agent_rewards.get(agent, 0.0) for layer in t.layers)


def check(
    played: Sequence[Trajectory],
    limits: ErrorLimits,
    what: str,
    branches: int = 0,
    lost_branches: Sequence[Episode] = (),
) -> None:
    """Refuses to make numbers of episodes of which too many failed.

    Args:
        played: Of an iteration, or of an evaluation.
        limits: The run's settings.
        what: What they are of, for the message.
        branches: How many branches were played of them.
        lost_branches: Those that were lost.

    Raises:
        InfrastructureError: More than ``max_error_rate`` of them were lost, of them and their branches, or all.
        TaskError: The task's code raised on all of them, or on any where ``on_task_error`` is ``stop``.
    """
    lost = [t.episode for t in played if t.infrastructure_error]
    _check_share(lost, len(played), limits, what)
    _check_share([*lost, *lost_branches], len(played) + branches, limits, f"{what}, branches included,")
    errors = [t.episode.task_error for t in played if t.episode.task_error]
    if errors and len(errors) == len(played):
        raise TaskError(f"The task's code raised on all {len(played)} episodes of {what}; the first: {errors[0]}.")
    if errors and limits.on_task_error == "stop":
        raise TaskError(
            f"The task's code raised on {len(errors)} of the {len(played)} episodes of {what}; the first: {errors[0]}. "
            "With on_task_error=worst such a text gets the worst return, and the run goes on."
        )


def check_any(played: Sequence[Trajectory]) -> None:
    """Refuses a batch of which nothing is left.

    Raises:
        InfrastructureError: Every episode was lost, so the fault is in the set-up and not in an episode.
    """
    if played and all(t.infrastructure_error for t in played):
        raise InfrastructureError(f"All {len(played)} episodes failed ({blamed([t.episode for t in played])}).")


def _check_share(lost: Sequence[Episode], of: int, limits: ErrorLimits, what: str) -> None:
    if lost and (len(lost) > limits.max_error_rate * of or len(lost) == of):
        raise InfrastructureError(
            f"{len(lost)} of the {of} episodes of {what} were lost to infrastructure errors ({blamed(lost)}). "
            f"At most a share of {limits.max_error_rate:g} may be (max_error_rate), and never all."
        )


def blamed(lost: Sequence[Episode]) -> str:
    """Says whose faults these were, and the first of them: ``2 engine, 1 world; the first: …``."""
    kinds = ", ".join(f"{n} {fault}" for fault, n in Counter(e.fault for e in lost).most_common())
    first = lost[0]
    detail = f" ({first.info['world_error']})" if "world_error" in first.info else ""
    return f"{kinds}; the first: {first.stop_reason}{detail}"


# Numbers ---------------------------------------------------------------------------------------------


def summary(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Summarises episodes: return, success, what the task measured, how long each agent's replies are.

    Tokens are of all of them (``tokens``: sampled; ``tokens_processed``: prompts, too; of these ``tokens_cached`` were
    not read again), and how many failed is counted; the other numbers are of those without infrastructure errors. A
    ``critical_path`` and its prefill are means over episodes, in tokens.
    """
    kept = whole(trajectories)
    turns = [t for trajectory in kept for t in trajectory.transitions]
    every = [t for trajectory in trajectories for t in trajectory.transitions]
    metrics: dict[str, float] = {
        "episodes": len(trajectories),
        "tokens": sum(len(t.reply.action_ids) for t in every),
        "tokens_processed": sum(len(t.request.prompt_ids) + len(t.reply.action_ids) for t in every),
        "tokens_cached": sum(t.reply.kept for t in every),
        "return": sum(t.score for t in kept) / len(kept),
        "turns": len(turns) / len(kept),
        "critical_path": sum(t.critical_path for t in kept) / len(kept),
        "critical_path_prefill": sum(t.episode.critical_prefill for t in kept) / len(kept),
        "prompts_truncated": sum(turn.max_chars is not None for t in kept for turn in t.episode.turns),
        "prompts_rewritten": sum(map(_rewritten, kept)),
        **counts(trajectories),
    }
    if judged := [t.success for t in kept if t.success is not None]:
        metrics["success"] = sum(judged) / len(judged)
    for name in sorted({key for t in kept for key in t.metrics}):
        values = [t.metrics[name] for t in kept if name in t.metrics]
        metrics[f"task/{name}"] = sum(values) / len(values)
    for agent in sorted({t.agent for t in turns if t.reply.action_ids}):  # hosted ones have no tokens here
        own = [t for t in turns if t.agent == agent]
        metrics[f"agent/{agent}/length"] = sum(len(t.reply.action_ids) for t in own) / len(own)
        metrics[f"agent/{agent}/truncated"] = sum(t.reply.stop_reason is StopReason.LENGTH for t in own) / len(own)
    return metrics


def _rewritten(trajectory: Trajectory) -> int:
    """Counts prompts that do not begin with what their agent last read and said, as it was sampled."""
    count, last = 0, dict[tuple[str, str], list[int]]()
    for t in trajectory.transitions:
        read, (*prompt,) = last.get((t.agent, t.policy)), t.request.prompt_ids
        if prompt:
            count += read is not None and prompt[: len(read)] != read
            last[t.agent, t.policy] = [*prompt, *t.reply.action_ids[:-1]]
    return count


def too_long(played: Sequence[Trajectory], named: set[str]) -> str:
    """Returns a note on problems whose own text was cut in these episodes; "" for none.

    Args:
        played: The episodes.
        named: Problems that were named already; gets the others.
    """
    names = [t.episode.task_id or f"seed {t.episode.seed}" for t in played if _shortened(t.episode)]
    fresh = [name for name in dict.fromkeys(names) if name not in named]
    named.update(fresh)
    if not fresh:
        return ""
    more = f" and {len(fresh) - NAMED} more" if len(fresh) > NAMED else ""
    return (
        f"note: too long for the model's context, so their texts were cut at the end: {', '.join(fresh[:NAMED])}"
        f"{more}. Leave them out, lower --max-new-tokens, or choose a model with a longer context."
    )


def _shortened(episode: Episode) -> bool:
    """Whether the task's text was cut in a prompt because of the context, rather than by the environment's limit."""
    by_context = {turn.index for turn in episode.turns if turn.max_chars is not None}
    return any(cut["seen"] == TASK and cut["turn"] in by_context for cut in episode.cuts)


def permuted(trajectories: Sequence[Trajectory], rng: np.random.Generator) -> list[Trajectory]:
    """Gives every episode, at its end, another one's return of the iteration, and its verdict: a control."""
    paid = []
    for trajectory, other in zip(trajectories, rng.permutation(len(trajectories)), strict=True):
        earned = trajectories[other]
        layers = [LayerRecord(layer.index, layer.round, layer.turns) for layer in trajectory.layers]
        if layers:
            layers[-1].team_reward = earned.score
        paid.append(trajectory.with_rewards(layers, [0.0] * len(trajectory.transitions), earned.success))
    return paid
