"""The Dockerfile, built and run by podman on a base made of Debian's packages: the same bits as outside.

It needs root, ``podman``, ``debootstrap``, minutes and 3 GB. PIP_ARGS goes to pip as in the Makefile; PODMAN_BUILD holds
further words of ``podman build``, such as ``-v`` of a folder of packages.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MISSING = [
    name for name in ("podman", "debootstrap") if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None
]
ROOT = Path(__file__).resolve().parents[2]
TRAIN = (
    *("train", "--env", "relay-v0", "--iterations", "2", "--episodes-per-iteration", "16"),
    *("--eval-episodes", "8", "--name", "run"),
)
# A machine may give root itself fewer files and processes than podman asks for by default.
LIMITS = ("--network", "host", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1000:1000")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)} (Debian has both)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap makes a file system as root"),
]


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The words of podman with a storage of its own, in which the image is called ``marft``."""
    folder = tmp_path_factory.mktemp("podman")
    words = ["podman", *(f"--{name}={folder / name}" for name in ("root", "runroot", "tmpdir"))]
    words += ["--cgroup-manager", "cgroupfs"]
    if runc := shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin"):
        words += ["--runtime", runc]  # crun refuses machines with both versions of cgroups
    base = folder / "base"
    packages = "--include=python3,python3-pip,ca-certificates"
    subprocess.run(["debootstrap", "--variant=minbase", packages, "bookworm", str(base)], check=True, timeout=900)
    for mark in base.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()  # pip installs beside Debian's packages, of which nobody takes care in an image
    archive = folder / "base.tar"
    subprocess.run(["tar", "-C", str(base), "-cf", str(archive), "."], check=True)
    subprocess.run([*words, "import", str(archive), "debian-python"], check=True)
    shutil.rmtree(base)
    archive.unlink()
    arguments = ["EXTRAS=train", f"PIP_ARGS={os.environ.get('PIP_ARGS', '')}"]
    build = [*words, "build", *LIMITS, "--from", "localhost/debian-python", "--tag", "marft"]
    build += [word for argument in arguments for word in ("--build-arg", argument)]
    build += shlex.split(os.environ.get("PODMAN_BUILD", ""))
    subprocess.run([*build, str(ROOT)], check=True, timeout=1800)
    yield words
    subprocess.run([*words, "rmi", "--all", "--force"], check=True)
    shutil.rmtree(folder)


def run(podman: list[str], *words: str) -> str:
    done = subprocess.run([*podman, "run", "--rm", *LIMITS, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_image_trains_to_the_bits_of_this_machine(podman: list[str], tmp_path: Path) -> None:
    assert "+ train, eval, export, bench" in run(podman, "marft")
    inside = tmp_path / "inside"
    inside.mkdir()
    inside.chmod(0o777)  # the image's user is not root
    assert "gain:" in run(podman, "--volume", f"{inside}:/srv/marft/runs", "marft", *TRAIN)
    words = [sys.executable, "-m", "marft_algos", *TRAIN, "--runs-dir", str(tmp_path / "outside")]
    subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    files = sorted((tmp_path / "outside/run").rglob("*.safetensors"))
    assert len(files) == 2
    for file in files:
        assert file.read_bytes() == (inside / file.relative_to(tmp_path / "outside")).read_bytes()
