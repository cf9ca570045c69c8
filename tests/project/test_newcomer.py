"""The newcomer's path, from the site's first page alone: links are followed, files saved, commands typed, in time."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import marft_algos
from helpers import preloaded, site
from helpers.teams import Tabular, episode
from marft_algos.algorithms import base as algorithm
from marft_algos.algorithms import needs
from marft_algos.learner.learner import Learner
from marft_envs.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```(\w+)\n(.*?)\n```", re.DOTALL)
FIRST_TEAM, OWN_TASK, OWN_ALGORITHM, BENCHMARK = PATH = ("tutorial", "first-task", "first-algorithm", "first-benchmark")


def blocks(page: str) -> list[tuple[str, str, str]]:
    """The file to save it as (or nothing), language and text of every block of a page to which the first page leads."""
    return site.walked(*PATH)[page].blocks


SHORTER = (
    (r"--iterations \d+", "--iterations 1 --eval-episodes 20 --episodes-per-iteration 16"),
    (r"--episodes 200", "--episodes 20"),
    (r"(?m)^seeds = .*$", "seeds = [0]"),
    (r"token_budget = \d+", "token_budget = 256"),
    (r"eval_episodes = \d+", "eval_episodes = 20"),
)
"""What makes trainings of a page short."""


def script(page: str) -> str:
    """What somebody types who follows a page: a shell script that stops at the first error."""
    lines = ["set -eu"]
    for name, language, body in blocks(page):
        if name:
            lines.append(f"cat > {name} <<'END OF FILE'\n{body}END OF FILE")
        elif language == "sh":
            lines.append(body.strip())
    return "\n".join(lines) + "\n"


def follow(page: str, folder: Path, minutes: float, shorter: Sequence[tuple[str, str]] = ()) -> str:
    """Types what a page says; returns what was printed, and fails where it takes longer than the page promises.

    With what makes it ``shorter``, ``marft`` begins where other people's packages are loaded.
    """
    typed = script(page)
    for long, short in shorter:
        typed = re.sub(long, short, typed)
    home = folder / "bin"
    home.mkdir(exist_ok=True)
    (home / "marft").write_text(f'#!/bin/sh\nexec {sys.executable} -m marft_algos "$@"\n')
    (home / "marft").chmod(0o755)
    path = f"{home}{os.pathsep}{os.environ['PATH']}"
    faulthandler.cancel_dump_traceback_later()  # the limit of time is the page's
    began = time.monotonic()
    with preloaded.marft(home / "marft") if shorter else nullcontext():
        done = subprocess.run(
            ["sh", "-c", typed], cwd=folder,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            capture_output=True, text=True, timeout=60 * minutes, check=False,
        )  # fmt: skip
    print(f"{page}: {time.monotonic() - began:.0f} s", flush=True)
    assert done.returncode == 0, f"{page}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def scores(folder: Path, run: str) -> tuple[float, float]:
    """The first and the last evaluated success of a run."""
    lines = [json.loads(line) for line in (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line["eval/success"] for line in lines if "eval/success" in line]
    return evaluated[0], evaluated[-1]


def test_the_first_page_of_the_site_leads_to_every_page_of_the_path_and_each_shows_what_its_file_says() -> None:
    assert tuple(site.walked(*PATH)) == PATH, "in this order, one click away"
    for page in PATH:
        assert script(page).count("marft ") >= 2
        written = BLOCK.findall((ROOT / f"docs/{page}.md").read_text(encoding="utf-8"))
        assert [(language, text.rstrip()) for _, language, text in blocks(page)] == written


def test_the_grpo_of_ones_own_compares_groups_and_clips() -> None:
    """Two steps on groups of four: advantages by hand, the settings of the page, and no word from a group of equals."""
    names: dict[str, Any] = {"__name__": "grpo_range"}
    (source,) = [body for name, _, body in blocks(OWN_ALGORITHM) if name == "grpo_range.py"]
    exec(compile(source.replace("grpo-range", "test-range"), "page", "exec"), names)
    algo = names["GRPORange"](names["GRPORangeConfig"](group_size=4, epochs=2, dual_clip=3.0, lr=0.1))
    needs.check(algo, needs.RunFacts(frozenset({"groups"}), 8))
    policies = Tabular(["a", "b"])
    scores = [0.0, 1.0, 1.0, 0.5, 2.0, 2.0, 2.0, 2.0]
    data = [episode([["a"], ["b"]], number=i, group=i // 4, rewards=[0.0, r]) for i, r in enumerate(scores)]
    before = {p: table.detach().clone() for p, table in policies.tables.items()}
    learner = Learner(algo, policies)
    metrics = learner.update(policies.play(data), 0)
    found = [float(learner.estimates.advantages[d.transitions[0]][0]) for d in data]
    assert found == pytest.approx([-0.625, 0.375, 0.375, -0.125, 0.0, 0.0, 0.0, 0.0])
    assert metrics["groups"] == 2 and metrics["policy/a/steps"] == 2
    assert not any(torch.equal(table, before[p]) for p, table in policies.tables.items())


def test_who_needs_groups_and_has_settings_without_them_is_told_what_to_derive_from() -> None:
    class Mine(marft_algos.UpdateConfig):
        group_size: int = 8

    class Groups(marft_algos.Algorithm):
        Config = Mine
        needs = frozenset({"groups"})

    with pytest.raises(ConfigError, match=r"group_size is 1, .*: derive Mine from marft_algos\.GroupConfig"):
        needs.check(Groups(), needs.RunFacts(frozenset({"groups"}), 8))
    assert issubclass(algorithm.get("grpo").Config, marft_algos.GroupConfig)


@pytest.mark.ci
def test_a_first_team_has_learnt_after_two_thirds_of_its_iterations(tmp_path: Path) -> None:
    """The whole page, in processes that load everything themselves, is for a slow test below."""
    follow(FIRST_TEAM, tmp_path, 5, ((r"--iterations 60", "--iterations 40 --eval-episodes 100"),))
    before, after = scores(tmp_path, "first-team")
    assert before < 0.4 and after > 0.8


@pytest.mark.ci
def test_what_the_other_pages_say_to_type_works_in_their_order(tmp_path: Path) -> None:
    """With one iteration, one seed and few tokens: what their trainings come to is for the slow tests below."""
    assert "passed" in follow(OWN_TASK, tmp_path, 15, SHORTER)
    follow(OWN_ALGORITHM, tmp_path, 15, SHORTER)
    assert "better-half" in follow(BENCHMARK, tmp_path, 10, SHORTER)
    assert (tmp_path / "runs/bench/report.html").is_file()


@pytest.mark.slow
def test_a_first_team_is_trained_in_five_minutes(tmp_path: Path) -> None:
    follow(FIRST_TEAM, tmp_path, 5)
    before, after = scores(tmp_path, "first-team")
    assert before < 0.4 and after > 0.8


@pytest.mark.slow
def test_a_task_of_ones_own_is_trained_in_fifteen_minutes_and_not_without_its_D(tmp_path: Path) -> None:
    printed = follow(OWN_TASK, tmp_path, 15)
    before, after = scores(tmp_path, "parcels")
    assert "passed" in printed and after > max(before, 0.4)
    assert scores(tmp_path, "alone")[1] < 0.35


@pytest.mark.slow
def test_an_algorithm_of_ones_own_learns_in_fifteen_minutes_and_is_benchmarked_in_ten(tmp_path: Path) -> None:
    follow(OWN_ALGORITHM, tmp_path, 15)
    before, after = scores(tmp_path, "mine")
    assert after > before + 0.2
    printed = follow(BENCHMARK, tmp_path, 10)
    assert "better-half" in printed and (tmp_path / "runs/bench/report.html").is_file()
