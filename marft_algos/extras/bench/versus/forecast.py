"""``marft versus --forecast``: the scores of both sides from the skill at single turns, before either is trained.

A sub-problem is an episode in which the task's expert says everything but one turn. Agents that read what they read in
the expert's own episode say what the expert said there. The model plays the turn, and the agents that read something
else for it. The forecast of an episode is the product of skills over its turns: true of errors that are independent
where all that an agent reads is right. docs/versus.md says more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from marft_algos import seeds
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import EngineBase
from marft_algos.evaluation.play import Player
from marft_algos.extras.bench.versus import run
from marft_algos.extras.bench.versus.grids import Side
from marft_algos.rollout.episodes import Prompts
from marft_algos.runs.intervals import Interval, wilson
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason, Transition
from marft_envs.core.env import FlexEnv
from marft_envs.records import experts

DRAWS = 1000
"""Resamples of an interval."""
HEAVIEST = 5.0
"""Most that a sub-problem counts for, of which others have played a part that seldom goes well."""
LEAST = 5
"""Layers of a role with fewer sub-problems are one kind of turn."""
_Said = Mapping[int, tuple[Sequence[Mapping[str, str]], str]]
"""History index -> what an agent has read there, and what the expert said."""
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TurnSkill:
    """How often a kind of turn is right where all that its agent reads is right."""

    name: str
    """Role and layer."""
    turns: float
    """In an episode."""
    solved: Interval
    """The sub-problems that ended well, with Wilson's interval."""
    right: float
    """The same without the errors of agents that read on: the factor of the forecast."""


@dataclass(frozen=True)
class Forecast:
    """What the skills of one side let its score be."""

    score: Interval
    draws: _Floats
    """[DRAWS] scores, for the interval of a difference."""
    skills: Sequence[TurnSkill]
    expert: Interval
    """The expert's own score: its episodes that exceed the limit on latency are stopped, too."""
    path: float
    """Tokens that the expert says one after the other, averaged over episodes."""


def forecast(sides: Mapping[Side, TrainConfig], sub_problems: int = 600) -> dict[Side, Forecast]:
    """Forecasts the scores of both sides, as they begin.

    Args:
        sides: Settings of each side's runs, as ``run.check`` returns them.
        sub_problems: Turns of each side that are tried.

    Raises:
        ConfigError: A side has no expert.
    """
    from marft_algos.training.evaluate import HeldOut

    forecasts = dict[Side, Forecast]()
    for side in sorted(sides.keys() - {"no-communication"}, reverse=True):
        with closing(HeldOut(run.counted(sides[side]))) as held_out:
            held_out.check()
            forecasts[side] = measure(held_out.player, held_out.evaluation_set, sub_problems)
    return forecasts


def measure(player: Player, problems: Prompts, sub_problems: int) -> Forecast:
    """Tries single turns of the expert's episodes, and multiplies.

    Args:
        player: Plays the side.
        problems: On which the side's score is forecast.
        sub_problems: Turns to try, about.

    Raises:
        ConfigError: The task has no expert.
        InfrastructureError, TaskError: As ``Player.play``.
    """
    with closing(player.make_env()) as env:
        said = [_said(env, *begun) for begun in zip(problems.seeds, problems.options, strict=True)]
    shown = replace(player, engine=_ExpertElsewhere(player, said, [None] * len(said))).play(problems)
    expert, path = wilson(sum(t.success is True for t in shown), len(shown)), np.mean([t.critical_path for t in shown])
    places = [(t.number, turn) for t in shown if t.success for turn in t.transitions]
    if not places:
        return Forecast(expert, np.zeros(DRAWS), [], expert, float(path))
    kinds = _kinds([turn for _, turn in places], sub_problems)
    one = dict(zip(dict.fromkeys(kinds.values()), np.eye(len(set(kinds.values()))), strict=True))
    counts = np.array([np.sum([one[kinds[_key(turn)]] for turn in t.transitions], axis=0) for t in shown if t.success])

    tried = [places[i] for i in _drawn([kinds[_key(turn)] for _, turn in places], sub_problems)]
    rows, targets = [said[number] for number, _ in tried], [turn.index for _, turn in tried]
    prompts = Prompts([problems.seeds[i] for i, _ in tried], [problems.options[i] for i, _ in tried])
    played = replace(player, engine=_ExpertElsewhere(player, rows, targets)).play(prompts)
    played = [t for t in played if not t.infrastructure_error]
    right = np.array([float(t.success is True) for t in played])
    own = np.array([one[kinds[_key(tried[t.number][1])]] for t in played])
    read = np.zeros_like(own)
    for i, t in enumerate(played):
        for turn in t.transitions:
            if not _as_shown(turn.request, rows[t.number].get(turn.index)) and _key(turn) in kinds:
                read[i] += one[kinds[_key(turn)]]

    factors = skills(right, own, read)
    scores = np.exp(np.log(factors) @ counts.T).sum(axis=1) / len(shown)
    low, high = np.quantile(scores[1:], (0.025, 0.975))
    each = zip(one, counts.mean(axis=0).tolist(), own.T, factors[0].tolist(), strict=True)
    described = [TurnSkill(name, n, wilson(int(right @ its), int(its.sum())), p) for name, n, its, p in each]
    score = Interval(float(scores[0]), float(min(low, scores[0])), float(max(high, scores[0])), len(played))
    return Forecast(score, scores[1:], described, expert, float(path))


def difference(team: Forecast, single: Forecast) -> Interval:
    """Returns the team's score less the single agent's."""
    low, high = np.quantile(team.draws - single.draws[::-1], (0.025, 0.975))  # both had the same random numbers
    return Interval(team.score.mean - single.score.mean, float(low), float(high), 0)


def skills(right: _Floats, own: _Floats, read: _Floats) -> _Floats:
    """Estimates how often each kind of turn is right, from the outcomes of sub-problems.

    Agents that read on in the model's place err as well. An outcome counts after division by their skills, so that no
    error counts at two kinds.

    Args:
        right: [sub-problems] 1 or 0.
        own: [sub-problems, kinds] 1 at the kind of the turn that was tried.
        read: [sub-problems, kinds] how many other turns the model has played.

    Returns:
        [1 + DRAWS, kinds]: the estimate, and draws of a Bayesian bootstrap. A draw has half a right and half a wrong
        sub-problem more (Jeffreys' prior), shared among the kinds: that none has failed is no proof that none will.
    """
    random = np.random.default_rng(0)
    weights = random.exponential(size=(1 + DRAWS, len(right)))
    prior = random.gamma(0.5 * own.mean(axis=0), size=(2, 1 + DRAWS, own.shape[1]))
    weights[0], prior[:, 0] = 1, 0
    factors = np.ones(prior.shape[1:])
    for step in range(50 if read.any() else 1):  # a kind's factor depends on those of the kinds that read on
        alone = weights * right * np.minimum(np.exp(-np.log(factors) @ read.T), HEAVIEST)
        now = np.clip((alone @ own + prior[0]) / (weights @ own + prior.sum(axis=0)), 1e-12, 1)
        factors = (factors + now) / 2 if step else now  # a kind that reads on from itself would go back and forth
    return factors


def _said(env: FlexEnv, seed: int, options: Mapping[str, Any]) -> _Said:
    """Plays the expert's episode."""
    episode, shown = experts.demonstrate(env, seed, options)
    return {turn.index: (messages, turn.text) for turn, (messages, _) in zip(episode.turns, shown, strict=True)}


def _as_shown(request: GenerationRequest, turn: tuple[Sequence[Mapping[str, str]], str] | None) -> bool:
    """Whether an agent reads what it has read in the expert's episode."""
    return turn is not None and [*request.messages] == [*turn[0]]


def _key(turn: Transition) -> tuple[str, int]:
    return turn.turn.role, turn.layer


def _kinds(turns: Sequence[Transition], tries: int) -> dict[tuple[str, int], str]:
    """Returns (role, layer) -> the name of a kind of turn."""
    tried = _parts(Counter(map(_key, turns)), tries)
    return {key: f"{key[0]}, {f'layer {key[1]}' if tried[key] >= LEAST else 'others'}" for key in tried}


def _parts(turns: Mapping[Any, int], n: int) -> dict[Any, float]:
    """Divides n sub-problems by the square root of the turns: many turns count most, and few often fail most."""
    return {kind: n * many**0.5 / sum(each**0.5 for each in turns.values()) for kind, many in turns.items()}


def _drawn(of: Sequence[str], n: int) -> list[int]:
    """Draws about n turns, given the kind of each."""
    random, places = np.random.default_rng(0), {kind: [i for i, k in enumerate(of) if k == kind] for kind in set(of)}
    sizes = {kind: min(int(part) + 1, len(places[kind])) for kind, part in _parts(Counter(of), n).items()}
    return [int(i) for kind, size in sizes.items() for i in random.choice(places[kind], size, replace=False)]


class _ExpertElsewhere(EngineBase):
    """Says what the expert said where an agent reads the same, and asks the player's engine otherwise.

    Args:
        player: Whose engine; its seeds name the turns of an episode.
        said: Of each episode, what the expert's had.
        targets: History index of the turn that the engine is asked for in any case; None: of no turn.
    """

    def __init__(self, player: Player, said: Sequence[_Said], targets: Sequence[int | None]) -> None:
        self._engine, self._renderer, self.one_by_one = player.engine, player.renderer, player.engine.one_by_one
        self._known = {
            seeds.row_seed(player.seed, seeds.EVALUATION, number, index): turn
            for number, (turns, target) in enumerate(zip(said, targets, strict=True))
            for index, turn in turns.items()
            if index != target
        }

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one reply per request; the expert's have tokens where the policy's model is here."""
        known = [self._expert(request) for request in requests]
        asked = [request for request, reply in zip(requests, known, strict=True) if reply is None]
        replies = iter(self._engine.generate(asked, params) if asked else ())
        return [next(replies) if reply is None else reply for reply in known]

    def _expert(self, request: GenerationRequest) -> Generation | None:
        turn = self._known.get(request.seed)
        if turn is None or not _as_shown(request, turn):
            return None
        text, ids = turn[1], list[int]()
        if request.policy in self._renderer.policies:
            tokenizer = self._renderer.tokenizer(request.policy)
            text = text.removeprefix(tokenizer.decode(request.prompt_ids[len(request.prompt_ids) - request.begun :]))
            ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        return Generation(ids, np.zeros(len(ids), np.float32), StopReason.EOS, 0, text)
