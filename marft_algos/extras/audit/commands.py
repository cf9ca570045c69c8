"""``marft audit``: tables of expected updates beside true gradients."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

import marft_envs
from marft_algos.algorithms import base
from marft_algos.algorithms.base import Algorithm
from marft_algos.config import arguments
from marft_algos.extras.audit import games
from marft_algos.lazy import require_training
from marft_algos.ranges import COUNT, NOT_NEGATIVE
from marft_algos.terminal import clean, say
from marft_envs.errors import ConfigError, MarftError

if TYPE_CHECKING:
    from marft_algos.extras.audit.update import Enumeration, GradientComparison

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
    json: bool = False
    """Print JSON instead of text."""


@dataclass(frozen=True)
class Audit:
    """One algorithm in one game."""

    algorithm: str
    game: str
    found: GradientComparison | None
    refused: str = ""
    """Why there is no comparison."""


def run_audit(argv: list[str]) -> int:
    """``marft audit ALGO…``."""
    options: AuditArguments = arguments.parse(AuditArguments, argv, prog="marft audit")
    names = options.algorithms or tuple(name for name in base.names() if name not in OUT)
    require_training()
    if left := [name for name in names if name in OUT]:
        raise ConfigError(f"{left[0]} has no expected update here: it {OUT[left[0]]}. Known: marft audit --help.")
    audits = list(audited(options, names))
    say(json.dumps([_plain(audit) for audit in audits], indent=1) if options.json else written(audits, options))
    return 0


def audited(options: AuditArguments, names: Sequence[str]) -> Iterator[Audit]:
    """Audits every algorithm in every chosen game."""
    if options.env:
        chosen: dict[str, games.AuditGame | None] = {options.env: None}
    else:
        chosen = {name: games.get(name) for name in ([options.game] if options.game else games.GAMES)}
    tasks: dict[tuple[str, bool], Enumeration] = {}
    for name in names:
        algorithm = base.get(name)
        shared = "shared" in algorithm.needs
        for label, game in chosen.items():
            if (label, shared) not in tasks:
                tasks[label, shared] = _task(options, game, shared=shared)
            try:
                yield Audit(name, label, comparison(algorithm, tasks[label, shared], options))
            except MarftError as error:
                yield Audit(name, label, None, str(error))


def _task(options: AuditArguments, game: games.AuditGame | None, *, shared: bool) -> Enumeration:
    from marft_algos.extras.audit.update import Enumeration

    if game is not None:
        return Enumeration.of_game(game, shared=shared)
    env = marft_envs.make(options.env, **options.env_kwargs)
    return Enumeration.of(env, options.prompts, shared=shared)


def comparison(algorithm: type[Algorithm], task: Enumeration, options: AuditArguments) -> GradientComparison:
    """Compares one algorithm's expected update with the gradient.

    Raises:
        MarftError: The algorithm does not work in the task, or the groups are too many.
    """
    from marft_algos.extras.audit.update import compared, expected, settings

    values = {"credit": options.credit} if options.credit else {}
    made = settings(algorithm, values)
    grouped = options.group_size and "groups" in algorithm.needs
    update = expected(made, task, options.critic, options.group_size if grouped else None)
    return compared(update, task.true_gradient())


def written(audits: Sequence[Audit], options: AuditArguments) -> str:
    """Writes the table: of one game a line an algorithm, of several the worst game of each."""
    one = bool(options.game or options.env)
    head = ("algorithm", "cosine", "scale", "wrong signs") if one else ("algorithm", "exact in", "worst game", "cosine")
    lines = [f"{head[0]:<22}{head[1]:<12}{head[2]:<18}{head[3]}"]
    for name in dict.fromkeys(audit.algorithm for audit in audits):
        lines.append(_line(name, [audit for audit in audits if audit.algorithm == name], one=one))
    more = [f"left out: {', '.join(f'{name} ({why})' for name, why in OUT.items())}"] * (not options.algorithms)
    about = [f"{options.game}: {games.get(options.game).about}"] if options.game else []
    paragraphs = [
        textwrap.fill(clean(text), WIDTH, subsequent_indent="  ") for text in (*about, *_notes(audits), *more)
    ]
    return "\n".join([*lines, "", *paragraphs]).rstrip()


def _line(name: str, own: Sequence[Audit], *, one: bool) -> str:
    done = [audit.found for audit in own if audit.found]
    if not done:
        return f"{name:<22}refused"
    if one:
        found = done[0]
        return f"{name:<22}{_number(found.cosine):<12}{_number(found.scale):<18}{found.wrong} of {found.logits}"
    exact = sum(found.exact for found in done)
    worst = min(
        (a for a in own if a.found and not a.found.exact),
        key=lambda a: a.found.cosine if a.found else 1.0,
        default=None,
    )
    where = (f"{worst.game:<18}{_number(worst.found.cosine)}" if worst and worst.found else "–").rstrip()
    return f"{name:<22}{f'{exact} of {len(done)}':<12}{where}"


def _number(x: float) -> str:
    return "–" if math.isnan(x) else f"{x:.3f}"


def _notes(audits: Sequence[Audit]) -> Iterator[str]:
    """Why algorithms are biased somewhere, or refused everywhere; a note for each."""
    for name in dict.fromkeys(audit.algorithm for audit in audits):
        own = [audit for audit in audits if audit.algorithm == name]
        if any(audit.found and not audit.found.exact for audit in own):
            yield f"{name}: {reasons().get(name, 'biased; its page may say why')}"
        elif not any(audit.found for audit in own):
            yield f"{name}: {own[0].refused}"


def reasons() -> Mapping[str, str]:
    """Algorithm -> why its expected update is not the gradient."""
    return tomllib.loads(resources.files(__package__).joinpath("reasons.toml").read_text(encoding="utf-8"))


def _plain(audit: Audit) -> dict[str, Any]:
    found = {} if audit.found is None else dataclasses.asdict(audit.found) | {"exact": audit.found.exact}
    numbers = {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in found.items()}
    return {"algorithm": audit.algorithm, "game": audit.game, **numbers, "refused": audit.refused}
