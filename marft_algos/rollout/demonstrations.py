"""Demonstrations: episodes of experts, or recorded ones, as trajectories to imitate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marft_algos import seeds
from marft_algos.models.chat import Renderer
from marft_algos.rollout.panel import Panel
from marft_algos.types import Generation, GenerationRequest, StopReason, Trajectory, Transition
from marft_envs import FlexEnv, experts
from marft_envs.errors import ConfigError, DataError, UnsolvedError
from marft_envs.trajectory import ReplayError, Told, read, told
from marft_envs.types import Episode, TurnRecord

SHOWN = 3
"""Rejected demonstrations that an error names for each reason."""


@dataclass(frozen=True, slots=True)
class _Demonstration:
    """An episode to imitate, or why it is none."""

    task_id: str
    reason: str
    """Why it is left out; empty if it is not."""
    episode: Episode | None = None
    heard: Sequence[Told] = ()
    """What the agent of each turn was told."""


class Demonstrations:
    """Where demonstrations come from, and how they become trajectories.

    Args:
        source: ``expert``, a JSONL file of episodes, or the folder of a run.
        make_env: Makes the environment, in which episodes are played, or played again to see what agents were told.
        renderer: Who plays which policy, and how it is spoken to.
        max_new_tokens: Longest reply that an agent will be allowed.
        seed: The run's.
        held_out: Task ids of problems that nobody may learn from.

    Raises:
        ConfigError: There is no such source.
        DataError: It holds no episode that succeeded.
    """

    def __init__(
        self,
        source: str,
        make_env: Callable[[], FlexEnv],
        renderer: Renderer,
        max_new_tokens: int,
        seed: int = 0,
        held_out: Collection[str] = (),
    ) -> None:
        self._held_out = frozenset(held_out)
        self._env, self._renderer, self._most, self._seed = make_env(), renderer, max_new_tokens, seed
        self.rejected: Counter[str] = Counter()
        """Reason -> demonstrations that were left out for it since the run began."""
        self._open(source)

    def _open(self, source: str) -> None:
        """Reads what is recorded."""
        self._recorded: list[Episode] | None = None
        if source == "expert":
            return
        episodes = self._read(source)
        self._recorded = [episode for episode in episodes if episode.success and not episode.failed]
        if not self._recorded:
            raise DataError(
                f"None of the {len(episodes)} episodes at '{source}' succeeded: there is nothing to imitate."
            )

    def draw(self, panel: Panel, iteration: int, version: int) -> list[Trajectory]:
        """Returns demonstrations to learn from in an iteration: at most one for each start of the panel.

        Args:
            panel: The starts; recorded episodes have their own, and only their number counts.
            iteration: From 0.
            version: Of the policies, which what is said is booked to.

        Raises:
            DataError: None of them can be learnt from; the message says why.
        """
        trajectories: list[Trajectory] = []
        why: dict[str, list[str]] = {}
        size = len(panel)
        source = self._played(panel) if self._recorded is None else self._again(self._from(iteration * size, size))
        for demonstration in source:
            episode, number = demonstration.episode, len(trajectories)
            turns: list[Transition] | str = demonstration.reason
            if episode is not None and not turns:
                turns = self._transitions(episode, demonstration.heard, version)
            if episode is None or isinstance(turns, str):
                self.rejected[str(turns)] += 1
                why.setdefault(str(turns), []).append(demonstration.task_id)
            else:
                trajectories.append(Trajectory(episode, turns, number=number, group=number))
        if not trajectories:
            raise none_left(size, "demonstrations", why)
        return trajectories

    def metrics(self) -> dict[str, float]:
        """Counts what was left out since the run began, by reason."""
        reasons = {f"rejected/{reason}": float(n) for reason, n in self.rejected.items()}
        return {"rejected": float(self.rejected.total()), **reasons}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _played(self, panel: Panel) -> Iterator[_Demonstration]:
        """Plays the expert's episodes."""
        for seed, options in zip(panel.seeds, panel.options, strict=True):
            try:
                episode, heard = experts.demonstrate(self._env, seed, options)
            except UnsolvedError:
                yield _Demonstration(self._env.unwrapped.task.task_id, "nobody knows its solution")
                continue
            yield _Demonstration(episode.task_id, self._unfit(episode), episode, heard)

    def _again(self, episodes: Sequence[Episode]) -> Iterator[_Demonstration]:
        """Plays recorded episodes again."""
        for episode in episodes:
            reason, heard = self._unfit(episode), list[Told]()
            if not reason:
                try:
                    heard = told(episode, self._env)
                except ReplayError:
                    reason = "played again it is another episode"
            yield _Demonstration(episode.task_id, reason, episode, heard)

    def _from(self, position: int, n: int) -> list[Episode]:
        """Returns n recorded episodes from a position on; each pass through them has an order of its own."""
        assert self._recorded is not None
        size, episodes = len(self._recorded), list[Episode]()
        for through in range(position // size, (position + n - 1) // size + 1):
            order = seeds.generator(seeds.demonstrations(self._seed, through)).permutation(size)
            first, last = position - through * size, position + n - through * size
            episodes += [self._recorded[int(i)] for i in order[max(first, 0) : last]]
        return episodes

    def _read(self, source: str) -> list[Episode]:
        """Reads the episodes of a file, or everything that a run has recorded while training."""
        path = Path(source)
        # Evaluations are of held-out problems.
        files = sorted((path / "episodes").glob("train-*.jsonl")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise ConfigError(
                f"There are no demonstrations at '{source}'. Expected 'expert', a JSONL file of episodes, or the folder"
                " of a run that recorded some."
            )
        return [episode for file in files for episode in read(file)]

    def _unfit(self, episode: Episode) -> str:
        """Says why an episode is nothing to imitate, if so."""
        if episode.failed or not episode.success:
            return "no success"
        if episode.task_id in self._held_out:
            return "a held-out problem"
        if any(map(_cut, episode.turns)):
            return "a reply that was cut"
        return "words that route nobody" if episode.invalid else ""

    def _transitions(self, episode: Episode, heard: Sequence[Told], version: int) -> list[Transition] | str:
        """Returns an episode's turns as training has them; or why they cannot be learnt from."""
        transitions = []
        for turn, (messages, tools) in zip(episode.turns, heard, strict=True):
            policy = self._renderer.policy_of(turn.agent)
            if policy not in self._renderer.policies:
                transitions.append(Transition(turn, trainable=False))
                continue
            chat = self._renderer.chat(policy)
            prompt = self._renderer.render(policy, messages, tools if chat.tools else ())
            cut = _cut(turn)
            reply = chat.reply_ids(turn.text)[: -1 if cut else None]
            if len(reply) > self._most:
                return f"a reply of more than {self._most} tokens"
            if len(prompt) + len(reply) > chat.context:
                return f"prompt and reply of more than {chat.context} tokens"
            stop = StopReason.LENGTH if cut else StopReason.EOS
            transitions.append(
                Transition(
                    turn,
                    request=GenerationRequest(policy, prompt, 0, turn.agent, messages),
                    reply=Generation(reply, np.zeros(len(reply), np.float32), stop, version, turn.text),
                    trainable=self._renderer.trains(policy),
                )
            )
        return transitions


def _cut(turn: TurnRecord) -> bool:
    """Whether a reply was as long as it might be, and not closed."""
    return (turn.extras or {}).get("stop_reason") == StopReason.LENGTH


def none_left(n: int, what: str, why: Mapping[str, Sequence[str]]) -> DataError:
    """Returns the error that nothing can be learnt from.

    Args:
        n: How many were looked at.
        what: What they are.
        why: Reason -> task ids of those that were left out for it.
    """
    reasons = "; ".join(f"{key} ({len(ids)}, such as {', '.join(ids[:SHOWN])})" for key, ids in why.items())
    return DataError(
        f"None of {n} {what} can be learnt from: {reasons}. Expected episodes of this environment, with replies within"
        " max_new_tokens and prompts within the model's context; what is imitated has to succeed."
    )
