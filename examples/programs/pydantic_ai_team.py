"""pydantic-ai: an agent delegates to another from inside a tool.

``pip install 'pydantic-ai-slim[openai]'``; the commands are in docs/your-team.md.
"""

from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

AGENTS = ["actor_0", "reasoner_0"]
REASONER = "You are the Reasoner in a team of two: Reasoner, then Actor."
ACTOR = "You are the Actor in a team of two: Reasoner, then Actor. End with the final answer in \\boxed{}."


async def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program. pydantic-ai sends no telemetry unless ``logfire`` is configured."""
    provider = OpenAIProvider(**api)
    reasoner = Agent(OpenAIChatModel("reasoner_0", provider=provider), instructions=REASONER)
    actor = Agent(OpenAIChatModel("actor_0", provider=provider), instructions=ACTOR)

    @actor.tool
    async def work_out(ctx: RunContext[None], step: str) -> str:
        """Works out a step of the problem."""
        return (await reasoner.run(step, usage=ctx.usage)).output

    return (await actor.run(problem["problem"])).output


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
    if messages[-1]["role"] == "user":
        return f'<tool_call>{{"name": "work_out", "arguments": {{"step": "{a}+{b} is"}}}}</tool_call>'
    return f"{a + b}*{c}={problem['answer']}. \\boxed{{{problem['answer']}}}"
