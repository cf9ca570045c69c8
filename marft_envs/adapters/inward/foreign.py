"""A foreign environment as a task: one round is one step of that environment, and it decides which agents act.

Each adapter writes a :class:`Game`. :func:`team` puts it into a :class:`FlexEnv`, so that drivers, records, trainers
and ``check_env`` need no special case. The foreign environment decides the turn order. D is then the observed order:
each layer holds the agents that the environment waits for, and is recorded like any other layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs.adapters.inward.codecs import chosen
from marft_envs.adapters.inward.game import OPPONENTS, Game, Player, play_random
from marft_envs.core.dependency import Chain, DependencyFunction
from marft_envs.core.env import FlexEnv
from marft_envs.core.routing import Router
from marft_envs.core.teams import numbered
from marft_envs.core.types import AgentSpec, Outcome, Task, Turn, TurnRecord
from marft_envs.errors import ConfigError, check_known

ILLEGAL = ("lose", "random")
PLAIN = ("", "0", "1", "yes", "[0]", "I pass.")
"""What conformance tests say to an environment that lists no moves."""


class ForeignTask(Task):
    """Drives a foreign environment: each round passes it the moves of the ready seats and returns their rewards.

    Args:
        game: The environment.
        opponents: Seats that fixed players play: name of a player (all seats but one, drawn anew in every episode), or
            seat -> name or function. What they do is part of the environment's step.
        illegal: What a reply without a legal move does: ``lose`` (the episode ends, and the seat's reward is -1, as in
            PettingZoo's own wrapper) or ``random`` (a legal move is drawn with the environment's generator). Either
            way it is counted in the metrics ``illegal``.
        cooperative: Reward the team with the mean of the seats' rewards, instead of each seat with its own.
        team: Agent -> the seat that it acts for, where that is not the seat of its name.
    """

    def __init__(
        self,
        game: Game,
        *,
        opponents: str | Mapping[str, str | Player] = "",
        illegal: str = "lose",
        cooperative: bool = False,
        team: Mapping[str, str] | None = None,
    ) -> None:
        check_known([illegal], ILLEGAL, "There is no rule '{}' for illegal moves.")
        self.game, self.illegal, self.cooperative = game, illegal, cooperative
        self._speaks_for = dict(team) if team is not None else {seat: seat for seat in game.seats}
        self._opponents = opponents if isinstance(opponents, str) else dict(opponents)
        self._fixed: dict[str, Player] = {}
        self._rng = np.random.default_rng(0)
        self.task_id = ""
        self._check()

    def _check(self) -> None:
        fixed = self._opponents
        names = [fixed] * bool(fixed) if isinstance(fixed, str) else fixed.values()
        check_known([name for name in names if isinstance(name, str)], OPPONENTS, "There is no opponent '{}'.")
        if isinstance(fixed, str):
            if fixed and len(self.game.seats) < 2:
                raise ConfigError(f"{self.game.name} has one seat, so it has no opponents. Next: leave out opponents=.")
            return
        check_known(fixed, self.game.seats, f"There is no seat '{{}}' in {self.game.name}.")
        if len(fixed) == len(self.game.seats):
            raise ConfigError("Every seat has a fixed opponent, so no agent is left to act. Leave one out.")

    # Who acts --------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """Ready seats that no fixed opponent plays, in the seats' order."""
        ready = self.game.ready()
        if unknown := [seat for seat in ready if seat not in self.game.seats]:
            raise ConfigError(
                f"{self.game.name} waits for '{unknown[0]}', which was not in possible_agents: agents that appear in "
                "mid-episode are not supported. Needed: possible_agents that lists all agents from the start."
            )
        return [seat for seat in self.game.seats if seat in ready and seat not in self._fixed]

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Starts an episode; its seed, the free seat and fixed opponents' moves come from ``rng``."""
        seats = self.game.seats
        seed = int(rng.integers(2**31))
        self._rng = rng
        self.task_id = str(options.get("task_id", seed))
        seed = int(self.task_id) % 2**31 if self.task_id.isdecimal() else seed
        if isinstance(self._opponents, str):
            free = seats[int(rng.integers(len(seats)))] if self._opponents else ""
            players: Mapping[str, str | Player] = {s: self._opponents for s in seats if free and s != free}
        else:
            players = self._opponents
        self.game.fixed = frozenset(players)
        self._fixed = {seat: OPPONENTS[who] if isinstance(who, str) else who for seat, who in players.items()}
        self._earned = dict.fromkeys(seats, 0.0)
        self._illegal, self._moves, self._lost = 0, list[tuple[str, str]](), False
        self.game.reset(seed, options)
        self._let_opponents_play()
        if not self.waiting():
            raise ConfigError(f"{self.game.name} is over before anybody acted (seed {seed}).")

    def observe(self, agent: str) -> str:
        """What the agent's seat sees."""
        return self.game.observe(self._speaks_for[agent])

    # What happens ----------------------------------------------------------------------------------

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """One step of the environment, now that the round is whole; and fixed opponents', until others are to act."""
        before = dict(self._earned)
        last_words = {self._speaks_for[turn.agent]: turn.spoken for turn in turns}  # who spoke last speaks for the seat
        alive = self.waiting()
        moves = {seat: self._move(seat, last_words.get(seat, "")) for seat in alive}
        if losers := [seat for seat, move in moves.items() if move is None]:
            self._lost = True
            for seat in losers:
                self._earned[seat] -= 1.0
        else:
            self._step({seat: move for seat, move in moves.items() if move is not None})
            self._let_opponents_play()
        paid = {seat: self._earned[seat] - before[seat] for seat in self._learners()}
        over = self._lost or not self.waiting()
        outcome = Outcome(terminated=over, stop_reason="illegal" if self._lost else "")
        if self.cooperative:
            outcome.team_reward = sum(paid.values()) / len(paid)
        else:
            outcome.agent_rewards = {self._actor(seat): reward for seat, reward in paid.items() if reward}
        left = [seat for seat in alive if seat not in self.waiting()] if len(alive) > 1 else []
        outcome.dead = frozenset(map(self._actor, left)) if not over else frozenset()
        earned = {seat: self._earned[seat] for seat in self._learners()}
        outcome.metrics = {"illegal": float(self._illegal)} | {f"return/{seat}": r for seat, r in earned.items()}
        outcome.info = {"moves": [list(move) for move in self._moves]}
        return self._decided(outcome, max(earned.values())) if over else outcome

    def _move(self, seat: str, text: str) -> str | None:
        """The move that a reply means; None: it loses."""
        if (legal := self.game.moves(seat)) is None:
            return text
        if (move := chosen(text, legal)) is None:
            self._illegal += 1
            move = play_random(self.game, seat, self._rng) if self.illegal == "random" else None
        return move

    def _let_opponents_play(self) -> None:
        while self._fixed and self.game.ready() and not self.waiting():
            self._step({})

    def _step(self, moves: dict[str, str]) -> None:
        for seat in self.game.ready():
            if seat in self._fixed:
                moves[seat] = self._fixed[seat](self.game, seat, self._rng)
        self._moves += moves.items()
        for seat, reward in self.game.step(moves).items():
            self._earned[seat] += float(reward)

    def _decided(self, outcome: Outcome, reward: float) -> Outcome:
        """Against fixed opponents there is a winner."""
        if self._fixed and not self.cooperative:
            best = max(self._earned[seat] for seat in self._fixed)
            outcome.success = reward > best and not self._lost
            outcome.metrics = {**outcome.metrics, "draw": float(reward == best and not self._lost)}
        return outcome

    def _learners(self) -> list[str]:
        return [seat for seat in self.game.seats if seat not in self._fixed]

    def _actor(self, seat: str) -> str:
        """The agent that gets a seat's rewards: the last one that speaks for the seat."""
        return [agent for agent, spoken in self._speaks_for.items() if spoken == seat][-1]

    # For conformance -------------------------------------------------------------------------------

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Legal moves and one that is none, or, of an environment without a list, some plain words."""
        seat = self._speaks_for[agent]
        legal = self.game.moves(seat) if seat in self.game.ready() else []
        return PLAIN if legal is None else [*legal, "no move"]

    def validate(self) -> None:
        """Raises unless equal seeds give equal episodes, as far as the first observations show."""
        seen = []
        for _ in range(2):
            self.reset(np.random.default_rng(0), {})
            seen.append([(seat, self.game.observe(seat)) for seat in self.waiting()])
        if seen[0] != seen[1]:
            raise ConfigError(f"{self.game.name} starts differently with equal seeds: {seen[0]} and {seen[1]}.")

    def close(self) -> None:
        """Closes the environment."""
        self.game.close()


class _Order:
    """Who acts next, asked of the environment itself."""

    def __init__(self, task: ForeignTask, sees: int | str) -> None:
        self.task, self.sees = task, sees

    def __call__(self, view: Any) -> list[Turn]:
        if view.layer:
            return []
        n = len(view.history)
        first = 0 if self.sees == "public" else max(n - int(self.sees), 0)
        heard = {seat: self.task.game.seen_turns(seat) for seat in self.task.waiting()}
        return [Turn(s, tuple(range(first, n) if turns is None else turns)) for s, turns in heard.items()]


class _Together(Router):
    """All that are there act at once, and nobody sees another."""

    is_static = is_simultaneous = True
    possible_edges = frozenset[tuple[str, str]]()


def team(
    game: Game,
    *,
    profiles: Mapping[str, str] | str = "",
    sees: int | str = 0,
    opponents: str | Mapping[str, str | Player] = "",
    illegal: str = "lose",
    cooperative: bool = False,
    simultaneous: bool = False,
    max_rounds: int = 200,
    **settings: Any,
) -> FlexEnv:
    """Puts a foreign environment with a seat per agent into a FlexEnv.

    Args:
        game: The environment.
        profiles: System message of every agent, or seat -> system message.
        sees: How many of the last moves an agent reads beside its observation, or ``public``: all of them. They enter
            the recorded D.
        opponents: See :class:`ForeignTask`.
        illegal: See :class:`ForeignTask`.
        cooperative: See :class:`ForeignTask`.
        simultaneous: All agents that are there act at once in every round; with ``sees`` 0, D = 0.
        max_rounds: Steps after which the episode ends.
        **settings: Settings of :class:`FlexEnv`.

    Raises:
        ConfigError: A setting that cannot work.
    """
    if sees != "public" and (not isinstance(sees, int) or isinstance(sees, bool) or sees < 0):
        raise ConfigError(f"sees must be a number of moves or 'public'; got {sees!r}.")
    task = ForeignTask(game, opponents=opponents, illegal=illegal, cooperative=cooperative)
    by_seat = {seat: profiles for seat in game.seats} if isinstance(profiles, str) else profiles
    check_known(by_seat, game.seats, f"There is no seat '{{}}' in {game.name}.")
    agents = [AgentSpec(seat, seat, by_seat.get(seat, ""), with_answer=True) for seat in game.seats]
    settings = {"attribution": "team" if cooperative else "per_agent", "env_id": game.name} | settings
    d = (_Together if simultaneous and sees == 0 and not opponents else Router)(_Order(task, sees))
    env = FlexEnv(agents, task, d, max_rounds=max_rounds, **settings)
    env.dependency = d  # and no copy of it, as it has to ask the environment's own task
    env.dependency.bind(env.possible_agents)
    return env


def deliberators(roles: Sequence[str], profiles: Mapping[str, str] | str) -> tuple[AgentSpec, ...]:
    """Returns the agents of a team whose last role acts.

    Raises:
        ConfigError: A profile is for a role that there is not.
    """
    by_role = dict.fromkeys(roles, profiles) if isinstance(profiles, str) else profiles
    check_known(by_role, roles, "There is no role '{}' in this team.")
    last = len(roles) - 1
    return numbered(*((role, by_role.get(role, ""), i == last) for i, role in enumerate(roles)))


def deliberating(
    game: Game,
    *,
    roles: Sequence[str] = ("actor",),
    profiles: Mapping[str, str] | str = "",
    dependency: DependencyFunction | str | Sequence[Any] | None = None,
    illegal: str = "lose",
    max_rounds: int = 200,
    **settings: Any,
) -> FlexEnv:
    """Puts a foreign environment with one seat under a team: all but the last of ``roles`` advise, the last one acts.

    Args:
        game: The environment; one round of the team is one step of it.
        roles: Who deliberates, in order. One: an agent alone.
        profiles: System message of every agent, or role -> system message.
        dependency: D, which messages each agent receives; by default one after the other (``Chain``). See
            ``as_dependency``.
        illegal: See :class:`ForeignTask`.
        max_rounds: Steps after which the episode ends.
        **settings: Settings of :class:`FlexEnv`.

    Raises:
        ConfigError: A setting that cannot work.
    """
    if len(game.seats) != 1:
        raise ConfigError(f"{game.name} has {len(game.seats)} seats; a deliberating team plays one. Use team().")
    agents = deliberators(roles, profiles)
    speaks_for = {agent.name: game.seats[0] for agent in agents}
    task = ForeignTask(game, illegal=illegal, cooperative=True, team=speaks_for)
    settings = {"env_id": game.name} | settings
    d = Chain() if dependency is None else dependency
    return FlexEnv(agents, task, d, max_rounds=max_rounds, **settings)
