"""A Tinker server on the loopback for tests, on transformers and peft: what the protocol promises, and ways to break it.

It shares nothing with the client but the numbers of protobuf's fields. Losses are sums over all tokens of all rows since
the last step, or, in the dialect of SkyRL's JAX server, each row's mean over its weights, and the mean of the rows.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import socket
import struct
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from marft_algos.models.loading import locate

from .tinker_proto import Refused, part, request

PROTO = "application/x-protobuf"
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ALPHA = 32


class TinkerServer:
    """The server; attributes are switches that a test may turn while it runs.

    Args:
        base: The model.
        loss: ``sum`` or ``mean``.
        port: To listen at; 0: any.
    """

    def __init__(self, base: str = "embedded", loss: str = "sum", port: int = 0) -> None:
        self.base, self.loss = base, loss
        self.names = [base]
        """Models that it says it has."""
        self.overwrites = False
        """Sampling from an older snapshot puts it over the trained weights."""
        self.clips = self.tells_norm = self.gives_adapters = True
        self.drops_targets = False
        """Adapters are given without ``target_modules``."""
        self.end_tokens = True
        """Replies hold the token that ended them."""
        self.key = ""
        """Requests without it are refused."""
        self.intercept: Callable[[str, int], None] = lambda path, count: None
        """Called before a request is worked on, with how often its path was asked for; may raise Refused or
        ConnectionAbortedError."""
        self.after: Callable[[str, int], None] = lambda path, count: None
        """Called before the answer is sent."""
        self.asked: list[tuple[str, Any]] = []
        self.connections = 0
        """How many were opened."""
        self._open: list[socket.socket] = []
        self._model = AutoModelForCausalLM.from_pretrained(locate(base), dtype=torch.float32).eval()
        self._plain = copy.deepcopy(self._model)
        self._team: PeftModel | None = None
        self.models: dict[str, dict[str, Any]] = {}
        self._samplers: dict[str, str] = {}
        self._paths: dict[str, str | None] = {}
        self._sources: dict[str, str] = {}
        self._states: dict[str, Any] = {}
        self._results: dict[str, Any] = {}
        self._done: dict[tuple[str, int], str] = {}
        self._ids, self._lock = itertools.count(1), threading.Lock()
        self._listen(port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def hang_up(self) -> None:
        """Closes the connections that nobody has used for a while, as servers do."""
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def count(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(asked == path for asked, _ in self.asked)

    def adapter(self, model: str) -> dict[str, torch.Tensor]:
        """The present weights of a policy, as peft names them."""
        found = get_peft_model_state_dict(self._peft, adapter_name=model)
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def poison(self, model: str) -> None:
        """Fills a policy's weights with NaN."""
        for tensor in self.models[model]["own"]:
            tensor.data.fill_(float("nan"))

    @property
    def _peft(self) -> PeftModel:
        assert self._team is not None
        return self._team

    # ---- requests

    def _listen(self, port: int) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def setup(self) -> None:
                super().setup()
                server.connections += 1
                server._open.append(self.connection)

            def do_GET(self) -> None:
                self.work({})

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                self.work(request(data) if self.headers["Content-Type"] == PROTO else json.loads(data))

            def work(self, body: dict[str, Any]) -> None:
                path = self.path.removeprefix("/api/v1/")
                headers = {"Content-Type": "application/json"}
                try:
                    with server._lock:
                        server.asked.append((path, body))
                        count = server.count(path)
                    if server.key and self.headers.get("X-API-Key") != server.key:
                        raise Refused(401, "wrong key")
                    server.intercept(path, count)
                    with server._lock:
                        answer = server._answer(path, body)
                    server.after(path, count)
                    status, data = 200, answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                    if isinstance(answer, bytes):
                        headers["Content-Type"] = "application/octet-stream" if "/" in path else PROTO
                    if isinstance(answer, dict) and "Location" in answer:
                        status, headers["Location"] = 302, answer["Location"]
                except ConnectionAbortedError:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                except Exception as error:
                    status = error.status if isinstance(error, Refused) else 400
                    data = json.dumps({"detail": f"{type(error).__name__}: {error}"}).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        class Quiet(ThreadingHTTPServer):
            request_queue_size = 128  # a fuller one costs a second each

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A connection that broke is part of the test."""

        self._server = Quiet(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _answer(self, path: str, body: dict[str, Any]) -> Any:
        works = {
            "create_model": self._create, "forward_backward": self._gradient, "optim_step": self._step,
            "save_weights": self._save, "load_weights": self._load, "save_weights_for_sampler": self._snapshot,
            "asample": self._sample, "unload_model": self._unload,
        }  # fmt: skip
        if path in works:
            return self._promise(path, works[path], body)
        if path == "retrieve_future":
            if body["request_id"] not in self._results:
                raise Refused(404, "Future not found")
            answer = self._results[body["request_id"]]
            if isinstance(answer, Refused):
                raise answer
            return answer
        if path == "create_session":
            return {"session_id": f"S{next(self._ids)}"}
        if path == "create_sampling_session":
            key = f"s{next(self._ids)}"
            if body.get("base_model"):
                self._paths[key] = None
            else:
                if body["model_path"] not in self._samplers:
                    raise Refused(404, "no such sampler")
                self._paths[key] = self._samplers[body["model_path"]]
            return {"sampling_session_id": key}
        if path == "get_server_capabilities":
            return {"supported_models": [{"model_name": name} for name in self.names]}
        if path.endswith("/archive"):
            if not self.gives_adapters:
                raise Refused(404, "no archives here")
            run, name = path.split("/")[1], path.split("/")[-2]
            return {"Location": f"{self.url}/api/v1/files/{run}/{name}"}
        if path.startswith("files/"):
            run, name = path.split("/")[1:]
            return self._archive(self._samplers[f"tinker://{run}/sampler_weights/{name}"])
        return {"type": path}

    def _promise(self, path: str, work: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> dict[str, str]:
        """Work is done at once and kept; numbered work that comes again is known."""
        known = body.get("model_id", ""), body.get("seq_id") or 0
        if known[1] and path != "asample" and known in self._done:
            return {"request_id": self._done[known]}
        key = f"r{next(self._ids)}"
        try:
            self._results[key] = work(body)
        except Refused as error:
            self._results[key] = error
        self._done[known] = key
        return {"request_id": key}

    # ---- weights

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        lora = body["lora_config"]
        name = f"m{next(self._ids)}x"
        torch.manual_seed(lora.get("seed") or 0)
        config = LoraConfig(r=lora["rank"], lora_alpha=ALPHA, target_modules=LAYERS)
        if self._team is None:
            self._team = get_peft_model(self._model, config, adapter_name=name)
        else:
            self._team.add_adapter(name, config)
        own = [p for n, p in sorted(self._peft.named_parameters()) if f".{name}." in n]
        self.models[name] = {"lora": config, "rank": lora["rank"], "rows": 0, "version": 0, "own": own}
        self.models[name]["adam"] = torch.optim.AdamW(own)
        return {"type": "create_model", "model_id": name}

    def _unload(self, body: dict[str, Any]) -> dict[str, Any]:
        self.models.pop(body["model_id"], None)
        self._peft.delete_adapter(body["model_id"])
        return {"type": "unload_model"}

    def _get(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["model_id"] not in self.models:
            raise Refused(404, "Model not found")
        return self.models[body["model_id"]]

    def _hidden(self, adapter: str | None, ids: list[int], cache: Any = None) -> Any:
        tokens = torch.tensor([ids])
        if adapter is None:
            return self._plain(input_ids=tokens, past_key_values=cache, use_cache=True)
        if self._peft.active_adapter != adapter:
            self._peft.set_adapter(adapter)
        return self._peft(input_ids=tokens, past_key_values=cache, use_cache=True)

    def _gradient(self, body: dict[str, Any]) -> bytes:
        model, found, total = self._get(body), [], 0.0
        for tensor in model["own"]:
            tensor.requires_grad_(True)
        for row in body["data"]:
            inputs = {name: torch.from_numpy(value) for name, value in row["inputs"].items()}
            if self.loss == "sum" and any(len(value) != len(row["ids"]) for value in inputs.values()):
                raise Refused(400, "inputs of other lengths")
            with torch.set_grad_enabled(not body["forward_only"]):
                logits = self._hidden(body["model_id"], row["ids"]).logits[0].float()
                scored = torch.log_softmax(logits, -1).gather(1, inputs["target_tokens"][:, None])[:, 0]
                loss = self._loss(body["loss_fn"], scored, inputs)
            if not body["forward_only"]:
                for tensor in model["own"]:
                    tensor.requires_grad_(True)
                loss.backward()
                model["rows"] += 1
            total += float(loss.detach())
            found.append(scored.detach().numpy().astype("<f4"))
        cuts = np.cumsum([0, *(x.nbytes for x in found)]).astype("<i8").tobytes()
        tensor_part = part(1, b"".join(x.tobytes() for x in found)) + part(2, cuts) + b"\x18\x01"
        record = part(1, b"TensorData") + part(2, part(1, b"logprobs") + part(2, tensor_part))
        metric = part(1, b"loss:sum") + b"\x11" + struct.pack("<d", total)
        return part(1, b"TensorData") + part(2, record) + part(3, metric)

    def _loss(self, name: str, scored: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        weights = inputs.get("weights", torch.ones(len(scored)))
        if name == "cross_entropy":
            each = -scored * (weights if self.loss == "sum" else 1.0)
        elif name == "importance_sampling":
            each = -torch.exp(scored - inputs["logprobs"]) * inputs["advantages"]
        else:
            raise Refused(400, f"unknown loss {name}")
        return each.sum() if self.loss == "sum" else (each * weights).sum() / weights.sum().clamp(min=1e-9)

    def _step(self, body: dict[str, Any]) -> dict[str, Any]:
        model, settings = self._get(body), body["adam_params"]
        own = model["own"]
        for tensor in own:
            tensor.requires_grad_(True)
            if self.loss == "mean" and tensor.grad is not None:
                tensor.grad /= max(model["rows"], 1)
        for group in model["adam"].param_groups:
            group.update(
                lr=settings["learning_rate"],
                betas=(settings["beta1"], settings["beta2"]),
                eps=settings["eps"],
                weight_decay=settings["weight_decay"],
            )
        most = (settings.get("grad_clip_norm") if self.clips else 0) or float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(own, most))
        model["adam"].step()
        model["adam"].zero_grad()
        model["rows"], model["version"] = 0, model["version"] + 1
        return {"type": "optim_step", "metrics": {"optim/grad_norm": norm} if self.tells_norm else {}}

    def _save(self, body: dict[str, Any]) -> dict[str, Any]:
        model, path = self._get(body), f"tinker://{body['model_id']}/weights/{body['path']}"
        if path in self._states:
            raise Refused(409, "already there")
        kept = self.adapter(body["model_id"]), copy.deepcopy(model["adam"].state_dict()), model["rank"]
        self._states[path] = kept
        return {"type": "save_weights", "path": path}

    def _load(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["path"] not in self._states:
            raise Refused(404, "Checkpoint not found")
        if body["seq_id"] != 1:
            raise Refused(400, f"LoadWeights is not permitted with seq_id {body['seq_id']}")
        weights, adam, _ = self._states[body["path"]]
        set_peft_model_state_dict(self._peft, weights, adapter_name=body["model_id"])
        if body["optimizer"]:
            self.models[body["model_id"]]["adam"].load_state_dict(copy.deepcopy(adam))
        return {"type": "load_weights", "path": body["path"]}

    def _snapshot(self, body: dict[str, Any]) -> dict[str, Any]:
        model, key = self._get(body), f"s{next(self._ids)}x"
        self._peft.add_adapter(key, copy.deepcopy(model["lora"]))
        set_peft_model_state_dict(self._peft, self.adapter(body["model_id"]), adapter_name=key)
        self._sources[key] = body["model_id"]
        if body.get("path"):
            path = f"tinker://{body['model_id']}/sampler_weights/{body['path']}"
            self._samplers[path] = key
            return {"type": "save_weights_for_sampler", "path": path}
        self._paths[key] = key
        return {"type": "save_weights_for_sampler", "sampling_session_id": key, "path": f"tinker://x/{key}"}

    def _archive(self, key: str) -> bytes:
        data = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=data, mode="w:gz") as archive:
            self._peft.save_pretrained(folder, selected_adapters=[key])
            if self.drops_targets:
                file = Path(folder, key, "adapter_config.json")
                file.write_text(json.dumps(json.loads(file.read_text()) | {"target_modules": None}))
            for inner in Path(folder, key).iterdir():
                archive.add(inner, f"somewhere/{inner.name}")
        return data.getvalue()

    # ---- samples

    @torch.no_grad()
    def _sample(self, body: dict[str, Any]) -> bytes:
        if body["sampling_session_id"] not in self._paths:
            raise Refused(404, "Sampling session not found")
        adapter, settings = self._paths[body["sampling_session_id"]], body["sampling_params"]
        prompt = [int(t) for chunk in body["prompt"]["chunks"] for t in chunk["tokens"]]
        if adapter is not None and self.overwrites and self._sources[adapter] in self.models:
            source = self._sources[adapter]
            set_peft_model_state_dict(self._peft, self.adapter(adapter), adapter_name=source)
        draws = torch.Generator().manual_seed(settings.get("seed") or 0)
        first = self._hidden(adapter, prompt)
        ids, scored, stopped = list[int](), list[float](), False
        while len(ids) < settings["max_tokens"] and not stopped:
            out = self._hidden(adapter, ids[-1:], first.past_key_values) if ids else first
            logits = out.logits[0, -1].float()
            logprobs = torch.log_softmax(logits / (settings["temperature"] or 1.0), -1)
            greedy = not settings["temperature"]
            token = int(logprobs.argmax() if greedy else torch.multinomial(logprobs.exp(), 1, generator=draws))
            stopped = token in (settings.get("stop") or ())
            if stopped and not self.end_tokens:
                break
            ids.append(token)
            scored.append(float(logprobs[token]))
        answer = b"" if stopped else b"\x08\x01"
        answer += part(2, np.asarray(ids, "<i4").tobytes()) + part(3, np.asarray(scored, "<f4").tobytes())
        answer = part(1, answer)
        if body.get("prompt_logprobs"):
            targets = torch.tensor(prompt[1:])[:, None]
            given = torch.log_softmax(first.logits[0, :-1].float(), -1).gather(1, targets)[:, 0].numpy()
            start = [] if self.loss == "mean" else [np.nan]
            answer += part(2, np.asarray([*start, *given], "<f4").tobytes())
        return answer


@contextmanager
def serving(base: str = "embedded", loss: str = "sum") -> Iterator[TinkerServer]:
    """A server for the length of a block."""
    server = TinkerServer(base, loss)
    try:
        yield server
    finally:
        server.close()
