"""How fast a run is, and who waits for whom, read from its metrics.jsonl: for ``marft top`` and the live panel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

Line = Mapping[str, Any]


@dataclass(slots=True)
class Player:
    """What a rank or worker has played of what was learnt from."""

    name: str
    chunks: float = 0.0
    episodes: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Pace:
    """Some iterations of a run, added up. Seconds are those of rank 0's clock, without evaluations."""

    iterations: int
    seconds: float
    playing: float
    """Until the episodes were there."""
    learning: float
    waiting: float
    """Of ``playing``: for episodes that workers play."""
    tokens: float
    """Of replies, whatever became of them."""
    ranks: int
    """That learn, at the end."""
    workers: int
    """Ready at the end; 0: the ranks play themselves."""
    among: Sequence[float]
    """Rank by rank: in calls that all ranks make, waiting for the others and sending."""
    players: Sequence[Player]
    publish_seconds: float
    publish_bytes: float
    restarts: float
    """Of workers."""
    redone: float
    lost: float
    rank_restarts: int
    """Since the launcher started."""
    rank_restart_seconds: float
    """Between the last line before, and the ranks being ready to go on."""
    behind: Mapping[int, float] = field(default_factory=dict)
    """Updates -> share of the turns that were so many updates old."""

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Pace | None:
        """Adds up the lines of iterations; None: there are none. What a line lacks, or is no number, counts as 0."""
        known = [line for line in lines if "time_update" in line]
        if not known:
            return None

        def total(key: str) -> float:
            return sum(number(line, key) for line in known)

        seconds = max(total("time_total") - total("time_eval"), 1e-9)
        last = known[-1]
        ages = {int(key.split("/")[1]) for line in known for key in line if _is_share(key)}
        return cls(
            iterations=len(known),
            seconds=seconds,
            playing=total("time_rollout"),
            learning=total("time_update"),
            waiting=total("time_wait") if number(last, "engine/workers") else 0.0,
            tokens=sum(number(line, "tokens_played") or number(line, "tokens") for line in known),
            ranks=max(int(number(last, "engine/ranks")), 1),
            workers=int(number(last, "engine/workers")),
            among=_among(known),
            players=_players(known),
            publish_seconds=total("time_publish"),
            publish_bytes=total("engine/publish_bytes"),
            restarts=total("engine/restarts"),
            redone=total("engine/chunks_redone"),
            lost=total("engine/chunks_lost"),
            rank_restarts=int(number(last, "engine/rank_restarts")),
            rank_restart_seconds=total("time_restart"),
            behind={age: mean(number(line, f"behind/{age}/share") for line in known) for age in sorted(ages)},
        )

    @property
    def learners_wait(self) -> float:
        """Returns the share of the time in which who learns waits for episodes that others play (``wait/update``)."""
        return self.waiting / self.seconds

    @property
    def players_wait(self) -> float:
        """Returns the share of the workers' time in which they play nothing (``wait/rollout``)."""
        if not self.workers:
            return 0.0
        return max(1 - sum(player.seconds for player in self.players) / (self.workers * self.seconds), 0.0)

    @property
    def ranks_wait(self) -> float:
        """Returns the share of the ranks' time that they spend waiting for each other, and sending."""
        return mean(self.among) / self.seconds if self.among else 0.0

    @property
    def rate(self) -> float:
        """Returns tokens of replies a second, of the whole run."""
        return self.tokens / self.seconds

    def brief(self) -> str:
        """Returns the pace in a line: of several processes, who waits, and what was lost."""
        words = [f"{self.rate:,.0f} tokens/s"]
        if self.workers:
            words += [f"{self.workers} workers", f"learners wait {self.learners_wait:.0%}"]
            words += [f"workers {self.players_wait:.0%}"]
        if self.ranks > 1:
            words += [f"{self.ranks} ranks", f"wait for each other {self.ranks_wait:.0%}"]
        counts = {"replaced": self.restarts, "redone": self.redone, "lost": self.lost, "restarts": self.rank_restarts}
        return " · ".join([*words, *(f"{what} {count:.0f}" for what, count in counts.items() if count)])


def number(line: Line, key: str) -> float:
    """Returns a number of a line; 0 where it is missing or something else: who wrote the file is not known."""
    value = line.get(key, 0.0)
    return float(value) if isinstance(value, int | float) and value == value else 0.0


def _is_share(key: str) -> bool:
    words = key.split("/")
    return len(words) == 3 and words[0] == "behind" and words[1].isdecimal() and words[2] == "share"


def _among(lines: Sequence[Line]) -> list[float]:
    """Adds up rank by rank, as many as the last line has."""
    rows = [row for line in lines if isinstance(row := line.get("time_ranks"), list)]
    count = len(rows[-1]) if rows else 0
    return [sum(x for row in rows if isinstance(x := dict(enumerate(row)).get(i), int | float)) for i in range(count)]


def _players(lines: Sequence[Line]) -> list[Player]:
    """Adds up name by name."""
    found: defaultdict[str, Player] = defaultdict(lambda: Player(""))
    for line in lines:
        rows = line.get("time_players")
        for row in rows if isinstance(rows, list) else ():
            if not isinstance(row, Mapping):
                continue
            name = str(row.get("name", ""))
            player = found[name]
            player.name = name
            for key in ("chunks", "episodes", "tokens", "seconds"):
                setattr(player, key, getattr(player, key) + number(row, key))
    return list(found.values())
