"""The simulator of many GPUs: against closed forms where lengths are constant, its bound of staleness, its table."""

from __future__ import annotations

import dataclasses
import random
import sys

import pytest

from benchmarks.speed import scale_sim
from benchmarks.speed.scale_sim import Fleet, Load, Rates, colocated, fastest, split

RATES = Rates(step=0.01, row=0.001, train=1000.0, publish=0.5, switch=2.0)
EVEN = Load(8, turns=1, tokens=100.0, sigma=0.0, wait=0.0)
ODD = Load(24, turns=2, tokens=60.0, sigma=0.9, wait=0.3)


def test_rows_of_an_engine_advance_together_and_faster_when_others_have_ended() -> None:
    fleet = Fleet(1, 8, RATES, EVEN, random.Random(0))
    for number, tokens in enumerate((20.0, 5.0, 9.0)):
        fleet.start(number, [tokens])
    ends = []
    for _ in range(3):
        done = fleet.step()
        assert done is not None
        ends.append((done[0], fleet.now))
    first = 5 * RATES.pace(3)
    second = first + 4 * RATES.pace(2)
    assert [number for number, _ in ends] == [1, 2, 0]
    assert [at for _, at in ends] == pytest.approx([first, second, second + 11 * RATES.pace(1)])


def test_colocated_is_the_sum_of_playing_and_learning() -> None:
    for gpus, turns, wait in ((1, 1, 0.0), (2, 1, 0.0), (4, 3, 0.7)):
        load = dataclasses.replace(EVEN, turns=turns, wait=wait)
        tokens = 8 * turns * 100
        play = turns * 100 * RATES.pace(8 // gpus) + (turns - 1) * wait
        seconds = play + tokens / (RATES.train * gpus) + RATES.switch
        found = colocated(gpus, load, RATES, slots=8, iterations=3)
        assert found.speed == pytest.approx(tokens / seconds / gpus)
    # Two waves where the slots hold half of the episodes.
    halves = colocated(1, EVEN, RATES, slots=4, iterations=2)
    assert halves.speed == pytest.approx(800 / (2 * 100 * RATES.pace(4) + 0.8 + RATES.switch))


@pytest.mark.parametrize("train", [100.0, 1000.0])
def test_without_staleness_times_add_up_and_with_it_the_longer_one_counts(train: float) -> None:
    rates = dataclasses.replace(RATES, train=train)
    play, learn = 100 * rates.pace(8), 800 / train + rates.publish
    assert (play < learn) == (train == 100.0), "both cases are there"
    for staleness, seconds in ((0, play + learn), (1, max(play, learn)), (3, max(play, learn))):
        found = split(2, 1, staleness, EVEN, rates, slots=8, iterations=5)
        assert found.speed == pytest.approx(800 / seconds / 2)
        assert found.learning == pytest.approx(learn / seconds)
        assert found.oldest == (0 if not staleness else found.oldest) <= staleness
    # Two workers play in half the rows; three ranks learn in a third of the time.
    more = split(5, 2, 0, EVEN, rates, slots=8, iterations=3)
    assert more.speed == pytest.approx(800 / (100 * rates.pace(4) + 800 / train / 3 + rates.publish) / 5)


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_no_episode_is_older_than_the_bound(staleness: int) -> None:
    found = split(4, 2, staleness, ODD, RATES, slots=16, iterations=6)
    assert found.oldest <= staleness
    assert staleness == 0 or found.oldest > 0, "otherwise nothing was tested"


def test_learning_in_the_order_of_arrival_lets_slow_episodes_grow_older() -> None:
    long = dataclasses.replace(ODD, sigma=1.5)
    ordered, arrived = (split(4, 2, 1, long, RATES, slots=32, iterations=8, arrival=a) for a in (False, True))
    assert ordered.oldest <= 1 < arrived.oldest


def test_a_seed_gives_the_same_run_and_another_one_another() -> None:
    runs = [split(4, 2, 1, ODD, RATES, slots=16, iterations=3, seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_lengths_have_the_mean_that_is_stated() -> None:
    rng = random.Random(0)
    drawn = [tokens for _ in range(20_000) for tokens in Load(1, 2, 600.0, 0.5).draw(rng)]
    assert sum(drawn) / len(drawn) == pytest.approx(600, rel=0.02)


def test_the_fastest_split_is_the_best_of_those_that_are_tried() -> None:
    best, workers = fastest(8, 1, ODD, RATES, slots=16, iterations=2)
    speeds = {n: split(8, n, 1, ODD, RATES, slots=16, iterations=2).speed for n in range(1, 8)}
    assert best.speed == speeds[workers] and 1 <= workers < 8
    assert best.speed == max(speeds[n] for n in (2, 4, 5, 6, 7))


def test_the_table_has_a_row_for_each_number_of_gpus_and_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--gpus", "2", "4", "--wait", "0", "1", "--staleness", "0", "1", "--episodes", "4", "--iterations", "1"]
    monkeypatch.setattr(sys, "argv", ["scale_sim", *words])
    scale_sim.main()
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line.startswith(("| 2 |", "| 4 |"))]
    assert len(lines) == 4 and "staleness 1" in shown and "AReaL" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--gpus", "1"], "at least 2"), (["--train", "0"], "--train"), (["--staleness", "-1"], "--staleness")],
)
def test_rates_that_cannot_be_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scale_sim.arguments(words)
    assert said in capsys.readouterr().err
