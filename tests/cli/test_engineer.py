"""The path of a product's team, from its evaluation to its service, as `examples/engineer.py` goes it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from examples import engineer
from helpers.fake_servers import serving
from helpers.till_endpoint import till

NOISE = re.compile(r"INFO|WARNING|HTTP Request|Warning:|Traceback|\.py[:\"]|site-packages")
"""What stands in lines of other libraries' loggers, and in warnings that show their source."""


@pytest.mark.ci
def test_the_path_of_a_product_team(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = Path(engineer.__file__)
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 150
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(source.parents[1]))
    with serving(till) as fake:
        engineer.path(fake.url + "/v1")
    out, err = capfd.readouterr()
    for expected in (
        "avg@4      0.938", "pass@4", " s (p95), cost ", "tool:      charge, 120 calls", "rows:      rows.jsonl: 480",
        "gain:", "gate:    passed: score, cost", "gate:    failed: score", "all served answers are the evaluated ones",
    ):  # fmt: skip
        assert expected in out
    assert not [line for line in (out + err).splitlines() if NOISE.search(line)]
    assert all("tools" in body for _, body in fake.asked if body["model"] == "clerk")
    results = json.loads(Path("evals/trained/results.json").read_text())
    assert list(results["usage"]) == ["clerk_0"] and set(results["usage"]["clerk_0"]["seconds"]) == {"p50", "p95"}
    settings = json.loads(Path("evals/trained/eval.json").read_text())
    assert set(settings["adapters"]) == {"reasoner_0", "actor_0"} and settings["engines"]["clerk_0"]["model"] == "clerk"
    assert ET.parse("gate.xml").getroot().get("failures") == "0"
    exported = json.loads(Path("exports/till/export.json").read_text())
    assert set(exported["policies"]) == {"reasoner_0", "actor_0"} and Path("exports/till/team/config.toml").is_file()
