"""The verl agent loop against a server manager that speaks verl's protocol (token ids in, token ids out).

verl is stood in for by its two output classes, with the fields of verl 0.9; nothing else of it is used by the loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from native_loop import CASES, EPISODES, Script, expected

import marft_envs
from marft_envs.adapters import optional
from marft_envs.adapters.outward.verl import TeamLoop, rows
from marft_envs.errors import ConfigError, MissingExtraError

pydantic = pytest.importorskip("pydantic")
transformers = pytest.importorskip("transformers", reason="the rows need a tokenizer: pip install -e '.[train]'")

from marft_algos.models import embedded_path  # noqa: E402

INSTALLED = importlib.util.find_spec("verl") is not None
LEARNERS = {
    "math-dual-v0": ("reasoner_0", "actor_0"),
    "route-v0": ("orchestrator_0", "expert_1"),
    "math-debate-v0": ("solver_1", "judge_0"),
}


class AgentLoopMetrics(pydantic.BaseModel):
    generate_sequences: float = 0.0


class AgentLoopOutput(pydantic.BaseModel, extra="forbid"):
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = pydantic.Field(default_factory=dict)


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where verl is installed, its own classes are used."""
    if not INSTALLED:
        for name in ("verl", "verl.experimental", "verl.experimental.agent_loop"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        module = ModuleType("verl.experimental.agent_loop.agent_loop")
        module.AgentLoopOutput, module.AgentLoopMetrics = AgentLoopOutput, AgentLoopMetrics
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(optional.metadata, "version", lambda package: "0.9.1")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(embedded_path())


class Manager:
    """Generates as verl's client does; it sees token ids only, and a script speaks for whoever these ids are shown to."""

    def __init__(self, tokenizer: Any, reply: Any) -> None:
        self.tokenizer, self.reply, self.seen = tokenizer, reply, []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.seen.append(list(prompt_ids))
        ids = [*self.tokenizer(self.reply(prompt_ids))["input_ids"], self.tokenizer.eos_token_id]
        return SimpleNamespace(token_ids=ids, log_probs=[-0.5] * len(ids))


def loop(tokenizer: Any, reply: Any, env: str, prompt: int = 2048, response: int = 2048, **kwargs: Any) -> TeamLoop:
    limits = SimpleNamespace(prompt_length=prompt, response_length=response)
    config = SimpleNamespace(config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=limits)))
    return TeamLoop(
        env=env, env_kwargs=kwargs, trainer_config=config, server_manager=Manager(tokenizer, reply), tokenizer=tokenizer,
        processor=None, hf_model_type="qwen2", dataset_cls=None, data_config=None, tools=None,
    )  # fmt: skip


def test_episodes_equal_the_native_loop(case: str, tokenizer: Any, verl: None) -> None:
    """Replies are found by the prompt's ids alone, so that they are right only if every agent saw what it should."""
    seeds = range(EPISODES)
    env = marft_envs.make(case, **CASES[case])
    script = Script(env, seeds)
    known: dict[tuple[int, ...], str] = {}

    def say(agent: str, messages: Any) -> str:
        text = script("anyone", messages)  # agents that are shown the same say the same
        rendered = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        known[tuple(tokenizer(rendered, add_special_tokens=False)["input_ids"])] = text
        return text

    wanted = expected(case, seeds, say)
    for seed, (found, _) in zip(seeds, wanted, strict=True):
        learner = LEARNERS[case][seed % 2]
        sample = rows(env, [learner], [seed])[0]
        got = asyncio.run(loop(tokenizer, lambda ids: known[tuple(ids)], case, **CASES[case]).run({}, **sample))
        own = [turn["text"] for turn in found["turns"] if turn["agent"] == learner]
        trained = [i for i, mask in zip(got.response_ids, got.response_mask, strict=True) if mask]
        assert tokenizer.decode(trained, skip_special_tokens=True) == "".join(own)
        paid = sum(layer["team_reward"] for layer in found["layers"]) + sum(turn["reward"] for turn in found["turns"])
        assert got.reward_score == paid
        assert got.num_turns == 2 * len(own) and len(got.response_logprobs) == len(got.response_ids) > 0
        assert (got.extra_fields["success"], got.extra_fields["stop_reason"]) == (
            found["success"],
            found["stop_reason"],
        )


def test_a_row_that_is_full_ends_its_episode(tokenizer: Any, verl: None) -> None:
    found = loop(tokenizer, lambda ids: "7+8=15", "math-dual-v0", response=4, levels=[0], rounds=3)
    got = asyncio.run(found.run({}, extra_info={"seed": 0, "agent": "actor_0"}))
    assert len(got.response_ids) == len(got.response_mask) == 4
    assert got.extra_fields["stop_reason"] == "response_length"


def test_clear_answers_to_what_cannot_work(tokenizer: Any, verl: None) -> None:
    made = loop(tokenizer, lambda ids: "1", "math-dual-v0", prompt=3, levels=[0])
    with pytest.raises(ConfigError, match="prompt_length is 3"):
        asyncio.run(made.run({}, extra_info={"seed": 0, "agent": "reasoner_0"}))
    with pytest.raises(ConfigError, match="rows"):
        asyncio.run(loop(tokenizer, lambda ids: "1", "math-dual-v0", levels=[0]).run({}, raw_prompt=[]))


def test_without_verl_the_pip_command_is_named(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[verl\]'"):
        asyncio.run(
            loop(tokenizer, lambda ids: "1", "math-dual-v0", levels=[0]).run(
                {}, extra_info={"seed": 0, "agent": "actor_0"}
            )
        )
