"""The native loop, and whether an adapter plays the same: whole episodes of three environments, scripted agents.

An adapter under test gives a function ``play(env, seed, say)``: play one episode of ``env``, reset with this seed,
through the adapter; let ``say(agent, messages)`` speak for every agent; return the rewards that the adapter gave each agent
over the episode, or None where its rewards are others (by turn, once for the team) and its own test checks them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import marft_envs
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import Episode
from marft_envs.records.trajectory import to_dict

Say = Callable[[str, Sequence[Mapping[str, str]]], str]
"""``(agent, chat messages) -> reply``: an agent is a function of what it sees."""
Play = Callable[[FlexEnv, int, Say], Mapping[str, float] | None]

CASES: dict[str, dict[str, Any]] = {
    "math-dual-v0": {"levels": [0]},
    "route-v0": {},  # D is dynamic: the orchestrator's words name who acts
    "math-debate-v0": {"levels": [0]},  # three act in parallel, then a judge
}
EPISODES = 100


def digest(*parts: str) -> int:
    """A number that depends on these texts only, on every machine."""
    return zlib.crc32("\x00".join(parts).encode("utf-8", "replace"))


class Script:
    """Agents that are right in some states and wrong, or beside the format, in others; all by what they see."""

    def __init__(self, env: FlexEnv, seeds: Sequence[int]) -> None:
        self.known: dict[str, str] = {}
        if hasattr(env.unwrapped.task, "gold"):
            for seed in seeds:
                env.reset(seed=seed)
                self.known[env.unwrapped.task.observe(env.possible_agents[0])] = env.unwrapped.task.gold()

    def __call__(self, agent: str, messages: Sequence[Mapping[str, str]]) -> str:
        seen = messages[-1]["content"]
        number = digest(agent, *(f"{m['role']}:{m['content']}" for m in messages))
        if self.known:
            gold = self.known[seen.partition("\n\n[")[0]]
            boxed = (gold, gold, str(number % 7), "")[number % 4]
            return f"“{agent}” has {seen.count('[')} notes:\n$x^2$ \\boxed{{{boxed}}}" if boxed else "I can't say."
        colours = ("red", "blue", "green", "gold")
        word = seen.partition("\n")[0].split()[-1]
        if word in colours:
            return (str(colours.index(word)), str(colours.index(word)), "2", "nobody")[number % 4]
        return word if word.isdigit() and number % 4 else "1"


BOXED = [rf"\boxed{{{n}}}" for n in (6, 32, 18, 10, 90, 16)]  # common answers, so that some choices are right
CANDIDATES: dict[str, dict[str, list[str]]] = {
    "math-dual-v0": {"reasoner": ["add", "x²"], "actor": BOXED},
    "route-v0": {"orchestrator": list("0123"), "expert": [*"0123", "hm"]},
    "math-debate-v0": {"solver": ["1", "2", "[judge]"], "judge": BOXED},
}
"""What agents of numeric libraries may say, by role."""


def choice(agent: str, end: str, size: int) -> int:
    """A scripted agent of a numeric library: the index of its reply is a function of the text it sees the end of."""
    return digest(agent, end) % size


class Chooser:
    """The same agents in the native loop: they read the end of their messages, and say a candidate."""

    def __init__(self, id: str, length: int = 64) -> None:
        self.length, self.candidates = length, CANDIDATES[id]

    def __call__(self, agent: str, messages: Sequence[Mapping[str, str]]) -> str:
        replies = self.candidates[agent.rpartition("_")[0]]
        text = "\n\n".join(m["content"] for m in messages if m["role"] != "system")
        end = text.encode()[-self.length :].decode("utf-8", "replace")
        return replies[choice(agent, end, len(replies))]


def native(env: FlexEnv, seed: int, say: Say) -> dict[str, float]:
    """One episode in the native loop; returns what PettingZoo's rewards were in total, by agent."""
    env.reset(seed=seed)
    paid = dict.fromkeys(env.possible_agents, 0.0)
    while not env.done:
        for agent in env.ready_agents:
            text = say(agent, env.messages(agent))
            env.select(agent)
            env.step(text)
        for agent, reward in env.rewards.items():
            paid[agent] += reward
    return paid


def record(episode: Episode) -> dict[str, Any]:
    """What two plays of one episode share: transcript, who saw what, D, the reward channels, the ending."""
    found = to_dict(episode)
    for turn in found["turns"]:
        turn.pop("extras")  # what a driver attached
    for name in ("index", "env_kwargs", "env_id"):
        found.pop(name)
    return found


def expected(id: str, seeds: Sequence[int], say: Say | None = None) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Records and PettingZoo's rewards of the native loop, one pair per seed (by default of a :class:`Script`)."""
    env = marft_envs.make(id, **CASES[id])
    script = Script(env, seeds) if say is None else say
    played = []
    for seed in seeds:
        paid = native(env, seed, script)
        played.append((record(env.unwrapped.episode), paid))
    env.close()
    return played


def assert_same(id: str, play: Play, episodes: int = EPISODES, say: Say | None = None) -> None:
    """Plays whole episodes natively and through an adapter, and asserts that records and rewards are equal.

    Args:
        id: One of :data:`CASES`.
        play: The adapter's loop over one episode.
        episodes: How many.
        say: Who speaks, in both; None: a :class:`Script`.
    """
    seeds = range(episodes)
    env = marft_envs.make(id, **CASES[id])
    script = Script(env, seeds) if say is None else say
    wanted = expected(id, seeds, script)
    scores = {sum(layer["team_reward"] for layer in found["layers"]) for found, _ in wanted}
    assert len(scores) > 1, "a script that always earns the same shows nothing"
    for seed, (found, paid) in zip(seeds, wanted, strict=True):
        got = play(env, seed, script)
        assert env.unwrapped.done, f"seed {seed}: the adapter stopped before the episode's end"
        assert record(env.unwrapped.episode) == found, f"seed {seed}"
        if got is not None:
            assert {agent: got.get(agent, 0.0) for agent in paid} == paid, f"seed {seed}"
    env.close()
