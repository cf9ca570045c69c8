"""A model on this machine that real SDKs speak to, by OpenAI's chat and responses and Anthropic's messages.

It answers by rule, writes down what it was asked and what it said, and keeps whatever else is posted to it.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VALUES = {"integer": 17, "number": 17, "boolean": True, "array": [], "object": {}}

INGEST = {"use_multipart_endpoint": False, "size_limit": 100, "size_limit_bytes": 10**7, "scale_up_nthreads_limit": 1,
          "scale_up_qsize_trigger": 1000, "scale_down_nempty_trigger": 4}  # fmt: skip
"""What LangSmith's client asks its service for."""


class Model(ThreadingHTTPServer):
    """Each text is another one, so that a reply is found by its words."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.said: list[dict[str, Any]] = []
        """``words``, ``calls``, ``model``, ``asked`` (texts of the prompt), ``tokens`` (of prompt and reply)."""
        self.posted: list[tuple[str, bytes]] = []
        """Path and body of what is no question to a model."""
        self.rows: list[dict[str, Any]] = []
        """What a product that was posted to gives back."""
        self.newer: list[dict[str, Any]] = []
        """The same, as LangSmith's second API has it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, body: Mapping[str, Any], messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        """Calls the first tool that is offered once after each text of a user, and says something after that."""
        with self.lock:
            number = len(self.said) + 1
            called = _last_is_text_of_a_user(messages) and tools
            words, calls = f"Order {number} is in Rome.", []
            if called:
                schema = tools[0].get("parameters") or tools[0].get("input_schema") or {}
                wanted = {name: schema["properties"][name] for name in schema.get("required", ())}
                arguments = {name: VALUES.get(one.get("type"), f"word {number}") for name, one in wanted.items()}
                words, calls = "", [{"id": f"call_{number}", "name": tools[0]["name"], "arguments": arguments}]
            told = (
                "messages" not in body
                or not body.get("stream")
                or (body.get("stream_options") or {}).get("include_usage")
            )
            told = told or "max_tokens" in body  # Anthropic's form says it anyway
            turn = {"words": words, "calls": calls, "model": body["model"], "asked": [_words(m) for m in messages],
                    "tokens": [100 + number, 10 + number] if told else [0, 0], "number": number}  # fmt: skip
            self.said.append(turn)
            return turn


def _words(message: Any) -> str:
    content = message.get("content") or message.get("output")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text") or part.get("content") or "") for part in content)
    return str(content or "")


def _last_is_text_of_a_user(messages: list[Any]) -> bool:
    last = messages[-1]
    if last.get("role") != "user" or str(last.get("type", "message")) != "message":
        return False
    content = last["content"]
    return isinstance(content, str) or all("text" in str(part.get("type")) for part in content)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def do_GET(self) -> None:
        rows = self.server.rows if "observations" in self.path else []
        self.reply({"data": rows, "meta": {}, "batch_ingest_config": INGEST})

    do_PATCH = do_PUT = lambda self: self.do_POST()

    def do_POST(self) -> None:
        if self.headers.get("transfer-encoding") == "chunked":
            raw = b""
            while size := int(self.rfile.readline(), 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        raw = gzip.decompress(raw) if self.headers.get("content-encoding") == "gzip" else raw
        path = self.path.split("?")[0]
        ending = path.rpartition("/v1/")[2]
        ways = {
            "chat/completions": self.as_chat,
            "responses": self.as_responses,
            "messages": self.as_anthropic,
            "embeddings": self.embed,
        }
        if ending not in ways:
            if path.endswith("runs/query"):
                return self.reply({"runs": self.server.rows, "items": self.server.newer})
            self.server.posted.append((path, raw))
            return self.reply({"errors": [], "successes": []}, 207 if path.endswith("ingestion") else 200)
        body = json.loads(raw)
        if body["model"] == "broken":
            return self.reply({"error": {"message": "There is no such model.", "type": "invalid_request_error"}}, 400)
        ways[ending](body)

    def as_chat(self, body: Mapping[str, Any]) -> None:
        tools = [one["function"] for one in body.get("tools") or ()]
        turn = self.server.answer(body, body["messages"], tools)
        calls = [{"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])}}
                 for c in turn["calls"]]  # fmt: skip
        message = {"role": "assistant", "content": turn["words"] or None, **({"tool_calls": calls} if calls else {})}
        reason = "tool_calls" if calls else "stop"
        read, wrote = turn["tokens"]
        usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
        base = {"id": f"chat-{turn['number']}", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choices = [
                {"index": i, "finish_reason": reason, "message": message, "logprobs": None}
                for i in range(body.get("n") or 1)
            ]
            return self.reply({**base, "object": "chat.completion", "choices": choices, "usage": usage})
        pieces = [{"role": "assistant", "content": ""}]
        pieces += [{"content": piece} for piece in _halves(turn["words"])]
        for i, one in enumerate(calls):
            name, given = one["function"]["name"], one["function"]["arguments"]
            pieces.append({"tool_calls": [{**one, "index": i, "function": {"name": name, "arguments": ""}}]})
            pieces += [{"tool_calls": [{"index": i, "function": {"arguments": piece}}]} for piece in _halves(given)]
        chunk = {**base, "object": "chat.completion.chunk"}
        chunks = [{**chunk, "choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in pieces]
        chunks.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**chunk, "choices": [], "usage": usage})
        self.stream([*("data: " + json.dumps(one) for one in chunks), "data: [DONE]"])

    def as_responses(self, body: Mapping[str, Any]) -> None:
        given = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
        system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
        tools = [one for one in body.get("tools") or () if one["type"] == "function"]
        turn = self.server.answer(body, [*system, *given], tools)
        read, wrote = turn["tokens"]
        number = turn["number"]
        text = {"type": "output_text", "text": turn["words"], "annotations": []}
        items: list[dict[str, Any]] = [
            {"type": "function_call", "id": f"fc_{number}", "call_id": c["id"], "name": c["name"], "status": "completed",
             "arguments": json.dumps(c["arguments"])} for c in turn["calls"]
        ] or [{"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [text]}]  # fmt: skip
        usage = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote,
                 "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
        whole = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": body["model"], "status": "completed",
                 "output": items, "usage": usage, "tools": body.get("tools") or [], "tool_choice": "auto",
                 "parallel_tool_calls": True, "error": None, "incomplete_details": None, "metadata": {},
                 "instructions": body.get("instructions"), "temperature": 1, "top_p": 1}  # fmt: skip
        if not body.get("stream"):
            return self.reply(whole)
        item, at = items[0], {"output_index": 0, "item_id": items[0]["id"]}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}
        ]
        if turn["calls"]:
            events.append(
                {
                    "type": "response.output_item.added",
                    "output_index": 0,
                    "item": {**item, "arguments": "", "status": "in_progress"},
                }
            )
            events += [
                {"type": "response.function_call_arguments.delta", **at, "delta": piece}
                for piece in _halves(item["arguments"])
            ]
            events.append(
                {
                    "type": "response.function_call_arguments.done",
                    **at,
                    "arguments": item["arguments"],
                    "name": item["name"],
                }
            )
        else:
            events.append(
                {
                    "type": "response.output_item.added",
                    "output_index": 0,
                    "item": {**item, "content": [], "status": "in_progress"},
                }
            )
            events.append(
                {"type": "response.content_part.added", **at, "content_index": 0, "part": {**text, "text": ""}}
            )
            events += [{"type": "response.output_text.delta", **at, "content_index": 0, "delta": piece, "logprobs": []}
                       for piece in _halves(turn["words"])]  # fmt: skip
            events.append(
                {"type": "response.output_text.done", **at, "content_index": 0, "text": turn["words"], "logprobs": []}
            )
            events.append({"type": "response.content_part.done", **at, "content_index": 0, "part": text})
        events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
        events.append({"type": "response.completed", "response": whole})
        self.stream(
            [f"event: {one['type']}\ndata: {json.dumps({**one, 'sequence_number': i})}" for i, one in enumerate(events)]
        )

    def as_anthropic(self, body: Mapping[str, Any]) -> None:
        system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
        turn = self.server.answer(body, [*system, *body["messages"]], list(body.get("tools") or ()))
        read, wrote = turn["tokens"]
        blocks = [
            {"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["arguments"]} for c in turn["calls"]
        ]
        blocks = blocks or [{"type": "text", "text": turn["words"]}]
        reason = "tool_use" if turn["calls"] else "end_turn"
        whole = {"id": f"msg_{turn['number']}", "type": "message", "role": "assistant", "model": body["model"], "content": blocks,
                 "stop_reason": reason, "stop_sequence": None, "usage": {"input_tokens": read, "output_tokens": wrote}}  # fmt: skip
        if not body.get("stream"):
            return self.reply(whole)
        empty = {"input": {}} if turn["calls"] else {"text": ""}
        key, kind = ("partial_json", "input_json_delta") if turn["calls"] else ("text", "text_delta")
        text = json.dumps(turn["calls"][0]["arguments"]) if turn["calls"] else turn["words"]
        started = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": read, "output_tokens": 0}}
        events = [
            {"type": "message_start", "message": started},
            {"type": "content_block_start", "index": 0, "content_block": {**blocks[0], **empty}},
        ]
        events += [
            {"type": "content_block_delta", "index": 0, "delta": {"type": kind, key: piece}} for piece in _halves(text)
        ]
        ended = {"stop_reason": reason, "stop_sequence": None}
        events += [{"type": "content_block_stop", "index": 0}, {"type": "message_delta", "delta": ended, "usage": {"output_tokens": wrote}},
                   {"type": "message_stop"}]  # fmt: skip
        self.stream([f"event: {one['type']}\ndata: {json.dumps(one)}" for one in events])

    def embed(self, body: Mapping[str, Any]) -> None:
        vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
        self.reply(
            {
                "object": "list",
                "model": body["model"],
                "data": [vector],
                "usage": {"prompt_tokens": 3, "total_tokens": 3},
            }
        )

    def stream(self, events: list[str]) -> None:
        raw = "".join(f"{event}\n\n" for event in events).encode()
        self.send(raw, "text/event-stream", 200)

    def reply(self, content: Any, status: int = 200) -> None:
        self.send(json.dumps(content).encode(), "application/json", status)

    def send(self, raw: bytes, kind: str, status: int) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]] if text else []


@contextmanager
def model() -> Iterator[Model]:
    """A model on a free port of the loopback."""
    server = Model()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
