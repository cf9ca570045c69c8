"""Whether a fused pass computes what transformers' own does: judged by log-probabilities, against double precision.

Two passes round differently, and some models amplify rounding: a difference alone says little. Most are close enough to
see it at once. Where they are not, both are held against transformers' pass in double precision, and the fused one is
refused if it is off by much more than transformers' own, which is what an error in it looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft_algos.models.forward.families import Unsupported
from marft_algos.models.scoring import head_of, softcap_of

PROBE = (3, 5, 2, 7, 1, 6)
"""Token ids that both passes are compared on first."""
LONG_PROBE = tuple(1 + (7 * i * i + 3 * i) % 31 for i in range(48))
"""Token ids that they are judged on, where that does not show that they agree."""
CLOSE = 1e-4
"""Share of the states' norm: a smaller difference is rounding."""
WORSE = 2.5
"""How many times transformers' own rounding a fused pass may be off: over some tokens of models of 1 to 135 million
parameters the two are within a factor of 1.5 of each other."""


@torch.no_grad()
def agrees(model: PreTrainedModel, dtype: torch.dtype, run: Callable[[Tensor], Tensor]) -> None:
    """Compares a fused pass with transformers'.

    Args:
        model: without adapters.
        dtype: compute dtype of both.
        run: the fused pass: token ids [1, T] -> final hidden states [n, d] of the last n of them.

    Raises:
        Unsupported: it differs by more than rounding.
    """
    ids = torch.tensor([PROBE], device=model.device)
    states = run(ids)
    expected = _theirs(model, ids, dtype)[-len(states) :]
    if float((states.float() - expected.float()).norm()) < CLOSE * float(expected.float().norm()):
        return
    ids = torch.tensor([LONG_PROBE], device=model.device)
    states = run(ids)
    with _in_double(model):
        exact = _logprobs(model, _theirs(model, ids, torch.float64)[-len(states) :])
    ours, theirs = (
        float((_logprobs(model, rows) - exact).square().mean().sqrt())
        for rows in (states, _theirs(model, ids, dtype)[-len(states) :])
    )
    if not ours <= WORSE * theirs:
        raise Unsupported(
            f"differs from its family: its log-probabilities are off by {ours:.2g}, transformers' own by {theirs:.2g}"
        )


def _theirs(model: PreTrainedModel, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the final hidden states [T, d] of transformers' pass."""
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        states: Tensor = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
    return states


def _logprobs(model: PreTrainedModel, states: Tensor) -> Tensor:
    """[n, d] -> [n, V], in double precision from the states on."""
    head, cap = head_of(model), softcap_of(model)
    raw = torch.cat([states.double() @ rows.double().T for rows in head.weight.split(8192)], dim=-1)
    if head.bias is not None:
        raw = raw + head.bias.double()
    return (raw if cap is None else cap * (raw / cap).tanh()).log_softmax(-1)


@contextmanager
def _in_double(model: PreTrainedModel) -> Iterator[None]:
    """Lets the model's blocks and last norm compute in double precision, with one of them widened at a time.

    Norms compute in float32 even so, as transformers writes them: a fifth of what a float32 pass is off by.
    """
    trunk, kept = cast(Any, model.base_model), dict[nn.Parameter, Tensor]()

    def widen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        for parameter in module.parameters():
            kept[parameter] = parameter.data
            parameter.data = parameter.data.double()
        return _doubled(args), _doubled(kwargs)

    def restore(*_: Any) -> None:
        for parameter, data in kept.items():
            parameter.data = data
        kept.clear()

    hooks = []
    for module in (*trunk.layers, trunk.norm):
        hooks += [module.register_forward_pre_hook(widen, with_kwargs=True), module.register_forward_hook(restore)]
    try:
        yield
    finally:
        restore()
        for hook in hooks:
            hook.remove()


def _doubled(value: Any) -> Any:
    """Returns arguments with their floating tensors in double precision."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(map(_doubled, value))
    return {key: _doubled(part) for key, part in value.items()} if isinstance(value, dict) else value
