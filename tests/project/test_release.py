"""``.ci/release.py`` refuses what is not ready, says what to do, and otherwise builds, tries and tags it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "marft"
        dynamic = ["version"]
        requires-python = ">=3.11"
        [project.scripts]
        marft = "marft_algos:main"
        [tool.hatch.version]
        path = "marft_envs/__init__.py"
        [tool.hatch.build.targets.wheel]
        packages = ["marft_envs", "marft_algos"]
    """.replace("\n        ", "\n"),
    "marft_envs/__init__.py": '__version__ = "1.2.0"\n',
    "marft_algos/__init__.py": 'def main():\n    print("relay-v0")\n',
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.0\n",
    "CHANGELOG.md": "# Changes\n\n## [1.2.0] - 2030-01-31\n",
    "constraints.txt": "",
    ".gitignore": "dist/\n",
    ".ci/run": "#!/bin/sh\necho the suite ran >> ../ran.txt\n",
}
"""A project as small as one can be that has all that is looked at."""


class Project:
    """A checkout of it, everything committed."""

    def __init__(self, root: Path) -> None:
        self.root, self.ran = root, root.parent / "ran.txt"
        for name, text in FILES.items():
            self.write(name, text)
        shutil.copy(ROOT / ".ci/release.py", root / ".ci/release.py")
        (root / ".ci/run").chmod(0o755)
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
        return subprocess.run(["git", *who, *words], cwd=self.root, capture_output=True, text=True, check=True).stdout

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "All of it")

    def release(self, *words: str) -> subprocess.CompletedProcess[str]:
        who = {
            f"GIT_{who}_{what}": "somebody@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        argv = [sys.executable, str(self.root / ".ci/release.py"), *words]
        return subprocess.run(
            argv, cwd="/", env=os.environ | who, capture_output=True, text=True, timeout=200, check=False
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project")


@pytest.mark.parametrize(("name", "text", "said"), [
    ("marft_envs/__init__.py", '__version__ = "1.1.0"\n', "says version 1.1.0, and CITATION.cff 1.2.0"),
    ("marft_envs/__init__.py", "", "marft_envs/__init__.py has 0 lines like"),
    ("CITATION.cff", "cff-version: 1.2.0\nversion: 1.3.0\n", "version 1.2.0, and CITATION.cff 1.3.0"),
    ("CHANGELOG.md", "## [1.2.0] - Unreleased\n", "Expected a line like: ## [1.2.0] - 2030-01-31"),
    ("CHANGELOG.md", "## [1.1.0] - 2029-01-31\n", "Expected a line like: ## [1.2.0] - 2030-01-31"),
])  # fmt: skip
def test_what_does_not_agree_is_refused_before_anything_is_run(
    project: Project, name: str, text: str, said: str
) -> None:
    project.write(name, text)
    project.commit()
    done = project.release("--tag")
    assert done.returncode == 1 and said in done.stderr
    assert not project.ran.exists() and not (project.root / "dist").exists() and not project.git("tag")


@pytest.mark.parametrize("name", ["marft_envs/__init__.py", "new.py"])
def test_changes_that_are_not_committed_are_refused(project: Project, name: str) -> None:
    project.write(name, '__version__ = "1.2.0"  # mended\n')
    done = project.release()
    assert done.returncode == 1 and "not committed" in done.stderr and name in done.stderr
    assert not project.ran.exists()


def test_a_version_that_was_released_is_refused(project: Project) -> None:
    project.git("tag", "v1.2.0")
    done = project.release()
    assert done.returncode == 1 and "a tag v1.2.0 already. Raise the version." in done.stderr


def test_a_red_suite_is_refused(project: Project) -> None:
    project.write(".ci/run", "#!/bin/sh\necho 3 failed\nexit 3\n")
    project.commit()
    done = project.release("--tag")
    assert done.returncode == 1 and "`.ci/run` ended with 3" in done.stderr and "3 failed" in done.stderr
    assert not (project.root / "dist").exists() and not project.git("tag")


@pytest.mark.ci
def test_what_is_ready_is_built_tried_and_tagged_only_when_asked(project: Project) -> None:
    pytest.importorskip("hatchling", reason="hatchling comes with the dev extra")
    project.write("dist/marft-0.9.0-py3-none-any.whl", "an earlier one")
    done = project.release()
    assert done.returncode == 0, done.stderr
    assert project.ran.read_text() == "the suite ran\n" and not project.git("tag")
    assert {f.name for f in (project.root / "dist").iterdir()} == {"marft-1.2.0-py3-none-any.whl", "marft-1.2.0.tar.gz"}
    assert project.release("--tag").returncode == 0
    assert project.git("rev-list", "-1", "v1.2.0") == project.git("rev-parse", "HEAD")


@pytest.mark.ci
def test_a_wheel_whose_command_does_not_run_is_refused(project: Project) -> None:
    pytest.importorskip("hatchling", reason="hatchling comes with the dev extra")
    project.write("marft_algos/__init__.py", "")
    project.commit()
    done = project.release("--tag")
    assert done.returncode == 1 and "envs` ended with 1" in done.stderr and not project.git("tag")
