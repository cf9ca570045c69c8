"""Keeps every reply of hosted models on disk: none is asked for twice, and what they cost adds up over restarts."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from marft_algos.config.endpoints import Endpoint
from marft_algos.engines.base import EngineBase, RolloutEngine
from marft_algos.engines.usage import Usage
from marft_algos.jsonl import drop_cut_line
from marft_algos.types import FOREIGN, Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import DataError, reading


class Ledger:
    """A JSONL file of replies: one line each, written as soon as the reply is there.

    Args:
        file: Made if it is not there; a last line that was cut is dropped.

    Raises:
        DataError: A line is no record of a reply.
    """

    def __init__(self, file: Path) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        self._usage: dict[str, Usage] = {}
        self._waited: dict[str, list[float]] = defaultdict(list)
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = file.open("a+b")
        for number, line in enumerate(drop_cut_line(self._file).splitlines(), 1):
            with reading(f"{file}, line {number}, is no record of a reply", "Take it out.", DataError):
                self._note(json.loads(line))

    def usage(self, policy: str) -> Usage:
        """Returns what a policy's replies came to, since the file was made."""
        return self._usage.get(policy, Usage())

    def waited(self, policy: str) -> dict[str, float]:
        """Returns percentiles of the seconds that its replies took, retries included; nothing where none is known."""
        seconds = self._waited[policy]
        return {f"p{p}": float(np.percentile(seconds, p)) for p in (50, 95)} if seconds else {}

    def known(self, key: str) -> dict[str, Any] | None:
        """Returns the line of a request that was answered; None if it was not."""
        return self._known.get(key)

    def add(self, line: dict[str, Any]) -> None:
        """Keeps a reply, or a failure."""
        with self._lock:
            self._note(line)
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _note(self, line: dict[str, Any]) -> None:
        total = self._usage.setdefault(line["policy"], Usage())
        total.requests += 1
        reason = StopReason(line["stop_reason"])
        total.answered(reason, line["text"])
        total.tokens_in += int(line["usage"][0])
        total.tokens_out += int(line["usage"][1])
        total.cost += float(line["cost"])
        if reason is not StopReason.ERROR:
            if "seconds" in line:
                self._waited[line["policy"]].append(float(line["seconds"]))
            self._known[line["key"]] = {**line, "stop_reason": reason, "text": str(line["text"])}


class TimedEngine(EngineBase):
    """Times the replies of an engine of this machine, which cost nothing: the seconds of a batch are those of each."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order."""
        began = time.monotonic()
        replies = self._engine.generate(requests, params)
        spent = {"seconds": round(time.monotonic() - began, 4), "cost": 0.0}
        return [replace(reply, spent=spent) for reply in replies]

    def metrics(self) -> dict[str, float]:
        """As the engine below: what was asked now, and not before."""
        return self._engine.metrics()

    def close(self) -> None:
        """Closes the engine below."""
        self._engine.close()


class LedgerEngine(TimedEngine):
    """Answers from a ledger what stands in it, and asks the engine below for the rest, each request by itself.

    Args:
        engine: Of a hosted model.
        endpoint: Its settings; model and address are part of what was asked.
        ledger: Where replies are kept.
    """

    one_by_one = True

    def __init__(self, engine: RolloutEngine, endpoint: Endpoint, ledger: Ledger) -> None:
        super().__init__(engine)
        self._endpoint, self._ledger = endpoint, ledger
        self._pool = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="ledger")

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order."""
        return list(self._pool.map(lambda request: self._one(request, params), requests))

    def close(self) -> None:
        """Closes the engine below."""
        self._pool.shutdown()
        super().close()

    def _one(self, request: GenerationRequest, params: SamplingParams) -> Generation:
        key = self._key(request, params)
        if (line := self._ledger.known(key)) is not None:
            known = line["stop_reason"], FOREIGN, line["text"], str(line["error"]), (line["usage"][0], line["usage"][1])
            return Generation([], np.zeros(0, np.float32), *known, spent=self._spent(line))
        began = time.monotonic()
        (reply,) = self._engine.generate([request], params)
        seconds = round(time.monotonic() - began, 4)
        used = reply.usage or (0, 0)
        cost = (used[0] * self._endpoint.price_in + used[1] * self._endpoint.price_out) / 1e6
        said = {"text": reply.text, "stop_reason": str(reply.stop_reason), "error": reply.error}
        counted = {"usage": list(used), "cost": cost, "seconds": seconds}
        self._ledger.add({"key": key, "policy": request.policy, **said, **counted})
        return replace(reply, spent=self._spent(counted))

    def _spent(self, line: Mapping[str, Any]) -> dict[str, float]:
        """Returns what a reply took and cost, as far as that is known."""
        priced = self._endpoint.price_in or self._endpoint.price_out
        return {name: line[name] for name in ("seconds", *(["cost"] if priced else ())) if name in line}

    def _key(self, request: GenerationRequest, params: SamplingParams) -> str:
        """Names a request by all that its reply depends on."""
        asked = [
            self._endpoint.model,
            self._endpoint.urls,
            request.policy,
            request.seed,
            [*map(dict, request.messages)],
        ]
        if (self._endpoint.tools, self._endpoint.api) != ("text", "chat"):  # else the key is what it was without these
            asked += [self._endpoint.tools, self._endpoint.api, [*map(dict, request.tools)]]
        settings = [params.max_new_tokens, params.temperature, params.greedy]
        return hashlib.sha256(json.dumps([asked, settings]).encode()).hexdigest()
