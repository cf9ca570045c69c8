"""smolagents: a manager calls an agent that it manages as it calls a tool.

``pip install 'smolagents[openai]'``; the commands are in docs/your-team.md.
"""

import json
from typing import Any

from smolagents import OpenAIModel, ToolCallingAgent

AGENTS = ["manager_0", "reasoner_0"]


def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program. smolagents sends no telemetry unless an instrumentation of yours is set up."""

    def model(agent: str) -> OpenAIModel:
        return OpenAIModel(model_id=agent, api_base=api["base_url"], api_key=api["api_key"])

    known = {"name": "reasoner", "description": "Works out the first step of a problem."}
    reasoner = ToolCallingAgent([], model("reasoner_0"), **known, verbosity_level=0)
    manager = ToolCallingAgent([], model("manager_0"), managed_agents=[reasoner], verbosity_level=0)
    return str(manager.run(problem["problem"]))


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
    a, b = problem["a"], problem["b"]

    def call(name: str, **arguments: str) -> str:
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    if agent == "reasoner_0":
        return call("final_answer", answer=f"{a}+{b}={a + b}")
    if not any("Observation" in message["content"] for message in messages[2:]):
        return call("reasoner", task=f"Please work out {a}+{b}.")
    return call("final_answer", answer=f"\\boxed{{{problem['answer']}}}")
