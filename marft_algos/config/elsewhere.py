"""Names that settings of other trainers have here: on the command line, in Python and in files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from marft_algos.config.presets import BF16_OPTIONS, CUSTOM
from marft_envs import errors, registration


def option(name: str, command: str = "") -> str:
    """Returns what is typed here for an option of other libraries' commands; "" for any other name.

    Args:
        name: With or without dashes, and what follows ``=``.
        command: Whose option it is; empty: of ``marft train``, and a setting.
    """
    typed = name.partition("=")[0].removeprefix("--").replace("_", "-")
    return errors.elsewhere("marft_algos").get(f"{command}--{typed}", "").replace("BF16", BF16_OPTIONS)


def advice(name: str, command: str = "") -> str:
    """Says what to write in Python, a file or a grid instead of another trainer's setting; "" for any other name."""
    typed = option(name, command)
    words = [f"{option.replace('-', '_')}=…" for option in re.findall(r"--([a-z][a-z-]*)", typed)]
    return f"In Python: {', '.join(dict.fromkeys(words))}; on the command line: {typed}." if words else typed


def of_environment(name: str, env: str, value: object = "…") -> str:
    """Says how an argument of an environment is written; "" where it has none of this name."""
    if env in ("", CUSTOM) or name not in registration.keywords(registration.spec(env).load()):
        return ""
    return f"{name} is an argument of {env}: --env-kwargs {name}={value}; in Python: env_kwargs={{'{name}': …}}."


def check(names: Iterable[str], known: Collection[str], help_: str, command: str = "", env: str = "") -> None:
    """Raises ``ConfigError`` for a name that is not known, with what is called so here, or what is near.

    Args:
        names: What was given.
        known: What there is.
        help_: Where all of it is listed.
        command: See ``option``.
        env: The environment whose arguments the names may be.
    """

    def hint(name: str) -> str:
        return advice(name, command) or of_environment(name, env)

    errors.check_known(names, known, "There is no setting '{}'.", hint=hint, after=help_)
