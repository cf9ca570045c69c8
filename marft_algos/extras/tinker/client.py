"""Speaks the Tinker protocol to one server: every call has a deadline, and nothing is sent that could spoil weights.

Work is asked for by one request, which gives it a number, and fetched by others (long polls). What fails for reasons
that pass (a lost connection, a rate limit, a server that is starting) is tried again until the deadline; training
requests are numbered, so a server that has got one knows it when it comes again.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np

from marft_algos.batching import UpdateError
from marft_algos.config.endpoints import Endpoint
from marft_algos.engines.base import ROUNDING, EngineError, wrong_tokens
from marft_algos.engines.http import NONSENSE, EngineServer, ServerDown, ServerRefused
from marft_algos.extras.tinker import wire
from marft_algos.extras.tinker.wire import Row, Sampled
from marft_algos.types import FloatArray
from marft_envs.errors import reading

SDK = "0.25.0"
"""Version of Tinker's own client whose form of the protocol this speaks."""
ADAPTER_BYTES = 8 << 30
"""Largest adapter that is downloaded."""
_POLL, _BEAT = 60.0, 10.0
"""Seconds of one long poll at most, and between two signs of life; a server that is down is reported as often as the
former."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
"""Seconds before a request is sent again; they double."""
_PIECE = 4 << 20
"""Bytes of one request with rows, about; 24 for a token."""
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-5, "weight_decay": 0.0}
"""Adam as it is here: the protocol's own defaults are others."""
V1 = "/api/v1/"
T = TypeVar("T")


class TinkerError(EngineError):
    """What was asked of a Tinker server did not happen."""


class TinkerServer:
    """A session on a server.

    Args:
        endpoint: Its address, its key and its limits.
        pause: Seconds before the first repetition of a request.
    """

    def __init__(self, endpoint: Endpoint, pause: float = _FIRST_PAUSE) -> None:
        key = endpoint.key() if endpoint.key_env else None
        self.url, self._timeout, self._pause = endpoint.urls[0], endpoint.timeout, pause
        self._http = EngineServer(self.url, self._timeout, key or "tml-none", "X-API-Key", keep=True)
        self._pool = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="tinker")
        self._numbers, self._lock, self._over = itertools.count(1), threading.Lock(), threading.Event()
        self.counts = {"requests": 0.0, "retries": 0.0, "bytes_out": 0.0, "bytes_in": 0.0, "seconds": 0.0}
        """What went over the line since the last look."""
        opened = {"tags": ["marft"], "user_metadata": None, "sdk_version": SDK, "type": "create_session"}
        self._told = -math.inf
        self.session = self.said(self.call("create_session", opened), "session_id")
        threading.Thread(target=self._live, daemon=True, name="tinker-heartbeat").start()

    def close(self) -> None:
        """Ends the session; what runs on the server is not waited for."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def taken(self) -> dict[str, float]:
        """Returns what went over the line since the last call."""
        with self._lock:
            now, self.counts = self.counts, dict.fromkeys(self.counts, 0.0)
        return now

    def number(self) -> int:
        """Returns a number that nothing of this session has had."""
        return next(self._numbers)

    def models(self) -> list[str]:
        """Returns the base models that the server names; empty: it names none."""
        answer = self._json(*self._send("GET", "get_server_capabilities", None, self.deadline()))
        named = answer.get("supported_models") or []
        return [self.said(m, "model_name") for m in (named if isinstance(named, list) else [named])]

    def said(self, answer: Any, name: str) -> str:
        """Returns what an answer names so.

        Raises:
            TinkerError: It names none.
        """
        value = answer.get(name) if isinstance(answer, dict) else None
        if type(value) not in (str, int) or value == "":
            found = self._http.masked(str(answer))[:200]
            raise TinkerError(f"{self.url} answered {found}, not '{name}'. Expected: --tinker names its server.")
        return str(value)

    def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what is answered at once.

        Raises:
            TinkerError: It says no, or nothing until the deadline.
        """
        return self._json(*self._send("POST", path, json.dumps(body).encode(), self.deadline()))

    def start(self, path: str, body: Mapping[str, Any] | bytes) -> Callable[[], tuple[bytes, str]]:
        """Asks for work; returns what waits for its result, whose deadline begins now."""
        until, data = self.deadline(), body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = wire.TYPE if isinstance(body, bytes) else "application/json"
        number = self.said(self._json(*self._send("POST", path, data, until, kind)), "request_id")
        return lambda: self._fetch(path, number, until)

    def result(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the result of work, as JSON."""
        return self._json(*self.start(path, body)())

    def later(self, work: Callable[[], T]) -> Future[T]:
        """Does something in a thread of the server's pool: as many at once as ``concurrency`` says."""
        return self._pool.submit(work)

    def get(self, path: str, until: float, host: str = "") -> bytes:
        """Returns what lies at a path here, or on another host, which gets no key.

        Raises:
            ServerDown: It does not come until then.
            ServerRefused: It is not there, or elsewhere.
        """
        line = EngineServer(host, self._timeout) if host not in ("", self.url) else self._http
        return line.request("GET", path, None, max(until - time.monotonic(), 0.001), most=ADAPTER_BYTES)[0]

    def deadline(self) -> float:
        """Returns until when, by the monotonic clock, what is asked now may take."""
        return time.monotonic() + self._timeout

    def tell(self, path: str, body: Mapping[str, Any]) -> None:
        """Sends once what nothing depends on: a sign of life, or that a place is free."""
        with suppress(ServerDown, ServerRefused):  # the thread that waits for work raises it
            self._http.request("POST", V1 + path, json.dumps(body).encode(), min(_BEAT, self._timeout))

    def _live(self) -> None:
        while not self._over.wait(_BEAT):
            self.tell("session_heartbeat", {"session_id": self.session, "type": "session_heartbeat"})

    def _send(
        self, method: str, path: str, body: bytes | None, until: float, kind: str = "application/json", what: str = ""
    ) -> tuple[bytes, str]:
        """Sends a request until it is answered; messages say what it is for.

        Raises:
            TinkerError: It is refused, or not answered until the deadline.
        """
        pause, headers = self._pause, {"Content-Type": kind, "Accept": f"{wire.TYPE}, application/json"}
        while True:
            began, left = time.monotonic(), until - time.monotonic()
            try:
                answer = self._http.request(method, V1 + path, body, max(min(left, _POLL), 0.001), headers)
                self._count(len(body or b""), len(answer[0]), time.monotonic() - began)
                return answer
            except (ServerDown, ServerRefused) as error:
                waiting = isinstance(error, ServerRefused) and error.status in (408, 425)
                if isinstance(error, ServerRefused) and not waiting:
                    raise TinkerError(f"{self.url} refuses {what or path}: {self._http.masked(str(error))}") from error
                if until - time.monotonic() <= pause:
                    raise TinkerError(
                        f"{self.url} has not answered {what or path} within {self._timeout:g} s ({error}). Once it is"
                        " there again, go on from the last checkpoint: marft train --resume RUN. A slow server wants"
                        " more time: timeout, in the table tinker."
                    ) from error
                if not waiting and time.monotonic() - self._told > _POLL:
                    self._told = time.monotonic()
                    told = f"{what or path} does not work yet: {error}. It is tried again for {left:.0f} s."
                    warnings.warn(told, stacklevel=2)
            self._count(len(body or b""), 0, time.monotonic() - began, 0 if waiting else 1)
            if self._over.wait(pause):
                raise TinkerError("The session was closed.")
            pause = self._pause if waiting else min(2 * pause, _LONGEST_PAUSE)

    def _fetch(self, path: str, request: str, until: float) -> tuple[bytes, str]:
        """Returns a result, once it is there."""
        poll = json.dumps({"request_id": request}).encode()
        while True:
            data, kind = self._send("POST", "retrieve_future", poll, until, what=f"{path} (its result)")
            if kind == wire.TYPE:
                return data, kind
            answer = self._json(data, kind)
            if answer.get("type") == "try_again":
                if time.monotonic() > until:
                    raise TinkerError(f"{self.url} still works on {path} after {self._timeout:g} s.")
                self._over.wait(self._pause)
                continue
            if "error" in answer:
                raise TinkerError(f"{self.url} failed at {path}: {self._http.masked(str(answer['error']))[:500]}")
            return data, kind

    def _json(self, data: bytes, kind: str) -> dict[str, Any]:
        with reading(f"{self.url} answered what is no JSON ({kind})", f"It begins: {data[:100]!r}", TinkerError):
            answer = json.loads(data)
        if not isinstance(answer, dict):
            raise TinkerError(f"{self.url} answered {str(answer)[:100]} where a table was expected")
        return answer

    def _count(self, out: int, back: int, seconds: float, retries: int = 0) -> None:
        with self._lock:
            for name, more in zip(self.counts, (1, retries, out, back, seconds), strict=True):
                self.counts[name] += more


class Model:
    """The weights of one policy on a server, with their optimiser. One thread at a time trains it.

    Args:
        server: Where they are.
        base: The model that the adapter stands on, as the server calls it.
        vocabulary: Token ids that it knows.
        rank: Of the adapter.
        seed: Of its initial weights.
        state: Path of saved weights to begin with; empty: fresh ones.
        optimiser: Begin with the optimiser that was saved with them, too.
    """

    def __init__(
        self,
        server: TinkerServer,
        base: str,
        vocabulary: int,
        rank: int,
        seed: int,
        state: str = "",
        optimiser: bool = False,
    ) -> None:
        self.server, self.base, self._vocabulary = server, base, vocabulary
        lora = {"rank": rank, "seed": seed, "train_unembed": False, "train_mlp": True, "train_attn": True}
        body = {"session_id": server.session, "model_seq_id": server.number(), "base_model": base, "lora_config": lora}
        self.id = server.said(server.result("create_model", body | {"type": "create_model"}), "model_id")
        self._numbers = itertools.count(1)
        if state:
            try:
                self._work("load_weights", path=state, optimizer=optimiser)
            except TinkerError as error:
                raise TinkerError(
                    f"The weights {state} cannot be had again: {error}. Take another checkpoint; where adapters were"
                    " downloaded, marft export hands them on."
                ) from error

    def forward(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Returns the log-probs [T] of each row's targets; all requests are in flight together."""
        filled = [Row(row.ids, {"weights": np.ones(len(row.ids) - 1, np.float32)}) for row in rows]
        return [scored for piece in self._send(filled, "cross_entropy", True) for scored in piece()]

    def step(self, rows: Sequence[Row], adam: Mapping[str, float]) -> dict[str, float]:
        """Adds the rows' gradients by ``importance_sampling`` and takes Adam's step; returns the step's metrics.

        One round trip: the step is asked for behind the rows, without waiting for them. ``gap`` among the metrics is
        the mean difference of the log-probs that were sent from those at the server's weights, in nats.
        """
        pieces = self._send(rows, "importance_sampling", False)
        body = {"model_id": self.id, "seq_id": next(self._numbers), "adam_params": dict(adam), "type": "optim_step"}
        done = self.server.start("optim_step", body)
        found = zip((scored for piece in pieces for scored in piece()), (row.inputs for row in rows), strict=True)
        gaps = [np.abs(now - sent["logprobs"])[sent["advantages"] != 0] for now, sent in found]
        answer = self.server._json(*done())
        try:
            metrics = (answer.get("metrics") or {}) | {"gap": np.concatenate(gaps).mean()}
            return {name: math.nan if value is None else float(value) for name, value in metrics.items()}
        except (*NONSENSE, OverflowError) as error:
            raise TinkerError(f"{self.server.url} gave metrics of a step that are no numbers: {error}") from error

    def save(self, name: str) -> str:
        """Keeps weights and optimiser under a new name; returns their path."""
        return self.server.said(self._work("save_weights", path=name), "path")

    def sampler(self, name: str = "") -> str:
        """Keeps the weights to sample from: the path of named ones, which stay, or else a session's id."""
        if name:
            return self.server.said(self._work("save_weights_for_sampler", path=name), "path")
        answer = self._work("save_weights_for_sampler", sampling_session_seq_id=self.server.number())
        return self.server.said(answer, "sampling_session_id")

    def unload(self) -> None:
        """Gives the server's place for these weights back, without waiting for it."""
        self.server.tell("unload_model", {"model_id": self.id, "type": "unload_model"})

    def _work(self, what: str, **body: Any) -> dict[str, Any]:
        return self.server.result(what, {"model_id": self.id, "seq_id": next(self._numbers), "type": what, **body})

    def _send(self, rows: Sequence[Row], loss: str, forward: bool) -> list[Callable[[], list[FloatArray]]]:
        """Sends rows in pieces, in order; returns what waits for each piece's log-probs."""
        for row in rows:
            check(row, self._vocabulary)
        most = max(_PIECE // (24 * max((len(row.ids) for row in rows), default=1)), 1)
        pieces = (rows[i : i + most] for i in range(0, len(rows), most))
        asked = ((piece, wire.work(self.id, next(self._numbers), piece, loss, forward)) for piece in pieces)
        return [partial(_scored, self.server.start("forward_backward", data), piece) for piece, data in asked]


def grad_norm(metrics: Mapping[str, float]) -> float | None:
    """Returns the gradient's norm before it was clipped from a step's metrics; None: the server does not say it."""
    return next((value for name, value in metrics.items() if "grad_norm" in name), None)


def sample(
    server: TinkerServer, sampler: str, ids: Sequence[int], vocabulary: int, *, prompt: bool = False, **params: Any
) -> Sampled:
    """Returns one reply of a sampler.

    Args:
        server: Where it is.
        sampler: Its session.
        ids: The prompt.
        vocabulary: Token ids that its model knows.
        prompt: Give the log-probs of the prompt's tokens, too.
        **params: Of sampling: ``max_tokens``, ``temperature``, ``seed``, ``stop``.

    Raises:
        TinkerError: It does not answer, or with what cannot be a reply.
    """
    body = {
        "sampling_session_id": sampler,
        "seq_id": server.number(),
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(map(int, ids))}]},
        "sampling_params": params,
        "prompt_logprobs": prompt,
        "type": "sample",
    }
    (reply,) = _read(wire.samples, *server.start("asample", body)(), count=1)
    if problem := wrong_tokens(reply.ids, reply.logprobs.tolist(), params["max_tokens"], vocabulary):
        raise TinkerError(f"{server.url} sent {problem}")
    return reply


def check(row: Row, vocabulary: int) -> None:
    """Checks what a server might take without a word and spoil its weights with.

    Raises:
        UpdateError: Ids that the model does not know, numbers that are not finite, or not one for each target.
    """
    odd = next((i for i in row.ids if not 0 <= i < vocabulary), None)
    if odd is not None or len(row.ids) < 2:
        what = f"the token {odd}, and its vocabulary has {vocabulary}" if odd is not None else "a text of one token"
        raise UpdateError(f"The model would be sent {what}. Check --models: it is the base that the server has.")
    for name, values in row.inputs.items():
        if len(values) != len(row.ids) - 1 or not np.isfinite(values).all():
            raise UpdateError(
                f"{len(values)} {name} for {len(row.ids) - 1} targets, or some that are not finite: they are not sent,"
                " as a server would train on them. Lower the learning rate, or look for inf in the rewards."
            )


def _scored(wait: Callable[[], tuple[bytes, str]], rows: Sequence[Row]) -> list[FloatArray]:
    """Waits for the log-probs of rows."""
    found = _read(wire.scores, *wait(), count=len(rows))
    for scored, row in zip(found, rows, strict=True):
        if len(scored) != len(row.ids) - 1 or not (np.isfinite(scored) & (scored <= ROUNDING)).all():
            raise TinkerError(
                f"The server gave {len(scored)} log-probs for {len(row.ids) - 1} targets, or some that are positive or"
                " not finite: its weights may be spoilt. Go on from the last checkpoint: marft train --resume RUN"
            )
    return found


def _read(read: Callable[[bytes], list[T]], data: bytes, kind: str, count: int) -> list[T]:
    try:
        found = read(data) if kind == wire.TYPE else []
    except NONSENSE as error:
        raise TinkerError(f"The server answered what is no message of the protocol: {error}") from error
    if len(found) != count:
        raise TinkerError(f"The server answered {len(found)} results ({kind}) where {count} were expected.")
    return found
