"""The layers: what each is made of, what it guarantees, whether it holds here, and what to do where it does not."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable
from typing import Any

from marft_envs.sandbox import selftest, syscalls
from marft_envs.sandbox.selftest import TESTED, Failure
from marft_envs.sandbox.types import SandboxUnavailable

LAYERS = ("namespaces+landlock+seccomp", "namespaces+seccomp", "landlock+seccomp", "bubblewrap+seccomp", "remote")
"""Best first. ``auto`` takes the first of the local ones that passes its self-test."""

LOCAL = LAYERS[:-1]

_EXTRA = {
    "namespaces": ("own_processes", "own_network", "own_root"),
    "bubblewrap": ("own_processes", "own_network", "own_root"),
    "landlock": ("twice_no_files",),
}


def mechanisms(layer: str) -> frozenset[str]:
    """What a layer is made of."""
    return frozenset(layer.split("+"))


def guarantees(parts: Iterable[str]) -> frozenset[str]:
    """What a layer made of these mechanisms guarantees once its self-test has passed."""
    return frozenset([*TESTED, *(name for part in parts for name in _EXTRA.get(part, ()))])


def remedy(failure: Failure, layer: str) -> str:
    """How to fix a failure."""
    call, number = failure.call, failure.errno
    if "bwrap" in call or ("bubblewrap" in layer and failure.guarantee == "start"):
        if number == errno.ENOENT:
            return "apt install bubblewrap (or your system's package of that name)"
        return "bubblewrap needs user namespaces or a setuid bwrap; see the fixes of the first layer"
    if call == "unshare" and number == errno.ENOSPC:
        return "sysctl -w user.max_user_namespaces=10000"
    if call == "unshare" or call.startswith("write /proc"):
        return (
            "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 where they "
            "exist; in a container: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        )
    if call.startswith("mount") or call in ("pivot_root", "umount2"):
        return (
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; in a container: docker run --security-opt "
            "apparmor=unconfined --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
        )
    if call.startswith("landlock"):
        return "Linux 5.13 or later with lsm=landlock,… on the kernel's command line; in a container Docker 23 or later"
    return "run where the kernel offers it, or use the remote service: python -m marft_envs.sandbox serve"


_REPORTS: dict[str, tuple[Failure, ...]] = {}
_LOCK = threading.Lock()


def forget_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    global _LOCK
    _LOCK = threading.Lock()


def check(layer: str) -> tuple[Failure, ...]:
    """Runs the self-test of a local layer, once per process. Nothing: it holds."""
    with _LOCK:
        if layer not in _REPORTS:
            _REPORTS[layer] = _check(layer)
        return _REPORTS[layer]


def _check(layer: str) -> tuple[Failure, ...]:
    if not syscalls.SUPPORTED:
        text = f"the local layers need Linux on x86_64 or aarch64; this is {syscalls.MACHINE or 'another system'}"
        return (Failure("start", "uname", 0, text),)
    failures = tuple(selftest.failures(mechanisms(layer)))
    if failures and not any(failure.errno for failure in failures):
        # Nobody refused anything: before a layer is given up, once more, in case the machine was only busy.
        failures = tuple(selftest.failures(mechanisms(layer)))
    return failures


def describe(layer: str, failures: Iterable[Failure]) -> str:
    """The failures of a layer, one a line, each with its fix."""
    lines = []
    for failure in failures:
        number = f" ({errno.errorcode.get(failure.errno, failure.errno)})" if failure.errno else ""
        missing = TESTED.get(failure.guarantee, "the worker shuts itself in")
        lines.append(f"  {layer}: not given: {missing}. {failure.call}{number}: {failure.text}")
        lines.append(f"    fix: {remedy(failure, layer)}")
    return "\n".join(lines)


def choose(wanted: str) -> str:
    """The layer to use: the named one if it holds, the best that holds for ``auto``.

    Raises:
        SandboxUnavailable: There is none; the message names what is missing and what to do.
    """
    failures_of: dict[str, Any] = {}
    for layer in LOCAL if wanted == "auto" else (wanted,):
        failures_of[layer] = check(layer)
        if not failures_of[layer]:
            return layer
    reasons = "\n".join(describe(layer, failures) for layer, failures in failures_of.items())
    what = "no layer of the sandbox holds here" if wanted == "auto" else f"the sandbox's layer '{wanted}' does not hold"
    raise SandboxUnavailable(
        f"{what}, so no program is run.\n{reasons}\n"
        "Or run the service on a machine where a layer holds (python -m marft_envs.sandbox serve) and use "
        "Sandbox(layer='remote', url='http://TOKEN@HOST:PORT')."
    )
