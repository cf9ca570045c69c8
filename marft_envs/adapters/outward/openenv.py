"""OpenEnv: a team's environment behind a server, one episode a session (openenv 0.10; extra ``openenv``).

The action names the agent. An observation holds what every agent sees who can act now, so that a layer can be answered
in any order, one action each.

>>> app = server("math-debate-v0", levels=[0])          # uvicorn my_module:app --port 8000
>>> with TeamClient(base_url="http://localhost:8000").sync() as env:
...     seen = env.reset(seed=3).observation
...     while not seen.done:
...         agent = seen.ready[0]
...         seen = env.step(TeamAction(agent=agent, text=reply(agent, seen.messages[agent]))).observation
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import marft_envs
from marft_envs.adapters.optional import require
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError

_core: Any = require("openenv.core", "openenv", "0.10", below="0.11")
_server: Any = require("openenv.core.env_server", "openenv", "0.10", below="0.11")
_Action: Any = _server.Action
_Observation: Any = _server.Observation
_State: Any = _server.State


class TeamAction(_Action):
    """What one agent says."""

    agent: str
    """The agent that acts; one of ``ready``."""
    text: str


class TeamObservation(_Observation):
    """What there is to do; ``reward`` is the sum of this step's team reward and turn rewards."""

    ready: list[str] = []  # noqa: RUF012 - a pydantic field: copied for every object
    """Agents of the current layer that have not acted."""
    messages: dict[str, list[dict[str, str]]] = {}  # noqa: RUF012
    """Chat messages of every ready agent."""
    rewards: dict[str, float] = {}  # noqa: RUF012
    """What the attribution rule gave each agent with this step."""
    success: bool | None = None
    stop_reason: str = ""


class TeamState(_State):
    """Where the session's episode stands."""

    env_id: str = ""
    task_id: str = ""
    round: int = 0
    turns: list[dict[str, str]] = []  # noqa: RUF012
    """Committed turns: agent and text."""


_Environment: Any = _server.Environment[TeamAction, TeamObservation, TeamState]


class TeamEnvironment(_Environment):
    """One session's environment.

    Args:
        make: Builds the environment; no other session uses it.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, make: Callable[[], FlexEnv]) -> None:
        super().__init__()
        self._env = make()
        self._team_return = 0.0
        self._episode_id: str | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, options: dict[str, Any] | None = None, **_: Any
    ) -> TeamObservation:
        """Starts an episode; ``options`` go to the task (``{"task_id": …}`` picks the problem)."""
        self._env.reset(seed=seed, options=options)
        self._episode_id, self._team_return = episode_id, 0.0
        return self._observation()

    def step(self, action: TeamAction, timeout_s: float | None = None, **_: Any) -> TeamObservation:
        """Takes one agent's words; the layer commits with its last."""
        if self._env.done:
            raise ConfigError("There is no episode to act in. Next: reset(seed=…).")
        self._env.select(action.agent)
        self._env.step(action.text)
        return self._observation()

    @property
    def state(self) -> TeamState:
        """Where the episode stands."""
        episode = self._env.unwrapped.episode
        return TeamState(
            episode_id=self._episode_id,
            step_count=len(episode.turns),
            env_id=episode.env_id,
            task_id=episode.task_id,
            round=self._env.view.round,
            turns=[{"agent": turn.agent, "text": turn.text} for turn in episode.turns],
        )

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _observation(self) -> TeamObservation:
        env, episode = self._env, self._env.unwrapped.episode
        before, self._team_return = self._team_return, episode.team_return
        ready = env.ready_agents
        return TeamObservation(
            ready=ready,
            messages={agent: env.messages(agent) for agent in ready},
            rewards=dict(env.rewards),
            reward=self._team_return - before,
            done=env.done,
            success=episode.success,
            stop_reason=episode.stop_reason if env.done else "",
        )


def server(id: str, max_sessions: int = 64, **kwargs: Any) -> Any:
    """Returns the FastAPI application that serves an environment, one instance a session.

    Args:
        id: Of the environment.
        max_sessions: Sessions at the same time; more are refused.
        **kwargs: The environment's own; it is built once here, so that a wrong one is an error before anyone connects.
    """
    make = partial(marft_envs.make, id, **kwargs)
    make().close()
    return serve(make, max_sessions)


def serve(make: Callable[[], FlexEnv], max_sessions: int = 64) -> Any:
    """As :func:`server`, with a function that builds the environment."""
    build = partial(TeamEnvironment, make)
    return _server.create_app(build, TeamAction, TeamObservation, max_concurrent_envs=max_sessions, state_cls=TeamState)


_Client: Any = _core.EnvClient[TeamAction, TeamObservation, TeamState]


class TeamClient(_Client):
    """Plays on a server; ``.sync()`` for use without asyncio."""

    def _step_payload(self, action: TeamAction) -> dict[str, Any]:
        return {"agent": action.agent, "text": action.text}

    def _parse_result(self, payload: dict[str, Any]) -> Any:
        reward, done = payload.get("reward"), payload.get("done", False)
        seen = TeamObservation(**payload["observation"], reward=reward, done=done)
        return _core.client_types.StepResult(observation=seen, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> TeamState:
        return TeamState(**payload)
