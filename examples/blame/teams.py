r"""Healthy teams whose errors are known, for planted faults: who they are, and what plays their episodes.

| family | environment | turns | who plays |
|---|---|---|---|
| ``message`` | ``steps-v0``, six steps | 6, a chain | functions that err at .05 |
| ``math`` | ``math-quartet-v0`` | 4, a chain | functions that err at .1; the critic repairs a wrong step at .3 |
| ``search`` | ``rag-chain-v0``, three hops | 7, a chain | functions that err at .05; a search engine |
| ``documents`` | ``docs-tree-v0``, two windows | 7: 4, 2, 1 at once | functions that err at .08, joiners at .03 |
| ``model`` | the same | the same | the language model ``embedded-docs``, sampled at temperature 1 |
| ``vote`` | ``math-debate-v0`` | 4: 3 solvers at once, a judge | functions that err at .25, the judge at .05 |

A function reads its prompt alone. Whether it errs depends on its turn's seed, so equal seeds are equal luck.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import marft_envs
from marft_algos.config.evaluation import EvalConfig
from marft_algos.engines import ScriptedEngine
from marft_algos.evaluation import resumable
from marft_algos.evaluation.play import Player
from marft_algos.models.chat import Renderer
from marft_algos.types import SamplingParams

CAUGHT = 0.3
"""How often the critic of ``math`` repairs a wrong step."""
WRONG = (-2, -1, 1, 2)
"""What an error adds to a number."""


def numbers(text):
    return [int(n) for n in re.findall(r"-?\d+", text)]


def step(agent, read, rng):
    """Adds an operation to the digit that was said last, and passes on what only this agent sees."""
    own, told = re.search(r"plus (\d|\?)(?: other (\d))?", read).groups()
    said = re.findall(r"^\d\d?$", read, re.MULTILINE)
    shown = re.search(r"digit (\d)", read)
    digit = int(said[-1][0]) if said else int(shown[1]) if shown else rng.randrange(10)
    plus = int(own) if own != "?" else int(said[-1][1]) if said and len(said[-1]) > 1 else rng.randrange(2)
    slip = rng.choice(WRONG) if rng.random() < 0.05 else 0
    return f"{(digit + plus + slip) % 10}{told or ''}"


def calculate(agent, read, rng):
    """Plans, carries out, criticises or ends a calculation of two steps, ``(a ± b) · c``."""
    a, sign, b, c = re.search(r"\((\d+)([+-])(\d+)\)\\cdot (\d+)", read).groups()
    right = int(a) + int(f"{sign}{b}")
    shown = [numbers(line)[-1] for line in read.split("\n\n")[1:]]
    slip = rng.choice(WRONG) if rng.random() < 0.1 else 0
    if agent == "actor_0":
        value = shown[-1] if shown else right
        return f"{value}*{c}={value * int(c) + slip}. \\boxed{{{value * int(c) + slip}}}"
    value = right if agent == "planner_0" or (agent == "critic_0" and rng.random() < CAUGHT) else shown[-1]
    return f"{a}{sign}{b}={value + slip},"


def search(agent, read, rng):
    """Says the next search, what the passages say to it, or the last note."""
    asked = re.search(r"^(\d+)((?: \d)+)\?$", read, re.MULTILINE)
    notes = re.findall(r"\[reader.*?\]\n(\d+)", read)
    err = rng.random() < 0.05
    if agent == "searcher_0":
        relations = asked[2].split()
        relation = relations[min(len(notes), len(relations) - 1)]
        return f"{(notes or [asked[1]])[-1]} {rng.choice('123'.replace(relation, '')) if err else relation}"
    if agent == "answerer_0":
        return f"\\boxed{{{(notes or [asked[1]])[-2 if err and len(notes) > 1 else -1]}}}"
    query = re.findall(r"\[searcher.*?\]\n(.*)", read)
    found = re.findall(r"^\[\d+\] (\d+ \d) (\d+)$", read, re.MULTILINE)
    right = [name for words, name in found if (words in query) is not err]
    return f"\\boxed{{{right[0] if right else rng.randrange(100, 1000)}}}"


def vote(agent, read, rng):
    """Solves a calculation alone, or says what most of the others say."""
    a, sign, b, c = re.search(r"\((\d+)([+-])(\d+)\)\\cdot (\d+)", read).groups()
    if agent == "judge_0":
        shown = [numbers(line)[-1] for line in read.split("\n\n")[1:]]
        answer = Counter(shown).most_common(1)[0][0] + (rng.choice(WRONG) if rng.random() < 0.05 else 0)
        return f"\\boxed{{{answer}}}"
    first = int(a) + int(f"{sign}{b}") + (rng.choice(WRONG) if rng.random() < 0.25 else 0)
    return f"{a}{sign}{b}={first}, {first}*{c}={first * int(c)}"


def read_ledger(agent, read, rng):
    """Adds up the entries of a page, or the notes of others."""
    *_, page = read.removesuffix(".").split("Sum.\n")
    mapper = agent.startswith("mapper")
    entries = re.findall(r"[+-]?(?:[a-z])?\d+", page) if mapper else numbers(page)
    slip = rng.choice(WRONG) if rng.random() < (0.08 if mapper else 0.03) else 0
    return f"\\boxed{{{sum(int(re.sub('[a-z]', '', str(entry))) for entry in entries) + slip}}}"


LEDGERS = {"kinds": "total", "level": 0, "lengths": 2}
FAMILIES = {
    "message": ("steps-v0", {"horizon": 6, "hidden": 0.5}, step),
    "math": ("math-quartet-v0", {}, calculate),
    "search": ("rag-chain-v0", {"hops": 3}, search),
    "documents": ("docs-tree-v0", LEDGERS, read_ledger),
    "model": ("docs-tree-v0", LEDGERS, "embedded-docs"),
    "vote": ("math-debate-v0", {}, vote),
}
"""Family -> environment, its arguments, and a function (agent, what it reads, random numbers) or a model's name."""


@contextmanager
def team(family, seed=0):
    """Lends the player of a family's healthy team."""
    id, kwargs, who = FAMILIES[family]
    if callable(who):
        make = partial(marft_envs.make, id, **kwargs)
        agents = {agent: agent for agent in make().possible_agents}

        def said(request):
            read = "\n\n".join(m["content"] for m in request.messages if m["role"] == "user")
            return who(request.agent, read, random.Random(request.seed))

        yield Player(make, Renderer({}, agents), ScriptedEngine({"*": said}), SamplingParams(1), seed, 64, EvalConfig())
        return
    config = EvalConfig(id, kwargs, who, max_new_tokens=64, temperature=1.0, seed=seed, jobs=64)
    players, make = resumable.seated(config)
    with tempfile.TemporaryDirectory() as folder:
        replies = Path(folder) / "replies.jsonl"
        with resumable.playing(config, players, make, players.load(config), replies) as (player, _):
            yield player
