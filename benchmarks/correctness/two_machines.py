"""Two machines on this one: what ranks and Ray's workers train across a network, and after it was cut for a while.

    python -m benchmarks two_machines [--parts ranks patient cut ray ray-cut] [--seconds 30] [--out FILE]

Two network namespaces, each with an address and a host name of its own, hang on a switch in a third one; it needs root,
``ip``, ``nsenter`` and ``unshare``. Every part is the same run, whose weights are compared with one process's:

* ``ranks``: a launcher of torchrun on each, with one rank;
* ``patient``: the switch is off for a while, and the ranks wait longer than that;
* ``cut``: the ranks give up meanwhile, and go on from the last checkpoint;
* ``ray``: a Ray cluster with a token, head and driver on one machine, a worker on each;
* ``ray-cut``: the switch is off for a while, while both workers play.

Exit code 1 where weights differ.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marft_envs.errors import ConfigError

PARTS = ("ranks", "patient", "cut", "ray", "ray-cut")
RESULT = Path(__file__).resolve().parents[1] / "results/two_machines.json"
RUN = ("--episodes-per-iteration", "16", "--eval-episodes", "8", "--eval-every", "0", "--save-every", "1")
ITERATIONS = 10
PORT = 29400
GIVES_UP_S = 10
"""After so many seconds without an answer a rank of ``cut`` ends."""
LIMIT_S = 540.0
"""What one part may take."""


class Refused(ConfigError):
    """This machine does not let a process make networks."""


class Machines:
    """Two of them, and a switch; used as a context."""

    def __init__(self) -> None:
        mark = f"m{os.getpid()}"
        self._switch, self._nodes = f"{mark}s", [f"{mark}n0", f"{mark}n1"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Machines:
        for tool in ("ip", "nsenter", "unshare"):
            if shutil.which(tool) is None:
                raise Refused(f"'{tool}' is not on this machine (packages iproute2 and util-linux have it).")
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process.poll() is None:  # the number of one that has ended may be another's
                stop(process, signal.SIGKILL)
        for name in (*self._nodes, self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _make(self) -> None:
        _do("ip", "netns", "add", self._switch)
        _do("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        self.link(True)
        for i, node in enumerate(self._nodes):
            _do("ip", "netns", "add", node)
            ends = ("netns", node, "type", "veth", "peer", "name", f"port{i}", "netns", self._switch)
            _do("ip", "link", "add", "eth0", *ends)
            _do("ip", "-n", self._switch, "link", "set", f"port{i}", "master", "br0", "up")
            _do("ip", "-n", node, "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _do("ip", "-n", node, "link", "set", device, "up")

    def link(self, on: bool) -> None:
        """Switches the switch on or off; the machines keep their devices and addresses, and lose what they send."""
        _do("ip", "-n", self._switch, "link", "set", "br0", "up" if on else "down")

    def start(self, node: int, log: Path, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        """Starts a program on one of them."""
        named = ("unshare", "--uts", "sh", "-c", f'hostname node{node}; exec "$@"', "sh")
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self._nodes[node]}", *named, *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", **environ},
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def workers(self) -> list[int]:
        """Counts the processes of Ray's actors on each machine."""
        wanted, counts = [Path(f"/run/netns/{node}").stat().st_ino for node in self._nodes], [0, 0]
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile, or is none
                if b"ray::_Actor" in (folder / "cmdline").read_bytes():
                    counts[wanted.index((folder / "ns/net").stat().st_ino)] += 1
        return counts


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def stop(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Ends a program and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    process.wait(60)


def weights(run: Path) -> str:
    """Hashes what the last iteration has saved of the policies."""
    files = sorted((run / f"checkpoints/step_{ITERATIONS:06d}").rglob("*.safetensors"))
    if not files:
        raise RuntimeError(f"'{run}' has not come to its end")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def lines(run: Path) -> list[dict[str, Any]]:
    """The run's metrics so far."""
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines() if line] if file.is_file() else []


def command(runs: Path, name: str, *words: str) -> list[str]:
    """``marft train`` of this checkout."""
    where = ("--runs-dir", str(runs), "--name", name, "--iterations", str(ITERATIONS))
    return [sys.executable, "-m", "marft_algos", "train", *RUN, *where, *words]


def finished(processes: list[subprocess.Popen[bytes]], log: Path, watch: Callable[[], None]) -> None:
    """Waits for all of them, and lets somebody watch meanwhile."""
    until = time.monotonic() + LIMIT_S
    while any(process.poll() is None for process in processes):
        if time.monotonic() > until:
            raise RuntimeError(f"nothing has come of it in {LIMIT_S:g} s:\n{log.read_text()}")
        watch()
        time.sleep(0.2)
    if any(process.returncode for process in processes):
        raise RuntimeError(f"ended with {[process.returncode for process in processes]}:\n{log.read_text()}")


class Cut:
    """Cuts the link when an iteration is saved that both machines had a part in, and restores it; asked now and then.

    Args:
        machines: Which the link is between.
        run: The run's folder.
        seconds: How long it is cut; 0: it is not.
        workers: How many have to be ready before.
    """

    def __init__(self, machines: Machines, run: Path, seconds: float, workers: int = 0) -> None:
        self._machines, self._run, self._seconds, self._workers = machines, run, seconds, workers
        self._since = math.inf
        self.lasted = 0.0
        """Seconds that the link was cut."""
        self.at = 0
        """Iterations done when it was."""

    def __call__(self) -> None:
        done = lines(self._run)
        ready = len(done) > 1 and done[-1].get("engine/workers", 0) >= self._workers
        if self._seconds and ready and self._since == math.inf:
            self._machines.link(False)
            self._since, self.at = time.monotonic(), len(done) - 1
        elif not self.lasted and time.monotonic() - self._since >= self._seconds:
            self.restore()

    def restore(self) -> None:
        """Restores the link."""
        if self._since < math.inf and not self.lasted:
            self.lasted = round(time.monotonic() - self._since, 1)
            self._machines.link(True)

    def facts(self) -> dict[str, Any]:
        """What there is to say of it."""
        return {"cut_s": self.lasted, "cut_after_iteration": self.at} if self._seconds else {}


def ranks(machines: Machines, runs: Path, part: str, seconds: float) -> dict[str, Any]:
    """A run of one rank on each machine."""
    log = runs / f"{part}.log"
    patience = ("--collective-timeout", str(GIVES_UP_S)) if part == "cut" else ()
    python, *words = command(runs, part, *patience)
    torchrun = [python, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{machines.addresses[0]}:{PORT}"]
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    # Neither machine's name is known to any resolver: who is where they meet is said to torchrun.
    own = [("--local-addr", machines.addresses[node], "--rdzv-conf", f"is_host={1 - node}") for node in (0, 1)]
    processes = [machines.start(node, log, *torchrun, *own[node], *words, **environ) for node in (0, 1)]
    cut = Cut(machines, runs / part, seconds if part != "ranks" else 0)
    try:
        finished(processes, log, cut)
    finally:
        cut.restore()
    return {"starts": log.read_text().count("run:     "), **cut.facts()}


def ray(machines: Machines, runs: Path, part: str, seconds: float) -> dict[str, Any]:
    """A run that is played by a worker on each machine of a Ray cluster."""
    log, head = runs / f"{part}.log", f"{machines.addresses[0]}:6379"
    starts = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats", "--num-cpus", "1"]
    starts += ["--object-store-memory", "100000000"]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with tempfile.TemporaryDirectory(prefix="mr", dir="/tmp") as folder:  # a short path: sockets lie below it
        first = ("--head", "--port", "6379", "--include-dashboard=false", "--temp-dir", folder)
        address = [("--node-ip-address", address) for address in machines.addresses]
        cluster = [machines.start(0, runs / "head.log", *starts, *first, *address[0], **token)]
        started(runs / "head.log")
        cluster.append(machines.start(1, runs / "node.log", *starts, "--address", head, *address[1], **token))
        started(runs / "node.log")
        words = command(runs, part, "--rollouts", "ray", "--workers", "2", "--reduction-slots", "8")
        driver = machines.start(0, log, *words, RAY_ADDRESS=head, **token)
        counts = [0, 0]

        cut = Cut(machines, runs / part, seconds if part == "ray-cut" else 0, workers=2)

        def watch() -> None:
            counts[:] = [max(pair) for pair in zip(counts, machines.workers(), strict=True)]
            cut()

        try:
            finished([driver], log, watch)
        finally:
            cut.restore()
            for process in cluster:
                if process.poll() is None:
                    stop(process, signal.SIGTERM)
            (runs / "head.log").unlink()
            (runs / "node.log").unlink()
    redone = sum(line.get("engine/restarts", 0) for line in lines(runs / part))
    return {"workers_by_machine": counts, "workers_replaced": int(redone), **cut.facts()}


def started(log: Path) -> None:
    """Waits until a node of the cluster is there.

    Raises:
        RuntimeError: It does not come.
    """
    until = time.monotonic() + LIMIT_S / 2
    while "Ray runtime started" not in log.read_text():
        if time.monotonic() > until:
            raise RuntimeError(f"a node does not start:\n{log.read_text()}")
        time.sleep(0.5)


def main() -> int:
    """Prints a line for each part; 1 where any differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the link is cut")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.is_file() else {}
    with tempfile.TemporaryDirectory() as folder, Machines() as machines:
        runs = Path(folder)
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}
        words = command(runs, "one", "--reduction-slots", "8")
        done = subprocess.run(words, env=alone, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        wanted = weights(runs / "one")
        for part in args.parts:
            since = time.monotonic()
            row = (ray if part.startswith("ray") else ranks)(machines, runs, part, args.seconds)
            row |= {"equal": weights(runs / part) == wanted, "iterations": ITERATIONS}
            results[part] = row | {"seconds": round(time.monotonic() - since, 1)}
            print(f"{part:8} {json.dumps(results[part])}", flush=True)
            args.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(not all(results[part]["equal"] for part in args.parts))


if __name__ == "__main__":
    sys.exit(main())
