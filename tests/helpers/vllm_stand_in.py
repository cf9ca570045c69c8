"""A program in place of vLLM's server, for a virtual environment that is none: ``make`` writes its interpreter."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

HELPERS = Path(__file__).resolve().parents[1]


def make(folder: Path) -> Path:
    """Writes what the setting ``worker_vllm`` names: ``bin/python``, which starts this file whatever it is told."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    paths = os.pathsep.join([str(HELPERS), str(HELPERS.parent)])
    python.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} -m helpers.vllm_stand_in "$@"\n')
    python.chmod(0o755)
    return folder


def main(words: list[str]) -> None:
    """Serves what the command line of vLLM's server says, until it is told to end."""
    from helpers.fake_servers import FakeVLLM

    told = {name: words[words.index(name) + 1] for name in ("--model", "--port", "--max-model-len", "--max-loras")}
    context, slots = int(told["--max-model-len"]), int(told["--max-loras"])
    assert os.environ["VLLM_API_KEY"] and "--enable-lora" in words and "processed_logprobs" in words
    served = FakeVLLM(told["--model"], context=context, slots=slots, port=int(told["--port"]))
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    ended.wait()
    served.fake.close()


if __name__ == "__main__":
    main(sys.argv[1:])
