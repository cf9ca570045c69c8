"""A team of two agents that is a program of its own: a script, with a client of a few lines."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any


def ask(api: dict[str, str], agent: str, profile: str, text: str) -> str:
    messages = [{"role": "system", "content": profile}, {"role": "user", "content": text}]
    headers = {"Authorization": f"Bearer {api['api_key']}", "Content-Type": "application/json"}
    body = json.dumps({"model": agent, "messages": messages}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{api['base_url']}/chat/completions", body, headers)) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def team(problem: dict[str, Any], api: dict[str, str]) -> str:
    """The writer says something, the reader reads it and answers."""
    words = ask(api, "writer_0", "Write.", problem["problem"])
    return ask(api, "reader_0", "Read.", f"{problem['problem']}\n\n[writer]\n{words}")


if __name__ == "__main__":
    print("working")
    keys = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    print(team(json.loads(sys.stdin.read()), keys))
