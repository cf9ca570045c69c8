"""CUDA graphs on the pretended GPU: a capture records operations without effect, and a replay runs just those.

What a step does in Python happens once, while it is captured, as with a real graph: a number that the host counts, or a
tensor that it replaces, stays what it was. What a GPU cannot capture (the host looks at a value) is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

capturing: Graph | None = None


class Graph:
    """Stands in for ``torch.cuda.CUDAGraph``; works on the tensors inside the pretended ones."""

    def __init__(self) -> None:
        self.replays = 0
        self._operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation, and remembers it and what it writes to."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                storage = value.untyped_storage()
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        result = func(*args, **kwargs)
        outputs, inputs = _tensors(result), {part.untyped_storage().data_ptr() for part in _tensors((args, kwargs))}
        if func._schema.is_mutable:
            self._operations.append((func, args, kwargs, []))
        elif not any(part.untyped_storage().data_ptr() in inputs for part in outputs):  # a view needs no replay
            self._operations.append((func, args, kwargs, outputs))
        return result

    def undo(self) -> None:
        """Puts back what was written to while it was captured: no kernel has run."""
        for storage, before in self._before.values():
            storage.copy_(before)

    def pool(self) -> tuple[int, int]:
        """Names its memory."""
        return 0, 1

    def replay(self) -> None:
        """Runs the operations, on the same tensors."""
        self.replays += 1
        for func, args, kwargs, outputs in self._operations:
            values = _tensors(func(*args, **kwargs))
            for output, value in zip(outputs, values, strict=False):  # what writes in place has none
                output.copy_(value)


def mapped(change: Callable[[Any], Any], part: Any) -> Any:
    """``tree_map`` over what operations take and give, which are thousands: in a fifth of its time."""
    kind = type(part)
    if kind is tuple or kind is list:
        return kind([mapped(change, each) for each in part])
    if kind is dict:
        return {key: mapped(change, each) for key, each in part.items()}
    return change(part)


def _tensors(tree: Any) -> list[Tensor]:
    found = list[Tensor]()
    mapped(lambda part: found.append(part) if isinstance(part, Tensor) else None, tree)
    return found


def forbid(what: str) -> None:
    """Fails where a GPU would, if something is captured."""
    if capturing is not None:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")


class Stream:
    """A stream; everything runs in order anyway."""

    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, _: Stream) -> None:
        """Does nothing."""


@contextmanager
def graph(recorder: Graph, **_: Any) -> Iterator[None]:
    """Stands in for ``torch.cuda.graph``."""
    global capturing
    capturing = recorder
    try:
        yield
    finally:
        capturing = None
        recorder.undo()


STANDS_IN: dict[str, Callable[..., Any]] = {
    "CUDAGraph": Graph, "graph": graph, "Stream": Stream, "stream": nullcontext, "current_stream": Stream,
    "is_current_stream_capturing": lambda: capturing is not None,
}  # fmt: skip
"""What replaces functions and classes of ``torch.cuda``."""
