"""The engine of FlexEnv: how turns become layers, layers become rounds, and what is recorded and paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import lt
from typing import Any

from pettingzoo import AECEnv

from marft_envs import observation as obs_mod
from marft_envs.dependency import DependencyFunction, InvalidRouting, View
from marft_envs.errors import ConfigError, DependencyError, did_you_mean
from marft_envs.rewards import Attribution
from marft_envs.types import AgentSpec, Fault, LayerRecord, Outcome, RoundRecord, Task, Turn, TurnRecord


@lru_cache(maxsize=4096)
def _matrix(n: int, cells: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """The n x n matrix with ones at these cells, off the diagonal."""
    return tuple(tuple(int(i != j and i * n + j in cells) for j in range(n)) for i in range(n))


class Rounds(AECEnv):
    """Asks D for layers, commits them, closes rounds, books rewards and minds the guards; FlexEnv adds the API."""

    task: Task
    dependency: DependencyFunction
    attribution: Attribution
    possible_agents: list[str]
    done: bool
    history_kind: str
    on_invalid: str | float
    max_rounds: int
    max_turns: int | None
    max_turns_per_agent: int | None
    max_chars: int | None
    _specs: dict[str, AgentSpec]
    _order: dict[str, int]
    _seed: int | None
    _options: dict[str, Any]
    _tags: Any
    _view: View
    _skip_agent_selection: str | None
    _selective = False
    """Whether an observation may leave out a whole turn that its ``sees`` names, even where no limit is set."""

    def _observation(self, agent: str, max_chars: int | None) -> obs_mod.RolloutObservation:
        raise NotImplementedError

    def profile(self, agent: str) -> AgentSpec:
        raise NotImplementedError

    def _start(self) -> None:
        """Forgets the last episode's record; the view is new already."""
        self._layers: list[LayerRecord] = []
        self._speakers: list[int] = []  # who took each turn of the history, as a position in the team
        self._rounds: list[RoundRecord] = []
        # The planned turns of the current layer in canonical agent order, its actions so far, their extras, and
        # the lengths to which a driver cut its prompts.
        self._layer: dict[str, Turn] = {}
        self._pending: dict[str, str] = {}
        self._extras: dict[str, Mapping[str, Any]] = {}
        self._limits: dict[str, int] = {}
        # Repeats of an agent in one layer, which act in later layers.
        self._repeats: list[Turn] = []
        # What D asked for before `history` widened it: agent -> sees in the layer, edges of the round. And the edges of
        # the round that no observation showed.
        self._asked_now: dict[str, tuple[int, ...]] = {}
        self._asked: list[tuple[int, int]] = []
        self._unseen: set[tuple[int, int]] = set()
        # The history as agents read it, neutralised: of each turn the action and then, if anything, its result.
        self._shown: list[tuple[obs_mod.Part, ...]] = []
        self._own: dict[int, tuple[obs_mod.Part, ...]] = {}  # the same for who acted itself
        self._feedback: list[tuple[str, int, int, str]] = []
        self._cuts: list[dict[str, Any]] = []
        # Paid before anybody acted (a routing penalty): booked to the first layer when it commits.
        self._early: list[Outcome] = []
        self._members: list[str] = self.possible_agents
        self._paid, self._empty_rounds = False, 0
        self._invalid: list[dict[str, Any]] = []
        self.done, self._truncated, self._stop_reason = False, False, ""
        self._success: bool | None = None
        self._fault: Fault = ""
        self._metrics: dict[str, float] = {}
        self._info: dict[str, Any] = {}

    # Layers and rounds -----------------------------------------------------------------------------

    def _commit(self) -> None:
        """Enters the layer's actions into the history, asks the task, and goes on."""
        view = self._view
        start = index = len(view.history)
        number, round_, tags = len(self._layers), view.round, self._tags
        turns: list[TurnRecord] = []
        partial = self._limits or self.max_chars is not None or self._selective
        for agent, turn in self._layer.items():
            role, text = self._specs[agent].role, self._pending[agent]
            record = TurnRecord(
                index, round_, number, agent, role, turn.sees, text, 0.0, self._extras.pop(agent, None)
            )  # fmt: skip
            turns.append(record)
            if partial:
                self._note_unseen(record)
            self._speakers.append(self._order[agent])
            self._shown.append((obs_mod.Part(agent, role, round_, obs_mod.neutralise(text, tags), index),))
            index += 1
        view.history += turns
        if view.dead:
            self._members = [name for name in self.possible_agents if name not in view.dead]
        if self._asked_now:
            self._asked += [(i, turn.index) for turn in turns for i in self._asked_now[turn.agent]]
        self._layers.append(LayerRecord(number, round_, tuple(range(start, index))))
        self._pending, self._layer = {}, {}
        if self._early:
            early, self._early = self._early, []
            for outcome in early:
                self._pay(outcome)
        self._book(self.task.on_layer(turns))
        if self._repeats:
            self._repeats = [turn for turn in self._repeats if turn.agent not in view.dead]
        if not self._repeats:
            view.layer += 1
        if not self.done:
            self._advance()

    def _note_unseen(self, record: TurnRecord) -> None:
        """Records what was cut from a turn's observation, and what of its ``sees`` is not in it at all."""
        record.max_chars = self._limits.pop(record.agent, None)
        limits = [limit for limit in (self.max_chars, record.max_chars) if limit is not None]
        shown = self._observation(record.agent, min(limits, default=None))
        self._cuts += [{"turn": record.index, "seen": seen, "chars": chars} for seen, chars in shown.cuts]
        self._unseen.update((i, record.index) for i in set(record.sees) - shown.seen)

    def _advance(self) -> None:
        """Plans the next layer, closing rounds that are over; ends the episode at a guard."""
        while not self.done:
            dead = self._view.dead
            layer = [] if dead and len(dead) == len(self.possible_agents) else self._next_layer()
            guard = self._guard(layer)
            if layer and not guard:
                self._layer = {turn.agent: turn for turn in layer}
                self.agent_selection = layer[0].agent
                if self._view.dead:
                    self._deads_step_first()
                return
            self._end_round(guard, cut=bool(layer))

    def _end_round(self, guard: str, cut: bool) -> None:
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
        last = view.round + 1 >= self.max_rounds
        if not self.done and (guard or last):
            self._finish(guard if guard and (cut or not last) else "max_rounds")
        if self.done and not view.history:
            raise DependencyError(
                f"The episode ended ({self._stop_reason}) before anybody acted. Let {type(self.dependency).__name__} "
                "name a known agent in its first layer, and let the limits leave room for that layer."
            )
        if not self.done:
            view.round += 1
            view.round_start, view.layer = len(view.history), 0

    def _next_layer(self) -> list[Turn]:
        """Asks D, handles bad routing by ``on_invalid``, and puts the layer in canonical order."""
        view = self._view
        if self._repeats:
            repeats, self._repeats = self._repeats, []
            layer = self._valid(repeats)
        else:
            try:
                layer = self._checked(self.dependency.next_layer(view))
            except InvalidRouting as bad:
                layer = self._misrouted(bad)
        n = len(view.history)
        for turn in layer:
            sees = turn.sees
            if sees and not (sees[0] >= 0 and sees[-1] < n and all(map(lt, sees, sees[1:]))):
                layer = [self._ordered(turn, n) for turn in layer]
                break
        if self.history_kind != "deps":
            self._asked_now = {turn.agent: turn.sees for turn in layer}
            layer = [Turn(turn.agent, self._widened(turn)) for turn in layer]
        return layer

    def _checked(self, asked: Any) -> list[Turn]:
        """The turns that D asks for, in canonical order."""
        order, dead = self._order, self._view.dead
        if type(asked) is list and len(asked) == 1:  # most layers are one turn
            turn = asked[0]
            if type(turn) is Turn and turn.agent in order and turn.agent not in dead:
                return asked
        self._expect_turns(asked)
        return self._valid(asked)

    def _expect_turns(self, asked: Any) -> None:
        """Checks what code has named.

        Raises:
            DependencyError: It is no list of turns, or an agent is unknown or dead.
        """
        kind, team = type(self.dependency).__name__, self._order
        if not isinstance(asked, Sequence) or isinstance(asked, str):
            raise DependencyError(
                f"{kind}.next_layer gave {asked!r}; expected a list of Turn objects, [] to end the round. Next: let "
                "every branch of it return one."
            )
        for turn in asked:
            if not isinstance(turn, Turn):
                raise DependencyError(f"{kind}.next_layer gave {turn!r}; expected Turn(agent, sees) objects.")
            if turn.agent in team and turn.agent not in self._view.dead:
                continue
            if turn.agent in team:
                what = "has left the episode: see view.dead."
            else:
                what = f"is not in the team. {did_you_mean(turn.agent, team)}"
            raise DependencyError(
                f"{kind} names the agent '{turn.agent}', which {what} If a model's words named it, say so, and it is "
                "counted and follows on_invalid: Router(fn, from_words=True), or raise InvalidRouting."
            )

    def _misrouted(self, bad: InvalidRouting) -> list[Turn]:
        """Counts and records words that cannot be followed, and does what ``on_invalid`` says."""
        view = self._view
        said = bad.turn if bad.turn is not None else len(view.history) - 1 if view.history else None
        self._invalid.append({"round": view.round, "turn": said, "named": list(bad.named), "reason": str(bad)})
        self._repeats = []
        if not isinstance(self.on_invalid, str):
            self._pay(Outcome(team_reward=-float(self.on_invalid)))
        return self._valid(bad.fallback) if self.on_invalid != "end_round" else []

    def _valid(self, asked: Sequence[Turn]) -> list[Turn]:
        """The turns of live, known agents in canonical order, each agent once; its repeats wait for later layers."""
        first: dict[str, Turn] = {}
        for turn in asked:
            known = turn.agent in self._order and turn.agent not in self._view.dead
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
        view = self._view
        start = view.round_start if self.history_kind == "public" else 0  # what is public is seen anyway
        own = {i for i, past in enumerate(view.history[start:], start) if past.agent == turn.agent}
        return (*range(start), *sorted(own.union(i for i in turn.sees if i >= start)))

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
        """Records D_t as executed, which is what agents saw, and beside it what D asked for; once a round."""
        view = self._view
        if self._rounds and self._rounds[-1].index == view.round:
            return
        planned = [(i, turn.index) for turn in view.this_round for i in turn.sees]
        edges = [edge for edge in planned if edge not in self._unseen] if self._unseen else planned
        asked = self._asked if self.history_kind != "deps" else planned
        self._rounds.append(RoundRecord(view.round, self._between_agents(edges), edges, self._between_agents(asked)))
        self._asked, self._unseen, self._repeats = [], set(), []

    def _between_agents(self, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
        """The n x n matrix of turn-level edges, as lists of its own; its diagonal is 0."""
        speakers, n = self._speakers, len(self._order)
        return [list(row) for row in _matrix(n, frozenset([speakers[i] * n + speakers[j] for i, j in edges]))]

    # Rewards and ends ------------------------------------------------------------------------------

    def _book(self, outcome: Outcome) -> None:
        """Enters what a task said: channels to the record, attributed rewards to PettingZoo, ends to the flags."""
        view = self._view
        view.outcome = outcome
        if outcome.team_reward or outcome.turn_rewards or outcome.agent_rewards:
            self._pay(outcome)
        for index, text in outcome.results.items():
            self._come_of(index, text)
        for agent, text in outcome.feedback.items():
            self.profile(agent)
            self._feedback.append((agent, len(view.history), view.round, obs_mod.neutralise(text, self._tags)))
        if outcome.success is not None:
            self._success = outcome.success
        if outcome.metrics:
            self._metrics.update(outcome.metrics)
        if outcome.info:
            self._info.update(outcome.info)
            for agent in self.agents:
                self.infos[agent] = {**self.infos[agent], **outcome.info}
        if outcome.dead:
            for agent in outcome.dead - view.dead:
                view.dead.add(self.profile(agent).name)
                if agent in self.terminations:
                    self.terminations[agent] = True
        if outcome.fault:
            self._fail(outcome.fault)
        if outcome.terminated or outcome.fault:
            self._close_round()
            self._finish(outcome.stop_reason or "task")

    def _come_of(self, index: int, text: str) -> None:
        history = self._view.history
        if not 0 <= index < len(history):
            raise ConfigError(f"The task gave turn {index} a result, but there are only {len(history)} turns.")
        record = history[index]
        record.result = text
        action, said = self._shown[index][0], obs_mod.neutralise(text, self._tags)
        came = obs_mod.Part("", "feedback", record.round, said, -1, of=index)
        self._shown[index] = (action, came) if said else (action,)
        self._own.pop(index, None)

    def _seen_by(self, agent: str, sees: Sequence[int]) -> list[tuple[obs_mod.Part, ...]]:
        """Turns, each with its result, as an agent that sees them reads them."""
        history, shown, own = self._view.history, self._shown, self._own
        return [(own.get(i) or self._as_own(i)) if history[i].agent == agent else shown[i] for i in sees]

    def _with_feedback(self, agent: str, sees: Sequence[int]) -> list[obs_mod.Part]:
        """Puts feedback where it was given: behind the turns committed by then."""
        seen = zip(sees, self._seen_by(agent, sees), strict=True)
        keyed = [(i + 1, 0, part) for i, parts in seen for part in parts]
        for to, after, round_, text in self._feedback:
            if to == agent:
                keyed.append((after, 1, obs_mod.Part("", "feedback", round_, text, -1)))
        return [part for *_, part in sorted(keyed, key=lambda item: item[:2])]

    def _as_own(self, index: int) -> tuple[obs_mod.Part, ...]:
        action, *result = self._shown[index]
        parts = self._own[index] = (obs_mod.own(action), *result)
        return parts

    def _pay(self, outcome: Outcome) -> None:
        """Books the channels to the last layer's record, and their attributed form to PettingZoo's rewards."""
        history = self._view.history
        if not self._layers:
            self._early.append(outcome)
            return
        layer, turns = self._layers[-1], []
        for index, reward in outcome.turn_rewards.items():
            if not 0 <= index < len(history):
                raise ConfigError(f"The task paid turn {index}, but only {len(history)} turns have been committed.")
            history[index].reward += float(reward)
            turns.append((history[index].agent, float(reward)))
            if history[index].layer != layer.index:
                layer.late_rewards[index] = layer.late_rewards.get(index, 0.0) + float(reward)
        for agent in outcome.agent_rewards:
            self.profile(agent)
        layer.team_reward += float(outcome.team_reward)
        for agent, reward in outcome.agent_rewards.items():
            layer.agent_rewards[agent] = layer.agent_rewards.get(agent, 0.0) + float(reward)
        last = [history[i].agent for i in layer.turns]
        # Paid are those alive when the layer committed, whether or not a driver steps the dead.
        shares = self.attribution(float(outcome.team_reward), turns, outcome.agent_rewards, self._members, last)
        for agent, reward in shares.items():
            self.rewards[agent] += reward
        self._paid = True

    def _fail(self, fault: Fault) -> None:
        """Notes whose fault it is that the episode cannot go on, and lets a text that broke it pay the worst."""
        self._fault, self._success = fault, False
        if fault == "text" and self._layers:
            earned = sum(layer.team_reward for layer in self._layers) + sum(t.reward for t in self._view.history)
            self._pay(Outcome(team_reward=getattr(self.task, "worst_return", min(0.0, earned)) - earned))

    def _finish(self, reason: str, truncated: bool = False) -> None:
        self.done, self._stop_reason, self._truncated = True, reason, truncated
        self._layer, self._pending = {}, {}
        flags = self.truncations if truncated else self.terminations
        for agent in self.agents:
            flags[agent] = True
            self.infos[agent] = {**self.infos[agent], "stop_reason": reason, "success": self._success}
        if self.agents:
            self.agent_selection = self.agents[0]
            self._skip_agent_selection = None
