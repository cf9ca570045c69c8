"""What the page and the terminal ask about the sources: plain values that JSON can hold, all of it read from disk."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

from marft_algos.extras.bench import page
from marft_algos.extras.view.index import EpisodeEntry, Filter, Order, Outcome
from marft_algos.extras.view.sources import ViewSource, writer
from marft_algos.runs import plots, start
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.intervals import Interval
from marft_envs.errors import ConfigError, DataError, MarftError
from marft_envs.records import trajectory

SNIPPET = 160
"""Characters of an episode's last words that lists show."""
LARGEST = 200
"""Episodes on one page of a list, at most."""


class Api:
    """Answers by name: ``Api(sources).answer("episodes", {"source": "0", "text": "red"})``."""

    def __init__(self, sources: Sequence[ViewSource]) -> None:
        self.sources = sources
        self._told: dict[int, tuple[int, dict[str, Any]]] = {}
        self._said: dict[Path, tuple[int, str]] = {}
        self._calls = {
            "sources": self.overview,
            "verdicts": self.verdicts,
            "settings": self.settings,
            "curves": self.curves,
            "episodes": self.episodes,
            "episode": self.episode,
        }

    def answer(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns what was asked for.

        Args:
            name: Of the question.
            query: Its arguments, as text.

        Raises:
            MarftError: There is no such question, source or episode, or a file cannot be read.
        """
        if name not in self._calls:
            raise ConfigError(f"There is no question '{name}'. Expected one of: {', '.join(self._calls)}.")
        return plain(self._calls[name](query))

    def overview(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns every source: its name, where it is, whether somebody writes into it, its files of episodes."""
        return {"sources": [self._overview(i) for i in range(len(self.sources))]}

    def _overview(self, number: int) -> dict[str, Any]:
        source = self.sources[number]
        progress = source.index.refresh()
        told: dict[str, Any] = {
            "name": source.name, "root": str(source.index.place if source.run is None else source.run.root),
            "files": source.index.files(), "indexed": progress.done, "bytes": progress.total,
            "writer": "", "iteration": None, "facts": [], "trouble": "",
        }  # fmt: skip
        if source.run is not None:
            told["writer"] = writer(source.run)
            try:
                told |= self._facts(number, source.run)
            except (MarftError, OSError, ValueError, LookupError, TypeError) as error:
                told["trouble"] = f"metrics.jsonl or the last evaluation cannot be read: {error}"
        return told

    def _facts(self, number: int, run: RunFolder) -> dict[str, Any]:
        """Returns where a run is; its metrics are read again when they have grown."""
        size = run.metrics_file.stat().st_size if run.metrics_file.is_file() else 0
        if self._told.get(number, (-1, {}))[0] != size:
            self._told[number] = size, _facts(run)
        return self._told[number][1]

    def verdicts(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns the verdict of each benchmark's report: which algorithms are above or below the baseline.

        Intervals take seconds: they are computed again only when there are new results.
        """
        for bench in {source.bench.root: source.bench for source in self.sources if source.bench}.values():
            stamp = (bench.root / "results").stat().st_mtime_ns
            if self._said.get(bench.root, (-1, ""))[0] != stamp:
                self._said[bench.root] = stamp, page.said(bench)
        return {"verdicts": [text for _, text in self._said.values() if text]}

    def settings(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns a run's ``config.toml``, what was typed, and what it began with."""
        if (run := self._source(query).run) is None:
            return {"config": "", "commands": [], "start": ""}
        commands = [{"command": c["command"], "iteration": c["iteration"]} for c in run.commands()]
        text = run.config_file.read_text(encoding="utf-8", errors="replace")
        return {"config": text, "commands": commands, "start": start.record(run) or ""}

    def curves(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns the diagrams of a run, with tokens and seconds for each iteration; nothing new: ``same``."""
        source = self._source(query)
        if source.run is None or not source.run.metrics_file.is_file():
            return {"size": 0, "diagrams": [], "axes": {}, "keys": []}
        size = source.run.metrics_file.stat().st_size
        if query.get("seen") == str(size):
            return {"size": size, "same": True}
        metrics = source.run.metrics()
        try:
            shown = plots.diagrams(metrics)
            keys = sorted({key for line in metrics for key, value in line.items() if type(value) in (int, float)})
            shown += [plots.single(metrics, key) for key in query.get("keys", "").split(",") if key in keys]
            return {
                "size": size,
                "diagrams": [dataclasses.asdict(d) for d in shown],
                "axes": _axes(metrics),
                "keys": keys,
            }
        except (LookupError, TypeError, ValueError) as error:
            fault = f"{source.run.metrics_file} holds a line that is no record of an iteration ({error!r})."
            raise DataError(f"{fault} Expected what marft train writes.") from error

    def episodes(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns a page of a source's episodes; the arguments are those of ``Filter``, ``after`` and ``limit``."""
        source = self._source(query)
        progress = source.index.refresh()
        outcome = _one_of(query, "outcome", get_args(Outcome))
        order = _one_of(query, "order", get_args(Order))
        wanted = Filter(query.get("file", ""), outcome, query.get("task", ""), query.get("text", ""), order)
        page = source.index.page(wanted, _number(query, "after"), min(_number(query, "limit", 50), LARGEST))
        return {
            "rows": [self._row(source, entry) for entry in page.entries],
            "next": page.next, "looked": page.looked, "total": page.total,
            "indexed": progress.done, "bytes": progress.total, "files": source.index.files(),
        }  # fmt: skip

    def _row(self, source: ViewSource, entry: EpisodeEntry) -> dict[str, Any]:
        row = {name: getattr(entry, name) for name in ("file", "line", "task", "outcome", "score", "turns", "damage")}
        try:
            turns = [] if entry.damage else source.index.data(entry)["turns"]
            row["words"] = " ".join(str(turns[-1]["text"]).split())[:SNIPPET] if turns else ""
        except (DataError, LookupError, TypeError):  # it has changed in this moment: the episode itself will say so
            row["words"] = ""
        return row

    def episode(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns an episode whole, and where others of the same task are, in all sources."""
        source = self._source(query)
        source.index.refresh(0.05)
        entry = source.index.entry(query.get("file", ""), _number(query, "line"))
        episode = source.index.episode(entry)
        data = trajectory.to_dict(episode) | {"team_return": episode.team_return, "outcome": entry.outcome}
        others = []
        for number, other in enumerate(self.sources):
            beside = entry.file if other is source and not entry.file.startswith("eval") else ""
            found = other.index.alike(entry.task, entry.line, beside)
            others += [_place(number, e) for e in found if e != entry or other is not source]
        return {"place": _place(self.sources.index(source), entry), "episode": data, "others": others}

    def _source(self, query: Mapping[str, str]) -> ViewSource:
        number = _number(query, "source")
        if number >= len(self.sources):
            raise ConfigError(f"There is no source {number}; there are {len(self.sources)}, counted from 0.")
        return self.sources[number]


def _facts(run: RunFolder) -> dict[str, Any]:
    """Returns where a run is, and what came of it so far."""
    metrics = run.metrics()
    last = metrics[-1] if metrics else {}
    tokens = sum(int(m.get("tokens", 0)) for m in metrics)
    facts = [["tokens sampled", f"{tokens:,}"], ["time", f"{last.get('time_elapsed', 0.0) / 60:.1f} min"]]
    scores = [m for m in metrics if "eval/success" in m]
    for line in scores[:1] + scores[-1:] if len(scores) > 1 else scores:
        name = f"after iteration {line['iteration']}" if line["iteration"] else "untrained"
        ends = line.get("eval/low", math.nan), line.get("eval/high", math.nan)
        facts.append([name, Interval(line["eval/success"], *ends, 0).score()])
    if "eval/gain" in last:
        gain = Interval(last["eval/gain"], last["eval/gain_low"], last["eval/gain_high"], 0)
        facts.append(["gain, paired", gain.points()])
    if (evaluation_set := run.evaluation_set()) is not None:
        facts.append(["scored on", str(evaluation_set)])
    return {"iteration": last.get("iteration"), "facts": facts}


def _axes(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Returns what iterations cost: tokens sampled for training, and seconds, up to their ends."""
    totals = accumulate(metrics, lambda total, line: float(line.get("tokens_total", total)), initial=0.0)
    tokens: list[float | None] = [*totals]
    return {
        "iteration": [line.get("iteration") for line in metrics],
        "tokens": tokens[1:],
        "seconds": [line.get("time_elapsed") for line in metrics],
    }


def _place(source: int, entry: EpisodeEntry) -> dict[str, Any]:
    return {"source": source, "file": entry.file, "line": entry.line, "outcome": entry.outcome, "score": entry.score}


def _number(query: Mapping[str, str], name: str, default: int = 0) -> int:
    if not (text := query.get(name, "")):
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ConfigError(f"{name} is {text[:40]!r}; expected a whole number, 0 or more.")
    return int(text)


def _one_of(query: Mapping[str, str], name: str, known: Sequence[str]) -> Any:
    text = query.get(name, "")
    if text not in known:
        raise ConfigError(f"{name} is {text[:40]!r}; expected one of: {', '.join(filter(None, known))}.")
    return text


def plain(value: Any) -> Any:
    """Returns what JSON can hold of a value: numbers that are infinite or none are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value
