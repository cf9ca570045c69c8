"""OpenAI Agents SDK: an agent is a tool of another (``as_tool``), or hands over to it (``handoffs``).

``pip install openai-agents``; the commands are in docs/your-team.md.
"""

from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

AGENTS = ["actor_0", "reasoner_0"]
REASONER = "You are the Reasoner in a team of two: Reasoner, then Actor."
ACTOR = "You are the Actor in a team of two: Reasoner, then Actor. End with the final answer in \\boxed{}."

set_tracing_disabled(True)  # else the SDK sends every prompt to OpenAI


async def as_tool(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program: the actor calls the reasoner as a tool, and answers."""
    async with AsyncOpenAI(**api) as client:
        reasoner = Agent("reasoner", instructions=REASONER, model=OpenAIChatCompletionsModel("reasoner_0", client))
        tool = reasoner.as_tool("work_out", "Works out the first step of a problem.")
        model = OpenAIChatCompletionsModel("actor_0", client)
        actor = Agent("actor", instructions=ACTOR, model=model, tools=[tool])
        return (await Runner.run(actor, problem["problem"])).final_output


async def handoff(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program: the reasoner works out the first step, and hands over to the actor."""
    async with AsyncOpenAI(**api) as client:
        actor = Agent("actor", instructions=ACTOR, model=OpenAIChatCompletionsModel("actor_0", client))
        model = OpenAIChatCompletionsModel("reasoner_0", client)
        reasoner = Agent("reasoner", instructions=REASONER, model=model, handoffs=[actor])
        return (await Runner.run(reasoner, problem["problem"])).final_output


PROBLEMS = [
    {"problem": f"Compute $({a}+{b})\\cdot {c}$.", "a": a, "b": b, "c": c, "answer": (a + b) * c}
    for a in range(2, 10)
    for b in range(2, 14)
    for c in range(2, 7)
]


def grade(problem: dict[str, Any], answer: str) -> float:
    """The reward: 1 for the right number in a box."""
    return float(f"\\boxed{{{problem['answer']}}}" in answer)


def expert(problem: dict[str, Any], agent: str, messages: list[dict[str, Any]]) -> str:
    """Demonstrates what an agent says, for a warm start."""
    a, b, c = problem["a"], problem["b"], problem["c"]
    step, first = f"{a}+{b}={a + b}", messages[-1]["content"] == problem["problem"]
    if agent == "reasoner_0":
        return step + ' <tool_call>{"name": "transfer_to_actor", "arguments": {}}</tool_call>' * first
    if first:
        return f'<tool_call>{{"name": "work_out", "arguments": {{"input": "{a}+{b} is"}}}}</tool_call>'
    return f"{a + b}*{c}={problem['answer']}. \\boxed{{{problem['answer']}}}"
