"""Plans the turns that are played from what D asks for: checked, in canonical order, as far as ``history`` shows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt
from typing import Any

from marft_envs.core.dependency import DependencyFunction, View
from marft_envs.core.types import Turn
from marft_envs.errors import DependencyError, did_you_mean


class Planner:
    """Plans the layers of one episode.

    Args:
        dependency: D, bound to the team.
        view: The episode as D sees it.
        history: What agents see beyond what D names: ``deps`` (nothing), ``own`` or ``public``.
    """

    def __init__(self, dependency: DependencyFunction, view: View, history: str) -> None:
        self.dependency, self.view, self.history = dependency, view, history
        self.asked: dict[str, tuple[int, ...]] = {}
        """Agent of the layer -> what D asked that it sees; empty where that is what it sees."""
        self._order = {name: i for i, name in enumerate(view.agents)}
        # Repeats of an agent in one layer, which act in later layers.
        self._repeats: list[Turn] = []

    def next_layer(self) -> list[Turn]:
        """Returns the next layer of this round; an empty list ends the round.

        Raises:
            InvalidRouting: Words of a model cannot be followed: play :meth:`instead`.
            DependencyError: What code says cannot be followed.
        """
        if self._repeats:
            repeats, self._repeats = self._repeats, []
            return self._arranged(self._valid(repeats))
        return self._arranged(self._checked(self.dependency.next_layer(self.view)))

    def instead(self, turns: Sequence[Turn]) -> list[Turn]:
        """Returns the layer of those of these turns that can be played; what was left of the last one is dropped."""
        self._repeats = []
        return self._arranged(self._valid(turns))

    def end_layer(self) -> None:
        """Counts the layer that was committed, unless a part of it is left to play."""
        if self._repeats:
            self._repeats = [turn for turn in self._repeats if turn.agent not in self.view.dead]
        if not self._repeats:
            self.view.layer += 1

    def end_round(self) -> None:
        """Drops what was left to play."""
        self._repeats = []

    def _arranged(self, layer: list[Turn]) -> list[Turn]:
        n = len(self.view.history)
        for turn in layer:
            sees = turn.sees
            if sees and not (sees[0] >= 0 and sees[-1] < n and all(map(lt, sees, sees[1:]))):
                layer = [self._ordered(turn, n) for turn in layer]
                break
        if self.history != "deps":
            self.asked = {turn.agent: turn.sees for turn in layer}
            layer = [Turn(turn.agent, self._widened(turn)) for turn in layer]
        return layer

    def _checked(self, turns: Any) -> list[Turn]:
        """Returns the turns that D asks for, in canonical order."""
        order, dead = self._order, self.view.dead
        if type(turns) is list and len(turns) == 1:  # most layers are one turn
            turn = turns[0]
            if type(turn) is Turn and turn.agent in order and turn.agent not in dead:
                return turns
        self._expect_turns(turns)
        return self._valid(turns)

    def _expect_turns(self, turns: Any) -> None:
        """Checks what code has named.

        Raises:
            DependencyError: It is no list of turns, or an agent is unknown or dead.
        """
        kind, team = type(self.dependency).__name__, self._order
        if not isinstance(turns, Sequence) or isinstance(turns, str):
            raise DependencyError(
                f"{kind}.next_layer gave {turns!r}; expected a list of Turn objects, [] to end the round. Next: let "
                "every branch of it return one."
            )
        for turn in turns:
            if not isinstance(turn, Turn):
                raise DependencyError(f"{kind}.next_layer gave {turn!r}; expected Turn(agent, sees) objects.")
            if turn.agent in team and turn.agent not in self.view.dead:
                continue
            if turn.agent in team:
                what = "has left the episode: see view.dead."
            else:
                what = f"is not in the team. {did_you_mean(turn.agent, team)}"
            raise DependencyError(
                f"{kind} names the agent '{turn.agent}', which {what} If a model's words named it, say so, and it is "
                "counted and follows on_invalid: Router(fn, from_words=True), or raise InvalidRouting."
            )

    def _valid(self, turns: Sequence[Turn]) -> list[Turn]:
        """Returns the turns of live, known agents in canonical order, each agent once; repeats wait for later ones."""
        first: dict[str, Turn] = {}
        for turn in turns:
            known = turn.agent in self._order and turn.agent not in self.view.dead
            if known and first.setdefault(turn.agent, turn) is not turn:
                self._repeats.append(turn)
        return sorted(first.values(), key=lambda turn: self._order[turn.agent])

    def _ordered(self, turn: Turn, n: int) -> Turn:
        for seen in turn.sees:
            if not 0 <= seen < n:
                raise DependencyError(
                    f"{turn.agent} is to see the action {seen}, but only {n} have been committed. "
                    "A turn can see earlier layers only: put it in a later layer."
                )
        return Turn(turn.agent, tuple(sorted(set(turn.sees))))

    def _widened(self, turn: Turn) -> tuple[int, ...]:
        view = self.view
        start = view.round_start if self.history == "public" else 0  # what is public is seen anyway
        own_turns = {i for i, past in enumerate(view.history[start:], start) if past.agent == turn.agent}
        return (*range(start), *sorted(own_turns.union(i for i in turn.sees if i >= start)))
