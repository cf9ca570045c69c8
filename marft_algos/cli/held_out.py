"""``marft eval`` of runs, on the same held-out problems: against the untrained team, and as each other's partners."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marft_algos.config import arguments, presets
from marft_algos.config import settings as configs
from marft_algos.config.evaluation import EvalArguments
from marft_algos.config.settings import TrainConfig
from marft_algos.lazy import require_training
from marft_algos.runs import breakdown, paths
from marft_algos.runs import folder as runs
from marft_algos.terminal import Progress, clean, say
from marft_envs.core.types import AgentSpec
from marft_envs.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from marft_algos.training.evaluate import HeldOut
    from marft_algos.types import Trajectory


def play(options: EvalArguments) -> int:
    """``marft eval RUN``."""
    config, run = _eval_settings(options)
    require_training()
    import torch

    from marft_algos.runs import checkpoint
    from marft_algos.training.evaluate import HeldOut

    torch.set_num_threads(config.threads)
    trained = checkpoint.pick(run.checkpoints, options.checkpoint) if run and not options.untrained else None
    with closing(HeldOut(config, servers=options.served(), on_progress=Progress())) as evaluation:
        return _play(options, evaluation, run, trained)


def _play(options: EvalArguments, evaluation: HeldOut, run: runs.RunFolder | None, trained: Path | None) -> int:
    from marft_algos.evaluation import play, records
    from marft_algos.runs import checkpoint
    from marft_algos.training.environments import eval_kwargs
    from marft_algos.training.session import too_long

    config = evaluation.config
    # Everything that was typed is checked before anything is played.
    swapped = _agent_called(options.swap, evaluation.team) if options.swap else ""
    if swapped and len(evaluation.evaluation_set) < 2:
        raise ConfigError("Shuffling messages takes at least two episodes. Raise --episodes.")
    if trained is not None:
        checkpoint.check_policies(trained, evaluation.names)
    if swapped:
        env = evaluation.make_env()
        env.close()
        edges, once = env.unwrapped.dependency.possible_edges, env.unwrapped.rules.max_rounds == 1
        if once and edges is not None:  # else it is seen when it is played
            _check_seen(swapped, evaluation.team, {agent for agent, _ in edges})
    evaluation.check()
    way = "greedy" if config.eval_greedy else f"sampled at temperature {config.temperature:g}"
    say(f"{arguments.task(config.env, eval_kwargs(config))}, {len(evaluation.evaluation_set)} episodes, {way}")
    played = evaluation.play()
    before = play.records(played)
    if words := too_long(played, set()):
        say(words, error=True)
    say(f"on           {runs.EvaluationSetFacts.of([r.task_id for r in before], held_out=evaluation.apart)}")
    say(f"untrained    {runs.estimate(before)}")
    if options.one_by_one:
        played = _waited(played, evaluation.waited)
    if run is not None and trained is not None:
        evaluation.load(run, options.checkpoint)
        played = evaluation.play()
        now = play.records(played)
        _, after, difference = runs.compare(before, now)
        say(f"{trained.name:<12} {after}")
        if options.one_by_one:
            played = _waited(played, evaluation.waited)
        say(f"difference   {difference.points()} (paired, 95 % interval)")
        if changed := breakdown.most(breakdown.changes(before, now)):
            say(f"kinds        {clean(changed, line=True)}")
    files = {Path(options.out): played} if options.out else {}
    if swapped:
        _check_seen(swapped, evaluation.team, breakdown.seen_agents(t.episode for t in played))
        again = evaluation.shuffle([swapped], played)
        _, after, difference = runs.compare(play.records(played), play.records(again))
        say(f"shuffled     {after}, with {swapped}'s messages from other problems")
        say(f"difference   {difference.points()} (paired, 95 % interval)")
        files |= {file.with_stem(f"{file.stem}-shuffled"): again for file in files}
    for file, episodes in files.items():
        records.write(file, [records.row(t) for t in episodes])
        say(f"episodes:    {file}")
    return 0


def _waited(played: Sequence[Trajectory], seconds: Sequence[float]) -> list[Trajectory]:
    """Prints how long one user waited for an episode, where they were played one by one; lost ones do not count.

    Returns:
        The episodes, with their ``seconds`` among their metrics.
    """
    half, most = np.percentile(seconds, (50, 95))
    path = np.mean([t.critical_path for t in played if not t.infrastructure_error])
    say(f"waited       {half:.3g} s an episode (median), {most:.3g} (95 %), for {path:.3g} tokens one after the other")
    each = iter(seconds)
    timed = ({} if t.infrastructure_error else {"seconds": next(each)} for t in played)
    metrics = [{**t.metrics, **more} for t, more in zip(played, timed, strict=True)]
    return [replace(t, episode=replace(t.episode, metrics=m)) for t, m in zip(played, metrics, strict=True)]


def _eval_settings(options: EvalArguments) -> tuple[TrainConfig, runs.RunFolder | None]:
    """Changes the run's settings (the quickstart's without a run) as the options say."""
    if not options.run and not options.untrained:
        raise ConfigError("Which run? marft eval RUN. For a team as it is before training: marft eval --untrained")
    if options.models and not options.untrained:
        raise ConfigError("A trained team plays on its own base models. Add --untrained, or leave --models out.")
    if (split := options.env_kwargs.get("split", "test")) != "test":
        raise ConfigError(
            f"--env-kwargs split={split}: a run is scored on held-out problems, those of the test split. Leave it out;"
            " to play others: --data FILE, or marft eval --env ID --engines … --env-kwargs split=train"
        )
    run = runs.RunFolder.find(options.run) if options.run else None
    if run is not None:
        config = paths.of_run(run, {"models": options.models} if options.models else {})
    else:
        config = configs.build(presets.get(presets.suited(options.env)))
    kwargs, held_out = config.env_kwargs, config.eval_kwargs
    if options.env and options.env != config.env:
        kwargs, held_out = (presets.keep_accepted(options.env, each, general=True) for each in (kwargs, held_out))
    if options.data:
        kwargs = {"data": options.data}
    named = {"env": options.env, "models": options.models, "device": options.device, "eval_episodes": options.episodes}
    changed: dict[str, Any] = {key: value for key, value in named.items() if value}
    if options.models:
        changed |= {"start": "", "adapters": {}}  # of the run's own models
    typed = {*options.env_kwargs, *(["data"] if options.data else ())}
    changed["eval_kwargs"] = {key: value for key, value in held_out.items() if key not in typed}
    kwargs = arguments.over(kwargs, options.env_kwargs, preset=run is None)
    if options.one_by_one:
        changed["num_envs"] = 1
    changed |= {"env_kwargs": kwargs, "eval_greedy": config.eval_greedy and not options.sampled}
    return replace(config, **changed), run


def _agent_called(name: str, team: Sequence[AgentSpec]) -> str:
    """Finds an agent by its name, or by its role if only one has it."""
    matches = [agent.name for agent in team if name in (agent.name, agent.role)]
    if len(matches) != 1:
        known = [agent.name for agent in team]
        raise ConfigError(f"'{name}' is {'no agent' if not matches else 'not one agent'}. {did_you_mean(name, known)}")
    return matches[0]


def _check_seen(agent: str, team: Sequence[AgentSpec], seen: Collection[str]) -> None:
    """Refuses to exchange what an agent says who gives the answer, and is not among those whom others see."""
    if agent in seen or not any(member.with_answer for member in team if member.name == agent):
        return
    known = [member.name for member in team if member.name in seen]
    onward = f"Name an agent that another one sees: --swap {known[0]}" if known else "Leave --swap out."
    raise ConfigError(
        f"{agent} gives the answer, and no other agent sees its words: --swap would grade answers to other problems,"
        f" and say nothing of what words are worth. {onward}"
    )


def cross(options: EvalArguments) -> int:
    """``marft eval --cross RUN RUN …``."""
    if len(options.cross) < 2:
        raise ConfigError("--cross got one run. Expected two or more: marft eval --cross RUN_A RUN_B")
    if options.given() - {"cross", "seats", "checkpoint", "episodes"}:
        raise ConfigError("--cross takes runs, --seats, --episodes and --checkpoint, and nothing else: all play alike.")
    require_training()
    from marft_algos.training import compare as compared

    teams = [runs.RunFolder.find(run) for run in options.cross]
    found = compared.cross(teams, options.seats, options.checkpoint, options.episodes)
    say(f"rows play {', '.join(found.seats)}, columns the others; scores of the row's / the others', n = {found.n}")
    say(str(found))
    own, others = found.cross_play
    say(f"with itself {own:.3f}, with others {others:.3f}, difference {own - others:+.3f} (means of both sides)")
    for i, name in enumerate(found.names):
        say(f"exploited   {name} {found.nash_conv(i):.3f}")
    return 0
