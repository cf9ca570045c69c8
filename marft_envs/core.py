"""FlexEnv: a team, a task and a dependency function as one PettingZoo AEC environment.

A *round* is one time step of the Flex-POMDP; a *layer* is a set of turns without dependency on each
other; a *turn* is one agent's action. Actions of a layer commit together, in canonical agent order, so
the order in which they arrive changes nothing. ``sees``, not arrival, decides who reads what.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from marft_envs import observation as obs_mod
from marft_envs import rewards as reward_rules
from marft_envs.dependency import View, as_dependency
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.faults import check_end
from marft_envs.rewards import Attribution
from marft_envs.rounds import Rounds
from marft_envs.spaces import UnicodeText
from marft_envs.types import AgentSpec, Episode, Fault, Task, Turn

_HISTORIES = ("deps", "own", "public", "team")


class FlexEnv(Rounds):
    """A Flex-POMDP (arXiv 2504.16129, section 3.1): agents N with profiles, a task (S, O, T, R) and D.

    Args:
        agents: The team in canonical order; names are unique, by convention ``<role>_<n>``.
        task: What the work is.
        dependency: Who acts when, and who sees whose actions: a dependency function, or anything else that
            :func:`marft_envs.dependency.as_dependency` takes (``"independent"``, a matrix, layers of names).
        attribution: How PettingZoo's ``rewards`` share what is paid: ``team``, ``last``, ``split``,
            ``per_agent`` or a callable. The episode's record keeps the channels unattributed.
        observation: ``messages``, ``prompt`` or ``structured``.
        history: ``deps`` (only what D names), ``own`` (plus own past turns), ``public`` (plus everything that
            earlier rounds said) or ``team``: ``public``, but ``own`` if D lets nobody hear anybody.
        max_rounds: Rounds after which the episode ends; its score is what ``on_round`` paid.
        max_turns: Most turns in an episode; None: no limit.
        max_turns_per_agent: Most turns of one agent in an episode.
        on_invalid: What bad routing does: ``fallback``, ``end_round``, or a number that the team pays.
        max_chars: Longest task text plus contributions in an observation; None: no limit.
        render_mode: ``human``, ``ansi`` or None.
        env_id: Name in records and metadata.

    Raises:
        ConfigError: If the team or a setting cannot work.
        DependencyError: If D does not fit the team.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "name": "flex"}  # noqa: RUF012

    def __init__(
        self,
        agents: Sequence[AgentSpec],
        task: Task,
        dependency: Any,
        *,
        attribution: str | Attribution = "team",
        observation: str = "messages",
        history: str = "deps",
        max_rounds: int = 1,
        max_turns: int | None = None,
        max_turns_per_agent: int | None = None,
        on_invalid: str | float = "fallback",
        max_chars: int | None = None,
        render_mode: str | None = None,
        env_id: str = "custom",
    ) -> None:
        super().__init__()
        _check_settings(agents, history, on_invalid, render_mode)
        _check_limits(
            max_rounds=max_rounds, max_turns=max_turns, max_turns_per_agent=max_turns_per_agent, max_chars=max_chars
        )
        self.team = tuple(agents)
        self.task = task
        # A copy: dependency functions learn the team and may keep a position in the round.
        self.dependency = copy.deepcopy(as_dependency(dependency))
        self.possible_agents = [agent.name for agent in agents]
        self.dependency.bind(self.possible_agents)
        self.attribution = reward_rules.attribution(attribution)
        team_history = "own" if self.dependency.is_empty else "public"
        self.observation_kind, self.history_kind = observation, team_history if history == "team" else history
        self.max_rounds, self.max_turns, self.max_turns_per_agent = max_rounds, max_turns, max_turns_per_agent
        self.on_invalid, self.max_chars, self.render_mode = on_invalid, max_chars, render_mode
        self.metadata = {
            "render_modes": ["human", "ansi"],
            "name": env_id,
            # Only a cast that acts all at once fits PettingZoo's one-step-for-everybody parallel view.
            "is_parallelizable": self.dependency.is_simultaneous,
        }
        self.env_id, self.env_kwargs = env_id, dict[str, Any]()
        self._specs = {agent.name: agent for agent in agents}
        self._order = {name: i for i, name in enumerate(self.possible_agents)}
        self._tags = obs_mod.role_tags(agents)
        self._known: dict[str, tuple[str, str]] = {}
        self.observation_spaces = {name: obs_mod.space(observation) for name in self.possible_agents}
        self.action_spaces = {name: UnicodeText(candidates=_Candidates(task, name)) for name in self.possible_agents}
        self.agents: list[str] = []
        self._rng: np.random.Generator | None = None
        self._view = View(self.possible_agents)
        self._start()
        self.done, self._stop_reason, self.agent_selection = True, "not started", self.possible_agents[0]
        self._seed, self._options = None, {}

    # PettingZoo's API ------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode.

        Args:
            seed: Seeds the environment's own generator; None goes on with it.
            options: Passed to the task (``{"task_id": …}`` picks the problem).
        """
        if seed is not None or self._rng is None:
            self._rng = np.random.default_rng(seed)
        self._seed, self._options = seed, dict(options or {})
        names = self.possible_agents
        self.agents = names[:]
        self.rewards = dict.fromkeys(names, 0.0)
        self._cumulative_rewards = dict.fromkeys(names, 0.0)
        self.terminations = dict.fromkeys(names, False)
        self.truncations = dict.fromkeys(names, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in names}
        self._skip_agent_selection = None
        self._view = View(names)
        self._view.rng = self._rng
        self._start()
        self.task.reset(self._rng, self._options)
        self.dependency.reset()
        self._advance()

    def step(self, action: str | None) -> None:
        """Takes the action of ``agent_selection``; the layer commits when its last action is in."""
        agent = self.agent_selection
        if not self.agents:
            raise ConfigError(f"Nobody is left to act ({self._stop_reason}). Next: env.reset(seed=…).")
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if not isinstance(action, str):
            got = type(action).__name__
            raise ConfigError(f"The action of {agent} must be a string; got {got}. Next: env.step(text).")
        self._cumulative_rewards[agent] = 0.0
        if self._paid:
            self._clear_rewards()
            self._paid = False
        pending = self._pending
        if agent in pending or agent not in self._layer:
            self.select(agent)  # raises: nobody acts twice in a layer
        pending[agent] = action
        if len(pending) < len(self._layer):
            self.agent_selection = next(name for name in self._layer if name not in pending)
            return
        self._commit()
        if self._paid:
            self._accumulate_rewards()

    def observe(self, agent: str) -> dict[str, Any]:
        """Returns the rollout observation of ``agent``; legal for agents not on turn, and pure."""
        return obs_mod.render(self.observation_kind, self._observation(agent, self.max_chars), self._view.round)

    def observation_space(self, agent: str) -> Any:
        """Returns the agent's observation space."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Returns the agent's action space."""
        return self.action_spaces[agent]

    def render(self) -> str | None:
        """Returns the transcript (``ansi``), or prints it (``human``)."""
        if self.render_mode is None:
            return None
        lines = [f"{self.env_id} · task {self.task.task_id}"]
        for turn in self._view.history:
            seen = f" (sees {', '.join(map(str, turn.sees))})" if turn.sees else ""
            lines.append(f"#{turn.index} round {turn.round + 1} {turn.agent}{seen}: {turn.text}")
        if self.done:
            lines.append(f"ended: {self._stop_reason}, success: {self._success}")
        text = "\n".join(line.encode("utf-8", "replace").decode() for line in lines)
        if self.render_mode == "human":
            print(text)
            return None
        return text

    def close(self) -> None:
        """Releases what the task holds (worker processes), if it has a ``close``."""
        close = getattr(self.task, "close", None)
        if close is not None:
            close()

    # For drivers -----------------------------------------------------------------------------------

    @property
    def ready_agents(self) -> list[str]:
        """Agents of the current layer that have not acted, in canonical order; [] when the episode is over."""
        return [name for name in self._layer if name not in self._pending]

    def select(self, agent: str) -> None:
        """Makes a ready agent the one on turn."""
        if agent not in self._layer or agent in self._pending:
            raise ConfigError(f"'{agent}' is not ready to act. Ready: {', '.join(self.ready_agents) or 'nobody'}.")
        self.agent_selection = agent
        self._skip_agent_selection = None

    @property
    def layer(self) -> Mapping[str, Turn]:
        """The planned turns of the current layer in canonical agent order, those that have acted among them."""
        return self._layer

    def planned(self, agent: str) -> Turn:
        """Returns the planned turn of a ready agent; its ``sees`` holds what the observation shows."""
        return self._layer[agent]

    def attach(self, agent: str, extras: Mapping[str, Any] | None = None, max_chars: int | None = None) -> None:
        """Puts a driver's data on the agent's next action.

        Args:
            agent: A ready agent.
            extras: Goes to the turn's record (token ids, log-probs); agents never see it.
            max_chars: The limit given to :meth:`messages` for this turn; what it cut is then recorded.
        """
        if extras is not None:
            self._extras[agent] = extras
        if max_chars is not None:
            self._limits[agent] = max_chars

    def profile(self, agent: str) -> AgentSpec:
        """Returns the agent's specification."""
        if agent not in self._specs:
            raise ConfigError(f"There is no agent '{agent}' in {self.env_id}. {did_you_mean(agent, self._specs)}")
        return self._specs[agent]

    def messages(self, agent: str, max_chars: int | None = None) -> list[obs_mod.Message]:
        """Returns the rollout observation as chat messages, whatever the ``observation`` setting.

        Args:
            agent: Any agent of the team.
            max_chars: Cut inputs from the oldest until task text and contributions are this short.
        """
        limits = [limit for limit in (self.max_chars, max_chars) if limit is not None]
        return obs_mod.to_messages(self._observation(agent, min(limits, default=None)), self._view.round)

    def state(self) -> str:
        """Returns the global view as one text: every agent's task observation, all words, and what came of them."""
        shown: dict[str, list[str]] = {}
        for name in self.possible_agents:
            shown.setdefault(self._stated(name), []).append(self._specs[name].role)
        state = [f"[{', '.join(roles)}]\n{text}" if len(shown) > 1 else text for text, roles in shown.items()]
        said = [f"[{part.role}]\n{part.text}" for parts in self._shown for part in parts]
        return "\n\n".join([*state, *said])

    def team_view(self, agent: str) -> str:
        """Returns what a team critic may see before this layer: the state, and the role of who acts."""
        return f"{self.state()}\n\n({self._specs[agent].role})"

    @property
    def turn_limit(self) -> int:
        """Most turns that an episode can have if agents act once a round; no more than its task's ``turn_limit``."""
        each = min(self.max_rounds, self.max_turns_per_agent or self.max_rounds)
        bounds = (len(self.team) * each, self.max_turns, getattr(self.task, "turn_limit", None))
        return min(bound for bound in bounds if bound is not None)

    @property
    def tools(self) -> dict[str, list[dict[str, Any]]]:
        """Agent -> the tools that it can call now, as OpenAI's chat API takes them; here nobody has any."""
        return {}

    @property
    def view(self) -> View:
        """What the dependency function sees; read-only by convention."""
        return self._view

    @property
    def episode(self) -> Episode:
        """The record so far (whole once ``done``)."""
        return Episode(
            env_id=self.env_id,
            seed=self._seed,
            task_id=self.task.task_id,
            agents=self.team,
            turns=self._view.history,
            layers=self._layers,
            rounds=self._rounds,
            terminated=self.done and not self._truncated,
            truncated=self._truncated,
            success=self._success,
            stop_reason=self._stop_reason,
            metrics=self._metrics,
            info=self._info,
            invalid=len(self._invalid),
            invalid_routes=self._invalid,
            cuts=self._cuts,
            env_kwargs=self.env_kwargs,
            options=self._options,
            fault=self._fault,
        )

    def fork(self, n: int = 1) -> list[FlexEnv]:
        """Returns n deep copies at this very state, generators included (counterfactuals, trees, groups)."""
        return [copy.deepcopy(self) for _ in range(n)]

    def truncate(self, reason: str, fault: Fault = "") -> None:
        """Ends the episode at a limit that pays nothing, or because it cannot go on.

        Trainers bootstrap from the layer that would have run: ``episode.info["next"]`` lists its turns, each with
        ``agent``, ``role``, ``index``, ``sees``, ``observation``, ``messages``, ``tools``, ``team_view``. After failure
        (by whose ``fault``) there is nothing to bootstrap from; that of an agent's text is paid the worst.

        Raises:
            ConfigError: The reason begins with ``error``, ``world_crashed`` or ``world_hung``, and there is no fault.
        """
        if self.done:
            return
        check_end(reason, fault)
        if fault:
            self._fail(fault)
        elif self._layer:
            start = len(self._view.history)
            self._info["next"] = [self._upcoming(agent, start + i) for i, agent in enumerate(self._layer)]
        self._close_round()
        self._finish(reason, truncated=True)

    def _upcoming(self, agent: str, index: int) -> dict[str, Any]:
        return {
            "agent": agent,
            "role": self._specs[agent].role,
            "index": index,
            "sees": list(self._layer[agent].sees),
            "observation": self.task.observe(agent),
            "messages": self.messages(agent),
            "tools": self.tools.get(agent, []),
            "team_view": self.team_view(agent),
        }

    # Observations ----------------------------------------------------------------------------------

    def _observation(self, agent: str, max_chars: int | None) -> obs_mod.RolloutObservation:
        spec = self._specs[agent]
        turn = self._layer.get(agent)
        sees = turn.sees if turn is not None else ()
        if self._feedback:
            parts = self._with_feedback(agent, sees)
        else:
            parts = list(chain.from_iterable(self._seen_by(agent, sees)))
        task = self._stated(agent)
        cuts: list[tuple[int, int]] = []
        if max_chars is not None:
            task, parts, cuts = obs_mod.fit(task, parts, max_chars)
        return obs_mod.RolloutObservation(spec, len(self._view.history), task, parts, cuts)

    def _stated(self, agent: str) -> str:
        """What the task shows an agent, neutralised; most turns it is what it was the turn before."""
        text = self.task.observe(agent)
        known = self._known.get(agent)
        if known is None or known[0] != text:
            known = self._known[agent] = (text, obs_mod.neutralise(text, self._tags))
        return known[1]


class _Candidates:
    """The plausible replies of one agent, asked of the task when they are needed (picklable)."""

    def __init__(self, task: Task, agent: str) -> None:
        self.task, self.agent = task, agent

    def __call__(self) -> Sequence[str]:
        return self.task.sample_actions(self.agent)


def _check_settings(
    agents: Sequence[AgentSpec], history: str, on_invalid: str | float, render_mode: str | None
) -> None:
    names = [agent.name for agent in agents]
    if not names:
        raise ConfigError("A team needs at least one agent. Next: FlexEnv([AgentSpec('solver_0', 'solver')], task, D).")
    if len(set(names)) < len(names):
        raise ConfigError(f"Agent names must be unique; got {names}. Number them: solver_0, solver_1, …")
    if history not in _HISTORIES:
        raise ConfigError(f"There is no history '{history}'. {did_you_mean(history, _HISTORIES)}")
    if isinstance(on_invalid, str) and on_invalid not in ("fallback", "end_round"):
        raise ConfigError(f"on_invalid must be 'fallback', 'end_round' or a penalty; got '{on_invalid}'.")
    if render_mode not in (None, "human", "ansi"):
        raise ConfigError(f"render_mode must be None, 'human' or 'ansi'; got '{render_mode}'.")


def _check_limits(**limits: int | None) -> None:
    for name, limit in limits.items():
        if limit is not None and limit < 1:
            raise ConfigError(f"{name} must be at least 1; got {limit}.")
