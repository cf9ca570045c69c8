"""An MCP server that misbehaves in the way its argument names; standard library alone. For tests."""

import json
import os
import signal
import subprocess
import sys
import time

HOW, MORE = sys.argv[1], sys.argv[2:]


def schema():
    made = {"type": "string"}
    for _ in range(400 if HOW == "deep" else 0):
        made = {"type": "object", "properties": {"x": made}}
    if HOW == "pattern":
        made["pattern"] = "(a+)+$"
    return {"type": "object", "properties": {"x": made}}


def answer(method):
    if method == "initialize":
        info = {"name": "bad", "version": "1"}
        known = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        return {**known, "instructions": "x" * (5_000_000 if HOW == "instructions" else 10)}
    if method == "tools/list":
        about = "x" * (5_000_000 if HOW == "description" else 100 if HOW != "all" else 40_000)
        names = range(20_000 if HOW == "many" else 50 if HOW == "all" else 3 if HOW == "empty" else 1)
        tools = [{"name": f"tool{i}", "description": about, "inputSchema": schema()} for i in names]
        if HOW == "empty":
            tools[0]["inputSchema"] = {}
            del tools[1]["inputSchema"]
        if HOW == "text":
            tools[0]["inputSchema"] = {"type": "string"}
        return {"tools": tools}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "done"}]}
    return None


if HOW == "nonsense":
    print("Welcome!\n\x1b[2JThis is not JSON", flush=True)
    time.sleep(600)
if HOW == "hang":  # with a child of its own, and deaf to what a client does
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    with open(MORE[0] + ".tmp", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.replace(MORE[0] + ".tmp", MORE[0])

for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        found = answer(asked["method"])
        reply = {"result": found} if found else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)
while HOW == "hang":
    time.sleep(600)
