"""Which machines train together: what ``--nnodes`` and ``--rdzv-endpoint`` say, or the SLURM step around it."""

from __future__ import annotations

import datetime
import errno
import fcntl
import os
import re
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from marft_algos.config import arguments
from marft_algos.ranks import group as ranks
from marft_envs.errors import ConfigError

PORT = 29400
"""Where the machines meet if nothing else is typed: torchrun's."""
ANSWER_S = 3.0
"""How long a port that is taken may take to say by whom."""
_INTERFACE_ADDRESS = 0x8915
"""The ioctl SIOCGIFADDR."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines of a run, of which this is one."""

    nproc: int = 0
    """Ranks on each; 0: nobody has asked for ranks."""
    count: int = 1
    host: str = ""
    """Where they meet: the first machine's name or address."""
    port: int = PORT
    name: str = "marft"
    """Of the meeting: two runs on one machine have two."""
    job: str = ""
    """SLURM's number of the job; empty: there is none."""

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return self.nproc * self.count


def take(argv: list[str], environ: Mapping[str, str] = os.environ) -> tuple[list[str], Nodes]:
    """Splits ``--nproc``, ``--nnodes`` and ``--rdzv-endpoint`` off.

    Args:
        argv: What was typed.
        environ: With SLURM's variables, if this was started by it.

    Raises:
        ConfigError: They do not say which processes train together.
    """
    words, given = arguments.take(argv, "nproc", "nnodes", "rdzv-endpoint")
    nproc = _count(given, "nproc", "how many processes train together on a machine")
    nnodes = _count(given, "nnodes", "how many machines train together")
    if nproc == 0:
        if given:
            option = next(iter(given)).replace("_", "-")
            raise ConfigError(f"--{option} goes with --nproc, the number of ranks on each machine: --nproc 1")
        return words, Nodes()
    if nnodes == 0 and "rdzv_endpoint" not in given:
        return words, slurm(nproc, environ)
    endpoint = given.get("rdzv_endpoint", "")
    if nnodes < 2 and not endpoint:
        return words, Nodes(nproc)
    if nnodes < 2:
        raise ConfigError("--rdzv-endpoint is where several machines meet, and goes with --nnodes: --nnodes 2")
    if not endpoint:
        raise ConfigError(
            f"--nnodes {nnodes}: expected where the machines meet, an address of the first one and a free port, the"
            f" same on all of them. Type: --rdzv-endpoint HOST:{PORT}"
        )
    host, port = _parsed(endpoint)
    return words, Nodes(nproc, nnodes, host, port)


def _count(given: Mapping[str, str], name: str, what: str) -> int:
    text = given.get(name)
    if text is None:
        return 0
    if not text.isdecimal() or not ranks.power_of_two(int(text)):
        raise ConfigError(f"--{name} {text}: expected {what}: 1, 2, 4, 8, …")
    return int(text)


def _parsed(endpoint: str) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":") if not endpoint.endswith("]") else (endpoint, "", "")
    host = host if colon else endpoint
    if not host or (colon and not (port.isdecimal() and 0 < int(port) < 1 << 16)):
        raise ConfigError(f"--rdzv-endpoint {endpoint}: expected HOST:PORT, as in --rdzv-endpoint node1:{PORT}")
    return host.strip("[]"), int(port) if colon else PORT


def slurm(nproc: int, environ: Mapping[str, str] = os.environ) -> Nodes:
    """Returns the machines of the SLURM step that this process is one of, or this machine alone.

    Raises:
        ConfigError: There are several machines, and srun has not started one launcher on each.
    """
    text = environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "1"))
    count = int(text) if text.isdecimal() else 1
    if count < 2:
        return Nodes(nproc)
    if "SLURM_STEP_NODELIST" not in environ:
        raise ConfigError(
            f"SLURM has given {count} machines to this job, and this command runs on one of them. To train on all: srun"
            f" --ntasks-per-node 1 marft train --nproc {nproc} …; on this one: --nnodes 1"
        )
    tasks = environ.get("SLURM_STEP_NUM_TASKS", str(count))
    if tasks != str(count):
        raise ConfigError(
            f"srun has started {tasks} tasks on {count} machines. --nproc starts the ranks of a machine, and expects"
            " one task on each: srun --ntasks-per-node 1 marft train …"
        )
    if not ranks.power_of_two(count):
        raise ConfigError(
            f"{count} machines cannot train together: sums are added in pairs. Expected a power of two: srun --nodes"
            f" {1 << (count.bit_length() - 1)} …"
        )
    job, step = environ.get("SLURM_JOB_ID", "0"), environ.get("SLURM_STEP_ID", "0")
    # Of its own for each step, and below the ports that systems give away; marks a job that shares its first machine.
    port = 20000 + (7 * int(job) + int(step)) % 10000 if job.isdecimal() and step.isdecimal() else PORT
    return Nodes(nproc, count, first_host(environ["SLURM_STEP_NODELIST"]), port, f"marft-{job}.{step}", job)


def first_host(nodelist: str) -> str:
    """Returns the first machine of SLURM's short form: ``gpu[003-006,9],login1`` begins with ``gpu003``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)
    if first is None:
        raise ConfigError(
            f"SLURM names no machines: SLURM_STEP_NODELIST is '{nodelist}'. Type: --rdzv-endpoint HOST:PORT"
        )
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def here(nodes: Nodes) -> str:
    """Returns this machine's address on the way to where all meet.

    Raises:
        ConfigError: The name of the first machine is not known here, or there is no way to it.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(nodes.host, nodes.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect(place)  # sends nothing
            return str(way.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"{socket.gethostname()} finds no way to '{nodes.host}', where the machines meet: {error}. Expected a name"
            f" or an address of the first machine that all of them know: --rdzv-endpoint HOST:{nodes.port}"
        ) from error


def is_host(nodes: Nodes) -> bool:
    """Returns whether the machines meet here, at a port of this process.

    Raises:
        ConfigError: They do, and somebody else has the port.
    """
    family, kind, _, _, place = socket.getaddrinfo(nodes.host, nodes.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(place)
            listener.listen()
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:  # the address of another machine
                return False
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"Port {nodes.port} of {nodes.host} cannot be had: {error}") from error
            if _met(nodes):  # by another launcher of this run on this machine
                return False
            raise ConfigError(
                f"Port {nodes.port} of {nodes.host} is taken by another program, and the machines of this run are to"
                f" meet there. Type on all: --nnodes {nodes.count} --rdzv-endpoint {nodes.host}:{nodes.port + 1}"
            ) from error
        return True


def _met(nodes: Nodes) -> bool:
    """Whether somebody meets there under this run's name."""
    from torch.distributed import DistError, TCPStore

    met = threading.Event()

    def ask() -> None:
        with suppress(DistError, RuntimeError, ValueError):
            store = TCPStore(nodes.host, nodes.port, is_master=False, timeout=datetime.timedelta(seconds=ANSWER_S))
            if store.check([f"torch.rendezvous.{nodes.name}"]):
                met.set()

    # In a thread: a store waits for ever for the answer of a program that is none.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    return met.is_set()


def interface(address: str) -> str:
    """Returns the name of this machine's network device with an IPv4 address; empty: there is none."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                reply = fcntl.ioctl(asked.fileno(), _INTERFACE_ADDRESS, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
        if socket.inet_ntoa(reply[20:24]) == address:
            return name
    return ""
