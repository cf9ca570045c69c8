"""``marft view --tui``: the same list, filters and episodes in the terminal, by textual (extra ``tui``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import DataTable, Footer, Header, Input, Select, Static

from marft_algos.terminal import clean
from marft_algos.workbench.view.api import Api
from marft_algos.workbench.view.sources import Source
from marft_envs.errors import MarftError

PAGE = 100
MARKS = {"solved": "✓", "failed": "✗", "unjudged": "·", "outage": "!", "damaged": "?"}
STYLES = {"solved": "green", "failed": "red", "unjudged": "", "outage": "yellow", "damaged": "red"}


class Viewer(App[None]):
    """A list on the left, an episode on the right; rows are loaded as the cursor comes near their end."""

    TITLE = "marft view"
    CSS = """
    #finder { width: 45%; min-width: 38 }
    #filters { height: auto }
    #filters Select { width: 1fr }
    #status { height: 1; color: $text-muted; padding: 0 1 }
    #reading { padding: 0 1 }
    """
    BINDINGS: ClassVar[list[Any]] = [("/", "search", "search"), ("q", "quit", "quit")]

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__()
        self.api = Api(sources)
        self.rows: list[dict[str, Any]] = []
        self.next: int | None = 0

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        names = [(clean(source.name, line=True), str(i)) for i, source in enumerate(self.api.sources)]
        outcomes = [(name, name) for name in MARKS]
        yield Header()
        with Horizontal():
            with Vertical(id="finder"):
                yield Select(names, value="0", allow_blank=False, id="source")
                with Horizontal(id="filters"):
                    yield Select([], prompt="all episodes", id="file")
                    yield Select(outcomes, prompt="any outcome", id="outcome")
                yield Input(placeholder="words that were said, seen or returned", id="text")
                yield Static(id="status")
                yield DataTable(cursor_type="row", id="list")
            with VerticalScroll(id="reading"):
                yield Static(id="episode")
        yield Footer()

    def on_mount(self) -> None:
        """Fills the list."""
        self.query_one("#list", DataTable).add_columns("", "task", "return", "turns", "file")
        self.show_files()
        self.search()
        self.query_one("#list", DataTable).focus()

    def action_search(self) -> None:
        """Goes to the field of words."""
        self.query_one("#text", Input).focus()

    def on_select_changed(self, event: Select.Changed) -> None:
        """Filters again."""
        if event.select.id == "source":
            self.show_files()
        self.search()

    def on_input_submitted(self) -> None:
        """Searches, and goes to what was found."""
        self.search()
        self.query_one("#list", DataTable).focus()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Shows the episode under the cursor."""
        if event.cursor_row >= len(self.rows) - 1 and self.next is not None:
            self.load()
        if event.cursor_row < len(self.rows):
            self.read(self.rows[event.cursor_row])

    def show_files(self) -> None:
        """Offers the files of the chosen source."""
        told = self.api.answer("sources", {})["sources"][int(self.chosen("source") or 0)]
        files = [(clean(f"{name} ({count})", line=True), name) for name, count in told["files"].items()]
        self.query_one("#file", Select).set_options(files)

    def chosen(self, name: str) -> str:
        """Returns what a filter says; empty: nothing."""
        value = self.query_one(f"#{name}", Select).value
        return value if isinstance(value, str) else ""

    def search(self) -> None:
        """Begins the list anew."""
        self.rows, self.next = [], 0
        self.query_one("#list", DataTable).clear()
        self.query_one("#episode", Static).update("")
        self.load()

    def load(self) -> None:
        """Adds a page to the list; a search goes on until it is full."""
        query = {name: self.chosen(name) for name in ("source", "file", "outcome")}
        query["text"] = self.query_one("#text", Input).value
        table, until = self.query_one("#list", DataTable), len(self.rows) + PAGE
        page: dict[str, Any] = {"looked": 0, "total": 0}
        while self.next is not None and len(self.rows) < until:
            page = self.api.answer("episodes", query | {"after": str(self.next), "limit": str(until - len(self.rows))})
            for row in page["rows"]:
                mark = Text(MARKS[row["outcome"]], STYLES[row["outcome"]])
                cells = (
                    row["task"] or row["damage"],
                    f"{row['score']:.3g}",
                    row["turns"],
                    f"{row['file']}:{row['line']}",
                )
                table.add_row(mark, *(Text(clean(cell, line=True)) for cell in cells))
            self.rows += page["rows"]
            self.next = page["next"]
        self.query_one("#status", Static).update(
            f"{len(self.rows)} shown; looked at {page['looked']} of {page['total']}"
        )

    def read(self, row: dict[str, Any]) -> None:
        """Shows an episode."""
        query = {"source": self.chosen("source"), "file": row["file"], "line": str(row["line"])}
        try:
            shown: RenderableType = drawn(self.api.answer("episode", query)["episode"])
        except MarftError as error:
            shown = Text(clean(error), "red")
        self.query_one("#episode", Static).update(shown)
        self.query_one("#reading", VerticalScroll).scroll_home(animate=False)


def drawn(episode: dict[str, Any]) -> RenderableType:
    """Returns an episode for the terminal: D of each round, then every turn with what it saw, said, and was paid."""
    names = [agent["name"] for agent in episode["agents"]]
    outcome = episode["outcome"]
    parts: list[RenderableType] = [
        _line(f"{MARKS[outcome]} {episode['task_id']}  return {episode['team_return']}", f"bold {STYLES[outcome]}")
    ]
    parts += [_line(f"{key}: {value}", "dim") for key, value in episode["info"].items() if value != ""]
    for record in episode["rounds"]:
        heard = [f"{names[i]} → {names[j]}" for i, row in enumerate(record["D"]) for j, one in enumerate(row) if one]
        parts.append(_line(f"D, round {record['index']}: {', '.join(heard) or 'nobody hears anybody'}", "cyan"))
    told = ""
    for layer in episode["layers"]:
        for index in layer["turns"]:
            turn = episode["turns"][index]
            extras = turn["extras"] or {}
            parts += ["", _line(_head(turn, [episode["turns"][i]["agent"] for i in turn["sees"]]), "bold")]
            if extras.get("observation", told) != told:
                told = str(extras["observation"])
                parts.append(Padding(Text(clean(told), "dim"), (0, 0, 0, 2)))
            parts.append(Padding(Text(clean(turn["text"]) or "(empty)"), (0, 0, 0, 2)))
            if turn["result"]:
                parts.append(Padding(Text(f"⇒ {clean(turn['result'])}", "magenta"), (0, 0, 0, 2)))
        if layer["team_reward"]:
            parts.append(_line(f"team reward {layer['team_reward']:+g}", "green"))
    return Group(*parts)


def _head(turn: dict[str, Any], seen: Sequence[str]) -> str:
    extras = turn["extras"] or {}
    numbers = [f"reward {turn['reward']:+g}"] if turn["reward"] else []
    known = {key: extras.get(key) for key in ("value", "advantage", "return", "logprob")}
    numbers += [f"{key} {number:+.3g}" for key, number in known.items() if isinstance(number, int | float)]
    saw = f", saw {', '.join(dict.fromkeys(seen))}" if seen else ""
    return f"{turn['agent']}{saw}  {' · '.join(numbers)}"


def _line(text: str, style: str = "") -> Text:
    return Text(clean(text, line=True), style)
