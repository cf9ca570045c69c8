"""Demonstrations: episodes of experts, or recorded ones, as trajectories to imitate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from marft_algos import seeds
from marft_algos.models.chat import Renderer
from marft_algos.rollout.episodes import Prompts
from marft_algos.types import Generation, GenerationRequest, StopReason, Trajectory, Transition
from marft_envs import FlexEnv
from marft_envs.core.partners import expert_of
from marft_envs.core.types import Episode, TurnRecord
from marft_envs.errors import ConfigError, DataError, UnsolvedError
from marft_envs.records import experts
from marft_envs.records.chats import PROMPT, holds_rows, read_rows
from marft_envs.records.trajectory import Prompt, ReplayError, prompts, read

SHOWN = 3
"""Rejected demonstrations that an error names for each reason."""


Found = list[tuple[Episode, list[Transition]]] | str
"""Episodes that are learnt from together, with their turns as training has them; or why they are left out."""


def recorded(source: str) -> list[tuple[str, Episode]]:
    """Reads the episodes of a file, or everything that a run has recorded while training, each with a name.

    Raises:
        ConfigError: There is nothing there.
        DataError: It holds no episode, or cannot be read.
    """
    path = Path(source)
    # Evaluations are of held-out problems.
    files = sorted((path / "episodes").glob("train-*.jsonl")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        run = Path("runs") / source
        meant = f" Did you mean '{run}'?" if (run / "episodes").is_dir() else ""
        raise ConfigError(
            f"There are no demonstrations at '{source}'. Expected 'expert', a JSONL file of episodes, or the folder"
            f" of a run that recorded some.{meant}"
        )
    form = (
        "one recorded episode a line, as a run writes them (runs/NAME/episodes), marft eval --out, and"
        " marft_envs.records.trajectory.write; or one reply a line, as marft traces --sft writes them"
    )
    try:
        found = [
            (f"{episode.task_id} (no. {number} of {file.name})", episode)
            for file in files
            for number, episode in enumerate(read_rows(file) if holds_rows(file) else read(file), 1)
        ]
    except DataError as error:
        said = str(error).rstrip(".")
        cut = "To drop a last line that was cut off: head -n -1 FILE"
        raise DataError(f"{said}{'' if said.endswith('?') else '.'} Expected {form}. {cut}") from error
    if not found:
        raise DataError(f"'{source}' holds no episode. Expected {form}.")
    return found


class Demonstrations:
    """Where demonstrations come from, and how they become trajectories.

    Args:
        source: ``expert``, a JSONL file of episodes, or the folder of a run.
        make_env: Makes the environment, in which episodes are played, or played again to see agents' prompts.
        renderer: Who plays which policy, and how it is spoken to.
        max_new_tokens: Longest reply that an agent will be allowed.
        seed: The run's.
        held_out: Task ids of problems that nobody may learn from.

    Raises:
        ConfigError: There is no such source.
        DataError: It holds no episode that succeeded.
    """

    what: ClassVar[str] = "demonstrations"
    """Of what several are drawn, for messages."""

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
        self._named: dict[str, list[str]] = {}
        self._counted: set[tuple[str, str]] = set()
        self._told: set[str] = set()
        self._first: list[Trajectory] | None = None
        self._recorded: list[tuple[str, Episode]] | None = None
        self._open(source)

    def _open(self, source: str) -> None:
        """Reads what is recorded."""
        if source == "expert":
            expert_of(self._env)
            return
        self._recorded, episodes = [], recorded(source)
        for name, episode in episodes:
            row = PROMPT in episode.info and self._renderer.plays(episode.turns[0].agent)
            if row and not self._renderer.trains(self._renderer.policy_of(episode.turns[0].agent)):
                self._leave_out("a row of an agent that is not trained", name)
            elif episode.success and not episode.failed:
                self._recorded.append((name, episode))
            else:
                self._leave_out("no success", name)
        if not self._recorded:
            raise DataError(
                f"None of the {len(episodes)} episodes at '{source}' succeeded: there is nothing to imitate. Name"
                " others (--demonstrations), such as the task's own expert's (expert), or those of a run that records"
                " more of its own (--record-every 1 --record-episodes 64)."
            )

    def check(self, prompts: Prompts) -> None:
        """Draws the demonstrations of the first iteration, and keeps them: what nobody can learn from shows at once.

        Args:
            prompts: Of the first iteration.

        Raises:
            ConfigError: As ``draw``.
            DataError: As ``draw``.
        """
        self._first = self.draw(prompts, 0, 0)

    def draw(self, prompts: Prompts, iteration: int, version: int) -> list[Trajectory]:
        """Returns demonstrations to learn from in an iteration: at most one for each prompt.

        Args:
            prompts: The starts; recorded episodes have their own, and only their number counts.
            iteration: From 0.
            version: Of the policies, which what is said is booked to.

        Raises:
            DataError: None of them can be learnt from; the message says why.
        """
        first, self._first = self._first, None
        if iteration == 0 and first:  # `check` has drawn them
            return first
        trajectories: list[Trajectory] = []
        why: dict[str, list[str]] = {}
        groups = 0
        for name, found in self._drawn(prompts, iteration, version):
            if isinstance(found, str):
                self._leave_out(found, name)
                why.setdefault(found, []).append(name)
                continue
            for episode, turns in found:
                trajectories.append(Trajectory(episode, turns, number=len(trajectories), group=groups))
            groups += 1
        if not trajectories:
            raise DataError(
                f"None of {sum(map(len, why.values()))} {self.what} can be learnt from: {reasons(why)}. Expected"
                " successful episodes of this environment's training problems, with replies within --max-new-tokens and"
                " prompts within the model's context; or more of them (--episodes-per-iteration, --warm-episodes)."
            )
        return trajectories

    def _drawn(self, prompts: Prompts, iteration: int, version: int) -> Iterator[tuple[str, Found]]:
        """What to learn from in an iteration, each with its name: played by the expert, or recorded."""
        if self._recorded is None:
            yield from self._played(prompts, version)
            return
        for name, episode in self._from(iteration * len(prompts), len(prompts), len(self._recorded)):
            yield name, self._unfit(episode) or self._learnt(episode, self._heard(episode), version)

    def _leave_out(self, reason: str, name: str) -> None:
        """Counts a demonstration that is left out, a recorded one once, and notes its name."""
        if self._recorded is not None and (reason, name) in self._counted:
            return
        self._counted.add((reason, name))
        self.rejected[reason] += 1
        self._named.setdefault(reason, []).append(name)

    def news(self) -> str:
        """Says what was left out for reasons that have not been named yet; empty if nothing was."""
        fresh = {reason: names for reason, names in self._named.items() if reason not in self._told}
        self._told |= fresh.keys()
        return f"left out of what is learnt from: {reasons(fresh)}" if fresh else ""

    def summary(self) -> str:
        """Says how many were left out since the run began, by reason; empty if none was."""
        if not self.rejected:
            return ""
        return f"left out in all: {', '.join(f'{reason} ({n})' for reason, n in self.rejected.most_common())}"

    def metrics(self) -> dict[str, float]:
        """Counts what was left out since the run began, by reason."""
        reasons = {f"rejected/{reason}": float(n) for reason, n in self.rejected.items()}
        return {"rejected": float(self.rejected.total()), **reasons}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _played(self, prompts: Prompts, version: int) -> Iterator[tuple[str, Found]]:
        """Plays the expert's episodes."""
        for seed, options in zip(prompts.seeds, prompts.options, strict=True):
            try:
                episode, shown = experts.demonstrate(self._env, seed, options)
            except UnsolvedError:
                yield self._env.unwrapped.task.task_id, "nobody knows its solution"
                continue
            yield episode.task_id, self._unfit(episode) or self._learnt(episode, shown, version)

    def _learnt(self, episode: Episode, prompts: Sequence[Prompt] | str, version: int) -> Found:
        """What there is to learn from an episode whose turns had these prompts, if it could be played."""
        turns = prompts if isinstance(prompts, str) else self._transitions(episode, prompts, version)
        most = self._env.unwrapped.rules.max_path
        if most is not None and not isinstance(turns, str) and Trajectory(episode, turns).critical_path > most:
            return f"a critical path of more than {most} tokens"
        return turns if isinstance(turns, str) else [(episode, turns)]

    def _heard(self, episode: Episode) -> list[Prompt] | str:
        """Plays a recorded episode again; returns the prompt of each turn, or why it cannot be played."""
        if PROMPT in episode.info:
            known = episode.turns[0].agent in self._env.possible_agents
            return [episode.info[PROMPT]] if known else f"a reply of '{episode.turns[0].agent}', who is not in the team"
        if episode.seed is None:
            return "recorded without a seed, it cannot be played again"
        try:
            return prompts(episode, self._env)
        except (ReplayError, ConfigError, DataError):  # the last two: of a start that this environment does not know
            again = self._env.unwrapped.episode
        if episode.env_id != again.env_id:
            return f"an episode of {episode.env_id}"
        alike = [turn.text for turn in again.turns] == [turn.text for turn in episode.turns]
        if alike and episode.success and again.success is False:
            return "the grader rejects it"
        return "played again it is another episode"

    def _from(self, position: int, n: int, size: int) -> list[Any]:
        """Returns n of ``size`` from a position on; each pass through them has an order of its own."""
        found: list[Any] = []
        for through in range(position // size, (position + n - 1) // size + 1):
            rng = seeds.generator(seeds.demonstrations(self._seed, through))
            listed, order = self._listed(rng), rng.permutation(size)
            first, last = position - through * size, position + n - through * size
            found += [listed[int(i)] for i in order[max(first, 0) : last]]
        return found

    def _listed(self, rng: np.random.Generator) -> Sequence[Any]:
        """All of them, for one pass."""
        assert self._recorded is not None
        return self._recorded

    def _unfit(self, episode: Episode) -> str:
        """Says why an episode is nothing to imitate, if so."""
        if episode.failed or not episode.success:
            return "no success"
        if episode.task_id in self._held_out:
            return "a held-out problem"
        if any(map(_cut, episode.turns)):
            return "a reply that was cut"
        return "words that route nobody" if episode.invalid else ""

    def _transitions(self, episode: Episode, prompts: Sequence[Prompt], version: int) -> list[Transition] | str:
        """Returns an episode's turns as training has them; or why they cannot be learnt from."""
        transitions = []
        for turn, (messages, tools) in zip(episode.turns, prompts, strict=True):
            policy = self._renderer.policy_of(turn.agent) if self._renderer.plays(turn.agent) else ""
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


def reasons(why: Mapping[str, Sequence[str]]) -> str:
    """Says what was left out: how many for each reason, and the names of the first."""
    return "; ".join(
        f"{key} ({len(names)}, such as {', '.join([*dict.fromkeys(names)][:SHOWN])})" for key, names in why.items()
    )
