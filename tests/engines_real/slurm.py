"""A SLURM cluster of two nodes on this machine: its own daemons, key and ports, below one folder, and gone afterwards.

It needs no system service and no cgroups. The nodes are called as loopback addresses, which every machine resolves.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("127.0.0.1", "127.0.0.2")
READY_S = 60
CONF = """
ClusterName=marft
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A job that was queued again begins when its credential has expired; by default after two minutes.
AuthInfo=socket={folder}/munge/socket,cred_expire=6
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=120
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=127.0.0.[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=4 Gres=gpu:1
PartitionName=low Nodes=ALL Default=YES State=UP PriorityTier=1
PartitionName=high Nodes=ALL State=UP PriorityTier=2
"""


def absent() -> str:
    """What this machine lacks; "": nothing."""
    missing = [name for name in DAEMONS if shutil.which(name, path=paths()) is None]
    if not sys.platform.startswith("linux"):
        return "SLURM's daemons run on Linux"
    return f"needs {', '.join(missing)} (Debian: munge, slurmctld, slurmd, slurm-client)" if missing else ""


def paths() -> str:
    """Where programs are looked for: daemons lie where no user's PATH points."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def free_ports() -> tuple[int, int, int]:
    """Three ports in a row that nobody listens on, out of the range that connections go out from."""
    for first in range(16817 + secrets.randbelow(5000), 32000, 3):
        with ExitStack() as held:
            try:
                for port in range(first, first + 3):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first, first + 1, first + 2
    raise AssertionError("no free ports")


def until(true: Callable[[], object], seconds: float, what: Callable[[], object]) -> None:
    """Waits until something is the case; ``what`` says how it stands if it never is."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.5)


class Cluster:
    """What a user of the cluster types.

    Args:
        folder: Of configuration, logs and state.
        environ: With which its commands are started.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder, self.environ = folder, environ

    def run(self, *words: str, timeout: float = 60, **environ: str) -> str:
        """Runs a command; returns what it prints."""
        done = subprocess.run(
            words,
            env={**self.environ, **environ},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """What ``scontrol`` says of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended(self, job: str, seconds: float) -> dict[str, str]:
        """Waits for a job's end; returns what is said of it."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        until(lambda: self.state(job)["JobState"] in over, seconds, lambda: f"{self.state(job)}\n{self.logs()}")
        return self.state(job)

    def logs(self) -> str:
        """Ends of what the daemons and jobs have written."""
        return "\n".join(f"== {file}\n{file.read_text()[-1500:]}" for file in sorted(self.folder.glob("*.log")))


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Starts the daemons, and ends every job and every daemon on the way out."""
    folder = Path(tempfile.mkdtemp(prefix="marft-slurm-"))  # the path of a socket has 107 characters at most
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environ |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": paths()}
    here, started = Cluster(folder, environ), list[subprocess.Popen[bytes]]()
    (folder / "munge").mkdir(mode=0o700)
    (folder / "state").mkdir()
    key = folder / "munge/key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    text = CONF.format(host=host, ports=free_ports(), user=getpass.getuser(), folder=folder)
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("NodeName=127.0.0.[1-2] Name=gpu File=/dev/null\n")  # nobody opens it

    def start(name: str, *words: str) -> None:
        program = shutil.which(name, path=paths())
        assert program is not None
        tied = [sys.executable, "-m", "marft_algos.engines.exit_with_parent", program, *words]
        with open(folder / "daemons.log", "ab") as log:
            started.append(subprocess.Popen(tied, env=environ, stdout=log, stderr=log))

    def munge(name: str) -> str:
        return f"--{name}-file={folder}/munge/{name}"

    try:
        places = [munge(name) for name in ("key", "pid", "log", "seed")]
        start("munged", "--foreground", "--force", f"--socket={folder}/munge/socket", *places)
        until((folder / "munge/socket").exists, READY_S, here.logs)
        start("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        for node in NODES:
            start("slurmd", "-D", "-N", node, "-f", str(folder / "slurm.conf"))
        until(lambda: idle(environ) == len(NODES), READY_S, here.logs)
        yield here
        subprocess.run(["scancel", "--user", getpass.getuser()], env=environ, check=False, timeout=60)
        until(lambda: not here.run("squeue", "--noheader"), READY_S + 120, here.logs)
    finally:
        subprocess.run(["scancel", "--signal", "KILL", "--user", getpass.getuser()], env=environ, check=False)
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def idle(environ: dict[str, str]) -> int:
    """How many nodes wait for work; 0, too, while nobody answers."""
    words = ["sinfo", "--noheader", "--Node", "--partition", "low", "--states", "idle", "--format", "%N"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    return len(done.stdout.split()) if done.returncode == 0 else 0
