"""``report.html``: what a run did, on one page that needs nothing else. Templates in ``pages/`` escape all text.

A pure function of the run's folder: it can be written again at any time (``marft show RUN --html``).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marft_algos.runs import breakdown, paths, plots, start
from marft_algos.runs.disk import write_whole, writing
from marft_algos.runs.folder import UNTRAINED, EvalRecord, RunFolder
from marft_envs import Episode
from marft_envs.errors import MissingExtraError

if TYPE_CHECKING:
    from jinja2 import Environment

_Pair = tuple[Episode, Episode]
"""An episode of the evaluation set as the untrained and as the trained team played it."""
SHOWN = 6
"""Episodes of each kind on the page."""
ROUNDS = 4
"""Rounds whose D is drawn; what later ones are like is said by the viewer, episode by episode."""
Matrix = list[list[float]]
"""n x n; row i, column j: share of the episodes in which j's action was conditioned on i's."""


def pages(package: str = "marft_algos.runs") -> Environment:
    """Returns the templates of pages that need nothing else and run nothing: a package's own, over those for all."""
    import jinja2

    loaders = [jinja2.PackageLoader(name, "pages") for name in dict.fromkeys((package, "marft_algos.runs"))]
    look: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=jinja2.ChoiceLoader(loaders), autoescape=True, **look)


def finish(run: RunFolder) -> None:
    """Writes what people look at after a run: ``curves.png`` and ``report.html``."""
    with writing(run.curves_file):
        plots.write_png(run.metrics(), run.curves_file)
    write(run)


def write(run: RunFolder) -> None:
    """Writes the report of a run."""
    write_whole(run.report_file, render(run), errors="replace")


def render(run: RunFolder) -> str:
    """Returns the page of a run."""
    metrics, done, recorded = run.metrics(), run.recorded("eval"), run.recorded("train")
    before = run.episodes("eval", UNTRAINED) if done[:1] == [UNTRAINED] else []
    after = run.episodes("eval", done[-1]) if done[len(before) > 0 :] else []
    changed = (
        breakdown.changes(*([EvalRecord.of(e) for e in part] for part in (before, after))) if before and after else []
    )
    template = pages().get_template("report.html.jinja")
    return template.render(
        title=run.root.name,
        commands=_commands(run),
        origin=start.record(run),
        task=paths.task(run),
        **_headline(run, metrics),
        curves=_curves(metrics),
        **_team(before, after),
        drawn=ROUNDS,
        kinds=changed,
        evaluation_set=run.evaluation_set(),
        evaluated=done[-1] if done else 0,
        pairs=_pairs(before, after) if before and after else {},
        blamed=[e for i in run.recorded("blame")[-1:] for e in run.episodes("blame", i)],
        training={i: run.episodes("train", i)[:SHOWN] for i in (*recorded[:1], *recorded[-1:])},
        config=run.config_file.read_text(encoding="utf-8"),
    )


def _commands(run: RunFolder) -> list[str]:
    """Lists what was typed: the command that made the run, and every resume with where it went on.

    A run that no command has made, or none that was kept, can be repeated from its settings.
    """
    typed = run.commands()
    creations = [line["command"] for line in typed if line.get("made")]
    lines = creations or [shlex.join(["marft", "train", "--config", str(run.config_file)])]
    return lines + [
        f"{line['command']}   # from iteration {line['iteration']}" for line in typed if not line.get("made")
    ]


def _headline(run: RunFolder, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    last, gain, cards = (metrics[-1] if metrics else {}), run.gain(), []
    if gain is not None:
        before, after, difference = gain
        said = {"untrained team": before.score(), "trained team": after.score(), "gain, paired": difference.points()}
        cards += [(what, *text.partition(" ")[::2]) for what, text in said.items()]
    counted = ("infrastructure_errors", "eval/infrastructure_errors", "tokens")
    lost, failed, tokens = (sum(int(m.get(key, 0)) for m in metrics) for key in counted)
    cards += [
        ("infrastructure errors", f"{lost + failed}", f"{lost} in training, {failed} in evaluations"),
        ("iterations", f"{last.get('iteration', 0)}", f"{tokens:,} tokens sampled".replace(",", " ")),
        ("time", f"{last.get('time_elapsed', 0.0) / 60:.1f} min", "evaluations included"),
    ]
    scored = f"n = {gain[1].n}: {run.evaluation_set()}; brackets are 95 % intervals." if gain is not None else ""
    return {"cards": cards, "scored": scored}


def _curves(metrics: Sequence[dict[str, Any]]) -> list[tuple[plots.Diagram, str, dict[str, str]]] | str:
    """Draws the diagrams, each with the colors of its names; without matplotlib: says what is missing."""
    diagrams = plots.diagrams(metrics)
    palette, curves = plots.colors(diagrams), []
    for i, diagram in enumerate(diagrams):
        try:
            figure = plots.figure(*((7.2, 2.4) if i == 0 else (3.4, 1.7)))
        except MissingExtraError as error:
            return str(error)
        axes = figure.add_subplot()
        plots.draw(axes, diagram, palette)
        plots.finish(axes)
        legend = {name: palette[name] for name, points in diagram.series.items() if points}
        curves.append((diagram, plots.inline(plots.svg(figure)), legend))
    return curves


def _team(before: Sequence[Episode], after: Sequence[Episode]) -> dict[str, Any]:
    """Says who is in the team, and its D, before training too if it was another one then."""
    parts = {"untrained": before, "trained": after}
    kept = {name: [e for e in part if not e.infrastructure_error] for name, part in parts.items()}
    matrices = {name: shares(episodes) for name, episodes in kept.items() if shares(episodes)}
    if len({str(each) for each in matrices.values()}) == 1:
        matrices = dict([matrices.popitem()])
    agents = (kept["trained"] or kept["untrained"])[0].agents if matrices else ()
    return {"matrices": matrices, "agents": agents}


def shares(episodes: Sequence[Episode]) -> list[Matrix]:
    """Averages the executed D of each round over the episodes that had it.

    Args:
        episodes: Of one team.
    """
    rounds: dict[int, list[Sequence[Sequence[int]]]] = {}
    for episode in episodes:
        for record in episode.rounds:
            rounds.setdefault(record.index, []).append(record.D)
    return [np.mean(rounds[index], axis=0).tolist() for index in sorted(rounds)]


def _pairs(before: Sequence[Episode], after: Sequence[Episode]) -> dict[str, list[_Pair]]:
    """Returns the evaluation set before and after, side by side: first what training solved, then what it did not."""
    both = list(zip(before, after, strict=True))
    lost = [pair for pair in both if any(e.infrastructure_error for e in pair)]
    whole = [pair for pair in both if not any(e.infrastructure_error for e in pair)]
    kept = [(old, new, new.score - old.score) for old, new in whole]
    kinds = {
        "solved only after training": [(old, new) for old, new, gain in kept if gain > 0],
        "not solved after training": [(old, new) for old, new, _ in kept if new.score <= 0],
        "lost by training": [(old, new) for old, new, gain in kept if gain < 0],
        "lost to infrastructure errors, in no score": lost,
    }
    return {f"{kind}: {_counted(some, both)}": _distinct(some)[:SHOWN] for kind, some in kinds.items() if some}


def _counted(some_pairs: Sequence[_Pair], pairs: Sequence[_Pair]) -> str:
    """Counts these episodes: distinct problems where some are played several times."""
    some, every = len(_distinct(some_pairs)), len(_distinct(pairs))
    episodes = f"{len(some_pairs)} of {len(pairs)}"
    return episodes if every == len(pairs) else f"{some} of {every} instances ({episodes} episodes)"


def _distinct(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Keeps the first pair of every problem; where the task names none, each is one of its own."""
    first: dict[str, _Pair] = {}
    for i, pair in enumerate(pairs):
        first.setdefault(pair[0].task_id or str(i), pair)
    return list(first.values())
