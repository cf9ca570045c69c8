"""The viewer in the terminal: list, filters, search and an episode, with keys."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.viewed import HOSTILE, episode, write_lines, write_run
from marft_algos.cli import main
from marft_algos.workbench.view.sources import open_sources

textual = pytest.importorskip("textual", reason="textual comes with the extra tui")


def test_episodes_are_listed_filtered_searched_and_read(tmp_path: Path) -> None:
    from textual.widgets import DataTable, Input, Select

    from marft_algos.workbench.view.tui import Viewer

    write_run(tmp_path / "one")
    write_lines(tmp_path / "one/episodes/eval-000008.jsonl", [episode(0, True, f"\x1b[2J {HOSTILE}"), "{"])

    async def use() -> None:
        app = Viewer(open_sources([str(tmp_path / "one")]))
        async with app.run_test(size=(140, 40)) as pilot:
            table: Any = app.query_one("#list", DataTable)
            await pilot.pause()
            assert table.row_count == 24
            app.query_one("#file", Select).value = "eval-000004"
            await pilot.pause()
            app.query_one("#outcome", Select).value = "solved"
            await pilot.pause()
            assert table.row_count == 6
            await pilot.press("/", *"and 3", "enter")
            await pilot.pause()
            assert table.row_count == 1 and "1 shown" in text(app, "#status")
            shown = text(app, "#episode")
            assert (
                "a_0 says 4 and 3" in shown
                and "a_0 → b_0" in shown
                and "looked up 3" in shown
                and "team reward +1" in shown
            )
            app.query_one("#text", Input).value = ""
            app.query_one("#outcome", Select).clear()
            app.query_one("#file", Select).value = "eval-000008"
            await pilot.pause()
            assert "<script>" in text(app, "#episode") and "\x1b" not in text(app, "#episode")
            table.focus()
            await pilot.press("down")
            await pilot.pause()
            assert "is no episode" in text(app, "#episode")
            await pilot.press("q")

    asyncio.run(use())


def text(app: Any, name: str) -> str:
    """What a widget shows, as it stands on the screen."""
    from rich.console import Console
    from textual.widgets import Static

    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(app.query_one(name, Static).content)
    return capture.get()


def test_without_textual_or_a_terminal_it_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(write_run(tmp_path / "one"))
    assert main(["view", "--tui", run]) == 1
    assert "wants a terminal" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "marft_algos.workbench.view.tui")
    for name in ("textual", "textual.app"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["view", "--tui", run]) == 1
    assert "pip install -e '.[tui]'" in capsys.readouterr().err
