"""LangGraph: a supervisor (``langgraph-supervisor``) hands a request over to one of two specialists, who have tools.

``pip install langgraph-supervisor langchain-openai``; the commands are in docs/your-team.md.
"""

import json
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from langgraph_supervisor import create_supervisor

AGENTS = ["supervisor_0", "refunds_0", "shipping_0"]


def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The program: returns what its tools have done. LangSmith gets traces only if LANGSMITH_TRACING is set."""
    done: list[Any] = []

    def refund_order(order: int, amount: int) -> str:
        """Refunds an amount for an order."""
        done.append({"order": order, "amount": amount})
        return f"refunded {amount}"

    def add_stock(item: str, quantity: int) -> str:
        """Adds to the stock of an item."""
        done.append({"item": item, "quantity": quantity})
        return f"added {quantity}"

    def specialist(name: str, tool: Any) -> Any:
        prompt = f"You are the {name.title()} specialist. Do your part of the user's request with your tools."
        return create_react_agent(ChatOpenAI(model=f"{name}_0", **api), [tool], name=name, prompt=prompt)

    agents = [specialist("refunds", refund_order), specialist("shipping", add_stock)]
    prompt = "You are the Supervisor. Specialists: orders, shipping, refunds."
    graph = create_supervisor(agents, model=ChatOpenAI(model="supervisor_0", **api), prompt=prompt).compile()
    graph.invoke({"messages": [{"role": "user", "content": problem["problem"]}]})
    return json.dumps(done)


REFUNDS = [{"order": order, "amount": amount} for order in range(11, 41) for amount in range(order % 7 + 10, 99, 11)]
STOCK = [{"item": item, "quantity": quantity} for item in ("cup", "map", "pot") for quantity in range(10, 30)]
PROBLEMS = [{"problem": f"Refund {r['amount']} for order {r['order']}.", "answer": r} for r in REFUNDS]
PROBLEMS += [{"problem": f"Add {s['quantity']} to stock of {s['item']}.", "answer": s} for s in STOCK]


def grade(problem: dict[str, Any], answer: str) -> float:
    """The reward: 1 if that was done which was asked for, and nothing else."""
    return float(json.loads(answer or "[]") == [problem["answer"]])


def expert(problem: dict[str, Any], agent: str, messages: list[dict[str, Any]]) -> str:
    """Demonstrates what an agent says, for a warm start."""
    if len(messages) > (2 if agent == "supervisor_0" else 4):
        return "Nothing is left to do."
    refund = "order" in problem["answer"]
    call = {"name": "refund_order" if refund else "add_stock", "arguments": problem["answer"]}
    hand = {"name": f"transfer_to_{'refunds' if refund else 'shipping'}", "arguments": {}}
    return f"<tool_call>\n{json.dumps(hand if agent == 'supervisor_0' else call)}\n</tool_call>"
