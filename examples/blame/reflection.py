"""Reflective prompt search by blame against round robin: how much is played until no profile is at fault?

    python examples/blame/reflection.py --agents 4 8 16 --seeds 5

A team passes a digit on, agent by agent, and the last one has to say it. Some agents have a faulty profile. Agents are
functions of their profile: with ``RIGHT`` an agent repeats the digit that it is shown in 19 of 20 turns, with another
one in 3 of 10; else it says any digit. The proposer is a function as well. If the profile that it is asked about is at
fault, it writes the right one with probability 1/2; otherwise it adds a word that changes nothing. So this measures
which agent is asked about, and not how well a language model reflects.

``gepa`` asks about the next agent in turn, or with the credit rule ``blame`` about the one whose turns cost the most in
the parent's failures. A search ends when the best candidate has no faulty profile. What is counted: episodes that were
played, 16 an iteration; turns that were sampled in them; and turns that were sampled for blame.

Goals, stated before the first run (4 agents, one faulty, seeds 0 to 4): by blame at most half of the episodes of round
robin; and at most half of the sampled turns, those for blame included.
"""

import argparse
import random
import re
from statistics import mean

import numpy as np

from marft_algos.algorithms.gepa import GEPA, GEPAConfig
from marft_algos.engines import ScriptedEngine
from marft_algos.models.chat import Renderer
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.curriculum import with_profiles
from marft_algos.rollout.episodes import Prompts
from marft_algos.rollout.replay import Replayer
from marft_algos.types import Estimates, SamplingParams
from marft_envs import from_rows
from marft_envs.core.vector import VectorEnv

RIGHT, FAULTY = "Repeat the digit that you read last.", "Say a digit."
STARTS = 8
"""Starts of an iteration, each played by parent and child."""
MOST = 400  # iterations of a search
draws = random.Random()
sampled = 0


def reply(request):
    """Plays an agent, as its profile says."""
    global sampled
    sampled, rng = sampled + 1, random.Random(request.seed)
    right = RIGHT in request.messages[0]["content"]
    digits = re.findall(r"\d", request.messages[-1]["content"])
    return digits[-1] if rng.random() < (0.95 if right else 0.3) else str(rng.randrange(10))


def propose(agent, profile, episodes):
    """Writes another profile."""
    return RIGHT if RIGHT not in profile and draws.random() < 0.5 else f"{profile} Please."


def search(credit, agents, faulty, seed):
    """Returns episodes, turns sampled in them, and turns sampled for credit, until no profile is at fault."""
    global sampled
    places = random.Random(seed).sample(range(agents), faulty)
    draws.seed(seed)
    rows = [{"problem": f"The digit is {i}.", "answer": str(i)} for i in range(10)]
    make = from_rows(rows, reward="em", team=[FAULTY if i in places else RIGHT for i in range(agents)])
    names = make().possible_agents
    place = Renderer({}, {name: name for name in names}), ScriptedEngine({"*": reply}), SamplingParams(1)
    algorithm = GEPA(GEPAConfig(proposer=f"{__name__}:propose", credit=credit))
    algorithm.seed, episodes, turns, replayed, sampled = seed, 0, 0, 0, 0
    replayer = Replayer(*place, seed=seed)
    collector = Collector(VectorEnv([make] * STARTS), *place, seed=seed, states=replayer.states)
    for iteration in range(MOST):
        starts = [random.Random(f"{seed} {iteration} {i}").randrange(1 << 31) for i in range(STARTS)]
        prompts = Prompts(starts, [{} for _ in starts]).repeated(2)
        prompts = with_profiles(prompts, [algorithm.profiles(0), algorithm.profiles(1)])
        kept = {"iteration": iteration, "group_size": 2, "keep": algorithm.rule.keep}
        played = collector.collect(prompts.seeds, prompts.options, **kept)
        episodes, turns, sampled = episodes + len(played), turns + sampled, 0
        played = algorithm.rule.replay(played, replayer, iteration)
        replayed, sampled = replayed + sampled, 0
        replayer.forget()
        algorithm.credit(played, Estimates())
        best = algorithm.profiles(None)
        if all(RIGHT in best.get(names[i], FAULTY) for i in places):
            return episodes, turns, replayed
    raise SystemExit(f"{MOST} iterations are too few.")


def main():
    """Prints a line for each team."""
    parser = argparse.ArgumentParser(description="gepa by blame against round robin")
    parser.add_argument("--agents", type=int, nargs="+", default=[4], help="sizes of the team")
    parser.add_argument("--faulty", type=int, nargs="+", default=[1], help="agents with a faulty profile")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--failures", type=int, default=4, help="that are replayed in an iteration")
    parser.add_argument("--samples", type=int, default=2, help="continuations of each state in them")
    asked = parser.parse_args()
    blame = {"rule": "blame", "failures": asked.failures, "samples": asked.samples}
    print("agents  faulty  rule         episodes  turns  for blame  ratio of episodes     ratio of all turns")
    for agents in asked.agents:
        for faulty in asked.faulty:
            found = {}
            for name, credit in (("round robin", "broadcast"), ("blame", blame)):
                found[name] = [search(credit, agents, faulty, seed) for seed in range(asked.seeds)]
                episodes, turns, replayed = (mean(column) for column in zip(*found[name], strict=True))
                line = f"{agents:<6}  {faulty:<6}  {name:<11}  {episodes:<8.0f}  {turns:<5.0f}  {replayed:<9.0f}"
                print(line + ("  " + "  ".join(ratios(found)) if name == "blame" else ""), flush=True)


def ratios(found):
    """Returns what is played by blame for one of round robin, with a 95 % interval: of episodes, and of all turns."""
    for columns in ([0], [1, 2]):
        robin, blame = (np.array(searches, float)[:, columns].sum(1) for searches in found.values())
        drawn = np.random.default_rng(0).integers(len(robin), size=(10_000, len(robin)))  # seeds, both sides together
        low, high = np.quantile(blame[drawn].mean(1) / robin[drawn].mean(1), [0.025, 0.975])
        yield f"{blame.mean() / robin.mean():.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
