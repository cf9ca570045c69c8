"""Fixtures that more than one test file needs."""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from marft_envs.sandbox import Sandbox, SandboxUnavailable, shared

HERE = Path(__file__).resolve().parent
NEEDS_EXTRA = {
    "benchmarks", "datasets", "jinja2", "marft_algos", "matplotlib", "mcp", "openai", "opentelemetry", "tokenizers",
    "torch", "transformers", "website",
}  # fmt: skip
"""What no file imports, nor a helper that it imports, that is tested on a base install."""
PROGRAMS = {
    "test_contributing.py", "test_examples.py", "test_house.py", "test_newcomer.py", "test_readme.py",
    "test_systems.py",
}  # fmt: skip
"""These start programs that train."""


class NoData(pytest.skip.Exception):
    """There is no folder of real data sets on this machine."""


@pytest.fixture(autouse=True, scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is noted or cached in the folder of the user who runs the tests; the tests' processes share a cache."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("states"))
    base = tmp_path_factory.getbasetemp()
    os.environ["XDG_CACHE_HOME"] = str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache")
    os.environ.pop("COLUMNS", None)  # of a user's shell: commands fold what they say to it


@pytest.fixture(autouse=True, scope="session")
def unsynced() -> Iterator[None]:
    """No test cuts the power: 12 files of a checkpoint wait 6 ms each for the disk, while nothing is computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-real", action="store_true", help="a skip is a failure, unless the data folder is what is missing"
    )
    parser.addoption(
        "--base", action="store_true", help="only the files that need no extra: what is tested on a base install"
    )
    parser.addoption("--browser", action="store_true", help="the tests that drive a browser, too: make test-browser")
    parser.addoption(
        "--data", default=None, help="folder with real data sets (else $MARFT_TEST_DATA, else ../shared/data)"
    )


def imported(file: Path) -> Iterator[str]:
    """First parts of the names that a file, and every helper beside it that it imports, imports anywhere."""
    files, seen = [file], {file}
    while files:
        for node in ast.walk(ast.parse(files.pop().read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                yield name.split(".")[0]
                helper = HERE / f"{name.removeprefix('tests.').replace('.', '/')}.py"
                if helper.is_file() and helper not in seen:
                    seen.add(helper)
                    files.append(helper)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out what drives a browser, unless ``--browser`` asks for it, and with ``--base`` what needs an extra."""
    if collection_path == HERE / "browser" and not config.getoption("--browser"):
        return True
    if not config.getoption("--base") or not collection_path.match("test_*.py"):
        return None
    return collection_path.name in PROGRAMS or not NEEDS_EXTRA.isdisjoint(imported(collection_path)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Ten thousand tests and all that they import stay: Python's collector does not walk over them again and again.

    What tests load beside them (databases of a hundred thousand objects) it walks over rarely.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def signals_heard() -> Iterator[None]:
    """As an interactive shell starts a process: whoever runs the suite may ignore some (``nohup``, a job in the background)."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def shared_data(request: pytest.FixtureRequest) -> Path:
    """The folder of real data sets that stay outside the project; the one place that looks it up."""
    root = Path(__file__).resolve().parent.parent
    named = request.config.getoption("--data") or os.environ.get("MARFT_TEST_DATA")
    folder = Path(named) if named else root.parent / "shared" / "data"
    if not folder.is_dir():
        if named:
            raise pytest.UsageError(f"no data folder at {folder}; name an existing one with --data")
        raise NoData(f"real data sets are not here ({folder.name}/ absent); name their folder with --data")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest random model, for tests that only read its folder."""
    from helpers.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("model"), hidden=16, layers=1)


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two blocks, for tests that only read its folder."""
    from helpers.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("models") / "qwen")


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """The sandbox that this process shares, where a layer of it holds."""
    try:
        return shared("auto", workers=2)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draws the curves of a run where the test is about pictures; processes that tests start draw theirs."""
    if "marft_algos.runs.report" in sys.modules:
        from helpers import pictures

        pictures.draw(item.get_closest_marker("pictures") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Makes a test that was not run a failure where the real packages are promised to be there."""
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if (
        skipped
        and item.config.getoption("--require-real")
        and not (call.excinfo and call.excinfo.errisinstance(NoData))
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped, where --require-real wants it run: {call.excinfo.value if call.excinfo else ''}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that is skipped."""
    report = yield
    if report.outcome == "skipped" and collector.config.getoption("--require-real"):
        report.outcome, report.longrepr = "failed", f"skipped, where --require-real wants it run: {report.longrepr}"
    return report
