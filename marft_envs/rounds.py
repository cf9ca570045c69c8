"""The engine of FlexEnv: how turns become layers, layers become rounds, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pettingzoo import AECEnv

from marft_envs import observation as obs_mod
from marft_envs.dependency import DependencyFunction, InvalidRouting, View
from marft_envs.errors import DependencyError
from marft_envs.types import AgentSpec, LayerRecord, Outcome, RoundRecord, Task, Turn, TurnRecord


class Rounds(AECEnv):  # type: ignore[type-arg]
    """Asks D for layers, commits them, closes rounds and minds the guards; FlexEnv adds the API around it."""

    task: Task
    dependency: DependencyFunction
    possible_agents: list[str]
    agent_selection: str
    done: bool
    history_kind: str
    on_invalid: str | float
    max_rounds: int
    max_turns: int | None
    max_turns_per_agent: int | None
    max_chars: int | None
    _specs: dict[str, AgentSpec]
    _order: dict[str, int]
    _tags: Any
    _view: View
    _layer: dict[str, Turn]
    """The planned turns of the current layer, in canonical agent order."""
    _pending: dict[str, str]
    """Actions of the current layer that are in."""
    _extras: dict[str, Mapping[str, Any]]
    _layers: list[LayerRecord]
    _rounds: list[RoundRecord]
    _asked: list[tuple[int, int]]
    """Agent-level edges of this round that D asked for, before ``history`` widened them."""
    _clean: list[str]
    """Neutralised texts of the history."""
    _cuts: list[dict[str, Any]]
    _early: list[Outcome]
    """Paid before anybody acted (a routing penalty): booked to the first layer when it commits."""
    _invalid: int
    _empty_rounds: int

    def _book(self, outcome: Outcome) -> None:
        raise NotImplementedError

    def _finish(self, reason: str, truncated: bool = False) -> None:
        raise NotImplementedError

    def _observation(self, agent: str, max_chars: int | None) -> obs_mod.RolloutObservation:
        raise NotImplementedError

    def _commit(self) -> None:
        """Enters the layer's actions into the history, asks the task, and goes on."""
        view = self._view
        start = len(view.history)
        number = len(self._layers)
        turns = []
        for agent, turn in self._layer.items():
            record = TurnRecord(
                len(view.history) + len(turns), view.round, number, agent, self._specs[agent].role, turn.sees,
                self._pending[agent], 0.0, self._extras.pop(agent, None),
            )  # fmt: skip
            turns.append(record)
            if self.max_chars is not None:
                cuts = self._observation(agent, self.max_chars).cuts
                self._cuts += [{"turn": record.index, "seen": seen, "chars": chars} for seen, chars in cuts]
        for record in turns:
            view.history.append(record)
            self._clean.append(obs_mod.neutralise(record.text, self._tags))
        view.layer += 1
        self._layers.append(LayerRecord(number, view.round, tuple(range(start, start + len(turns)))))
        self._pending, self._layer = {}, {}
        if self._early:
            early, self._early = self._early, []
            for outcome in early:
                self._pay(outcome)
        self._book(self.task.on_layer(turns))
        if not self.done:
            self._advance()

    def _advance(self) -> None:
        """Plans the next layer, closing rounds that are over; ends the episode at a guard."""
        while not self.done:
            layer = self._next_layer()
            guard = self._guard(layer)
            if layer and not guard:
                self._layer = {turn.agent: turn for turn in layer}
                self.agent_selection = layer[0].agent
                if self._view.dead:
                    self._deads_step_first()
                return
            self._end_round(guard)

    def _end_round(self, guard: str) -> None:
        view = self._view
        self._empty_rounds = 0 if len(view.history) > view.round_start else self._empty_rounds + 1
        if self._empty_rounds == 2:
            raise DependencyError(
                f"{type(self.dependency).__name__} gave two rounds in a row in which nobody acts. "
                "Let next_layer return a turn, or let the task end the episode."
            )
        turns = view.this_round
        self._close_round()
        self._book(self.task.on_round(turns))
        if self.done:
            return
        if guard or view.round + 1 >= self.max_rounds:
            self._finish(guard or "max_rounds")
            return
        view.round += 1
        view.round_start, view.layer = len(view.history), 0

    def _next_layer(self) -> list[Turn]:
        """Asks D, handles bad routing by ``on_invalid``, and puts the layer in canonical order."""
        view = self._view
        try:
            layer = self.dependency.next_layer(view)
            if len(layer) == 1 and layer[0].agent in self._specs and layer[0].agent not in view.dead:
                valid = layer
            else:
                valid = self._valid(layer)
            if len(valid) < len(layer):
                raise InvalidRouting("unknown, dead or repeated agent", valid)
        except InvalidRouting as bad:
            self._invalid += 1
            valid = bad.fallback if self.on_invalid != "end_round" else []
            if isinstance(self.on_invalid, int | float):
                self._book(Outcome(team_reward=-float(self.on_invalid)))
        n = len(view.history)
        for turn in valid:
            for seen in turn.sees:
                if not 0 <= seen < n:
                    raise DependencyError(
                        f"{turn.agent} is to see the action {seen}, but only {n} have been committed. "
                        "A turn can see earlier layers only: put it in a later layer."
                    )
        if self.history_kind != "deps":
            valid = [Turn(turn.agent, self._widened(turn)) for turn in valid]
        return valid

    def _valid(self, layer: Sequence[Turn]) -> list[Turn]:
        """The turns of live, known agents, in canonical order, each agent once."""
        first: dict[str, Turn] = {}
        for turn in layer:
            if turn.agent in self._order and turn.agent not in self._view.dead:
                first.setdefault(turn.agent, turn)
        return sorted(first.values(), key=lambda turn: self._order[turn.agent])

    def _widened(self, turn: Turn) -> tuple[int, ...]:
        view = self._view
        self._asked += [(self._order[view.history[i].agent], self._order[turn.agent]) for i in turn.sees]
        own = {i for i, past in enumerate(view.history) if past.agent == turn.agent}
        public = set(range(view.round_start)) if self.history_kind == "public" else set()
        return tuple(sorted({*turn.sees, *own, *public}))

    def _guard(self, layer: Sequence[Turn]) -> str:
        """Names the limit that the next layer would break, or ''."""
        view = self._view
        if len(view.dead) == len(self.possible_agents):
            return "all_dead"
        if self.max_turns is not None and len(view.history) + max(len(layer), 1) > self.max_turns:
            return "max_turns"
        if self.max_turns_per_agent is not None:
            for turn in layer:
                if sum(past.agent == turn.agent for past in view.history) >= self.max_turns_per_agent:
                    return "max_turns_per_agent"
        return ""

    def _close_round(self) -> None:
        """Records the executed D_t: what D asked for, without what ``history`` added, and all turn-level edges."""
        view = self._view
        n = len(self.possible_agents)
        matrix = [[0] * n for _ in range(n)]
        edges = [(seen, turn.index) for turn in view.this_round for seen in turn.sees]
        asked = self._asked
        if self.history_kind == "deps":
            asked = [(self._order[view.history[i].agent], self._order[view.history[j].agent]) for i, j in edges]
        for i, j in asked:
            if i != j:
                matrix[i][j] = 1
        self._rounds.append(RoundRecord(view.round, matrix, edges))
        self._asked = []
