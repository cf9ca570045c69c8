"""The leaderboard as a page, Markdown or HTML. What packed files say is data, and is escaped."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marft_algos.runs.report import html_page
from marft_algos.terminal import clean
from marft_algos.workbench.bench import tables
from marft_algos.workbench.bench.evidence import Evidence
from marft_algos.workbench.bench.folder import SCORES
from marft_algos.workbench.bench.leaderboard import Place, Setting
from marft_algos.workbench.bench.statistics import MIN_SEEDS
from marft_algos.workbench.bench.tables import count, points

COLUMNS = (
    "rank",
    "algorithm",
    "score, %",
    "to the first",
    "distinguishable",
    "seeds",
    "sampled",
    "processed",
    "tuning",
)
HOW = (
    "Two entries are in one ranking if all of their settings are equal: the environment and its arguments, the "
    "budget of sampled tokens, the model, the team, lengths, and the problems of the evaluation. They may differ in "
    "the algorithm with its own settings, the episodes of an iteration, and where and how fast they were run.",
    "The score is the mean of seeds in percent, with its 95 % interval over seeds and problems. “To the first” is "
    "the difference to the entry with the best mean, paired by seed and problem, with its 95 % interval. The rank "
    "of an entry is one more than the number of entries that are distinguishably better. Entries that noise could "
    "have put in another order share a rank. The brackets hold all the ranks that an entry may have. All pairs of a "
    "ranking are tested together at 5 %, by Holm's procedure, so “distinguishable” asks for more than an interval "
    f"that excludes 0. An entry with few seeds shares more ranks, and one with fewer than {MIN_SEEDS} has none. “2 "
    "of 3” seeds means that one has no result.",
    "For every result in a file it is checked that its settings are those that its name is the hash of, that it was "
    "scored on the problems that this version draws from these settings, that its score and every score of its "
    "curve are the means of their outcomes, and that its tokens add up and end with its budget. “Tuning” is the "
    "number of learning rates in the sweep of the file, whose choice is checked, too. A file with one number that "
    "does not follow is refused.",
    "No file can show that the outcomes come from the training that it describes, that runs were not left out "
    "before it was packed, or that tokens were counted rightly. Whoever doubts a row can run its grid.",
    "Only teams that were scored where they were trained are ranked. Votes, and teams that were scored elsewhere, "
    "are checked and left out.",
)
"""What a reader must know."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the page, as plain text; a writer escapes it."""

    kind: Literal["title", "environment", "setting", "text", "code", "table"]
    text: str = ""
    rows: Sequence[Sequence[str]] = ()


def blocks(evidence: Sequence[Evidence], board: Sequence[Setting], title: str = "Leaderboard") -> list[Block]:
    """Lays the page out: how to read it, a ranking for each setting, entries alone in theirs, the files."""
    out = [Block("title", title), *(Block("text", text) for text in HOW)]
    several = [setting for setting in board if len(setting.places) > 1]
    for env in dict.fromkeys(setting.env for setting in several):
        out.append(Block("environment", env))
        for setting in several:
            out += ranking(setting, evidence) if setting.env == env else []
    alone = [setting for setting in board if len(setting.places) == 1]
    if alone:
        out += [Block("environment", "Alone in their settings"), Block("text", "Nothing to be ranked against, yet.")]
        head = ["environment", "setting", "algorithm", "score, %", "seeds", "sampled", "file"]
        out.append(Block("table", rows=[head, *map(_alone, alone)]))
    return [*out, Block("environment", "The files"), *_files(evidence)]


def ranking(setting: Setting, evidence: Sequence[Evidence]) -> list[Block]:
    """The ranking of one setting: what was alike, the table, and the command that computes it again."""
    alike = "\n".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in setting.changed.items())
    named = [path for path in (_typed(pack) for pack in evidence if pack.packed.name in setting.packs) if path]
    rows = [[*_row(place), ", ".join(place.entry.packs)] for place in setting.places]
    command = shlex.join(["marft", "bench", "leaderboard", *named, "--setting", setting.id])
    return [
        Block("setting", f"{setting.env}, setting {setting.id}"),
        Block("text", f"Evaluated on {setting.facts}. Settings that are not defaults, and the budget:"),
        Block("code", alike),
        Block("table", rows=[[*COLUMNS, "file"], *rows]),
        Block("text", "Computed again by:"),
        Block("code", command),
    ]


def by_seed(setting: Setting) -> Block:
    """Every entry's score, seed by seed."""
    rows = [["algorithm", "file", "score of each seed, %"]]
    for place in setting.places:
        entry = place.entry
        scores = (f"{seed}: {100 * np.nanmean(outcomes):.1f}" for seed, outcomes in entry.outcomes.items())
        rows.append([entry.algorithm, ", ".join(entry.packs), ", ".join(scores)])
    return Block("table", rows=rows)


def _row(place: Place) -> list[str]:
    entry, rank = place.entry, "–"
    if place.ranks is not None:
        first, last = place.ranks
        rank = f"{first} ({first}–{last})" if last > first else str(first)
    named = entry.algorithm if entry.algo in entry.algorithm or entry.algorithm == "untrained" else ""
    return [
        rank,
        named or f"{entry.algorithm} ({entry.algo})",
        points(entry.score),
        points(place.difference, signed=True),
        "–" if place.difference is None else "yes" if place.distinct else "no",
        f"{len(entry.runs)} of {entry.planned}" if len(entry.runs) < entry.planned else str(len(entry.runs)),
        count(entry.tokens),
        count(entry.processed),
        f"{entry.rates} rates" if entry.rates > 1 else "–",
    ]


def _alone(setting: Setting) -> list[str]:
    place = setting.places[0]
    row = dict(zip(COLUMNS, _row(place), strict=True))
    shown = [row[name] for name in ("algorithm", "score, %", "seeds", "sampled")]
    return [setting.env, setting.id, *shown, ", ".join(place.entry.packs)]


def _typed(pack: Evidence) -> str:
    """Names a file as it was typed; without the folders of this machine."""
    return pack.packed.file.name if pack.packed.file.is_absolute() else str(pack.packed.file)


def _files(evidence: Sequence[Evidence]) -> list[Block]:
    head = ["file", "version", "results checked", "ranked", "sha256"]
    rows = [[p.packed.name, SCORES, str(p.checked), str(len(p.runs)), p.packed.sha256] for p in evidence]
    made = []
    for pack in evidence:
        name = pack.packed.folder.root.name
        made.append(f"tar -xf {shlex.quote(_typed(pack))} {name}/grid.toml")
        made.append(f"marft bench run {name}/grid.toml --out runs/{name}")
    text = (
        "Version: since which equal settings have equal scores. Each file holds its grid, so that its runs are made by:"
    )
    return [Block("table", rows=[head, *rows]), Block("text", text), Block("code", "\n".join(made))]


# Written --------------------------------------------------------------------------------------------


def markdown(page: Sequence[Block]) -> str:
    """Writes the page as Markdown."""
    heads = {"title": "# ", "environment": "## ", "setting": "### "}
    out = []
    for block in page:
        if block.kind == "code":
            lines = [clean(line, line=True).replace("`", "'") for line in block.text.split("\n")]
            out.append("\n".join(["```text", *lines, "```"]))
        elif block.kind == "table":
            out.append(tables.markdown(block.rows).rstrip())
        else:
            out.append(heads.get(block.kind, "") + tables.in_markdown(block.text))
    return "\n\n".join(out) + "\n"


def _escaped(text: str) -> str:
    return html.escape(clean(text))


def webpage(page: Sequence[Block]) -> str:
    """Writes the page as HTML that needs nothing else."""
    tags = {"environment": "h2", "setting": "h3", "text": "p", "code": "pre"}
    body = []
    for block in page:
        if block.kind == "table":
            head, *rows = ([_escaped(cell) for cell in row] for row in block.rows)
            top = "".join(f"<th>{cell}</th>" for cell in head)
            lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
            body.append(f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>')
        elif block.kind != "title":
            tag = tags[block.kind]
            body.append(f"<{tag}>{_escaped(block.text)}</{tag}>")
    return html_page(next(block.text for block in page if block.kind == "title"), body, _STYLE)


_STYLE = """
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap }
"""
