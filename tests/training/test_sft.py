"""Supervised fine-tuning: whose words are learnt, from where, and that reinforcement goes on from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_algos
import marft_envs
from helpers.fake_servers import chat, serving
from helpers.relay import AGENTS, ENV, embedded_team, prompts
from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.config.endpoints import parse
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.evaluation import records
from marft_algos.models.chat import Renderer
from marft_algos.models.loading import load_chat
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.rollout.episodes import Prompts
from marft_algos.types import SamplingParams
from marft_envs import ConfigError, DataError
from marft_envs.records import experts, trajectory
from tests.helpers.engine_tables import as_table


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    return embedded_team()


def demonstrations(policies: PolicySet, source: str = "expert", env: str = ENV, most: int = 8) -> Demonstrations:
    return Demonstrations(source, lambda: marft_envs.make(env), policies.renderer, most)


def test_every_agent_learns_its_own_words_after_the_prompts_that_it_will_meet(policies: PolicySet) -> None:
    drawn = demonstrations(policies).draw(prompts(4), 0, version=3)
    env = marft_envs.make(ENV)
    for number, (seed, t) in enumerate(zip(range(4), drawn, strict=True)):
        env.reset(seed=seed)
        assert (t.number, t.episode.success, t.episode.seed) == (number, True, seed)
        for turn in t.transitions:
            agent = turn.turn.agent
            chat = policies.renderer.chat(agent)
            assert turn.request.prompt_ids == policies.renderer.render(agent, env.messages(agent))
            assert turn.reply.action_ids[-1] in chat.end_ids
            assert chat.tokenizer.decode(turn.reply.action_ids[:-1]) == turn.turn.text
            assert turn.trainable and turn.reply.version == 3
            env.select(agent)
            env.step(turn.turn.text)


def test_recorded_episodes_are_learnt_from_once_a_pass_and_failures_never(policies: PolicySet, tmp_path: Path) -> None:
    env = marft_envs.make(ENV)
    right = [experts.play(env, seed) for seed in range(6)]
    env.reset(seed=9)
    while not env.done:
        env.step("hello")
    trajectory.write(tmp_path / "some.jsonl", [*right, env.episode])
    source = demonstrations(policies, str(tmp_path / "some.jsonl"))
    seen = [t.episode.seed for iteration in range(4) for t in source.draw(prompts(3), iteration, 0)]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6)) and seen[:6] != seen[6:]


def test_what_cannot_be_learnt_is_named_and_counted(policies: PolicySet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no demonstrations at 'nowhere'"):
        demonstrations(policies, "nowhere")
    env = marft_envs.make(ENV)
    env.reset(seed=0)
    while not env.done:
        env.step("hello")
    trajectory.write(tmp_path / "wrong.jsonl", [env.episode])
    with pytest.raises(DataError, match="None of the 1 episodes"):
        demonstrations(policies, str(tmp_path / "wrong.jsonl"))
    with pytest.raises(DataError, match=r"math/.* \(a reply of more than 2 tokens\)|.*a reply of more than 2 tokens"):
        team = PolicySet.build("embedded", {"reasoner_0": "r", "actor_0": "a"}, device="cpu")
        demonstrations(team, env="math-dual-v0", most=2).draw(prompts(2), 0, 0)
    trajectory.write(tmp_path / "other.jsonl", [experts.play(marft_envs.make("xor-v0"), 0)])
    with pytest.raises(DataError, match="an episode of xor-v0"):
        demonstrations(policies, str(tmp_path / "other.jsonl")).draw(prompts(1), 0, 0)


def test_an_experts_episode_is_graded_once(policies: PolicySet, monkeypatch: pytest.MonkeyPatch) -> None:
    graded = []
    env = marft_envs.make(ENV)
    kind = type(env.unwrapped.task)
    judge = kind.on_round
    monkeypatch.setattr(kind, "on_round", lambda self, turns: graded.append(1) or judge(self, turns))
    demonstrations(policies).draw(prompts(5), 0, 0)
    assert len(graded) == 5


def test_problems_that_nobody_can_solve_are_counted_and_left_out(tmp_path: Path, sandbox: object) -> None:
    team = PolicySet.build("embedded-code", {"coder_0": "coder_0"}, device="cpu")
    tests = [{"kind": "call", "args": f"[{i}]", "expected": str(2 * i)} for i in range(5)]
    row = {"mode": "function", "prompt": "Double it.", "entry_point": "double", "tests": tests}
    rows = [row | {"id": "known", "canonical_solution": "double = lambda x: 2 * x"}, row | {"id": "unknown"}]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = marft_envs.make("code-solo-v0", data=tmp_path / "some.jsonl", split="all")
    source = Demonstrations("expert", lambda: env, team.renderer, 64)
    both = Prompts([0, 1], [{"task_id": id} for id in sorted(env.unwrapped.task.evaluation_set(None))])
    (drawn,) = source.draw(both, 0, 0)
    assert "known" in drawn.task_id and "unknown" not in drawn.task_id
    assert source.metrics() == {"rejected": 1.0, "rejected/nobody knows its solution": 1.0}
    with pytest.raises(DataError, match=r"None of 1 .*nobody knows its solution \(1, such as .*unknown"):
        source.draw(Prompts([1], [both.options[1]]), 1, 0)


def test_a_demonstration_is_no_longer_than_an_answer_may_be(policies: PolicySet) -> None:
    source = Demonstrations("expert", lambda: marft_envs.make(ENV, max_path=3), policies.renderer, 8)
    with pytest.raises(DataError, match="a critical path of more than 3 tokens"):
        source.draw(prompts(3), 0, 0)


def test_a_reply_that_was_cut_is_not_taken_for_a_whole_one(policies: PolicySet, tmp_path: Path) -> None:
    whole, cut = (experts.play(marft_envs.make(ENV), seed) for seed in range(2))
    cut.turns[0].extras = {"stop_reason": "length"}
    trajectory.write(tmp_path / "some.jsonl", [whole, cut])
    source = demonstrations(policies, str(tmp_path / "some.jsonl"))
    assert [t.episode.seed for t in source.draw(prompts(2), 0, 0)] == [0]
    assert source.rejected == {"a reply that was cut": 1}


def test_a_hosted_models_recorded_episodes_are_learnt_from(
    policies: PolicySet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said is tokenised by the learner's own tokenizer; its own tokens are unknown."""
    monkeypatch.setenv("SOME_KEY", "secret")

    def answer(path: str, body: dict[str, Any]) -> Any:
        return 200, chat(re.findall(r"\d", body["messages"][-1]["content"])[-1])

    agents = {"planner_0": "hosted", "solver_0": "hosted"}
    with serving(answer) as fake:
        engine = OpenAIEngine(parse(as_table(f"openai:m@{fake.url}?key_env=SOME_KEY")))
        vec = marft_envs.make_vec(ENV, num_envs=4)
        played = Collector(vec, Renderer({}, agents), engine, SamplingParams(8)).collect(list(range(8)))
        engine.close()
    assert not any(t.reply.action_ids for trajectory in played for t in trajectory.transitions)
    good = [trajectory for trajectory in played if trajectory.success]
    assert good
    records.write(tmp_path / "hosted.jsonl", [records.row(trajectory) for trajectory in played])
    drawn = demonstrations(policies, str(tmp_path / "hosted.jsonl")).draw(prompts(len(good)), 0, 0)
    assert sorted(t.episode.seed for t in drawn) == sorted(t.episode.seed for t in good)  # type: ignore[type-var]
    for turn in (turn for t in drawn for turn in t.transitions):
        own = policies.renderer.chat(turn.policy)
        assert turn.policy == turn.turn.agent and turn.trainable
        assert own.tokenizer.decode(turn.reply.action_ids[:-1]) == turn.turn.text != ""


def test_held_out_problems_are_not_learnt_from(policies: PolicySet, tmp_path: Path) -> None:
    team = PolicySet.build("embedded", {"reasoner_0": "reasoner_0", "actor_0": "actor_0"}, device="cpu")
    env = marft_envs.make("math-dual-v0", levels=[0])
    episodes = [experts.play(env, seed) for seed in range(3)]
    trajectory.write(tmp_path / "some.jsonl", episodes)

    def make() -> marft_envs.FlexEnv:
        return marft_envs.make("math-dual-v0", levels=[0])

    source = Demonstrations(str(tmp_path / "some.jsonl"), make, team.renderer, 48, held_out=[episodes[1].task_id])
    learnt = {t.task_id for t in source.draw(prompts(3), 0, 0)}
    assert learnt == {episodes[0].task_id, episodes[2].task_id}
    assert source.metrics() == {"rejected": 1.0, "rejected/a held-out problem": 1.0}
    run = tmp_path / "run/episodes"
    run.mkdir(parents=True)
    trajectory.write(run / "eval-000000.jsonl", episodes)
    with pytest.raises(ConfigError, match="no demonstrations"):
        demonstrations(policies, str(tmp_path / "run"))


def test_the_whole_test_split_is_held_out_however_small_the_panel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = marft_envs.make("math-dual-v0", levels=[0], split="test")
    trajectory.write(tmp_path / "test.jsonl", [experts.play(env, seed) for seed in range(3)])
    words = ["--demonstrations", str(tmp_path / "test.jsonl"), "--eval-episodes", "1", "--runs-dir", str(tmp_path)]
    assert main(["sft", "--env", "math-dual-v0", "--env-kwargs", "levels=[0]", *words]) == 1
    said = capsys.readouterr().err
    assert "can be learnt from: a held-out problem (" in said and "of this environment's training problems" in said


def test_a_hosted_team_plays_the_split_that_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda path, body: (200, chat("no idea"))) as fake:
        engine = json.dumps({"kind": "openai", "model": "m", "url": fake.url})
        for split in ("train", "test"):
            words = ["--env-kwargs", "levels=[0]", f"split={split}", "--episodes", "3", "--out", split]
            assert main(["eval", "--env", "math-solo-v0", *words, "--engines", engine]) == 0
            known = marft_envs.make("math-solo-v0", levels=[0], split=split).unwrapped.task.evaluation_set(None)  # type: ignore[attr-defined]
            assert {episode.task_id for episode in trajectory.read(f"{split}/episodes.jsonl")} < set(known)
    assert main(["eval", "some-run", "--env-kwargs", "split=train"]) == 1
    assert "a run is scored on held-out problems" in capsys.readouterr().err


def test_the_template_is_rendered_once_for_what_closes_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked = load_chat("embedded"), []
    closing = type(own).closing
    monkeypatch.setattr(type(own), "closing", lambda self: asked.append(1) or closing(self))
    assert [own.reply_ids(text)[-1] for text in "123"] == [closing(own)] * 3
    assert len(asked) == 1


def test_a_reply_cannot_close_its_own_turn() -> None:
    chat = load_chat("embedded")
    ids = chat.reply_ids("4<|im_end|>5")
    assert [i for i in ids if i in chat.end_ids] == ids[-1:]


def test_the_loss_is_the_mean_negative_log_likelihood(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model")
    config = settings(model, tmp_path, algo="sft", env=ENV, iterations=0, algorithm={"minibatches": 1, "lr": 1e-9})
    trainer = marft_algos.Trainer(marft_algos.build(config))
    drawn = trainer.parts.demonstrations.draw(prompts(4), 0, 0)  # type: ignore[union-attr]
    metrics = trainer.learner.update(drawn, 0)
    for policy in AGENTS:
        rows = [t for d in drawn for t in d.transitions if t.policy == policy]
        scored = np.concatenate(trainer.learner.rescore(rows))
        assert metrics[f"policy/{policy}/loss"] == pytest.approx(-scored.mean(), abs=1e-5)
        assert "sampler_gap" not in str(metrics), "nobody sampled: there is no ratio to check"


def test_a_team_learns_from_its_expert_resumes_and_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--preset", "quickstart", "--env", ENV, "--eval-episodes", "40", "--runs-dir", str(tmp_path)]
    assert main(["sft", *small, "--iterations", "1", "--name", "warm"]) == 0
    assert main(["sft", "--resume", str(tmp_path / "warm"), "--iterations", "2"]) == 0
    run = marft_algos.runs.folder.RunFolder.open(str(tmp_path / "warm"))
    lines = run.metrics()
    assert [line["iteration"] for line in lines] == [0, 1, 2]
    assert lines[-1]["eval/success"] > lines[0]["eval/success"] + 0.3 and lines[-1]["rejected"] == 0
    few = [*small, "--episodes-per-iteration", "8"]
    assert "this run imitated demonstrations" in capsys.readouterr().out
    assert main(["train", *few, "--start", str(tmp_path / "warm"), "--iterations", "1", "--name", "rl"]) == 0
    before = marft_algos.runs.folder.RunFolder.open(str(tmp_path / "rl")).metrics()[0]["eval/success"]
    assert before == lines[-1]["eval/success"], "reinforcement starts where imitation ended"
    capsys.readouterr()
    again = ["sft", *few, "--iterations", "1", "--name", "own", "--demonstrations", str(tmp_path / "warm")]
    assert main([*again, "--eval-episodes", "4"]) == 0, capsys.readouterr().err


def test_a_run_of_nothing_that_succeeds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no demonstrations"):
        train(settings(save_tiny(tmp_path / "m"), tmp_path, algo="sft", env=ENV, algorithm={"demonstrations": "x"}))
