"""A program of a real agent library as a team: its handoffs, tools and sessions are turns and a D of this project."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from marft_envs.adapters.inward import program

agents = pytest.importorskip("agents", reason="make test-adapters ARGS=programs installs openai-agents")
openai = pytest.importorskip("openai")

TEAM = ["triage_0", "refunds_0"]
PROBLEMS = [{"problem": "Please refund order 17.", "answer": "refunded 17"}]


async def desk(problem: dict[str, Any], api: dict[str, str]) -> str:
    """Triage hands the customer over to refunds, who hold a tool."""
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(**api)

    def model(name: str) -> Any:
        return agents.OpenAIChatCompletionsModel(model=name, openai_client=client)

    @agents.function_tool
    def refund(order: int) -> str:
        """Refunds an order."""
        return f"refunded {order}"

    refunds = agents.Agent(name="refunds", instructions="Refund.", tools=[refund], model=model("refunds_0"))
    triage = agents.Agent(name="triage", instructions="Hand over.", handoffs=[refunds], model=model("triage_0"))
    async with client:
        result = await agents.Runner.run(triage, problem["problem"])
    return str(result.final_output)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def grade(problem: dict[str, Any], answer: str) -> float:
    return float(problem["answer"] in answer)


def test_handoffs_and_tools_of_openai_agents_are_turns() -> None:
    with closing(program.make(desk, agents=TEAM, data=PROBLEMS, grader=grade)) as env:
        env.reset(seed=0)
        assert env.ready_agents == ["triage_0"]
        assert [tool["function"]["name"] for tool in env.tools["triage_0"]] == ["transfer_to_refunds"]
        env.step(call("transfer_to_refunds", "{}"))
        assert env.ready_agents == ["refunds_0"]
        messages = env.messages("refunds_0")
        assert messages[0] == {"role": "system", "content": "Refund."}
        assert call("transfer_to_refunds", "{}") in messages[2]["content"]
        env.step("I do it. " + call("refund", '{"order": 17}'))
        assert "refunded 17" in env.messages("refunds_0")[-1]["content"]
        env.step("It is done: refunded 17.")
        episode = env.episode
    assert episode.success and not episode.fault, episode.stop_reason
    assert [turn.agent for turn in episode.turns] == ["triage_0", "refunds_0", "refunds_0"]
    assert episode.rounds[0].D == [[0, 1], [0, 0]]
    assert set(episode.rounds[0].edges) == {(0, 1), (0, 2), (1, 2)}
