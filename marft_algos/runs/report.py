"""``report.html``: what a run did, on one page that needs nothing else. All text of agents is escaped.

A pure function of the run's folder: it can be written again at any time (``marft show RUN --html``).
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterable, Sequence
from string import Template
from typing import Any

from marft_algos.runs import dependence, kinds, plots, start
from marft_algos.runs.disk import write_whole, writing
from marft_algos.runs.folder import UNTRAINED, EvalRecord, RunFolder, outcome
from marft_algos.runs.intervals import Interval
from marft_envs import Episode
from marft_envs.core.types import TurnRecord
from marft_envs.errors import MissingExtraError

_Pair = tuple[Episode, Episode]
"""An episode of the panel as the untrained and as the trained team played it."""
SHOWN = 6
"""Episodes of each kind on the page."""


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
    metrics = run.metrics()
    config = html.escape(run.config_file.read_text(encoding="utf-8"))
    before, after = _panels(run)
    sections = [_commands(run), _headline(run, metrics), _curves(metrics), _team(before, after)]
    sections += [_kinds(before, after), _before_and_after(run, before, after), _training(run)]
    settings = f"<h2>Settings</h2>\n<details><summary>config.toml</summary><pre>{config}</pre></details>"
    return html_page(run.root.name, [*sections, settings])


def html_page(title: str, sections: Iterable[str], style: str = "") -> str:
    """Returns a page that needs nothing else and runs nothing; only the title is escaped here."""
    body = "\n".join(filter(None, sections))
    return Template(_PAGE).substitute(title=html.escape(title), body=body, style=STYLE + style)


def _commands(run: RunFolder) -> str:
    """Shows what was typed: the command that made the run, and every resume with where it went on.

    A run that no command has made, or none that was kept, can be repeated from its settings.
    """
    typed = run.commands()
    creations = [line["command"] for line in typed if line.get("made")]
    lines = creations or [shlex.join(["marft", "train", "--config", str(run.config_file)])]
    lines += [f"{line['command']}   # from iteration {line['iteration']}" for line in typed if not line.get("made")]
    shown = "\n".join(f'<pre class="command">{html.escape(line)}</pre>' for line in lines)
    origin = start.record(run)
    begun = f'<p class="note">begins with the weights of {html.escape(origin)}</p>' if origin else ""
    return f'<div class="commands">{shown}</div>{begun}'


# Parts ----------------------------------------------------------------------------------------------


def _headline(run: RunFolder, metrics: Sequence[dict[str, Any]]) -> str:
    last = metrics[-1] if metrics else {}
    cards = []
    gain = run.gain()
    if gain is not None:
        before, after, difference = gain
        cards += [
            _card("untrained team", f"{before.mean:.1%}", _interval(before)),
            _card("trained team", f"{after.mean:.1%}", _interval(after)),
            _card("gain, paired", f"{100 * difference.mean:+.1f} pts", _interval(difference, signed=True)),
        ]
    tokens = sum(int(m.get("tokens", 0)) for m in metrics)
    lost, failed = sum(int(m.get("infra", 0)) for m in metrics), sum(int(m.get("eval/infra", 0)) for m in metrics)
    cards.append(_card("lost to outages", f"{lost + failed}", f"{lost} in training, {failed} in evaluations"))
    cards.append(_card("iterations", f"{last.get('iteration', 0)}", f"{tokens:,} tokens sampled".replace(",", " ")))
    cards.append(_card("time", f"{last.get('time_elapsed', 0.0) / 60:.1f} min", "evaluations included"))
    how = f"n = {gain[1].n}: {run.panel()}; brackets are 95 % intervals." if gain is not None else ""
    return f'<div class="cards">{"".join(cards)}</div><p class="note">{how}</p>'


def _card(label: str, number: str, below: str) -> str:
    return f'<div class="card"><span>{label}</span><b>{number}</b><small>{below}</small></div>'


def _interval(e: Interval, *, signed: bool = False) -> str:
    low, high = 100 * e.low, 100 * e.high
    return f"[{low:+.1f}, {high:+.1f}]" if signed else f"[{low:.1f}, {high:.1f}]"


def _curves(metrics: Sequence[dict[str, Any]]) -> str:
    diagrams = plots.diagrams(metrics)
    if not diagrams:
        return ""
    palette, figures = plots.colors(diagrams), []
    for i, diagram in enumerate(diagrams):
        try:
            figure = plots.figure(*((7.2, 2.4) if i == 0 else (3.4, 1.7)))
        except MissingExtraError as error:
            return f'<h2>Curves</h2><p class="note">{html.escape(str(error))}</p>'
        axes = figure.add_subplot()
        plots.draw(axes, diagram, palette)
        plots.finish(axes)
        names = [name for name, points in diagram.series.items() if points]
        legend = "".join(f'<span><i style="background:{palette[n]}"></i>{html.escape(n)}</span> ' for n in names)
        figures.append(
            f"<figure{' class=wide' if i == 0 else ''}><figcaption><b>{diagram.title}</b> <span>{diagram.note}</span>"
            f"</figcaption>{plots.inline(plots.svg(figure))}<div class=legend>{legend}</div></figure>"
        )
    return f'<h2>Curves</h2><div class="figures">{"".join(figures)}</div>'


def _panels(run: RunFolder) -> tuple[list[Episode], list[Episode]]:
    """Reads the first evaluation, if it is the untrained team's, and the last one, if there is another."""
    done = run.recorded("eval")
    before = run.episodes("eval", UNTRAINED) if done[:1] == [UNTRAINED] else []
    return before, run.episodes("eval", done[-1]) if done[len(before) > 0 :] else []


def _team(before: Sequence[Episode], after: Sequence[Episode]) -> str:
    """Shows who is in the team: D as a picture, before training too if it was another one then, and the profiles."""
    drawn = {"untrained": dependence.shares(_kept(before)), "trained": dependence.shares(_kept(after))}
    drawn = {name: matrices for name, matrices in drawn.items() if matrices}
    if not drawn:
        return ""
    if len({str(matrices) for matrices in drawn.values()}) == 1:
        drawn = dict([drawn.popitem()])
    agents = (_kept(after) or _kept(before))[0].agents
    names, figures = [agent.name for agent in agents], []
    for team, matrices in drawn.items():
        for i, matrix in enumerate(matrices[: dependence.ROUNDS]):
            title = (f"{team}, " if len(drawn) > 1 else "") + f"round {i + 1} of {len(matrices)}"
            figures.append(f"<figure><figcaption>{title}</figcaption>{dependence.svg(names, matrix, title)}</figure>")
    note = (
        "Row: who speaks; column: who hears it. Filled: in every episode of the evaluation; else the per cent of them."
    )
    told = [f"<h3>{html.escape(a.name)}</h3><pre>{html.escape(a.prompt) or '(none)'}</pre>" for a in agents]
    profiles = f"<details><summary>profiles</summary>{''.join(told)}</details>"
    shown = f'<p class="note">{note}</p><div class="matrices">{"".join(figures)}</div>' if len(names) > 1 else ""
    return f"<h2>The team</h2>{shown}{profiles}"


def _kept(episodes: Sequence[Episode]) -> list[Episode]:
    return [episode for episode in episodes if not episode.infra]


def _before_and_after(run: RunFolder, before: Sequence[Episode], after: Sequence[Episode]) -> str:
    """Shows the panel before and after, side by side: first what training solved, then what it did not."""
    done = run.recorded("eval")
    if not (before and after):
        return ""
    both = list(zip(before, after, strict=True))
    pairs = [p for p in both if not (p[0].infra or p[1].infra)]
    kinds = {
        "solved only after training": [p for p in pairs if _value(p[1]) > _value(p[0])],
        "not solved after training": [p for p in pairs if _value(p[1]) <= 0],
        "lost by training": [p for p in pairs if _value(p[1]) < _value(p[0])],
        "taken by outages, and counted nowhere": [p for p in both if p[0].infra or p[1].infra],
    }
    parts: list[str] = []
    for kind, pairs_of_kind in kinds.items():
        if not pairs_of_kind:
            continue
        rows = [
            f'<div class="pair">{_episode(old, "untrained")}{_episode(new, f"iteration {done[-1]}")}</div>'
            for old, new in _distinct(pairs_of_kind)[:SHOWN]
        ]
        opened = " open" if not parts else ""
        title = f"{kind}: {_counted(pairs_of_kind, both)}"
        parts.append(f"<details{opened}><summary>{title}</summary>{''.join(rows)}</details>")
    panel = run.panel()
    title = "Held-out problems" if panel is not None and panel.held_out else "Evaluated instances"
    return f"<h2>{title}</h2>{''.join(parts)}" if parts else ""


def _kinds(before: Sequence[Episode], after: Sequence[Episode]) -> str:
    """Shows of which kinds of problems the gain is made."""
    if not (before and after):
        return ""
    rows = [
        f"<tr><td>{html.escape(kind.name)}</td><td>{kind.n}</td><td>{kind.before:.4g}</td><td>{kind.after:.4g}</td>"
        f"<td>{kind.gain:+.4g}</td></tr>"
        for kind in kinds.changes([EvalRecord.of(e) for e in before], [EvalRecord.of(e) for e in after])
    ]
    if not rows:
        return ""
    head = "<tr><th>kind</th><th>problems</th><th>untrained</th><th>trained</th><th>change</th></tr>"
    note = "Sums of outcomes. Where one kind makes most of the gain, read its answers: a grader may be too kind to it."
    return f'<h2>By kind of problem</h2><p class="note">{note}</p><table class="kinds">{head}{"".join(rows)}</table>'


def _counted(some_pairs: Sequence[_Pair], pairs: Sequence[_Pair]) -> str:
    """Counts how many of a panel these are: distinct problems where it plays some of them several times."""
    some, every = len(_distinct(some_pairs)), len(_distinct(pairs))
    episodes = f"{len(some_pairs)} of {len(pairs)}"
    return episodes if every == len(pairs) else f"{some} of {every} instances ({episodes} episodes)"


def _distinct(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Keeps the first pair of every problem; where the task names none, each is one of its own."""
    first: dict[str, _Pair] = {}
    for i, pair in enumerate(pairs):
        first.setdefault(pair[0].task_id or str(i), pair)
    return list(first.values())


def _training(run: RunFolder) -> str:
    """Shows sampled training episodes, with values and advantages; tokens are colored by their advantage."""
    parts = []
    recorded = run.recorded("train")
    for iteration in dict.fromkeys(recorded[:1] + recorded[-1:]):
        shown = "".join(_episode(e, f"episode {e.index}") for e in run.episodes("train", iteration)[:SHOWN])
        opened = " open" if iteration == recorded[-1] else ""
        title = f"<summary>iteration {iteration}</summary>"
        parts.append(f'<details{opened}>{title}<div class="grid2">{shown}</div></details>')
    if not parts:
        return ""
    legend = 'Tokens that went <mark class="up">better</mark> or <mark class="down">worse</mark> than expected.'
    return f'<h2>Training episodes</h2><p class="note">{legend}</p>{"".join(parts)}'


def _value(episode: Episode) -> float:
    return outcome(episode.success, episode.team_return)


def _episode(episode: Episode, label: str) -> str:
    mark = {True: "✓", False: "✗", None: "·"}[episode.success]
    state = {True: "good", False: "bad", None: ""}[None if episode.infra else episode.success]
    facts = " · ".join([label, episode.task_id, f"return {episode.team_return:g}", *_facts(episode)])
    names = {turn.index: turn.agent for turn in episode.turns}
    turns, previous = [], ""
    for turn in episode.turns:
        now = str((turn.extras or {}).get("observation", ""))
        if now != previous:
            turns.append(f'<pre class="task">{html.escape(now)}</pre>')
        turns.append(_turn(turn, names))
        previous = now
    return f'<article class="{state}"><header><b>{mark}</b> {html.escape(facts)}</header>{"".join(turns)}</article>'


def _facts(episode: Episode) -> Iterable[str]:
    yield from (f"{k} {v}" for k, v in episode.info.items() if isinstance(v, str) and v)
    if episode.stop_reason not in ("task", "max_rounds"):
        yield episode.stop_reason
    if episode.fault:
        yield f"fault: {episode.fault}"


def _turn(turn: TurnRecord, names: dict[int, str]) -> str:
    extras = dict(turn.extras or {})
    seen = f" saw {', '.join(names[i] for i in turn.sees)}" if turn.sees else ""
    numbers = [f"reward {turn.reward:+g}"] if turn.reward else []
    numbers += [f"{key} {extras[key]:+.2f}" for key in ("value", "advantage", "return") if key in extras]
    if "tokens" in extras:
        numbers.append(f"{extras['tokens']} tokens" + (", cut" if extras.get("stop_reason") == "length" else ""))
    head = f"<b>{html.escape(turn.agent)}</b><span>{html.escape(seen)}</span>"
    head += f"<em>{html.escape(' · '.join(numbers))}</em>"
    return f'<section><div class="who">{head}</div><pre>{_text(turn, extras)}</pre></section>'


def _text(turn: TurnRecord, extras: dict[str, Any]) -> str:
    """Shows the reply; token by token where advantages are known for each."""
    pieces, advantages = extras.get("pieces"), extras.get("advantages")
    if not pieces or not advantages or len(pieces) != len(advantages):
        return html.escape(turn.text) or '<span class="empty">(empty)</span>'
    largest = max(max(abs(a) for a in advantages), 1.0)
    spans = []
    for piece, advantage in zip(pieces, advantages, strict=True):
        kind, share = ("up" if advantage > 0 else "down"), round(45 * abs(advantage) / largest)
        spans.append(f'<mark class="{kind}" style="--p:{share}%" title="{advantage:+.3f}">{html.escape(piece)}</mark>')
    return "".join(spans)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'">
<title>$title · MARFT</title><style>$style</style></head><body>
<h1>$title</h1>
$body
</body></html>
"""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #667085; --line: #dfe3ea; --paper: #fbfbf9; --card: #fff;
  --good: #3f8f5f; --bad: #c0563f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --soft: #98a2b3; --line: #2e3440; --paper: #14171d;
  --card: #1b1f27; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1120px; padding: 2rem 1.25rem 5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
h1 { font-size: 1.45rem; margin: 0 0 .4rem; letter-spacing: -.01em; overflow-wrap: anywhere }
h2 { font-size: 1.05rem; margin: 2.4rem 0 .8rem }
pre { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; margin: 0 }
.commands { margin-bottom: 1.6rem }
.command { color: var(--soft) }
.command::before { content: "$ " }
.note, small, figcaption span, .who span { color: var(--soft) }
.note { font-size: .87rem }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .8rem }
.card, figure, article, details { background: var(--card); border: 1px solid var(--line); border-radius: 10px }
.card { padding: .8rem 1rem; display: flex; flex-direction: column }
.card span { color: var(--soft); font-size: .82rem }
.card b { font-size: 1.6rem; line-height: 1.3; font-variant-numeric: tabular-nums }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(310px, 1fr)); gap: .8rem }
figure { margin: 0; padding: .7rem .8rem }
figure.wide { grid-column: 1 / -1 }
figcaption { font-size: .85rem; margin-bottom: .3rem }
svg { width: 100%; height: auto; display: block }
.scroll { overflow-x: auto }
.matrices { display: flex; flex-wrap: wrap; gap: .8rem; margin-bottom: .8rem }
.matrices figure { overflow-x: auto; max-width: 100% }
svg.D { width: auto; max-width: none }
.D text { font-size: 11px; fill: var(--soft) }
.D .share { fill: var(--ink) }
.D .cell { fill: #0072b2; stroke: var(--line) }
.D .own { fill: var(--line); fill-opacity: .5 }
h3 { font-size: .9rem; margin: .8rem 0 .2rem }
.legend { display: flex; flex-wrap: wrap; gap: 0 .8rem; font-size: .78rem; color: var(--soft); margin-top: .3rem }
.legend span { overflow-wrap: anywhere }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: .35rem }
details { padding: .6rem .9rem; margin-bottom: .7rem }
.kinds { border-collapse: collapse; font-variant-numeric: tabular-nums }
.kinds :is(th, td) { text-align: right; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line) }
.kinds th { color: var(--soft); font-weight: 400; font-size: .85rem }
.kinds :is(th, td):first-child { text-align: left; overflow-wrap: anywhere }
summary { cursor: pointer; font-weight: 600 }
.pair, .grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: .7rem;
  margin: .8rem 0 }
article { padding: .6rem .8rem; border-left: 3px solid var(--line); min-width: 0 }
article.good { border-left-color: var(--good) }
article.bad { border-left-color: var(--bad) }
article header { font-size: .8rem; color: var(--soft); overflow-wrap: anywhere }
article.good header b { color: var(--good) }
article.bad header b { color: var(--bad) }
section { margin-top: .55rem }
.task { margin-top: .55rem; color: var(--soft) }
.who { font-size: .8rem; display: flex; gap: .5rem; flex-wrap: wrap }
.who em { margin-left: auto; font-style: normal; color: var(--soft); font-variant-numeric: tabular-nums }
.empty { color: var(--soft) }
mark { color: inherit; background: none; border-radius: 2px }
mark.up { background: color-mix(in srgb, var(--good) var(--p, 35%), transparent) }
mark.down { background: color-mix(in srgb, var(--bad) var(--p, 35%), transparent) }
"""
