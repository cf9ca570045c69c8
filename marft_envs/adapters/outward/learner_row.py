"""One agent's view of an episode as one row of tokens, for trainers that take a prompt and a masked completion.

The row is a conversation: what the learner reads first is the prompt; its words, and what it reads between them, are
the completion, of which its words alone are trained. It is sampled as it is scored: behind all that stands before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marft_envs.core.types import Episode

Message = Mapping[str, Any]
_MARK = "\x02reply\x03"
"""Stands for a reply while a chat template is asked for what follows one."""


@dataclass(slots=True)
class LearnerRow:
    """A row while its episode is played."""

    learner: str
    prompt: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1: the learner's own token; 0: what it read."""
    logprobs: list[float] | None = field(default_factory=list)
    """As sampled, 0 for what was read; None where the sampler gave none."""

    def read(self, tokenizer: Any, messages: Sequence[Message]) -> list[int]:
        """Takes in what the learner sees on its turn; returns the token ids behind which it speaks."""
        if not self.prompt:
            self.prompt = template(tokenizer, messages)
        else:
            heard = _after_reply(tokenizer, messages[-1], self.completion)
            self._add(heard, [0.0] * len(heard), 0)
        return self.prompt + self.completion

    def add_reply(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Takes the learner's own tokens."""
        self._add(ids, logprobs, 1)

    def fill(self, tokenizer: Any, messages: Sequence[Message]) -> None:
        """For a learner that was never asked: there is nothing to train on, but a trainer wants a token."""
        if not self.completion:
            self.prompt = template(tokenizer, messages)
            self._add([tokenizer.eos_token_id], [0.0], 0)

    def _add(self, ids: Sequence[int], logprobs: Sequence[float] | None, mask: int) -> None:
        self.completion.extend(ids)
        self.mask.extend([mask] * len(ids))
        if logprobs is None:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs.extend(logprobs)


def template(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Returns the token ids of chat messages and the start of a reply."""
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def total_reward(episode: Episode, learner: str) -> float:
    """An agent's sum of rewards: the team's, those of all turns, and its own."""
    return episode.team_return + sum(layer.agent_rewards.get(learner, 0.0) for layer in episode.layers)


def _after_reply(tokenizer: Any, message: Message, reply: Sequence[int]) -> list[int]:
    """What stands between a reply and the next: the end of the one, a message, the start of the other."""
    talk = [{"role": "user", "content": ""}, {"role": "assistant", "content": _MARK}, message]
    text = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False).rpartition(_MARK)[2]
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return ids[1:] if reply[-1] == ids[0] else ids  # a reply that was not cut has said its end itself
