"""Judges hostile programs inside the outer jail, with the sandbox or with a judge that has none.

``run_layer``, ``run_naively`` and ``run_controls`` start this module in a jail; there it plants the victims and prints
one JSON line for each program. ``signs`` names what went wrong, in the words of the headers' ``breach_signs``; a program
without any did no harm.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic as now  # by itself: one program replaces the clocks of the module
from typing import Any

from tests.helpers import jail, naive_judges, victims

# The first call is one that the tracing program knows. Values are distinct, so that no constant matches by chance.
CALLS = [(1, 2, 3), *((17 + 3 * i, 1009 + 7 * i, 1026 + 10 * i) for i in range(9))]
NAIVE_CALLS = {"70_catch_timeout": 1, "71_fake_clock": 1, "76_pickle_rce": 1, "80_huge_result": 1}
ENDLESS = ("04_memory_bomb", "05_memory_bomb_single", "20_read_dev_zero")  # may have all of the jail's memory
CLEAN = "def add(a, b):\n    return a + b\n"
WRONG = CLEAN.replace("+", "-")
CLEAN_STDIO = "a, b = map(int, input().split())\nprint(a + b)\n"
LIMITS = {"cpu_s": 0.4, "wall_s": 1.0, "total_s": 1.5, "memory_mb": 256}
MEMORY_MB = 64  # what the judge itself may use for one program
GRACE_S = 1.0
HALTING = "41_stop_parent"
START_S, EACH_S = 30.0, 6.0  # most that a jail takes to start, and for one program
EXPECTED = ["EXPECTED-CANARY " + str(CALLS)]  # somewhere in the judge's memory


@dataclass(frozen=True)
class Attack:
    """A hostile program and its header."""

    name: str
    source: str
    stdio: bool
    expected: tuple[str, ...]
    breach_signs: tuple[str, ...]

    @property
    def may_pass(self) -> bool:
        return self.expected == ("any",)


@dataclass
class Finding:
    """What one program did."""

    name: str
    verdict: str
    seconds: float
    limit_s: float
    signs: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def read(file: Path) -> Attack:
    """Reads a program's header: ``# key: value`` lines."""
    source = file.read_text()
    header = dict(line[2:].split(": ", 1) for line in source.splitlines() if line.startswith("# ") and ": " in line)
    words = {key: tuple(header[key].split(",")) for key in ("expected_verdict", "breach_signs")}
    stdio = header["mode"].startswith("stdio")
    return Attack(file.stem, source, stdio, words["expected_verdict"], words["breach_signs"])


def attacks(folder: Path, only: Sequence[str] = ()) -> list[Attack]:
    """The programs of a folder, or those whose numbers are named."""
    files = sorted(folder.glob("[0-9]*.py"))
    return [read(file) for file in files if not only or file.stem.partition("_")[0] in only]


class Watch:
    """Compares the jail before and after one program."""

    def __init__(self) -> None:
        victims.contacts()
        self.files = victims.files()
        self.shared = victims.shared_memory()
        self.processes = victims.processes()
        victims.forget_peak()
        self.memory = victims.peak_memory_mb()

    def signs(self) -> dict[str, Any]:
        """What differs, by the words of the headers; empty if nothing does."""
        changed = victims.changed(self.files, victims.files())
        grown = victims.peak_memory_mb() - self.memory
        found = {
            "judge_memory": round(grown) if grown > MEMORY_MB else 0,
            "listener": victims.contacts(),
            "victim_changed": [path for path in changed if path.startswith(("/victim", "/home"))],
            "disk": [path for path in changed if not path.startswith(("/victim", "/home"))][:20],
            "shm": [line for line in victims.shared_memory() if line not in self.shared],
            "survivors": self.survivors(),
        }
        return {name: value for name, value in found.items() if value}

    def survivors(self) -> list[str]:
        """Processes beyond as many as there were, after a moment in which the kernel may end what was killed.

        A worker that was replaced is a new process in the place of an old one, so numbers are compared here; that
        nothing outlives the sandbox itself is asked after it was closed.
        """
        end = now() + GRACE_S
        while len(alive := victims.processes()) > len(self.processes) and now() < end:
            time.sleep(0.01)
        if len(alive) <= len(self.processes):
            return []
        return [describe(pid) for pid in sorted(alive - self.processes)][:20]


def describe(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"{pid}: {words[:80]}"
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid}: ended since"


def leaked(said: Any) -> list[str]:
    """Canaries in anything that came out of a run, ints of any length among it."""
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        text = repr(said)
    finally:
        sys.set_int_max_str_digits(digits)
    return [canary for canary in victims.CANARIES if canary in text]


@contextmanager
def open_descriptors() -> Iterator[None]:
    """Holds, inheritable, what the judge of a careless trainer holds: a folder, a socket, the file of tests."""
    held = [os.open("/victim", os.O_RDONLY), os.open(victims.TABLE, os.O_RDONLY)]
    with socket.socket() as plug:
        held.append(os.dup(plug.fileno()))
        for fd in held:
            os.set_inheritable(fd, True)
        yield
    for fd in held:
        os.close(fd)


def judge_naively(attack: Attack) -> Finding:
    """Judges one program with the judge it beats."""
    calls = CALLS[: NAIVE_CALLS.get(attack.name)]
    watch, start = Watch(), now()
    tell(started=attack.name)
    broken: dict[str, Any] = {}
    try:
        verdict = naive_judges.judge_for(attack.name)(attack.source, calls)
    except (EOFError, RecursionError) as error:  # the judge itself cannot go on
        verdict, broken = "", {"judge_alive": repr(error)}
    finding = Finding(attack.name, verdict, now() - start, naive_judges.TIMEOUT_S)
    tell(ended=attack.name)
    finding.details = broken | watch.signs()
    return conclude(attack, finding)


def conclude(attack: Attack, finding: Finding) -> Finding:
    """Adds the signs that come from verdict and time."""
    finding.signs = [*finding.details]
    if finding.verdict == "passed" and not attack.may_pass:
        finding.signs.append("verdict")
    if finding.seconds > finding.limit_s + 1:
        finding.signs.append("duration")
    return finding


class Recorder:
    """Stands between judge and sandbox, and keeps what came out of the sandbox."""

    def __init__(self, sandbox: Any) -> None:
        self.sandbox = sandbox
        self.said: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sandbox, name)

    def run_calls(self, *args: Any, **kwargs: Any) -> Any:
        self.said.append(self.sandbox.run_calls(*args, **kwargs))
        return self.said[-1]

    def run_stdio(self, *args: Any, **kwargs: Any) -> Any:
        self.said.append(self.sandbox.run_stdio(*args, **kwargs))
        return self.said[-1]


class Sandboxed:
    """The project's judge over its sandbox, as training uses it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        from marft_envs.errors import WorkerError
        from marft_envs.sandbox import Limits

        self.failure = WorkerError  # what the sandbox raises when it failed twice
        self.make = make
        self.known = victims.processes()
        self.limits = Limits(**LIMITS)
        self.renew()

    def renew(self) -> None:
        """Starts a sandbox, with all its processes."""
        self.recorder = Recorder(self.make())
        self.verdicts(CLEAN, False)

    def verdicts(self, source: str, stdio: bool) -> list[str]:
        """The verdicts of the ten tests."""
        from marft_envs.families.code.judge import Judge
        from marft_envs.families.code.problem import CodeProblem, Test

        if stdio:  # one process a test: two of them show what ten would
            tests = tuple(Test("stdio", f"{a} {b}\n", str(want)) for a, b, want in CALLS[:2])
        else:
            tests = tuple(Test("call", str([a, b]), str(want)) for a, b, want in CALLS)
        mode = "stdio" if stdio else "function"
        problem = CodeProblem("attack", mode, "", (), tests, entry_point="" if stdio else "add")
        judge = Judge(self.recorder, self.limits)  # type: ignore[arg-type]
        return [result.verdict for result in judge.run(problem, source, tests)]

    def judge(self, attack: Attack) -> Finding:
        """Judges one program, then looks at what it left and whether the sandbox still works."""
        self.recorder.said.clear()
        watch, start = Watch(), now()
        broken: dict[str, Any] = {}
        try:
            verdicts = self.verdicts(attack.source, attack.stdio)
        except self.failure as error:
            verdicts, broken = ["sandbox_error"], {"judge_alive": str(error)}
        seconds = now() - start
        limit = len(verdicts) * LIMITS["wall_s"] if attack.stdio else LIMITS["total_s"]
        verdict = next((v for v in verdicts if v != "passed"), "passed")
        finding = Finding(attack.name, verdict, seconds, limit, details=broken | watch.signs())
        if found := leaked(self.recorder.said):
            finding.details["leak"] = found
        finding.details |= self.after()
        return conclude(attack, finding)

    def after(self) -> dict[str, Any]:
        """Whether the sandbox still judges right and wrong programs; a broken one is replaced."""
        try:
            clean = {*self.verdicts(CLEAN, False), *self.verdicts(CLEAN_STDIO, True)}
            wrong = {*self.verdicts(WRONG, False)}
        except self.failure as error:
            self.recorder.close()
            self.renew()
            return {"unusable": str(error)}
        return {"unusable": [*clean, *wrong]} if (clean, wrong) != ({"passed"}, {"wrong_answer"}) else {}

    def close(self) -> list[str]:
        """Closes the sandbox; returns what lives on."""
        self.recorder.close()
        end = now() + GRACE_S
        while (left := victims.processes() - self.known) and now() < end:
            time.sleep(0.01)
        return [describe(pid) for pid in sorted(left)]


def main() -> None:
    """Prints one JSON line a program, then one of the whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--layer", default="auto")
    parser.add_argument("--mechanisms", help="instead of a layer: some of its mechanisms, joined by +, or none")
    parser.add_argument("--naive", action="store_true", help="without a sandbox")
    parser.add_argument("--controls", action="store_true", help="harmless programs, without a sandbox")
    parser.add_argument("--token", help="a secret, as command lines often hold one")
    args = parser.parse_args()
    victims.begin()
    chosen = attacks(args.attacks, [*filter(None, args.only.split(","))])
    os.chdir("/tmp/judge")
    for folder in (Path("/tmp"), Path("/tmp/judge")):
        (folder / victims.TABLE).write_text(naive_judges.dump_table(CALLS))
    with open_descriptors():
        if args.controls:
            tell(**naive_judges.controls())
        elif args.naive:
            for attack in chosen:
                tell(**vars(judge_naively(attack)))
        else:
            judge_all(chosen, args.layer, args.mechanisms)


def judge_all(chosen: Sequence[Attack], layer: str, mechanisms: str | None) -> None:
    """Judges all programs with one sandbox: of a layer, or of some mechanisms only."""
    from marft_envs.sandbox import Sandbox, SandboxUnavailable

    def make() -> Any:
        if mechanisms is None:
            return Sandbox(layer)
        os.environ["MARFT_UNSAFE_SANDBOX"] = "1"
        return Sandbox("unsafe", unsafe=True, _mechanisms=frozenset(mechanisms.split("+")) - {"none"})

    try:
        judge = Sandboxed(make)
    except SandboxUnavailable as error:
        tell(unavailable=str(error))
        return
    tell(ready=True)
    for attack in chosen:
        tell(started=attack.name)
        tell(**vars(judge.judge(attack)))
    tell(layer=judge.recorder.layer, left=judge.close())


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


# --- outside the jail: what tests and benchmark call -----------------------------------------------------------------


def run_in_jail(
    folder: Path, *arguments: str, userns: bool = True, root: bool = False, pid: int = 100, **limits: float
) -> jail.Outcome:
    """Starts this module in a jail, where it plants the victims."""
    argv = [
        sys.executable, "-m", "tests.helpers.attack_judge", "--attacks", "/opt/attacks", *arguments,
        *victims.ARGUMENTS,
    ]  # fmt: skip
    return jail.run(
        argv, folders={"/opt/attacks": folder}, env=victims.ENVIRONMENT, userns=userns, root=root, pid=pid,
        limits=jail.JailLimits(**limits),
    )  # fmt: skip


def run_naively(folder: Path, attack: Attack) -> Finding:
    """Runs one program in a jail of its own, without a sandbox."""
    number = attack.name.partition("_")[0]
    address = 0 if attack.name in ENDLESS else 3072
    lines: list[dict[str, Any]] = []
    for wall in (4, 30) if number in naive_judges.HALTS else (30,):  # 30 s: for a machine that is slow to start
        done = run_in_jail(
            folder, "--naive", "--only", number, wall_s=wall, processes=64, memory_mb=1024, address_mb=address
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        if len(lines) == 3:
            return Finding(**lines[2])
        if len(lines) == 1:
            break
    halted = done.timed_out and number in naive_judges.HALTS
    if len(lines) != 1 or not (halted or (done.status or 0) < 0):
        raise RuntimeError(f"a judge without a sandbox failed by itself: {done}")
    # The judge was killed while it judged, or stands still until the jail's deadline.
    signs = ["judge_alive", "duration"] if done.timed_out else ["judge_alive"]
    return Finding(attack.name, "", done.wall_s, naive_judges.TIMEOUT_S, signs, {"status": done.status})


@dataclass(frozen=True)
class Round:
    """All programs under one layer. ``left`` are processes that outlived the sandbox; ``unavailable`` says why not."""

    findings: tuple[Finding, ...]
    layer: str = ""
    left: tuple[str, ...] = ()
    unavailable: str = ""


def run_layer(
    folder: Path, layer: str, *, only: Sequence[str] = (), mechanisms: str | None = None, **where: int
) -> Round:
    """Runs programs in one jail under one layer of the sandbox; in a further jail, if one ended or halted the judge.

    Args:
        folder: of the programs.
        layer: of the sandbox, or ``auto``.
        only: the programs' numbers; all, if none is named.
        mechanisms: instead of the layer, some of its mechanisms, joined by ``+``, or ``none``.
        where: kind of jail, as ``jail.run`` takes it.

    Raises:
        RuntimeError: The judge itself has an error.
    """
    names = [attack.name for attack in attacks(folder, only)]
    chosen = ["--layer", layer] if mechanisms is None else ["--mechanisms", mechanisms]
    rounds = []
    if mechanisms is not None and HALTING in names:  # where nothing stops it, the judge stands still till the deadline
        names.remove(HALTING)
        rounds.append(one_round(folder, chosen, [HALTING], where))
    while names:
        rounds.append(one_round(folder, chosen, names, where))
        seen = [finding.name for finding in rounds[-1].findings]
        names = names[names.index(seen[-1]) + 1 :] if seen else []
    return Round(
        tuple(sorted((finding for one in rounds for finding in one.findings), key=lambda finding: finding.name)),
        rounds[-1].layer, tuple(process for one in rounds for process in one.left), rounds[-1].unavailable,
    )  # fmt: skip


def one_round(folder: Path, chosen: Sequence[str], names: Sequence[str], where: Mapping[str, int]) -> Round:
    """As many programs as a judge in one jail comes to."""
    numbers = ",".join(name.partition("_")[0] for name in names)
    wall = START_S + EACH_S * len(names) if len(names) > 1 else START_S / 2
    done = run_in_jail(folder, *chosen, "--only", numbers, wall_s=wall, **where)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [Finding(**line) for line in lines if "name" in line]
    last = lines[-1] if lines else {}
    if "unavailable" in last:
        return Round((), unavailable=last["unavailable"])
    if "layer" in last:
        return Round(tuple(found), last["layer"], tuple(last["left"]))
    if "started" not in last or (not done.timed_out and done.status is not None and done.status >= 0):
        raise RuntimeError(f"the judge failed by itself: {done.status}, {done.stdout!r}, {done.stderr.decode()}")
    how = "stands still" if done.timed_out else f"killed by signal {-(done.status or 0)}"
    found.append(Finding(last["started"], "", done.wall_s, 0, ["judge_alive"], {"judge_alive": how}))
    return Round(tuple(found))


def won(attack: Attack, finding: Finding) -> bool:
    """Whether a program did what it is for: by the signs of its header, or by ending or halting its judge."""
    if attack.may_pass and not {"survivors", "duration"} & {*attack.breach_signs}:
        return finding.verdict == "passed"
    return bool({*finding.signs} & {*attack.breach_signs, "judge_alive"})


def run_controls(folder: Path) -> dict[str, list[str]]:
    """Judge -> what it says of a right and of a wrong program."""
    return json.loads(run_in_jail(folder, "--controls", wall_s=60).text())


if __name__ == "__main__":
    main()
