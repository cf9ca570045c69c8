"""Fields of a hosted endpoint's requests that a run has no setting for."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from helpers.fake_servers import chat, serving
from marft_algos.config.endpoints import parse
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs.errors import ConfigError

EXTRA: dict[str, Any] = {
    "repeat_penalty": 1.0,
    "chat_template_kwargs": {"enable_thinking": False, "a b": "\u00e9"},
    "stop": ["x"],
}
EXTRA["tools"] = [{"type": "function", "strict": True}]


def test_they_are_sent_beside_what_the_run_sets() -> None:
    with serving(lambda path, body: (200, chat("fine"))) as fake:
        engine = OpenAIEngine(parse({"kind": "openai", "model": "m", "url": fake.url, "extra_body": EXTRA}))
        request = GenerationRequest("gpt", [], 1, "planner_0", [{"role": "user", "content": "hi"}])
        engine.generate([request], SamplingParams(7, greedy=True))
        (body,) = fake.paths("/v1/chat/completions")
        assert {name: body[name] for name in EXTRA} == EXTRA
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 7, 0.0)
        engine.close()


def test_they_are_part_of_what_an_engine_is_and_are_written_as_toml() -> None:
    table = {"kind": "openai", "model": "m", "url": "http://h"}
    plain, bent = parse(table), parse({**table, "extra_body": EXTRA})
    assert len({plain, bent, parse(table), parse(bent.table())}) == 2  # equal ones share an engine
    assert parse(tomllib.loads(f"engine = {bent}")["engine"]) == bent


@pytest.mark.parametrize(("extra", "says"), [
    ({"max_tokens": 9}, r"cannot set 'max_tokens'.*--max-new-tokens"),
    ({"max_completion_tokens": 9}, r"--max-new-tokens; where an endpoint refuses max_tokens, it is sent as max_compl"),
    ({"messages": []}, r"cannot set 'messages'"),
    ({"day": tomllib.loads("d = 2020-01-01")["d"]}, r"cannot be sent as JSON"),
    ({"top_p": float("nan")}, r"cannot be sent as JSON"),
    ({"chat_template_kwargs": {"tools": None}}, r"holds null.*Leave that field out"), (3, r"'extra_body' cannot be 3"),
])  # fmt: skip
def test_what_cannot_be_sent_says_so(extra: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse({"kind": "openai", "model": "m", "extra_body": extra})


def test_replies_that_are_trained_on_are_not_bent() -> None:
    with pytest.raises(ConfigError, match=r"train = true takes no extra_body"):
        parse({"kind": "openai", "model": "m", "train": True, "extra_body": {"top_k": 5}})
    with pytest.raises(ConfigError, match=r"no setting 'extra_body'"):
        parse({"kind": "vllm", "url": "http://h", "extra_body": {"top_k": 5}})
