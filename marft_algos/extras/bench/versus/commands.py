"""``marft versus``: does my team beat my best single agent?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from marft_algos.config import arguments
from marft_algos.extras.bench.versus.trial import Question, Trial
from marft_algos.ranges import COUNT, NOT_NEGATIVE
from marft_algos.terminal import say
from marft_envs.errors import ConfigError

ADVICE = {
    "team needed": "train the team, and test whose messages it needs: marft eval RUN --swap AGENT",
    "no team needed": "train the single agent: it says in one context what the team says in several",
    "too costly": "a team can still be worth its cost under a limit of latency: --answer-latency N",
    "no significant difference": "add seeds or tokens; until then, train the single agent",
}
"""What follows from a verdict."""


@dataclass(frozen=True, kw_only=True)
class VersusArguments(Question):
    """Does my team beat my best single agent, at equal cost of training?

    Trains the team, the team without D, and one agent by the best of several algorithms, each at the best of several
    rates; the single agent gets what the team has cost in training: in sampled tokens, in processed tokens and in
    latency. The cost of an answer at test time is reported, and not equalised. The verdict is one of "team needed",
    "no team needed", "too costly" and "no significant difference", and whether D matters. docs/versus.md has the rules.
    The same command goes on with what was stopped, and writes the report again.
    """

    token_budget: Annotated[int, NOT_NEGATIVE] = 0
    """Tokens that the team samples for training in one run; only --forecast does without."""
    out: Path | None = None
    """Folder of the trial. What has been run there already is not run again."""
    jobs: Annotated[int, COUNT] = 1
    """Runs side by side, each a process with one thread."""
    plan: bool = False
    """Only check, measure one iteration of either side, and say what the trial would cost."""
    forecast: bool = False
    """Train nothing: forecast both scores from the skill at single turns, which the task's expert says otherwise."""
    sub_problems: Annotated[int, COUNT] = 600
    """Of a forecast: turns of each side that are tried."""


def run_versus(argv: list[str]) -> int:
    """``marft versus ENV --token-budget N --out DIR``."""
    options: VersusArguments = arguments.parse(VersusArguments, argv, prog="marft versus")
    from marft_algos.lazy import require_training

    require_training()
    from marft_algos.extras.bench.versus import report, run
    from marft_algos.extras.bench.versus.grids import Side

    given = {field.name: getattr(options, field.name) for field in fields(Question)}
    if options.forecast:
        if options.plan or options.out is not None:
            raise ConfigError("--forecast trains nothing and writes nothing. Next: leave out --plan and --out.")
        return _forecast(options, Trial(**given | {"token_budget": options.token_budget or 1}))
    if options.out is None or not options.token_budget:
        raise ConfigError("A trial needs --token-budget N and --out DIR. Without training: --forecast")
    trial = Trial(**given)
    first = run.check(trial)
    if options.plan or not (options.out / run.FILE).is_file():
        costs: dict[Side, run.Cost] = {s: run.pilot(config) for s, config in first.items() if s != "no-communication"}
        for note in run.fits(trial, costs):
            say(f"note:    {note}")
        say("\n".join(run.plan(trial, costs)))
    if options.plan:
        return 0
    run.run(trial, options.out, options.jobs)
    findings = report.write(trial, options.out, shlex.join(["marft", "versus", *argv]))
    say(f"verdict: {findings.sentence}")
    say(f"advice:  {ADVICE[findings.team_needed]}; docs/should-i-train-a-team.md")
    say(f"report:  {options.out / 'report.html'}")
    if failed := run.failures(options.out, trial):
        say(f"{len(failed)} failed; the same command tries them again", error=True)
    return 1 if failed else 0


def _forecast(options: VersusArguments, trial: Trial) -> int:
    """Says what both sides will score, and the skills that it follows from."""
    from marft_algos.extras.bench.versus import forecast, run

    found = forecast.forecast(sides := run.check(trial), options.sub_problems)
    if any(side.warm_start and not side.start for side in sides.values()):
        say("note:    this is before the warm start that training begins with; --start RUN names weights that had one")
    for side, its in found.items():
        say(f"{side:<11} {its.score.score()}; expert {its.expert.mean:.3f}, {its.path:.0f} tokens in sequence")
        for one in its.skills:
            say(f"  {one.name:<18} {one.turns:4.1f} turns, right in {one.right:.3f} (solved {one.solved.score()})")
        if not its.skills:
            say("  its expert solves no problem, or none within --answer-latency")
    if any(its.skills for its in found.values()):
        say(f"difference  {forecast.difference(found['team'], found['single']).points()}")
    return 0
