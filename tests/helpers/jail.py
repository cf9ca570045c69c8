"""An outer jail for hostile programs: nothing that runs in it can reach, change, signal or outlive anything outside.

The command runs as an unprivileged user (as root: an unused uid; else: the same uid, in a user namespace) in PID,
mount, network, IPC and UTS namespaces of its own. It sees a root folder made for it: the interpreter, the system's
libraries and the named folders read-only, and small temporary file systems. Resource limits hold per process, and a
control group over all of them where one can be made. The deadline is kept from outside, by killing the first process
of the PID namespace, which kills all others. Inside, user namespaces, mounts, Landlock and seccomp still work, so that
the sandbox under test can use them; ``userns=False`` gives a jail where no user namespace can be made.

The jail relies on nothing but the kernel: it imports only the standard library, and starts itself as a fresh process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import os
import platform
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOME, UID, NOBODY = os.path.join("/home", "user"), 61234, 65534
PROJECT = "/opt/marft"  # where the jail shows the project
WRITABLE = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/victim", HOME)
INHERITED = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}  # Python may need it

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
PDEATHSIG, DUMPABLE, CAPBSET_DROP, NO_NEW_PRIVS = 1, 4, 24, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR = 442

libc = ctypes.CDLL(None, use_errno=True)


class JailUnavailable(RuntimeError):
    """This machine cannot make the jail; the message names the step that failed."""


@dataclass(frozen=True)
class JailLimits:
    """What one jail may use. The limits on processes and memory hold for all of its processes together where a
    control group can be made (``cgroup_folders()``); without one the limit on memory holds for each process."""

    wall_s: float = 30.0
    cpu_s: int = 120  # of one process
    processes: int = 200
    memory_mb: int = 3072
    address_mb: int = 4096  # of one process; 0: none
    file_mb: int = 256
    tmp_mb: int = 256  # of each writable folder
    inodes: int = 30_000  # of each writable folder
    output_bytes: int = 4 << 20  # of standard output and of standard error; what is more is thrown away


@dataclass(frozen=True)
class Outcome:
    """How a jailed command ended. ``status`` is as in ``subprocess``: negative for a signal; None past the deadline."""

    status: int | None
    stdout: bytes
    stderr: bytes
    wall_s: float
    cgroup: bool

    @property
    def timed_out(self) -> bool:
        return self.status is None

    def text(self) -> str:
        """Standard output of a command that must have succeeded."""
        assert self.status == 0, (self.status, self.stdout[-2000:], self.stderr[-4000:].decode(errors="replace"))
        return self.stdout.decode()


def run(
    argv: Sequence[str],
    *,
    limits: JailLimits | None = None,
    userns: bool = True,
    root: bool = False,
    folders: Mapping[str, Path] | None = None,
    env: Mapping[str, str] | None = None,
    pid: int = 100,
    uid: int = UID,
) -> Outcome:
    """Runs a command in a new jail.

    Args:
        argv: the command. The project lies in ``/opt/marft`` and is on Python's path.
        limits: what it may use.
        userns: whether user namespaces can be made inside.
        root: whether the command is root inside, in its user namespace only; takes root outside.
        folders: further read-only folders, path inside -> path outside.
        env: further environment variables.
        pid: the process id that the command has inside.
        uid: the user that the command is outside, if root starts it; nobody else's.

    Raises:
        JailUnavailable: the jail cannot be made here.
    """
    if sys.platform != "linux" or platform.machine() not in PIVOT_ROOT:
        raise JailUnavailable(f"the jail needs Linux on x86_64 or aarch64, this is {sys.platform} {platform.machine()}")
    limits = limits or JailLimits()
    with control_groups(limits) as groups, tempfile.TemporaryDirectory(prefix="jail-") as top:
        spec = {
            "argv": [*argv], "userns": userns, "root": root, "pid": pid, "uid": uid, "top": top, "groups": groups,
            "limits": asdict(limits), "readonly": readonly(folders or {}), "env": environment(env or {}),
        }  # fmt: skip
        return launch(spec, limits)


def launch(spec: dict[str, Any], limits: JailLimits) -> Outcome:
    """Starts the keeper of a jail and reads what comes out of it, up to the limit."""
    seen, tell = os.pipe()
    start = time.monotonic()
    command = [sys.executable, "-I", "-S", "-B", str(Path(__file__).resolve()), str(tell), json.dumps(spec)]
    keeper = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(tell,), env=INHERITED,
        start_new_session=True,
    )  # fmt: skip
    os.close(tell)
    kept: list[bytes] = [b"", b""]
    readers = [
        threading.Thread(target=drain, args=(pipe, kept, i, limits.output_bytes), daemon=True)
        for i, pipe in enumerate((keeper.stdout, keeper.stderr))
    ]
    for reader in readers:
        reader.start()
    try:
        keeper.wait(limits.wall_s + 20)
    except subprocess.TimeoutExpired:
        keeper.kill()  # and with it, by its parent-death signal, the jail
        keeper.wait()
    for reader in readers:
        reader.join(10)
    with os.fdopen(seen, "rb") as pipe:
        said = pipe.read()
    if not said:
        raise RuntimeError(f"the keeper of a jail died: {kept[1].decode(errors='replace')[-500:]}")
    report = json.loads(said)
    if "failed" in report:
        raise JailUnavailable(report["failed"])
    return Outcome(report["status"], kept[0], kept[1], time.monotonic() - start, bool(spec["groups"]))


def drain(pipe: Any, kept: list[bytes], index: int, most: int) -> None:
    """Reads a pipe to its end and keeps its beginning."""
    parts, size = [], 0
    while block := pipe.read1(1 << 16):
        parts.append(block[: most - size])
        size += len(parts[-1])
    kept[index] = b"".join(parts)
    pipe.close()


@functools.cache
def available(userns: bool = True) -> str:
    """Returns why the jail cannot be made here, or an empty string."""
    try:
        done = run(["/usr/bin/env", "true"], userns=userns)
    except JailUnavailable as reason:
        return f"no jail for hostile programs here: {reason}"
    return "" if done.status == 0 else f"no jail for hostile programs here: {done}"


def environment(more: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "USER": "user", "LANG": "C.UTF-8", "PYTHONPATH": PROJECT,
        "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **INHERITED, **more,
    }  # fmt: skip


def readonly(folders: Mapping[str, Path]) -> list[tuple[str, str]]:
    """(path outside, path inside) of all that is shown read-only: outer folders before those inside them."""
    system = [Path(p) for p in ("/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc/alternatives", "/etc/ld.so.cache")]
    prefixes = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, sys.base_exec_prefix)}
    wanted = {str(p): str(p) for p in system if p.exists()}
    wanted |= {str(p): str(p) for p in sorted(prefixes) if not p.is_relative_to("/usr")}
    wanted |= {f"{PROJECT}/{name}": str(ROOT / name) for name in ("marft_envs", "tests")}
    wanted |= {inside: str(outside.resolve()) for inside, outside in folders.items()}
    return [(outside, inside) for inside, outside in sorted(wanted.items())]


# --- limits over all processes of a jail -------------------------------------------------------------------------


def cgroup_folders() -> dict[str, Path]:
    """Controller -> folder under which control groups can be made; empty where they cannot."""
    base = Path("/sys/fs/cgroup")
    unified = (base / "cgroup.controllers").is_file()
    found = {name: base if unified else base / name for name in ("pids", "memory")}
    names = (base / "cgroup.subtree_control").read_text().split() if unified else [*found]
    usable = all(folder.is_dir() and os.access(folder, os.W_OK) for folder in found.values())
    return found if usable and {"pids", "memory"} <= set(names) and not os.geteuid() else {}


@contextlib.contextmanager
def control_groups(limits: JailLimits) -> Iterator[list[str]]:
    """The folders of the control groups of one jail, removed afterwards; none where they cannot be made."""
    name = f"marft-jail-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
    made: list[Path] = []
    try:
        for folder in dict.fromkeys(cgroup_folders().values()):
            try:
                (folder / name).mkdir()
            except OSError as error:
                if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                    break
                raise
            made.append(folder / name)
        if made:
            memory = str(limits.memory_mb << 20)
            for file, value in {
                "pids.max": str(limits.processes + 8), "memory.max": memory, "memory.swap.max": "0",
                "memory.limit_in_bytes": memory,
            }.items():  # fmt: skip
                for folder in made:
                    if (folder / file).exists():
                        (folder / file).write_text(value)
        yield [str(folder / "cgroup.procs") for folder in made]
    finally:
        for folder in made:
            remove_group(folder)


def remove_group(folder: Path) -> None:
    """Removes an emptied control group; the kernel may need a moment after its last process was reaped."""
    for _ in range(200):
        try:
            folder.rmdir()
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(0.01)
    raise RuntimeError(f"the control group {folder} of a jail still holds processes: {folder / 'cgroup.procs'}")


# --- what runs outside, next to the jail: the keeper ----------------------------------------------------------------


class Step:
    """Names the step that fails."""

    def __init__(self) -> None:
        self.name = "start"

    def __call__(self, name: str) -> None:
        self.name = name


def must(result: int) -> None:
    """Raises the error of a C function that returned -1."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    must(libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()))


def keeper(tell: int, spec: dict[str, Any]) -> None:
    """Makes the PID namespace, starts its first process, and kills that at the deadline."""
    step = Step()
    try:
        spec["gid"] = spec["uid"]
        if os.geteuid():
            spec["uid"], spec["gid"] = os.geteuid(), os.getegid()
            step("making a user namespace, unshare(CLONE_NEWUSER)")
            enter_user_namespace(spec["uid"], spec["gid"])
        step("making a PID namespace, unshare(CLONE_NEWPID)")
        must(libc.unshare(NEWPID))
        must(libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    except OSError as error:
        say(tell, failed=f"{step.name}: {error}")
        return
    if hung_up(tell):
        return  # whoever started this died before the parent-death signal was asked for
    lifeline, hold = os.pipe()
    asked, ask = os.pipe()
    child = os.fork()
    if not child:
        os.close(hold)
        os.close(asked)
        first(tell, lifeline, ask, spec)
    os.close(ask)
    if os.read(asked, 1):  # the first process has entered its user namespace; it cannot map two users, root outside can
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {spec['uid']} 1\n{NOBODY} {spec['uid'] + 1} 1")
        os.write(hold, b".")
    handle = os.pidfd_open(child)
    in_time = bool(select.select([handle], [], [], spec["limits"]["wall_s"])[0])
    if not in_time:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 101:  # 101: the first process has told what failed
        say(tell, status=None if not in_time else code if code < 128 else 128 - code)


def hung_up(pipe: int) -> bool:
    """Whether nobody holds the other end of a pipe any more."""
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def say(tell: int, **report: Any) -> None:
    os.write(tell, json.dumps(report).encode())


def enter_user_namespace(uid: int, gid: int) -> None:
    """Enters a user namespace that knows one user and one group."""
    must(libc.unshare(NEWUSER))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


# --- what runs inside, trusted: the first process -------------------------------------------------------------------


def first(tell: int, lifeline: int, ask: int, spec: dict[str, Any]) -> None:
    """Process 1 of the jail: makes the view, gives up all rights, starts the command, reaps. Never returns."""
    step = Step()
    try:
        step("joining the control group")
        for file in spec["groups"]:
            Path(file).write_text("0")
        build(spec, step)
        confine(spec, step, lifeline, ask)
        if hung_up(lifeline):
            os._exit(1)  # the keeper died before the parent-death signal was asked for
        step("starting the command")
        child = os.fork()
        if not child:
            start_command(spec)
    except OSError as error:
        say(tell, failed=f"{step.name}: {error}")
        os._exit(101)
    os.closerange(3, 1024)
    while True:
        done, status = os.wait()
        if done == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def build(spec: dict[str, Any], step: Step) -> None:
    """Makes the namespaces and the root folder of the jail, and enters it."""
    top = spec["top"]
    step("making mount, network, IPC and UTS namespaces, unshare(CLONE_NEWNS|…)")
    must(libc.unshare(NEWNS | NEWNET | NEWIPC | NEWUTS))
    socket.sethostname("jail")
    step("bringing up the loopback interface")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
        fcntl.ioctl(plug, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS, up and running
    step("making mounts private")
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    step("mounting the root of the jail")
    mount("jail", top, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=4096,mode=755")
    for path in WRITABLE:
        step(f"mounting {path}")
        os.makedirs(top + path)
        data = f"size={spec['limits']['tmp_mb']}m,nr_inodes={spec['limits']['inodes']},mode=700"
        mount("jail", top + path, "tmpfs", MS_NOSUID | MS_NODEV, f"{data},uid={spec['uid']},gid={spec['gid']}")
    step("making devices")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):  # no terminal is behind tty here
        show(f"/dev/{name}", f"{top}/dev/{name}", 0)
    os.symlink("/proc/self/fd", top + "/dev/fd")
    for outside, inside in spec["readonly"]:
        step(f"showing {inside}")
        show(outside, top + inside, MS_RDONLY | MS_NOSUID | MS_NODEV)
    accounts(top, spec["uid"], spec["gid"])
    step("mounting /proc of the new PID namespace")
    os.mkdir(top + "/proc")
    mount("proc", top + "/proc", "proc", MS_NOSUID | MS_NODEV | 8)
    step("choosing the process id of the command")
    Path(top, "proc/sys/kernel/ns_last_pid").write_text(str(spec["pid"] - 1))
    step("entering the root of the jail, pivot_root")
    os.chdir(top)
    must(libc.syscall(PIVOT_ROOT[platform.machine()], b".", b"."))
    must(libc.umount2(b".", MNT_DETACH))
    os.chdir("/")
    mount("none", "/", flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def show(outside: str, inside: str, flags: int) -> None:
    """Makes a file or folder of the machine visible in the jail."""
    if os.path.islink(outside):
        os.symlink(os.readlink(outside), inside)
        return
    if os.path.isdir(outside):
        os.makedirs(inside, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        os.close(os.open(inside, os.O_CREAT, 0o644))
    mount(outside, inside, flags=MS_BIND | MS_REC)
    attributes = struct.pack("=QQQQ", flags, 0, MS_PRIVATE, 0)  # the first three flags have the same values here
    must(libc.syscall(MOUNT_SETATTR, AT_FDCWD, inside.encode(), AT_RECURSIVE, attributes, len(attributes)))


def accounts(top: str, uid: int, gid: int) -> None:
    os.makedirs(top + "/etc", exist_ok=True)
    Path(top, "etc/passwd").write_text(f"root:x:0:0::/root:/bin/sh\nuser:x:{uid}:{gid}::{HOME}:/bin/sh\n")
    Path(top, "etc/group").write_text(f"root:x:0:\nuser:x:{gid}:\n")
    Path(top, "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")


def confine(spec: dict[str, Any], step: Step, lifeline: int, ask: int) -> None:
    """Becomes the user of the jail, for good and without any capability outside it."""
    if not os.geteuid():
        step("becoming an unprivileged user in a user namespace")
        os.setgroups([])
        os.setresgid(spec["gid"], spec["gid"], spec["gid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
        must(libc.prctl(DUMPABLE, 1, 0, 0, 0))  # or the maps could not be written
        if spec["root"]:
            must(libc.unshare(NEWUSER))
            os.write(ask, b".")
            os.read(lifeline, 1)
        else:
            enter_user_namespace(spec["uid"], spec["gid"])
    os.close(ask)
    if not spec["userns"]:
        step("forbidding user namespaces")
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    step("giving up capabilities")
    if not spec["root"]:
        for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            must(libc.prctl(CAPBSET_DROP, capability, 0, 0, 0))
        must(libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)))
    must(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    must(libc.prctl(DUMPABLE, 0, 0, 0, 0))  # nobody inside may read or trace this process
    must(libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def start_command(spec: dict[str, Any]) -> None:
    """In a child of process 1: limits, then the command. Never returns."""
    limits = spec["limits"]
    for name, value in {
        "NPROC": limits["processes"], "CPU": int(limits["cpu_s"]), "FSIZE": limits["file_mb"] << 20, "CORE": 0,
        "AS": limits["address_mb"] << 20 or resource.RLIM_INFINITY, "NOFILE": 1024, "MEMLOCK": 1 << 20, "STACK": 8 << 20,
    }.items():  # fmt: skip
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    os.setsid()
    os.chdir(HOME)
    os.closerange(3, 1024)
    try:
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        os.write(2, f"{spec['argv'][0]}: {error}\n".encode())
    os._exit(127)


if __name__ == "__main__":
    keeper(int(sys.argv[1]), json.loads(sys.argv[2]))
