"""LangGraph: a supervisor hands the problem over to a reasoner, gets it back, and answers.

``pip install langgraph-supervisor langchain-openai``; the commands are in docs/your-team.md.
"""

from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from langgraph_supervisor import create_supervisor

AGENTS = ["supervisor_0", "reasoner_0"]
SUPERVISOR = "You are the Actor in a team of two: Reasoner, then Actor. End with the final answer in \\boxed{}."
REASONER = "You are the Reasoner in a team of two: Reasoner, then Actor."


def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program: the graph of langgraph-supervisor's own page."""
    reasoner = create_react_agent(
        model=ChatOpenAI(model="reasoner_0", **api), tools=[], name="reasoner", prompt=REASONER
    )
    workflow = create_supervisor([reasoner], model=ChatOpenAI(model="supervisor_0", **api), prompt=SUPERVISOR)
    result = workflow.compile().invoke({"messages": [{"role": "user", "content": problem["problem"]}]})
    return result["messages"][-1].content


PROBLEMS = [
    {"problem": f"Compute $({a}+{b})\\cdot {c}$.", "a": a, "b": b, "c": c, "answer": (a + b) * c}
    for a in range(2, 10)
    for b in range(2, 14)
    for c in range(2, 7)
]


def grade(problem: dict[str, Any], answer: str) -> float:
    """The reward: 1 for the right number in a box."""
    return float(answer.endswith(f"\\boxed{{{problem['answer']}}}"))


def expert(problem: dict[str, Any], agent: str, messages: list[dict[str, Any]]) -> str:
    """Demonstrates what an agent says, for the warm start."""
    a, b, c = problem["a"], problem["b"], problem["c"]
    if agent == "reasoner_0":
        return f"{a}+{b}={a + b}"
    if messages[-1]["role"] == "user":
        return '<tool_call>{"name": "transfer_to_reasoner", "arguments": {}}</tool_call>'
    return f"{a + b}*{c}={problem['answer']}. \\boxed{{{problem['answer']}}}"
