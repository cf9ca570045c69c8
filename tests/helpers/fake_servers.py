"""Servers on the loopback for tests of engines: one speaks vLLM's dialect over real policies, one OpenAI's chat."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from marft_algos.engines import NativeEngine, agreement
from marft_algos.models.policy import PolicySet
from marft_algos.models.saved import LoraSettings
from marft_algos.types import GenerationRequest, SamplingParams, StopReason

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


class Fake:
    """Answers (path, body) by a function, and remembers what was asked."""

    def __init__(self, answer: Callable[[str, dict[str, Any]], Answer], port: int = 0) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.sent = threading.local()
        """The key of the request that this thread answers."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply({})

            def do_POST(self) -> None:
                self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def reply(self, body: dict[str, Any]) -> None:
                fake.asked.append((self.path, body))
                fake.headers.append({name.lower(): value for name, value in self.headers.items()})
                fake.sent.key = self.headers.get("Authorization", "").removeprefix("Bearer ")
                try:
                    status, content, *more = answer(self.path, body)
                except ConnectionAbortedError:
                    self.connection.close()  # a server that dies in the middle of a request
                    return
                data = json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **(more[0] if more else {})}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A connection that broke is part of the test."""

        self._server = Quiet(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def paths(self, path: str) -> list[dict[str, Any]]:
        """Bodies of the requests for one path."""
        return [body for asked, body in self.asked if asked == path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class FakeVLLM:
    """vLLM's dialect over policies of its own: adapters are loaded from folders, one slot for each name; rank 0: none."""

    def __init__(
        self, model: str, *, context: int = 512, slots: int = 8, raw: bool = False, rank: int = 8, port: int = 0
    ) -> None:
        names = {f"slot{i}": f"slot{i}" for i in range(slots)}
        self._policies = PolicySet.build(model, names, device="cpu", lora=LoraSettings(r=rank or 8))
        self._engine = NativeEngine(self._policies)
        self._free, self._held = list(names), dict[str, str]()
        self._context, self._slots, self._raw, self._rank = context, slots, raw, rank
        self._lock = threading.Lock()
        self.dies_after: int | None = None
        """Completions after which it closes connections without a word."""
        self.key = ""
        """What requests must show, but for those of its health."""
        self.reads: Path | None = None
        """Folder that it reads adapters from, whatever it is told."""
        self.completions = 0
        self.fake = Fake(self._answer, port)

    @property
    def url(self) -> str:
        return self.fake.url

    @property
    def base(self) -> Any:
        return self._policies.base("slot0").model

    @property
    def loaded(self) -> list[str]:
        return sorted(self._held)

    def forget(self) -> None:
        """As after a restart."""
        self._free += self._held.values()
        self._held = {}

    def _answer(self, path: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            if self.dies_after is not None and self.completions >= self.dies_after:
                raise ConnectionAbortedError
            if self.key and path != "/health" and self.fake.sent.key != self.key:
                return 401, {"error": "Unauthorized"}
            if path == "/v1/models":
                return 200, {"data": [{"id": "base", "parent": None, "max_model_len": self._context}]}
            if path.startswith("/server_info"):
                return 200, {"vllm_config": {"lora_config": {"max_loras": self._slots}}}
            if path == "/health" or path.startswith(("/sleep", "/wake_up")):
                return 200, {}
            if path == "/v1/completions":
                return self._complete(body)
            if path == "/v1/load_lora_adapter" and self._rank:
                if (name := body["lora_name"]) in self._held:
                    return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
                slot = self._free.pop()
                self._policies.load_adapter(slot, self.reads or Path(body["lora_path"]))
                self._held[name] = slot
                return 200, "Success"
            if path == "/v1/unload_lora_adapter" and body["lora_name"] in self._held:
                self._free.append(self._held.pop(body["lora_name"]))
                return 200, "Success"
            return 404, {"error": {"message": f"not found: {path}"}}

    def _scored(self, body: dict[str, Any]) -> Answer:
        ids = body["prompt"]
        if body["model"] == "base":
            scores = agreement.base(self._policies, "slot0", ids)
        else:
            scores = agreement.learner(self._policies, self._held[body["model"]], ids)
        scored = [{str(i): {"logprob": float(x)}} for i, x in zip(ids[1:], scores, strict=True)]
        return 200, {"choices": [{"prompt_logprobs": [None, *scored]}]}

    def _complete(self, body: dict[str, Any]) -> Answer:
        if "prompt_logprobs" in body:
            return self._scored(body)
        if body["model"] not in self._held:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        self.completions += 1
        greedy = body["temperature"] == 0
        params = SamplingParams(body["max_tokens"], body["temperature"] or 1.0, greedy)
        request = GenerationRequest(self._held[body["model"]], body["prompt"], body["seed"])
        (made,) = self._engine.generate([request], params)
        scores = [float(x) for x in made.logprobs]
        tops = [{"a": -1.0, "b": -2.5}] if self._raw else [{"a": -body["temperature"], "b": -2.5}]
        choice = {
            "token_ids": made.action_ids,
            "prompt_token_ids": body["prompt"],
            "finish_reason": "stop" if made.stop_reason is StopReason.EOS else "length",
            "logprobs": {"token_logprobs": scores, "top_logprobs": tops},
        }
        used = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(made.action_ids)}
        return 200, {"choices": [choice], "usage": used}


def chat(text: str, *, finish: str = "stop", tokens: tuple[int, int] = (10, 5)) -> dict[str, Any]:
    """A chat completion as OpenAI sends it."""
    return {
        "id": "c", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }  # fmt: skip


def llama_completion(
    ids: list[int], scores: list[Any], *, key: str = "prob", read: int = 2, sampled: int | None = None
) -> dict[str, Any]:
    """A text completion as llama.cpp's server sends it; the key is ``prob`` behind its samplers, else ``logprob``."""
    tokens = [{"id": i, "token": "", "bytes": [], key: score} for i, score in zip(ids, scores, strict=True)]
    used = {"prompt_tokens": read, "completion_tokens": len(ids) if sampled is None else sampled, "total_tokens": 0}
    return {
        "id": "c", "object": "text_completion", "created": 0, "model": "m", "usage": used,
        "choices": [{"index": 0, "text": "", "finish_reason": "stop", "logprobs": {"content": tokens}}],
    }  # fmt: skip


@contextmanager
def serving(answer: Callable[[str, dict[str, Any]], Answer]) -> Iterator[Fake]:
    """A fake while inside."""
    fake = Fake(answer)
    try:
        yield fake
    finally:
        fake.close()
