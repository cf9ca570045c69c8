r"""A member that is an agent behind an Agent2Agent endpoint (JSON-RPC over HTTP; A2A_VERSION=0.3 for the older one).

A2A_URL=http://127.0.0.1:9000 marft train --env math-dual-v0 \
        --env-kwargs 'partners={"reasoner_0": "examples.a2a_member:ask"}'
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from marft_algos.engines.http import EngineServer  # one deadline, no redirect, no proxy, 64 MiB at most

SPOKEN = {"1.0": ("SendMessage", "ROLE_USER", {}), "0.3": ("message/send", "user", {"kind": "text"})}
TIMEOUT = 60.0  # seconds for the whole answer


def ask(messages: Sequence[dict[str, str]]) -> str:
    """Sends the agent's whole prompt as one message; returns the text of the answer, or of a finished task."""
    version = os.environ.get("A2A_VERSION", "1.0")
    method, role, kind = SPOKEN[version]
    prompt = "\n\n".join(message["content"] for message in messages)
    message = {"messageId": uuid4().hex, "role": role, "parts": [{**kind, "text": prompt}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
    url = urlsplit(os.environ["A2A_URL"])
    path, server = url._replace(scheme="", netloc="").geturl(), EngineServer(f"{url.scheme}://{url.netloc}", TIMEOUT)
    data, _ = server.request("POST", path, json.dumps(body).encode(), TIMEOUT, {"A2A-Version": version})
    content: dict[str, Any] = json.loads(data)
    result = content.get("result", {})
    result = {result["kind"]: result} if "kind" in result else result  # 0.3 says beside the content what it is
    state = result.get("task", {}).get("status", {}).get("state", "completed")
    if "error" in content or state not in ("completed", "TASK_STATE_COMPLETED"):
        raise ConnectionError(f"the agent did not answer: {content.get('error', state)}")  # an infrastructure error
    said = [result["message"]] if "message" in result else result["task"]["artifacts"]
    return "\n".join(part["text"] for one in said for part in one["parts"] if "text" in part)
