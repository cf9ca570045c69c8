"""Whether a server samples from the weights that are trained: server and learner score one fixed text.

A server with another base model, or with an adapter of an earlier version, answers every request. Its replies would be
trained on, and the mean difference of log-probs over a batch hides one replica among many. So each replica is checked
by itself: whenever it takes an adapter, at a publish or after it was started again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft_algos.engines.http import NONSENSE, EngineServer
from marft_algos.models.policy import PolicySet
from marft_algos.types import FloatArray
from marft_envs.errors import ConfigError

_PROMPT = "Ann has 12 apples, and Ben has 3 times as many. They eat 7 of them. How many are left?"
_REPLY = "Ben has 3*12=36 apples. Together they have 12+36=48, and 48-7=41 are left. The answer is 41."
LARGEST = 10.0
"""Largest difference that is allowed, in allowed means."""


@dataclass(frozen=True)
class Agreement:
    """How far a server's log-probs are from the learner's, in nats."""

    mean: float
    p99: float
    max: float

    @classmethod
    def of(cls, one: FloatArray, other: FloatArray) -> Agreement:
        """Compares the log-probs [L] of one text."""
        gaps = np.abs(one.astype(np.float64) - other)
        return cls(float(gaps.mean()), float(np.quantile(gaps, 0.99)), float(gaps.max()))

    def within(self, mean: float) -> bool:
        """Returns whether rounding that causes differences of this mean explains it."""
        return self.mean <= mean and self.max <= LARGEST * mean


def text(policies: PolicySet, policy: str) -> list[int]:
    """Returns the token ids that are scored: a chat of the policy's template, with a reply."""
    ids = policies.renderer.render(policy, [{"role": "user", "content": _PROMPT}])
    ids = ids + policies.renderer.chat(policy).tokenizer.encode(_REPLY, add_special_tokens=False)
    return ids[: policies.base(policy).chat.context - 1]


def learner(policies: PolicySet, policy: str, ids: list[int]) -> FloatArray:
    """Returns the learner's log-probs [L - 1] of all tokens but the first, under its present weights."""
    rows, mask = _row(policies, ids)
    with torch.no_grad():
        return _numbers(policies.logprobs(policy, rows, mask)[0])


def base(policies: PolicySet, policy: str, ids: list[int]) -> FloatArray:
    """Returns the log-probs [L - 1] under the weights that the policy started from."""
    rows, mask = _row(policies, ids)
    return _numbers(policies.reference_logprobs(policy, rows, mask))


def server(server: EngineServer, model: str, ids: list[int]) -> FloatArray:
    """Returns a server's log-probs [L - 1] of all tokens but the first.

    Raises:
        ConfigError: It sends none.
        ServerDown, ServerRefused: It does not answer.
    """
    body = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
    answer = server.post("/v1/completions", body | {"add_special_tokens": False})
    try:
        scored = answer["choices"][0]["prompt_logprobs"][1:]
        return np.array([row[str(i)]["logprob"] for row, i in zip(scored, ids[1:], strict=True)], np.float32)
    except NONSENSE as error:
        said = server.masked(str(answer))[:200]
        raise ConfigError(
            f"The vLLM server at {server.url} does not score a prompt (prompt_logprobs), so its weights cannot be"
            f" compared with the learner's: {said}. Expected a vLLM server of version 0.10.2 or later."
        ) from error


def refused(what: str, gap: Agreement, allowed: float, other: str) -> ConfigError:
    """Returns the error of a server whose log-probs are not the learner's.

    Args:
        what: Has been scored there, in words.
        gap: To the learner.
        allowed: Mean difference.
        other: What it has that the learner has not: another base model, or another adapter.
    """
    return ConfigError(
        f"The log-probs of {what} are not the learner's: they differ by {gap.mean:.3g} nats a token (at most"
        f" {gap.max:.3g}), and rounding explains {allowed:.3g} ({LARGEST * allowed:.3g}). Its {other} is another. Start"
        " the server with the model of this run, and a folder of adapters that both see (adapter_dir). Where weights"
        f" differ on purpose, as those of a quantized server do: weights_tolerance = {2 * gap.mean:.2g}"
    )


def _row(policies: PolicySet, ids: list[int]) -> tuple[Tensor, Tensor]:
    rows = torch.tensor([ids], device=policies.device)
    return rows, torch.arange(len(ids), device=policies.device)[None] > 0


def _numbers(scores: Tensor) -> FloatArray:
    return np.asarray(scores[0].float().cpu(), np.float32)
