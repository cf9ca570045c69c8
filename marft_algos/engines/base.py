"""The protocol of rollout engines."""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from marft_algos.seeds import row_seed as row_seed
from marft_algos.seeds import uniforms as uniforms
from marft_algos.terminal import say
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import MarftError

ROUNDING = 1e-5
"""Largest log-prob that is taken for 0: servers compute in lower precision."""


class EngineError(MarftError, RuntimeError):
    """A generation that failed, or a request that no engine can answer."""


class RolloutEngine(Protocol):
    """Turns requests into replies: token ids in; token ids, log-probs, stop reason and version of the weights out.

    A failed request comes back with ``StopReason.ERROR``, never as ``""``; a prompt that the model does not take comes
    back with ``StopReason.REFUSED``, which is an answer. ``EngineBase`` has defaults for all but
    ``generate``; ``marft_algos.engines.conformance`` checks the promises.
    """

    @property
    def one_by_one(self) -> bool:
        """Whether each request is answered by itself (servers).

        ``generate`` may then be called from several threads, nothing is gained by asking for many at once, and the
        Collector lets every episode go on by itself. False for engines that decode a batch together: those are asked
        for the turns of all episodes at once.
        """

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order, of any mix of policies; none depends on the others."""
        raise NotImplementedError

    def needs_adapter(self, policy: str) -> bool:
        """Returns whether ``publish`` wants this policy's weights as a folder on disk."""
        return False

    def publish(self, policy: str, version: int, adapter: Path | None = None) -> None:
        """Samples this policy from weights ``version`` on from now on; no other policy changes.

        By default nothing is done: the engine reads the trained tensors themselves, or has none.

        Args:
            policy: Whose weights are new.
            version: Their number; replies carry it.
            adapter: Folder in peft's format, where ``needs_adapter`` asked for one. It stays until the next publish.
        """
        return

    def sleep(self) -> None:
        """Gives back device memory that only sampling needs, where that can be done."""
        return

    def wake(self) -> None:
        """Undoes ``sleep``; to be called before the next publish or generation."""
        return

    def metrics(self) -> dict[str, float]:
        """Returns numbers to log (requests, retries, costs) that were counted since the last call."""
        return {}

    def close(self) -> None:
        """Frees processes and connections."""
        return


class EngineBase(RolloutEngine):
    """What an engine derives from: it has the protocol's defaults, and lacks ``generate`` alone."""

    one_by_one: bool = False
    """A batch is decoded together."""


class AdapterSource(Protocol):
    """What publishing needs of a set of policies."""

    def save_adapter(self, policy: str, folder: Path) -> Any:
        """Writes a policy in peft's format."""


class Publisher:
    """Hands the policies' weights to an engine; writes only those that the engine asks for as a folder.

    Args:
        engine: Who samples.
        policies: Whose weights.
        folder: Where adapters are written, readable by the engine's servers; a temporary folder by default.
    """

    def __init__(self, engine: RolloutEngine, policies: AdapterSource, folder: Path | str | None = None) -> None:
        self._engine, self._policies = engine, policies
        self._parent = None if folder is None else Path(folder).expanduser().absolute()
        self._temporary: Path | None = None
        self._last: dict[str, Path] = {}

    def publish(self, names: Iterable[str], version: int) -> None:
        """Publishes the present weights of these policies as ``version``, and deletes the folders before them."""
        for name in names:
            adapter: Path | None = None
            if self._engine.needs_adapter(name):
                adapter = self._folder() / f"{name}@{version}"
                self._policies.save_adapter(name, adapter)
            self._engine.publish(name, version, adapter)
            before = self._last.pop(name, None)
            if before is not None and before != adapter:
                shutil.rmtree(before, ignore_errors=True)
            if adapter is not None:
                self._last[name] = adapter

    def close(self) -> None:
        """Deletes what was written."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary, self._last = None, {}

    def _folder(self) -> Path:
        if self._temporary is None:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._temporary = Path(tempfile.mkdtemp(prefix="marft-adapters-", dir=self._parent))
            self._temporary.chmod(0o755)  # a server may run as another user
        return self._temporary


class Notes:
    """Tells the user once what is worth knowing of many replies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def tell(self, kind: str, words: str) -> None:
        """Prints the first note of a kind."""
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
        say(f"note: {words}", error=True)


def failure(message: str, version: int) -> Generation:
    """Returns the record of a request that failed."""
    return Generation([], np.zeros(0, np.float32), StopReason.ERROR, version, error=message)


def refusal(message: str, version: int) -> Generation:
    """Returns the answer of nothing to a prompt that was refused."""
    return Generation([], np.zeros(0, np.float32), StopReason.REFUSED, version, error=message)


def too_long(length: int, limit: int, context: int, whose: str, version: int) -> Generation:
    """Returns the answer to a prompt that does not fit.

    Args:
        length: Tokens of the prompt.
        limit: Tokens that the reply may have.
        context: Tokens that both may have together.
        whose: The context is.
        version: Of the weights.
    """
    return refusal(
        f"the prompt has {length} tokens and the reply may have {limit}, but {whose} has a context of {context}. Lower"
        " max_new_tokens, or let the environment cut long inputs with max_chars",
        version,
    )


def wrong_tokens(ids: Any, scored: Any, most: int, vocabulary: int) -> str:
    """Returns what cannot be in the tokens and log-probs that a server sent; "" if nothing.

    Args:
        ids: Token ids, as decoded from JSON.
        scored: Their log-probs.
        most: Tokens that were asked for.
        vocabulary: Ids that the model knows.
    """
    if not isinstance(ids, list) or not isinstance(scored, list):
        return "tokens and log-probs that are no lists"
    if len(ids) != len(scored):
        return f"{len(ids)} tokens with {len(scored)} log-probs"
    if len(ids) > most:
        return f"{len(ids)} tokens where {most} were asked for"
    for i in ids:
        if type(i) is not int or not 0 <= i < vocabulary:
            return f"the token {str(i)[:40]!r}, and the vocabulary has {vocabulary}"
    for x in scored:
        if type(x) not in (int, float) or not math.isfinite(x) or x > ROUNDING:
            return f"the log-prob {str(x)[:40]!r}"
    return ""
