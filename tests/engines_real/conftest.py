"""What the tests of real engines share: they run by ``make test-engines``, which makes the servers' environments."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from helpers.tiny import save_tiny
from marft_algos.engines import server
from marft_algos.engines.server import ServerSettings

Serve = Callable[..., ServerSettings]


@pytest.fixture(scope="session")
def vllm_env() -> Path:
    """Folder of a virtual environment with vLLM."""
    folder = os.environ.get("MARFT_TEST_VLLM_ENV", "")
    if not folder:
        pytest.skip("no vLLM: type make test-engines, which installs it, or set MARFT_TEST_VLLM_ENV=FOLDER")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model of two layers, whose heads are as large as vLLM wants them on a CPU."""
    return str(save_tiny(tmp_path_factory.mktemp("models") / "qwen", hidden=128))


@pytest.fixture
def serve(vllm_env: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts real vLLM servers, which end with the test."""
    with ExitStack() as stack:

        def start(model: str, **options: int | str) -> ServerSettings:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            chosen = {"context": 512, "dtype": "float32", "policies": 2, "port": port, **options}
            settings = ServerSettings(model, venv=str(vllm_env), **chosen)  # type: ignore[arg-type]
            stack.enter_context(running(settings, tmp_path))
            return settings

        yield start


@contextmanager
def running(settings: ServerSettings, folder: Path) -> Iterator[int]:
    """A server while inside; gives its process's number. What it prints is shown if the test fails."""
    log = folder / f"vllm-{settings.port}.log"
    try:
        with server.serving(settings, log=log, timeout=1800.0) as process:
            yield process.pid
    finally:
        print(log.read_text(errors="replace")[-20_000:])
