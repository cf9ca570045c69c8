"""Where a policy's replies come from: one table of the setting ``engines`` for each policy.

    [engines.actor_0]
    kind = "vllm"                      # or "openai", with a model; "native": our own decode loop (the default)
    url = "http://127.0.0.1:8000"      # a list of them: one server per replica

No key is ever part of it, only the name of the environment variable that holds one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from marft_algos.config import keys
from marft_algos.config.values import dumps
from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, Range, Settings, check, checked
from marft_envs.errors import ConfigError, check_known, did_you_mean

EXPECTED = 'Expected {kind = "vllm", url = "http://host:8000"}, {kind = "openai", model = "…", url = "…"} or "native".'
_REMOTE = ("kind", "url", "timeout", "retries", "concurrency", "key_env")
_SETTINGS = {
    "native": ("kind",),
    "vllm": (*_REMOTE, "sleep", "restart_timeout", "weights_tolerance"),
    "tinker": ("kind", "url", "timeout", "concurrency", "key_env", "model", "critic", "price_in", "price_out"),
    "openai": (*_REMOTE, "model", "train", "price_in", "price_out", "max_cost", "extra_body", "tools", "api"),
}
_DEFAULTS: dict[str, dict[str, Any]] = {"openai": {"concurrency": 16}}
"""Of a hosted endpoint, which others use, too."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_SET = (*_LIMITS, "model", "messages", "input", "temperature", "seed", "stream", "n")
"""Fields of a request that a run sets itself, or reads replies by."""


@dataclass(frozen=True, slots=True)
class Endpoint(Settings):
    """One table, checked; equal ones share an engine."""

    kind: Literal["native", "vllm", "openai", "tinker"]
    url: str | tuple[str, ...] = ()
    """Of the servers; without one, ``openai`` goes to OpenAI, or where OPENAI_BASE_URL says."""
    model: str = ""
    """Of a hosted endpoint; of a Tinker server, what it calls the base model, if not as ``models`` does."""
    critic: str = ""
    """Model here whose hidden states value heads read, where a Tinker server has the policies': a small one with the
    same tokenizer."""
    timeout: Annotated[float, POSITIVE] = 600.0
    """Seconds one request may take."""
    retries: Annotated[int, NOT_NEGATIVE] = 5
    """Further attempts after a request that failed for reasons that pass (rate limit, overload, lost connection)."""
    concurrency: Annotated[int, COUNT] = 64
    """Requests in flight at once, per server."""
    key_env: str | None = None
    """Environment variable that holds the key. Without a URL: OPENAI_API_KEY; with one: none is sent."""
    train: bool = False
    """Train this policy on an ``openai`` endpoint's replies, re-scored by the learner; else it is hosted and frozen."""
    price_in: Annotated[float, NOT_NEGATIVE] = 0.0
    """Price of a million prompt tokens, in any currency."""
    price_out: Annotated[float, NOT_NEGATIVE] = 0.0
    """Price of a million reply tokens."""
    max_cost: Annotated[float, Range(0.0, open_low=True, endless=True)] = float("inf")
    """The run stops when the endpoint's replies have cost this much."""
    extra_body: dict[str, Any] | None = field(default=None, hash=False)
    """Further fields of a hosted endpoint's requests, which the server may have settings of its own for."""
    tools: Literal["text", "native"] = "text"
    """How a hosted agent calls tools: in its text, or by the endpoint's own tool calls, which become that text."""
    api: Literal["chat", "responses"] = "chat"
    """Which of OpenAI's APIs a hosted endpoint speaks: chat completions, or responses."""
    sleep: bool = False
    """Put the vLLM servers to sleep during updates (they share the learner's GPU)."""
    restart_timeout: Annotated[float, NOT_NEGATIVE] = 600.0
    """Seconds to wait for a vLLM server while none answers: one that starts, or is started again."""
    weights_tolerance: Annotated[float, NOT_NEGATIVE] = 0.0
    """Largest mean difference of a token's log-prob between learner and vLLM server, in nats, when it takes an adapter;
    0: what rounding may cause."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for values outside their ranges, and for what this kind of engine cannot be."""
        check(self)
        urls = (self.url,) if isinstance(self.url, str) else self.url
        object.__setattr__(self, "url", tuple(_checked_url(url) for url in urls))
        if self.kind == "vllm" and not self.urls:
            raise ConfigError(f"An engine of kind vllm has no usable address. {EXPECTED}")
        if self.kind == "openai" and not self.model:
            raise ConfigError(f"An engine of kind openai names no model. {EXPECTED}")
        if self.key_env is not None:
            keys.check_name(self.key_env)
        if self.extra_body:
            self._check_body(self.extra_body)

        if self.train and (self.tools, self.api) != ("text", "chat"):
            raise ConfigError("An engine with train = true is sent token ids. Leave out tools and api, or train.")

    def _check_body(self, extra: Mapping[str, Any]) -> None:
        if self.train:
            raise ConfigError(
                "An engine with train = true takes no extra_body: a field that bends the server's distribution would"
                " make its replies another policy's. Leave out extra_body, or train."
            )
        if taken := [name for name in extra if name in _SET]:
            raise ConfigError(
                f"extra_body cannot set '{taken[0]}', which the run sets itself. Expected fields such as top_k or"
                " chat_template_kwargs. The number of tokens is --max-new-tokens; where an endpoint refuses max_tokens,"
                " it is sent as max_completion_tokens. And there is --temperature."
            )
        try:
            sent = {"extra_body": json.loads(json.dumps(extra, allow_nan=False))}
        except (TypeError, ValueError) as error:
            raise ConfigError(f"extra_body cannot be sent as JSON: {error}.") from error
        if tomllib.loads(dumps(sent)) != sent:
            raise ConfigError("extra_body holds null, for which a run's config.toml has no word. Leave that field out.")

    def __str__(self) -> str:
        """As it is typed, in a file or behind ``--engines POLICY=``."""
        return _inline(self.table())

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers."""
        return self.url if isinstance(self.url, tuple) else (self.url,)

    @property
    def hosted(self) -> bool:
        """Whether it needs no local model: text in, text out, never trained."""
        return self.kind == "openai" and not self.train

    def table(self) -> dict[str, Any]:
        """Returns what differs from the defaults, as plain values."""
        defaults = {f.name: f.default for f in dataclasses.fields(self)} | _DEFAULTS.get(self.kind, {})
        values = {name: getattr(self, name) for name in defaults}
        values["url"] = self.urls[0] if len(self.urls) == 1 else self.urls
        return {name: value for name, value in values.items() if value != defaults[name]}

    def key(self) -> str | None:
        """Returns the key from the environment; None: leave it to the ``openai`` package.

        Raises:
            ConfigError: The variable is not set.
        """
        name, where = self.key_use()
        if not name:
            # That of a server of this user's here; else the package insists on one, and servers without keys ignore it.
            return keys.of_server(self.urls[0]) or "none"
        if not os.environ.get(name):
            raise ConfigError(
                f"The endpoint for '{self.model or self.urls[0]}' needs a key in the environment variable {name},"
                f' which is not set. Type: export {name}=…, or name another variable with key_env = "NAME".'
            )
        keys.announce(name, where)
        return os.environ[name]

    def key_use(self) -> tuple[str, str]:
        """Returns the variable that holds its key ("": it sends none), and where the key goes."""
        default_url = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"  # the package's own choice
        return self.key_env or ("" if self.urls else "OPENAI_API_KEY"), keys.places(self.urls or (default_url,))


def parse(engine: Endpoint | Mapping[str, Any] | str) -> Endpoint:
    """Reads one table; a text is a kind.

    Raises:
        ConfigError: It cannot be read; the message says what is expected.
    """
    if isinstance(engine, Endpoint):
        return engine
    if not isinstance(engine, Mapping | str):
        raise ConfigError(f"An engine is a table; got {engine!r}. {EXPECTED}")
    table = {"kind": engine} if isinstance(engine, str) else engine
    kind = str(table.get("kind", ""))
    check_known([kind], _SETTINGS, "Unknown engine '{}'.", after=EXPECTED)
    for name in table.keys() - set(_SETTINGS[kind]):  # its value may be a key
        hint = did_you_mean(name, _SETTINGS[kind])
        hint = 'Keys stay in the environment: key_env = "NAME".' if "key" in name else hint
        raise ConfigError(f"An engine of kind {kind} has no setting '{name}'. {hint}")
    return checked(Endpoint, _DEFAULTS.get(kind, {}) | dict(table))


def parse_all(
    engines: Mapping[str, Endpoint | Mapping[str, Any] | str], also: Endpoint | None = None
) -> dict[str, Endpoint]:
    """Reads the table of every policy that has one; ``also`` sends a key, too.

    Raises:
        ConfigError: One cannot be read, or two send one key to different hosts.
    """
    endpoints = {}
    for policy, engine in engines.items():
        try:
            endpoints[policy] = parse(engine)
        except ConfigError as error:
            raise ConfigError(f"engines.{policy}: {error}") from error
        if endpoints[policy].kind == "tinker":
            raise ConfigError(f"engines.{policy}: a Tinker server has all trained policies. Type: --tinker URL")
    users = [*endpoints.values(), *([also] if also is not None else [])]
    remote = [endpoint.key_use() for endpoint in users if endpoint.kind != "native"]
    keys.bind((name, where) for name, where in remote if name)
    return endpoints


def tinker(setting: str | Mapping[str, Any]) -> Endpoint | None:
    """Reads the setting ``tinker``: the address of a Tinker server, or a table with it; empty: there is none.

    Raises:
        ConfigError: It cannot be read.
    """
    if not setting:
        return None
    table = {"url": setting} if isinstance(setting, str) else dict(setting)
    try:
        endpoint = parse({**table, "kind": "tinker"})
        if len(endpoint.urls) != 1 or not endpoint.urls[0]:
            raise ConfigError('It needs one address: {url = "https://host"}.')
    except ConfigError as error:
        raise ConfigError(f"tinker: {error}") from error
    return endpoint


def _inline(value: Any) -> str:
    """Writes a value as TOML in one line."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if not isinstance(value, Mapping):
        return json.dumps(value)
    return "{" + ", ".join(f"{_key(key)} = {_inline(inner)}" for key, inner in value.items()) + "}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def _checked_url(url: str) -> str:
    parts = urlsplit(url.strip())
    if parts.username or parts.password:
        raise ConfigError(
            f"The address of the engine at {parts.hostname} holds a password, and settings are written to the run's"
            ' folder. Put the key into an environment variable, and its name into the setting: key_env = "NAME"'
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"An engine has no usable address: '{url}'. {EXPECTED}")
    return url.strip().rstrip("/")


def token_prices(text: str) -> tuple[float, float] | None:
    """Reads ``IN,OUT``, the prices of a million tokens; "": None.

    Raises:
        ConfigError: It is not two numbers of 0 or more.
    """
    if not text:
        return None
    try:
        price_in, price_out = (float(part) for part in text.split(","))
        if not (0 <= price_in < math.inf and 0 <= price_out < math.inf):
            raise ValueError(text)
    except ValueError as error:
        raise ConfigError(
            f"--price {text}: expected IN,OUT per million tokens, 0 or more, such as --price 0.25,2"
        ) from error
    return price_in, price_out
