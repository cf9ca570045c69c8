"""Numbers about how a team worked together: pure functions of an :class:`Episode`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from marft_envs.types import Episode, TurnRecord


def turns_per_agent(episode: Episode) -> dict[str, int]:
    """Returns agent -> number of turns, agents that never acted included."""
    counts = Counter(turn.agent for turn in episode.turns)
    return {agent.name: counts[agent.name] for agent in episode.agents}


def message_lengths(episode: Episode) -> dict[str, float]:
    """Returns agent -> mean characters of its messages, for the agents that acted."""
    lengths: dict[str, list[int]] = {}
    for turn in episode.turns:
        lengths.setdefault(turn.agent, []).append(len(turn.text))
    return {agent: sum(values) / len(values) for agent, values in lengths.items()}


def duplicate_share(episode: Episode) -> float:
    """Returns the share of turns in which an agent says what it has said before, blanks and case apart; in [0, 1]."""
    said: set[tuple[str, str]] = set()
    repeated = 0
    for turn in episode.turns:
        key = (turn.agent, " ".join(turn.text.lower().split()))
        repeated += key in said
        said.add(key)
    return repeated / max(len(episode.turns), 1)


def copy_share(episode: Episode) -> float:
    """Returns the share of turns that only repeat a message they were shown (a relay that adds nothing); in [0, 1]."""
    texts = [" ".join(turn.text.lower().split()) for turn in episode.turns]
    copied = sum(any(texts[i] == texts[turn.index] for i in turn.sees) for turn in episode.turns)
    return copied / max(len(texts), 1)


def handoffs(episode: Episode) -> list[list[tuple[str, str]]]:
    """Returns per round the ``(from, to)`` of consecutive layers in which one agent alone acts, another each time."""
    rounds: list[list[tuple[str, str]]] = []
    for number in range(len(episode.rounds)):
        layers = [layer.turns for layer in episode.layers if layer.round == number]
        alone = [(a[0], b[0]) for a, b in pairwise(layers) if len(a) == len(b) == 1]
        agents = [(episode.turns[a].agent, episode.turns[b].agent) for a, b in alone]
        rounds.append([(a, b) for a, b in agents if a != b])
    return rounds


def handoff_loops(episode: Episode) -> int:
    """Returns how often the work went round in circles: repeats of a handoff within one round."""
    return sum(len(pairs) - len(set(pairs)) for pairs in handoffs(episode))


def error_share(episode: Episode, is_error: Callable[[TurnRecord], bool]) -> float:
    """Returns the share of turns that ``is_error`` calls wrong (tool errors, unparsable replies); in [0, 1]."""
    return sum(map(is_error, episode.turns)) / max(len(episode.turns), 1)


def step_efficiency(episode: Episode, fewest: int) -> float:
    """Returns how close a success came to the ``fewest`` turns that suffice: 1 at best, 0 for a failure."""
    if not episode.success or not episode.turns:
        return 0.0
    return min(1.0, fewest / len(episode.turns))


def unused_share(episode: Episode) -> float:
    """Returns the share of turns that no later turn saw, those of the last layer apart; in [0, 1]."""
    if len(episode.layers) < 2:
        return 0.0
    seen = {i for turn in episode.turns for i in turn.sees}
    earlier = [turn.index for turn in episode.turns if turn.layer < len(episode.layers) - 1]
    return sum(i not in seen for i in earlier) / len(earlier)


def summary(episode: Episode) -> dict[str, float]:
    """Returns every number above that needs no further argument, under flat names."""
    return {
        "turns": float(len(episode.turns)),
        "rounds": float(len(episode.rounds)),
        "invalid": float(episode.invalid),
        "duplicate_share": duplicate_share(episode),
        "copy_share": copy_share(episode),
        "handoff_loops": float(handoff_loops(episode)),
        "unused_share": unused_share(episode),
        **{f"turns/{agent}": float(count) for agent, count in turns_per_agent(episode).items()},
        **{f"length/{agent}": length for agent, length in message_lengths(episode).items()},
    }
