"""AutoGen: a group chat in which a reasoner and an actor take turns.

``pip install autogen-agentchat 'autogen-ext[openai]'``; the commands are in docs/your-team.md.
"""

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

AGENTS = ["reasoner_0", "actor_0"]
REASONER = "You are the Reasoner in a team of two: Reasoner, then Actor."
ACTOR = "You are the Actor in a team of two: Reasoner, then Actor. End with the final answer in \\boxed{}."
INFO = {"vision": False, "function_calling": False, "json_output": False, "structured_output": False, "family": "any"}


async def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program. AutoGen sends no telemetry by itself: its spans go to a tracer of yours, if you set one."""
    clients = [OpenAIChatCompletionClient(model=agent, model_info=INFO, **api) for agent in AGENTS]
    reasoner = AssistantAgent("reasoner", clients[0], system_message=REASONER)
    actor = AssistantAgent("actor", clients[1], system_message=ACTOR)
    chat = RoundRobinGroupChat([reasoner, actor], termination_condition=MaxMessageTermination(3))
    result = await chat.run(task=problem["problem"])
    for client in clients:
        await client.close()
    return result.messages[-1].content


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
    if agent == "reasoner_0":
        return f"{a}+{b}={a + b}"
    return f"{a + b}*{c}={problem['answer']}. \\boxed{{{problem['answer']}}}"
