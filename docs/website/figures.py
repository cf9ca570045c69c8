"""``PYTHONPATH=docs python -m website.figures [--write]``: makes the figures that are kept, from code and results.

D and the successor relations are asked of the code that plays and trains; the curves of algorithms are the evaluations
of the packed toy grid. Without ``--write`` it says which files differ, and exits with 1 if any does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import marft_envs
from marft_algos import credit
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs import FlexEnv, StaticDAG
from marft_envs.core.types import Episode
from marft_envs.records import experts
from website import draw

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
TOYS = ROOT / "benchmarks" / "results" / "toys.tar.xz"
ENVS = ("relay-v0", "xor-v0", "route-v0")


def _played(env: FlexEnv) -> Episode:
    env.reset(seed=0)
    while not env.done:
        for agent in list(env.ready_agents):
            env.select(agent)
            env.step(env.task.sample_actions(agent)[0])
    env.close()
    return env.episode


def _drawn(title: str, episode: Episode) -> str:
    columns = [[episode.turns[t].agent for t in layer.turns] for layer in episode.layers]
    names = [agent.name for agent in episode.agents]
    return draw.layers(title, columns, episode.rounds[0].edges, (names, episode.rounds[0].D))


def dependencies() -> Iterator[tuple[str, str]]:
    """The same four agents under three D."""
    team = ("planner_0", "reasoner_0", "critic_0", "actor_0")
    diamond = StaticDAG({"reasoner_0": [team[0]], "critic_0": [team[0]], "actor_0": team[1:3]})
    for name, D in {"chain": "chain", "diamond": diamond, "independent": "independent"}.items():
        episode = _played(marft_envs.make("math-quartet-v0", dependency=D))
        yield f"d_{name}.svg", _drawn(f"Four agents, D: {name}", episode)


def episode() -> Iterator[tuple[str, str]]:
    """An episode whose D is a tree: what each turn said, and which turns saw it."""
    env = marft_envs.make("docs-tree-v0", kinds="largest", level=0, lengths=2)
    played = experts.play(env, 0)
    env.close()
    columns = [[played.turns[t].agent for t in layer.turns] for layer in played.layers]
    names = [agent.name for agent in played.agents][: len(played.turns)]
    D = [row[: len(names)] for row in played.rounds[0].D]
    title = "An episode: four readers side by side, whose notes are joined two at a time"
    said = [turn.text.partition("\\boxed")[0].rstrip(" .") or turn.text for turn in played.turns]
    yield "episode.svg", draw.layers(title, columns, played.rounds[0].edges, (names, D), said=said)


def successors() -> Iterator[tuple[str, str]]:
    """Two agents, two rounds: whose value a return goes on with, by the two relations."""
    episode = _played(marft_envs.make("math-dual-v0", rounds=2))
    trajectory = Trajectory(episode, [Transition(turn) for turn in episode.turns])
    columns = [[f"{episode.turns[t].agent}, t={layer.round}" for t in layer.turns] for layer in episode.layers]
    for name, relation in {"team": credit.team_chain, "agent": credit.agent_chain}.items():
        chain = relation(trajectory, credit.broadcast(trajectory), Estimates())
        edges = [(turn, later) for turn, all_later in enumerate(chain.successors) for later in all_later]
        yield f"successors_{name}.svg", draw.layers(f"Successors on {name} chains", columns, edges)


def staleness(iterations: int = 4, behind: int = 1) -> Iterator[tuple[str, str]]:
    """Which version of the policies plays the episodes that an update learns from: the version max(0, i − S)."""
    for S in (0, behind):
        picture = draw.Picture(80 + 150 * iterations, 150, f"Staleness {S}")
        picture.text(12, 46, "plays", 12, draw.SOFT, "start")
        picture.text(12, 118, "learns", 12, draw.SOFT, "start")
        for i in range(iterations):
            x = 66 + 150 * i
            version = max(0, i - S)
            picture.box(x, 26, f"episodes {i} by v{version}", draw.FILL if version == i else "#fff3e8", width=132)
            picture.box(x, 98, f"update {i}: v{i} → v{i + 1}", "#ecfdf5", "#0f766e", 132)
            picture.arrow((x + 66, 56), (x + 66, 96))
        yield f"staleness_{S}.svg", picture.svg()


def curves() -> Iterator[tuple[str, str]]:
    """Every evaluation of the toy grid: a picture an algorithm."""
    scores: dict[str, dict[str, list[list[Mapping[str, float]]]]] = {}
    with tarfile.open(TOYS) as archive:
        files = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
    for cell in sorted(json.loads(files["toys/bench.json"])["stages"]["main"], key=lambda cell: cell["seed"]):
        file = f"toys/results/{cell['key']}.json"
        if file in files and cell["env"] in ENVS:
            evaluations = _apart(json.loads(files[file])["curve"])
            scores.setdefault(cell["algorithm"], {}).setdefault(cell["env"], []).append(evaluations)
    for name, plots in sorted(scores.items()):
        if name != "untrained":
            ordered = {env: _by_tokens(plots[env]) for env in ENVS if env in plots}
            yield f"curves/{name}.svg", draw.points(f"{name}: score by sampled tokens", ordered, 0.0, "sampled tokens")


def _apart(curve: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """The evaluations of a run without one that the last follows within five iterations."""
    return [point for point in curve[:-1] if curve[-1]["iteration"] - point["iteration"] > 5] + [curve[-1]]


def _by_tokens(seeds: Sequence[Sequence[Mapping[str, float]]]) -> dict[float, list[float]]:
    """Scores of the k-th evaluation of every seed, at their mean number of tokens."""
    together = [[points[k] for points in seeds if k < len(points)] for k in range(max(map(len, seeds)))]
    return {sum(p["tokens"] for p in points) / len(points): [p["score"] for p in points] for points in together}


def figures() -> Iterator[tuple[str, str]]:
    """Name of a file in ``docs/images`` and its content, of every figure."""
    for make in (dependencies, episode, successors, staleness, curves):
        yield from make()


def main() -> int:
    """Writes the figures, or compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write them instead")
    write, wrong = parser.parse_args().write, []
    for name, content in figures():
        file = IMAGES / name
        if write:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != content:
            wrong.append(name)
    if wrong:
        print(f"differ: {', '.join(wrong)}. Type: PYTHONPATH=docs python -m website.figures --write")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
