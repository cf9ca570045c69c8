"""Outages are no scores: left out of loss, groups, metrics and evaluations, counted, and too many stop the run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import marft_algos
import marft_envs
import marft_envs.records.trajectory
from helpers.fake_servers import Answer, chat, serving
from helpers.marks import rest_in_ci
from helpers.runs import Letters, quiet_display, settings, timeless, train
from marft_algos.cli import main
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import row_seed
from marft_algos.engines.scripted import ScriptedEngine
from marft_algos.evaluation import play
from marft_algos.extras.bench import worker
from marft_algos.rollout import episodes as faults
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.episodes import Prompts
from marft_algos.runs import folder as runs
from marft_algos.runs import report
from marft_algos.runs.folder import RunFolder
from marft_algos.training.compare import compare
from marft_algos.training.parts import Parts, build
from marft_algos.training.trainer import Trainer
from marft_algos.types import SamplingParams, StopReason, Trajectory
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError, MarftError
from marft_envs.families.tools.depot.domain import Depot

Breaks = Callable[[str, int], Exception | None]
"""(task id, episodes judged before) -> what is raised instead of a verdict."""
BREAKS: list[Breaks] = []


class Fragile(Letters):
    """Letters whose judge does what a test says."""

    judged = 0

    def on_round(self, turns: Sequence[marft_envs.TurnRecord]) -> marft_envs.Outcome:
        number, Fragile.judged = Fragile.judged, Fragile.judged + 1
        error = BREAKS[-1](turns[-1].text, number) if BREAKS else None
        if error is not None:
            raise error
        return super().on_round(turns)


def make_fragile() -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec("planner_0", "planner", "Plan."), marft_envs.AgentSpec("solver_0", "solver", "Solve.")]
    return marft_envs.FlexEnv(team, Fragile(), marft_envs.Chain())


marft_envs.register("test/fragile-v0", make_fragile)


@pytest.fixture
def breaks() -> Iterator[Callable[[Breaks], None]]:
    Fragile.judged = 0
    yield BREAKS.append
    BREAKS.clear()


def fragile(model: Path, runs_dir: Path, **changes: Any) -> Any:
    return settings(model, runs_dir, env="test/fragile-v0", **changes)


# The run stops ------------------------------------------------------------------------------------------


KNOWN = {"levels": [0], "show_policy": False, "show_tools": "none"}
"""What the embedded model knows by heart."""


class Flaky(Depot):
    """The world of tools-depot, every second of whose calls finds nobody there."""

    calls = 0

    def open(self, problem: Any) -> Any:
        world = super().open(problem)
        call = world.call

        def failing(name: str, arguments: Any) -> Any:
            Flaky.calls += 1
            if Flaky.calls % 2:
                raise ConnectionError("connection refused")
            return call(name, arguments)

        world.call = failing
        return world


def test_an_outage_of_a_tool_world_is_not_published_as_a_learning_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured before: "0.000 [0.000, 0.010]" untrained, "gain +0.300 [+0.254, +0.349]" after two such iterations."""
    small = {"eval_episodes": 6, "episodes_per_iteration": 8, "iterations": 2, "runs_dir": str(tmp_path), "name": "run"}
    with pytest.raises(
        faults.InfrastructureError, match=r"6 episodes.*world; the first: world_crashed.*ConnectionError.*--resume"
    ):
        marft_algos.train("tools", env="tools-solo-v0", env_kwargs=KNOWN | {"domain": "test_outages:Flaky"}, **small)
    run = RunFolder.open(tmp_path / "run")
    assert run.gain() is None and not run.metrics(), "no score of an evaluation that was not one"
    assert "gain" not in capsys.readouterr().out


@pytest.mark.parametrize("where", rest_in_ci(["baseline", "collecting", "evaluating"]))
def test_a_run_stops_at_an_outage_and_goes_on_as_if_there_had_been_none(
    where: str, model: Path, tmp_path: Path, breaks: Callable[[Breaks], None]
) -> None:
    """10 episodes an evaluation, 12 an iteration: 0-9 untrained, 10-21, 22-33, 34-43 evaluated after iteration 2."""
    _, whole = train(fragile(model, tmp_path, name="whole"))
    Fragile.judged = 0
    down = {"baseline": range(4), "collecting": range(24, 30), "evaluating": range(36, 40)}[where]
    breaks(lambda text, number: ConnectionError("the judge is away") if number in down else None)
    trainer = Trainer(build(fragile(model, tmp_path, name="run")))
    run = trainer.start()
    with (
        pytest.raises(
            faults.InfrastructureError, match=r"(?s)machine.*the judge is away.*max_error_rate.*--resume .*run"
        ) as stopped,
        quiet_display() as display,
    ):
        trainer.train(run, display)
    assert isinstance(stopped.value, MarftError)
    BREAKS.clear()
    again = Trainer(build(marft_algos.config.settings.load(run.config_file)))
    again.resume(run)
    assert again.progress.iteration == {"baseline": 0, "collecting": 1, "evaluating": 2}[where], "nothing is done twice"
    with quiet_display() as display:
        again.train(run, display)
    assert run.recorded("eval") == whole.recorded("eval")
    for iteration in whole.recorded("eval"):
        assert [e.outcome for e in run.evaluation(iteration)] == [e.outcome for e in whole.evaluation(iteration)]
    ends = (
        [line for line in timeless(run) if line["iteration"] == 4],
        [line for line in timeless(whole) if line["iteration"] == 4],
    )
    assert ends[0] == ends[1]


class Unready(Letters):
    """Letters that raise when an episode starts, or when an agent is told about it."""

    def reset(self, rng: np.random.Generator, options: Any) -> None:
        super().reset(rng, options)
        STARTED.append(1)
        if RAISED and len(STARTED) >= RAISED[0]:
            raise RAISED[1]

    def observe(self, agent: str) -> str:
        if RAISED and RAISED[0] == 0:
            raise RAISED[1]
        return super().observe(agent)


STARTED: list[int] = []
RAISED: list[Any] = []
"""The episode from which on it raises (0: the first look), and what."""


def make_unready() -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec("planner_0", "planner", "Plan."), marft_envs.AgentSpec("solver_0", "solver", "Solve.")]
    return marft_envs.FlexEnv(team, Unready(), marft_envs.Chain())


marft_envs.register("test/unready-v0", make_unready)


@pytest.mark.parametrize("when", [1, 4, 0])
@pytest.mark.parametrize(("what", "kind", "said"), [
    (KeyError("row"), "TaskError", r"KeyError: 'row' \(.*test_outages.py, line .*marft check test/unready-v0"),
    (ConnectionError("refused"), "InfrastructureError", "ConnectionError: refused .*marft play test/unready-v0 --random"),
])  # fmt: skip
def test_a_world_that_does_not_start_is_told_in_one_line_before_there_is_a_run(
    when: int, what: Exception, kind: str, said: str, model: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    STARTED.clear()
    RAISED[:] = [when, what]
    try:
        argv = ["train", "--env", "test/unready-v0", "--models", str(model), "--preset", "toy"]
        assert main(argv) == 1
        shown = capsys.readouterr().err
        assert re.search(said, shown) and "Traceback" not in shown
        STARTED.clear()
        with pytest.raises(getattr(faults, kind)):
            main([*argv, "--debug"])
        assert not (here / "runs").exists()
    finally:
        RAISED.clear()


DEAD_SERVER = """
from marft_envs import register
from marft_envs.families.tools import ToolProblem, make
from marft_envs.families.tools.mcp import MCPToolDomain


def dead(**kwargs):
    problems = [ToolProblem("dead/0", ("?",), 1)]
    return make("solo", MCPToolDomain(["sh", "-c", "exit 3"], problems, grade=lambda world, problem: 0.0), **kwargs)


register("dead-v0", dead)
"""


def test_a_server_that_does_not_start_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcp", reason="mcp comes with its extra")
    (tmp_path / "dead_server.py").write_text(DEAD_SERVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    argv = ["train", "--env", "dead_server:dead-v0"]
    assert main(argv) == 1
    shown = capsys.readouterr().err
    assert (
        "'sh' does not start" in shown
        and "marft play dead_server:dead-v0 --random" in shown
        and "Traceback" not in shown
    )
    with pytest.raises(faults.InfrastructureError):
        main([*argv, "--debug"])


def test_the_command_line_says_it_in_one_line(
    model: Path, tmp_path: Path, breaks: Callable[[Breaks], None], capsys: pytest.CaptureFixture[str]
) -> None:
    breaks(lambda text, number: OSError("the network is down") if number % 2 else None)
    path = tmp_path / "config.toml"
    path.write_text(fragile(model, tmp_path, name="run").to_toml())
    assert main(["train", "--config", str(path)]) == 1
    said = capsys.readouterr()
    assert "error: " in said.err and "max_error_rate" in said.err and "gain" not in said.out
    assert main(["eval", "--untrained", "--env", "test/fragile-v0", "--models", str(model), "--episodes", "8"]) == 1
    assert "of an evaluation" in capsys.readouterr().err


def test_a_run_can_be_told_to_take_more(model: Path, tmp_path: Path, breaks: Callable[[Breaks], None]) -> None:
    breaks(lambda text, number: ConnectionError("away") if number % 2 else None)
    _, run = train(fragile(model, tmp_path, iterations=2, max_error_rate=0.6))
    lines = run.metrics()
    assert [line["eval/infrastructure_errors"] for line in lines if "eval/infrastructure_errors" in line] == [5, 5]
    assert [line["infrastructure_errors"] for line in lines[1:]] == [6, 6] and lines[1][
        "infrastructure_error_rate"
    ] == 0.5
    with pytest.raises(MarftError, match="max_error_rate"):
        fragile(model, tmp_path, max_error_rate=1.5)


# A small share is left out ------------------------------------------------------------------------------


class Without:
    """An engine that has no reply for some rows, and asks the engine for the rest."""

    def __init__(self, engine: Any, seeds: set[int]) -> None:
        self._engine, self._seeds = engine, seeds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, requests: Any, params: Any) -> Any:
        replies = self._engine.generate(requests, params)
        return [
            replace(reply, stop_reason=StopReason.ERROR, error="away", action_ids=[], logprobs=reply.logprobs[:0])
            if request.seed in self._seeds
            else reply
            for request, reply in zip(requests, replies, strict=True)
        ]


def without(made: TrainConfig, rows: set[int]) -> Parts:
    """The parts of a run whose engine has no reply for some rows."""
    parts = build(made)
    parts.engine = Without(parts.engine, rows)  # type: ignore[assignment]
    return parts


class Shorter(Prompts):
    """A panel without its last episode, however often its starts are repeated."""

    def repeated(self, times: int) -> Prompts:
        whole = super().repeated(times)
        return Prompts(whole.seeds[:-1], whole.options[:-1])


@pytest.mark.parametrize(
    ("algo", "turn"), rest_in_ci([("marft", 1), ("grpo", 0), ("reinforce", 1), ("rloo", 1), ("dapo", 1)], 2)
)
def test_an_update_is_that_of_the_episodes_that_were_played(algo: str, turn: int, model: Path, tmp_path: Path) -> None:
    """Bit for bit: an episode lost in its first or second turn leaves no trace in weights, groups or scores."""
    own: dict[str, Any] = {"group_size": 4} if algo in ("grpo", "rloo", "dapo") else {}
    own |= {"epochs": 1, "minibatches": 1} if algo in ("reinforce", "rloo") else {}
    made = dict(algo=algo, iterations=1, engine_batch=1, algorithm=own, save_every=1)
    lost = Trainer(without(settings(model, tmp_path, name="lost", **made), {row_seed(0, 0, 11, turn)}))
    parts = build(settings(model, tmp_path, name="never", **made))
    given = parts.problems
    parts.problems = SimpleNamespace(
        held_out=given.held_out, apart=given.apart, train=lambda *a: _shorter(given.train(*a))
    )  # type: ignore[assignment]
    never = Trainer(parts)
    runs_ = []
    for trainer in (lost, never):
        runs_.append(trainer.start())
        with quiet_display() as display:
            trainer.train(runs_[-1], display)
    one, other = lost.policies.state_dict(), never.policies.state_dict()
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
    a, b = (run.metrics()[-1] for run in runs_)
    assert (a["infrastructure_errors"], a["infrastructure_error_rate"], b["infrastructure_errors"]) == (1, 1 / 12, 0)
    skipped = ("time_", "tokens", "latency_played", "episodes", "infrastructure_error", "failed", "engine/", "groups")
    assert {k: v for k, v in a.items() if not k.startswith(skipped)} == {
        k: v for k, v in b.items() if not k.startswith(skipped)
    }


def _shorter(prompts: Prompts) -> Prompts:
    return Shorter(prompts.seeds, prompts.options)


def test_permuted_rewards_are_those_of_episodes_that_were_played(
    model: Path, tmp_path: Path, breaks: Callable[[Breaks], None]
) -> None:
    breaks(lambda text, number: ConnectionError() if number == 12 else None)
    trainer = Trainer(build(fragile(model, tmp_path, permute_rewards=True, iterations=1)))
    learnt: list[Trajectory] = []
    update = trainer.learner.update
    trainer.learner.update = lambda t, i: (learnt.extend(t), update(t, i))[1]  # type: ignore[func-returns-value,method-assign]
    with quiet_display() as display:
        trainer.train(trainer.start(), display)
    assert len(learnt) == 11
    earned = sorted(
        sum("a" <= c <= "z" for c in t.transitions[-1].turn.text) / max(len(t.transitions[-1].turn.text), 1)
        for t in learnt
    )
    assert earned == pytest.approx(sorted(t.layers[-1].team_reward for t in learnt)), (
        "what a lost episode earned is nobody's"
    )


def test_a_hosted_partner_that_says_nothing_has_answered(model: Path, tmp_path: Path) -> None:
    """What it left empty stays in the update: leaving it out would choose episodes by how they went."""
    calls = itertools.count()

    def answer(path: str, body: dict[str, Any]) -> Answer:
        odd = [(200, chat("")), (403, {"error": {"message": "flagged"}})]
        number = next(calls) % 6
        return odd[number] if number < 2 else (200, chat("ab"))

    with serving(answer) as fake:
        engines = {"planner_0": {"kind": "openai", "model": "m", "url": fake.url, "retries": 0, "concurrency": 1}}
        _, run = train(settings(model, tmp_path, iterations=1, engines=engines, eval_episodes=6))
    line = run.metrics()[-1]
    assert (line["infrastructure_errors"], line["failed"], line["policy/solver_0/rows"]) == (0, 0.0, 12)
    assert (line["engine/failed"], line["engine/empty"], line["engine/refused"]) == (0, 6, 3)


def test_a_local_prompt_that_does_not_fit_is_a_turn_without_a_loss(model: Path, tmp_path: Path) -> None:
    parts = build(settings(model, tmp_path, iterations=1))
    chats = parts.policies.renderer.chat("solver_0")
    chats.context = 8  # as if a later problem's tools filled it: what the check before a run does not see
    trainer = Trainer(parts)
    run = trainer.start()
    with quiet_display() as display:
        trainer.train(run, display)
    line = run.metrics()[-1]
    assert line["infrastructure_errors"] == 0 and line["return"] == 0.0


# Refills and branches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "ends"), [(0.3, True), (0.2, False)])
def test_a_refill_that_is_lost_counts_with_the_rest_of_its_iteration(
    allowed: float, ends: bool, model: Path, tmp_path: Path
) -> None:
    """12 episodes in three groups; one is not wanted, and all 4 episodes played in its place are lost: 4 of 16."""
    own = {"group_size": 4, "refills": 1}
    made = settings(model, tmp_path, algo="grpo", iterations=1, max_error_rate=allowed, algorithm=own)
    trainer = Trainer(without(made, {row_seed(0, 0, e, 1) for e in range(12, 16)}))
    groups: list[int] = []
    trainer.learner.algorithm.wanted = lambda group: bool(groups.append(len(group)) or len(groups) > 1)  # type: ignore[method-assign]
    run = trainer.start()
    with quiet_display() as display:
        if ends:
            trainer.train(run, display)
            assert run.metrics()[-1]["infrastructure_errors"] == 4 and run.metrics()[-1]["episodes_played"] == 16
        else:
            with pytest.raises(faults.InfrastructureError, match="4 of the 16 episodes of iteration 1"):
                trainer.train(run, display)
    assert groups == [4, 4, 4, 0]


@pytest.mark.parametrize(("allowed", "ends"), [(0.6, True), (0.4, False)])
def test_lost_branches_count_with_the_episodes_of_their_iteration(
    allowed: float, ends: bool, model: Path, tmp_path: Path
) -> None:
    """Of each episode: the planner's two candidates are tried and lost with the solver's first; its second is not."""
    made = settings(model, tmp_path, algo="at_grpo", iterations=1, max_error_rate=allowed, algorithm={"candidates": 2})
    trainer = Trainer(without(made, {row_seed(0, 0, e, 1) for e in range(12)}))
    run = trainer.start()
    with quiet_display() as display:
        if ends:
            trainer.train(run, display)
            line = run.metrics()[-1]
            assert (line["infrastructure_errors"], line["branches"], line["branches_lost"]) == (0, 36, 24)
        else:
            with pytest.raises(
                faults.InfrastructureError, match="24 of the 48 episodes of iteration 1, branches included"
            ):
                trainer.train(run, display)


def test_however_many_may_be_lost_never_all(model: Path, tmp_path: Path) -> None:
    made = settings(model, tmp_path, iterations=1, max_error_rate=1.0)
    trainer = Trainer(without(made, {row_seed(0, 0, e, 0) for e in range(12)}))
    with quiet_display() as display, pytest.raises(faults.InfrastructureError, match="12 episodes"):
        trainer.train(trainer.start(), display)


# A text's fault stays -----------------------------------------------------------------------------------


def test_a_text_that_breaks_its_judge_stays_in_its_group_with_the_worst_reward(
    model: Path, tmp_path: Path, breaks: Callable[[Breaks], None]
) -> None:
    breaks(lambda text, number: ValueError("cannot judge this") if number in (11, 17) else None)
    trainer = Trainer(build(fragile(model, tmp_path, algo="grpo", iterations=1, algorithm={"group_size": 4})))
    learnt: list[Trajectory] = []
    update = trainer.learner.update
    trainer.learner.update = lambda t, i: (learnt.extend(t), update(t, i))[1]  # type: ignore[func-returns-value,method-assign]
    run = trainer.start()
    with quiet_display() as display:
        trainer.train(run, display)
    assert len(learnt) == 12
    broken = [t for t in learnt if t.fault == "text"]
    assert len(broken) == 2
    for t in broken:
        group = [other for other in learnt if other.group == t.group]
        assert len(group) == 4 and t.score == t.layers[-1].team_reward == 0.0 == t.episode.team_return
        advantages = [float(trainer.learner.estimates.advantages[other.transitions[-1]][0]) for other in group]
        assert advantages[group.index(t)] == min(advantages)
        assert max(advantages) > min(advantages) or all(other.score == 0 for other in group)
    line = run.metrics()[-1]
    assert (line["task_errors"], line["infrastructure_errors"], line["failed"]) == (2, 0, 2 / 12)
    assert line["return"] == pytest.approx(np.mean([t.score for t in learnt]))


@pytest.mark.parametrize(("worst", "paid"), [(None, -0.5), (-3.0, -3.0)])
def test_the_worst_is_what_the_task_says_or_the_lowest_that_was_seen(worst: float | None, paid: float) -> None:
    from helpers.flex import PlainTask, flex

    def layer(turns: Sequence[Any]) -> marft_envs.Outcome:
        if turns[0].text == "break":
            raise ValueError
        return marft_envs.Outcome(team_reward=float(turns[0].text))

    def build() -> marft_envs.FlexEnv:
        task = PlainTask(layer)
        if worst is not None:
            task.worst_return = worst  # type: ignore[attr-defined]
        return flex(1, task=task)

    said = iter(["1", "break", "-0.5", "2"])
    engine = ScriptedEngine({"*": lambda request: next(said)})
    played = Collector(VectorEnv([build] * 4), None, engine, SamplingParams()).collect(range(4))
    assert [t.score for t in played] == [1.0, paid, -0.5, 2.0]
    assert [t.success for t in played] == [None] * 4, "where nobody is judged, the return counts"
    record = play.records(played)[1]
    assert (record.outcome, record.lost) == (paid, False)


def test_who_breaks_a_game_loses_it() -> None:
    """Rivals are paid by rewards of their own; a judge that breaks on a move is no draw for who made it."""
    from helpers.flex import PlainTask, flex

    def layer(turns: Sequence[Any]) -> marft_envs.Outcome:
        (turn,) = turns
        if turn.text == "break":
            raise ValueError
        won = 1.0 if turn.text == "win" else -1.0
        return (
            marft_envs.Outcome(agent_rewards={"a_0": -won, "b_0": won}) if turn.agent == "b_0" else marft_envs.Outcome()
        )

    said = iter(["win", "lose", "break"])
    engine = ScriptedEngine({"a_0": "x", "b_0": lambda request: next(said)})
    played = Collector(VectorEnv([lambda: flex(2, task=PlainTask(layer))] * 3), None, engine, SamplingParams()).collect(
        range(3)
    )
    assert [t.layers[-1].agent_rewards for t in played] == [
        {"a_0": -1.0, "b_0": 1.0},
        {"a_0": 1.0, "b_0": -1.0},
        {"b_0": -1.0},
    ]
    broken = played[2].episode
    assert broken.layers[-1].agent_rewards == {"b_0": -1.0}
    assert marft_envs.records.trajectory.replay(broken, flex(2, task=PlainTask(layer))).fault == "text"


def test_a_task_that_fails_on_everything_is_broken_and_a_strict_run_takes_no_error(
    model: Path, tmp_path: Path, breaks: Callable[[Breaks], None]
) -> None:
    breaks(lambda text, number: KeyError("typo"))
    with pytest.raises(faults.TaskError, match=r"all 10 episodes.*KeyError: 'typo'"):
        train(fragile(model, tmp_path))
    BREAKS[:] = [lambda text, number: KeyError("typo") if number == 3 else None]
    Fragile.judged = 0
    train(fragile(model, tmp_path, iterations=1))
    Fragile.judged = 0
    with pytest.raises(faults.TaskError, match=r"on_task_error"):
        train(fragile(model, tmp_path, iterations=1, on_task_error="stop"))


# Evaluations and reports --------------------------------------------------------------------------------


@pytest.fixture
def outage(model: Path, tmp_path: Path, breaks: Callable[[Breaks], None]) -> RunFolder:
    """Loses episode 3 of the first evaluation and 5 of the last, and 2 of an iteration."""
    breaks(lambda text, number: ConnectionError("away") if number in (3, 12, 13, 27) else None)
    _, run = train(fragile(model, tmp_path, iterations=1, max_error_rate=0.2))
    return run


def test_evaluations_are_paired_over_what_both_have_judged(outage: RunFolder) -> None:
    before, after = outage.evaluation(0), outage.evaluation(1)
    assert [i for i, r in enumerate(before) if r.lost] == [3] and [i for i, r in enumerate(after) if r.lost] == [5]
    gain = outage.gain()
    assert gain is not None
    assert (
        gain[0].n,
        gain[0].infrastructure_errors,
        gain[1].n,
        gain[1].infrastructure_errors,
        gain[2].n,
        gain[2].infrastructure_errors,
    ) == (9, 1, 9, 1, 8, 2)
    kept = [(a.outcome, b.outcome) for a, b in zip(before, after, strict=True) if not (a.lost or b.lost)]
    assert gain[2].mean == pytest.approx(np.mean([b - a for a, b in kept]))
    line = outage.metrics()[-1]
    assert (line["eval/n"], line["eval/infrastructure_errors"], line["eval/infrastructure_error_rate"]) == (9, 1, 0.1)
    assert line["eval/success"] == gain[1].mean


def test_results_of_benchmarks_have_no_outcome_for_what_was_lost(outage: RunFolder) -> None:
    made = worker.measured(outage)
    assert made["infrastructure_errors"] == 3 and [i for i, x in enumerate(made["outcomes"]) if x is None] == [5]
    assert [i for i, x in enumerate(made["curve"][0]["outcomes"]) if x is None] == [3]
    assert made["score"] == pytest.approx(np.mean([x for x in made["outcomes"] if x is not None]))


def test_two_runs_are_compared_on_what_neither_lost(outage: RunFolder) -> None:
    Fragile.judged = 0
    BREAKS[:] = [lambda text, number: ConnectionError("away") if number == 2 else None]  # B's; then A plays
    changes = {change.name: change for change in compare(outage, outage)}
    lost = changes["infrastructure_errors"]
    assert (lost.paired.before, lost.paired.after, lost.verdict) == (0.0, 0.1, "")
    assert changes["score"].difference.n == 9 and changes["score"].difference.mean == 0
    assert changes["errors"].paired.before == changes["errors"].paired.after == 0


def test_every_figure_says_how_many_were_lost(outage: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    report.write(outage)
    page = outage.report_file.read_text()
    assert "infrastructure errors" in page and "machine" in page
    assert main(["show", str(outage.root), "--all"]) == 0
    shown = capsys.readouterr().out
    assert "infrastructure errors 1" in shown and "eval/infrastructure_error_rate" in shown
    Fragile.judged = 0
    assert main(["eval", str(outage.root)]) == 0
    shown = capsys.readouterr().out
    assert "n = 9, infrastructure errors 1" in shown


def test_the_lines_of_a_run_say_it(
    model: Path, tmp_path: Path, breaks: Callable[[Breaks], None], capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from marft_algos.runs.loggers import Display

    breaks(lambda text, number: ConnectionError("away") if number in (3, 12) else None)
    console = Console(record=True, width=200)
    trainer = Trainer(build(fragile(model, tmp_path, iterations=1)))
    with Display(1, 0, "test", console) as display:
        trainer.train(trainer.start(), display)
    said = console.export_text()
    assert (
        "n = 9, infrastructure errors 1" in said
        and "iteration 1/1" in said
        and said.count("infrastructure errors 1") >= 2
    )


def test_an_episode_lost_before_its_problem_was_known_leaves_the_pairs_and_breaks_none() -> None:
    kept, lost = runs.EvalRecord("b", 1.0), runs.EvalRecord("", 0.0, True)
    before, after, difference = runs.compare([runs.EvalRecord("a", 1.0), kept], [lost, kept])
    assert (before.n, after.n, difference.n, difference.infrastructure_errors) == (2, 1, 1, 1)
    with pytest.raises(ConfigError, match="not of the same problems"):
        runs.compare([runs.EvalRecord("a", 1.0), kept], [kept, kept])
