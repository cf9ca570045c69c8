"""``python -m marft_envs.sandbox``: which layers hold on this machine; ``… serve``: the remote service."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from marft_envs.errors import MarftError
from marft_envs.sandbox import layers
from marft_envs.sandbox.pool import Sandbox
from marft_envs.sandbox.service import serve


def show() -> int:
    """Prints a table of the layers, with what is missing and how to fix it. Returns 0 if one holds."""
    held = 0
    for layer in layers.LOCAL:
        failures = layers.check(layer)
        held += not failures
        print(f"{layer:30s} {'no' if failures else 'holds'}")
        if failures:
            print(layers.describe(layer, failures))
    print(f"{'remote':30s} with url='http://TOKEN@HOST:PORT' of a service on a machine where a layer holds")
    return 0 if held else 1


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m marft_envs.sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    service = commands.add_parser("serve", help="run the service that layer='remote' talks to")
    service.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    service.add_argument("--port", type=int, default=0, help="port (default: a free one, printed)")
    service.add_argument("--token-file", type=Path, help="file with the clients' token (default: draw one, print it)")
    service.add_argument("--workers", type=int, default=1, help="programs that run at once")
    service.add_argument("--layer", default="auto", choices=("auto", *layers.LOCAL))
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        return show()
    try:
        with Sandbox(chosen.layer, chosen.workers) as sandbox:
            serve(sandbox, chosen.host, chosen.port, chosen.token_file)
    except (MarftError, OSError) as error:
        parser.exit(1, f"{error}\n")
    return 0


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of an encoding that lacks a character of the help
    raise SystemExit(main())
