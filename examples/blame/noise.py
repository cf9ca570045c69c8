"""How noisy is an update by blame? Against other credit rules, on games, at as many sampled turns.

    python examples/blame/noise.py --env relay-v0 signal-v0 xor-v0

Policies are tables of logits, drawn from [0, 3] for every reply of ``sample_actions`` in every state. An episode's
update is Σ over turns of credit · ∇ log π, and each rule is unbiased, so the updates have one mean. Noise is the root
mean square distance of a batch's update from this mean, by its length. A batch has as many episodes as can be played
with 1,000 sampled turns, those of replays included: a rule that costs more turns has smaller batches.
"""

import argparse
import math
import random
from collections import defaultdict

import numpy as np

import marft_envs
from marft_algos import credit
from marft_algos.engines import ScriptedEngine
from marft_algos.models.chat import Renderer
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.replay import Replayer
from marft_algos.types import SamplingParams
from marft_envs.core.vector import VectorEnv

RULES = {"broadcast": {}, "counterfactual": {"samples": 4}, "blame": {"samples": 4}}
TURNS = 1000


class Words:
    """Makes a token of every text."""

    eos_token_id = 1

    def encode(self, text, **options):
        return [0]


class Table(Renderer):
    """A team all of whose turns are learnt from."""

    def policy_of(self, agent):
        return agent

    def trains(self, policy):
        return True


def table(agent, messages, replies):
    """Returns the probability of every reply in a state."""
    drawn = [math.exp(3 * random.Random(f"{agent} {messages} {text}").random()) for text in replies]
    return [weight / sum(drawn) for weight in drawn]


def updates(env_id, name, episodes):
    """Returns the update of each episode, a row each, and how many turns were sampled an episode."""
    env, sampled = marft_envs.make(env_id), []
    env.reset(seed=0)
    replies = {agent: sorted(set(env.unwrapped.task.sample_actions(agent))) for agent in env.possible_agents}

    def reply(request):
        sampled.append(request.agent)
        rng, own = random.Random(f"{request.seed} {request.messages}"), replies[request.agent]
        return rng.choices(own, table(request.agent, request.messages, own))[0]

    place = Table({}, {}), ScriptedEngine({"*": reply}, Words()), SamplingParams(1)
    rule, replayer = credit.get({"rule": name, **RULES[name]}), Replayer(*place)
    collector = Collector(VectorEnv([lambda: marft_envs.make(env_id)] * 64), *place, states=replayer.states)
    played = collector.collect(range(episodes), keep=rule.keep)
    played = rule.replay(played, replayer, 0)
    centre = np.mean([d.score for d in played]) if name == "broadcast" else 0.0
    places, rows = defaultdict(lambda: len(places)), []
    for d in played:
        credits, rows = d.replayed or [d.score - centre] * len(d.transitions), [*rows, defaultdict(float)]
        for t, value in zip(d.transitions, credits, strict=True):
            state = t.agent, str(t.request.messages)
            own = replies[t.agent]
            for text, share in zip(own, table(t.agent, t.request.messages, own), strict=True):
                rows[-1][places[state, text]] += value * ((text == t.turn.text) - share)
    found = np.zeros((episodes, len(places)))
    for i, row in enumerate(rows):
        found[i, list(row)] = list(row.values())
    return found, len(sampled) / episodes


def main():
    """Prints a line for each game and rule."""
    parser = argparse.ArgumentParser(description="noise of updates by credit rule")
    parser.add_argument("--env", nargs="+", default=["signal-v0"])
    parser.add_argument("--episodes", type=int, default=300)
    asked = parser.parse_args()
    print("game       rule            turns an episode  noise")
    for env_id in asked.env:
        for name in RULES:
            found, turns = updates(env_id, name, asked.episodes)
            variance = found.var(0, ddof=1).sum()
            length2 = (found.mean(0) ** 2).sum() - variance / asked.episodes  # unbiased
            noise = np.sqrt(variance * turns / TURNS / max(length2, 1e-12))
            print(f"{env_id:<9}  {name:<14}  {turns:<16.1f}  {noise:.3f}", flush=True)


if __name__ == "__main__":
    main()
