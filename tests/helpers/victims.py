"""What hostile programs look for, planted inside the outer jail, and how to see afterwards whether they found it.

The judge that calls ``begin`` is itself a victim: started with ``ARGUMENTS`` and ``ENVIRONMENT``, it has a canary on its
command line and one in its environment. Runs only inside ``tests.helpers.jail``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import stat
from pathlib import Path
from typing import Any

from tests.helpers.jail import HOME, WRITABLE

CANARIES = ("FILE-CANARY", "KEY-CANARY", "ENV-CANARY", "CMDLINE-CANARY", "EXPECTED-CANARY")
CONTROL = "/run/control"
ARGUMENTS = ("--token", "CMDLINE-CANARY")
ENVIRONMENT = {"API_TOKEN": "ENV-CANARY"}
TABLE = "tests.json"  # lies in the judge's folder and in /tmp

Files = dict[str, tuple[int, int, str]]


def begin() -> None:
    """Plants everything, and starts the process that listens."""
    if not os.path.ismount("/victim") or socket.gethostname() != "jail":
        raise SystemExit(
            "tests.helpers.victims: this is no jail; hostile programs run nowhere else (see tests/helpers/jail.py)"
        )
    plant()
    ready, tell = os.pipe()
    if not os.fork():
        os.close(ready)
        os.setsid()
        serve(tell)
    os.close(tell)
    said = os.read(ready, 1000)  # a full stop when all listeners stand
    os.close(ready)
    if said != b".":
        raise SystemExit(f"tests.helpers.victims: cannot listen: {said.decode()}")


def plant() -> None:
    """Plants the files. The judge's folder is ``/tmp/judge``."""
    key = Path(HOME, ".ssh", "id_ed25519")
    key.parent.mkdir(mode=0o700)
    key.write_text("-----BEGIN KEY-CANARY-----\n")
    key.chmod(0o600)
    Path("/victim/secret.txt").write_text("FILE-CANARY\n")
    Path("/victim/secret.txt").chmod(0o600)
    Path("/victim/precious.txt").write_text("as it was\n")
    Path("/victim/lib").mkdir()
    Path("/tmp/judge").mkdir()


def sockets() -> dict[str, socket.socket]:
    """All listeners, by address."""
    found: dict[str, socket.socket] = {}
    streams: dict[str, tuple[socket.AddressFamily, Any]] = {
        "127.0.0.1:40123": (socket.AF_INET, ("127.0.0.1", 40123)),
        "127.0.0.2:40123": (socket.AF_INET, ("127.0.0.2", 40123)),
        "[::1]:40124": (socket.AF_INET6, ("::1", 40124)),
        "/victim/sock": (socket.AF_UNIX, "/victim/sock"),
        "@victim": (socket.AF_UNIX, "\0victim"),
        CONTROL: (socket.AF_UNIX, CONTROL),
    }
    for name, (family, address) in streams.items():
        if family is socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
            continue  # a kernel without IPv6
        found[name] = socket.socket(family)
        found[name].bind(address)
        found[name].listen(64)
    found["127.0.0.1:40125/udp"] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found["127.0.0.1:40125/udp"].bind(("127.0.0.1", 40125))
    return found


def serve(tell: int) -> None:
    """Listens, and answers a connection to the control socket with the contacts since the last one. Never returns."""
    try:
        listeners = sockets()
    except OSError as error:
        os.write(tell, str(error).encode())
        os._exit(1)
    os.write(tell, b".")
    os.close(tell)
    control = listeners.pop(CONTROL)
    contacts: list[str] = []
    while True:
        select.select([control, *listeners.values()], [], [])
        # Whoever asks has waited for the program, so what the program did is ready before the question is.
        asked = control.accept()[0] if select.select([control], [], [], 0)[0] else None
        for name, listener in listeners.items():
            while select.select([listener], [], [], 0)[0]:
                contacts.append(name)
                if name.endswith("udp"):
                    listener.sendto(b"pong", listener.recvfrom(4096)[1])
                else:
                    listener.accept()[0].close()
        if asked:
            with asked, contextlib.suppress(BrokenPipeError):
                asked.sendall(json.dumps(contacts).encode())
            contacts = []


# --- what happened --------------------------------------------------------------------------------------------------


def contacts() -> list[str]:
    """Addresses of the listeners that were contacted since the last question."""
    with socket.socket(socket.AF_UNIX) as plug:
        plug.settimeout(10)
        plug.connect(CONTROL)
        said = b""
        while block := plug.recv(1 << 16):
            said += block
    return json.loads(said)


def files() -> Files:
    """Mode, size and digest of everything in the writable folders."""
    found: Files = {}
    for top in WRITABLE:
        for folder, folders, names in os.walk(top, onerror=lambda error: None):
            folders[:] = [name for name in folders if not os.path.ismount(os.path.join(folder, name))]
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                with contextlib.suppress(FileNotFoundError):
                    found[path] = describe(path)
    return found


def describe(path: str) -> tuple[int, int, str]:
    now = os.lstat(path)
    if stat.S_ISLNK(now.st_mode):
        return now.st_mode, 0, os.readlink(path)
    if not stat.S_ISREG(now.st_mode) or not now.st_size:
        return now.st_mode, 0, ""
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest() if now.st_size < 1 << 22 else str(now.st_mtime_ns)
    except PermissionError:
        digest = "unreadable"
    return now.st_mode, now.st_size, digest


def changed(before: Files, after: Files) -> list[str]:
    """Paths that came, went or changed."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def processes() -> set[int]:
    """Every process of the jail that is alive, in whatever namespace below it."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                state = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in (b"Z", b"X"):
                found.add(int(name))
    return found


def shared_memory() -> list[str]:
    """System V segments, semaphores and queues, and files of POSIX shared memory."""
    kinds = ("shm", "sem", "msg")
    return [f"{k}: {line}" for k in kinds for line in Path("/proc/sysvipc", k).read_text().splitlines()[1:]]


def peak_memory_mb() -> float:
    """The most memory that this process has used since ``forget_peak``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
