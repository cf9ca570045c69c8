"""CrewAI: a crew of a reasoner and an actor, whose tasks are worked on one after the other.

``pip install crewai``; the commands are in docs/your-team.md.
"""

import os
from typing import Any

# CrewAI sends telemetry to its makers, unless these are set before it is imported.
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true"}
from crewai import LLM, Agent, Crew, Task

AGENTS = ["reasoner_0", "actor_0"]


def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program."""

    def agent(name: str, goal: str) -> Agent:
        llm = LLM(model=f"openai/{name}", **api)
        return Agent(role=name[:-2], goal=goal, backstory="You are in a team of two.", llm=llm)

    reasoner = agent("reasoner_0", "Work out the step that the problem hinges on.")
    actor = agent("actor_0", "Solve the problem.")
    step = Task(description="Work out the first step: {problem}", expected_output="A sum", agent=reasoner)
    answer = Task(description="Solve: {problem}", expected_output="The number in a box", agent=actor, context=[step])
    crew = Crew(agents=[reasoner, actor], tasks=[step, answer])
    return crew.kickoff(inputs={"problem": problem["problem"]}).raw


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
