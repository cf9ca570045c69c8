"""``marft audit``: expected updates on enumerated games, beside true gradients and beside what the learner computes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.marks import rest_in_ci
from marft_algos import credit
from marft_algos.algorithms import base
from marft_algos.algorithms.base import Algorithm
from marft_algos.algorithms.marft import MARFT
from marft_algos.algorithms.reinforce import REINFORCE
from marft_algos.batching import Batch
from marft_algos.cli import main
from marft_algos.extras.audit import commands, games, update
from marft_algos.extras.audit.episodes import TablePolicies
from marft_algos.extras.audit.games import GAMES, talk
from marft_algos.extras.audit.update import Enumeration, compared, expected
from marft_algos.learner.learner import Learner
from marft_algos.types import Trajectory

# Reward of a turn and at the end by the number of turns; then dJ/dθ("go on"), and what a large batch gives in its place.
CASES: dict[str, tuple[float, tuple[float, ...], float, dict[str, float]]] = {
    "A": (-0.1, (0.5,) * 4, -0.0687, {"reinforce_pp": -0.3949, "grpo": -0.3243, "dapo": -0.3479, "marshal": -0.3949}),
    "B": (0.1, (0.0,) * 4, 0.0687, {"reinforce_pp": 0.3949, "grpo": 0.3243, "dapo": 0.3479, "marshal": 0.0}),
    "C": (0.0, (0.4, 0.5, 0.6, 0.7), 0.0687,
          {"reinforce_pp": 0.3197, "grpo": 0.3243, "dapo": 0.3479, "marshal": -0.3040}),
    "D": (-0.1, (0.4, 0.45, 0.5, 0.55), -0.0344,
          {"reinforce_pp": -0.2510, "grpo": -0.3243, "dapo": -0.3479, "marshal": -0.3607}),
    "E": (-0.1, (0.4, 0.55, 0.7, 0.85), 0.0344,
          {"reinforce_pp": 0.1348, "grpo": 0.3243, "dapo": 0.3479, "marshal": -0.2360}),
    "F": (0.0, (0.3, 0.0, 0.0, 1.0), 0.1125,
          {"reinforce_pp": 0.1453, "grpo": 0.0716, "dapo": 0.1952, "marshal": 0.0163}),
}  # fmt: skip
EXACT = ("reinforce", "rloo", "magrpo", "spiral")
PER_TURN = ("grpo", "dr_mas", "gspo")


def shipped(name: str, **values: Any) -> Algorithm:
    return update.settings(base.get(name), values)


@pytest.mark.parametrize("case", rest_in_ci(list(CASES), 2))
def test_talks_of_a_chosen_length_against_figures_computed_by_other_means(case: str) -> None:
    """One logit for "go on" at every turn, as in a sigmoid: half of the difference of the two words' logits."""
    per_turn, final, truth, known = CASES[case]
    task = Enumeration.of(talk("", per_turn, final).env(), 1, tied=True)
    go = next(place for (_, word), place in task.tree.logits["talker_0"].items() if word == games.GO)
    assert task.true_gradient()["talker_0"][go] == pytest.approx(truth, abs=1e-4)
    known = {**known, **dict.fromkeys(EXACT, truth), "dr_mas": known["grpo"], "gspo": known["grpo"]}
    for name, wanted in known.items():
        for values in ({"turn_mean": "episode"}, {"turn_mean": "batch"}) if name in PER_TURN else ({},):
            found = expected(shipped(name, **values), task)["talker_0"][go]
            one_token = values == {"turn_mean": "batch"}  # then all tokens weigh the same, as in DAPO
            assert found == pytest.approx(known["dapo"] if one_token else wanted, abs=1e-3), (name, values)
    scaled = expected(shipped("dr_grpo"), task)["talker_0"][go]
    assert scaled * truth > 0, "dr_grpo divides by a constant"


@pytest.mark.parametrize("game", GAMES)
def test_the_true_gradient_is_the_derivative_of_the_expected_return(game: str) -> None:
    task = Enumeration.of_game(GAMES[game])
    if GAMES[game].rivals:
        pytest.skip("each agent has a return of its own: there is no one function to differentiate")

    def value() -> float:
        total = 0.0
        for play in task.whole:
            logp = sum(task.policies.reply(state, tokens).sum().item() for _, state, tokens in play.turns)
            total += math.exp(logp) / task.prompts * play.episode.team_return
        return total

    for policy, gradient in task.true_gradient().items():
        table = task.policies.tables[policy]
        for place in range(len(table)):
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    table[place] += step
                ends.append(value())
                with torch.no_grad():
                    table[place] -= step
            assert gradient[place] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


REMEDIES: dict[str, tuple[dict[str, str], set[str]]] = {
    "marshal": ({"centring": "position"}, set()),
    "mat": ({"norm": "sum"}, set()),
    "grpo": ({}, {"difficulty", "unequal-tokens"}),
    "dr_mas": ({}, {"difficulty", "unequal-tokens"}),
    "gspo": ({}, {"difficulty", "unequal-tokens"}),
    "dapo": ({}, {"difficulty"}),
}
"""Algorithm -> settings without a bias that has a remedy, and the games in which it is biased even so."""


@pytest.mark.parametrize("name", rest_in_ci(["reinforce", "mappo", "rloo", "magrpo", "spiral", "dr_grpo", "dapo", "marft",
                                             "reinforce_pp", "ippo", "happo", "a2po", "vapo", "advantage_alignment",
                                             "marshal", "mat", "grpo", "dr_mas", "gspo"], 2))  # fmt: skip
def test_algorithms_that_ascend_the_return_in_every_game_that_they_take(name: str) -> None:
    """With exact values, up to a positive factor for each policy."""
    values, biased = REMEDIES.get(name, ({}, set()))
    algorithm = shipped(name, **values)
    taken = 0
    for label, game in GAMES.items():
        if not game.ordinary:
            continue
        task = Enumeration.of_game(game, shared="shared" in algorithm.needs)
        try:
            found = compared(expected(algorithm, task), task.true_gradient())
        except base.ConfigError:
            assert game.rivals
            continue
        taken += 1
        assert found.exact == (label not in biased) and (found.wrong == 0 or biased), (game.about, found)
    assert taken >= sum(game.ordinary for game in GAMES.values()) - 2


@pytest.mark.parametrize(("name", "exact"), [
    ("SeqMeanTokenMean", {"private"}), ("TokenMean", {"talk", "private", "unequal-tokens"}),
    ("SeqMeanTokenSumNorm", {"talk", "private", "unequal-tokens", "difficulty"}), ("TurnRows", {"talk", "private"}),
    ("ReMA", {"private"}), ("DrMAS", {"talk", "private", "unequal-tokens"}), ("ATGRPO", set()),
    ("MAGRPO", {"talk", "private", "unequal-tokens", "difficulty"}),
    ("C3", {"talk", "private", "unequal-tokens", "difficulty"}),
])  # fmt: skip
def test_estimators_of_other_projects(name: str, exact: set[str]) -> None:
    made = update.settings(base.get(f"examples.estimators:{name}"), {})
    tasks = {game: Enumeration.of_game(GAMES[game]) for game in ("talk", "private", "unequal-tokens", "difficulty")}
    found = {game for game, task in tasks.items() if compared(expected(made, task), task.true_gradient()).exact}
    assert found == exact
    if name != "ATGRPO":  # which knows each agent's own reward
        with pytest.raises(base.ConfigError, match="rewards"):
            expected(made, Enumeration.of_game(GAMES["zero-sum"]))


def test_groups_of_four_are_drawn_exactly() -> None:
    """Leave-one-out baselines are unbiased in groups of any size; a group's mean takes 1/G of the gradient."""
    task = Enumeration.of_game(GAMES["talk"])
    truth = task.true_gradient()
    assert compared(expected(shipped("rloo"), task, group_size=4), truth).scale == pytest.approx(1.0, abs=1e-6)
    constant, large = (expected(shipped("dr_grpo"), task, group_size=size) for size in (4, 2))
    ratio = np.linalg.norm(constant["talker_0"]) / np.linalg.norm(large["talker_0"])
    assert ratio == pytest.approx((3 / 4) / (1 / 2), abs=1e-6)
    with pytest.raises(base.ConfigError, match="smaller --group-size"):
        expected(shipped("rloo"), Enumeration.of_game(GAMES["steps"]), group_size=8)


class Trainable(TablePolicies):
    """With what a learner asks of policies beside their log-probs."""

    version, device = 0, torch.device("cpu")

    def trainable(self, policy: str) -> bool:
        return True

    def parameters(self, policy: str) -> list[Tensor]:
        return [self.tables[policy]]

    def shares(self, policy: str) -> bool:
        return False

    def reference_logprobs(self, policy: str, input_ids: Tensor, action_mask: Tensor, temperature: Tensor) -> Tensor:
        return self.logprobs(policy, input_ids, action_mask, temperature)[0].detach()


class Gradients:
    """Stands where an optimiser would: keeps the gradient, and takes no step."""

    kept: dict[str, np.ndarray] = {}  # noqa: RUF012

    def __init__(self, name: str, parameters: Sequence[Tensor], lr: float, eps: float, max_norm: float | None) -> None:
        self.name, self.parameters = name, parameters

    def zero_grad(self) -> None:
        for tensor in self.parameters:
            tensor.grad = None

    def rate(self, lr: float) -> None:
        pass

    def step(self) -> float:
        self.kept[self.name] = -self.parameters[0].grad.numpy()  # type: ignore[union-attr]
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("name", ["reinforce", "grpo", "dapo", "marshal", "magrpo", "reinforce_pp"])
@pytest.mark.parametrize("game", ["talk-two", "unequal-tokens"])
def test_the_update_is_the_learners_own(name: str, game: str) -> None:
    task = Enumeration.of_game(GAMES[game])
    trajectories = task.batch(16)
    algorithm = shipped(name)
    own = update.ascent(algorithm, trajectories, task.policies)
    Gradients.kept = {}
    Learner(shipped(name), Trainable(task.tree), optimiser=Gradients).update(trajectories, 0)
    assert Gradients.kept.keys() == own.keys()
    for policy, gradient in own.items():
        np.testing.assert_allclose(gradient, Gradients.kept[policy], atol=1e-5)


class PerTurn(REINFORCE):
    """A planted 1/T: a mean over an agent's turns."""

    def reduce(self, x: Tensor, batch: Batch) -> Tensor:
        return batch.episode_mean(batch.row_sum(x))

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        return batch.episode_mean(-batch.advantages * batch.row_sum(logprobs)), {}


class Uncentred(base.get("marshal")):  # type: ignore[misc]
    """MARSHAL without its first centring: the baseline no longer depends on when the episode ends."""

    def credit(self, trajectories: Sequence[Trajectory], estimates: Any) -> dict[str, float]:
        for d in trajectories:
            togo = credit.returns_to_go(d, self.chain_of(d, estimates))
            for t, g in zip(d.transitions, togo, strict=True):
                estimates.advantages[t] = np.array([g], np.float32)
        return {}


class OwnTurns(MARFT):
    """A planted wrong successor relation: a turn is credited with its own rewards alone."""

    def chain_of(self, trajectory: Trajectory, estimates: Any) -> Any:
        chain = super().chain_of(trajectory, estimates)
        chain.successors = [() for _ in chain.successors]
        return chain


def test_planted_faults_are_found_and_their_absence_too() -> None:
    task = Enumeration.of_game(GAMES["talk"])
    truth = task.true_gradient()
    assert not compared(expected(update.settings(PerTurn, {}), task), truth).exact
    assert compared(expected(shipped("marshal"), task), truth).cosine == pytest.approx(-1.0, abs=1e-3)
    assert compared(expected(update.settings(Uncentred, {}), task), truth).exact
    steps = Enumeration.of_game(GAMES["steps"])
    task = Enumeration.of_game(GAMES["private"])
    assert compared(expected(shipped("marft"), task), task.true_gradient()).exact
    assert not compared(expected(update.settings(OwnTurns, {}), task), task.true_gradient()).exact
    assert compared(expected(shipped("marft"), steps), steps.true_gradient()).exact


@pytest.mark.parametrize("game", ["talk", "talk-two"])
def test_values_matter_below_lambda_1_alone(game: str) -> None:
    """At λ = 1 no critic biases the update; below it, only exact values do not."""
    task = Enumeration.of_game(GAMES[game])
    truth = task.true_gradient()
    for lam, unbiased in ((1.0, {"zero", "fitted", "exact"}), (0.5, {"exact"})):
        algorithm = shipped("mappo", lambda_turn=lam, whiten="off")
        found = {
            critic for critic in get_args(update.Critic) if compared(expected(algorithm, task, critic), truth).exact
        }
        assert found == unbiased, lam


def test_v_trace_corrects_what_stale_turns_are_credited_with_and_a_clip_what_has_moved_far() -> None:
    """Of the true gradient of a state, what is left is how often it was visited, to how often it would be now."""
    stale = dataclasses.replace(GAMES["talk"], moved=0.05)
    task = Enumeration.of_game(stale)
    with task.moved():
        truth = task.true_gradient()["talker_0"]
    go = 1 / (1 + math.exp(-0.1))
    visits = np.repeat([(0.5 / go) ** k for k in range(4)], 2) / 1.875  # the loss is a mean over turns
    free = {"whiten": "off", "rho_bar": 1e6, "c_bar": 1e6, "clip": 0.99}
    corrected = expected(shipped("mappo", vtrace=True, **free), task)["talker_0"]
    np.testing.assert_allclose(corrected, truth * visits, atol=1e-6)
    plain = expected(shipped("mappo", **free), task)["talker_0"]
    assert np.abs(plain - truth * visits).max() > 1e-4


def test_clips_bind_turn_by_turn_where_policies_have_moved_far() -> None:
    """Against a loop over talks of 1 to 4 turns; a word's ratio is 2·0.65 or 2·0.35."""
    task = Enumeration.of_game(dataclasses.replace(GAMES["talk"], moved=0.3))
    go, final = 1 / (1 + math.exp(-0.6)), (0.4, 0.5, 0.6, 0.7)
    value = [0.0, 0.0, 0.0, 0.7]
    for k in (2, 1, 0):
        value[k] = go * value[k + 1] + (1 - go) * final[k]
    wanted = np.zeros(8)
    for word in range(8):  # of the fourth turn, both words end the talk
        turns = min(word // 2, 3) + 1
        for k in range(turns):
            says_go = k < turns - 1 or word == 6
            share, ratio = 0.5 ** (turns if turns < 4 else 4), 2 * (go if says_go else 1 - go)
            gain = final[turns - 1] - value[k]
            if (word % 2 and turns < 4) or gain * (ratio - 1) > 0:  # each talk once, and what the clip cuts
                continue
            wanted[2 * k : 2 * k + 2] += share * ratio * gain * (np.array([1, 0] if says_go else [0, 1]) - [go, 1 - go])
    found = expected(shipped("mappo", whiten="off"), task)["talker_0"]
    np.testing.assert_allclose(1.875 * found, wanted, atol=1e-6)


def test_a_critic_looks_beyond_a_truncation() -> None:
    task = Enumeration.of_game(GAMES["truncated"])
    truth = task.true_gradient()["talker_0"]
    seen = np.arange(len(truth)) < 4
    update_of = {
        critic: expected(shipped("mappo", whiten="off"), task, critic)["talker_0"] for critic in ("exact", "zero")
    }
    np.testing.assert_allclose(1.5 * update_of["exact"], np.where(seen, truth, 0.0), atol=1e-6)  # 1.5 turns an episode
    assert (update_of["zero"] * truth)[seen].min() < 0


def test_lost_episodes_leave_a_sample_of_the_others() -> None:
    task = Enumeration.of_game(GAMES["lost"])
    lengths = Counter(len(d.transitions) for d in task.batch())
    assert [lengths[n] / lengths[1] for n in (2, 3, 4)] == [1 / 2, 1 / 4, 1 / 8]
    assert not compared(expected(shipped("reinforce"), task), task.true_gradient()).exact


def test_updates_of_small_batches_scatter_by_the_root_of_their_size() -> None:
    task = Enumeration.of_game(GAMES["talk"])
    small, large = (update.noise(shipped("rloo"), task, "exact", episodes) for episodes in (16, 64))
    assert large / small == pytest.approx(1 / 2, abs=0.1)


@pytest.mark.parametrize(("name", "values", "low", "high"), [
    ("reinforce", {}, 0.68, 0.7), ("marshal", {}, 0.4, 0.42), ("marshal", {"centring": "position"}, 0.68, 0.7),
])  # fmt: skip
def test_plain_ascent_ends_where_the_update_points(name: str, values: dict[str, str], low: float, high: float) -> None:
    task = Enumeration.of_game(GAMES["talk"])
    assert task.score() == pytest.approx(0.4875)
    for _ in range(2):  # the policies are as before, each time
        assert low < update.climbed(shipped(name, **values), task, "exact", 30) < high


# The command ----------------------------------------------------------------------------------------


def test_the_command_prints_a_table_of_80_columns_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "reinforce", "marshal", "--game", "talk"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "marshal    -1.000" in shown and "arXiv 2510.15414" in shown and "6 of 6" in shown
    assert main(["audit", "reinforce", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["game"] for row in rows} == {name for name, game in GAMES.items() if game.ordinary}
    assert all(row.get("exact") or row["refused"] for row in rows)


def test_every_combination_of_settings_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "magrpo", "grpo", "--all", "--game", "flat", "--batch", "4", "--climb", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "algorithm  cosine  scale  wrong signs  noise  score"
    assert {line for line in lines if line.startswith("grpo")} == {"grpo turn_mean=batch", "grpo turn_mean=episode"}
    shown = {rule: lines[lines.index(f"magrpo credit={rule}") + 1] for rule in ("broadcast", "blame", "counterfactual")}
    assert shown == {**dict.fromkeys(("broadcast", "blame"), "  –  –  0 of 0  –  1.000"), "counterfactual": "  refused"}
    assert main(["audit", "magrpo", "--credit", "blame"]) == 0 and "magrpo     16 of 16  –" in capsys.readouterr().out


@pytest.mark.ci
def test_the_whole_table_names_every_algorithm_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = {line.split()[0] for line in lines[1 : lines.index("")]}
    assert named | set(commands.OUT) == set(base.names()) and not named & set(commands.OUT)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("words", "message"), [
    ("sft", "sft has no expected update here: it imitates demonstrations"),
    ("grpo --game tlk", "There is no game 'tlk'. Did you mean 'talk'"),
    ("grpo --batch 8", "--batch and --climb look at one task: choose it with --game NAME or --env ID"),
    ("grpo --env steps-v0 --env-kwargs horizon=16", "more than 12 turns, too many to enumerate"),
])  # fmt: skip
def test_what_cannot_be_audited_is_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *words.split()]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_task_of_ones_own_is_audited(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "marft", "grpo", "--env", "relay-v0", "--prompts", "4", "--json"]) == 0
    assert [row["exact"] for row in json.loads(capsys.readouterr().out)] == [True, True]


def test_every_game_has_a_reward_that_depends_on_what_is_said_but_the_flat_one() -> None:
    for name, game in GAMES.items():
        returns = {play.value(game.agents[0]) for play in Enumeration.of_game(game).plays}
        assert (len(returns) == 1) is (name == "flat")
