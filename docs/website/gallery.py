"""Makes the gallery: a page for every environment of the registry, with what agents see, D, and one played episode."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import docstring_parser

import marft_envs
from marft_algos.extras.bench import tables
from marft_envs.core.types import Episode, optional
from website import draw, leaderboard

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "benchmarks/results/core.tar.xz"
GRID = "examples/configs/bench_core.toml"
SEED, MOST_TURNS, MOST_CHARS = 0, 40, 1200
FAMILIES = {
    "math": ("Mathematics", "environments-math.md"),
    "code": ("Coding", "code.md"),
    "tools": ("Tools", "tools.md"),
    "docs": ("Long documents", "long-documents.md"),
    "rag": ("Retrieval", "retrieval.md"),
    "cases": ("Recorded tasks", "traces.md"),
    "toy": ("Toys", "environments-toys.md"),
}
TOYS = ("relay", "route", "signal", "steps", "stop", "xor")
REWARDS = {
    "math": "1 where the last answer is [equal in mathematics](../math-answers.md) to the right one, else 0: the "
    "team's reward at the end of a round",
    "code": "what the last program of a round scores on tests that nobody sees, less what the round before had: 0.3 "
    "for the share passed and 0.7 for all ([others](../code.md#rewards))",
    "tools": "1 for exactly the wanted end state of the world and 0.3 for the share of it, less wasted steps, errors "
    "and repetitions ([in full](../tools.md#reward-and-metrics)); every round pays the change",
    "docs": "1 where the last reply of who answers has the answer, else 0",
    "rag": "1 where the box of who answers holds the answer, else 0 ([others](../retrieval.md#settings))",
    "cases": "1 where the last words of who answers equal the recorded result, else 0",
    "toy": "1 for the right answer, and what [the table of the ladder](../environments-toys.md) says beside "
    "it; the optimum is known",
}
"""Family -> what is rewarded, with the settings of its ids."""
MEASURED = {
    "math": "results.md#does-d-matter",
    "code": "results.md#coding-teams",
    "tools": "results.md#tool-use",
    "docs": "long-documents.md",
    "rag": "retrieval.md",
}
"""Family -> where its numbers stand that are in no table by id."""

ALL = {
    "dependency": "Replaces the team's D: anything that `marft_envs.as_dependency` takes.",
    "flex": "Settings of [`FlexEnv`](../environments.md): `history`, `observation`, `attribution`, …",
}
"""Argument that many have -> what it is, where a docstring leaves it out."""


@dataclass(frozen=True)
class Played:
    """One episode, as the task's expert plays it, and what each agent was shown at its first turn."""

    episode: Episode
    seen: dict[str, str]
    dependency: str
    asked: frozenset[tuple[str, str]] | None
    tools: dict[str, list[str]]
    by: str
    spaces: tuple[str, str]
    """Of what the first agent sees and does; they are the same for all."""


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
        first = env.possible_agents[0]
        spaces = (_space(env.observation_space(first)), _space(env.action_space(first)))
        return Played(env.episode, seen, type(kind).__name__, kind.possible_edges, tools, by, spaces)
    finally:
        env.close()


def _space(space: object) -> str:
    return str(space).replace(", stack=False", "")


def family(env_id: str) -> str:
    """The family of an id: a key of ``FAMILIES``.

    Raises:
        KeyError: It has none yet.
    """
    first = env_id.partition("-")[0]
    if first not in FAMILIES and first not in TOYS:
        raise KeyError(f"{env_id} is of no family: say in docs/website/gallery.py which page is about it")
    return first if first in FAMILIES else "toy"


def _turns_drawn(episode: Episode, most: int = 9) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """Agents by layer of the first round, at most so many layers, and pairs of turns (seen, sees)."""
    first = [layer for layer in episode.layers if layer.round == 0][:most]
    number = {turn: n for n, turn in enumerate(turn for layer in first for turn in layer.turns)}
    edges = [(number[a], number[b]) for a, b in episode.rounds[0].edges if a in number and b in number]
    return [[episode.turns[turn].agent for turn in layer.turns] for layer in first], edges


def picture(env_id: str, played: Played) -> str:
    """Draws which agent saw whose messages in the first round, at most its first nine layers."""
    names = [agent.name for agent in played.episode.agents]
    columns, edges = _turns_drawn(played.episode)
    return draw.layers(f"D of {env_id}: who saw whose messages", columns, edges, (names, played.episode.rounds[0].D))


def _block(text: str, language: str = "text") -> str:
    text = text if len(text) <= MOST_CHARS else text[:MOST_CHARS].rstrip() + "\n…"
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def baselines(env_id: str) -> str:
    """Scores of an environment in the core comparison, or where else its numbers stand."""
    board = next((board for board in _core() if board.setting == env_id), None)
    if board is None:
        where = MEASURED.get(family(env_id))
        return f"Not in the core comparison. What was measured: [here](../{where})." if where else "None is packed."
    lines = [board.facts.replace("baseline", "differences are to"), ""]
    lines += ["| algorithm | score | IQM | difference, points | tokens sampled |", "|---|---|---|---|---|"]
    for line, _, label in board.rows:
        name = _linked(line.algorithm) + (f" ({label})" if label else "")
        numbers = (
            tables.score(line.mean),
            tables.score(line.iqm),
            tables.points(line.difference),
        )
        lines.append(f"| {name} | {' | '.join(numbers)} | {tables.count(line.tokens)} |")
    (seeds,) = {line.seeds for line, _, _ in board.rows}
    lines += [
        "",
        f"Means over {seeds} seeds with 95 % intervals over seeds and problems; IQM is the interquartile mean.",
    ]
    lines += ["`untrained` is the team before training. `single (ALGORITHM)` is one agent trained with as many tokens."]
    lines += ["From [the core comparison](../results.md#the-core-comparison), which this makes:\n"]
    lines += [_block(f"marft bench run {GRID} --out runs/core --jobs 2\nmarft bench report runs/core", "sh")]
    return "\n".join(lines)


@functools.cache
def _core() -> Sequence[leaderboard.Board]:
    return leaderboard.read(CORE).boards


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
        names = dict.fromkeys(episode.turns[k].agent for k in turn.sees)
        by_name = {name: [str(k + 1) for k in turn.sees if episode.turns[k].agent == name] for name in names}
        seen = "; ".join(f"{name} (turn {', '.join(at)})" for name, at in by_name.items()) or "no message"
        yield f"**{turn.index + 1}. {turn.agent}**, which saw {seen}\n"
        yield _block(turn.text) + "\n"
        if turn.result:
            yield f"What came of it:\n\n{_block(turn.result)}\n"


def arguments(spec: marft_envs.EnvSpec) -> str:
    """A table of what ``make`` takes: name, default (the id's, where it sets one), and what the docstring says."""
    build = spec.load()
    described = {p.arg_name: p.description or "" for p in docstring_parser.parse(inspect.getdoc(build) or "").params}
    rows = ["| argument | default | what it is |", "|---|---|---|"]
    for name, parameter in inspect.signature(build).parameters.items():
        default = spec.kwargs.get(name, parameter.default)
        shown = "" if default is inspect.Parameter.empty else f"`{default!r}`"
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        words = described.get(name) or described.get(stars + name) or ALL.get(name, "")
        rows.append(f"| `{stars}{name}` | {shown} | {_prose(words)} |")
    return "\n".join(rows)


def _prose(text: str) -> str:
    """A docstring's words as a cell of Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(text.split()))
    return text.replace("``", "`").replace("|", "\\|")


def _facts(env_id: str, played: Played) -> str:
    """What a user asks first, as a table: whom, what is rewarded, spaces, versions, the pages about it."""
    title, about = FAMILIES[family(env_id)]
    name, _, version = env_id.rpartition("-v")
    others = [other for other in ids() if other.rpartition("-v")[0] == name and other != env_id]
    versions = ", ".join(f"[{other}]({other}.md)" for other in others) or "the only one"
    possible = played.asked
    edges = "decides while an episode runs" if possible is None else f"can ask for {_many(len(possible), 'edge')}"
    rows = {
        "agents": ", ".join(f"`{agent.name}`" + " (answers)" * agent.with_answer for agent in played.episode.agents),
        "D": f"`{played.dependency}`, which {edges}",
        "rewarded": REWARDS[family(env_id)],
        "action": f"`{played.spaces[1]}`: any text",
        "observation": f"`{played.spaces[0]}`: the conversation, and how many turns there were",
        "version": f"{version}, {versions}",
        "more": f"[{title}](../{about})",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| **{key}** | {words} |" for key, words in rows.items())])


def page(env_id: str, summary: str, played: Played) -> str:
    """The page of one environment."""
    episode = played.episode
    result = {True: "success", False: "no success", None: "no verdict"}[episode.success]
    parts = [f"# `{env_id}`", f"{summary[:1].upper()}{summary[1:]}."]
    parts += [_block(f'env = marft_envs.make("{env_id}")', "python")]
    parts += [_block(f"marft play {env_id}\nmarft train --env {env_id}", "sh")]
    parts += [_facts(env_id, played), "## Who sees whose messages", f"![D of {env_id}]({env_id}.svg)"]
    parts += ["As it was in the first round of the episode below.", "## A played episode"]
    parts += [f"Seed {SEED}, task `{episode.task_id}`, by {played.by}."]
    parts += _turns(episode)
    unfinished = "" if episode.terminated or episode.truncated else f" Stopped here, after {MOST_TURNS} turns."
    parts += [f"Return {episode.team_return:g}, {result}, {_many(len(episode.rounds), 'round')}.{unfinished}"]
    parts += ["## What each agent sees", "At its first turn in that episode."]
    for agent in episode.agents:
        text = played.seen.get(agent.name)
        parts.append(f"### {agent.name}" + (" (answers for the team)" if agent.with_answer else ""))
        parts.append(_block(text) if text else f"It was not asked. Its profile:\n\n{_block(agent.prompt or '(empty)')}")
        if played.tools.get(agent.name):
            parts.append("Tools: " + ", ".join(f"`{name}`" for name in played.tools[agent.name]))
    parts += ["## Baselines", baselines(env_id), "## Arguments", arguments(marft_envs.spec(env_id))]
    return "\n\n".join([*parts, "## How to cite", cite()]) + "\n"


def card(env_id: str, summary: str, played: Played) -> str:
    """A card of the overview: who acts when as a thumbnail, the id, what it is, how many agents."""
    agents = _many(len(played.episode.agents), "agent")
    return (
        f"<div markdown>\n[![]({env_id}-small.svg){{ alt='' }}]({env_id}.md)\n\n"
        f"[`{env_id}`]({env_id}.md)\n\n{summary[:1].upper()}{summary[1:]}\n\n*{agents}, `{played.dependency}`*\n</div>"
    )


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and content of every page and picture; pictures have no title."""
    specs = [marft_envs.spec(env_id) for env_id in ids()]
    lines = [
        "# Gallery of environments",
        "",
        "Made from the registry: who sees whose messages, what is rewarded, a played episode,",
    ]
    lines += [
        "what each agent sees, baselines, arguments. `marft play ID` plays one, `marft train --env ID` trains in it."
    ]
    for name, (title, about) in FAMILIES.items():
        lines += ["", f"## {title}", "", f"Rewarded: {REWARDS[name]}. [All about them](../{about})."]
        lines += ["", '<div class="cards" markdown>']
        for spec in specs:
            if family(spec.id) == name:
                played = play(spec.id)
                lines.append(card(spec.id, spec.summary, played))
                yield f"gallery/{spec.id}.svg", "", picture(spec.id, played)
                yield f"gallery/{spec.id}-small.svg", "", draw.small(*_turns_drawn(played.episode, 5))
                yield f"gallery/{spec.id}.md", spec.id, page(spec.id, spec.summary, played)
        lines.append("</div>")
    yield "gallery/index.md", "Gallery", "\n".join(lines) + "\n"


def ids() -> Sequence[str]:
    """Every id that has a page: those of this package that download nothing, whatever else this process registers."""
    own = [spec for spec in marft_envs.list_envs() if str(spec.entry_point).startswith("marft_envs.")]
    return [spec.id for spec in own if "/" not in spec.id and "data" not in spec.kwargs]
