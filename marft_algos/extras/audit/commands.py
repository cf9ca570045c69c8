"""``marft audit``: tables of expected updates beside true gradients."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import track

import marft_envs
from marft_algos import credit
from marft_algos.algorithms import base, needs
from marft_algos.algorithms.base import Algorithm
from marft_algos.algorithms.needs import NEEDS, RunFacts
from marft_algos.config import arguments
from marft_algos.extras.audit import games
from marft_algos.lazy import require_training
from marft_algos.ranges import COUNT, NOT_NEGATIVE
from marft_algos.terminal import aligned, clean, say
from marft_envs.errors import ConfigError, MarftError

if TYPE_CHECKING:
    from marft_algos.extras.audit.update import Enumeration, GradientComparison, Vectors

OUT = {
    "sft": "imitates demonstrations",
    "dpo": "learns from pairs of stored episodes",
    "gepa": "rewrites prompts",
    "rft": "imitates successes, which these games do not name",
    "at_grpo": "draws candidates at every turn",
    "sdpo": "learns from hindsight, which a table has no words for",
    "treerl": "grows trees of replays",
}
"""Algorithms without an expected update on enumerated episodes -> why."""
CROSSED = ("credit", "level", "norm", "whiten", "baseline", "centring", "turn_mean")
"""Settings that ``--all`` varies."""
WIDTH = 80


@dataclass(frozen=True)
class AuditArguments:
    """Compares the expected update of algorithms with the true gradient of the return, on games that are enumerated.

    A cosine of 1 is the gradient's direction, -1 the opposite. The update is that of a large batch, by the code that
    trains, without regularisers; see docs/audit.md.
    """

    algorithms: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ALGO…")] = ()
    """Names, or module:Class; none: all that have an expected update."""
    game: str = ""
    """One game, with a line for each algorithm; empty: every game, and the worst of them."""
    env: str = ""
    """A task of your own instead of the games, by its id; it must have few turns and few sample_actions."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Settings of that task, as KEY=VALUE."""
    prompts: Annotated[int, COUNT] = 2
    """With --env: number of problems, by seed."""
    credit: str = ""
    """Credit rule, for algorithms that have the choice; empty: each one's own."""
    critic: Literal["zero", "fitted", "exact"] = "exact"
    """What the value heads know: nothing, the mean return of a policy, or the expected return of every state."""
    group_size: Annotated[int, NOT_NEGATIVE] = 0
    """Episodes of a group, for algorithms that compare groups; 0: the limit of large groups."""
    all: bool = False
    """Every combination of credit rule, level, normalisation and whitening that an algorithm allows; takes minutes."""
    batch: Annotated[int, NOT_NEGATIVE] = 0
    """With one game: also how much updates of so many episodes scatter, from 200 batches."""
    climb: Annotated[int, NOT_NEGATIVE] = 0
    """With one game: also the score after so many steps of ascent on each algorithm's own large batches."""
    json: bool = False
    """Print JSON instead of text."""


@dataclass(frozen=True)
class Audit:
    """One algorithm in one game."""

    algorithm: str
    """Its name, and the settings that are not its defaults."""
    game: str
    found: GradientComparison | None
    refused: str = ""
    """Why there is no comparison."""
    noise: float | None = None
    """RMS distance of a small batch's update from its mean, by the mean's length."""
    score: float | None = None
    """The team's expected return after ascent."""


def run_audit(argv: list[str]) -> int:
    """``marft audit ALGO…``."""
    options: AuditArguments = arguments.parse(AuditArguments, argv, prog="marft audit")
    names = options.algorithms or tuple(name for name in base.names() if name not in OUT)
    require_training()
    if left := [name for name in names if name in OUT]:
        raise ConfigError(f"{left[0]} has no expected update here: it {OUT[left[0]]}. Known: marft audit --help.")
    if (options.batch or options.climb) and not (options.game or options.env):
        raise ConfigError("--batch and --climb look at one task: choose it with --game NAME or --env ID.")
    audits = list(audited(options, names))
    say(json.dumps([_plain(audit) for audit in audits], indent=1) if options.json else written(audits, options))
    return 0


def audited(options: AuditArguments, names: Sequence[str]) -> Iterator[Audit]:
    """Audits every algorithm in every chosen game."""
    if options.env:
        chosen: dict[str, games.AuditGame | None] = {options.env: None}
    else:
        ordinary = [name for name, game in games.GAMES.items() if game.ordinary]
        chosen = {name: games.get(name) for name in ([options.game] if options.game else ordinary)}
    tasks: dict[tuple[str, bool], tuple[Enumeration, Vectors]] = {}
    own = {"credit": options.credit} if options.credit else {}
    crossed = [(name, values) for name in names for values in (combinations(base.get(name)) if options.all else [own])]
    quiet = not sys.stderr.isatty()
    for name, values in track(crossed, "audit", console=Console(stderr=True), transient=True, disable=quiet):
        shared = "shared" in base.get(name).needs
        for label, game in chosen.items():
            if (label, shared) not in tasks:
                tasks[label, shared] = _task(options, game, shared=shared)
            yield _audit(name, label, values, *tasks[label, shared], options)


def combinations(algorithm: type[Algorithm]) -> Iterator[dict[str, str]]:
    """Lists every choice of credit rule, level, normalisation, whitening, baseline and mean that its settings have."""
    hints = typing.get_type_hints(algorithm.Config)
    choices = {name: typing.get_args(hints[name]) for name in CROSSED if name in hints}
    if "credit" in hints:
        choices["credit"] = tuple(credit.rules())
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        if chosen.get("level") == "token" and chosen.get("norm", "sum") != "sum":
            continue  # a normalisation of whole replies: one token is its own
        yield chosen


def _task(options: AuditArguments, game: games.AuditGame | None, *, shared: bool) -> tuple[Enumeration, Vectors]:
    from marft_algos.extras.audit.update import Enumeration

    if game is not None:
        task = Enumeration.of_game(game, shared=shared)
    else:
        task = Enumeration.of(marft_envs.make(options.env, **options.env_kwargs), options.prompts, shared=shared)
    with task.moved():
        return task, task.true_gradient()


def _audit(
    name: str, label: str, values: Mapping[str, str], task: Enumeration, truth: Vectors, options: AuditArguments
) -> Audit:
    """Compares one algorithm's expected update with the gradient, if the task offers what it needs."""
    from marft_algos.extras.audit import update

    algorithm = base.get(name)
    named = " ".join([name, *(f"{key}={value}" for key, value in values.items())]) if options.all else name
    try:
        made = update.settings(algorithm, values)
        offers = frozenset(NEEDS) - ({"branches"} if made.rule.name != "blame" else set())
        stale = int(bool(task.game and task.game.moved))
        needs.check(made, RunFacts(offers, made.group_size, task.team, stale))
        size = options.group_size if "groups" in algorithm.needs else 0
        found = update.compared(update.expected(made, task, options.critic, size or None), truth)
        noise = update.noise(made, task, options.critic, options.batch) if options.batch else None
        score = update.climbed(made, task, options.critic, options.climb) if options.climb else None
    except MarftError as error:
        return Audit(named, label, None, str(error))
    return Audit(named, label, found, "", noise, score)


def written(audits: Sequence[Audit], options: AuditArguments) -> str:
    """Writes the table: of one game a line an algorithm, of several the worst game of each."""
    one = bool(options.game or options.env)
    heads = ["algorithm", *(("cosine", "scale", "wrong signs") if one else ("exact in", "worst game", "cosine"))]
    heads += ["noise"] * bool(options.batch) + ["score"] * bool(options.climb)
    names = dict.fromkeys(audit.algorithm for audit in audits)
    rows = [[name, *_line([audit for audit in audits if audit.algorithm == name], one=one)] for name in names]
    if options.all:  # a name with its settings is a line of its own
        lines = [line for name, *rest in rows for line in (name, "  " + "  ".join(rest))]
        lines.insert(0, "  ".join(heads))
    else:
        lines = aligned([row + [""] * (len(heads) - len(row)) for row in [heads, *rows]])
    more = [f"left out: {', '.join(f'{name} ({why})' for name, why in OUT.items())}"] * (not options.algorithms)
    about = list[str]()
    if options.game:
        about = [f"{options.game}: {games.get(options.game).about}. {games.reasons().get(options.game, '')}"]
    paragraphs = [
        textwrap.fill(clean(text), WIDTH, subsequent_indent="  ") for text in (*about, *_notes(audits), *more)
    ]
    return "\n".join([*lines, "", *paragraphs]).rstrip()


def _line(own: Sequence[Audit], *, one: bool) -> list[str]:
    done = [(audit.game, audit.found) for audit in own if audit.found]
    if not done:
        return ["refused"]
    if one:
        found, audit = done[0][1], own[0]
        more = [_number(x) for x in (audit.noise, audit.score) if x is not None]
        return [_number(found.cosine), _number(found.scale), f"{found.wrong} of {found.logits}", *more]
    biased = [(found.cosine, game) for game, found in done if not found.exact]
    cosine, game = min(biased, default=(math.nan, "–"))
    return [f"{len(done) - len(biased)} of {len(done)}", game, _number(cosine)]


def _number(x: float) -> str:
    return "–" if math.isnan(x) else f"{x:.3f}"


def _notes(audits: Sequence[Audit]) -> Iterator[str]:
    """Why algorithms are biased somewhere, or refused everywhere; a note for each."""
    for name in dict.fromkeys(audit.algorithm.partition(" ")[0] for audit in audits):
        own = [audit for audit in audits if audit.algorithm.partition(" ")[0] == name]
        special = [audit.game for audit in own if audit.game in games.GAMES and not games.get(audit.game).ordinary]
        biased = not special and any(audit.found and not audit.found.exact for audit in own)
        if biased and (reason := games.reasons().get(name)):
            yield f"{name}: {reason}"
        elif not any(audit.found for audit in own):
            yield f"{name}: {own[0].refused}"


def _plain(audit: Audit) -> dict[str, Any]:
    found = {} if audit.found is None else dataclasses.asdict(audit.found) | {"exact": audit.found.exact}
    numbers = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in found.items()}
    more = {key: x for key, x in (("noise", audit.noise), ("score", audit.score)) if x is not None}
    return {"algorithm": audit.algorithm, "game": audit.game, **numbers, **more, "refused": audit.refused}
