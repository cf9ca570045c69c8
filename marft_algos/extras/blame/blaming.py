"""Blames the failures among recorded episodes: replays them, asks for all chances together, and finds the sets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from marft_algos.config import trust
from marft_algos.evaluation.environments import EnvFactory
from marft_algos.evaluation.play import Player
from marft_algos.extras.blame import turns
from marft_algos.extras.blame.chances import Chances, looks
from marft_algos.extras.blame.report import Blame
from marft_algos.extras.blame.turns import EpisodeBlame
from marft_algos.ranges import COUNT, SHARE, Range, Settings
from marft_algos.rollout.replay import Replayer
from marft_envs import FlexEnv
from marft_envs.core.types import Episode, optional
from marft_envs.errors import ConfigError, DataError, MarftError, check_known
from marft_envs.records import trajectory

Named = tuple[str, Episode]
"""An episode, and where it was recorded."""


@dataclass(frozen=True)
class BlameSettings(Settings):
    """How failures are looked at."""

    failures: Annotated[int, COUNT] = 20
    """So many failures, the first."""
    by: tuple[str, ...] = turns.BY
    """What stands in a turn's place, beside another draw of its own agent: ``expert``, the words of the task's expert;
    ``silence``, the empty text; ``policy``, a draw of each other policy; ``cut``, for each agent that sees the turn in
    its round, that agent's prompt without it."""
    width: Annotated[float, Range(0.01, 0.5)] = 0.15
    """Half-width of the 95 % interval of each chance, at most."""
    hopeless: Annotated[float, SHARE] = 0.05
    """Success is out of reach below this chance."""
    share: Annotated[float, SHARE] = 0.5
    """A set of turns flips the outcome if drawing it anew restores this share of the chance at the start."""
    token_budget: Annotated[int | None, COUNT] = None
    """Tokens that may be sampled; what is not known then says so."""
    again: bool = False
    """An environment that cannot be copied is run again from its start for every replacement, with all that it does
    outside: a program, a server of tools."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for values that there are not."""
        super().__post_init__()
        check_known(self.by, turns.BY, "Nothing is replaced by '{}'.")


@dataclass(frozen=True)
class Blaming:
    """Failures that were played again, and who plays on from them."""

    settings: BlameSettings
    player: Player
    cases: Sequence[turns.Replayed]
    failed: int
    """Failures that there are."""
    left_out: Counter[str]
    """Why failures that were looked at are left out -> how many."""

    def costs(self) -> tuple[int, int]:
        """Returns the tokens that it samples at least and at most, sets of several turns left out.

        Each play is taken to cost what the recorded episode has from its start on.
        """
        single = sum(case.cost(case.episode.turns[t].layer) for case in self.cases for t in case.shown)
        total = sum(question.cost for case in self.cases for question in case.questions.values()) + single
        return looks(self.settings.width)[0] * total, looks(self.settings.width)[-1] * total

    def run(self) -> Blame:
        """Plays all that is needed.

        Raises:
            InfrastructureError: Too many replays were lost.
        """
        by, settings = self.player, self.settings
        replayer = Replayer(by.renderer, by.engine, by.sampling, seed=by.seed, slots=by.slots)
        chances = Chances(replayer, by.limits, settings.width, settings.token_budget)
        answers = iter(chances.of([question for case in self.cases for question in case.questions.values()]))
        rows = [turns.blamed_turns(case, {asked: next(answers) for asked in case.questions}) for case in self.cases]
        found = [EpisodeBlame(case.name, case.episode, own) for case, own in zip(self.cases, rows, strict=True)]
        starts = {i: own[0].before.mean for i, own in enumerate(rows)}
        reached = {i: self.cases[i] for i, start in starts.items() if start >= settings.hopeless}
        ranked = {i: [turn.record.index for turn in e.ranked] for i, e in enumerate(found)}
        sets = turns.smallest_sets(reached, ranked, {i: settings.share * starts[i] for i in reached}, chances)
        for i, e in enumerate(found):
            flips, flipped = sets.get(i, ((), e.flipped))
            lost = turns.out_of_reach(e.turns, settings.hopeless)
            found[i] = replace(e, flips=flips, flipped=flipped, hopeless=lost)
        spent = chances.episodes, chances.tokens, chances.read, chances.spent
        return Blame(tuple(found), self.failed, dict(self.left_out), *spent)


def failures(episodes: Sequence[Named], source: str) -> list[Named]:
    """Returns the failures among recorded episodes; ``source`` is where they come from, for the message.

    Raises:
        DataError: There is none.
    """
    failed = [(name, e) for name, e in episodes if e.success is False and not e.infrastructure_error]
    unjudged = sum(e.success is None for _, e in episodes)
    if not failed:
        served = f"; {unjudged} say nothing of success (a served team's, an imported trace's)" if unjudged else ""
        raise DataError(
            f"There is no failure among the {len(episodes)} episodes of {source}{served}. Expected episodes with"
            " success = false. Play more problems: marft eval … --out FILE"
        )
    return failed


@contextmanager
def blaming(
    failed: Sequence[Named], player: Player, settings: BlameSettings, env: EnvFactory | None = None, *, source: str
) -> Iterator[Blaming]:
    """Replays failures; nothing is sampled yet. Their environments are closed afterwards.

    Args:
        failed: Recorded failures.
        player: The team that plays on.
        settings: How they are looked at.
        env: Makes their environment; None: each record names its own.
        source: Where they come from, for messages.

    Raises:
        ConfigError: There is no environment for them, or it cannot be copied.
        DataError: None of them can be replayed.
        TrustError: A record names what executes or sends.
    """
    cases, why, made = list[turns.Replayed](), Counter[str](), dict[str, FlexEnv]()
    with ExitStack() as envs:
        for name, episode in failed[: settings.failures]:
            make = env or _maker(episode, source)
            key = json.dumps([episode.env_id, episode.env_kwargs], sort_keys=True, default=str)
            if key not in made:
                made[key] = envs.enter_context(closing(make()))
                _check(made[key], settings)
            try:
                case = turns.replayed(name, episode, len(cases), made[key], make if settings.again else None)
                strangers = [agent for agent, _ in case.shown.values() if not player.renderer.plays(agent)]
                if strangers or not case.shown:
                    raise trajectory.ReplayError(f"nobody of the team plays {strangers[0] if strangers else 'in it'}")
            except MarftError as error:  # its problem is not there, it differs from its record, it cannot be copied
                why[str(error).partition(": recorded {")[0].rstrip(".")] += 1
                continue
            turns.ask(case, settings.by, player.renderer)
            cases.append(case)
        if not cases:
            said = "; ".join(f"{n} × {reason}" for reason, n in why.most_common(3))
            raise DataError(
                f"None of the {why.total()} failures of {source} can be replayed: {said}. Expected the version of the"
                " environment that recorded them, with the same data, and their own team. Record them again with this"
                " version: marft eval … --out FILE"
            )
        yield Blaming(settings, player, cases, len(failed), why)


def _maker(episode: Episode, source: str) -> EnvFactory:
    """Returns what makes the environment that a record names."""
    trust.check({"env": episode.env_id, "env_kwargs": episode.env_kwargs}, source)
    return lambda: trajectory.rebuild(episode, trusted=True, whole=True)


def _check(env: FlexEnv, settings: BlameSettings) -> None:
    """Refuses what cannot be copied, unless it may be run again."""
    if not settings.again and not optional(env.unwrapped.task, "copyable"):
        raise ConfigError(
            f"An episode of {env.unwrapped.env_id} cannot be copied half-way, so that no turn can be replaced in it. It"
            " may be run again from its start for every replacement, with all that it does outside: --again. Instead:"
            " evaluate the team with one agent replaced (marft eval --engines AGENT=OTHER …), and --compare the two."
        )
