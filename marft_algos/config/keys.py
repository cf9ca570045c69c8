"""Keys of servers: which variables may be sent at all, to which host, and the keys of servers started here.

A key never stands in a setting: there is the name of the environment variable that holds it. The name has to look like
that of a key for an API, one variable belongs to one place, and both are shown before the first request.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from marft_algos.config.trust import states
from marft_algos.terminal import say
from marft_envs.errors import ConfigError

_KEY = re.compile(r"[A-Za-z]\w*_(KEY|API_TOKEN)|HF_TOKEN|API_KEY")
_NEVER = re.compile(r"SECRET|PRIVATE|ACCESS|SIGN|CRYPT|MASTER|SSH|GPG|PASS", re.IGNORECASE)
"""Keys of accounts and machines, which no engine wants: AWS_SECRET_ACCESS_KEY, SSH_PRIVATE_KEY, DJANGO_SECRET_KEY."""
VLLM = "VLLM_API_KEY"
"""Variable that vLLM reads its key from."""

_announced: set[tuple[str, str]] = set()


def check_name(name: str) -> None:
    """Checks that a variable is one that holds a key for an API.

    Raises:
        ConfigError: It is not: any other variable would leave this machine.
    """
    if not _KEY.fullmatch(name) or _NEVER.search(name):
        raise ConfigError(
            f"key_env names the variable '{name}', which is sent to the engine's host. Expected the name of a key for"
            " an API: NAME_API_KEY, NAME_KEY, NAME_API_TOKEN or HF_TOKEN, and none of an account or a machine (SECRET,"
            ' ACCESS, PRIVATE, …). If it is the right one, type: export NAME_API_KEY="$' + name + '"'
        )


def places(urls: Iterable[str]) -> str:
    """Returns scheme and host of addresses, for people and for comparing."""
    return ", ".join(sorted({f"{urlsplit(url).scheme}://{urlsplit(url).hostname}" for url in urls}))


def bind(uses: Iterable[tuple[str, str]]) -> None:
    """Checks that each variable goes to one place.

    Args:
        uses: Variable and ``places``, for each engine that sends one.

    Raises:
        ConfigError: Two engines send one key to different hosts.
    """
    bound: dict[str, str] = {}
    for name, where in uses:
        if bound.setdefault(name, where) != where:
            raise ConfigError(
                f"The key in {name} would be sent to {bound[name]} and to {where}. A key belongs to one host: put the"
                ' other\'s into a variable of its own, and name that: key_env = "NAME".'
            )


def announce(name: str, where: str) -> None:
    """Says once which variable goes where; never its value."""
    if (name, where) not in _announced:
        _announced.add((name, where))
        plain = any(place.startswith("http://") and not _is_local(place) for place in where.split(", "))
        say(f"key:     {name} is sent to {where}{' (unencrypted)' if plain else ''}", error=True)


def masked(text: str, key: str | None) -> str:
    """Returns a server's words without the key that it was sent; one of few characters is a placeholder, as EMPTY."""
    return text.replace(key, "***") if key and len(key) >= 12 else text


def _is_local(place: str) -> bool:
    return urlsplit(place).hostname in ("127.0.0.1", "localhost", "::1")


# Servers that this user has started here ------------------------------------------------------------


@contextmanager
def drawn(url: str) -> Iterator[str]:
    """Yields the key of a server that is about to be started: that of ``VLLM_API_KEY``, or one drawn for it.

    A drawn one lies in the user's own folder of states while the server runs, where ``of_server`` finds it.
    """
    if os.environ.get(VLLM):
        yield os.environ[VLLM]
        return
    key, file = secrets.token_urlsafe(24), _file(url)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
        sink.write(key)
    try:
        yield key
    finally:
        file.unlink(missing_ok=True)


def of_server(url: str) -> str | None:
    """Returns the key of a server that this user has started on this machine; None of any other."""
    if not _is_local(url):
        return None
    try:
        return _file(url).read_text()
    except OSError:
        return None  # another's server, or one without a key: it says so itself if it wants one


def of_users(option: str) -> str | None:
    """Returns the key that users of a server of ours have to show, if any: of a variable, or ``drawn`` anew.

    Raises:
        ConfigError: The variable is not set.
    """
    key = secrets.token_urlsafe(24) if option == "drawn" else os.environ.get(option)
    if option and not key:
        says = f"--key names the variable '{option}', which is not set. Type: export {option}=…"
        raise ConfigError(f"{says}, or --key drawn, which draws a key and prints it.")
    return key


def _file(url: str) -> Path:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1", "0.0.0.0") else parts.hostname
    return states() / "servers" / hashlib.sha256(f"{host}:{parts.port}".encode()).hexdigest()
