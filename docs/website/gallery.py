"""Makes the gallery: a page for every environment of the registry, with what agents see, D, and one played episode."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import marft_envs
from marft_envs.core.types import Episode, optional
from website import draw

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "benchmarks/results/core_summary.md"
"""What ``marft bench report runs/core`` writes into ``summary.md``."""
SEED, MOST_TURNS, MOST_CHARS = 0, 40, 1200
FAMILIES = {
    "math": ("Mathematics", "environments.md#the-math-family"),
    "code": ("Coding", "code.md"),
    "tools": ("Tools", "tools.md"),
    "docs": ("Long documents", "long-documents.md"),
    "rag": ("Retrieval", "retrieval.md"),
    "search": ("Search", "search.md"),
    "cases": ("Recorded tasks", "traces.md"),
    "toy": ("Toys", "environments.md#the-toy-ladder"),
}
TOYS = ("relay", "route", "signal", "steps", "stop", "xor")
MEASURED = {
    "math": "results.md#does-d-matter",
    "code": "results.md#coding-teams",
    "tools": "results.md#tool-use",
    "docs": "long-documents.md",
    "rag": "retrieval.md",
    "search": "search.md",
}
"""Family -> where its numbers stand that are in no table by id."""

LABELS = {
    "untrained": "the team before training",
    "single": "one agent, [`math-solo-v0`](math-solo-v0.md), trained by the algorithm in brackets with as many tokens",
}
"""First word of a row that is no algorithm -> what it is."""


@dataclass(frozen=True)
class Played:
    """One episode, as the task's expert plays it, and what each agent was shown at its first turn."""

    episode: Episode
    seen: dict[str, str]
    dependency: str
    asked: frozenset[tuple[str, str]] | None
    tools: dict[str, list[str]]
    by: str


def play(env_id: str) -> Played:
    """Plays seed 0 of an environment with its task's expert, who knows the answer, or by plausible replies."""
    env = marft_envs.make(env_id)
    try:
        env.reset(seed=SEED)
        expert, seen, tools = optional(env.task, "expert"), dict[str, str](), dict[str, list[str]]()
        turns = 0
        while not env.done and turns < MOST_TURNS:
            for agent in list(env.ready_agents):
                env.select(agent)
                if agent not in seen:
                    seen[agent] = "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in env.messages(agent))
                    tools[agent] = [tool["function"]["name"] for tool in optional(env.task, "tools")(agent)]
                env.step(expert(agent) if expert else env.task.sample_actions(agent)[0])
                turns += 1
        kind = env.dependency
        by = "the task's own expert, who knows the answer" if expert else "a plausible reply, which may be wrong"
        return Played(env.episode, seen, type(kind).__name__, kind.possible_edges, tools, by)
    finally:
        env.close()


def family(env_id: str) -> str:
    """The family of an id: a key of ``FAMILIES``.

    Raises:
        KeyError: It has none yet.
    """
    first = env_id.partition("-")[0]
    if first not in FAMILIES and first not in TOYS:
        raise KeyError(f"{env_id} is of no family: say in docs/website/gallery.py which page is about it")
    return first if first in FAMILIES else "toy"


def picture(env_id: str, played: Played) -> str:
    """Draws who heard whom in the first round that was played, at most its first nine layers."""
    episode = played.episode
    first = [layer for layer in episode.layers if layer.round == 0][:9]
    turns = [turn for layer in first for turn in layer.turns]
    number = {turn: n for n, turn in enumerate(turns)}
    edges = [(number[a], number[b]) for a, b in episode.rounds[0].edges if a in number and b in number]
    columns = [[episode.turns[turn].agent for turn in layer.turns] for layer in first]
    names = [agent.name for agent in episode.agents]
    return draw.layers(f"D of {env_id}: who heard whom", columns, edges, (names, episode.rounds[0].D))


def _block(text: str, language: str = "text") -> str:
    text = text if len(text) <= MOST_CHARS else text[:MOST_CHARS].rstrip() + "\n…"
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def baselines(env_id: str) -> str:
    """Scores of an environment in the core comparison, or where else its numbers stand."""
    rows = [row for row in _core() if row["environment"] == env_id and re.match(r"\d", row["mean"])]
    if not rows:
        where = MEASURED.get(family(env_id))
        return f"Not in the core comparison. What was measured: [here](../{where})." if where else "None is packed."
    lines = ["| algorithm | score, % | IQM, % | sampled tokens |", "|---|---|---|---|"]
    lines += [f"| {_linked(row['algorithm'])} | {row['mean']} | {row['IQM']} | {row['tokens']} |" for row in rows]
    kinds = {row["algorithm"].partition(" ")[0] for row in rows}
    labels = [f"`{label}`: {meaning}." for label, meaning in LABELS.items() if label in kinds]
    (seeds,) = {row["seeds"] for row in rows}
    lines += [
        "",
        f"Greedy, means over {seeds} seeds with 95 % intervals; tokens were sampled for training, mean per run.",
    ]
    lines += [*labels, "From [the core comparison](../core.md#all-of-it), which has the grid and the command."]
    return "\n".join(lines)


def _core() -> list[dict[str, str]]:
    """Rows of the report of the core grid, by the names of its columns."""
    table = [line.strip("|").split("|") for line in CORE.read_text(encoding="utf-8").splitlines()]
    head, _, *body = [[cell.strip() for cell in row] for row in table]
    return [dict(zip(head, row, strict=True)) for row in body]


def _linked(label: str) -> str:
    there = (ROOT / f"docs/algorithms/{label}.md").is_file()
    return f"[{label}](../algorithms/{label}.md)" if there else label


def cite() -> str:
    """How to cite, as BibTeX: this software, and the paper."""
    version = marft_envs.__version__
    return _block(
        "@software{marft,\n"
        "  title   = {MARFT: reinforcement fine-tuning of teams of language-model agents},\n"
        f"  author  = {{MARFT contributors}},\n  version = {{{version}}}\n}}\n"
        "@article{liao2025marft,\n  title   = {MARFT: Multi-Agent Reinforcement Fine-Tuning},\n"
        "  author  = {Liao, Junwei and Wen, Muning and Wang, Jun and Zhang, Weinan},\n"
        "  journal = {arXiv:2504.16129},\n  year    = {2025}\n}",
        "bibtex",
    )


def _many(number: int, name: str) -> str:
    return f"{number} {name}" + "s" * (number != 1)


def _turns(episode: Episode) -> Iterator[str]:
    for turn in episode.turns:
        heard = ", ".join(f"{episode.turns[k].agent} (turn {k + 1})" for k in turn.sees) or "nobody"
        yield f"**{turn.index + 1}. {turn.agent}**, who heard {heard}\n"
        yield _block(turn.text) + "\n"
        if turn.result:
            yield f"What came of it:\n\n{_block(turn.result)}\n"


def page(env_id: str, summary: str, played: Played) -> str:
    """The page of one environment."""
    episode = played.episode
    title, about = FAMILIES[family(env_id)]
    result = {True: "success", False: "no success", None: "no verdict"}[episode.success]
    parts = [
        f"# `{env_id}`",
        f"{summary[:1].upper()}{summary[1:]}. [{title}](../{about}), {_many(len(episode.agents), 'agent')}.",
    ]
    parts += [_block(f'env = marft_envs.make("{env_id}")', "python")]
    parts += [_block(f"marft envs {env_id}\nmarft play {env_id}\nmarft train --env {env_id}", "sh")]
    parts += ["## Who hears whom", f"![D of {env_id}]({env_id}.svg)"]
    possible = played.asked
    rest = (
        f" It can ask for {_many(len(possible), 'edge')} in all."
        if possible is not None
        else " It decides while an episode runs."
    )
    parts += [f"`{played.dependency}`, as it was in the first round of the episode below.{rest}"]
    parts += ["## What each agent sees", "At its first turn in that episode."]
    for agent in episode.agents:
        text = played.seen.get(agent.name)
        parts.append(f"### {agent.name}" + (" (answers for the team)" if agent.with_answer else ""))
        parts.append(_block(text) if text else f"It was not asked. Its profile:\n\n{_block(agent.prompt or '(empty)')}")
        if played.tools.get(agent.name):
            parts.append("Tools: " + ", ".join(f"`{name}`" for name in played.tools[agent.name]))
    parts += [
        "## A played episode",
        f"Seed {SEED}, task `{episode.task_id}`, by the task's own expert, who knows the answer.",
    ]
    parts += _turns(episode)
    unfinished = "" if episode.terminated or episode.truncated else f" Stopped here, after {MOST_TURNS} turns."
    parts += [f"Return {episode.team_return:g}, {result}, {_many(len(episode.rounds), 'round')}.{unfinished}"]
    parts += ["## Baselines", baselines(env_id), "## How to cite", cite()]
    return "\n\n".join(parts) + "\n"


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and content of every page and picture; pictures have no title."""
    specs = [spec for spec in marft_envs.list_envs() if "/" not in spec.id]
    lines = [
        "# Gallery of environments",
        "",
        "Made from the registry: what each agent sees, who hears whom, a played episode, baselines.",
    ]
    for name, (title, _) in FAMILIES.items():
        lines += ["", f"## {title}", "", "| id | what it is | D |", "|---|---|---|"]
        for spec in specs:
            if family(spec.id) == name:
                played = play(spec.id)
                lines.append(f"| [`{spec.id}`]({spec.id}.md) | {spec.summary} | `{played.dependency}` |")
                yield f"gallery/{spec.id}.svg", "", picture(spec.id, played)
                yield f"gallery/{spec.id}.md", spec.id, page(spec.id, spec.summary, played)
    yield "gallery/index.md", "Gallery", "\n".join(lines) + "\n"


def ids() -> Sequence[str]:
    """Every id that has a page: those of this package, whatever else is registered in this process."""
    own = [spec for spec in marft_envs.list_envs() if str(spec.entry_point).startswith("marft_envs.")]
    return [spec.id for spec in own if "/" not in spec.id]
