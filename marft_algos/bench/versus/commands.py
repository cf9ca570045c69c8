"""``marft versus``: does my team beat my best single agent?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from marft_algos.bench.grid import LEARNING, SEED
from marft_algos.config import arguments
from marft_algos.ranges import COUNT, SHARE
from marft_algos.terminal import say


@dataclass(frozen=True)
class Arguments:
    """Does my team beat my best single agent, at equal cost?

    Trains the team, the team without D, and one agent by the best of several algorithms, each at the best of several
    rates; the single agent gets what the team has cost in sampled tokens, in processed tokens and in latency. Then it
    says one of "team needed", "no team needed", "too dear", "not decided", and "D matters" or not. docs/versus.md has
    the rules. The same command goes on with what was stopped, and writes the report again.
    """

    env: Annotated[str, tyro.conf.Positional]
    """The team's environment."""
    token_budget: Annotated[int, COUNT]
    """Tokens that the team samples for training in one run."""
    out: Path
    """Folder of the trial. What has been run there already is not run again."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment; the single agent's gets those that it takes, too."""
    single: str = ""
    """Environment in which one agent does the same task on the same problems; empty: its family's solo environment."""
    single_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of that environment, over the team's."""
    single_team: tuple[str, ...] = ()
    """Instead of --single: only these agents of the team act, one after the other; usually one."""
    algorithms: tuple[str, ...] = ("marft", "reinforce", "rft", "grpo")
    """May train the single agent; the sweep chooses."""
    team_algorithms: tuple[str, ...] = ()
    """May train the team, with D and without; empty: the same."""
    seeds: Annotated[tuple[int, ...], SEED] = (0, 1, 2, 3, 4)
    """Of the runs that count."""
    lr: Annotated[tuple[float, ...], LEARNING] = (1e-4, 3e-4, 1e-3)
    """Learning rates, tried for every algorithm on either side."""
    sweep_seeds: Annotated[tuple[int, ...], SEED] = (100,)
    """Of the sweep."""
    margin: Annotated[float, SHARE] = 0.05
    """The smallest gain in score that is worth a team."""
    tolerance: Annotated[float, SHARE] = 0.1
    """Budgets are equal if what was spent differs by no larger share."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of every run, such as preset=toy eval_episodes=200."""
    jobs: Annotated[int, COUNT] = 1
    """Runs side by side, each a process with one thread."""
    plan: bool = False
    """Only check, measure one iteration of either side, and say what the trial would cost."""


def run_versus(argv: list[str]) -> int:
    """``marft versus ENV --token-budget N --out DIR``."""
    options: Arguments = arguments.parse(Arguments, argv, prog="marft versus")
    from marft_algos.lazy import require_training

    require_training()
    from marft_algos.bench.versus import plan, report, run
    from marft_algos.bench.versus.grids import Side
    from marft_algos.bench.versus.trial import Trial

    given = {k: v for k, v in vars(options).items() if k not in ("out", "jobs", "plan")}
    trial = Trial(**given)
    first = plan.check(trial)
    if options.plan or not (options.out / run.FILE).is_file():
        costs: dict[Side, plan.Cost] = {s: plan.pilot(config) for s, config in first.items() if s != "deaf"}
        for note in plan.fits(trial, costs):
            say(f"note:    {note}")
        say("\n".join(plan.plan(trial, costs)))
    if options.plan:
        return 0
    run.run(trial, options.out, options.jobs)
    findings = report.write(trial, options.out, shlex.join(["marft", "versus", *argv]))
    say(f"verdict: {findings.sentence}")
    say(f"report:  {options.out / 'report.html'}")
    failed = run.failures(options.out, trial)
    if failed:
        say(f"{len(failed)} failed; the same command tries them again", error=True)
    return 1 if failed else 0
