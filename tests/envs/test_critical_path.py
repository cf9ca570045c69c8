"""The critical path of an episode: by hand, and by brute force over random dependency functions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.flex import PlainTask, flex, play
from helpers.teams import episode, random_team
from marft_algos.credit.costs import costs_of
from marft_algos.rollout.episodes import summary
from marft_algos.runs.folder import EvalRecord, RunFolder
from marft_envs import Chain, FlexEnv, Independent, Layered, StaticDAG
from marft_envs.core.types import Episode, Outcome, TurnRecord
from marft_envs.records.trajectory import from_dict, to_dict, write

LENGTHS = {"a_0": 3, "b_0": 7, "c_0": 2, "d_0": 5}


def spoken(dependency: object, lengths: dict[str, int] = LENGTHS) -> Episode:
    """An episode of one round in which every agent says so many words."""
    return play(flex(len(lengths), dependency), say=lambda env, agent: "word " * lengths[agent]).episode


@pytest.mark.parametrize(("dependency", "expected"), [
    (Chain(), 3 + 7 + 2 + 5), (Independent(), 7), (Layered([["a_0", "b_0", "c_0"], ["d_0"]]), 7 + 5),
    (Layered([["a_0"], ["b_0", "c_0"], ["d_0"]]), 3 + 7 + 5),
])  # fmt: skip
def test_by_hand(dependency: object, expected: int) -> None:
    assert spoken(dependency).critical_path == expected


def test_tokens_win_over_words_and_rounds_add_up() -> None:
    env: FlexEnv = flex(2, Independent(), max_rounds=2)
    env.reset(seed=0)
    for tokens, text in [(9, "one"), (4, "four words in it"), (None, "three words here"), (0, "one")]:
        agent = env.ready_agents[0]
        env.select(agent)
        env.attach(agent, None if tokens is None else {"tokens": tokens, "prompt_tokens": 10})
        env.step(text)
    assert env.episode.critical_prefill == 10 + 10, "a layer's longest prompt, here of two of 10 and of one of 10"
    assert env.episode.critical_path == 9 + 3, "no count, or none of a reply that has words: its words"
    record = EvalRecord.of(env.episode)
    assert (record.tokens, record.processed) == (9 + 4 + 3 + 1, 9 + 4 + 3 + 1 + 30)


@pytest.mark.parametrize(("dependency", "path", "said"), [
    (Chain(), 17, 4), (Chain(), 16, 4), (Chain(), 9, 2), (Chain(), 2, 1), (Independent(), 7, 4), (Independent(), 6, 4),
])  # fmt: skip
def test_a_layer_beyond_the_longest_path_ends_the_episode_unanswered(dependency: object, path: int, said: int) -> None:
    """The task does not see it: it is neither graded nor rewarded; what came in time keeps its reward."""
    seen: list[int] = []

    def layer(turns: Sequence[TurnRecord]) -> Outcome:
        seen.append(len(turns))
        return Outcome(team_reward=0.25, success=True)

    env = flex(4, dependency, task=PlainTask(layer=layer), max_path=path)
    done = play(env, say=lambda env, agent: "word " * LENGTHS[agent]).episode
    late = done.critical_path > path
    assert len(done.turns) == said and late == (path not in (17, 7))
    assert (done.stop_reason, done.success, done.terminated) == (
        ("max_path", False, True) if late else ("max_rounds", True, True)
    )
    assert len(seen) == len(done.layers) - late and done.team_return == 0.25 * len(seen)


def test_random_dependency_functions_against_brute_force() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        D = np.triu(rng.random((4, 4)) < rng.random(), 1).astype(int)
        lengths = {name: int(rng.integers(1, 9)) for name in LENGTHS}
        done = spoken(StaticDAG(D.tolist()), lengths)
        layers = [[done.turns[i].length for i in layer.turns] for layer in done.layers]
        assert done.critical_path == max(sum(picked) for picked in itertools.product(*layers))
        heard = (path for n in range(1, 5) for path in itertools.combinations(range(4), n))
        paths = [path for path in heard if all(D[i, j] for i, j in itertools.pairwise(path))]
        longest = max(sum(list(lengths.values())[i] for i in path) for path in paths)
        assert longest <= done.critical_path <= sum(lengths.values()), "a layer waits for the whole one before"


def test_as_a_cost_it_is_charged_to_the_longest_replies() -> None:
    d = episode([["a", "b"], ["a"], ["a", "b", "c"]], tokens=[2, 3, 4, 5, 1, 5])
    assert costs_of(d, "critical_path") == [0, 3, 4, 2.5, 0, 2.5] and d.critical_path == 3 + 4 + 5
    rng = np.random.default_rng(1)
    for number in range(40):
        d = episode(random_team(rng), number=number)
        costs = costs_of(d, "critical_path")
        for layer in d.layers:
            lengths = [len(d.transitions[k].reply.action_ids) for k in layer.turns]
            assert sum(costs[k] for k in layer.turns) == pytest.approx(max(lengths))
        assert sum(costs) == pytest.approx(d.critical_path) and d.critical_path == d.episode.critical_path


def test_it_stands_in_records_metrics_and_evaluations(tmp_path: Path) -> None:
    played = [episode([["a", "b"], ["c"]], number=i, tokens=[2, 3, n]) for i, n in enumerate((1, 5))]
    assert summary(played)["critical_path"] == (4 + 8) / 2
    counted = [replace(turn, extras={"prompt_tokens": 20 + turn.index}) for turn in played[0].episode.turns]
    one = replace(played[0], episode=replace(played[0].episode, turns=counted))
    assert summary([one])["critical_path_prefill"] == 21 + 22
    run = RunFolder(tmp_path)
    write(run.episodes_file("eval", 0), [d.episode for d in played])
    assert [json.loads(x)["critical_path"] for x in run.episodes_file("eval", 0).read_text().splitlines()] == [4, 8]
    assert [record.critical_path for record in run.evaluation(0)] == [4, 8]
    altered = to_dict(played[0].episode) | {"critical_path": 99}
    assert from_dict(altered).critical_path == 4, "it is worked out of the turns, whatever the file says"
