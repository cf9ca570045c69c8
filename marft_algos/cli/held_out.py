"""``marft eval RUN``: a trained team against the untrained one, on the same held-out problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marft_algos.config import arguments, presets
from marft_algos.config import settings as configs
from marft_algos.config.settings import TrainConfig
from marft_algos.lazy import require_training
from marft_algos.runs import breakdown, paths
from marft_algos.runs import folder as runs
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import clean, say
from marft_envs.core.types import AgentSpec
from marft_envs.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from marft_algos.cli.evaluation import EvalArguments
    from marft_algos.types import Trajectory


def play(options: EvalArguments) -> int:
    """``marft eval RUN``."""
    config, run = _eval_settings(options)
    require_training()
    import torch

    from marft_algos.evaluation import play, records
    from marft_algos.runs import checkpoint
    from marft_algos.training.environments import eval_kwargs
    from marft_algos.training.evaluate import HeldOut
    from marft_algos.training.session import too_long

    torch.set_num_threads(config.threads)
    # Everything that was typed is checked before anything is played.
    trained = checkpoint.pick(run.checkpoints, options.checkpoint) if run and not options.untrained else None
    evaluation = HeldOut(config)
    swapped = _agent_called(options.swap, evaluation.team) if options.swap else ""
    if swapped and len(evaluation.panel) < 2:
        raise ConfigError("Exchanging messages takes at least two episodes. Raise --episodes.")
    if trained is not None:
        checkpoint.check_policies(trained, evaluation.names)
    evaluation.check()
    _announce(config, eval_kwargs(config), len(evaluation.panel))
    played = evaluation.play()
    before = play.records(played)
    if words := too_long(played, set()):
        say(words, error=True)
    say(f"on           {runs.PanelFacts.of([r.task_id for r in before], held_out=evaluation.apart)}")
    say(f"untrained    {runs.estimate(before)}")
    if options.one_by_one:
        _waited(played, evaluation.waited)
    if run is not None and trained is not None:
        evaluation.load(run, options.checkpoint)
        played = evaluation.play()
        now = play.records(played)
        _, after, difference = runs.compare(before, now)
        say(f"{trained.name:<12} {after}")
        if options.one_by_one:
            _waited(played, evaluation.waited)
        say(f"difference   {difference.signed()} (paired, 95 %)")
        if changed := breakdown.most(breakdown.changes(before, now)):
            say(f"kinds        {clean(changed, line=True)}")
    files = {Path(options.out): played} if options.out else {}
    if swapped:
        again = evaluation.exchange([swapped], played)
        _, after, difference = runs.compare(play.records(played), play.records(again))
        say(f"exchanged    {after}, with {swapped}'s messages from other problems")
        say(f"difference   {difference.signed()} (paired, 95 %)")
        files |= {file.with_stem(f"{file.stem}-exchanged"): again for file in files}
    for file, episodes in files.items():
        records.write(file, [records.row(t) for t in episodes])
        say(f"episodes:    {file}")
    return 0


def _waited(played: Sequence[Trajectory], seconds: Sequence[float]) -> None:
    """Prints how long one user waited for an episode, where they were played one by one; lost ones do not count."""
    half, most = np.percentile(seconds, (50, 95))
    path = np.mean([t.critical_path for t in played if not t.infra])
    say(f"waited       {half:.3g} s an episode (median), {most:.3g} (95 %), for {path:.3g} tokens one after the other")


def _announce(config: TrainConfig, kwargs: Mapping[str, Any], episodes: int) -> None:
    way = "greedy" if config.eval_greedy else f"sampled at temperature {config.temperature:g}"
    shown = ", ".join(f"{k}={v}" for k, v in kwargs.items())
    say(f"{config.env}{f' ({shown})' if shown else ''}, {episodes} episodes, {way}")


def _eval_settings(options: EvalArguments) -> tuple[TrainConfig, RunFolder | None]:
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
    run = RunFolder.team(options.run) if options.run else None
    if run is not None:
        config = paths.of_run(run, {"models": options.models} if options.models else {})
    else:
        config = configs.build(presets.get(presets.suited(options.env)))
    kwargs, held_out = config.env_kwargs, config.eval_kwargs
    if options.env and options.env != config.env:
        kwargs, held_out = (presets.keep_accepted(options.env, each) for each in (kwargs, held_out))
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
    return dataclasses.replace(config, **changed), run


def _agent_called(name: str, team: Sequence[AgentSpec]) -> str:
    """Finds an agent by its name, or by its role if only one has it."""
    matches = [agent.name for agent in team if name in (agent.name, agent.role)]
    if len(matches) != 1:
        known = [agent.name for agent in team]
        raise ConfigError(f"'{name}' is {'no agent' if not matches else 'not one agent'}. {did_you_mean(name, known)}")
    return matches[0]
