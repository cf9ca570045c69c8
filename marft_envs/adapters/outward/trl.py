"""TRL: a team's episodes as rows of ``GRPOTrainer`` (TRL 1.16; extra ``trl``).

A row is one episode as one agent of the team, the *learner*, lived it. Two ways in:

* ``rollout_func=TeamRollout(envs)``. The learner's words are the row's trained tokens. What it reads between two of its
  turns, the others' words among it, stands in the row with ``env_mask`` 0: in context, out of the loss.
* ``environment_factory=environment(make, learner, partners)``. The model plays by calling one tool, ``say``.

Both read the rows of :func:`rows`, in which every prompt names its seed, so that a group of generations plays one task.

>>> envs = marft_envs.make_vec("math-dual-v0", 64, levels=[0])
>>> trainer = GRPOTrainer(model, reward_funcs=team_return, args=config, processing_class=tokenizer,
...     train_dataset=Dataset.from_list(rows(marft_envs.make("math-dual-v0"), ["actor_0"], range(1000))),
...     rollout_func=TeamRollout(envs))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from marft_envs.adapters.optional import require
from marft_envs.adapters.outward.learner_row import LearnerRow, Message, template, total_reward
from marft_envs.core.env import FlexEnv
from marft_envs.core.partners import FixedPartners
from marft_envs.core.types import Episode
from marft_envs.core.vector import Request, VectorEnv
from marft_envs.errors import ConfigError

Say = Callable[[str, Sequence[Message]], str]
"""``(agent, chat messages) -> reply``."""


def rows(env: FlexEnv, learners: Sequence[str], seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Returns data set rows: per seed and learner, a prompt (the learner's profile) that names both.

    Args:
        env: The environment, for its profiles.
        learners: Whose tokens are trained; several share the model, each in rows of its own.
        seeds: Seeds of the episodes.
    """
    require("trl", "trl", "1.16", below="1.17")
    dataset: list[dict[str, Any]] = []
    for seed in seeds:
        for learner in learners:
            named = {"seed": int(seed), "agent": learner}
            profile = env.profile(learner).prompt
            system = [{"role": "system", "content": profile, **named}] if profile else []
            dataset.append({"prompt": [*system, {"role": "user", "content": "", **named}], **named})
    return dataset


def team_return(completions: Sequence[Any], team_return: Sequence[float | None], **_: Any) -> list[float | None]:
    """The reward function: each episode's return from :class:`TeamRollout`; None after an infrastructure error."""
    return list(team_return)


class TeamRollout:
    """A ``rollout_func``: plays the episodes that the prompts name; as many rows go back, in their order.

    On later turns the learner goes on in its own conversation: it reads the new message behind all that it read and
    said before (which the environment's own ``messages`` may not repeat), since a row is scored as one text.

    Args:
        envs: Where the episodes are played, as many at a time as it has slots.
        partners: Speaks for all agents but the learner; None: the model under training does, untrained.
    """

    def __init__(self, envs: VectorEnv, partners: Say | None = None) -> None:
        require("trl", "trl", "1.16", below="1.17")
        self.envs, self.partners = envs, partners

    def __call__(self, prompts: Sequence[Sequence[Message]], trainer: Any) -> dict[str, list[Any] | None]:
        """Returns token ids, log-probs, masks, and per row ``team_return``, ``success``, ``stop_reason``."""
        named = [_named(prompt) for prompt in prompts]
        lived = [LearnerRow(agent) for _, agent in named]
        episodes: dict[int, Episode] = {}
        self.envs.reset([seed for seed, _ in named])
        while not self.envs.done:
            requests = self.envs.poll(wait=True)
            texts = self._play(requests, lived, trainer)
            episodes.update((episode.index, episode) for episode in self.envs.push(requests, texts))
        tokenizer = trainer.processing_class
        for row, prompt in zip(lived, prompts, strict=True):
            row.fill(tokenizer, prompt)
        ended = [episodes[i] for i in range(len(lived))]
        scored = all(row.logprobs is not None for row in lived)
        return {
            "prompt_ids": [row.prompt for row in lived],
            "completion_ids": [row.completion for row in lived],
            "env_mask": [row.mask for row in lived],
            "logprobs": [row.logprobs for row in lived] if scored else None,
            "team_return": [_sum_of_rewards(episode, row.learner) for episode, row in zip(ended, lived, strict=True)],
            "success": [episode.success for episode in ended],
            "stop_reason": [episode.stop_reason for episode in ended],
        }

    def speak(
        self, trainer: Any, requests: Sequence[Request], contexts: list[list[int]]
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """Samples a reply behind each context, as the trainer samples (transformers or vLLM, its temperature).

        Args:
            trainer: The ``GRPOTrainer``.
            requests: Whose turns these are.
            contexts: Their token ids.

        Returns:
            Per turn the token ids of the reply, and their log-probs where the sampler gives them.
        """
        if (sample := getattr(trainer, "_generate_single_turn", None)) is None:
            have = require("trl", "trl").__version__
            raise ConfigError(f"TRL {have} samples otherwise than 1.16 does. Type: pip install 'trl==1.16.*'")
        return sample(contexts, None, {}, 1)

    def _play(self, requests: Sequence[Request], lived: Sequence[LearnerRow], trainer: Any) -> list[str]:
        """One step of every episode: every agent that can act does."""
        tokenizer = trainer.processing_class
        texts, spoken, contexts = [""] * len(requests), [], []
        for i, request in enumerate(requests):
            row = lived[request.episode]
            if request.agent == row.learner:
                contexts.append(row.read(tokenizer, request.messages))
            elif self.partners is not None:
                texts[i] = self.partners(request.agent, request.messages)
                continue
            else:
                contexts.append(template(tokenizer, request.messages))
            spoken.append(i)
        if not spoken:
            return texts
        replies, logprobs = self.speak(trainer, [requests[i] for i in spoken], contexts)
        for k, i in enumerate(spoken):
            texts[i] = tokenizer.decode(replies[k], skip_special_tokens=True)
            row = lived[requests[i].episode]
            if requests[i].agent == row.learner:
                row.add_reply(replies[k], None if logprobs is None else logprobs[k])
        return texts


def environment(make: Callable[[], FlexEnv], learner: str, partners: Mapping[str, Any]) -> Callable[[], Any]:
    """Returns an ``environment_factory``: the model is the learner and speaks by the tool ``say``.

    TRL makes every public method a tool, so the environment stands behind a facade with ``reset``, ``say`` and
    ``get_reward`` only. The model's chat template must know tools. An episode that the model leaves early is truncated
    and keeps its rewards so far.

    Args:
        make: Builds one environment; TRL asks for as many as it plays at once.
        learner: The agent that the model plays.
        partners: The others, as for :class:`marft_envs.core.partners.FixedPartners`.
    """
    require("trl", "trl", "1.16", below="1.17")

    class Environment:
        def __init__(self) -> None:
            self._env = FixedPartners(make(), partners) if partners else make()
            if self._env.possible_agents != [learner]:
                raise ConfigError(
                    f"'{learner}' must be the only agent without a partner; free are {self._env.possible_agents}. "
                    "Next: name every other agent in partners."
                )

        def reset(self, seed: int | None = None, **_: Any) -> str:
            if seed is None:
                raise ConfigError("The data set has no column 'seed'. Next: Dataset.from_list(rows(env, …)).")
            self._env.reset(seed=seed)
            return self._shown()

        def say(self, text: str) -> str:
            """Says something to your team, as your turn.

            Args:
                text: Your words.

            Returns:
                What you see next, or that the episode is over.
            """
            if self._env.unwrapped.done:
                return "The episode is over."
            self._env.select(learner)
            self._env.step(str(text))
            return self._shown()

        def get_reward(self) -> float | None:
            self._env.truncate("left early")
            return _sum_of_rewards(self._env.unwrapped.episode, learner)

        def _shown(self) -> str:
            done = self._env.unwrapped.done
            return "The episode is over." if done else self._env.messages(learner)[-1]["content"]

    return Environment


def _named(prompt: Sequence[Message]) -> tuple[int, str]:
    last = prompt[-1]
    if "seed" not in last or "agent" not in last:
        raise ConfigError("A prompt names no seed and agent. Next: train_dataset=Dataset.from_list(rows(env, …)).")
    return int(last["seed"]), str(last["agent"])


def _sum_of_rewards(episode: Episode, learner: str) -> float | None:
    """The learner's sum of rewards; None for an episode that an infrastructure error ended."""
    return None if episode.infrastructure_error else total_reward(episode, learner)
