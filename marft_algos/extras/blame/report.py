"""What blame found, and how it is said: a sentence, a table of agents, JSON, and episodes for the viewer."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marft_algos.extras.blame.chances import UNKNOWN
from marft_algos.runs.intervals import Interval, paired
from marft_algos.terminal import aligned
from marft_envs.core.types import Episode, TurnRecord
from marft_envs.records import trajectory

_ORDINALS = dict(enumerate(["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"], 1))


@dataclass(frozen=True, slots=True)
class Replacement:
    """Something else in a turn's place, and what came of it."""

    by: str
    """``expert``, ``silence``, ``policy NAME``, or ``cut to AGENT``: that agent does not see the turn."""
    chance: Interval
    """Of success: P(success | earlier layers, the replacement); the rest is played on."""
    text: str = ""
    """What stands there, where that is known."""


@dataclass(frozen=True, slots=True)
class TurnBlame:
    """One turn of a failed episode."""

    record: TurnRecord
    """Its agent, text and index, as recorded."""
    nth: int
    """Which of its agent's turns it is, from 1."""
    before: Interval
    """Chance of success when it is drawn anew: V of the earlier layers."""
    after: Interval
    """Chance of success when it is kept: V of the earlier layers and this turn."""
    blame: Interval
    """``before`` − ``after``."""
    replacements: tuple[Replacement, ...] = ()


@dataclass(frozen=True, slots=True)
class EpisodeBlame:
    """One failed episode."""

    name: str
    """Task, and where it was recorded."""
    episode: Episode
    turns: tuple[TurnBlame, ...]
    """Those that the team played, in order; what wrappers play belongs to the environment."""
    flips: tuple[int, ...] = ()
    """The smallest set of turns that, drawn anew, restores ``BlameSettings.share`` of the chance at the start; other
    turns keep their words where their agents are shown the same. Empty: no set that was tried."""
    flipped: Interval = UNKNOWN
    """Chance of success when this set is drawn anew."""
    hopeless: int | None = None
    """The turn from which success was out of reach: after it and all later turns the chance is below
    ``BlameSettings.hopeless``. None: from the start."""

    @property
    def culprit(self) -> TurnBlame | None:
        """Returns the turn with the largest blame, if its interval is above 0; None: no turn is shown to be."""
        worst = self.ranked[0]
        return worst if worst.blame.low > 0 else None

    @property
    def ranked(self) -> list[TurnBlame]:
        """Returns the turns, the most blamed first; of equals the earlier one."""
        return sorted(self.turns, key=lambda turn: -turn.blame.mean)


@dataclass(frozen=True, slots=True)
class Blame:
    """What failed episodes turn with."""

    episodes: tuple[EpisodeBlame, ...]
    failed: int
    """Failures that there are, those that were not looked at among them."""
    left_out: Mapping[str, int]
    """Why failures could not be looked at -> how many."""
    played: int
    """Episodes that were played on."""
    tokens: int
    """Sampled for it."""
    read: int
    """Of the prompts that they were sampled after."""
    spent: bool
    """Whether the budget ended it before all was known."""

    @property
    def sentence(self) -> str:
        """Returns what the failures turn with, a clause for each message that is to blame."""
        counts = Counter(map(_cause, self.episodes)).items()
        clauses = [f"{n} with {name}" for name, n in sorted(counts, key=lambda c: (not c[0].startswith("a "), -c[1]))]
        return f"of {len(self.episodes)} failures " + "; ".join(clauses).replace(" with", " turn with", 1)

    def summary(self) -> list[str]:
        """Returns what is said below the table."""
        sizes = [len(e.flips) for e in self.episodes]
        several = sum(size > 1 for size in sizes)
        flips = f"drawn anew, one turn flips {sizes.count(1)}, several together {several}, none {sizes.count(0)}"
        spent = f"spent:     {self.tokens:,} tokens sampled, {self.read:,} read, {self.played:,} episodes played on"
        ended = "the token budget ended it: what nobody looked at is unknown, and other intervals are wider"
        return [self.sentence, flips, spent, *[ended] * self.spent]

    def table(self) -> list[str]:
        """Returns a line for each agent: its blame, and the chance of success with something else in its turns' place.

        Blame is the sum over the agent's turns in an episode, in the mean over episodes with its 95 % interval over
        these; chances are means over turns.
        """
        every = [(e, t) for e in self.episodes for t in e.turns]
        kinds = list(dict.fromkeys(r.by.split()[0] for _, t in every for r in t.replacements))
        rows = [["agent", "turns", "blame", "as it is", "anew", *kinds, "out of reach from"]]
        for agent in dict.fromkeys(t.record.agent for _, t in every):
            own = [t for _, t in every if t.record.agent == agent]
            each = [[t.blame for t in e.turns if t.record.agent == agent] for e in self.episodes]
            sums = [sum(blame.mean for blame in blames) for blames in each if all(blame.n for blame in blames)]
            total = paired([0.0] * len(sums), sums).points("", 1) if sums else "–"
            others = [[r.chance for t in own for r in t.replacements if r.by.startswith(kind)] for kind in kinds]
            several = ([t.after for t in own], [t.before for t in own], *others)
            known = ([c.mean for c in some if c.n] for some in several)
            chances = [f"{statistics.mean(means):.3f}" if means else "–" for means in known]
            lost = sum(t.record.index == e.hopeless for e, t in every if t.record.agent == agent and t.before.n)
            rows.append([agent, str(len(own)), total, *chances, str(lost)])
        return aligned(rows)

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as plain values, a chance that nobody has looked at as None; records are ``rows``."""
        text = json.dumps({"sentence": self.sentence, **dataclasses.asdict(self)}, default=str)
        content: dict[str, Any] = json.loads(text, parse_constant=lambda name: None)
        for e, plain in zip(self.episodes, content["episodes"], strict=True):
            plain |= {key: plain["episode"][key] for key in ("task_id", "seed", "index")}
            plain["culprit"] = e.culprit and e.culprit.record.index
            del plain["episode"]
        return content

    def rows(self) -> list[dict[str, Any]]:
        """Returns the records of the episodes, with what was found in their ``info`` and in the ``extras`` of turns."""
        return [_row(e) for e in self.episodes]


def _cause(e: EpisodeBlame) -> str:
    no = "none" if e.turns[0].before.n else "an unknown message"
    return f"a better {_message(e.culprit)}" if e.culprit else no


def _message(turn: TurnBlame) -> str:
    return f"{_ORDINALS.get(turn.nth, f'{turn.nth}th')} message of {turn.record.agent}"


def _row(e: EpisodeBlame) -> dict[str, Any]:
    record = trajectory.to_dict(e.episode)
    said = [_message(e.culprit) if e.culprit else "no turn"]
    said += [f"turns {', '.join(map(str, e.flips))} drawn anew: {e.flipped.score()}"] * bool(e.flips)
    said += ["out of reach " + ("before any turn" if e.hopeless is None else f"from turn {e.hopeless}")]
    record["info"] = {**record["info"], "blame": "; ".join(said)}
    for t in e.turns:
        others = "".join(f", {r.by} {r.chance.mean:.3f}" for r in t.replacements if r.chance.n)
        words = f"blame {t.blame.points('', 1)}: {t.before.mean:.3f} anew, {t.after.mean:.3f} as it is{others}"
        turn = record["turns"][t.record.index]
        turn["extras"] = {**(turn["extras"] or {}), "blame": words}
    return record
