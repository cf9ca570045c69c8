"""The TRL adapter: rollouts equal the native loop's, rows that GRPOTrainer takes, the facade's tools."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from native_loop import CASES, assert_same

import marft_envs
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError

trl = pytest.importorskip("trl", reason="pip install -e '.[trl]'")
pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from marft_algos.models import embedded_path  # noqa: E402
from marft_envs.adapters.outward.trl import TeamRollout, environment, rows, team_return  # noqa: E402

LEARNERS = {
    "math-dual-v0": ("reasoner_0", "actor_0"),
    "route-v0": ("orchestrator_0", "expert_1"),  # the expert is not asked in every episode
    "math-debate-v0": ("solver_1", "judge_0"),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(embedded_path())


class Scripted(TeamRollout):
    """Samples from a script instead of a model."""

    def __init__(self, envs: VectorEnv, say: Any) -> None:
        super().__init__(envs)
        self.say = say

    def speak(self, trainer: Any, requests: Any, contexts: Any) -> Any:
        tokenizer = trainer.processing_class
        said = [[*tokenizer(self.say(r.agent, r.messages))["input_ids"], tokenizer.eos_token_id] for r in requests]
        return said, [[-0.5] * len(ids) for ids in said]


def test_rollouts_equal_the_native_loop(case: str, tokenizer: Any) -> None:
    """For any learner, asked or not: transcripts and rewards are those of the native loop."""

    def play(env: Any, seed: int, say: Any) -> None:
        learner = LEARNERS[case][seed % 2]
        rollout = Scripted(VectorEnv([lambda: env]), say)
        prompts = [row["prompt"] for row in rows(env, [learner], [seed])]
        found = rollout(prompts, SimpleNamespace(processing_class=tokenizer))
        episode = env.unwrapped.episode
        assert found["team_return"] == [episode.team_return]
        own = [turn.text for turn in episode.turns if turn.agent == learner]
        ids, mask = found["completion_ids"][0], found["env_mask"][0]
        trained = [i for i, m in zip(ids, mask, strict=True) if m]
        assert tokenizer.decode(trained, skip_special_tokens=True) == "".join(own)
        assert len(ids) == len(mask) == len(found["logprobs"][0])

    assert_same(case, play)


def test_the_facade_equals_the_native_loop(case: str) -> None:
    def play(env: Any, seed: int, say: Any) -> None:
        learner = LEARNERS[case][-1 if case != "route-v0" else 0]
        partners = {name: lambda messages, name=name: say(name, messages) for name in env.possible_agents}
        team = environment(lambda: env, learner, {k: v for k, v in partners.items() if k != learner})()
        seen = team.reset(**rows(env, [learner], [seed])[0])
        while not env.done:
            assert seen == env.messages(learner)[-1]["content"]
            seen = team.say(say(learner, env.messages(learner)))
        assert seen == "The episode is over."
        assert team.get_reward() == env.episode.team_return

    assert_same(case, play)


def test_only_reset_say_and_get_reward_are_public() -> None:
    """TRL makes a tool of every other public method."""
    env = marft_envs.make("math-dual-v0", levels=[0])
    team = environment(lambda: env, "actor_0", {"reasoner_0": "7+8=15"})()
    public = {n for n, _ in inspect.getmembers(type(team), inspect.isfunction) if not n.startswith("_")}
    assert public == {"reset", "say", "get_reward"}
    schema = transformers.utils.get_json_schema(team.say)["function"]
    assert list(schema["parameters"]["properties"]) == ["text"] and schema["description"]


def test_a_learner_that_leaves_early_keeps_its_rewards() -> None:
    env = marft_envs.make("math-dual-v0", levels=[0])
    team = environment(lambda: env, "actor_0", {"reasoner_0": "7+8=15"})()
    team.reset(seed=0)
    assert team.get_reward() == 0.0 and env.episode.truncated


def test_clear_answers_to_what_cannot_work(tokenizer: Any) -> None:
    env = marft_envs.make("math-dual-v0", levels=[0])
    with pytest.raises(ConfigError, match="reasoner_0"):
        environment(lambda: env, "actor_0", {})()
    with pytest.raises(ConfigError, match="rows"):
        environment(lambda: env, "actor_0", {"reasoner_0": ""})().reset()
    with pytest.raises(ConfigError, match="rows"):
        TeamRollout(VectorEnv([lambda: env]))([[{"role": "user", "content": "x"}]], None)
    other = SimpleNamespace(processing_class=tokenizer)
    with pytest.raises(ConfigError, match=r"1\.16"):
        TeamRollout(VectorEnv([lambda: env]))([rows(env, ["actor_0"], [0])[0]["prompt"]], other)


def test_rows_of_several_turns_go_on_in_one_conversation(tokenizer: Any) -> None:
    """Between two turns of the learner stands what it read, masked; sampling saw exactly the row so far."""
    env = marft_envs.make("math-dual-v0", levels=[0], rounds=2, history="own")
    seen: list[Any] = []

    class Watched(Scripted):
        def speak(self, trainer: Any, requests: Any, contexts: Any) -> Any:
            seen.extend(c for r, c in zip(requests, contexts, strict=True) if r.agent == "actor_0")
            return super().speak(trainer, requests, contexts)

    rollout = Watched(VectorEnv([lambda: env]), lambda agent, messages: f"{agent}!")
    found = rollout([rows(env, ["actor_0"], [3])[0]["prompt"]], SimpleNamespace(processing_class=tokenizer))
    row = found["prompt_ids"][0] + found["completion_ids"][0]
    assert all(row[: len(context)] == context for context in seen)
    assert len(seen) == 2
    start = len(seen[1]) - len(found["prompt_ids"][0])
    assert found["env_mask"][0][start - 1 : start + 1] == [0, 1]
    heard = tokenizer.decode(seen[1][len(seen[0]) :])
    assert "actor_0!" in heard and "reasoner_0!" in heard


def test_grpo_takes_a_step(tmp_path: Any, tokenizer: Any) -> None:
    """The installed trainer accepts the rows, in number and order, and learns from the learner's tokens alone."""
    from datasets import Dataset

    torch = pytest.importorskip("torch")
    env = marft_envs.make("math-dual-v0", levels=[0])
    envs = marft_envs.make_vec("math-dual-v0", 32, levels=[0])
    model = transformers.AutoModelForCausalLM.from_pretrained(embedded_path(), dtype=torch.float32)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = trl.GRPOConfig(
        str(tmp_path), max_steps=1, per_device_train_batch_size=64, num_generations=8, max_completion_length=32,
        learning_rate=1e-3, use_cpu=True, report_to=[], bf16=False, save_strategy="no", logging_steps=1, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model, reward_funcs=team_return, args=config, processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows(env, ["reasoner_0", "actor_0"], range(8))), rollout_func=TeamRollout(envs),
    )  # fmt: skip
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == 1 and all(0.0 <= entry["reward"] <= 1.0 for entry in logged)
    assert any(not torch.equal(before[name], p) for name, p in model.named_parameters())


def test_every_case_has_learners() -> None:
    assert set(LEARNERS) == set(CASES)
