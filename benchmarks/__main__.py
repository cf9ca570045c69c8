"""``python -m benchmarks [NAME] …``: ``envs`` by default; ``--help`` lists every measurement by what it shows.

A measurement is a module of one of the ``ROOMS``; ``perf_`` in front of its name can be left out.
"""

from __future__ import annotations

import ast
import os
import runpy
import sys
from pathlib import Path

from marft_algos.terminal import prepared
from marft_envs.errors import MarftError, did_you_mean

HERE = Path(__file__).parent
ROOMS = ("speed", "learning", "correctness", "drills", "embedded")


def modules() -> dict[str, Path]:
    """Name of a measurement -> its file: what a person starts, which is neither a part of others nor their worker."""
    files = (file for room in ROOMS for file in sorted((HERE / room).glob("*.py")))
    own = (file for file in files if not file.stem.endswith("_worker"))
    return {file.stem: file for file in own if 'if __name__ == "__main__":' in file.read_text(encoding="utf-8")}


def listed() -> str:
    """Every measurement and what it is about, room by room."""
    lines = []
    for room in ROOMS:
        lines.append(f"{room}:")
        for name, file in modules().items():
            if file.parent.name == room:
                summary = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0]
                lines.append(f"  {name.removeprefix('perf_'):18} {summary}")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    """Runs the measurement that the first word names."""
    files = modules()
    names = {name.removeprefix("perf_"): name for name in files} | {name: name for name in files}
    if words[:1] in (["-h"], ["--help"]):
        print(listed())
        return
    if words and not words[0].startswith("-") and words[0] not in names:
        sys.exit(f"error: There is no measurement '{words[0]}'. {did_you_mean(words[0], names)}")
    name = names[words.pop(0)] if words and words[0] in names else "envs"
    module = ".".join(files[name].relative_to(HERE.parent).with_suffix("").parts)
    sys.argv[1:] = words
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except MarftError as error:  # a folder that is none, a wrong grid: as `marft` says it
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    try:
        with prepared():
            main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone: `python -m benchmarks docs runs/docs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
