"""The sandbox: what comes back, what is stopped, what is left behind, and what it says where it cannot hold."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marft_envs.errors import ConfigError
from marft_envs.sandbox import (
    LAYERS,
    Call,
    Limits,
    Sandbox,
    SandboxError,
    SandboxUnavailable,
    layers,
    pool,
    seccomp,
    selftest,
    shared,
    syscalls,
)

QUICK = Limits(cpu_s=0.5, wall_s=5.0, total_s=30.0)
HELD = [layer for layer in layers.LOCAL if not layers.check(layer)]
pytestmark = pytest.mark.skipif(not HELD, reason="no sandbox layer holds here; see python -m marft_envs.sandbox")


@pytest.fixture(scope="module", params=layers.LOCAL)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if failures := layers.check(request.param):
        pytest.skip(layers.describe(request.param, failures))
    with Sandbox(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def best() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


def call(*arguments: object) -> Call:
    return Call("call", repr(list(arguments)))


def one(sandbox: Sandbox, source: str, *arguments: object, entry: str = "f", limits: Limits = QUICK):
    return sandbox.run_calls(textwrap.dedent(source), entry, [call(*arguments)], limits=limits)[0]


def processes_of(pid: int) -> set[int]:
    """The living descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def gone(pids: set[int], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(state(pid) not in "XZ" for pid in pids):
            return True
        time.sleep(0.02)
    return False


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


# ---- what comes back ------------------------------------------------------------------------------------------


def test_calls_keep_their_order_and_their_state(sandbox: Sandbox) -> None:
    source = "seen = []\ndef f(x, y=1):\n    seen.append(x)\n    return len(seen), x + y"
    calls = [call(1, 2), Call("expr", "f(10)"), Call("call", "\n[-1]"), Call("expr", "sorted(seen)")]
    values = [result.value for result in sandbox.run_calls(source, "f", calls)]
    assert values == [(1, 3), (2, 11), (3, 0), [-1, 1, 10]]


@pytest.mark.parametrize(("source", "status", "said"), [
    ("def f(): return 1 // 0", "runtime_error", "ZeroDivisionError"),
    ("def f(): return f()", "runtime_error", "RecursionError"),
    ("def f():\n    while True: pass", "timeout", "CPU"),
    ("def f(): return bytearray(1 << 31)", "memory_limit", "MemoryError"),
    ("def f(): return 'x' * (1 << 20)", "output_limit", ""),
    ("def f():\n    x = []\n    for _ in range(90): x = [x, x]\n    return x", "output_limit", ""),
    ("def f(): return object()", "bad_value", "object"),
    ("def f():\n    x = []\n    x.append(x)\n    return x", "bad_value", "itself"),
    ("class I(int): pass\ndef f(): return I(3)", "bad_value", "I"),
    ("def f(:", "compile_error", "SyntaxError"), ("x = 1\0", "compile_error", "null"),
    ("x = '\udc80'", "compile_error", "UnicodeEncodeError"), ("def g(): return 1", "no_entry_point", "'f'"),
    ("f = 3", "no_entry_point", "'f'"),
    ("import sys\ndef f(): sys.exit(0)", "exited", "SystemExit"),
    ("def f(): exit()", "exited", "SystemExit"),
    ("import os\ndef f(): os._exit(0)", "exited", "exit status 0"),
    ("import os\nos._exit(0)", "exited", "exit status 0"), ("import sys\nsys.exit()", "exited", "SystemExit"),
    ("def f():\n    import ctypes\n    ctypes.string_at(0)", "runtime_error", "SIGSEGV"),
    ("import os\ndef f(): os.abort()", "runtime_error", "SIGABRT"),
    ("import os\ndef f(): os.write(4, b'x' * 100)", "output_limit", "frame"),
    ("import os\ndef f(): os.write(4, b'\\0\\0\\0\\x02{}')", "runtime_error", "channel"),
    ("raise KeyboardInterrupt", "runtime_error", "KeyboardInterrupt"),
    ("#" * (1 << 18), "too_large", "longer"),
])  # fmt: skip
def test_each_failure_has_its_status(best: Sandbox, source: str, status: str, said: str) -> None:
    result = one(best, source)
    assert (result.status, result.value) == (status, None)
    assert said in result.message and len(result.message) <= 2000


def test_a_program_that_closes_its_channel_fails_whichever_side_notices_first(best: Sandbox) -> None:
    """It ends by itself when it cannot answer, or is ended because nothing reads it: a race that it cannot win."""
    result = one(best, "import os\ndef f(): os.closerange(3, 100)")
    said = {"exited": "ended the process with exit status", "runtime_error": "closed its channel"}
    assert said[result.status] in result.message and result.value is None
    assert one(best, "def f(): return 7").value == 7


def test_the_message_shows_the_program_and_nothing_of_the_host(sandbox: Sandbox) -> None:
    result = one(sandbox, "def g(x):\n    return {}[x]\ndef f(x):\n    return g(x)", "key")
    assert "line 2, in g\n    return {}[x]" in result.message and result.message.endswith("KeyError: 'key'")
    assert "/" not in result.message
    long = one(sandbox, "def f(): raise ValueError('é\ud800\\x00' * 5000)")
    assert long.status == "compile_error"
    long = one(sandbox, "def f(): raise ValueError('é\\ud800' * 5000)")
    assert 900 < len(long.message) <= 2000 and long.message.encode()


def test_a_message_that_never_ends_is_a_timeout(best: Sandbox) -> None:
    source = "class E(Exception):\n    def __str__(self):\n        while True: pass\ndef f(): raise E"
    assert one(best, source).status == "timeout"


def test_methods_are_called_on_a_fresh_object(best: Sandbox) -> None:
    source = "class S:\n    n = 0\n    def f(self, x):\n        self.n += x\n        return self.n"
    results = best.run_calls(source, "S.f", [call(2), call(3)])
    assert [result.value for result in results] == [2, 3]
    assert one(best, source, entry="S.g").status == "no_entry_point"


def test_setup_runs_after_the_program_and_counts_as_loading(best: Sandbox) -> None:
    results = best.run_calls("def f(x): return x + k", "f", [call(1)], setup="k = 41")
    assert results[0].value == 42
    results = best.run_calls("def f(x): return x", "f", [call(1)] * 2, setup="raise OSError('no')")
    assert [result.status for result in results] == ["runtime_error"] * 2


def test_later_calls_go_on_after_a_killer(best: Sandbox) -> None:
    source = """
        import os, time
        def f(x):
            if x == 1: os._exit(0)
            if x == 2: time.sleep(1000)
            if x == 3:
                while True: pass
            return x
    """
    limits = Limits(cpu_s=0.3, wall_s=2.0, total_s=60.0)
    results = best.run_calls(textwrap.dedent(source), "f", [call(n) for n in (0, 1, 2, 3, 4)], limits=limits)
    assert [result.status for result in results] == ["ok", "exited", "timeout", "timeout", "ok"]
    assert results[2].cpu_s < 0.3


def test_a_run_ends_with_its_total_time(best: Sandbox) -> None:
    limits = Limits(cpu_s=5.0, wall_s=5.0, total_s=0.5)
    start = time.monotonic()
    results = best.run_calls("import time\ndef f(x): time.sleep(x)", "f", [call(0)] + [call(100)] * 50, limits=limits)
    assert [result.status for result in results] == ["ok"] + ["timeout"] * 50
    assert time.monotonic() - start < 5.0


def test_cpu_time_is_measured_from_outside(best: Sandbox) -> None:
    source = """
        import time
        def f(seconds):
            start = time.process_time()
            while time.process_time() - start < seconds: pass
            time.process_time = lambda: 0.0
    """
    result = one(best, source, 0.2)
    assert result.status == "ok" and 0.15 < result.cpu_s < 0.5


def test_threads_and_event_loops_work(sandbox: Sandbox) -> None:
    source = """
        import asyncio, threading
        from concurrent.futures import ThreadPoolExecutor
        async def later(x):
            await asyncio.sleep(0.001)
            return x
        def f(n):
            with ThreadPoolExecutor(4) as pool:
                squares = list(pool.map(lambda x: x * x, range(n)))
            one = threading.Thread(target=squares.append, args=(-1,))
            one.start()
            one.join()
            return squares + [asyncio.run(later(7))]
    """
    assert one(sandbox, source, 4).value == [0, 1, 4, 9, -1, 7]


def test_the_standard_library_is_there_and_nothing_else(sandbox: Sandbox) -> None:
    modules = "decimal fractions sqlite3 hashlib zoneinfo xml.etree.ElementTree multiprocessing wsgiref.handlers lzma"
    source = f"import {', '.join(modules.split())}\ndef f(name): __import__(name)"
    assert one(sandbox, source, "json").status == "ok"
    for name in ("numpy", "marft_envs", "pytest"):
        assert "ModuleNotFoundError" in one(sandbox, source, name).message


def test_runs_are_repeatable_and_share_nothing(best: Sandbox) -> None:
    source = "import random, builtins\ndef f():\n    builtins.left = getattr(builtins, 'left', 0) + 1\n"
    source += "    return builtins.left, random.random(), list({'a', 'b', 'c', 'd', 'e'})"
    with Sandbox() as other:
        assert one(best, source).value == one(best, source).value == one(other, source).value


def test_big_inputs_go_in(best: Sandbox) -> None:
    numbers = list(range(200_000))
    assert one(best, "def f(x): return sum(x)", numbers, limits=Limits(cpu_s=10)).value == sum(numbers)
    text = "a'\"\\é" * 50_000
    assert one(best, "def f(x): return len(x)", text, limits=Limits(cpu_s=10)).value == len(text)


def test_names_are_what_programs_expect(best: Sandbox) -> None:
    source = "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: 'int' = 3\n"
    source += "if __name__ == '__main__': 1 / 0\ndef f(): return P().x, __name__"
    assert one(best, source).value == (3, "program")
    assert best.run_stdio("print(__name__)", "").stdout == b"__main__\n"


# ---- standard input and output --------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "stdin", "status", "stdout"), [
    ("print(sum(map(int, input().split())))", "3 4\n", "ok", b"7\n"),
    ("import sys\nprint(sys.stdin.read()[::-1])", "né", "ok", "én\n".encode()),
    ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", b"\xff\x00", "ok", b"\xff\x00"),
    ("import os\nos.write(1, os.read(0, 9))", b"raw", "ok", b"raw"),
    ("print(open(0).readline())", "line", "ok", b"line\n"), ("print(1)\nexit()", "", "ok", b"1\n"),
    ("print(1)\nimport sys; sys.exit(2)", "", "runtime_error", b"1\n"),
    ("print(1)\nimport os; os._exit(0)", "", "ok", b""), ("print(input())", "", "runtime_error", b""),
    ("print('\\ud800')", "", "runtime_error", b""), ("print(1", "", "compile_error", b""),
    ("x = bytearray(1 << 40)", "", "memory_limit", b""), ("while True: pass", "", "timeout", b""),
    ("import atexit, threading\natexit.register(print, 2)\nthreading.Thread(target=print, args=(1,)).start()", "", "ok",
     b"1\n2\n"),
])  # fmt: skip
def test_programs_read_and_print(best: Sandbox, source: str, stdin: str | bytes, status: str, stdout: bytes) -> None:
    result = best.run_stdio(source, stdin, limits=QUICK)
    assert (result.status, result.stdout) == (status, stdout), result.stderr
    assert bool(result.stderr) == (status != "ok")


PLACES = {
    "stdin": "print(open('/dev/stdin').read())",
    "fd": "print(open('/dev/fd/0', encoding='utf-8').readline())",
    "proc": "print(open(b'/proc/self/fd/0', 'rb').read().decode())",
    "os": "import os\nprint(os.read(os.open('/dev/stdin', os.O_RDONLY), 9).decode())",
    "pathlib": "from pathlib import Path\nprint(Path('/dev/stdin').read_text())",
    "fileinput": "import fileinput\nprint(*fileinput.input('/dev/stdin'))",
    "in place of": "import sys\nsys.stdin = open('/dev/stdin')\nprint(input())",
    "twice": "with open('/dev/stdin') as f: print(f.read())\nassert open('/dev/stdin').read() == ''",
    "stdout": "with open('/dev/stdout', 'w') as f: print(input(), file=f)",
    "stderr": "open('/dev/stderr', 'w').write(input())\nprint('7')",
    "nowhere": "import os\nopen(os.devnull, 'w').write('x')\nprint(open(os.devnull).read() + input())",
    "nowhere in bytes": "open('/dev/null', 'r+b', 0).write(b'x')\nprint(input())",
    "redirected": (
        "import contextlib, os\nwith open(os.devnull, 'a') as f, contextlib.redirect_stdout(f): print(8)\nprint(input())"
    ),
}


@pytest.mark.parametrize("source", PLACES.values(), ids=list(PLACES))
def test_standard_streams_have_their_names_in_every_layer(sandbox: Sandbox, source: str) -> None:
    result = sandbox.run_stdio(source, "7", limits=QUICK)
    assert (result.status, result.stdout.strip()) == ("ok", b"7"), result.stderr


def test_nothing_else_is_opened_for_writing(sandbox: Sandbox) -> None:
    source = """
        import os
        def f():
            found = [open('/dev/stdin').read(), open('/dev/null').read()]
            for path in ("/dev/urandom", "/tmp/x", "x", "/dev/fd/7", "/dev/shm/x", os.__file__):
                for mode in ("w", "a", "r+b", "x"):
                    try: open(path, mode)
                    except OSError as error: found.append(type(error).__name__)
                    else: found.append((path, mode))
            return found
    """
    result = one(sandbox, source)
    assert result.status == "ok" and set(result.value[2:]) <= {"PermissionError", "FileNotFoundError"}
    assert result.value[:2] == ["", ""] and len(result.value) == 26


def test_a_run_learns_nothing_from_what_another_had_open(best: Sandbox) -> None:
    """Flags and offsets of a shared description would last from run to run."""
    source = """
        import fcntl, os
        def f(flags):
            found = [fcntl.fcntl(d, fcntl.F_GETFL) for d in (6,)]
            for d in (6,): fcntl.fcntl(d, fcntl.F_SETFL, flags)
            return found
    """
    first, second = one(best, source, os.O_APPEND | os.O_NONBLOCK), one(best, source, 0)
    assert first.status == "ok" and first.value == second.value


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_floods_are_cut_off(sandbox: Sandbox, stream: str) -> None:
    limits = Limits(output_bytes=5000)
    result = sandbox.run_stdio(f"import sys\nwhile True: sys.{stream}.write('x' * 1000)", "", limits=limits)
    assert result.status == "output_limit" and len(result.stdout) <= 5000 and len(result.stderr) <= 2000


def test_big_input_and_output_do_not_block_each_other(best: Sandbox) -> None:
    data = b"0123456789\n" * 100_000
    source = "import sys\nfor line in sys.stdin: print(line, end='')"
    result = best.run_stdio(source, data, limits=Limits(output_bytes=1 << 21, cpu_s=10))
    assert result.stdout == data
    assert best.run_stdio("print(1)", data).stdout == b"1\n"


def test_a_sleeper_is_stopped_by_the_clock(best: Sandbox) -> None:
    result = best.run_stdio("print(1, flush=True)\nimport time\ntime.sleep(1000)", "", limits=Limits(wall_s=0.5))
    assert (result.status, result.stdout) == ("timeout", b"1\n") and result.cpu_s < 0.5


# ---- what is stopped ------------------------------------------------------------------------------------------


def test_the_self_test_runs_in_every_layer_that_holds(sandbox: Sandbox) -> None:
    assert sandbox.guarantees >= set(layers.TESTED)
    assert not list(selftest.failures(layers.mechanisms(sandbox.layer)))


def test_the_self_test_runs_where_the_folder_of_temporary_files_has_a_long_name(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's path has at most 107 bytes."""
    deep = tmp_path / ("job" * 40)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert not list(selftest.failures(layers.mechanisms(sandbox.layer)))
    assert not list(deep.iterdir())


SYSTEM_CALLS = {
    "x86_64": "fork=57 vfork=58 execve=59 execveat=322 ptrace=101 shmget=29 msgget=68 semget=64 keyctl=250 bpf=321 "
    "perf_event_open=298 io_uring_setup=425 userfaultfd=323 memfd_create=319 personality=135 setns=308 chroot=161 "
    "mount=165 bind=49 listen=50 accept=43 sendmsg=46 recvmsg=47 chmod=90 rename=82 unlink=87 truncate=76 mkdir=83 "
    "rt_sigqueueinfo=129 tkill=200 pidfd_open=434 pidfd_send_signal=424 setrlimit=160 setpriority=141 mknod=133 "
    "name_to_handle_at=303 open_by_handle_at=304 process_vm_writev=311 setsid=112 timer_create=222 splice=275"
}


@pytest.mark.skipif(syscalls.MACHINE not in SYSTEM_CALLS, reason="the table of refused calls is for x86_64")
def test_other_system_calls_are_refused(sandbox: Sandbox) -> None:
    source = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def f(number, *arguments):
            ctypes.set_errno(0)
            result = libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(a) for a in arguments])
            return result, ctypes.get_errno()
    """
    numbers = {name: int(number) for name, number in (row.split("=") for row in SYSTEM_CALLS[syscalls.MACHINE].split())}
    others = {
        "a process by clone": (56, 17, 0, 0, 0, 0), "a namespace by clone": (56, 0x10050F00, 0, 0, 0, 0),
        "x32": (0x40000000 + 39,), "kill all": (62, 2**64 - 1, 0), "kill the group": (62, 0, 0),
        "tgkill of the parent": (234, 1, 1, 0), "prlimit of the parent": (302, 1, 7, 0, 0),
        "prctl dumpable": (157, 4, 1, 0, 0, 0), "fcntl owner": (72, 3, 8, 1), "ioctl TIOCSTI": (16, 0, 0x5412, 0),
        "a TCP socket pair": (53, 2, 1, 0, 0), "sendto an address": (44, 3, 0, 0, 0, 4096, 16),
    }  # fmt: skip
    calls = [call(number, 0, 0, 0, 0, 0, 0) for number in numbers.values()] + [call(*row) for row in others.values()]
    results = sandbox.run_calls(textwrap.dedent(source), "f", calls)
    refused = {name: result.value for name, result in zip([*numbers, *others], results, strict=True)}
    assert set(refused.values()) == {(-1, errno.EPERM)}, refused
    assert sandbox.run_calls(textwrap.dedent(source), "f", [call(435, 0, 0)])[0].value == (-1, errno.ENOSYS)


@pytest.mark.skipif(syscalls.MACHINE != "x86_64", reason="machine code for x86_64")
def test_the_calls_of_another_architecture_kill(sandbox: Sandbox) -> None:
    source = """
        import ctypes, mmap
        def f():
            page = mmap.mmap(-1, 4096, prot=7)
            page.write(bytes.fromhex("b814000000cd80c3"))  # getpid by the 32-bit door
            return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    """
    assert "SIGSYS" in one(sandbox, source).message


def test_no_file_of_any_kind_can_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    source = """
        import os, tempfile
        def f(folder):
            won = []
            for path in (folder + "/x", "/tmp/x", "/dev/shm/x", "x", "/x", os.path.dirname(os.__file__) + "/x"):
                for flags in (os.O_WRONLY, os.O_CREAT | os.O_RDWR, os.O_TMPFILE | os.O_WRONLY, os.O_CREAT, os.O_TRUNC):
                    try:
                        won.append((path, flags, os.open(path, flags)))
                    except OSError:
                        pass
            try:
                tempfile.TemporaryFile()
            except OSError:
                return won
    """
    assert one(sandbox, source, str(tmp_path)).value == []
    assert not list(tmp_path.iterdir())


def test_the_host_has_no_name() -> None:
    with_names = [layer for layer in HELD if "own_root" in layers.guarantees(layers.mechanisms(layer))]
    for layer in with_names:
        with Sandbox(layer) as made:
            source = "import os, platform, socket\ndef f(): return {os.uname().nodename, platform.node(), socket.gethostname()}"
            assert one(made, source).value == {"sandbox"}


IDIOMS = {
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(50000))",
        "50000",
    ),
    "a thread with a large stack": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
        "def f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(20000)))\nt.start(); t.join()",
        "20000",
    ),
    "fast input": ("import os\nprint(os.read(0, max(os.fstat(0).st_size, 8192)).decode())", "1 2\n"),
    "buffered lines": ("import sys\ninput = sys.stdin.readline\nprint(input().split())", "['1', '2']"),
    "its own limits": ("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nprint(1)", "1"),
    "alarms": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: print('rang'))\nsignal.alarm(1)\nsignal.pause()",
        "rang",
    ),
    "the time": ("import time\nprint(time.localtime().tm_year > 2000, time.tzname[0])", "True UTC"),
}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_what_programs_of_contests_do_works(best: Sandbox, idiom: str) -> None:
    source, printed = IDIOMS[idiom]
    result = best.run_stdio(source, "1 2\n")
    assert (result.status, result.stdout.decode()) == ("ok", printed + "\n"), result.stderr


def test_a_program_cannot_reward_itself_through_the_channel(best: Sandbox) -> None:
    """An answer written in advance is an answer to a question not yet asked: the run is over."""
    forged = 'b\'{"status": "ok", "message": "", "value": "7"}\''
    source = f"import os, struct\ndef f(x):\n    os.write(4, (struct.pack('>I', len({forged})) + {forged}) * 2)\n    return x"
    results = best.run_calls(source, "f", [call(1), call(2)])
    assert results[0].value in (7, None) and results[1].status != "ok"


def test_a_child_inherits_no_earlier_program(best: Sandbox) -> None:
    secret = f"canary-{os.getpid()}-{'x' * 8}"
    one(best, f"SECRET = {secret!r}\ndef f(x): return x", secret)
    source = """
        import gc
        def f(head, tail):
            word = head + tail
            return [type(o).__name__ for o in gc.get_objects() if isinstance(o, (list, tuple, dict)) and word in str(o)[:100000]
                    and not (isinstance(o, (list, tuple)) and head in o) and "tail" not in str(o)[:100000]]
    """
    assert one(best, source, secret[:7], secret[7:], limits=Limits(cpu_s=20, wall_s=60, total_s=60)).value == []


# ---- what is left behind --------------------------------------------------------------------------------------


def test_nothing_survives_a_run_or_a_close() -> None:
    before, open_before = processes_of(os.getpid()), len(os.listdir("/proc/self/fd"))
    with Sandbox() as made:
        source = "import threading\ndef g():\n    while True: pass\nfor _ in range(8): threading.Thread(target=g).start()\ndef f(): return 1"
        made.run_calls("def f(): return 1", "f", [call()])
        workers = processes_of(os.getpid()) - before
        assert one(made, source, limits=Limits()).status in ("ok", "timeout")
        made.run_stdio("import time\ntime.sleep(99)", "", limits=Limits(wall_s=0.2))
        assert processes_of(os.getpid()) - before == workers and workers
    assert gone(workers)
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_dropped_sandbox_takes_its_workers_along() -> None:
    before = processes_of(os.getpid())
    made = Sandbox()
    one(made, "def f(): return 1")
    workers = processes_of(os.getpid()) - before
    del made
    assert workers and gone(workers)


@pytest.mark.parametrize("layer", HELD)
def test_workers_die_with_the_host(layer: str) -> None:
    script = f"""
        import os, signal, sys, threading, time
        from marft_envs.sandbox import Sandbox, Call
        made = Sandbox({layer!r})
        made.run_calls("def f(): return 1", "f", [Call("call", "[]")])
        threading.Thread(target=made.run_stdio, args=("while True: pass", ""), daemon=True).start()
        print("ready", flush=True)
        time.sleep(100)
    """
    host = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    try:
        assert host.stdout is not None and host.stdout.readline() == b"ready\n"
        workers = processes_of(host.pid)
        assert workers
    finally:
        host.kill()
        host.wait()
    assert gone(workers)


def test_a_worker_that_dies_is_replaced_and_the_run_repeated() -> None:
    with Sandbox() as made:
        one(made, "def f(): return 1")
        worker = made.slots[0].process
        assert worker is not None
        worker.signal()
        assert one(made, "def f(): return 2").value == 2


def test_a_sandbox_that_fails_twice_says_so_and_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox() as made:
        monkeypatch.setattr(pool.SandboxWorker, "start", lambda *_: (_ for _ in ()).throw(pool.Lost("no worker")))
        with pytest.raises(SandboxError, match="no worker"):
            one(made, "def f(): return 1")
        monkeypatch.undo()
        assert one(made, "def f(): return 1").value == 1
    with pytest.raises(SandboxError, match="closed"):
        one(made, "def f(): return 1")


def test_workers_are_recycled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft_envs.sandbox.worker.RUNS_PER_WORKER", 2)
    with Sandbox() as made:
        seen = []
        for _ in range(4):
            seen.append(made.slots[0].process)
            assert one(made, "def f(): return 1").value == 1
        assert seen[1] is not seen[2] is seen[3]


# ---- sharing --------------------------------------------------------------------------------------------------


def test_threads_share_a_sandbox() -> None:
    with Sandbox(workers=2) as made:
        wrong: list[object] = []

        def run(name: int) -> None:
            for turn in range(6):
                result = one(made, f"def f(x): return x * {name}", turn, limits=Limits())
                printed = made.run_stdio(f"print(input(), {name})", str(turn))
                if result.value != turn * name or printed.stdout != f"{turn} {name}\n".encode():
                    wrong.append((name, turn, result, printed))

        threads = [threading.Thread(target=run, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_settings_survive_pickling_and_a_copy_shares() -> None:
    with Sandbox(HELD[-1], workers=2, limits=QUICK) as made, pickle.loads(pickle.dumps(made)) as again:
        assert copy.deepcopy(made) is made
        assert (again.layer, again.workers, again.limits) == (made.layer, 2, QUICK)
        assert one(again, "def f(): return 5").value == 5
    assert shared(HELD[0]) is shared(HELD[0]) is not shared(HELD[0], workers=2)


def test_a_forked_host_has_workers_of_its_own() -> None:
    with Sandbox() as made:
        one(made, "def f(): return 1")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if one(made, "def f(): return 2").value == 2 else 2
                made.close()
            finally:
                os._exit(status)
        assert one(made, "def f(): return 3").value == 3
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert one(made, "def f(): return 4").value == 4


# ---- where it cannot hold -------------------------------------------------------------------------------------


WITHOUT = """
import os, sys
{how}
from marft_envs.sandbox import Sandbox, SandboxUnavailable, Call, layers
try:
    with Sandbox(sys.argv[1]) as made:
        print(made.layer, made.run_calls("def f(x): return x + 1", "f", [Call("call", "[1]")])[0].value)
except SandboxUnavailable as error:
    print("UNAVAILABLE", error)
"""

DENY = """
import ctypes, struct
from marft_envs.sandbox import seccomp, syscalls
denied = [syscalls.NUMBERS[name] for name in {names}]
code = [(0x20, 0, 0, 0)]
for number in denied:
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | {errno})]
code.append((0x06, 0, 0, 0x7fff0000))
data = b"".join(struct.pack("=HBBI", *row) for row in code)
syscalls.no_new_privs()
syscalls.prctl(22, 2, seccomp._Program(len(code), data))
"""


def elsewhere(how: str, layer: str) -> str:
    """Makes a sandbox in a process that lacks something; what it says."""
    script = WITHOUT.format(how=how)
    done = subprocess.run(
        [sys.executable, "-c", script, layer], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif("namespaces+seccomp" not in HELD, reason="user namespaces are not to be had")
@pytest.mark.skipif("landlock+seccomp" not in HELD, reason="Landlock does not hold here")
def test_where_the_system_allows_no_user_namespaces_landlock_is_taken() -> None:
    """The host is root of a user namespace whose limit of further ones is 0."""
    how = """
from marft_envs.sandbox import syscalls
user, group = os.getuid(), os.getgid()
syscalls.call("unshare", 0x10000000)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    open(f"/proc/self/{name}", "w").write(text)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""
    assert elsewhere(how, "auto") == "landlock+seccomp 2\n"
    said = elsewhere(how, "namespaces+landlock+seccomp")
    assert "unshare (ENOSPC)" in said and "sysctl -w user.max_user_namespaces" in said


def no_user_namespaces() -> str:
    """Code that puts a process under a filter that refuses namespaces, as container engines do."""
    return DENY.format(names=("unshare",), errno=errno.EPERM)


@pytest.mark.skipif("landlock+seccomp" not in HELD, reason="Landlock does not hold here")
def test_without_user_namespaces_landlock_is_taken() -> None:
    assert elsewhere(no_user_namespaces(), "auto") == "landlock+seccomp 2\n"


@pytest.mark.skipif("namespaces+seccomp" not in HELD, reason="namespaces do not hold here")
def test_without_landlock_namespaces_are_taken() -> None:
    how = DENY.format(names=("landlock_create_ruleset",), errno=errno.EOPNOTSUPP)
    assert elsewhere(how, "auto") == "namespaces+seccomp 2\n"


def test_a_named_layer_is_never_replaced() -> None:
    said = elsewhere(no_user_namespaces(), "namespaces+landlock+seccomp")
    assert said.startswith("UNAVAILABLE") and "unshare (EPERM)" in said and "unprivileged_userns_clone" in said


def test_without_any_layer_each_missing_guarantee_is_named() -> None:
    how = DENY.format(names=("unshare", "landlock_create_ruleset"), errno=errno.EPERM)
    said = elsewhere(how + "os.environ['PATH'] = ''\n", "auto")
    assert said.startswith("UNAVAILABLE no layer of the sandbox holds here")
    for words in ("unshare (EPERM)", "landlock_create_ruleset (EPERM)", "apt install bubblewrap", "serve", "docker"):
        assert words in said


def test_what_the_self_test_finds_is_named() -> None:
    """A layer without its filter lets micro-attacks through, and they are reported one by one."""
    missing = {failure.guarantee for failure in selftest.failures(frozenset({"landlock"}))}
    assert missing >= {"no_processes", "no_network"}
    text = layers.describe("landlock+seccomp", [layers.Failure("no_processes", "fork worked", 0, "not stopped")])
    assert "starts no process" in text and "fix:" in text


def test_unsafe_takes_two_consents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARFT_UNSAFE_SANDBOX", raising=False)
    for arguments in ({"layer": "unsafe"}, {"layer": "unsafe", "unsafe": True}, {"_mechanisms": frozenset()}):
        with pytest.raises(SandboxUnavailable, match="MARFT_UNSAFE_SANDBOX=1"):
            Sandbox(**arguments)
    monkeypatch.setenv("MARFT_UNSAFE_SANDBOX", "1")
    with pytest.raises(SandboxUnavailable, match="unsafe=True"):
        Sandbox("unsafe")
    with Sandbox("unsafe", unsafe=True) as made:
        assert (made.layer, made.guarantees) == ("unsafe", frozenset())
        assert one(made, "import os\ndef f(): return os.path.exists('/proc')").value is True
        assert one(made, "def f():\n    while True: pass").status == "timeout"
    with Sandbox(unsafe=True, _mechanisms=frozenset({"namespaces"})) as made:
        assert made.layer == "unsafe"
        fork = (
            "import os\ndef f():\n    if os.fork() == 0:\n        while True: pass\n    return os.path.exists('/proc')"
        )
        workers = processes_of(os.getpid())
        assert one(made, fork).value is False
        assert len(processes_of(os.getpid()) - workers) <= 2


@pytest.mark.parametrize(("settings", "said"), [
    ({"layer": "namespace"}, "namespaces"), ({"workers": 0}, "at least one worker"), ({"layer": "remote"}, "url"),
    ({"url": "http://t@localhost:1"}, "remote"), ({"layer": "remote", "url": "localhost:1"}, "TOKEN@HOST"),
])  # fmt: skip
def test_settings_that_make_no_sense(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sandbox(**settings)
    with pytest.raises(ConfigError, match="cpu_s"):
        Limits(cpu_s=0)
    assert LAYERS[-1] == "remote"


def test_the_filter_allows_signals_to_the_process_itself_only() -> None:
    assert seccomp.program(4711) == seccomp._assemble(4711)
    assert len(seccomp.program(1)) // 8 < 4096
    assert signal.SIGKILL == 9
