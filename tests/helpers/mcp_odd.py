"""An MCP server of the standard library alone, as strangers write them; some of its tools behave badly.

It keeps a total for as long as its process lives. ``python mcp_odd.py`` talks MCP (handshake) over standard streams.
"""

import json
import os
import sys
import time

TEXT = {"type": "string"}
TOOLS = {
    "add": ("Adds to the total.", {"n": {"type": "integer", "minimum": 1}}, {}),
    "total": ("Says the total.", {}, {"readOnlyHint": True}), "fail": ("Fails.", {}, {}),
    "refuse": ("Is refused by the protocol.", {}, {}),
    "big": ("Says much.", {"n": {"type": "integer"}}, {"readOnlyHint": True}),
    "picture": ("Shows a picture.", {}, {"readOnlyHint": True}), "die": ("Ends the server.", {}, {}),
    "hang": ("Never answers.", {}, {}), "mumble": ("Answers in a way that is no MCP.", {"how": {"type": "string"}}, {}),
    "chat": ("Prints where it should not, and answers.", {}, {}),
}  # fmt: skip
SPOILT = {
    "cut": '{"jsonrpc": "2.0", "id": %d, "result": {"content": [',
    "shape": '{"jsonrpc": "2.0", "id": %d, "result": 5}',
    "deep": '{"jsonrpc": "2.0", "id": %d, "result": {"content": ' + "[" * 3000 + "]" * 3000 + "}}",
}
total = 0


def call(name, given):
    """What a tool gives: content, and whether it is an error."""
    global total
    if name == "add":
        total += given["n"]
        return [{"type": "text", "text": json.dumps({"total": total})}], False
    if name == "total":
        return [{"type": "text", "text": f"The total is {total}."}], False
    if name == "big":
        return [{"type": "text", "text": "x" * given["n"]}], False
    if name == "picture":
        return [{"type": "image", "data": "AAAA", "mimeType": "image/png"}, {"type": "text", "text": "a cat"}], False
    if name == "die":
        print("I cannot go on", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "chat":
        print('working on it\n{"level": "info", "message": "still working"}\n17', flush=True)
        time.sleep(0.5)
        return [{"type": "text", "text": "done"}], False
    while name == "hang":
        time.sleep(3600)
    return [{"type": "text", "text": "It cannot be done."}], True


def answer(method, given):
    if method == "initialize":
        info = {"name": "odd", "version": "1"}
        known = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        return {**known, "instructions": "Count with care."}
    if method == "tools/list":
        return {
            "tools": [
                {
                    "name": name,
                    "description": about,
                    "inputSchema": {"type": "object", "properties": takes, "required": list(takes)},
                    "annotations": hints,
                }
                for name, (about, takes, hints) in TOOLS.items()
            ]
        }
    if method == "tools/call" and given["name"] != "refuse":
        content, error = call(given["name"], given.get("arguments") or {})
        return {"content": content, "isError": error}
    return None


for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "tools/call" and asked["params"]["name"] == "mumble":
        print(SPOILT[asked["params"]["arguments"]["how"]] % asked["id"], flush=True)
        continue
    if "id" in asked:
        found = answer(asked["method"], asked.get("params") or {})
        reply = {"result": found} if found else {"error": {"code": -32601, "message": f"no {asked['method']} here"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
