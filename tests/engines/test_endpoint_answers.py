"""What an endpoint sends: what the model or the prompt caused is an answer, the line's faults are failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.fake_servers import Answer, Fake, chat, llama_completion, serving
from marft_algos.config.endpoints import parse
from marft_algos.engines.base import wrong_tokens
from marft_algos.engines.http import EngineServer, ServerDown, ServerRefused
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.models import markers
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError

PARAMS = SamplingParams(max_new_tokens=4)
KEY = "sk-do-not-print"
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


class Served(Fake):
    """A server for all tests of this page, each of which says what it answers."""

    def __init__(self) -> None:
        super().__init__(lambda path, body: self.answer(path, body))

    def answering(self, answer: Callable[[str, dict[str, Any]], Answer]) -> Served:
        self.answer = answer
        self.asked.clear()
        return self


@pytest.fixture(scope="module")
def fake() -> Iterator[Served]:
    with closing(Served()) as served:
        yield served


def request(text: str = "hi") -> GenerationRequest:
    return GenerationRequest("gpt", [], 1, "planner_0", [{"role": "user", "content": text}])


def engine_of(fake: Fake, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(parse({"kind": "openai", "model": "m", "url": fake.url, "retries": 0, **settings}))


def message(finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    answer = chat("")
    answer["choices"][0] |= {"message": {"role": "assistant", **fields}, "finish_reason": finish}
    return answer


def refused(status: int, words: str = "no", **fields: Any) -> Answer:
    return status, {"error": {"message": words, **fields}}


def responded(text: str) -> dict[str, Any]:
    """A text of the Responses API."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    answer = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": [item], "status": "completed"}
    return {**answer, "incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def only(*texts: str, answer: Answer) -> Callable[[str, dict[str, Any]], Answer]:
    """Answers prompts with these texts so, and others well."""
    return lambda path, body: answer if body["messages"][-1]["content"] in texts else (200, chat("fine"))


# ---------------------------------------------------------------------- an answer of nothing


@pytest.mark.parametrize(("body", "reason"), [
    (message("length", content=None, reasoning_content="hmm"), StopReason.LENGTH),
    (message("length", content=""), StopReason.LENGTH), (message(content=""), StopReason.EOS),
    (message(content=None), StopReason.EOS), (message(), StopReason.EOS), (message(content=[]), StopReason.EOS),
    (message(content=None, refusal="I cannot help with that."), StopReason.REFUSED),
    (message("content_filter", content=None), StopReason.REFUSED),
    (message("content_filter", content="par"), StopReason.REFUSED),
    (message("tool_calls", content=None, tool_calls=[CALL]), StopReason.EOS),
    (message("function_call", content=None, function_call=CALL["function"]), StopReason.EOS),
])  # fmt: skip
def test_an_answer_without_text_is_an_empty_reply(fake: Served, body: dict[str, Any], reason: StopReason) -> None:
    with closing(engine_of(fake.answering(lambda path, asked: (200, body)))) as engine:
        (reply,) = engine.generate([request()], PARAMS)
        assert (reply.text, reply.action_ids, reply.stop_reason, reply.usage) == ("", [], reason, (10, 5))
        counted = engine.metrics()
        assert (counted["failed"], counted["empty"], counted["tokens_out"]) == (0, 1, 5)
        assert counted["refused"] == (reason is StopReason.REFUSED)


@pytest.mark.parametrize("content", [
    [{"type": "text", "text": "fi"}, {"type": "text", "text": "ne"}],
    [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "fine"}],
    [{"type": "output_text", "text": "fine"}], ["fi", "ne"],
])  # fmt: skip
def test_the_text_of_content_in_parts_is_read(fake: Served, content: list[Any]) -> None:
    with closing(engine_of(fake.answering(lambda path, body: (200, message(content=content))))) as engine:
        (reply,) = engine.generate([request()], PARAMS)
        assert (reply.text, reply.stop_reason) == ("fine", StopReason.EOS)


@pytest.mark.parametrize("answer", [
    refused(400, "This model's maximum context length is 10 tokens.", code="context_length_exceeded"),
    refused(400, "prompt is too long: 200251 tokens > 200000 maximum"),
    refused(400, "The response was filtered", code="content_filter"), refused(413, "Payload"),
    refused(422, "too many tokens: 9000"),
])  # fmt: skip
def test_a_prompt_that_is_too_long_or_filtered_is_refused_from_the_first_on(fake: Served, answer: Answer) -> None:
    with closing(engine_of(fake.answering(lambda path, body: answer))) as engine:
        (reply,) = engine.generate([request()], PARAMS)
        assert (reply.text, reply.stop_reason) == ("", StopReason.REFUSED) and answer[1]["error"][
            "message"
        ] in reply.error
        assert (engine.usage.refused, engine.usage.empty, engine.usage.failed, len(fake.asked)) == (1, 1, 0, 1)


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422, 451])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_refused_beside_others_that_are_answered_is_that_prompt(fake: Served, status: int, first: bool) -> None:
    with closing(engine_of(fake.answering(only("bad", answer=refused(status))))) as engine:
        replies = engine.generate([request("bad"), request()] if first else [request(), request("bad")], PARAMS)
        assert sorted(reply.stop_reason for reply in replies) == [StopReason.EOS, StopReason.REFUSED]
        assert (engine.usage.refused, engine.usage.failed) == (1, 0)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_an_endpoint_that_refuses_everything_ends_the_run(fake: Served, status: int) -> None:
    engine = engine_of(fake.answering(lambda path, body: refused(status)))
    with closing(engine), pytest.raises(ConfigError, match=r"refuses model 'm'.*extra_body.*key_env"):
        engine.generate([request()], PARAMS)


def test_a_setting_that_is_refused_is_no_fault_of_the_prompt(fake: Served) -> None:
    """As of models that take no temperature: other settings were answered before."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        return refused(400, "temperature does not support 0") if "temperature" in body else (200, chat("fine"))

    with closing(engine_of(fake.answering(answer))) as engine:
        assert engine.generate([request()], PARAMS)[0].text == "fine"
        with pytest.raises(ConfigError, match=r"temperature does not support 0.*--temperature 1, which is not sent"):
            engine.generate([request()], SamplingParams(4, temperature=0.5))


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_reasoning_model_is_asked_in_the_form_that_it_takes(
    fake: Served, api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    use = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    only_one = (
        "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) is supported."
    )

    def answer(path: str, body: dict[str, Any]) -> Answer:
        if "max_tokens" in body:
            return refused(400, use, param="max_tokens", code="unsupported_parameter")
        if "temperature" in body:
            return refused(400, only_one, param="temperature", code="unsupported_value")
        return 200, chat("fine") if path.endswith("chat/completions") else responded("fine")

    with closing(engine_of(fake.answering(answer), api=api)) as engine:
        for _ in range(3):
            (reply,) = engine.generate([request()], SamplingParams(7, greedy=True))
            assert reply.text == "fine"
        bodies = [body for _, body in fake.asked]
        assert len(bodies) == (5 if api == "chat" else 4)  # learnt by the first
        assert bodies[-1]["max_completion_tokens" if api == "chat" else "max_output_tokens"] == 7
        assert engine.generate([request()], PARAMS)[0].text == "fine" and len(fake.asked) == len(bodies) + 1
        with pytest.raises(ConfigError, match=r"--temperature 1, which is not sent"):
            engine.generate([request()], SamplingParams(7, temperature=0.7))
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert [("max_completion_tokens" in note, "is not greedy" in note) for note in notes] == (
        [(True, False)] * (api == "chat") + [(False, True)]
    )


def test_what_a_refusal_only_repeats_is_not_learnt(fake: Served) -> None:
    """The words of a prompt, which an endpoint may repeat, take no setting away."""
    bad = refused(400, "no answer to: max_completion_tokens and temperature")
    with closing(engine_of(fake.answering(only("bad", answer=bad)))) as engine:
        for text, reason in (("bad", StopReason.REFUSED), ("good", StopReason.EOS)):
            (reply,) = engine.generate([request(text)], SamplingParams(7, greedy=True))
            assert reply.stop_reason is reason
        assert fake.asked[-1][1]["temperature"] == 0.0 and "max_tokens" in fake.asked[-1][1]


def test_no_empty_reply_is_sent_back(fake: Served) -> None:
    told = ["Go.", "", "[feedback]\nNothing was said.", " \n", "[feedback]\nAgain.", "Well."]
    roles = ["user", "assistant"] * 3
    chat_ = [{"role": role, "content": text} for role, text in zip(roles, told, strict=True)]
    asked = GenerationRequest("gpt", [], 1, "planner_0", [*chat_, {"role": "user", "content": "So?"}])
    with closing(engine_of(fake.answering(lambda path, body: (200, chat("fine"))))) as engine:
        engine.generate([asked], PARAMS)
    sent = fake.asked[-1][1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[0]["content"] == "Go.\n\n[feedback]\nNothing was said.\n\n[feedback]\nAgain."


def test_a_key_that_is_revoked_ends_the_run_whatever_was_answered(fake: Served) -> None:
    with closing(engine_of(fake.answering(only("bad", answer=refused(401))))) as engine:
        engine.generate([request()], PARAMS)
        with pytest.raises(ConfigError, match="refuses model 'm'"):
            engine.generate([request("bad")], PARAMS)


def test_a_replica_that_does_not_serve_the_model_yet_is_asked_again(fake: Served) -> None:
    answers = iter([(200, chat("a")), refused(404), (200, chat("b"))])
    with closing(engine_of(fake.answering(lambda path, body: next(answers)), retries=1)) as engine:
        assert [engine.generate([request()], PARAMS)[0].text for _ in "ab"] == ["a", "b"]
        assert (engine.usage.retries, engine.usage.refused) == (1, 0)


@pytest.mark.parametrize("answer", [
    refused(500), refused(503), refused(429), refused(302), (200, {**chat("x"), "choices": []}),
    (200, {"error": {"message": "no"}}), (200, message("error", content="")), (200, message("abort", content=None)),
    (200, message(content={"text": "x"})),
])  # fmt: skip
def test_faults_of_the_line_are_failures(fake: Served, answer: Answer) -> None:
    with closing(engine_of(fake.answering(lambda path, body: answer))) as engine:
        (reply,) = engine.generate([request()], PARAMS)
        assert reply.stop_reason is StopReason.ERROR and reply.error
        assert (engine.usage.failed, engine.usage.empty) == (1, 0)


def test_a_refusal_while_the_line_is_down_is_a_failure(fake: Served) -> None:
    """Whether the prompt is why cannot be found out."""
    answers = iter([refused(403), refused(503)])
    with closing(engine_of(fake.answering(lambda path, body: next(answers)))) as engine:
        (reply,) = engine.generate([request()], PARAMS)
        assert reply.stop_reason is StopReason.ERROR and engine.usage.failed == 1


def test_why_replies_are_empty_is_said_once_for_each_reason(fake: Served, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = {
        "spent": message("length", content=None),
        "calls": message("tool_calls", content=None, tool_calls=[CALL]),
        "both": message("tool_calls", content="fine", tool_calls=[CALL]),
    }
    with closing(
        engine_of(fake.answering(lambda path, body: (200, bodies[body["messages"][-1]["content"]])))
    ) as engine:
        for text in ("spent", "calls", "both") * 2:
            (reply,) = engine.generate([request(text)], PARAMS)
            assert reply.text == ("fine" if text == "both" else "")
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2 and "as by reasoning" in notes[0] and "--max-new-tokens" in notes[0]
    assert "native tool calls, which are not read" in notes[1] and "scores as a wrong answer" in notes[1]


def test_a_reply_far_beyond_what_was_asked_for_is_cut(fake: Served, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(engine_of(fake.answering(lambda path, body: (200, chat("x" * 10**6))))) as engine:
        (reply,) = engine.generate([request()], SamplingParams(8))
        assert (reply.text, reply.stop_reason) == ("x" * 8 * 256, StopReason.LENGTH)
    assert "It is cut to 2048" in capsys.readouterr().err


# ---------------------------------------------------------------------- replies to train on


CHAT = SimpleNamespace(vocabulary=64, end_ids=(1,), text_of=lambda ids: "".join(map(chr, ids)))
CHAT.end_of = lambda ids: markers.ended(ids, CHAT.end_ids, "", CHAT.text_of)
RENDERER: Any = SimpleNamespace(chat=lambda policy: CHAT)


def completed(ids: Any, logprobs: Any, finish: str = "stop") -> Answer:
    choice = {"index": 0, "text": "", "finish_reason": finish, "token_ids": ids}
    choice["logprobs"] = {"token_logprobs": logprobs}
    return 200, {"id": "c", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]}


def trained(fake: Served, answer: Answer) -> Generation:
    table = {"kind": "openai", "model": "m", "url": fake.answering(lambda path, body: answer).url, "retries": 0}
    with closing(OpenAIEngine(parse({**table, "train": True}), RENDERER)) as engine:
        (reply,) = engine.generate([GenerationRequest("gpt", [5, 6], 1)], PARAMS)
    return reply


WRONG = {
    "nan": ([5, 6], [-1.0, math.nan]), "-inf": ([5, 6], [-1.0, -math.inf]), "none": ([5, 6], [None, -1.0]),
    "positive": ([5, 6], [-1.0, 0.5]), "huge": ([5, 10**30], [-1.0, -1.0]), "unknown": ([5, 64], [-1.0, -1.0]),
    "negative": ([5, -1], [-1.0, -1.0]), "part": ([5, 1.5], [-1.0, -1.0]), "text": ([5, "a"], [-1.0, -1.0]),
    "flag": ([5, True], [-1.0, -1.0]), "nested": ([5, [6]], [-1.0, -1.0]), "long": ([5] * 5, [-1.0] * 5),
    "pairs": ([5, 6], [-1.0]), "table": ({"0": 5}, [-1.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_tokens_that_cannot_be_are_a_failure(fake: Served, name: str) -> None:
    ids, logprobs = WRONG[name]
    reply = trained(fake, completed(ids, logprobs))
    assert reply.stop_reason is StopReason.ERROR and reply.action_ids == [] and "the endpoint sent" in reply.error


def test_tokens_as_they_should_be(fake: Served) -> None:
    reply = trained(fake, completed([5, 63, 1], [-2, 1e-6, -9.5]))
    assert (reply.action_ids, reply.stop_reason) == ([5, 63, 1], StopReason.EOS)
    assert reply.logprobs.tolist() == pytest.approx([-2, 1e-6, -9.5])
    assert trained(fake, completed([5, 6], [-1.0, -1.0], "length")).stop_reason is StopReason.LENGTH
    nothing = trained(fake, completed([], []))
    assert (nothing.action_ids, nothing.stop_reason) == ([], StopReason.EOS)
    assert trained(fake, completed([5], [-1.0], "content_filter")).stop_reason is StopReason.REFUSED
    assert trained(fake, refused(413)).stop_reason is StopReason.REFUSED
    assert wrong_tokens([5], [-0.0], 1, 6) == "" and "'-1'" in wrong_tokens([5], ["-1"], 1, 6)


LLAMA: dict[str, tuple[dict[str, Any], StopReason, str]] = {
    "behind the samplers": (llama_completion([5, 63, 1], [0.5, 1.0, 0.25]), StopReason.EOS, ""),
    "before them": (llama_completion([5, 6], [-0.5, -1.5], key="logprob"), StopReason.LENGTH, ""),
    "never sampled": (llama_completion([5], [0.0]), StopReason.ERROR, "no completion: ValueError"),
    "no number": (llama_completion([5], ["1"]), StopReason.ERROR, "no completion: TypeError"),
    "above 1": (llama_completion([5], [1.5]), StopReason.ERROR, "the endpoint sent the log-prob"),
    # Three tokens of one character have one entry, seen with the real server.
    "a part": (llama_completion([5], [0.5], sampled=3), StopReason.ERROR, "sampled 3 tokens and sent log-probs of 1"),
    "not counted": (llama_completion([5], [0.5]) | {"usage": None}, StopReason.ERROR, "an unknown number of tokens"),
}


@pytest.mark.parametrize("name", LLAMA)
def test_tokens_as_llama_cpp_sends_them(fake: Served, name: str) -> None:
    answer, reason, says = LLAMA[name]
    reply = trained(fake, (200, answer))
    assert (reply.stop_reason, says in reply.error) == (reason, True)
    if reason is not StopReason.ERROR:
        tokens = answer["choices"][0]["logprobs"]["content"]
        assert reply.action_ids == [token["id"] for token in tokens]
        expected = [math.log(token["prob"]) if "prob" in token else token["logprob"] for token in tokens]
        assert reply.logprobs.tolist() == pytest.approx(expected)
    (body,) = fake.paths("/v1/completions")
    assert body["samplers"] == ["temperature"] and body["mirostat"] == 0 and body["post_sampling_probs"] is True


def test_a_server_that_reads_another_prompt_is_refused(fake: Served) -> None:
    with pytest.raises(ConfigError, match=r"read 3 tokens where 2 were sent.*llama\.cpp's or vLLM's"):
        trained(fake, (200, llama_completion([5], [0.5], read=3)))


@pytest.mark.parametrize("key", ["prob", "logprob"])
def test_logprobs_before_the_temperature_are_refused_at_others_than_1(fake: Served, key: str) -> None:
    scores = {"prob": 0.999, "logprob": -1.7}
    answer = llama_completion([5], [scores[key]], key=key, read=1)
    with closing(engine_of(fake.answering(lambda path, body: (200, answer)), train=True)) as engine:
        engine.probe()
        if key == "prob":
            engine.probe(0.7)
        else:
            with pytest.raises(ConfigError, match=r"sampled at 0\.7 are wrong.*--temperature 1 .*processed_logprobs"):
                engine.probe(0.7)
    assert {body["temperature"] for body in fake.paths("/v1/completions")} == {1.0, 0.01}


@pytest.mark.parametrize("chats", [True, False])
def test_a_server_that_takes_text_alone_can_be_evaluated_and_not_trained_from(fake: Served, *, chats: bool) -> None:
    """As transformers' server: 422 for token ids. One that refuses chats, too, has another fault."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        return (200, chat("Hello.")) if chats and "chat" in path else refused(422, "Input should be a valid string")

    says = (
        r"answers chats, but no prompt of token ids.*valid string.*leave out train = true" if chats else "refuses model"
    )
    with closing(engine_of(fake.answering(answer), train=True)) as engine, pytest.raises(ConfigError, match=says):
        engine.probe()


# ---------------------------------------------------------------------- the key


@pytest.mark.parametrize("status", [400, 401, 403, 413, 500])
def test_a_key_that_an_error_repeats_is_masked(
    fake: Served, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_API_KEY", KEY)
    fake.answering(lambda path, body: refused(status, f"bad key {KEY}" + "x" * 9000))
    with closing(engine_of(fake, key_env="MY_API_KEY")) as engine:
        try:
            said = engine.generate([request()], PARAMS)[0].error
        except ConfigError as error:
            assert error.__suppress_context__, "no traceback shows what it came of"
            said = str(error)
    with pytest.raises((ServerDown, ServerRefused)) as caught:
        EngineServer(fake.url, 5.0, KEY).get("/v1/models")
    for words in (said, str(caught.value)):
        assert "bad key ***" in words and len(words) < 1000
    assert KEY not in said + str(caught.value) + capsys.readouterr().err


def test_a_placeholder_of_a_key_may_stand_in_a_reply(fake: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_API_KEY", "test")
    fake.answering(lambda path, body: (200, chat("def test_add(): ...") | {"usage": {"prompt_tokens": None}}))
    with closing(engine_of(fake, key_env="LOCAL_API_KEY")) as engine:
        (reply,) = engine.generate([request()], PARAMS)
    assert (reply.text, reply.usage) == ("def test_add(): ...", None)


def test_a_key_that_the_endpoint_echoes_stands_in_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_API_KEY", "sk-echoed-0123456789")
    asked: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> Answer:
        asked.append(fake.headers[-1]["authorization"])
        return 200, chat(f"You sent {asked[-1]}, and 15.")

    with serving(answer) as fake:
        table = {"kind": "openai", "model": "m", "url": fake.url, "key_env": "ECHO_API_KEY"}
        with closing(OpenAIEngine(parse(table))) as engine:
            request = GenerationRequest("p", [], 0, messages=[{"role": "user", "content": "Say."}])
            (reply,) = engine.generate([request], SamplingParams(64))
    assert asked == ["Bearer sk-echoed-0123456789"]
    assert reply.text == "You sent Bearer ***, and 15."
