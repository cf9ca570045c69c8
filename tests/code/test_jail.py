"""The outer jail holds: each test runs a harmless probe that does what a hostile program would do."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import jail
from tests.helpers.jail import JailLimits, JailUnavailable, Outcome

UID = 50_000 + 2 * (os.getpid() % 4_000)  # other jails of this machine have other users


@pytest.fixture(scope="module", autouse=True)
def jailed() -> None:
    if reason := jail.available():
        pytest.skip(reason)


PRELUDE = """
import ctypes, errno, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(call, *args):
    try:
        return "did it" if call(*args) is not False else "failed"
    except OSError as error:
        return errno.errorcode[error.errno]
    except MemoryError:
        return "MemoryError"
def c(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def mount(source, target, kind, flags, data=b""):
    return c(libc.mount(source, target, kind, ctypes.c_ulong(flags), data))
"""


def probe(
    code: str, *, userns: bool = True, root: bool = False, folders: dict[str, Path] | None = None, **limits: float
) -> Outcome:
    argv = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
    given = JailLimits(**{"wall_s": 20, **limits})
    return jail.run(argv, userns=userns, root=root, folders=folders, limits=given, uid=UID)


def processes_of(uid: int) -> set[int]:
    """Living processes of a user, in the PID namespace of the tests."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if folder.stat().st_uid == uid and ") Z " not in (folder / "stat").read_text():
                    found.add(int(folder.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


@pytest.fixture
def sentinel() -> Iterator[subprocess.Popen[bytes]]:
    """A process outside, of the user that the jail's processes have outside."""
    user = UID if not os.geteuid() else None
    process = subprocess.Popen(["/usr/bin/env", "sleep", "600"], user=user)
    yield process
    process.kill()
    process.wait()


def test_the_command_has_no_rights() -> None:
    done = probe("""
        print(os.getuid() != 0, os.getpid() == 100, socket.gethostname(), os.getcwd())
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
        print(*[status[k].strip() for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")])
        print(attempt(os.setuid, 0), attempt(os.chroot, "/tmp"), attempt(mount, b"x", b"/tmp", b"tmpfs", 0))
        print(attempt(lambda: c(libc.umount2(b"/tmp", 2))), attempt(socket.sethostname, "x"))
        print(sorted(os.environ))
    """)
    nothing = "0" * 16
    assert done.text().splitlines() == [
        f"True True jail {jail.HOME}", f"{nothing} {nothing} {nothing} {nothing} {nothing} 1",
        "EINVAL EPERM EPERM", "EPERM EPERM", str(sorted(jail.environment({}))),
    ]  # fmt: skip


def test_all_but_the_temporary_folders_is_read_only_even_for_a_nested_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("as it was")
    (tmp_path / "file").chmod(0o666)
    tmp_path.chmod(0o777)
    code = """
        def write(path):
            open(path, "w").write("changed")
        def change(path):
            return c(libc.chmod(path.encode(), 0o777))
        def all_of_it():
            places = ["/shown/new", "/usr/new", "/opt/marft/marft_envs/new", "/etc/new", "/new", "/bin/new", "/opt/marft/tests/new"]
            return {attempt(write, p) for p in [*places, "/shown/file"]} | {attempt(change, "/shown/file")}
        print(all_of_it())
        print({attempt(write, f + "/new") for f in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/victim", os.environ["HOME"])})
        uid = os.getuid()
        c(libc.unshare(0x10000000 | 0x20000))
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
        print(os.getuid(), attempt(mount, b"x", b"/shown", b"", 32 | 4096), attempt(mount, b"x", b"/", b"", 32 | 4096))
        print(attempt(lambda: c(libc.umount2(b"/shown", 2))), all_of_it())
        print(attempt(mount, b"/dev/vda", b"/tmp", b"ext4", 0), attempt(os.mknod, "/tmp/disk", 0o60600, 0xfe00))
    """
    done = probe(code, folders={"/shown": tmp_path})
    assert done.text().splitlines() == ["{'EROFS'}", "{'did it'}", "0 EPERM EPERM", "EINVAL {'EROFS'}", "EPERM EPERM"]
    assert (tmp_path / "file").read_text() == "as it was"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_view_holds_nothing_of_the_machine_but_what_was_named(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret of the machine")
    done = probe(f"""
        print(sorted(os.listdir("/")))
        print(os.path.exists({str(tmp_path)!r}), os.path.exists("/etc/shadow"), os.listdir("/home"), os.listdir("/run"))
        print([p for p in os.listdir("/proc") if p.isdigit()] == ["1", str(os.getpid())])
        print(attempt(os.listdir, "/proc/1/root/"), attempt(open, "/proc/1/mem"), attempt(os.listdir, "/proc/1/fd"))
    """)
    names, hidden, alone, first = done.text().splitlines()
    named = {
        Path(path).parts[1] for path in (sys.prefix, sys.base_prefix)
    }  # the interpreter's own place has to be there
    assert not set(ast.literal_eval(names)) & ({"work", "mnt", "srv", "media", "boot", "sys"} - named)
    assert hidden == "False False ['user'] []"
    assert alone == "True"
    assert first == "EACCES EACCES EACCES"


def test_files_are_limited_in_size_and_number() -> None:
    done = probe(
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        def fill(path):
            with open(path, "wb") as file:
                for _ in range(64):
                    file.write(bytes(1 << 20))
        print(attempt(fill, "/tmp/big"), os.path.getsize("/tmp/big") >> 20)
        print([attempt(fill, f"/tmp/more{i}") for i in range(5)][-1])
        def many():
            for i in range(100_000):
                os.close(os.open(f"/run/{i}", os.O_CREAT))
        print(attempt(many), len(os.listdir("/run")) < 500)
        """,
        file_mb=8, tmp_mb=32, inodes=500,
    )  # fmt: skip
    assert done.text().splitlines() == ["EFBIG 8", "ENOSPC", "ENOSPC True"]


FORKS = """
def forks():
    children = 0
    for _ in range(10_000):
        if not os.fork():
            signal.pause()
        children += 1
def count(where):
    print(where, attempt(forks), len([p for p in os.listdir("/proc") if p.isdigit()]), flush=True)
"""


def test_ten_thousand_forks_stop_at_the_limit_and_leave_nothing(sentinel: subprocess.Popen[bytes]) -> None:
    before = processes_of(UID) if not os.geteuid() else None
    done = probe(FORKS + "count('flat')", processes=60)
    where, reason, alive = done.text().split()
    assert (where, reason) == ("flat", "EAGAIN")
    assert 40 < int(alive) <= 70
    if before is not None:
        assert processes_of(UID) == before == {sentinel.pid}


def test_a_nested_user_namespace_does_not_escape_the_limit_on_processes() -> None:
    done = probe(FORKS + "c(libc.unshare(0x10000000 | 0x20000000))\ncount('nested')", processes=60)
    where, reason, alive = done.text().split()
    assert (where, reason) == ("nested", "EAGAIN")
    assert 40 < int(alive) <= 70


def test_signals_reach_nothing_outside_and_not_the_first_process(sentinel: subprocess.Popen[bytes]) -> None:
    done = probe(f"""
        print(attempt(os.kill, {sentinel.pid}, 9), attempt(os.kill, {os.getpid()}, 9), flush=True)
        pid = os.fork()
        if not pid:
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
                os.kill(1, number)
            print("still here", attempt(lambda: c(libc.ptrace(16, 1, 0, 0))), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        if not os.fork():
            signal.pause()
        print("and after", attempt(os.kill, -1, signal.SIGKILL), os.wait()[1], flush=True)
        sys.exit(3)
    """)
    assert done.stdout.decode().splitlines() == ["ESRCH ESRCH", "still here EPERM", "and after did it 9"]
    assert done.status == 3
    assert sentinel.poll() is None


def test_the_command_may_be_killed_by_its_own_child() -> None:
    assert probe("if not os.fork(): os.kill(-1, 9)\nsignal.pause()").status == -signal.SIGKILL


def test_there_is_no_network_but_a_loopback_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside, socket.socket(socket.AF_UNIX) as abstract:
        port, name = outside.getsockname()[1], f"\0jail-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        done = probe(f"""
            print([name for _, name in socket.if_nameindex()])
            def connect(family, address):
                with socket.socket(family) as s:
                    s.settimeout(5)
                    s.connect(address)
            print(attempt(connect, socket.AF_INET, ("127.0.0.1", {port})))
            print(attempt(connect, socket.AF_INET, ("192.0.2.1", 80)), attempt(connect, socket.AF_UNIX, {name!r}))
            with socket.create_server(("127.0.0.1", {port})):
                print(attempt(connect, socket.AF_INET, ("127.0.0.1", {port})))
        """)
    interfaces, outer, elsewhere, inner = done.text().splitlines()
    assert "lo" in ast.literal_eval(interfaces)
    assert outer == "ECONNREFUSED"
    assert elsewhere == "ENETUNREACH ECONNREFUSED"
    assert inner == "did it"


def test_the_deadline_kills_everything(sentinel: subprocess.Popen[bytes]) -> None:
    start = time.monotonic()
    done = probe(
        """
        print("started", flush=True)
        for number in range(1, 65):
            if number not in (9, 19, 32, 33):
                signal.signal(number, signal.SIG_IGN)
        for _ in range(5):
            if not os.fork():
                os.setsid()
                os.fork()
        while True:
            time.sleep(100)
        """,
        wall_s=1.5,
    )
    assert done.timed_out
    assert done.stdout == b"started\n"
    assert time.monotonic() - start < 15
    if not os.geteuid():
        assert processes_of(UID) == {sentinel.pid}


@pytest.mark.skipif(bool(os.geteuid()), reason="other processes of this user look like those of a jail")
def test_a_jail_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = f"from tests.helpers import jail; jail.run(['/usr/bin/env', 'sleep', '600'], uid={UID})"
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=jail.ROOT, env={**os.environ, "TMPDIR": str(tmp_path)})
    end = time.monotonic() + 30
    while not processes_of(UID):
        assert time.monotonic() < end, "the jail never started"
    owner.kill()
    owner.wait()
    while processes_of(UID):
        assert time.monotonic() < end, "the jail outlived its owner"
    for folder in jail.cgroup_folders().values():
        for group in folder.glob(f"marft-jail-{owner.pid}-*"):
            jail.remove_group(group)


def test_memory_and_processor_time_are_limited() -> None:
    done = probe("print(attempt(bytearray, 600 << 20), attempt(bytearray, 200 << 20))", address_mb=512)
    assert done.text().split() == ["MemoryError", "did", "it"]
    assert probe("while True: pass", cpu_s=1).status in (-signal.SIGXCPU, -signal.SIGKILL)


@pytest.mark.skipif(not jail.cgroup_folders(), reason="no control group for memory can be made here")
def test_memory_is_limited_over_all_processes_and_files_together() -> None:
    done = probe(
        """
        children = []
        for _ in range(4):
            children.append(os.fork())
            if not children[-1]:
                block = bytearray(os.urandom(1 << 20) * 100)
                signal.pause()
        print([os.WTERMSIG(os.wait()[1])], flush=True)
        for child in children:
            try:
                os.kill(child, 9)
            except ProcessLookupError:
                pass
        """,
        memory_mb=250,
    )
    assert done.cgroup
    assert b"[9]" in done.stdout or done.status == -signal.SIGKILL


def test_output_is_cut_off_while_it_is_read() -> None:
    done = probe("for _ in range(64): os.write(1, bytes(1 << 20)), os.write(2, bytes(1 << 20))", output_bytes=5000)
    assert (done.status, len(done.stdout), len(done.stderr)) == (0, 5000, 5000)


def test_shared_memory_stays_inside() -> None:
    key = 0x5ECC0DF
    done = probe(f"print(libc.shmget({key}, 4096, 0o1666) >= 0, open('/proc/sysvipc/shm').read().count('\\n'))")
    assert done.text().split() == ["True", "2"]
    assert f" {key} " not in Path("/proc/sysvipc/shm").read_text()


LAYERS = """
LANDLOCK, NEWUSER, REST = 444, 0x10000000, 0x20000 | 0x20000000 | 0x40000000
def landlock():
    rules = struct.pack("QQ", 0x1fff, 0)[:8]
    fd = c(libc.syscall(444, rules, 8, 0))
    c(libc.syscall(446, fd, 0))
    try:
        os.listdir("/usr")
    except PermissionError:
        return True
    return False
def seccomp():
    # load the number of the call; if it is getpid's, fail with errno 77
    import platform
    getpid = {"x86_64": 39, "aarch64": 172}[platform.machine()]
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, getpid), (6, 0, 0, 0x50000 | 77), (6, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *s) for s in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    c(libc.prctl(22, 2, program, 0, 0))
    return libc.syscall(getpid) == -1 and ctypes.get_errno() == 77
def in_child(call):
    pid = os.fork()
    if not pid:
        print(attempt(call), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_sandbox_can_use_all_its_layers_inside() -> None:
    done = probe(LAYERS + textwrap.dedent("""
        def namespaces():
            uid, gid = os.getuid(), os.getgid()
            c(libc.unshare(NEWUSER | REST))
            open("/proc/self/setgroups", "w").write("deny")
            open("/proc/self/uid_map", "w").write(f"{uid} {uid} 1")
            open("/proc/self/gid_map", "w").write(f"{gid} {gid} 1")
            mount(b"none", b"/", b"", 16384 | 1 << 18)
            mount(b"x", b"/tmp", b"tmpfs", 0, b"size=1m")
            os.mkdir("/tmp/usr")
            mount(b"/usr", b"/tmp/usr", b"", 4096 | 16384)
            if not os.fork():
                os.mkdir("/tmp/proc")
                mount(b"proc", b"/tmp/proc", b"proc", 0)
                os._exit(0 if os.listdir("/tmp/usr/lib") and os.getpid() == 1 else 1)
            return os.wait()[1] == 0
        in_child(namespaces)
        in_child(landlock)
        in_child(seccomp)
    """))  # fmt: skip
    assert done.text().splitlines() == ["did it"] * 3


def test_a_jail_without_user_namespaces_has_none_and_keeps_the_other_layers() -> None:
    done = probe(LAYERS + textwrap.dedent("""
        in_child(lambda: c(libc.unshare(NEWUSER)))
        in_child(lambda: c(libc.unshare(REST)))
        in_child(lambda: open("/proc/sys/user/max_user_namespaces", "w").write("100"))
        in_child(landlock)
        in_child(seccomp)
    """), userns=False)  # fmt: skip
    assert done.text().splitlines() == ["ENOSPC", "EPERM", "EACCES", "did it", "did it"]


@pytest.mark.skipif(bool(os.geteuid()), reason="only root can map a second user")
def test_the_root_of_a_jail_has_no_rights_outside_it(tmp_path: Path, sentinel: subprocess.Popen[bytes]) -> None:
    (tmp_path / "file").write_text("as it was")
    tmp_path.chmod(0o700)
    code = """
        print(os.getuid(), flush=True)
        os.kill(1, signal.SIGKILL)
        print(attempt(lambda: c(libc.ptrace(16, 1, 0, 0))), attempt(open, "/proc/1/mem"))
        print(attempt(open, "/shown/file"), attempt(mount, b"x", b"/tmp", b"tmpfs", 0), attempt(socket.sethostname, "x"))
    """
    done = probe(code, root=True, folders={"/shown": tmp_path})
    assert done.text().splitlines() == ["0", "EPERM EACCES", "EACCES EPERM EPERM"]
    nested = """
        c(libc.unshare(0x20000))
        print(attempt(mount, b"x", b"/shown", b"", 32 | 4096), attempt(mount, b"/dev/vda", b"/tmp", b"ext4", 0))
        print(attempt(os.kill, -1, signal.SIGKILL), attempt(os.setuid, 65534), os.getuid())
    """
    done = probe(nested, root=True, folders={"/shown": tmp_path})
    assert done.text().splitlines() == ["EPERM EPERM", "ESRCH did it 65534"]
    assert (tmp_path / "file").read_text() == "as it was"
    assert sentinel.poll() is None


def test_what_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(JailUnavailable, match=r"showing /nowhere: .*No such file"):
        jail.run(["true"], folders={"/nowhere": tmp_path / "absent"})
