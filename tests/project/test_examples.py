"""The examples run as a user would run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import preloaded

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, *argv: str, **environ: str) -> str:
    """Runs python in an empty folder; returns what it printed."""
    done = preloaded.run(tmp_path, *argv, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ci
def test_the_custom_task_is_short_registered_checked_and_trained(tmp_path: Path) -> None:
    source = ROOT / "examples" / "custom_task.py"
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 60
    assert "success" in run(tmp_path, str(source), "1", MARFT_TEST_PICTURES="1")
    (made,) = (tmp_path / "runs").iterdir()
    assert "<svg" in (made / "report.html").read_text(encoding="utf-8")
    assert len((made / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.ci
def test_the_custom_algorithm_is_short_registered_and_trained_by_name_and_by_path(tmp_path: Path) -> None:
    source = ROOT / "examples" / "custom_algorithm.py"
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 60
    assert "success" in run(tmp_path, str(source), "1")
    path = "examples.custom_algorithm:AWR"
    small = ("--iterations", "1", "--eval-episodes", "8", "--episodes-per-iteration", "8", "--beta", "0.7")
    run(tmp_path, "-m", "marft_algos", "train", path, "--env", "relay-v0", *small, "--name", "by-path")
    settings = (tmp_path / "runs" / "by-path" / "config.toml").read_text(encoding="utf-8")
    assert f'algo = "{path}"' in settings and "beta = 0.7" in settings
    last = (tmp_path / "runs" / "by-path" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    assert '"weight_max"' in last and '"eval/success"' in last


@pytest.mark.ci
def test_somebody_elses_environment_is_wrapped_checked_and_trained(tmp_path: Path) -> None:
    said = run(tmp_path, str(ROOT / "examples" / "foreign_environment.py"), "1")
    assert "NO" not in said and "meeting-v0: 16 checks passed" in said
    (made,) = (tmp_path / "runs").iterdir()
    assert (made / "report.html").is_file()
    assert len((made / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.ci
def test_prompts_are_searched_in_turn_and_by_blame(tmp_path: Path) -> None:
    source = ROOT / "examples" / "blame" / "reflection.py"
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 120
    head, robin, blame = run(tmp_path, str(source), "--agents", "2", "--seeds", "1").splitlines()
    assert head.split()[:4] == ["agents", "faulty", "rule", "episodes"]
    assert int(robin.split()[-1]) == 0 < int(blame.split()[5])


@pytest.mark.ci
def test_noise_is_compared_at_as_many_turns(tmp_path: Path) -> None:
    said = run(tmp_path, str(ROOT / "examples/blame/noise.py"), "--env", "relay-v0", "--episodes", "20").splitlines()
    assert [s.split()[1:3] for s in said[1:]] == [["broadcast", "2.0"], ["counterfactual", "14.0"], ["blame", "14.0"]]


def test_what_docstrings_show_comes_out(tmp_path: Path) -> None:
    files = [str(file) for file in (ROOT / "examples").rglob("*.py") if ">>> " in file.read_text(encoding="utf-8")]
    assert files and not run(tmp_path, "-m", "doctest", *files)
