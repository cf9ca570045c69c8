"""OpenAI Agents SDK: a lead hands a request over to a specialist (``handoffs``).

``pip install openai-agents``; the commands are in docs/your-team.md.
"""

import json
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

AGENTS = ["lead_0", "refunds_0"]
set_tracing_disabled(True)  # else the SDK sends every prompt to OpenAI


async def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program: returns what its tools have done."""
    done: list[Any] = []

    @function_tool
    def refund_order(order: int, amount: int) -> str:
        """Refunds an amount for an order."""
        done.append({"order": order, "amount": amount})
        return f"refunded {amount}"

    async with AsyncOpenAI(**api) as client:
        model = {agent: OpenAIChatCompletionsModel(agent, client) for agent in AGENTS}
        told = "Do your part of the user's request with your tools."
        refunds = Agent("refunds", instructions=told, tools=[refund_order], model=model["refunds_0"])
        lead = Agent("lead", instructions="You are the Supervisor.", handoffs=[refunds], model=model["lead_0"])
        await Runner.run(lead, problem["problem"])
    return json.dumps(done)


ROWS = [{"order": order, "amount": amount} for order in range(11, 51) for amount in range(order % 7 + 10, 99, 11)]
PROBLEMS = [{"problem": f"Refund {row['amount']} for order {row['order']}.", "answer": row} for row in ROWS]


def grade(problem: dict[str, Any], answer: str) -> float:
    """The reward: 1 if that was done which was asked for, and nothing else."""
    return float(json.loads(answer or "[]") == [problem["answer"]])


def expert(problem: dict[str, Any], agent: str, messages: list[dict[str, Any]]) -> str:
    """Demonstrates what an agent says, for a warm start."""
    if "refunded" in str(messages) or (agent == "lead_0" and len(messages) > 2):
        return "Nothing is left to do."
    ask = {"name": "transfer_to_refunds", "arguments": {}}
    call = {"name": "refund_order", "arguments": problem["answer"]}
    return f"<tool_call>\n{json.dumps(ask if agent == 'lead_0' else call)}\n</tool_call>"
