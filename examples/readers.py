"""Demonstrations in a form of your own: how readers of long documents merge notes, as rows for ``marft sft``.

    python examples/readers.py tree rows/tree.jsonl --documents 360 --merges 18000
    python examples/readers.py whole rows/whole.jsonl --documents 7000
    marft sft --demonstrations rows/tree.jsonl --env docs-tree-v0 --preset smollm2 --policies shared --name tree
    python examples/readers.py skill runs/tree --merges 300

A row is a prompt (``messages``), the reply to imitate (``action``) and who replies (``agent``). The task's own expert
merges two notes in one step, ``38-25=13``. Here the larger number stands first, and the tens of the other are added
before its ones: ``38-20=18-5=13``. Each step then needs one digit, and no step crosses zero. ``skill`` counts the right
replies of a trained team to different merges, whose numbers are, in either order, in none of ``tree`` that is alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from pathlib import Path

import marft_envs
from marft_envs.families.math.grader import extract_boxed

SETTINGS = {"kinds": "total", "level": 0, "lengths": 8}
MOST = (9, 20, 60, 99)
"""Largest numbers that are drawn for either note of a merge, each as often."""
CLASSES = ("one digit", "one and two digits", "two digits, same sign", "two digits, different signs")
HELD_OUT = 26
"""Of 256 ordered pairs of numbers, how many are in no merge that is shown alone."""
SHOWN = 18_000
"""Merges alone that demonstrations have, at most."""


def held_out(one, other):
    """Whether a pair of numbers is kept for tests."""
    return hashlib.sha256(f"{one} {other}".encode()).digest()[0] < HELD_OUT


def merged(one, other):
    r"""Returns the reply that adds two notes.

    >>> merged(-12, 50)
    '50-10=40-2=38. \\boxed{38}'
    """
    large, small = sorted((one, other), key=abs, reverse=True) if abs(other) > abs(one) else (one, other)
    tens = abs(small) // 10 * 10 * (1 if small > 0 else -1)
    ones = small - tens
    words = f"{large}{tens:+}={large + tens}{ones:+}" if tens and ones else f"{large}{small:+}"
    return f"{words}={one + other}. \\boxed{{{one + other}}}"


def worked(document, every):
    """Returns the reply that reads a whole ledger, and writes the balance down after so many entries each."""
    balances, balance = [], 0
    for i, (written, amount) in enumerate(document.facts, 1):
        balance += amount
        if i % every == 0:
            letter = written[1:2] if written[1:2].isalpha() else ""  # the first entry has none
            balances.append(f"{letter}{balance}")
    return f"{' '.join(balances)}. \\boxed{{{balance}}}"


def played(env, seed, reply):
    """Yields the rows of one episode; ``reply`` gives an agent's words."""
    env.reset(seed=seed)
    while not env.done:
        agent = env.agent_selection
        messages, said = env.messages(agent), reply(env, agent)
        yield {"messages": messages, "action": said, "agent": agent}
        env.step(said)


def read_or_merged(env, agent):
    """Returns the expert's reply to a page, and merges notes in steps of one digit."""
    if not agent.startswith("reducer"):
        return env.task.expert(agent)
    return merged(*numbers(env.messages(agent)))


def numbers(messages):
    """Returns the two numbers that a prompt wants merged."""
    return tuple(int(line) for line in messages[-1]["content"].splitlines() if line.lstrip("-").isdecimal())


def merges(env, n, rng, *, shown=True):
    """Yields rows of merges alone, of numbers up to 99 with either sign; ``shown``: those for demonstrations."""
    joiners = [row for row in played(env, 0, read_or_merged) if row["agent"].startswith("reducer")]
    for _ in range(n):
        row = joiners[-1] if rng.random() < 1 / 8 else joiners[0]
        tag = rng.choice(("mapper", "reducer"))
        one, other = 0, 0
        while (one, other) == (0, 0) or held_out(one, other) is shown:
            one, other = (rng.randint(-most, most) for most in (rng.choice(MOST), rng.choice(MOST)))
        *before, last = row["messages"]
        asked = {**last, "content": f"Sum.\n\n[{tag}]\n{one}\n\n[{tag}]\n{other}"}
        yield {"messages": [*before, asked], "action": merged(one, other), "agent": row["agent"]}


def tree(documents, n, seed):
    """Returns the rows of merges alone and of whole documents."""
    env = marft_envs.make("docs-tree-v0", **SETTINGS)
    rows = list(merges(env, n, random.Random(seed)))
    return rows + [row for i in range(documents) for row in played(env, seed * 100_000 + i, read_or_merged)]


def skill(run, n, seed, checkpoint="last"):
    """Returns for each class of merges whether each reply of a team is right."""
    import marft_algos

    team, right = marft_algos.load_team(run, checkpoint=checkpoint), {name: [] for name in CLASSES}
    env = marft_envs.make("docs-tree-v0", **SETTINGS)
    known = {tuple(sorted(numbers(row["messages"]))) for row in merges(env, SHOWN, random.Random(seed))}
    for row in merges(env, 100 * n, random.Random(1), shown=False):
        one, other = pair = tuple(sorted(numbers(row["messages"])))
        if pair in known:
            continue
        if sum(map(len, right.values())) == n:
            break
        known.add(pair)
        said = team.say(row["agent"], row["messages"], (), 0).text
        two = (abs(one) > 9) + (abs(other) > 9)
        name = CLASSES[two + (two == 2 and one * other < 0)]
        right[name].append(extract_boxed(said) == str(one + other))
    return right


def whole(documents, every, seed):
    """Returns the rows of one agent that reads whole ledgers."""
    env = marft_envs.make("docs-solo-v0", window=0, **SETTINGS)

    def reply(env, agent):
        return worked(env.task.problem, every)

    return [row for i in range(documents) for row in played(env, seed * 100_000 + i, reply)]


def main():
    """Writes the rows, or prints the share of right merges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tree", "whole", "skill"))
    parser.add_argument("path", type=Path, help="file of the rows, or folder of the run")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--merges", type=int, default=160, help="shown alone, or replied to")
    parser.add_argument("--every", type=int, default=2, help="entries for each balance that is written")
    parser.add_argument("--seed", type=int, default=0, help="of the rows, those of a run too")
    parser.add_argument("--checkpoint", default="last")
    options = parser.parse_args()
    if options.what == "skill":
        found = skill(str(options.path), options.merges, options.seed, options.checkpoint)
        for name, right in {**found, "all": [x for each in found.values() for x in each]}.items():
            print(f"{name:<28} {sum(right) / max(len(right), 1):.3f}, n = {len(right)}")
        return
    if options.what == "tree":
        rows = tree(options.documents, options.merges, options.seed)
    else:
        rows = whole(options.documents, options.every, options.seed)
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} rows: {options.path}")


if __name__ == "__main__":
    main()
