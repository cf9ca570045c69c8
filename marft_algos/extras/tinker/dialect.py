"""How a server understands the protocol: asked of a throw-away adapter before anything is trained, never assumed.

Servers that speak it differ, mostly without a word: in what a loss is divided by, in whether they clip gradients, in
what they do to weights while an older sampler is at work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from marft_algos.extras.tinker.client import ADAM, Model, TinkerServer, grad_norm, sample
from marft_algos.extras.tinker.wire import Row
from marft_algos.types import FloatArray
from marft_envs.errors import ConfigError

TOKENS = 8
"""Of the reply that the server is asked about."""
NEAR = 0.02
"""Relative difference of gradient norms, and difference of log-probs in nats, that count as none: servers round."""
_STILL = ADAM | {"learning_rate": 0.0}
_CLIPPED = _STILL | {"learning_rate": 30.0, "eps": 1e3, "grad_clip_norm": 1e-6}
"""A step that moves nothing if its gradient is clipped first, whatever the gradient is, and much if it is not."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the probe found."""

    loss: Literal["sum", "mean"]
    """Over tokens and rows, as the protocol says; or each row's mean over its weights, and that of the rows."""
    clips: bool
    """Whether ``grad_clip_norm`` is heeded."""
    old_samplers: bool
    """Whether sampling from older weights leaves the trained ones as they are."""
    end_token: bool
    """Whether a reply holds the token that ended it."""
    gap: float
    """Largest difference between the log-probs of sampler and trainer, in nats."""
    temperature: bool
    """Whether a sampler's log-probs are those of the temperature that was sampled at; else of temperature 1."""
    models: tuple[str, ...] = ()
    """Base models that the server names."""

    def carrier(self, ids: Sequence[int], logprobs: FloatArray, grad: FloatArray, count: int) -> Row:
        """Returns a row whose gradient of ``importance_sampling`` is that of a loss with this gradient.

        Args:
            ids: [T + 1].
            logprobs: [T] at the present weights.
            grad: [T] of the loss with respect to them.
            count: Of the rows that are sent before the step.
        """
        if self.loss == "sum":
            return Row(ids, {"logprobs": logprobs, "advantages": -grad})
        weights = (grad != 0).astype(np.float32)
        advantages = -grad * (weights.sum() * np.float32(count))
        return Row(ids, {"logprobs": logprobs, "advantages": advantages, "weights": weights})


def probe(server: TinkerServer, base: str, vocabulary: int, rank: int, prompt: Sequence[int]) -> Dialect:
    """Finds a server's dialect out, with an adapter that is thrown away.

    Args:
        server: Which one.
        base: The model to stand on, as it is called there.
        vocabulary: Token ids that the model knows.
        rank: Of the adapters.
        prompt: Anything to say something to.

    Raises:
        ConfigError: It does not have the base, or speaks what this cannot train by.
        TinkerError: It fails.
    """
    models = server.models()
    if models and base not in models:
        raise ConfigError(
            f"The server at {server.url} has {', '.join(models)}, and not '{base}'. Name the same model, or what the"
            f' server calls it: --models {models[0]}, or model = "{models[0]}" in the table tinker'
        )
    model = Model(server, base, vocabulary, rank, seed=0)
    try:
        first = model.sampler()

        def reply(**params: Any) -> Any:
            return sample(server, first, prompt, vocabulary, **{"max_tokens": TOKENS, "seed": 7, **params})

        drawn = (reply(temperature=1.0, seed=seed) for seed in range(1, 50))
        said, cold = next(r for r in drawn if len(r.ids) > 1), reply(temperature=0.5)
        greedy = reply(temperature=0.0).ids
        ended = reply(temperature=0.0, stop=[greedy[len(greedy) // 2]]).ids
        texts = [[*prompt, *each.ids] for each in (said, cold)]
        scored = model.forward([Row(text) for text in texts])
        gaps = [_gap(each.logprobs, now) for each, now in zip((said, cold), scored, strict=True)]
        learnt = _ones(len(scored[0]), len(prompt) - 1, len(said.ids))
        model.step([Row(texts[0], {"logprobs": scored[0], "advantages": learnt})], _CLIPPED)  # Adam's first step
        now = model.forward([Row(texts[0])])[0]
        clips, loss = _gap(now, scored[0]) < NEAR, _loss(server, model, texts[0], now, len(said.ids))
        model.step([Row(texts[0], {"logprobs": now, "advantages": learnt})], _STILL | {"learning_rate": 1e-2})
        before = model.forward([Row(texts[0])])[0]
        sample(server, model.sampler(), prompt, vocabulary, max_tokens=1, temperature=1.0, seed=1)
        reply(temperature=1.0)
        kept = _gap(model.forward([Row(texts[0])])[0], before) < NEAR < _gap(before, scored[0])
    finally:
        model.unload()
    if gaps[0] > 1.0:
        raise ConfigError(
            f"The samplers of {server.url} give log-probs that are {gaps[0]:.2f} nats off those that it trains with:"
            " what would be learnt from is not what was sampled. Choose another server."
        )
    ends = bool(ended) and ended[-1] == greedy[len(greedy) // 2]
    return Dialect(loss, clips, kept, ends, gaps[0], gaps[1] > NEAR, tuple(models))


def _loss(
    server: TinkerServer, model: Model, text: Sequence[int], scored: FloatArray, reply: int
) -> Literal["sum", "mean"]:
    """Finds out what a loss is divided by, from norms of gradients: steps at rate 0 tell them, and move nothing."""
    start, half = len(scored) - reply, reply // 2

    def norm(*rows: tuple[int, int, int]) -> float:
        """Of rows whose replies are cut, and have advantages, and weights if any, at so many of their first tokens."""
        made = []
        for cut, learnt, weighed in rows:
            length = start + cut
            inputs = {"logprobs": scored[:length], "advantages": _ones(length, start, learnt)}
            inputs |= {"weights": _ones(length, start, weighed)} if weighed else {}
            made.append(Row(text[: length + 1], inputs))
        return _norm(model.step(made, _STILL))

    row = reply, half, 0
    once = norm(row)
    found = [norm(row, row) / once, norm(row, (reply, 0, 0)) / once, norm((half, half, 0)) / once]
    if np.allclose(found, (2.0, 1.0, 1.0), NEAR):
        return "sum"
    found[2] = norm((reply, half, half)) / norm((reply, half, reply))
    if np.allclose(found, (1.0, 0.5, reply / half), NEAR):
        return "mean"
    raise ConfigError(
        f"The losses of {server.url} are neither sums over tokens and rows, as the protocol says, nor means of rows:"
        f" a row twice, beside an empty row, and alone in the denominator has {', '.join(f'{x:.3g}' for x in found)}"
        " times its gradient. Choose another server."
    )


def _ones(length: int, start: int, count: int) -> FloatArray:
    places = np.arange(length)
    return ((places >= start) & (places < start + count)).astype(np.float32)


def _norm(metrics: Mapping[str, float]) -> float:
    norm = grad_norm(metrics)
    if not norm or not math.isfinite(norm):
        raise ConfigError(
            f"The server's steps do not say the gradient's norm, but {dict(metrics)}: how it divides losses cannot be"
            " found out. Choose a server that says it (SkyRL does)."
        )
    return norm


def _gap(ours: FloatArray, theirs: FloatArray) -> float:
    """Returns the largest difference of log-probs at the end of a text."""
    least = min(len(ours), len(theirs))
    return float(np.abs(ours[-least:] - theirs[-least:]).max())
