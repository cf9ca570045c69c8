"""Real clients at the endpoint of a program: what each sends by default is answered as its library reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from marft_envs import AgentSpec
from marft_envs.adapters.inward import program
from marft_envs.adapters.inward.served import PolicyReply, PolicyServer

openai = pytest.importorskip("openai", reason="make test-adapters ARGS=clients installs the packages")
TEAM = ["desk_0", "clerk_0"]
ROWS = [{"problem": "Refund order 17.", "answer": ""}]
Api = dict[str, str]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def played(team: Callable[..., Any], *replies: str) -> tuple[Any, list[list[dict[str, Any]]]]:
    """Plays a program with these replies; returns the episode, and the prompts."""
    with closing(program.make(team, agents=TEAM, data=ROWS, grader=lambda *_: 1.0, timeout=60)) as env:
        env.reset(seed=0)
        shown = []
        for reply in replies:
            assert not env.done, env.episode.stop_reason
            shown.append(env.messages(env.agent_selection))
            base = env.unwrapped
            base.attach(env.agent_selection, {"prompt_tokens": 7, "tokens": 3})
            env.step(reply)
        assert env.done and not env.episode.fault, env.episode.stop_reason
        episode = env.episode
    assert outside(team, *replies) == (episode.info["answer"], shown), "it runs elsewhere, and asks the policies"
    return episode, shown


def outside(team: Callable[..., Any], *replies: str) -> tuple[str, list[Any]]:
    """Runs a program against served policies; returns its answer, and the prompts."""
    left, shown = iter(replies), list[Any]()

    def say(agent: str, messages: Any, tools: Any, asked: Any) -> PolicyReply:
        shown.append(messages)
        return PolicyReply(next(left), {"prompt_tokens": 7, "tokens": 3})

    with PolicyServer([AgentSpec(name, name[:-2]) for name in TEAM], say) as server:
        server.start()
        try:
            answer = team(ROWS[0], {"base_url": f"http://127.0.0.1:{server.server_address[1]}/v1", "api_key": "any"})
            return (asyncio.run(answer) if asyncio.iscoroutine(answer) else answer), shown
        finally:
            server.shutdown()


TOOL = {
    "type": "function",
    "name": "refund",
    "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}},
}


def test_openai_responses_whole_and_streamed_and_what_comes_back() -> None:
    seen: list[Any] = []

    def team(problem: dict[str, Any], api: Api) -> str:
        with openai.OpenAI(**api) as client:
            asked: list[Any] = [{"role": "user", "content": problem["problem"]}]
            first = client.responses.create(model="desk_0", instructions="Refund.", input=asked, tools=[TOOL])
            asked += first.output
            (made,) = (item for item in first.output if item.type == "function_call")
            asked.append({"type": "function_call_output", "call_id": made.call_id, "output": "refunded 17"})
            with client.responses.stream(model="desk_0", input=asked, tools=[TOOL]) as stream:
                kinds = [event.type for event in stream]
                last = stream.get_final_response()
            with client.responses.stream(model="clerk_0", input=last.output_text, tools=[TOOL]) as stream:
                calls = [event.arguments for event in stream if event.type == "response.function_call_arguments.done"]
                final = stream.get_final_response()
            seen.extend([first, kinds, last, calls, final])
            return last.output_text

    said = "I do it. " + call("refund", order=17)
    episode, shown = played(team, said, "It is done, and it is refunded: 17.", call("refund", order=18))
    first, kinds, last, calls, final = seen[:5]
    assert (
        first.output_text == "I do it." and first.status == "completed" and first.output[1].arguments == '{"order": 17}'
    )
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (7, 3, 10)
    assert shown[0] == [{"role": "system", "content": "Refund."}, {"role": "user", "content": "Refund order 17."}]
    assert shown[1][1:] == [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "[feedback]\nrefunded 17"},
    ]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert kinds.count("response.output_text.delta") == 3 and last.output_text == episode.info["answer"]
    assert calls == ['{"order": 18}'] and final.output[0].arguments == '{"order": 18}' and final.output[0].call_id
    assert episode.rounds[0].edges == [(0, 1), (1, 2)]


def test_openai_agents_as_they_come() -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def refund(order: int) -> str:
        """Refunds an order."""
        return f"refunded {order}"

    async def team(problem: dict[str, Any], api: Api) -> str:
        async with openai.AsyncOpenAI(**api) as client:
            agents.set_default_openai_client(client, use_for_tracing=False)
            clerk = agents.Agent(name="clerk", instructions="Refund.", tools=[refund], model="clerk_0")
            desk = agents.Agent(name="desk", instructions="Hand over.", handoffs=[clerk], model="desk_0")
            whole = await agents.Runner.run(desk, problem["problem"])
            streamed = agents.Runner.run_streamed(desk, [*whole.to_input_list(), {"role": "user", "content": "Again."}])
            async for _ in streamed.stream_events():
                pass
            return f"{whole.final_output} {streamed.final_output} {whole.context_wrapper.usage.total_tokens}"

    refunds = "I do it. " + call("refund", order=17)
    replies = [call("transfer_to_clerk"), refunds, "Refunded 17.", "Once is enough."]
    episode, shown = played(team, *replies)
    assert [turn.agent for turn in episode.turns] == ["desk_0", "clerk_0", "clerk_0", "desk_0"]
    assert episode.info["answer"] == "Refunded 17. Once is enough. 30"
    assert shown[2][-2:] == [
        {"role": "assistant", "content": refunds},
        {"role": "user", "content": "[feedback]\nrefunded 17"},
    ]
    assert any("I do it." in message["content"] for message in shown[3]) and shown[3][-1]["content"] == "Again."
    assert {(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)} == set(episode.rounds[0].edges)


@pytest.mark.parametrize("responses", [False, True])
def test_langchain(responses: bool) -> None:
    models = pytest.importorskip("langchain_openai")

    def refund(order: int) -> str:
        """Refunds an order."""
        return f"refunded {order}"

    def team(problem: dict[str, Any], api: Api) -> str:
        from langchain_core.messages import HumanMessage, ToolMessage

        model = models.ChatOpenAI(model="desk_0", use_responses_api=responses, stream_usage=True, **api)
        tools = model.bind_tools([refund], tool_choice="refund", parallel_tool_calls=False)
        asked: list[Any] = [HumanMessage(problem["problem"])]
        asked.append(tools.invoke(asked))
        (made,) = asked[-1].tool_calls
        asked.append(ToolMessage(refund(**made["args"]), tool_call_id=made["id"]))
        chunks = [*model.stream(asked)]
        total = sum(chunks[1:], chunks[0])
        assert total.usage_metadata["total_tokens"] == 10
        return str(total.text)

    said = call("refund", order=17)
    episode, shown = played(team, said, "It is done, and it is refunded: 17.")
    assert episode.info["answer"] == "It is done, and it is refunded: 17."
    assert shown[1][1:] == [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "[feedback]\nrefunded 17"},
    ]


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
def test_pydantic_ai(kind: str) -> None:
    ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")

    async def team(problem: dict[str, Any], api: Api) -> str:
        model = getattr(models, kind)("desk_0", provider=providers.OpenAIProvider(**api))
        agent = ai.Agent(model, instructions="Refund.", output_type=int)

        @agent.tool_plain
        def refund(order: int) -> str:
            """Refunds an order."""
            return f"refunded {order}"

        one = await agent.run(problem["problem"])
        async with ai.Agent(model).run_stream("And?", message_history=one.all_messages()) as streamed:
            return f"{one.output} {await streamed.get_output()}"

    refunds = call("refund", order=17)
    episode, shown = played(team, refunds, call("final_result", response=17), "It is done and over.")
    assert episode.info["answer"] == "17 It is done and over."
    assert shown[1][2] == {"role": "assistant", "content": refunds}
    assert shown[2][-1]["content"].endswith("And?") and {"role": "assistant", "content": refunds} in shown[2]


def test_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks another machine
    litellm = pytest.importorskip("litellm")
    litellm.suppress_debug_info = True

    def team(problem: dict[str, Any], api: Api) -> str:
        about = {"base_url": api["base_url"], "api_key": api["api_key"]}
        messages = [{"role": "user", "content": problem["problem"]}]
        one = litellm.completion("openai/desk_0", messages=messages, stop=["Observation:"], **about)
        words = one.choices[0].message.content
        assert one.usage.total_tokens == 10
        messages += [{"role": "assistant", "content": words}, {"role": "user", "content": "And?"}]
        parts = litellm.completion("openai/desk_0", messages=messages, stream=True, **about)
        return words + "|" + "".join(part.choices[0].delta.content or "" for part in parts)

    episode, shown = played(team, "I look it up.\nObservation: 17 is refunded.", "It is done and over.")
    assert episode.info["answer"] == "I look it up.\n|It is done and over.", "stop is heeded"
    assert shown[1][1] == {"role": "assistant", "content": "I look it up.\n"}
    assert episode.rounds[0].edges == [(0, 1)]


def test_another_api_is_refused_in_words() -> None:
    anthropic = pytest.importorskip("anthropic")

    def team(problem: dict[str, Any], api: Api) -> str:
        client = anthropic.Anthropic(
            base_url=api["base_url"].removesuffix("/v1"), api_key=api["api_key"], max_retries=0
        )
        message = {"role": "user", "content": problem["problem"]}
        return str(client.messages.create(model="desk_0", max_tokens=9, messages=[message]).content)

    with pytest.raises(Exception, match="Anthropic's messages API"):
        played(team)
