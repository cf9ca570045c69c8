"""Stands in for a hosted model that calls tools itself: the three agents of ``examples/engineer.py``, by its API."""

from __future__ import annotations

import json
import re
from typing import Any

from helpers.fake_servers import Answer, chat


def till(path: str, body: dict[str, Any]) -> Answer:
    """Answers as the model that is asked for; sampled, the actor is wrong now and then."""
    text = "\n".join(str(message.get("content") or "") for message in body["messages"])
    if body["model"] == "clerk":
        return 200, _clerk(body["messages"], text)
    a, b, n = map(int, re.findall(r"Compute \$\((\d+)\+(\d+)\)\\cdot (\d+)\$", text)[-1])
    if body["model"] == "reasoner":
        return 200, chat(f"{a}+{b}={a + b},", tokens=(40, 6))
    paid = (a + b) * n + (body.get("temperature") != 0 and body["seed"] % 16 == 0)
    return 200, chat(f"{a + b}*{n}={paid}. \\boxed{{{paid}}}", tokens=(50, 14))


def _clerk(messages: list[dict[str, Any]], text: str) -> dict[str, Any]:
    if messages[-1]["role"] == "tool":
        return chat(f"You paid {re.findall(r'charged ([0-9-]+)', text)[-1]}.", tokens=(60, 5))
    boxes = re.findall(r"boxed\{(-?\d{1,9})\}", text)
    if not boxes:
        return chat("Nothing was charged.", tokens=(40, 4))
    answer = chat("", finish="tool_calls", tokens=(40, 12))
    function = {"name": "charge", "arguments": json.dumps({"amount": int(boxes[-1])})}
    calls = [{"id": "c0", "type": "function", "function": function}]
    answer["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": calls}
    return answer
