"""What vLLM servers are and hold, and waiting for one that is started or started again."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence

from marft_algos.engines.http import NONSENSE, EngineServer, ServerDown, ServerRefused
from marft_algos.terminal import say
from marft_envs.errors import ConfigError

POLL = 2.0
"""Seconds between two looks for a server that is being started."""


class Restarts:
    """Waits for servers that are started, or started again.

    Args:
        servers: Any of them will do.
        timeout: Seconds from when all of them were gone.
    """

    def __init__(self, servers: Sequence[EngineServer], timeout: float) -> None:
        self._servers, self._timeout, self._urls = servers, timeout, ", ".join(server.url for server in servers)
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._since: float | None = None

    def awaited(self, problem: str) -> bool:
        """Returns whether a server answers, at once or in time; several threads may ask."""
        with self._lock:
            waited = False
            while not self._any():
                now = time.monotonic()
                self._since = now if self._since is None else self._since
                if now >= self._since + self._timeout or self._closed.is_set():
                    return False
                if not waited:
                    left = self._since + self._timeout - now
                    say(f"note: no vLLM server answers at {self._urls} ({problem}). Waiting {left:.0f} s.", error=True)
                waited = True
                self._closed.wait(POLL)
            self._since = None
            if waited:
                say("note: a vLLM server answers again.", error=True)
            return True

    def present(self) -> list[EngineServer]:
        """Returns the servers that answer, once one does; without any, all: to ask them says what is wrong."""
        self.awaited("it is not there yet")
        late = [server.url for server in self._servers if server.down]
        if 0 < len(late) < len(self._servers):
            say(f"note: no vLLM server answers at {', '.join(late)} yet. It is used once it is there.", error=True)
        return [server for server in self._servers if not server.down] or list(self._servers)

    def close(self) -> None:
        """Lets those go who wait."""
        self._closed.set()

    def _any(self) -> bool:
        for server in self._servers:
            server.down = not server.answers()
        return not all(server.down for server in self._servers)


def describe(server: EngineServer) -> tuple[str, int]:
    """Returns the base model's name on a server, and its context in tokens.

    Raises:
        ConfigError: Nothing that serves models is there.
    """
    try:
        cards = server.get("/v1/models")["data"]
        base = next(card for card in cards if not card.get("parent"))
        return str(base["id"]), int(base.get("max_model_len") or 1 << 30)
    except (ServerDown, ServerRefused, *NONSENSE) as error:
        raise ConfigError(
            f"No vLLM server answers at {server.url}: {error}. Start one; this prints how:"
            ' python -m marft_algos.engines.server --help. One that wants a key: key_env = "VLLM_API_KEY"'
        ) from error


def check_slots(server: EngineServer, needed: int) -> None:
    """Checks that a server holds every adapter that may be asked for at once; warns where it does not say.

    Raises:
        ConfigError: Too few.
    """
    try:
        slots = server.get("/server_info?config_format=json")["vllm_config"]["lora_config"]["max_loras"]
    except (ServerDown, ServerRefused, *NONSENSE):
        warnings.warn(
            f"The vLLM server at {server.url} does not say how many adapters it holds (VLLM_SERVER_DEV_MODE=1 lets"
            f" it). This team needs --max-loras {needed} or more.",
            stacklevel=3,
        )
        return
    if slots < needed:
        raise ConfigError(
            f"The vLLM server at {server.url} holds {slots} adapters at once; this team needs {needed}: one per"
            f" policy for each version in use, and one to come. Start it with --max-loras {needed}"
        )
