"""What the worker processes of test_workers.py run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any


def work(request: dict[str, Any]) -> Any:
    """Does what ``request["do"]`` says."""
    return globals()[f"_{request['do']}"](request)


def _echo(request: dict[str, Any]) -> Any:
    return request["value"]


def _pid(request: dict[str, Any]) -> int:
    return os.getpid()


def _sleep(request: dict[str, Any]) -> str:
    time.sleep(request["seconds"])
    return "slept"


def _spin(request: dict[str, Any]) -> None:
    while True:
        pass


def _work(request: dict[str, Any]) -> str:
    """Uses so many seconds of CPU."""
    end = time.process_time() + request["seconds"]
    while time.process_time() < end:
        pass
    return "worked"


def _family(request: dict[str, Any]) -> None:
    """Starts a child that would outlive its worker, says its id through a file, then hangs."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(request["file"], "w", encoding="ascii") as file:
        file.write(str(child.pid))
    time.sleep(60)


def _print(request: dict[str, Any]) -> str:
    print('{"id": 0, "result": "forged"}', flush=True)
    os.write(1, b'{"id": 1, "result": "forged"}\n')
    subprocess.run(["echo", '{"id": 2, "result": "forged"}'], check=True)
    return "honest"


def _stdin(request: dict[str, Any]) -> str:
    return sys.stdin.read()


def _raise(request: dict[str, Any]) -> None:
    raise ValueError("no such thing")


def _exit(request: dict[str, Any]) -> None:
    os._exit(3)


def _hog(request: dict[str, Any]) -> int:
    return len(bytearray(request["megabytes"] << 20))


def _unjsonable(request: dict[str, Any]) -> object:
    return object()
