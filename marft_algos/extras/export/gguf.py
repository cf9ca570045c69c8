"""Merged weights as GGUF, by llama.cpp's own converter."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from marft_envs.errors import ConfigError

SCRIPT = "convert_hf_to_gguf.py"
_SHOWN = 12
"""Last lines of a failed converter's output that its error quotes."""
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)


def converter(folder: str = "") -> list[str]:
    """Returns the command that starts llama.cpp's converter.

    Args:
        folder: A clone of llama.cpp; empty: what is on the PATH.

    Raises:
        ConfigError: It is not there.
    """
    if folder:
        script = Path(folder).expanduser() / SCRIPT
        if not script.is_file():
            raise ConfigError(f"There is no {SCRIPT} in '{folder}'. Expected a clone of llama.cpp: --llama-cpp DIR")
        return [sys.executable, str(script)]
    if (found := shutil.which(SCRIPT)) is None:
        raise ConfigError(
            f"llama.cpp's {SCRIPT} is not on the PATH, and makes the GGUF file. Get llama.cpp (git clone"
            " https://github.com/ggml-org/llama.cpp), then name its folder: --llama-cpp DIR. Or leave out --gguf."
        )
    return [found]


def convert(command: list[str], model: Path, file: Path, outtype: str) -> None:
    """Converts a model's folder into one file.

    Raises:
        ConfigError: The converter failed; the message holds what it said last.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*command, str(model), "--outfile", str(file), "--outtype", outtype],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode or not file.is_file():
        last = "\n".join(done.stdout.strip().splitlines()[-_SHOWN:])
        if missing := _MISSING.search(last):
            raise ConfigError(
                f"llama.cpp's converter needs the package '{missing[1]}', which its own requirements name. Type: pip"
                f" install {missing[1]}"
            )
        raise ConfigError(
            f"llama.cpp's converter ended with status {done.returncode}:\n{last}\nIt knows public families and their"
            " tokenizers only, and needs the packages of its own requirements. The merged weights can be used as they"
            " are: leave out --gguf."
        )
