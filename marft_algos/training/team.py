"""A trained team in Python: plays an environment, answers a problem, and shows what each agent was prompted with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from marft_algos import seeds
from marft_algos.config import arguments, presets
from marft_algos.engines.base import EngineError, refusal
from marft_algos.evaluation import environments
from marft_algos.evaluation.answers import Message, answered, words_of
from marft_algos.evaluation.environments import EnvFactory
from marft_algos.lazy import require_training
from marft_algos.rollout.episodes import Prompts
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.training.environments import env_factory
from marft_algos.training.evaluate import HeldOut
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs import FlexEnv
from marft_envs.core.types import Episode
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.registration import versioned

_CHARS = 16
"""Characters that a token has at most, on average: longer prompts are refused before they are cut into tokens."""


class TrainedTeam:
    """A team as a run or an export has it: ``marft_algos.load_team(RUN)``, ``RUN.team()``.

    Examples:
        >>> team = marft_algos.load_team("runs/first")
        >>> team("Compute (1+2)*3.")
        >>> episode = team.play("math-dual-v0", seed=0)
        >>> episode.turns[0].messages

    Args:
        run: A run, its folder or name, the folder of an export, or a team on the hub (``USER/NAME``).
        env: What it plays where nothing else is named: an id, an environment, or a function that makes one; needed
            where the run was trained on an environment that no file can name. None: the run's held-out problems.
        checkpoint: ``last``, ``best`` or an iteration's number.
        device: Another device than while training.
        temperature: Sample at this temperature, 0: greedily; None: as the run's evaluations do.

    Attributes:
        run: Whose weights they are.
        settings: The run's, with device and temperature as chosen.
        env: What is played where no other environment is named.
        options: Of ``reset``: the profiles that the run has learnt, if any.
        player: Plays as the run's evaluations do: engine, prompts, sampling.

    Raises:
        ConfigError: There is no such team, checkpoint or environment, or its agents are others.
        MissingExtraError: The train extra is not installed.
    """

    def __init__(
        self,
        run: RunFolder | Path | str,
        *,
        env: Any = None,
        checkpoint: str | int = "last",
        device: str = "",
        temperature: float | None = None,
    ) -> None:
        self.run = run if isinstance(run, RunFolder) else RunFolder.find(str(run))
        changes: dict[str, Any] = {"device": device} if device else {}
        settings = paths.of_run(self.run)
        if temperature is not None:
            changes |= {"temperature": temperature or settings.temperature, "eval_greedy": not temperature}
        if settings.env == presets.CUSTOM and env is not None:
            changes["env"], changes["env_kwargs"] = environments.named(env)
        self.settings = settings.changed(**changes)
        require_training()
        held_out = HeldOut(self.settings, 1)
        self.env = held_out.make_env() if env is None else self._factory(env)()
        known = [agent.name for agent in held_out.team]
        if strangers := [name for name in self.env.unwrapped.possible_agents if name not in known]:
            raise ConfigError(
                f"The team of {self.run.root} was trained on {settings.env} and has {', '.join(known)}: nobody plays"
                f" '{strangers[0]}' of {self.env.unwrapped.env_id}. {did_you_mean(strangers[0], known)} Its own game: "
                + arguments.typed("play", settings.env, "--team", str(self.run.root))
            )
        held_out.load(self.run, str(checkpoint))
        self.player = held_out.player
        self.options: dict[str, Any] = {"profiles": held_out.profiles} if held_out.profiles else {}

    def __call__(self, problem: str | Sequence[Message], *, seed: int = 0) -> str:
        """Returns the team's answer to a problem; see ``ask``."""
        return self.ask(problem, seed=seed).answer

    def ask(self, problem: str | Sequence[Message], *, seed: int = 0) -> Episode:
        """Answers a problem; returns the episode, which has ``answer``, and of each turn ``text`` and ``messages``.

        Args:
            problem: Its text; or chat messages, of which there is one, a user's, unless its task reads conversations.
            seed: Of what is sampled, where the team does not reply greedily.

        Raises:
            ConfigError: A problem of the team's environment is more than a text, or there are other messages.
            MarftError: There was no reply, or no answer.
            RefusedPrompt: The problem is too long.
        """
        words = problem if isinstance(problem, str) else words_of(self.env, problem)
        return answered(self.env, words, partial(self.reply, seed=seed), self.options)

    def play(self, env: Any = None, *, seed: int = 0, task_id: str = "") -> Episode:
        """Plays an episode as evaluations do; its turns have ``messages``, what each agent was prompted with.

        Args:
            env: An id, an environment, or a function that makes one; None: the team's own.
            seed: Of the problem, and of what is sampled.
            task_id: The problem's id, where it is not to be drawn.

        Raises:
            ConfigError: The team has no such agents.
            InfrastructureError: An infrastructure error ended the episode.
        """
        options = self.options | ({"task_id": task_id} if task_id else {})
        player = dataclasses.replace(self.player, make_env=self._factory(env or self.env), seed=seed)
        (played,) = player.play(Prompts([seed], [options]))
        for t in played.transitions:
            t.turn.extras = {**(t.turn.extras or {}), "messages": list(t.request.messages)}
        return played.episode

    def reply(self, agent: str, messages: Sequence[Message], env: FlexEnv | None = None, seed: int = 0) -> Generation:
        """Returns what an agent says to these messages, of an environment that has begun; None: ``self.env``."""
        base = (env or self.env).unwrapped
        row = seeds.row_seed(seed, seeds.EVALUATION, 0, len(base.view.history) + list(base.layer).index(agent))
        return self.say(agent, messages, base.tools.get(agent, ()), row)

    def say(
        self, agent: str, messages: Sequence[Message], tools: Any, seed: int, sampling: SamplingParams | None = None
    ) -> Generation:
        """Returns what an agent's policy says to these messages, whatever wrote them.

        Args:
            agent: Whose policy.
            messages: What it reads.
            tools: What it can call.
            seed: Of what is sampled.
            sampling: In place of the team's own.
        """
        renderer = self.player.renderer
        policy = renderer.policy_of(agent)
        local, chars = policy in renderer.policies, sum(len(message["content"]) for message in messages)
        if local and chars > _CHARS * (context := renderer.chat(policy).context):
            return refusal(f"a prompt of {chars} characters does not fit a context of {context} tokens", 0)
        prompt = renderer.render(policy, messages, tools) if local else []
        request = GenerationRequest(policy, prompt, seed=seed, agent=agent, messages=messages, tools=tools)
        answer = self.player.engine.generate([request], sampling or self.player.sampling)[0]
        if answer.stop_reason is StopReason.ERROR:
            raise EngineError(f"Nobody replied as {agent}: {answer.error}")
        return dataclasses.replace(answer, usage=answer.usage or (len(prompt), len(answer.action_ids)))

    def _factory(self, env: Any) -> EnvFactory:
        if not isinstance(env, str):
            return cast(EnvFactory, environments.given(env))
        same = versioned(env) == self.settings.env
        settings = self.settings if same else self.settings.changed(env=env, env_kwargs={})
        return env_factory(settings, settings.env_kwargs)


load_team = TrainedTeam
