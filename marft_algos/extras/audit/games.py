"""Small games whose episodes can be enumerated, each about one thing that an estimator may get wrong.

A game is played by ``FlexEnv`` like any task. Its agents have few words, and its rewards follow from what was said.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import resources
from typing import Any

import numpy as np

from marft_envs import AgentSpec, FlexEnv, Outcome, Router, View
from marft_envs.core.types import TurnRecord
from marft_envs.errors import ConfigError, did_you_mean

History = Sequence[tuple[str, str]]
"""Agents and what they said, in order."""
Rewards = Callable[[str, History], Outcome]
GO, STOP = "0", "1"


BINARY = ("0", "1")


@dataclass(frozen=True)
class AuditGame:
    """A game of a few turns.

    Attributes:
        about: What it tests, in one line.
        layers: Who acts next, given what was said; nobody ends the episode.
        outcome: Rewards after a layer, given the prompt and all that was said.
        agents: Names, in canonical order.
        words: What an agent can say; several words of one text are several tokens.
        prompts: Private facts, equally likely, one for each problem; the first agent alone sees them.
        rivals: Whether agents have rewards of their own instead of the team's.
        cut: Turns after which an episode is truncated; 0: it ends by itself.
        moved: How far the policies have moved since they sampled: added to every other logit, taken off the rest.
        kept: How likely an episode is kept, by its turns; else it is lost to an infrastructure error.
    """

    about: str
    layers: Callable[[History], Sequence[str]]
    outcome: Rewards
    agents: tuple[str, ...] = ("a_0", "b_0")
    words: Callable[[str], Sequence[str]] = lambda agent: BINARY
    prompts: tuple[str, ...] = ("",)
    rivals: bool = False
    cut: int = 0
    moved: float = 0.0
    kept: Callable[[int], Fraction] | None = None

    @property
    def ordinary(self) -> bool:
        """Whether it is sampled by the policies that learn, played to its end, and never lost."""
        return not (self.cut or self.moved or self.kept)

    def env(self, task: Callable[[AuditGame], GameTask] | None = None) -> FlexEnv:
        """Returns an environment that plays it; ``task``: in another form than ``GameTask``."""

        def next_layer(view: View) -> list[str]:
            return list(self.layers([(turn.agent, turn.text) for turn in view.history]))

        team = [AgentSpec(name, name, "Play.", with_answer=name == self.agents[-1]) for name in self.agents]
        return FlexEnv(team, (task or GameTask)(self), Router(next_layer), history="own", max_turns=64)


class GameTask:
    """A game as a task."""

    slow = False

    def __init__(self, game: AuditGame) -> None:
        self.game, self.task_id, self._prompt = game, "", ""
        self._said: list[tuple[str, str]] = []

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the prompt of that number."""
        number = int(options.get("task_id", rng.integers(len(self.game.prompts))))
        self.task_id, self._prompt, self._said = str(number), self.game.prompts[number], []

    def observe(self, agent: str) -> str:
        """Shows the prompt to the first agent, and to all how many turns there were."""
        seen = self._prompt if agent == self.game.agents[0] else ""
        return f"{len(self._said)} {seen}".rstrip()

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Rewards the layer."""
        self._said += [(turn.agent, turn.text) for turn in turns]
        outcome = self.game.outcome(self._prompt, self._said)
        outcome.terminated = not self.game.layers(self._said)
        return outcome

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Adds nothing."""
        return Outcome()

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns the agent's words."""
        return self.game.words(agent)

    def validate(self) -> None:
        """Has nothing to check."""


def talk(about: str, per_turn: float, final: Sequence[float], agents: tuple[str, ...] = ("talker_0",)) -> AuditGame:
    """Makes a talk of at most four turns that a word ends; agents take turns.

    Args:
        about: What it tests.
        per_turn: Reward of every turn.
        final: Reward at the end, by the number of turns.
        agents: Who talks.
    """

    def layers(said: History) -> Sequence[str]:
        over = len(said) == len(final) or (said and said[-1][1] == STOP)
        return [] if over else [agents[len(said) % len(agents)]]

    def outcome(prompt: str, said: History) -> Outcome:
        return Outcome(team_reward=per_turn + (0.0 if layers(said) else final[len(said) - 1]))

    return AuditGame(about, layers, outcome, agents, lambda agent: (GO, STOP))


def _in_order(names: Sequence[Sequence[str]]) -> Callable[[History], Sequence[str]]:
    """Layers of a fixed schedule."""
    ends = np.cumsum([len(layer) for layer in names]).tolist()
    starts = dict(zip([0, *ends[:-1]], names, strict=True))
    return lambda said: starts.get(len(said), ())


def _count(said: History, word: str) -> int:
    return sum(text == word for _, text in said)


def _route(said: History) -> Sequence[str]:
    """A boss names an expert; the slow one has three turns, the fast one has one."""
    if not said:
        return ["boss_0"]
    left = 1 + 2 * (said[0][1] == "slow")
    return [f"{said[0][1]}_0"] if len(said) <= left else []


def _spawn(said: History) -> Sequence[str]:
    """A boss says how many workers act, side by side."""
    if not said:
        return ["boss_0"]
    return [f"worker_{i}" for i in range(int(said[0][1]))] if len(said) == 1 else []


def _short(said: History) -> float:
    return 0.3 * _count(said, "1 0")


_three = _in_order([["a_0"], ["b_0"], ["a_0"], ["a_0"]])
_steps = _in_order([["a_0"], ["b_0"], ["a_0"], ["b_0"]])
_pair = _in_order([["a_0", "b_0"]])
_chain = _in_order([["a_0"], ["b_0"]])
_others = _in_order([["b_0"], ["c_0"]])


def _final(layers: Callable[[History], Sequence[str]], value: Callable[[str, History], float]) -> Rewards:
    """A reward for the team where the episode ends."""
    return lambda prompt, said: Outcome(team_reward=0.0 if layers(said) else value(prompt, said))


def _own(first: float, second: float) -> Outcome:
    """Rewards of two agents of their own."""
    return Outcome(agent_rewards={"a_0": first, "b_0": second})


def _bit(turn: tuple[str, str]) -> int:
    return int(turn[1])


_TALK = talk("the policy chooses the length, and longer talks score higher", 0.0, (0.4, 0.5, 0.6, 0.7))
GAMES: dict[str, AuditGame] = {
    "talk": _TALK,
    "talk-peak": talk("the policy chooses the length, and two turns are best", 0.0, (0.44, 0.99, 0.97, 0.03)),
    "talk-cost": talk("every turn has a cost, and the answer is always worth the same", -0.1, (0.5,) * 4),
    "talk-reward": talk("every turn has a reward, and there is none at the end", 0.1, (0.0,) * 4),
    "talk-two": talk("two agents in turn choose the length", 0.0, (0.4, 0.5, 0.6, 0.7), ("left_0", "right_0")),
    "route": AuditGame(
        "a boss chooses between experts with one turn and with three",
        _route,
        _final(_route, lambda prompt, said: 0.5 * (said[0][1] == "slow") + 0.3 * (said[-1][1] == "1")),
        ("boss_0", "fast_0", "slow_0"),
        lambda agent: ("fast", "slow") if agent == "boss_0" else BINARY,
    ),
    "spawn": AuditGame(
        "a boss chooses how many workers act side by side",
        _spawn,
        _final(_spawn, lambda prompt, said: 0.3 * _count(said[1:], "1") - 0.05 * (len(said) - 1) ** 2),
        ("boss_0", "worker_0", "worker_1", "worker_2"),
        lambda agent: ("1", "2", "3") if agent == "boss_0" else BINARY,
    ),
    "unequal-turns": AuditGame(
        "one agent has three turns, the other one",
        _three,
        _final(_three, lambda prompt, said: float(_count(said, "1") >= 3 and said[1][1] == "1")),
    ),
    "unequal-tokens": AuditGame(
        "replies of one token, of two and of three",
        _chain,
        _final(_chain, lambda prompt, said: 0.6 * (said[0][1] == "1 1 1") * (said[1][1] == "0") + _short(said)),
        words=lambda agent: ("0", "1 0", "1 1 1"),
    ),
    "parallel": AuditGame(
        "two agents side by side have to agree",
        _pair,
        _final(_pair, lambda prompt, said: float(said[0][1] == said[1][1]) * (0.5 + 0.5 * int(said[0][1]))),
    ),
    "private": AuditGame(
        "only the first agent sees which answer is right",
        _chain,
        _final(_chain, lambda prompt, said: float(said[-1][1] == prompt) + 0.2 * (said[0][1] == "1")),
        prompts=BINARY,
    ),
    "steps": AuditGame(
        "each right step is rewarded at once, and a later one is worth more",
        _steps,
        lambda prompt, said: Outcome(turn_rewards={len(said) - 1: 0.1 * len(said) * (said[-1][1] == "1")}),
    ),
    "general-sum": AuditGame(
        "two agents with rewards of their own: a dilemma",
        _pair,
        lambda prompt, said: _own(0.6 * _bit(said[1]) - 0.2 * _bit(said[0]), 0.6 * _bit(said[0]) - 0.2 * _bit(said[1])),
        rivals=True,
    ),
    "zero-sum": AuditGame(
        "matching pennies with a bonus: what one agent gains the other loses",
        _pair,
        lambda prompt, said: _own(gain := (0.5 + _bit(said[0])) * (1 if said[0][1] == said[1][1] else -1), -gain),
        rivals=True,
    ),
    "difficulty": AuditGame(
        "two problems that look alike to those who act; rewards of one are small and certain",
        _others,
        _final(
            _others, lambda prompt, said: 0.2 * _bit(said[0]) if prompt == "0" else -0.5 * _bit(said[0]) * _bit(said[1])
        ),
        ("a_0", "b_0", "c_0"),
        prompts=BINARY,
    ),
    "flat": AuditGame(
        "all rewards are equal: there is nothing to learn", _chain, _final(_chain, lambda prompt, said: 1.0)
    ),
    "stale": replace(_TALK, about="as talk, sampled by the policies of one update before", moved=0.05),
    "truncated": replace(_TALK, about="as talk, truncated after two turns", cut=2),
    "lost": replace(
        _TALK,
        about="as talk; of episodes with four turns, half are lost to infrastructure errors",
        kept=lambda turns: Fraction(1, 2 if turns == 4 else 1),
    ),
}
"""Name -> game."""


def get(name: str) -> AuditGame:
    """Returns the game of that name.

    Raises:
        ConfigError: There is none.
    """
    if name not in GAMES:
        raise ConfigError(f"There is no game '{name}'. {did_you_mean(name, list(GAMES))}")
    return GAMES[name]


def reasons() -> Mapping[str, str]:
    """Algorithm or game -> why the expected update is not the gradient."""
    return tomllib.loads(resources.files(__package__).joinpath("reasons.toml").read_text(encoding="utf-8"))


class DrawnTask(GameTask):
    """A game to train in: the rewards of an episode become the probability that it succeeds."""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes a prompt, and draws what decides about success."""
        super().reset(rng, options)
        self._total, self._luck, self._rng = 0.0, rng.random(), rng

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Rewards the end of the episode with 1 or 0."""
        outcome = super().on_layer(turns)
        self._total += outcome.team_reward
        success = outcome.terminated and self._luck < self._total
        return Outcome(team_reward=float(success), success=success if outcome.terminated else None,
                       terminated=outcome.terminated, metrics={"turns": float(len(self._said))})  # fmt: skip

    def expert(self, agent: str) -> str:
        """Draws one of the agent's words: a team that imitates it says all of them."""
        return str(self._rng.choice(self.game.words(agent)))


def make(game: str = "talk", split: str = "train") -> FlexEnv:
    """Returns a game as an environment to train in: ``--env marft_algos.extras.audit.games:make``."""
    return get(game).env(DrawnTask)
