"""Failures with a known culprit, and what a method of failure attribution finds in them.

    python examples/blame/faults.py make faults                           # the data set, into a folder
    python examples/blame/faults.py answer faults first last blame judge  # answers: faults/METHOD/FAMILY.json
    python examples/blame/faults.py score faults first last blame judge   # how often the culprit was found

**A failure enters if its fault caused it**: the same team with the same random numbers succeeds without the fault, and
fails with it. Positions are uniform over the eligible turns. Every fault ends as the words of a turn:

* ``turn``: one turn says what its agent said in another episode.
* ``policy``: all turns of one agent say what it said in one other episode.
* ``cut``: one turn says what its agent says, with the same random numbers, if it does not see one earlier turn.
* ``tool``: one turn says what its agent says, with the same random numbers, if a search gives it another name. The
  record shows what the search gave, so the lie is seen in the words of its reader only.
* ``either``: two turns that do not see each other, of which each fault suffices.
* ``both``: two turns whose faults only together fail the episode.

**What counts as found**: of one fault, the turn that a method ranks first is the turn with the wrong words, of
``policy`` a turn of this agent. Of two, the two turns that it names together are the two.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tarfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from teams import team

import marft_algos
import marft_envs
from marft_algos.credit.branches import Branch
from marft_algos.extras.blame import blame
from marft_algos.extras.blame.blaming import replayed
from marft_algos.extras.blame.chances import exact
from marft_algos.rollout.episodes import Prompts
from marft_algos.rollout.replay import Replayer
from marft_algos.seeds import EVALUATION
from marft_envs.records import trajectory

PLAN = {
    "message": {"turn": 80, "policy": 60, "cut": 60},
    "math": {"turn": 200},
    "search": {"turn": 50, "policy": 50, "cut": 50, "tool": 50},
    "documents": {"turn": 120, "cut": 80, "either": 100},
    "model": {"turn": 21},
    "vote": {"both": 100},
}
"""Family -> kind -> failures.

In ``math`` and ``documents`` every agent speaks once: a corrupted policy is a corrupted turn. In ``math`` every agent
sees all earlier turns, so no cut message fails it. Only ``search`` has a tool. Two faults of which each suffices need
turns that do not see each other: the second of a chain is said anew once the first is corrected."""
DOUBLE = ("either", "both")
PLAYED = 800
"""Healthy episodes of a family, from which failures are made."""


class Planter:
    """Plants faults in the successes of a healthy team.

    Args:
        player: The team.
        played: How many episodes it plays first.
        seed: Of positions and of other episodes' words.
    """

    def __init__(self, player, played, seed):
        self.rng = random.Random(seed)
        healthy = player.play(Prompts(list(range(played)), [{} for _ in range(played)]))
        self.success = sum(t.success is True for t in healthy) / played
        self.all = [t.episode for t in healthy]
        self.unused = [(t.number, t.episode) for t in healthy if t.success]
        self.replayer = Replayer(player.renderer, player.engine, player.sampling, seed=player.seed, slots=player.slots)
        self.env = player.make_env()

    def play(self, number, state, *texts):
        """Returns episodes from a state on, with the random numbers that it had, and these words at these turns."""
        branches = [Branch(state, number, said) for said in texts]
        return [t.episode for t in self.replayer.play(branches, EVALUATION)]

    def elsewhere(self, places, episode, *, same=False):
        """Returns what was said at these turns in another episode; ``same``: at the first of them, for all."""
        other = self.rng.choice([e for e in self.all[:200] if e.task_id != episode.task_id])
        return {i: other.turns[places[0] if same else i].text for i in places}

    def misled(self, number, case, seer, cause):
        """Returns what the turn ``seer`` says if it does not see a turn, or sees another result of it."""
        turn = case.episode.turns[seer]
        (state,) = case.states[turn.layer].fork()
        if cause == "tool":
            schedule, other = state.unwrapped.schedule, str(self.rng.randrange(100, 1000))
            called = schedule.view.history[seer - 1]
            called.result = re.sub(r"\d+$", other, called.result, flags=re.MULTILINE)
            schedule.transcript.set_result(called)
        else:
            layer, unseen = state.unwrapped.schedule.layer, self.rng.choice(turn.sees)
            layer[turn.agent] = replace(layer[turn.agent], sees=tuple(i for i in turn.sees if i != unseen))
        return {seer: self.play(number, state, {})[0].turns[seer].text}

    def places(self, kind):
        """Returns where a kind of fault can be: sets of turns, as many of each will be planted."""
        turns = self.all[0].turns
        if kind == "policy":
            own = Counter(t.agent for t in turns)
            return [[t.index for t in turns if t.agent == agent] for agent in own if own[agent] > 1]
        if kind == "tool":
            return [[t.index] for t in turns if any(turns[i].result for i in t.sees) and t.index - 1 in t.sees]
        if kind == "cut":
            return [[t.index] for t in turns if t.sees]
        if kind == "turn":
            return [[t.index] for t in turns]
        return [[a, b] for a, b in combinations(range(len(turns)), 2) if b not in self.after(a)]

    def after(self, a):
        """Returns the turns that see a turn, or what came of it."""
        found = {a}
        for t in self.all[0].turns:
            found |= {t.index} if found & {*t.sees} else set()
        return found

    def faults(self, kind, n):
        """Yields (places, episode) of n failures of a kind."""
        places = self.places(kind)
        for k in range(n):
            yield self.planted(kind, places[k % len(places)])

    def planted(self, kind, places):
        """Returns a failure that a fault at these turns causes."""
        while self.unused:
            number, episode = self.unused.pop(0)
            case = replayed("", episode, number, self.env)
            if kind in ("cut", "tool"):
                texts = self.misled(number, case, places[0], kind)
            else:
                texts = self.elsewhere(places, episode, same=kind == "both")
            alone = [{i: texts[i]} for i in places if kind in DOUBLE]
            played = self.play(number, case.states[0], texts, *alone)
            if [e.success is False for e in played] == [True, *[kind == "either" for _ in alone]]:
                return places, played[0]
        raise SystemExit(f"{len(self.all)} episodes are too few for {kind} at {places}.")


def stripped(episode, index):
    """Returns an episode without what would show where a text came from."""
    turns = [replace(turn, extras=None) for turn in episode.turns]
    return replace(episode, turns=turns, index=index)


def make(folder, plan, played=PLAYED, seed=0):
    """Writes ``FAMILY.jsonl``, episodes for ``marft blame``, and ``labels.json``, the culprits in the same order."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "labels.json"
    labels = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"success": {}}
    for family in plan:
        with team(family, seed) as player:
            planter = Planter(player, played, seed)
            labels["success"][family] = planter.success
            made = [(kind, *fault) for kind, n in plan[family].items() for fault in planter.faults(kind, n)]
        (folder / f"{family}.jsonl").unlink(missing_ok=True)
        trajectory.write(folder / f"{family}.jsonl", (stripped(e, i) for i, (_, _, e) in enumerate(made)))
        labels[family] = [{"kind": kind, "turns": places} for kind, places, _ in made]
    file.write_text(json.dumps(labels) + "\n", encoding="utf-8")


# Methods ----------------------------------------------------------------------------------------------
#
# A method answers an episode with its turns, the most suspect first, and with two turns that it names together.


def by_order(order):
    """Returns a control that ranks turns by their place."""

    def method(family, episodes, options):
        ranked = [sorted((t.index for t in e.turns), key=lambda i: order * i) for e in episodes]
        return [{"turns": turns, "pair": turns[:2]} for turns in ranked], {}

    return method


def by_blame(family, episodes, options):
    """Ranks turns by blame; two together are the set that flips the outcome, if it has two, else the most blamed."""
    with team(family, options.seed) as player:
        found = blame(episodes, player, failures=len(episodes), by=(), width=options.width)
    assert len(found.episodes) == len(episodes), found.left_out
    ranked = [[t.record.index for t in e.ranked] for e in found.episodes]
    pairs = [e.flips if len(e.flips) > 1 else turns[:2] for e, turns in zip(found.episodes, ranked, strict=True)]
    answers = [{"turns": turns, "pair": list(pair)} for turns, pair in zip(ranked, pairs, strict=True)]
    return answers, {"episodes": found.played, "sampled tokens": found.tokens, "read tokens": found.read}


ASKED = """A team of agents worked on a task one after the other, and failed because of one turn.

Task: {task}

{turns}

Which turn made the team fail? Reply with the number of that turn alone."""


def by_judge(family, episodes, options):
    """Asks a language model for one turn of each episode; a reply without the number of a turn names none."""
    rows, asked, env = [], random.Random(0).sample(range(len(episodes)), min(options.judged, len(episodes))), None
    for i in asked:
        env = env or trajectory.rebuild(episodes[i], trusted=True)
        (messages, _), *_ = trajectory.prompts(episodes[i], env)
        said = [
            f"Turn {t.index}, {t.agent}: {t.text}" + f"\nResult: {t.result}" * bool(t.result) for t in episodes[i].turns
        ]
        rows.append({"problem": ASKED.format(task=messages[-1]["content"], turns="\n".join(said)), "answer": "-"})
    make_env = marft_envs.from_rows(rows, team=["You find the turn that made a team fail."])
    with closing(make_env()) as one:
        (judge,) = one.possible_agents
    engine = json.loads(options.engine) if str(options.engine).startswith("{") else options.engine
    played = marft_algos.evaluate({judge: engine}, env=make_env, episodes=len(rows), max_new_tokens=16)
    answers = [None] * len(episodes)
    for row in played.episodes:
        i = asked[int(row.task_id.rpartition("/")[2]) - 1]
        named = [int(n) for n in re.findall(r"\d+", row.turns[0].text)[:1]]
        answers[i] = {"turns": [n for n in named if n < len(episodes[i].turns)]}
    return answers, {"episodes": len(rows)}


METHODS = {"first": by_order(1), "last": by_order(-1), "blame": by_blame, "judge": by_judge}


def answer(folder, name, families, options):
    """Writes a method's answers: ``METHOD/FAMILY.json``, an answer for each episode, and what they cost."""
    for family in families:
        began = time.process_time()
        answers, cost = METHODS[name](family, list(trajectory.read(folder / f"{family}.jsonl")), options)
        cost = {**cost, "seconds": round(time.process_time() - began, 1)}
        (folder / name).mkdir(exist_ok=True)
        content = {"answers": answers, "cost": cost}
        (folder / name / f"{family}.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
        print(name, family, cost, flush=True)


def found(label, given):
    """Whether an answer names the culprit."""
    if label["kind"] in DOUBLE:
        return sorted(given["pair"]) == label["turns"]
    return bool(given["turns"]) and given["turns"][0] in label["turns"]


def by_chance(label, turns):
    """Returns how often a draw among all turns, or all pairs, names the culprit."""
    return 2 / (turns * (turns - 1)) if label["kind"] in DOUBLE else len(label["turns"]) / turns


def score(folder, names):
    """Returns a table: how often each method found the culprit, by family and kind, with 95 % intervals."""
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    lines = [["family", "kind", "n", "all alike", *names]]
    given = {
        (name, file.stem): json.loads(file.read_text(encoding="utf-8"))["answers"]
        for name in names
        for file in (folder / name).glob("*.json")
    }
    for family in (name for name in labels if name != "success"):
        turns = [len(e.turns) for e in trajectory.read(folder / f"{family}.jsonl")]
        for kind in dict.fromkeys(label["kind"] for label in labels[family]):
            at = [i for i, label in enumerate(labels[family]) if label["kind"] == kind]
            alike = sum(by_chance(labels[family][i], turns[i]) for i in at) / len(at)
            line = [family, kind, str(len(at)), f"{alike:.3f}"]
            for name in names:
                hits = [
                    found(labels[family][i], answer)
                    for i in at
                    if (answer := given.get((name, family), {i: None})[i]) and (kind not in DOUBLE or "pair" in answer)
                ]
                share = exact(sum(hits), len(hits), 0.05)
                line.append(share.score() + f", n = {len(hits)}" * (len(hits) < len(at)) if hits else "–")
            lines.append(line)
    return lines


def pack(folder, file):
    """Packs the data set and all answers, to the same bytes every time."""
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".json", ".jsonl")):
            info = tarfile.TarInfo(f"faults/{path.relative_to(folder)}")
            info.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(info, content)


def main(argv=None):
    """Makes the data set, writes answers, or scores them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("make", "answer", "score", "pack"))
    parser.add_argument("folder", type=Path, help="of the data set")
    parser.add_argument("names", nargs="*", help="methods: a folder of answers each")
    parser.add_argument("--family", choices=tuple(PLAN), help="of all five, this one")
    parser.add_argument("--engine", default="smollm2-135m", help="of the judge, as for marft eval --engines")
    parser.add_argument("--judged", type=int, default=50, help="episodes of a family that the judge reads")
    parser.add_argument("--width", type=float, default=0.15, help="of marft blame")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    families = [options.family] if options.family else [*PLAN]
    if options.do == "make":
        make(options.folder, {family: PLAN[family] for family in families}, seed=options.seed)
    for name in options.names if options.do == "answer" else ():
        answer(options.folder, name, families, options)
    if options.do == "score":
        for line in score(options.folder, options.names):
            print(f"| {' | '.join(line)} |")
    if options.do == "pack":
        pack(options.folder, options.folder.with_suffix(".tar.xz"))


if __name__ == "__main__":
    main()
