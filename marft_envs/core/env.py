"""FlexEnv: a team, a task and a dependency function as one PettingZoo AEC environment.

A *round* is one time step of the Flex-POMDP; a *layer* is a set of turns without dependency on each
other; a *turn* is one agent's action. Actions of a layer commit together, in canonical agent order, so
the order in which they arrive changes nothing. ``sees``, not arrival, decides who reads what.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import gymnasium
import numpy as np
from pettingzoo import AECEnv

from marft_envs.core import observation as obs_mod
from marft_envs.core import rewards as reward_rules
from marft_envs.core.dependency import StaticDAG, View, as_dependency
from marft_envs.core.faults import check_answer, check_end, check_start
from marft_envs.core.rewards import Attribution
from marft_envs.core.schedule import Rules, Schedule
from marft_envs.core.spaces import UnicodeText
from marft_envs.core.types import AgentSpec, Episode, Fault, PlannedTurn, Task, Turn, TurnRecord, optional
from marft_envs.errors import ConfigError, hinted


@hinted
class FlexEnv(AECEnv):
    """A Flex-POMDP (arXiv 2504.16129, section 3.1): agents N with profiles, a task (S, O, T, R) and D.

    Args:
        agents: The team in canonical order; names are unique, by convention ``<role>_<n>``.
        task: What the work is.
        dependency: Who acts when, and who sees whose actions: a dependency function, or anything else that
            :func:`marft_envs.core.dependency.as_dependency` takes (``"independent"``, layers of names, a matrix with
            ``D[i][j] = 1`` where agent j sees agent i, a mapping from each agent to those whose messages it sees).
        attribution: How PettingZoo's ``rewards`` share the team's reward: ``team``, ``last``, ``split``,
            ``per_agent`` or a callable. The episode's record keeps the channels unattributed.
        observation: ``messages``, ``prompt`` or ``structured``.
        history: ``deps`` (only what D names), ``own`` (plus own past turns), ``public`` (plus everything that
            earlier rounds said) or ``team``: ``public``, but ``own`` if D passes no messages.
        max_rounds: Rounds after which the episode ends, with the rewards that ``on_round`` gave.
        max_turns: Most turns in an episode; None: no limit.
        max_turns_per_agent: Most turns of one agent in an episode.
        max_path: Most tokens said one after the other (``critical_path``); a layer beyond ends the episode unanswered.
        on_invalid: What bad routing does: ``fallback``, ``end_round``, or a number that is the team's penalty.
        max_chars: Longest task text plus contributions in an observation; None: no limit.
        reply_tokens: The most tokens of a reply, as the end of every profile then says; None: no such words.
        share_thoughts: Whether others read what an agent thinks aloud (``<think>…</think>``, an analysis channel).
            Records keep it, and the agent's own earlier turns are shown to it whole.
        tag_first_round: Whether a line above what was said in the first round says so, too (``[role, round 1]``).
        render_mode: ``human``, ``ansi`` or None.
        env_id: Name in records and metadata.

    Raises:
        ConfigError: If the team or a setting cannot work.
        DependencyError: If D does not fit the team, or no agent that gives the answer acts under it.
    """

    spec: Any = None
    """The :class:`marft_envs.EnvSpec` that it was made of; None: by hand."""

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
        max_path: int | None = None,
        on_invalid: str | float = "fallback",
        max_chars: int | None = None,
        reply_tokens: int | None = None,
        share_thoughts: bool = False,
        tag_first_round: bool = False,
        render_mode: str | None = None,
        env_id: str = "custom",
    ) -> None:
        super().__init__()
        _check_team(agents, render_mode)
        _check_task(task)
        thoughts, limits = share_thoughts, (max_rounds, max_turns, max_turns_per_agent, max_path)
        self.rules = Rules(history, *limits, on_invalid, max_chars, thoughts, tag_first_round)
        """Limits, and what of the past is seen; what is put here counts from the next :meth:`reset` on."""
        self.reply_tokens, self.team = reply_tokens, obs_mod.limited(agents, reply_tokens)
        self.task = task
        # A copy: dependency functions learn the team and may keep a position in the round.
        self.dependency = copy.deepcopy(as_dependency(dependency))
        self.possible_agents = [agent.name for agent in agents]
        self.dependency.bind(self.possible_agents)
        if not optional(task, "graded_by_state"):
            check_answer(agents, self.dependency.acting)
        self.attribution = reward_rules.attribution(attribution)
        if history == "team":
            self.rules = replace(self.rules, history="own" if self.dependency.is_empty else "public")
        self.observation_kind, self.render_mode = observation, render_mode
        self.metadata: dict[str, Any] = {
            "render_modes": ["human", "ansi"],
            "name": env_id,
            "is_parallelizable": self.dependency.is_simultaneous,  # PettingZoo's parallel view: all act in one step
        }
        self.env_id, self.env_kwargs = env_id, dict[str, Any]()
        obs_mod.space(observation)  # refuses an unknown kind
        self.agents: list[str] = []
        self.agent_selection = self.possible_agents[0]
        self._rng: np.random.Generator | None = None
        self._rewarded = False
        self.schedule = self._new_schedule(None, {})
        """The episode."""

    # PettingZoo's API ------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode.

        Args:
            seed: Seeds the environment's own generator; None goes on with it.
            options: ``profiles`` of agents or roles replace theirs in this episode; the rest is the task's
                (``task_id``).

        Raises:
            ConfigError: A seed below 0, or options that are no mapping.
        """
        check_start(seed, options)
        if seed is not None or self._rng is None:
            self._rng = np.random.default_rng(seed)
        settings = dict(options or {})
        names = self.possible_agents
        self.agents = names[:]
        self.rewards = dict.fromkeys(names, 0.0)
        self._cumulative_rewards = dict.fromkeys(names, 0.0)
        self.terminations = dict.fromkeys(names, False)
        self.truncations = dict.fromkeys(names, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in names}
        self._rewarded = False
        self.schedule = self._new_schedule(seed, settings)
        self.schedule.begin(self._rng, {name: value for name, value in settings.items() if name != "profiles"})
        self._sync()

    def _new_schedule(self, seed: int | None, options: dict[str, Any]) -> Schedule:
        team = self.team
        if "profiles" in options:
            team = obs_mod.limited(obs_mod.with_profiles(team, options["profiles"]), self.reply_tokens)
        record = Episode(self.env_id, seed, self.task.task_id, team, [], [], [], options=options)
        return Schedule(record, self.task, self.dependency, self.rules)

    def step(self, action: str | None) -> None:
        """Takes the action of ``agent_selection``; the layer commits when its last action is in."""
        agent = self.agent_selection
        if not self.agents:
            raise ConfigError(f"Nobody is left to act ({self.schedule.record.stop_reason}). Next: env.reset(seed=…).")
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if not isinstance(action, str):
            got = type(action).__name__
            raise ConfigError(f"The action of {agent} must be a string; got {got}. Next: env.step(text).")
        self._cumulative_rewards[agent] = 0.0
        if self._rewarded:
            self._clear_rewards()
            self._rewarded = False
        if not self.schedule.act(agent, action):
            self.agent_selection = self.schedule.ready[0]
        else:
            self._sync()
            if self._rewarded:
                self._accumulate_rewards()

    def _sync(self) -> None:
        """Mirrors in PettingZoo's terms what the schedule has done since: rewards, infos, ends, who is on turn."""
        schedule = self.schedule
        outcomes, schedule.rewards = schedule.rewards, []
        for outcome in outcomes:
            for agent, reward in self.attribution(*outcome).items():
                self.rewards[agent] += reward
            self._rewarded = True
        facts, schedule.facts = schedule.facts, {}
        flags, record = self.terminations, schedule.record
        for agent in schedule.view.dead:
            if agent in flags:
                flags[agent] = True
        if schedule.done:
            facts |= {"stop_reason": record.stop_reason, "success": record.success}
            flags = self.truncations if record.truncated else self.terminations
            flags.update(dict.fromkeys(self.agents, True))
        if facts:
            for agent in self.agents:
                self.infos[agent] = {**self.infos[agent], **facts}
        self._skip_agent_selection = None
        if schedule.layer:
            self.agent_selection = next(iter(schedule.layer))
            if schedule.view.dead:
                self._deads_step_first()
        elif self.agents:
            self.agent_selection = self.agents[0]

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Returns observation, rewards since its last action, end and cut of the agent on turn, and its infos."""
        if self._rng is None:
            raise ConfigError("No episode has begun. Next: env.reset(seed=0).")
        return super().last(observe)

    def observe(self, agent: str) -> dict[str, Any]:
        """Returns the rollout observation of ``agent``; legal for agents not on turn, and pure."""
        return obs_mod.render(self.observation_kind, self.schedule.observation(agent))

    @cached_property
    def observation_spaces(self) -> dict[str, Any]:
        """The agents' observation spaces; made when asked for, as forks copy what there is."""
        images = optional(self.task, "images") is not None
        return {name: obs_mod.space(self.observation_kind, images=images) for name in self.possible_agents}

    @cached_property
    def action_spaces(self) -> dict[str, Any]:
        """The agents' action spaces; made when asked for."""
        return {a.name: UnicodeText(candidates=partial(self.task.sample_actions, a.name)) for a in self.team}

    def observation_space(self, agent: str) -> Any:
        """Returns the agent's observation space."""
        return self.observation_spaces[self.profile(agent).name]

    def action_space(self, agent: str) -> Any:
        """Returns the agent's action space."""
        return self.action_spaces[self.profile(agent).name]

    def render(self) -> str | None:
        """Returns the transcript (``ansi``), or prints it (``human``)."""
        if self.render_mode is None:
            gymnasium.logger.warn("Nothing is rendered without a mode. Next: make(…, render_mode='ansi') or 'human'.")
            return None
        text = str(self.episode)
        if self.render_mode == "human":
            print(text)
            return None
        return text

    def close(self) -> None:
        """Releases what the task holds (worker processes), if it has a ``close``."""
        optional(self.task, "close")()

    # For drivers -----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Returns whether the episode is over, or none has begun."""
        return self.schedule.done

    @property
    def ready_agents(self) -> list[str]:
        """Returns the current layer's agents that have not acted, in canonical order; [] when the episode is over."""
        return self.schedule.ready

    def select(self, agent: str) -> None:
        """Makes a ready agent the one on turn."""
        self.schedule.expect_ready(agent)
        self.agent_selection = agent
        self._skip_agent_selection = None

    @property
    def layer(self) -> Mapping[str, Turn]:
        """Returns the planned turns of the current layer, those that have acted among them; ``sees``: what is shown."""
        return self.schedule.layer

    def attach(self, agent: str, extras: Mapping[str, Any] | None = None, max_chars: int | None = None) -> None:
        """Puts a driver's data on the agent's next action.

        Args:
            agent: A ready agent.
            extras: Goes to the turn's record (token ids, log-probs); agents never see it.
            max_chars: The limit given to :meth:`messages` for this turn; what it cut is then recorded.
        """
        self.schedule.attach(agent, extras, max_chars)

    def profile(self, agent: str) -> AgentSpec:
        """Returns the agent's specification."""
        return self.schedule.profile(agent)

    def messages(self, agent: str, max_chars: int | None = None) -> list[obs_mod.Message]:
        """Returns the rollout observation as chat messages, whatever the ``observation`` setting.

        Args:
            agent: Any agent of the team.
            max_chars: Cut inputs from the oldest until task text and contributions are this short.
        """
        return obs_mod.to_messages(self.schedule.observation(agent, max_chars))

    def state(self) -> str:
        """Returns the global view as one text: every agent's task observation, all words, and their results."""
        shown: dict[str, list[str]] = {}
        transcript = self.schedule.transcript
        for agent in self.team:
            shown.setdefault(transcript.task_text(agent.name), []).append(agent.role)
        state = [f"[{', '.join(roles)}]\n{text}" if len(shown) > 1 else text for text, roles in shown.items()]
        return "\n\n".join([*state, *(obs_mod.tagged(part) for part in transcript.everything())])

    def team_view(self, agent: str) -> str:
        """Returns what a team critic may see before this layer: the state, and the role of who acts."""
        return f"{self.state()}\n\n({self.profile(agent).role})"

    @property
    def turn_limit(self) -> int:
        """Returns the most turns of an episode in which agents act once a round; at most its task's ``turn_limit``."""
        rounds, each = self.rules.max_rounds, self.rules.max_turns_per_agent
        bounds = (len(self.team) * min(rounds, each or rounds), self.rules.max_turns, optional(self.task, "turn_limit"))
        return min(bound for bound in bounds if bound is not None)

    @property
    def repeats(self) -> bool:
        """Returns whether an agent may act several times in an episode."""
        several = self.rules.max_rounds > 1 or not isinstance(self.dependency, StaticDAG)
        return several and self.rules.max_turns_per_agent != 1

    @property
    def tools(self) -> dict[str, list[dict[str, Any]]]:
        """Returns agent -> the tools that it can call now, as OpenAI's chat API takes them."""
        tools = optional(self.task, "tools")
        return {name: tools(name) for name in self.possible_agents}

    @property
    def view(self) -> View:
        """Returns what the dependency function sees; read-only by convention."""
        return self.schedule.view

    @property
    def episode(self) -> Episode:
        """Returns the record so far (whole once ``done``)."""
        record, numbers = self.schedule.record, optional(self.task, "final_metrics")()
        metrics = {**numbers, **record.metrics} if numbers else record.metrics
        return replace(
            record, env_id=self.env_id, task_id=self.task.task_id, metrics=metrics, env_kwargs=self.env_kwargs
        )

    def fork(self, n: int = 1) -> list[FlexEnv]:
        """Returns n deep copies at this very state, generators included (counterfactuals, trees, groups)."""
        return [copy.deepcopy(self) for _ in range(n)]

    def truncate(self, reason: str, fault: Fault = "") -> None:
        """Ends the episode at a limit without a reward, or because it cannot go on.

        Trainers bootstrap from the layer that would have run, ``episode.planned``. After a failure (``fault``) there is
        nothing to bootstrap from; after the fault of an agent's text, the return is the worst.

        Raises:
            ConfigError: The reason begins with ``error``, ``world_crashed`` or ``world_hung``, and there is no fault.
        """
        if self.done:
            return
        check_end(reason, fault)
        if not fault and self.layer:
            turns = enumerate(self.layer.values(), len(self.view.history))
            self.schedule.record.planned = [self._planned(turn, index) for index, turn in turns]
        self.schedule.truncate(reason, fault)
        self._sync()

    def _planned(self, turn: Turn, index: int) -> PlannedTurn:
        agent, layers = turn.agent, self.schedule.record.layers
        number, role = layers[-1].round if layers else 0, self.profile(agent).role
        record = TurnRecord(index, number, len(layers), agent, role, turn.sees, text="")
        tools, seen = optional(self.task, "tools")(agent), self.task.observe(agent)
        return PlannedTurn(record, seen, self.messages(agent), tools=tools, team_view=self.team_view(agent))


_NAME = re.compile(r"\w[\w.-]*")
_MEMBERS = ("reset", "observe", "on_layer", "on_round", "sample_actions", "task_id", "slow")


def _check_task(task: Any) -> None:
    if missing := [name for name in _MEMBERS if getattr(task, name, None) is None]:
        raise ConfigError(
            f"The task {type(task).__name__} has no {', '.join(missing)}; expected {', '.join(_MEMBERS)}. Next: write"
            " it; docs/custom-tasks.md has a whole one."
        )


def _check_team(agents: Sequence[AgentSpec], render_mode: str | None) -> None:
    if not (names := [agent.name for agent in agents]):
        raise ConfigError("A team needs at least one agent. Next: FlexEnv([AgentSpec('solver_0', 'solver')], task, D).")
    if len(set(names)) < len(names):
        raise ConfigError(f"Agent names must be unique; got {names}. Number them: solver_0, solver_1, …")
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"An agent is called {name!r}; expected letters, digits, '_', '-' and '.', as its policy has a folder"
                " of that name. Next: AgentSpec('solver_0', 'solver')."
            )
    if render_mode not in (None, "human", "ansi"):
        raise ConfigError(f"render_mode must be None, 'human' or 'ansi'; got '{render_mode}'.")
