"""A sandbox for programs that a model wrote: processes that can reach nothing, under limits, on Linux.

``Sandbox`` runs programs, ``Limits`` bounds them. What each layer guarantees is in ``docs/sandbox.md``;
``python -m marft_envs.sandbox`` says which layers hold on this machine.
"""

from __future__ import annotations

from marft_envs.sandbox.layers import LAYERS
from marft_envs.sandbox.pool import Sandbox, shared
from marft_envs.sandbox.types import Call, CallResult, CallStatus, Limits, SandboxError, SandboxUnavailable, StdioResult

__all__ = [
    "LAYERS", "Call", "CallResult", "CallStatus", "Limits", "Sandbox", "SandboxError", "SandboxUnavailable",
    "StdioResult", "shared",
]  # fmt: skip
