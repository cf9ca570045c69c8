"""Who plays which policy, and how each policy is spoken to: templates, tokenizers, contexts; no weights.

Whatever plays episodes needs this and an engine, so it can run where no model is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from marft_algos.models.chat import Chat, Tools
from marft_envs.errors import ConfigError, did_you_mean

Messages = Sequence[Mapping[str, str]]
"""A conversation, with roles system, user and assistant."""


class Renderer:
    """Turns what agents are told into prompts.

    Args:
        chats: Policy id -> chat template of its model. Hosted policies have none: they read the messages themselves.
        agents: Agent -> the policy that plays it.
        trained: Policies that are updated.
    """

    def __init__(self, chats: Mapping[str, Chat], agents: Mapping[str, str], trained: Collection[str] = ()) -> None:
        self._chats, self._agents, self._trained = dict(chats), dict(agents), frozenset(trained)

    @property
    def policies(self) -> list[str]:
        """Policies with a template, in the order the agents name them."""
        return list(self._chats)

    @property
    def agents(self) -> list[str]:
        """Agents whose policy has a template: hosted ones are left out."""
        return [agent for agent, policy in self._agents.items() if policy in self._chats]

    def policy_of(self, agent: str) -> str:
        """Returns the policy an agent plays with, hosted or local."""
        if agent not in self._agents:
            raise ConfigError(f"No policy for agent '{agent}'. {did_you_mean(agent, self._agents)}")
        return self._agents[agent]

    def trains(self, policy: str) -> bool:
        """Returns whether this policy is updated; frozen and hosted ones are not."""
        return policy in self._trained

    def chat(self, policy: str) -> Chat:
        """Returns the chat template of a policy's model, with its tokenizer, context and end tokens."""
        if policy not in self._chats:
            raise ConfigError(f"Unknown policy '{policy}'. {did_you_mean(policy, self._chats)}")
        return self._chats[policy]

    def tokenizer(self, policy: str) -> Any:
        """Returns the tokenizer of a policy's model."""
        return self.chat(policy).tokenizer

    def shows_tools(self, policy: str) -> bool:
        """Returns whether the policy's prompts hold its agent's tools in the template's own form."""
        return self.chat(policy).tools

    def render(self, policy: str, messages: Messages, tools: Tools = ()) -> list[int]:
        """Returns the prompt of one conversation as token ids, by the model's chat template.

        Args:
            policy: Whose template.
            messages: What the agent is told.
            tools: What the agent can call; shown if ``shows_tools``.
        """
        return self.render_many(policy, [messages], [tools])[0]

    def render_many(
        self, policy: str, conversations: Sequence[Messages], tools: Sequence[Tools] | None = None
    ) -> list[list[int]]:
        """Returns the prompts of many conversations; see ``render``."""
        return self.chat(policy).render(conversations, tools) if conversations else []

    def check_context(self, policy: str, messages: Messages, max_new_tokens: int, tools: Tools = ()) -> None:
        """Raises ``ConfigError`` if this prompt and its reply do not fit the model's context."""
        chat, length = self.chat(policy), len(self.render(policy, messages, tools))
        if length + max_new_tokens > chat.context:
            raise ConfigError(
                f"A prompt of policy '{policy}' has {length} tokens and its reply may have {max_new_tokens}, but"
                f" '{chat.spec}' has a context of {chat.context}. Lower --max-new-tokens, shorten the profiles, cut"
                " long inputs with the environment's max_chars, or choose a model with a longer context."
            )
