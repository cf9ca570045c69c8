"""Where a policy's replies come from, written as one string: what ``TrainConfig.engines`` holds.

    native                                  our own decode loop in this process (the default)
    vllm:URL[,URL…][?OPTIONS]               vLLM servers, one URL per replica
    openai:MODEL[@URL][?OPTIONS]            a hosted model; without a URL: OpenAI, or what OPENAI_BASE_URL says

Options are written like a URL's: ``?timeout=30&price_out=2.5``. No key is ever part of it, only the name of the
environment variable that holds one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from marft_algos.config import keys
from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, Checked, Range
from marft_envs.errors import ConfigError, did_you_mean

Kind = Literal["native", "vllm", "openai"]
EXPECTED = "Expected native, vllm:URL[,URL] or openai:MODEL[@URL]."


@dataclass(frozen=True, slots=True)
class Endpoint(Checked):
    """One parsed setting; equal ones share an engine."""

    kind: Kind
    urls: tuple[str, ...] = ()
    model: str = ""
    """Of a hosted endpoint."""
    timeout: Annotated[float, POSITIVE] = 600.0
    """Seconds one request may take."""
    retries: Annotated[int, NOT_NEGATIVE] = 5
    """Further attempts after a request that failed for reasons that pass (rate limit, overload, lost connection)."""
    concurrency: Annotated[int, COUNT] = 64
    """Requests in flight at once, per server."""
    key_env: str = ""
    """Environment variable that holds the key. Without a URL: OPENAI_API_KEY; with one: none is sent."""
    train: bool = False
    """Train this policy on an ``openai`` endpoint's replies, re-scored by the learner; else it is hosted and frozen."""
    price_in: Annotated[float, NOT_NEGATIVE] = 0.0
    """Price of a million prompt tokens, in any currency."""
    price_out: Annotated[float, NOT_NEGATIVE] = 0.0
    """Price of a million reply tokens."""
    max_cost: Annotated[float, Range(0.0, open_low=True, endless=True)] = float("inf")
    """The run stops when the endpoint's replies have cost this much."""
    sleep: bool = False
    """Put the vLLM servers to sleep during updates (they share the learner's GPU)."""

    @property
    def hosted(self) -> bool:
        """Whether it needs no local model: text in, text out, never trained."""
        return self.kind == "openai" and not self.train

    def key(self) -> str | None:
        """Returns the key from the environment; None: leave it to the ``openai`` package.

        Raises:
            ConfigError: The variable is not set.
        """
        name, where = self.key_use()
        if not name:
            return "none"  # the package insists on one; servers without keys ignore it
        if not os.environ.get(name):
            raise ConfigError(
                f"The endpoint for '{self.model or self.urls[0]}' needs a key in the environment variable {name},"
                f" which is not set. Type: export {name}=…, or name another variable with ?key_env=NAME."
            )
        keys.announce(name, where)
        return os.environ[name]

    def key_use(self) -> tuple[str, str]:
        """Returns the variable that holds its key ("": it sends none), and where the key goes."""
        own = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"  # where the package goes by itself
        return self.key_env or ("" if self.urls else "OPENAI_API_KEY"), keys.places(self.urls or (own,))


def parse(spec: str) -> Endpoint:
    """Reads one setting.

    Raises:
        ConfigError: It cannot be read; the message says what is expected.
    """
    head, _, query = spec.partition("?")
    kind, _, rest = head.partition(":")
    if kind == "native" and not rest and not query:
        return Endpoint("native")
    if kind == "vllm":
        made = Endpoint("vllm", urls=tuple(_url(url, spec) for url in rest.split(",")))
        allowed = {"timeout", "retries", "concurrency", "key_env", "sleep"}
    elif kind == "openai":
        model, at, url = rest.partition("@http")
        if not model:
            raise ConfigError(f"The engine '{spec}' names no model. {EXPECTED}")
        made = Endpoint("openai", (_url("http" + url, spec),) if at else (), model, timeout=120.0, concurrency=16)
        allowed = {"timeout", "retries", "concurrency", "key_env", "train", "price_in", "price_out", "max_cost"}
    else:
        raise ConfigError(f"Unknown engine '{spec}'. {did_you_mean(kind, ('native', 'vllm', 'openai'))} {EXPECTED}")
    options = _options(query, allowed, spec)
    try:
        return replace(made, **options)
    except ConfigError as error:
        raise ConfigError(f"In the options of an engine: {error}") from error


def parse_all(engines: Mapping[str, str]) -> dict[str, Endpoint]:
    """Reads the setting of every policy that has one.

    Raises:
        ConfigError: One cannot be read, or two send one key to different hosts.
    """
    found = {policy: parse(spec) for policy, spec in engines.items()}
    keys.bind(use for use in (one.key_use() for one in found.values() if one.kind != "native") if use[0])
    return found


def _url(url: str, spec: str) -> str:
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"The engine '{spec}' has no usable address: '{url}'. {EXPECTED} A URL: http://host:8000")
    if parts.username or parts.password:
        raise ConfigError(
            f"The address of the engine at {parts.hostname} holds a password, and settings are written to the run's"
            " folder. Put the key into an environment variable, and its name into the setting: ?key_env=NAME"
        )
    return url.strip().rstrip("/")


def _options(query: str, allowed: set[str], spec: str) -> dict[str, Any]:
    kinds: dict[str, Callable[[str], Any]] = {"retries": int, "concurrency": int, "key_env": str}
    kinds |= {"train": _truth, "sleep": _truth}
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in allowed:
            shown = spec.partition("?")[0]  # what stands behind it may be a key
            hint = "Keys stay in the environment: ?key_env=NAME." if "key" in name else did_you_mean(name, allowed)
            raise ConfigError(f"The engine '{shown}' has no option '{name}'. {hint}")
        try:
            found[name] = kinds.get(name, float)(text)
        except ValueError as error:
            raise ConfigError(f"The option '{name}' of an engine cannot be '{text}': {error}.") from error
    if "key_env" in found:
        keys.check_name(found["key_env"])
    return found


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("expected true or false")
    return text == "true"
