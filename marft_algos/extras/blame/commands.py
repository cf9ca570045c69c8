"""``marft blame``, and the same from Python."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from marft_algos.config import arguments, trust
from marft_algos.config.evaluation import EvalConfig
from marft_algos.evaluation import environments, records, resumable
from marft_algos.evaluation.play import Player
from marft_algos.extras.blame.blaming import BlameSettings, Blaming, Named, blaming, failures
from marft_algos.extras.blame.report import Blame
from marft_algos.lazy import require_training
from marft_algos.ranges import NOT_NEGATIVE, POSITIVE
from marft_algos.rollout.demonstrations import recorded
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import clean, say
from marft_envs import Episode
from marft_envs.errors import ConfigError
from marft_envs.records.chats import PROMPT

SLOTS = 64
"""Episodes that engines play on at once."""


@dataclass(frozen=True)
class BlameArguments(BlameSettings):
    """Finds the turns that recorded failures turn with: each is replaced, and the same team plays on from there.

    Says for each turn how likely success was before it and after it, with intervals; which smallest set of turns flips
    the outcome; from which turn on success was out of reach; and which agent's messages failures turn with.
    """

    episodes: Annotated[str, tyro.conf.Positional] = ""
    """A run (its last evaluation), a folder of marft eval --engines, or a JSONL file of episodes; empty: the newest run
    in runs/."""
    engines: dict[str, Any] | str = ""
    """Who plays on, as for marft eval; empty: the team of the run that the episodes lie in, or as the evaluation was
    played."""
    checkpoint: str = ""
    """Of this run: ``last``, ``best`` or an iteration's number; empty: the one of the evaluation's file, else the
    last."""
    temperature: Annotated[float | None, POSITIVE] = None
    """Of what is sampled; none: that of the run's training, of the evaluation, else 1."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Of samples."""
    plan: bool = False
    """Say what it would cost, and play nothing."""
    json: bool = False
    """Print JSON instead of text."""
    out: str = ""
    """Write the failures, blame in their info and extras, to this JSONL file, for marft view; of a run, they are kept
    with its episodes anyway."""


@dataclass(frozen=True, slots=True)
class Source:
    """Recorded episodes, and what is known of who played them."""

    name: str
    episodes: Sequence[Named]
    run: RunFolder | None = None
    iteration: int | None = None
    """Of the run's evaluation."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of an evaluation of engines: its ``eval.json``."""


def blame(
    episodes: RunFolder | Path | str | Sequence[Episode],
    team: Player | RunFolder | str = "",
    *,
    env: Any = None,
    **options: Any,
) -> Blame:
    """Returns what the failures among episodes turn with: ``marft blame`` for notebooks and scripts.

    Args:
        episodes: A run, a folder of ``marft eval --engines``, a JSONL file, or records.
        team: Who plays on: a run, or what plays episodes (``load_team(RUN).player``); empty: as the command.
        env: Their environment, an id, an environment or a function that makes one; None: each record names its own.
        **options: Fields of ``BlameSettings``; ``engines``, ``checkpoint``, ``temperature``, ``seed`` of the command.

    Raises:
        MarftError: As ``blaming``; there is no team; too many replays were lost.
    """
    if odd := sorted({"plan", "json", "out"} & options.keys()):
        raise ConfigError(f"{odd[0]} is of marft blame; here the result is returned. Next: leave it out.")
    if team and not isinstance(team, Player):
        options["engines"] = str(getattr(team, "root", team))
    if isinstance(episodes, RunFolder | Path | str):
        source = source_of(str(getattr(episodes, "root", episodes)))
    else:
        source = Source("the episodes", [(f"no. {i}", e) for i, e in enumerate(episodes, 1)])
    with _blaming(source, BlameArguments(**options), team if isinstance(team, Player) else None, env) as prepared:
        return prepared.run()


@contextmanager
def _blaming(source: Source, asked: BlameArguments, player: Player | None, env: Any = None) -> Iterator[Blaming]:
    make = environments.given(env) if not isinstance(env, str) else environments.env_factory(env, {})
    failed = failures(source.episodes, source.name)
    lend = _engines if asked.engines or source.settings else _trained
    lent = nullcontext(player) if player else lend(source, asked)
    with lent as team, blaming(failed, team, asked, make, source=source.name) as prepared:
        yield prepared


# Episodes ---------------------------------------------------------------------------------------------


def source_of(path: str) -> Source:
    """Finds recorded episodes, and who played them.

    Raises:
        ConfigError: There are none.
        DataError: A line is no episode.
    """
    place = Path(path)
    if (place / "eval.json").is_file():
        place = place / "episodes.jsonl"
    elif not place.is_file():
        run = RunFolder.open(path)
        if not (evaluated := run.recorded("eval")):
            raise ConfigError(f"'{run.root}' has no evaluation yet. Go on with it: marft train --resume {run.root}")
        place = run.episodes_file("eval", evaluated[-1])
    found = recorded(str(place))
    if PROMPT in found[0][1].info:
        raise ConfigError(
            f"'{path}' holds rows of replies, which name no environment, so that nothing can be played on. Expected"
            " episodes. Make cases of these traces, play them by the command that this prints, and blame that:"
            " marft traces FILE --cases cases.jsonl"
        )
    if (evaluation := place.with_name("eval.json")).is_file():
        return Source(str(place), found, settings=json.loads(evaluation.read_text(encoding="utf-8")))
    inside, (kind, _, number) = place.parent.parent, place.stem.partition("-")
    if number.isdecimal() and (inside / "config.toml").is_file():
        return Source(str(place), found, RunFolder(inside), int(number) if kind == "eval" else None)
    return Source(str(place), found)


# The team ---------------------------------------------------------------------------------------------


@contextmanager
def _trained(source: Source, asked: BlameArguments) -> Iterator[Player]:
    """Lends the team of the run that episodes lie in.

    Raises:
        ConfigError: They lie in none.
    """
    if source.run is None:
        raise ConfigError(
            f"Nobody plays on: '{source.name}' lies in no run, and in no evaluation. Name the team that played:"
            " --engines RUN, or --engines MODEL."
        )
    require_training()
    from marft_algos.training.evaluate import HeldOut

    settings = paths.of_run(source.run)
    changes = {"eval_greedy": False, "seed": asked.seed, "temperature": asked.temperature or settings.temperature}
    with closing(HeldOut(settings.changed(**changes), 1)) as held_out:
        checkpoint = asked.checkpoint or ("last" if source.iteration is None else str(source.iteration))
        if checkpoint != "0":  # the first evaluation is of the untrained team
            held_out.load(source.run, checkpoint)
        yield held_out.player


@contextmanager
def _engines(source: Source, asked: BlameArguments) -> Iterator[Player]:
    """Lends a team of engines; hosted models' replies are kept beside the result, and none is asked for twice."""
    if asked.checkpoint:
        raise ConfigError("--checkpoint is of a run's own team, and here engines play. Next: leave it out.")
    before, first = source.settings, source.episodes[0][1]
    tokens, temperature = before.get("max_new_tokens"), asked.temperature or before.get("temperature") or 1.0
    trust.check({"env": first.env_id, "env_kwargs": first.env_kwargs}, source.name)
    settings: dict[str, Any] = {"max_new_tokens": tokens, "temperature": temperature, "seed": asked.seed, "jobs": SLOTS}
    config = EvalConfig(first.env_id, first.env_kwargs, asked.engines or _as_played(before, source.name), **settings)
    players, make_env = resumable.seated(config)
    kept = Path(asked.out).with_suffix(".replies.jsonl") if asked.out else Path(tempfile.mkdtemp()) / "replies.jsonl"
    with resumable.playing(config, players, make_env, players.load(config), kept) as (player, _):
        yield player


def _as_played(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the engines of an evaluation: models, endpoints, and for an adapter the run that it lies in."""
    engines = {**settings["models"], **settings["engines"]}
    engines |= {agent: str(Path(folder).parents[3]) for agent, folder in settings["adapters"].items()}
    if odd := [agent for agent, engine in engines.items() if "function" in engine]:
        raise ConfigError(f"A function of Python played {odd[0]}, which no file can name. Name who plays on: --engines")
    trust.check({"engines": settings["engines"]}, name)
    return engines


# The command ------------------------------------------------------------------------------------------


def run_blame(argv: list[str]) -> int:
    """``marft blame EPISODES``."""
    asked: BlameArguments = arguments.parse(BlameArguments, argv, prog="marft blame")
    source = source_of(asked.episodes or RunFolder.newest())

    def note(text: str) -> None:
        say(text, error=asked.json)

    with _blaming(source, asked, None) as prepared:
        team, (least, most) = prepared.player, prepared.costs()
        temperature = f"sampled at temperature {team.sampling.temperature:g}"
        note(f"failures:  {len(prepared.cases)} of {prepared.failed} in {source.name}, {temperature}")
        for reason, n in prepared.left_out.most_common():
            note(f"left out:  {n}, {clean(reason, line=True)}")
        agents = dict.fromkeys(agent for case in prepared.cases for agent, _ in case.shown.values())
        if hosted := [agent for agent in agents if team.renderer.policy_of(agent) not in team.renderer.policies]:
            note(f"hosted:    {', '.join(hosted)}; a seed may not repeat these replies, so they are kept with --out")
        note(f"cost:      {least:,} to {most:,} sampled tokens; sets of several turns come on top")
        if asked.plan:
            return 0
        found = prepared.run()
    say(json.dumps(found.to_dict(), indent=1) if asked.json else "\n".join([*found.table(), "", *found.summary()]))
    if source.run is not None and source.iteration is not None:
        source.run.write_episodes("blame", source.iteration, found.rows())
        note(f"view:      {arguments.typed('view', source.run.root)}")
    if asked.out:
        records.write(Path(asked.out), found.rows())
        note(f"view:      {arguments.typed('view', asked.out)}")
    return 0
