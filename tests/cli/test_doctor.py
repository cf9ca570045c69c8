"""``marft doctor``: what is here, what of MARFT runs, what to type; nothing that works is called broken, nor the reverse."""

from __future__ import annotations

import importlib.metadata
import json
import types
from typing import Any

import pytest
from packaging.requirements import Requirement

from marft_algos.cli import main
from marft_algos.extras import doctor
from marft_algos.extras.doctor import Finding


def named(findings: list[Finding]) -> dict[str, Finding]:
    return {f.name: f for f in findings}


def test_the_report_says_what_runs_here_and_is_json_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["machine", "packages", "torch and GPU", "sandbox", "caches", "what runs"]
    every = [f for findings in report.values() for f in findings]
    assert code == int(any(f["state"] == "bad" for f in every))
    runs = {f["name"]: f for f in report["what runs"]}
    assert runs["envs, play, check, show"]["state"] == "ok" and runs["train, eval, export, bench"]["state"] == "ok"
    assert all(f["state"] == "ok" or f["text"] for f in every), "what does not run says why"


def test_people_read_a_line_each_and_what_to_type() -> None:
    report = {"sandbox": [Finding("landlock", "off", "not given:\x1b[2J no", "apt install x"), Finding("b", "ok", "")]}
    shown = doctor.written(report)
    assert "  - landlock" in shown and "type: apt install x" in shown and "  + b\n" in shown and "\x1b" not in shown


@pytest.mark.parametrize(("installed", "state", "text", "fix"), [
    ({"torch": "2.11.0", "peft": "0.20"}, "ok", "torch 2.11.0, peft 0.20", ""),
    ({"torch": "2.11.0+cu130", "peft": "0.21.dev0"}, "ok", "torch 2.11.0+cu130, peft 0.21.dev0", ""),
    ({"torch": "2.11.0"}, "off", "not here: peft", "pip install -e '.[train]'"),
    ({"torch": "2.5.0", "peft": "0.20"}, "bad", "torch 2.5.0 (supported: >=2.11)", "pip install --upgrade"),
])  # fmt: skip
def test_versions_are_held_against_what_is_supported(
    installed: dict[str, str], state: str, text: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (
        Requirement("numpy>=2"),
        Requirement("torch>=2.11; extra == 'train'"),
        Requirement("peft>=0.20; extra == 'train'"),
        Requirement("mcp>=2; extra == 'mcp'"),
    )

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(doctor, "requirements", lambda: asked)
    monkeypatch.setattr(importlib.metadata, "version", version)
    found = doctor.extra("train")
    assert (found.state, found.text) == (state, text) and fix in found.fix


def test_an_old_python_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "metadata", lambda name: "<3.14,>=3.11")
    assert doctor.python("3.12.1").state == "ok"
    found = doctor.python("3.10.4")
    assert found.state == "bad" and "3.10.4; supported: <3.14,>=3.11" in found.text and found.fix


def a_torch(cuda: str | None, available: bool) -> Any:
    of = types.SimpleNamespace(name="H100", total_memory=80e9)
    gpu = types.SimpleNamespace(
        is_available=lambda: available,
        device_count=lambda: 1,
        get_device_properties=lambda i: of,
        is_bf16_supported=lambda: False,
    )
    return types.SimpleNamespace(cuda=gpu, version=types.SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize(("torch", "driver", "state", "text"), [
    (a_torch("13.0", True), "H100, 580", "ok", "H100, 80 GB; without bf16: --dtype fp32"),
    (a_torch(None, False), "H100, 580", "bad", "this torch is built for CPUs only"),
    (a_torch("13.0", False), "H100, 580", "bad", "torch (CUDA 13.0) cannot use it"),
    (a_torch(None, False), "", "off", "none here"), (None, "H100, 580", "off", "no torch to use it"),
])  # fmt: skip
def test_a_gpu_that_torch_cannot_use_is_told_from_none(
    torch: Any, driver: str, state: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "driver", lambda: driver)
    monkeypatch.setitem(doctor.sys.modules, "torch", torch)
    found = doctor.graphics()
    assert found.state == state and text in found.text


def test_what_runs_follows_from_what_is_here() -> None:
    torch, gpu = Finding("torch", "ok", ""), Finding("GPU", "off", "none here")
    layers = [Finding("a", "off", "no"), Finding("b", "off", "no")]
    runs = named(doctor.works({"train": True, "mcp": False}, torch, gpu, layers))
    assert runs["train, eval, export, bench"].state == "ok" and runs["training on a GPU"].state == "off"
    assert runs["tools by MCP"].fix == "pip install -e '.[mcp]'"
    assert runs["environments of code"].fix == "python -m marft_envs.sandbox"
    runs = named(doctor.works({"train": False}, torch, gpu, [Finding("b", "ok", "")]))
    assert runs["train, eval, export, bench"].fix == "pip install -e '.[train]'"
    assert runs["environments of code"].state == "ok" and runs["envs, play, check, show"].state == "ok"
