"""Demonstrations where blame says that they are missing, against as many at random.

    python examples/blame/demonstrations.py rows

The team is ``embedded-tools``, taught by a careless demonstrator. Its failures on training problems are blamed, and
blame above 0 is added up by kind of turn: the agent, which of its turns, and the first word of what the user asks.
Turns of the task's expert are then drawn in proportion to it. The control draws from all turns of the same problems.
Both have as many characters, and are learnt from as often, so both teams process about as many tokens. The rows are
those of ``marft sft --demonstrations FILE``.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
from collections import Counter
from pathlib import Path

import marft_algos
import marft_envs
from marft_algos.extras.blame import blame
from marft_envs.records import trajectory

ENV = "tools-router-v0"
KWARGS = {"show_policy": False, "show_tools": "none"}
MODEL = "embedded-tools"


def kind(agent, messages):
    """Returns the kind of a turn."""
    asked = re.search(r"The user says:\n(\w+)", messages[1]["content"])
    return f"{agent} {1 + sum(m['role'] == 'assistant' for m in messages)} {asked[1]}"


def pool(n):
    """Returns the expert's turns in n training problems."""
    env, rows = marft_envs.make(ENV, split="train", **KWARGS), []
    for seed in range(n):
        env.reset(seed=seed)
        while not env.done:
            agent, messages = env.agent_selection, env.messages(env.agent_selection)
            said = env.unwrapped.task.expert(agent)
            rows.append({"messages": messages, "action": said, "agent": agent})
            env.step(said)
    return rows


def blamed(folder, episodes):
    """Plays training problems, and returns the blame of the team's failures by kind of turn."""
    settings = {"env": ENV, "env_kwargs": {**KWARGS, "split": "train"}, "temperature": 1.0, "max_new_tokens": 16}
    marft_algos.evaluate(MODEL, episodes=episodes, out=folder, **settings)
    counts, env = Counter(), marft_envs.make(ENV, split="train", **KWARGS)
    for e in blame(folder, engines=MODEL, failures=episodes, by=()).episodes:
        prompts = trajectory.prompts(e.episode, env)
        for turn in e.turns:
            counts[kind(turn.record.agent, prompts[turn.record.index][0])] += max(turn.blame.mean, 0.0)
    return dict(counts)


def size(row):
    """Returns the characters of a row."""
    return len(row["action"]) + sum(len(m["content"]) for m in row["messages"])


def drawn(rows, weight, rng, enough):
    """Draws rows without replacement, in proportion to a weight of each, until there are enough."""
    order = sorted(rows, key=lambda row: rng.random() ** (1 / weight(row)) if weight(row) else 0.0, reverse=True)
    taken = []
    for row in order:
        if enough(taken):
            break
        taken.append(row)
    return taken


def learnt(rows, file, seed, options):
    """Writes rows, learns from them, and returns the run's metrics before and after."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    run = marft_algos.train(
        "tools", algo="sft", algorithm={"demonstrations": str(file)}, seed=seed, iterations=options.epochs,
        episodes_per_iteration=len(rows), eval_every=options.epochs, eval_episodes=options.problems,
    )  # fmt: skip
    return run.metrics()


def main(argv=None):
    """Blames, draws, learns and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=40, help="training problems whose failures are blamed")
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", type=int, default=200, help="held-out problems")
    options = parser.parse_args(argv)
    file, rows = options.folder / "blame.json", pool(600)
    if not file.is_file():
        options.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(blamed(options.folder / "played", options.episodes)) + "\n", encoding="utf-8")
    counts, known = json.loads(file.read_text(encoding="utf-8")), Counter(kind(r["agent"], r["messages"]) for r in rows)
    print(*(f"{n:.2f} {name}" for name, n in sorted(counts.items(), key=lambda c: -c[1])), sep="\n")
    scores = {"blame": [], "random": []}
    for seed in range(options.seeds):
        rng = random.Random(seed)
        names = (kind(r["agent"], r["messages"]) for r in rows)
        weights = {id(r): counts.get(name, 0.0) / known[name] for r, name in zip(rows, names, strict=True)}
        where = drawn(rows, lambda r, w=weights: w[id(r)], rng, lambda taken: len(taken) >= options.rows)
        total = sum(map(size, where))
        control = drawn(rows, lambda r: 1.0, rng, lambda taken, total=total: sum(map(size, taken)) >= total)
        for arm, chosen in (("blame", where), ("random", control)):
            metrics = learnt(chosen, options.folder / f"{arm}-{seed}.jsonl", seed, options)
            scores[arm].append(metrics[-1]["eval/success"])
            print(
                seed, arm, len(chosen), sum(map(size, chosen)), metrics[0]["eval/success"], scores[arm][-1], flush=True
            )
    for arm, found in scores.items():
        print(f"{arm}: {statistics.mean(found):.3f} ({', '.join(f'{x:.3f}' for x in found)})")


if __name__ == "__main__":
    main()
