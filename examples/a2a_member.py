r"""A member of a team that is an agent behind an Agent2Agent endpoint (protocol 1.0, JSON-RPC over HTTP).

A2A_URL=http://127.0.0.1:9000 marft train --env math-dual-v0 \
        --env-kwargs 'partners={"reasoner_0": "examples.a2a_member:ask"}'
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence
from typing import Any
from uuid import uuid4


def ask(messages: Sequence[dict[str, str]]) -> str:
    """Sends all that the agent is told as one message; returns the text of the answer, or of a finished task."""
    told = "\n\n".join(message["content"] for message in messages)
    message = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": told}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    request = urllib.request.Request(os.environ["A2A_URL"], json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: dict[str, Any] = json.load(answer)
    result = content.get("result", {})
    state = result.get("task", {}).get("status", {}).get("state", "TASK_STATE_COMPLETED")
    if "error" in content or state != "TASK_STATE_COMPLETED":
        raise ConnectionError(f"the agent did not answer: {content.get('error', state)}")  # an outage
    said = [result["message"]] if "message" in result else result["task"]["artifacts"]
    return "\n".join(part["text"] for one in said for part in one["parts"] if "text" in part)
