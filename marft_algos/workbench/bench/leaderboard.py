"""``marft bench leaderboard``: packed benchmarks, checked, and ranked where their settings are the same.

Everything that a run's settings say separates rankings, except what is named in ``FREE``: what somebody who has a
better algorithm may choose, and what says where a run is made. A setting that comes later separates, too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marft_algos.config.settings import TrainConfig
from marft_algos.runs.folder import PanelFacts
from marft_algos.runs.intervals import Interval
from marft_algos.workbench.bench import evidence, packed, statistics
from marft_algos.workbench.bench.evidence import Evidence, Run
from marft_algos.workbench.bench.folder import SCORES
from marft_algos.workbench.bench.statistics import MIN_SEEDS, Outcomes
from marft_algos.workbench.bench.tables import complete
from marft_envs.errors import ConfigError

FREE = frozenset(
    {
        *("algo", "algorithm", "iterations", "episodes_per_iteration", "preset", "seed"),  # the entry's choice
        *(
            "num_envs",
            "engine_batch",
            "overlap",
            "decode_graph",
            "device",
            "threads",
            "lanes",
            "chunk",
            "shard",
        ),  # pace
        *("rollouts", "workers", "max_workers", "worker_gpus", "worker_vllm", "worker_timeout", "worker_start"),
        *("retries", "collective_timeout", "check_memory", "fit_memory", "max_lost", "on_task_error"),
        *("eval_every", "save_every", "keep", "record_episodes", "record_every", "credit_diagnostics"),  # what is kept
        *("loggers", "runs_dir", "name"),
    }
)
"""Settings that do not separate rankings."""
LEVEL = 0.05
"""Of all pairs of a ranking together: how often it may separate any two that are alike."""


@dataclass(frozen=True)
class Entry:
    """An algorithm's runs in one setting, out of one packed file, or out of several that hold the same ones."""

    algorithm: str
    """As its author calls it, with the credit rule where one was chosen."""
    algo: str
    """The algorithm that its settings name."""
    packs: tuple[str, ...]
    runs: tuple[Run, ...]
    """By seed."""
    planned: int
    """Seeds of its grid; those that failed are not packed."""
    rates: int
    """Learning rates that its sweep tried; 0: the file holds no sweep."""

    @cached_property
    def outcomes(self) -> dict[int, NDArray[np.float64]]:
        """Seed -> outcomes [P]; nan where an outage took the episode."""
        return {run.row.seed: np.array(run.outcomes, dtype=np.float64) for run in self.runs}

    @cached_property
    def kept(self) -> Outcomes:
        """Outcomes [S, P] on the problems that no outage took from any seed."""
        return complete(np.array(list(self.outcomes.values())))[0]

    @cached_property
    def score(self) -> Interval | None:
        """The mean of seeds, with its interval; None where outages have left no problem."""
        return statistics.estimate([self.kept]) if self.kept.size else None

    @property
    def ranked(self) -> bool:
        """Whether there are seeds and problems enough for an interval."""
        return bool(self.kept.size) and statistics.enough([self.kept])

    @property
    def tokens(self) -> float:
        """Tokens sampled for training, mean of seeds."""
        return float(np.mean([run.tokens for run in self.runs]))

    @property
    def processed(self) -> float:
        """The same with prompts; nan where a run was made before this was counted."""
        return float(np.mean([np.nan if run.processed is None else run.processed for run in self.runs]))


@dataclass(frozen=True)
class Place:
    """An entry in a ranking."""

    entry: Entry
    ranks: tuple[int, int] | None
    """One more than are distinguishably better, and the last one that it may have; None: too few seeds to be ranked."""
    difference: Interval | None
    """To the first, paired; None for the first itself."""
    distinct: bool
    """Whether it is distinguishable from the first."""


@dataclass(frozen=True)
class Setting:
    """What was done alike by everybody in one ranking, and the ranking."""

    id: str
    """Hash of the settings, of the problems, and of the version since which scores are comparable."""
    env: str
    settings: dict[str, Any]
    facts: PanelFacts
    places: tuple[Place, ...]
    """Best mean first; those with too few seeds behind."""

    @property
    def packs(self) -> tuple[str, ...]:
        """Names of the packed files whose entries are here."""
        return tuple(dict.fromkeys(name for place in self.places for name in place.entry.packs))

    @property
    def changed(self) -> dict[str, Any]:
        """Settings that are not their defaults, and the budget."""
        default = _plain(TrainConfig().table())
        shown = {k: v for k, v in self.settings.items() if k != "env" and v != default.get(k)}
        return {"token_budget": self.settings.get("token_budget")} | shown


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps({k: v for k, v in table.items() if k not in FREE}))
    return plain


def settings(config: TrainConfig) -> dict[str, Any]:
    """Returns what separates rankings of a run's settings, as JSON has it.

    The batch is an entry's choice, but not the number of demonstrations that all begin with.
    """
    began = config.demonstrated if config.warm_start else None
    return _plain(dataclasses.replace(config, warm_episodes=began).table())


def read(paths: Sequence[Path]) -> list[Evidence]:
    """Reads and checks packed files; see :func:`marft_algos.workbench.bench.packed.files` for what a folder stands for.

    Raises:
        MarftError: One is damaged, or says what does not follow from its outcomes. Nothing is ranked then.
    """
    out: list[Evidence] = []
    for path in packed.files(list(paths)):
        with packed.unpacked(path) as opened:
            checked = evidence.check(opened)
        if twice := [other for other in out if other.packed.name == checked.packed.name]:
            raise ConfigError(
                f"'{twice[0].packed.file}' and '{path}' have one name: rows could not be told apart. Rename one."
            )
        out.append(checked)
    return out


def rank(packs: Iterable[Evidence]) -> list[Setting]:
    """Puts the entries of packed benchmarks into rankings, one for each setting; where most can be compared, first."""
    found: dict[str, tuple[Run, list[Entry]]] = {}
    for pack in packs:
        for name, runs in _grouped(pack).items():
            first = runs[0]
            found.setdefault(name[0], (first, []))[1].append(_entry(pack, runs))
    out = []
    for identity, (run, entries) in found.items():
        places = tuple(placed(_merged(entries)))
        out.append(Setting(identity, run.config.env, settings(run.config), run.facts, places))
    most = {setting.env: max(len(s.places) for s in out if s.env == setting.env) for setting in out}
    return sorted(out, key=lambda s: (-most[s.env], s.env, -len(s.places), s.id))


def _grouped(pack: Evidence) -> dict[tuple[str, str, str], list[Run]]:
    """Runs by setting, algorithm and credit rule; a run that stands in a grid twice counts once."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    ids: dict[str, str] = {}
    for run in pack.runs:
        text = json.dumps([SCORES, settings(run.config), run.panel], sort_keys=True)
        name = ids.setdefault(text, hashlib.sha256(text.encode()).hexdigest()[:8])
        group = groups.setdefault((name, run.row.algorithm, run.row.credit), [])
        if run.row.key not in {other.row.key for other in group}:
            group.append(run)
    return groups


def _entry(pack: Evidence, runs: Sequence[Run]) -> Entry:
    row = runs[0].row
    seeds = [run.row.seed for run in runs]
    if len(set(seeds)) < len(seeds) or len({_but_seed(run) for run in runs}) > 1:
        raise ConfigError(
            f"'{pack.packed.file}': the runs called '{row.algorithm}' in {runs[0].config.env} have different settings"
            " of their algorithm. Give each a name of its own in the grid."
        )
    return Entry(
        f"{row.algorithm} / {row.credit}" if row.credit else row.algorithm,
        runs[0].config.algo,
        (pack.packed.name,),
        tuple(sorted(runs, key=lambda run: run.row.seed)),
        pack.planned[row.algorithm, row.env, row.credit],
        pack.tuning.get((row.algorithm, row.env), 0),
    )


def _but_seed(run: Run) -> str:
    """What an entry has chosen; nothing, where nothing was trained."""
    table = run.config.table()
    chosen = [table["algo"], table["algorithm"], table["episodes_per_iteration"]] if run.config.iterations else []
    return json.dumps(chosen, sort_keys=True)


def _merged(entries: Sequence[Entry]) -> list[Entry]:
    """Makes one entry of those that hold the same runs: equal choices, and equal outcomes of every seed they share.

    Packed files repeat one another (a probe begins with the runs of the grid that it probes), and a run that stands
    twice would test the same difference twice.
    """
    out: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: -len(entry.runs)):
        same = next((i for i, other in enumerate(out) if _repeats(entry, other)), None)
        if same is None:
            out.append(entry)
        else:
            out[same] = dataclasses.replace(out[same], packs=(*out[same].packs, *entry.packs))
    return out


def _repeats(entry: Entry, other: Entry) -> bool:
    ours, theirs = ({run.row.seed: run.outcomes for run in each.runs} for each in (entry, other))
    return (
        _but_seed(entry.runs[0]) == _but_seed(other.runs[0])
        and ours.keys() <= theirs.keys()
        and all(theirs[seed] == outcomes for seed, outcomes in ours.items())
    )


def placed(entries: Sequence[Entry]) -> list[Place]:
    """Ranks the entries of one setting: two share a rank unless the one is distinguishably better than the other.

    All pairs are tested, Holm's way, at one level together: which of many is the first is chosen by its score, and a
    test of the others against it alone would not know that.
    """
    ordered = sorted(entries, key=lambda entry: -entry.score.mean if entry.score else np.inf)
    ranked = [entry for entry in ordered if entry.ranked]
    better = np.zeros((len(ranked), len(ranked)), dtype=bool)
    pairs = list(itertools.combinations(range(len(ranked)), 2))
    apart = [gaps(ranked[i], ranked[j]) for i, j in pairs]
    rejected = statistics.holm([statistics.p_value(gap) for gap in apart], LEVEL)
    for (i, j), gap, known in zip(pairs, apart, rejected, strict=True):
        better[i, j] = known and gap.mean() > 0
        better[j, i] = known and gap.mean() < 0
    bounds = statistics.rank_bounds(better)
    places = []
    for i, (entry, ranks) in enumerate(zip(ranked, bounds, strict=True)):
        gap = gaps(entry, ranked[0])
        difference = statistics.estimate([gap], difference=True) if i and gap.size else None
        places.append(Place(entry, ranks, difference, bool(better[0, i])))
    return [*places, *(Place(entry, None, None, False) for entry in ordered if not entry.ranked)]


def gaps(entry: Entry, other: Entry) -> Outcomes:
    """Outcomes minus the other's [S, P] on the same problems; no column that an outage took from one of them.

    Seeds are paired by number, or in their order where fewer than ``MIN_SEEDS`` have the same number: runs are
    independent, so any pairing that does not look at their outcomes is right.
    """
    both = [(seed, seed) for seed in entry.outcomes if seed in other.outcomes]
    if len(both) < MIN_SEEDS:
        both = list(zip(entry.outcomes, other.outcomes, strict=False))
    return complete(np.array([entry.outcomes[a] - other.outcomes[b] for a, b in both]))[0]
