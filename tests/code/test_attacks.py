"""Hostile programs under every layer of the sandbox, always inside the outer jail (``tests/helpers/jail.py``).

Without a sandbox each of them wins, which shows that the victims and the programs work. The table of all programs and
layers, and of what each mechanism stops by itself, is ``python -m benchmarks attacks --data FOLDER``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.marks import rest_in_ci
from tests.helpers import attack_judge, jail
from tests.helpers.attack_judge import Attack, Finding, Round

# What the judge says instead of the verdict in the header. None of these has a reward.
OTHERWISE = {
    "53_exec_true": "no_entry_point",  # it cannot replace itself, goes on, and defines no function
    "58_patch_builtins": "runtime_error",  # it broke the functions that its own process needs to answer
    "74_forge_protocol": "output_limit",  # what it writes is no frame
}
# Programs that only use up processor time until a limit: the clocks are the same in every layer.
SLOW = {"01", "07", "08", "16", "17", "70", "71", "80", "82"}
# The kernel itself refuses 64 GiB at once to a machine that does not have them.
NEEDS_64_GIB = "05_memory_bomb_single"


@pytest.fixture(scope="module", autouse=True)
def jailed() -> None:
    if reason := jail.available():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    found = shared_data / "code" / "attacks"
    if not found.is_dir():
        pytest.skip("the hostile programs are not here: the data folder has no code/attacks")
    return found


@pytest.fixture(scope="module")
def programs(folder: Path) -> dict[str, Attack]:
    return {attack.name: attack for attack in attack_judge.attacks(folder)}


def quick(programs: dict[str, Attack]) -> list[str]:
    return [number for name in programs if (number := name.partition("_")[0]) not in SLOW]


def complaints(done: Round, programs: dict[str, Attack]) -> list[str]:
    """Everything that should not be: signs of a breach, other verdicts than those that are written down."""
    found = [f"{f.name}: {f.verdict} {f.signs} {f.details}" for f in done.findings if f.signs]
    for finding in done.findings:
        attack = programs[finding.name]
        verdicts = {*attack.expected, OTHERWISE.get(finding.name)}
        if not attack.may_pass and finding.verdict not in verdicts:
            found.append(f"{finding.name}: {finding.verdict}, not {attack.expected}")
    return found + [f"outlived the sandbox: {process}" for process in done.left]


def need(layer: str) -> None:
    """Skips where the machine lacks what a layer is made of; the jail itself gives all else."""
    if "bubblewrap" in layer and not shutil.which("bwrap"):
        pytest.skip("no program bwrap here: apt install bubblewrap")
    if "landlock" in layer and ctypes.CDLL(None).syscall(444, None, 0, 1) < 1:
        pytest.skip("this kernel has no Landlock, or it is off: lsm=landlock,… on its command line")


def test_there_are_58_programs(programs: dict[str, Attack]) -> None:
    assert len(programs) == 58
    assert sorted(name for name, attack in programs.items() if attack.may_pass) == [
        "23_thread_no_join", "46_daemon_holds_pipe", "86_format_leak",
    ]  # fmt: skip


def test_judges_without_a_sandbox_judge_harmless_programs_rightly(folder: Path) -> None:
    said = attack_judge.run_controls(folder)
    assert len(said) == len(attack_judge.naive_judges.LOSES_TO)
    assert all(right == "passed" and wrong in ("wrong_answer", "runtime_error") for right, wrong in said.values()), said


@pytest.mark.ci
@pytest.mark.parametrize("which", [pytest.param("all", marks=pytest.mark.slow), "quick"])
def test_every_program_wins_without_a_sandbox(which: str, folder: Path, programs: dict[str, Attack]) -> None:
    numbers = quick(programs)
    programs = {name: a for name, a in programs.items() if which == "all" or name.partition("_")[0] in numbers}

    def run(attack: Attack) -> Finding:
        return attack_judge.run_naively(folder, attack)

    with ThreadPoolExecutor(4) as threads:  # most of them wait
        findings = dict(zip(programs, threads.map(run, programs.values()), strict=True))
    lost = {name: finding for name, finding in findings.items() if not attack_judge.won(programs[name], finding)}
    # Without a control group the jail bounds the memory of each process, and what is for all cannot be used up.
    excused = {NEEDS_64_GIB} if jail.cgroup_folders() else {*attack_judge.ENDLESS}
    assert {*lost} <= excused, lost


@pytest.mark.ci
def test_none_wins_in_the_strongest_layer(folder: Path, programs: dict[str, Attack]) -> None:
    need("landlock")
    done = attack_judge.run_layer(folder, "namespaces+landlock+seccomp")
    assert not done.unavailable, done.unavailable
    assert [finding.name for finding in done.findings] == [*programs]
    assert complaints(done, programs) == []


@pytest.mark.ci
@pytest.mark.parametrize("layer", ["namespaces+seccomp", "landlock+seccomp", "bubblewrap+seccomp"])
def test_none_wins_in_the_other_layers(layer: str, folder: Path, programs: dict[str, Attack]) -> None:
    need(layer)
    done = attack_judge.run_layer(folder, layer, only=quick(programs))
    assert done.layer == layer, done.unavailable
    assert len(done.findings) == len(quick(programs))
    assert complaints(done, programs) == []


@pytest.mark.ci
def test_none_wins_on_a_machine_without_user_namespaces(folder: Path, programs: dict[str, Attack]) -> None:
    need("landlock")
    done = attack_judge.run_layer(folder, "auto", only=quick(programs), userns=False)
    assert done.layer == "landlock+seccomp", done.unavailable
    assert len(done.findings) == len(quick(programs))
    assert complaints(done, programs) == []


def test_the_layer_does_not_depend_on_the_process_id_of_the_trainer(folder: Path) -> None:
    """In a container it may be 1 or 2, numbers that processes of the sandbox have inside."""
    need("landlock")
    done = attack_judge.run_layer(folder, "auto", only=["26"], pid=2)
    assert done.layer == "namespaces+landlock+seccomp", done.unavailable


def test_a_layer_that_does_not_hold_says_why(folder: Path) -> None:
    done = attack_judge.run_layer(folder, "namespaces+seccomp", only=["26"], userns=False)
    assert not done.findings
    assert "namespaces+seccomp" in done.unavailable
    assert "unshare" in done.unavailable and "sysctl -w user.max_user_namespaces" in done.unavailable


@pytest.mark.ci
@pytest.mark.skipif(bool(os.geteuid()), reason="only root can map the two users that a sandbox of root's uses")
def test_none_wins_where_the_trainer_is_root(folder: Path, programs: dict[str, Attack]) -> None:
    need("landlock")
    done = attack_judge.run_layer(folder, "auto", only=quick(programs), root=True)
    assert done.layer == "namespaces+landlock+seccomp", done.unavailable
    assert complaints(done, programs) == []


# What is left of a layer -> programs that win then. Each of them fails in the layers of the tests above.
LEFT_OVER = {
    "namespaces+landlock": ("22",),
    "namespaces": ("22",),
    "landlock": ("22", "31", "37", "46"),
    "seccomp": ("25", "28", "65"),
    "none": ("13", "22", "25", "28", "29", "31", "32", "34", "35", "37", "38", "40", "46", "65", "85"),
}


# Some must be faster than their judge: a daemon has to leave its group before the judge kills that. On a busy machine
# it may come too late; a mechanism that is missing lets it through sometimes, one that is there never does.
ATTEMPTS = 40


@pytest.mark.parametrize("left", rest_in_ci([*LEFT_OVER]))
def test_each_mechanism_stops_programs_that_win_without_it(
    left: str, folder: Path, programs: dict[str, Attack]
) -> None:
    need(left)
    lost = [*LEFT_OVER[left]]
    for _ in range(ATTEMPTS):
        done = attack_judge.run_layer(folder, "unsafe", only=lost, mechanisms=left)
        assert done.layer == "unsafe"
        assert len(done.findings) == len(lost)
        losers = [finding for finding in done.findings if not {*finding.signs} & {*programs[finding.name].breach_signs}]
        lost = [finding.name.partition("_")[0] for finding in losers]
        if not lost:
            return
    pytest.fail(f"{ATTEMPTS} times in vain: {losers}")
