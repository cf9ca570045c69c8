"""A pretended GPU: tensors that compute on the CPU, say that they are on ``cuda:0``, and count what a GPU would wait for.

``FakeTensorMode`` has no values, so that a loop which looks at a token cannot go on; torch's build for CPUs lets no
tensor of device type cuda take part in autograd. These tensors carry real values, and autograd takes them for the CPU's;
Python sees device ``cuda:0``. An operation on tensors of both devices fails as it does on a GPU.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing

from helpers import pretend_graph

CUDA = torch.device("cuda:0")
CPU = torch.device("cpu")
OURS = str(Path(__file__).parents[2] / "marft_algos")
aten = torch.ops.aten
WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.equal, aten.is_nonzero}
"""Operations whose result, or its shape, the host has to wait for."""
BETWEEN = {aten.copy_, aten._to_copy}
"""Operations on tensors of two devices."""
MASKED = {aten.index, aten.index_put_, aten.index_put, aten._index_put_impl_}
"""Operations that a mask is turned into places for; their indices may be the CPU's."""


FILLED = {torch.arange, torch.empty, torch.zeros, torch.ones, torch.full, torch.eye}
"""Functions that fill a tensor where it is made."""


class Waits:
    """What the host has waited for: number of times by operation and by line of the package."""

    def __init__(self) -> None:
        self.by_line: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_line.values())

    def note(self, what: str) -> None:
        """Counts one, at the innermost line of ``marft_algos``."""
        pretend_graph.forbid(what)
        ours = [frame for frame in traceback.extract_stack() if frame.filename.startswith(OURS)]
        where = f"{Path(ours[-1].filename).relative_to(OURS)}:{ours[-1].name}" if ours else "outside"
        self.by_line[f"{where} {what}"] += 1


_waits = Waits()


class PretendCuda(Tensor):
    """A tensor that says it is on ``cuda:0``; ``inner`` holds its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> PretendCuda:
        made: PretendCuda = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, real.size(), real.stride(), real.storage_offset(), dtype=real.dtype, device=CPU
        )
        made.inner = real
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """``cuda:0``."""
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True."""
        return True

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"PretendCuda({self.inner})"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.numpy:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        if func is Tensor.tolist:
            _waits.note("tolist")
            return args[0].inner.tolist()
        if func is Tensor.untyped_storage:
            return args[0].inner.untyped_storage()
        if func is Tensor.data_ptr:
            return args[0].inner.data_ptr()
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            if not isinstance(args[1], PretendCuda):
                raise RuntimeError("a tensor on cuda:0 was given data on cpu")
            args[0].inner = args[1].inner
        if func is torch.nn.functional.one_hot:  # it makes a tensor where C++ says that its argument is
            return PretendCuda(func(args[0].inner, *args[1:], **kwargs))
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = list[Tensor]()

        def unwrap(part: Any) -> Any:
            if isinstance(part, Tensor):
                tensors.append(part)
            return part.inner if isinstance(part, PretendCuda) else part

        inside = pretend_graph.mapped(unwrap, args), pretend_graph.mapped(unwrap, kwargs)
        op = func.overloadpacket
        checked = tensors
        if op in MASKED:
            # A mask of the CPU's may choose places on the GPU, but not the other way round.
            checked = [part for i, part in enumerate(args) if i != 1 and isinstance(part, Tensor)]
            checked += [part for part in args[1] if isinstance(part, cls)]
            masks = any(part is not None and part.dtype == torch.bool for part in args[1])
            if masks and (op is aten.index or args[2].numel() > 1):  # one value is filled in under the mask
                _waits.note("mask")
        if op not in BETWEEN and len({type(part) for part in checked if part.dim() or type(part) is cls}) > 1:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({op})"
            )
        if op is aten.copy_ and not isinstance(args[0], cls):
            _waits.note("copy_")
            return args[0].copy_(args[1].inner)
        if op in WAITS:
            _waits.note(str(op).removeprefix("aten."))
        graph = pretend_graph.capturing
        result = func(*inside[0], **inside[1]) if graph is None else graph.record(func, *inside)
        result = pretend_graph.mapped(lambda part: PretendCuda(part) if isinstance(part, Tensor) else part, result)
        return return_and_correct_aliasing(func, args, kwargs, result)


class _Devices(TorchFunctionMode):
    """Moves tensors between the CPU and the pretended GPU, and makes them there."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cpu:
            func, args = Tensor.to, (args[0], CPU)
        if func is Tensor.cuda:
            func, args = Tensor.to, (args[0], CUDA)
        wanted = kwargs.get("device")
        if func is Tensor.to:
            parts = [part for part in args[1:] if isinstance(part, (str, torch.device))]
            wanted = wanted or (parts[0] if parts else None)
            args = tuple(part for part in args if not isinstance(part, (str, torch.device)))
        if wanted is None or func in (torch.Generator,):
            return func(*args, **kwargs)
        where = torch.device(wanted)
        if func is Tensor.to:
            kinds = [part for part in (*args[1:], kwargs.get("dtype")) if isinstance(part, torch.dtype)]
            return self._moved(args[0], where, kinds[0] if kinds else args[0].dtype)
        if where.type != "cuda":
            return func(*args, **kwargs)
        if func not in FILLED:  # from the host's memory
            pretend_graph.forbid(func.__name__)
        return _sent(func(*args, **{**kwargs, "device": CPU}))

    def _moved(self, tensor: Tensor, where: torch.device, dtype: torch.dtype) -> Tensor:
        tensor = tensor.to(dtype)
        if where.type == "cuda":
            return _sent(tensor)
        if not isinstance(tensor, PretendCuda):
            return tensor
        if tensor.requires_grad and torch.is_grad_enabled() and not tensor.is_leaf:
            raise NotImplementedError("the pretended GPU does not carry gradients between devices")
        _waits.note("to cpu")
        return tensor.detach().inner.clone().requires_grad_(tensor.requires_grad)


def _sent(tensor: Tensor) -> Tensor:
    """Returns the tensor on the pretended GPU."""
    if isinstance(tensor, PretendCuda):
        return tensor
    if tensor.grad_fn is not None:
        raise NotImplementedError("the pretended GPU does not carry gradients between devices")
    return PretendCuda(tensor.detach().clone()).requires_grad_(tensor.requires_grad)


@contextmanager
def counting() -> Iterator[Waits]:
    """Counts what the host waits for."""
    global _waits
    before, _waits = _waits, Waits()
    try:
        yield _waits
    finally:
        _waits = before


def _on_the_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with a CPU's device type for a GPU's."""

    def call(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return call


@contextmanager
def pretend_gpu() -> Iterator[None]:
    """Lets torch pretend to have a GPU, for models that are built in here."""
    with pytest.MonkeyPatch.context() as patch, _Devices():
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        for name in ("__enter__", "__exit__"):  # tensors with values inside cannot be inference tensors
            patch.setattr(torch.inference_mode, name, getattr(torch.no_grad, name))
        patch.setattr(torch.cuda, "get_rng_state_all", lambda: [])
        for name in ("autocast", "is_autocast_enabled", "get_autocast_dtype"):  # autograd takes these for a CPU's
            patch.setattr(torch, name, _on_the_cpu(getattr(torch, name)))
        patch.setattr(torch.amp, "autocast", torch.autocast)
        for name, stands_in in pretend_graph.STANDS_IN.items():
            patch.setattr(torch.cuda, name, stands_in)
        patch.setattr(torch.cuda, "mem_get_info", lambda _: (80 << 30, 80 << 30))
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            yield
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
