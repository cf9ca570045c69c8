"""Nodes of the text pass's graph: what they keep for the way back is little, and the rest is computed again there.

The residual stream, norms and the rotation are float32 whatever the compute dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from marft_algos.models.forward.families import FusedLinear


@dataclass(frozen=True, slots=True)
class Norm:
    """x · scale / rms(x) over the last dimension; the scale is frozen."""

    scale: Tensor
    eps: Tensor
    epsilon: float
    """The same."""
    dtype: torch.dtype
    """In which linear layers behind it compute."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the norm of x, in the dtype of both x and the scale."""
        if x.dtype == torch.float32 and not x.is_cuda:  # torch's own takes a dozen steps on a CPU
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # x is read once
            return (x * torch.addcmul(self.eps, length, length, value=1 / x.shape[-1]).rsqrt_()).mul_(self.scale)
        return F.rms_norm(x, self.scale.shape, self.scale, self.epsilon)

    def again(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Returns the norm of float32 x, and what takes a gradient of it to one of x."""
        if x.is_cuda:  # torch has a kernel for all of it there, and one for the gradient
            return again(self, x)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        root = torch.addcmul(self.eps, length, length, value=1 / x.shape[-1]).rsqrt_()

        def back(up: Tensor) -> Tensor:
            down = up * self.scale
            along = torch.linalg.vecdot(down, x)[..., None].mul_(root.square()).div_(x.shape[-1])
            return down.addcmul_(x, along, value=-1).mul_(root)

        return (x * root).mul_(self.scale), back


def again(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Returns what a function gives, and what takes a gradient of it to one of x."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        y = function(leaf)
    return y.detach(), lambda up: torch.autograd.grad(y, leaf, up)[0]


class Stacked(torch.autograd.Function):
    """Adapters on layers that lie end to end, as one: [r, in] and, scaled, [out, r] with a block for each layer.

    Arguments are the dtype of both, the layers' outputs, and their adapters' scales, then [r, in] and [out, r] of each
    layer; None for one without.
    """

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, sizes: Sequence[int], scales: Sequence[float], *factors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        downs, ups = factors[::2], factors[1::2]
        a = torch.cat([down for down in downs if down is not None]).to(dtype)
        b = a.new_zeros(sum(sizes), len(a))
        ctx.blocks, row, column = [], 0, 0
        for size, up, scale in zip(sizes, ups, scales, strict=True):
            if up is not None:
                ctx.blocks.append((slice(row, row + size), slice(column, column + up.shape[1]), scale))
                torch.mul(up, scale, out=b[ctx.blocks[-1][:2]])
                column += up.shape[1]
            else:
                ctx.blocks.append(None)
            row += size
        return a, b

    @staticmethod
    def backward(ctx: Any, to_a: Tensor, to_b: Tensor) -> tuple[Tensor | None, ...]:
        to_a, grads = to_a.float(), list[Tensor | None]()
        for block in ctx.blocks:
            if block is None:
                grads += [None, None]
            else:
                rows, columns, scale = block
                grads += [to_a[columns], to_b[rows, columns].float().mul_(scale)]
        return None, None, None, *grads


class Rotation(torch.autograd.Function):
    """Rotates [tokens, heads, head_dim] by cosines and signed sines [tokens, 1, head_dim], into a dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(dtype)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors  # back by as much
        return torch.addcmul(up * cos, up.roll(up.shape[-1] // 2, -1), sin, value=-1).to(ctx.dtype), None, None, None


def _product(x: Tensor, linear: FusedLinear, factors: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """Returns x (W + B A)ᵀ + bias, and x Aᵀ where it was needed."""
    a, b = factors
    y = F.linear(x, linear.weight.to(x.dtype), None if linear.bias is None else linear.bias.to(x.dtype))
    if a is None or b is None or linear.merged:
        return y, None
    thin = F.linear(x, a)
    return y.addmm_(thin, b.T), thin


def _product_grad(
    up: Tensor, x: Tensor, linear: FusedLinear, factors: Sequence[Tensor | None], thin: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns the gradients of ``_product`` by x, A and B."""
    a, b = factors
    to_x = up @ linear.weight.to(up.dtype)
    if a is None or b is None:
        return to_x, None, None
    to_thin = up @ b
    if thin is None:
        thin = F.linear(x, a)
    else:
        to_x.addmm_(to_thin, a)
    return to_x, to_thin.T @ x, (thin.T @ up).T  # this way round: the product is wide, not tall


def _gate_up(x: Tensor, linear: FusedLinear, factors: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """As ``_product`` of two layers of one size, [2, n, out]: each result by itself, as activations read them."""
    a, b = factors
    thin = None if a is None or linear.merged else F.linear(x, a)
    both = x.new_empty(2, len(x), linear.sizes[0])
    weights, biases = linear.weight.to(x.dtype).chunk(2), (None,) * 2 if linear.bias is None else linear.bias.chunk(2)
    for i, (y, weight, bias) in enumerate(zip(both, weights, biases, strict=True)):
        torch.mm(x, weight.T, out=y)
        if bias is not None:
            y.add_(bias.to(y.dtype))
        if b is not None and thin is not None:
            y.addmm_(thin, b.chunk(2)[i].T)
    return both, thin


def _gate_up_grad(
    up: tuple[Tensor, Tensor], x: Tensor, linear: FusedLinear, factors: Sequence[Tensor | None], thin: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns the gradients of ``_gate_up`` by x, A and B."""
    a, b = factors
    first, second = linear.weight.to(x.dtype).chunk(2)
    to_x = (up[0] @ first).addmm_(up[1], second)
    if a is None or b is None:
        return to_x, None, None
    first, second = b.chunk(2)
    to_thin = (up[0] @ first).addmm_(up[1], second)
    if thin is None:
        thin = F.linear(x, a)
    else:
        to_x.addmm_(to_thin, a)
    return to_x, to_thin.T @ x, torch.cat([(thin.T @ part).T for part in up])


class Normed(torch.autograd.Function):
    """A norm of float32 x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Norm) -> Tensor:
        ctx.save_for_backward(x)
        ctx.norm = norm
        return norm(x)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ctx.norm.again(x)[1](up), None


class NormLinear(torch.autograd.Function):
    """A norm and the linear layers that read it, with gradients to x, A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Norm, linear: FusedLinear, a: Tensor | None, b: Tensor | None) -> Tensor:
        y, thin = _product(norm(x).to(norm.dtype), linear, (a, b))
        ctx.save_for_backward(x, a, b, thin)
        ctx.norm, ctx.linear = norm, linear
        return y

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, a, b, thin = ctx.saved_tensors
        normed, back = ctx.norm.again(x)
        to_normed, to_a, to_b = _product_grad(up, normed.to(up.dtype), ctx.linear, (a, b), thin)
        return back(to_normed.float()) if ctx.needs_input_grad[0] else None, None, None, to_a, to_b


class FeedForward(torch.autograd.Function):
    """What follows attention in a block: its output, and the gated feed-forward behind a norm, both residual."""

    @staticmethod
    def forward(
        ctx: Any,
        attended: Tensor,
        x: Tensor,
        norm: Norm,
        linears: list[FusedLinear],
        act: Callable[[Tensor], Tensor],
        *factors: Tensor | None,
    ) -> Tensor:
        out, gate_up, down = linears
        y, thin_out = _product(attended, out, factors[:2])
        x = x + y
        both, thin_gate = _gate_up(norm(x).to(attended.dtype), gate_up, factors[2:4])
        gate, up = both
        gated = act(gate)
        gated = gated * up if gated is gate else gated.mul_(up)  # no activation: gate itself is kept
        y, thin_down = _product(gated, down, factors[4:])
        ctx.save_for_backward(attended, x, both, thin_out, thin_gate, thin_down, *factors)
        ctx.norm, ctx.linears, ctx.act = norm, linears, act
        return x + y

    @staticmethod
    def backward(ctx: Any, to_hidden: Tensor) -> tuple[Tensor | None, ...]:
        attended, x, both, thin_out, thin_gate, thin_down, *factors = ctx.saved_tensors
        out, gate_up, down = ctx.linears
        gate, up = both
        gated, to_gate = again(ctx.act, gate)
        to_product, *to_down = _product_grad(to_hidden.to(both.dtype), gated * up, down, factors[4:], thin_down)
        to_up = to_product * gated
        to_both = to_gate(to_product.mul_(up)), to_up
        normed, back = ctx.norm.again(x)
        to_normed, *to_gate_up = _gate_up_grad(to_both, normed.to(both.dtype), gate_up, factors[2:4], thin_gate)
        to_x = back(to_normed.float()).add_(to_hidden)
        to_attended, *to_out = _product_grad(to_x.to(both.dtype), attended, out, factors[:2], thin_out)
        return to_attended, to_x, None, None, None, *to_out, *to_gate_up, *to_down
