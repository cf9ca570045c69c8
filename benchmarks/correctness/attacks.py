"""Hostile programs: the verdict under every layer of the sandbox, and what each mechanism stops by itself.

::

    python -m benchmarks attacks --data FOLDER [--only 01,02] [--layers]

FOLDER holds ``code/attacks``. Every program runs inside the outer jail (``tests/helpers/jail.py``). The first table has
a row for each program and a column for each layer; ``WON`` marks one that did what it must not, with the signs. The
second takes mechanisms away: what a program that still loses is stopped by, and what wins.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.runs import table
from tests.helpers import attack_judge, jail
from tests.helpers.attack_judge import Attack, Finding, Round

LAYERS: dict[str, tuple[str, dict[str, bool]]] = {
    "namespaces+landlock+seccomp": ("namespaces+landlock+seccomp", {}),
    "namespaces+seccomp": ("namespaces+seccomp", {}),
    "landlock+seccomp": ("landlock+seccomp", {}),
    "bubblewrap+seccomp": ("bubblewrap+seccomp", {}),
    "auto, no user namespaces": ("auto", {"userns": False}),
    "auto, trainer is root": ("auto", {"root": True}),
}
LEFT = ("namespaces+landlock", "namespaces", "landlock", "seccomp", "none")
"""What is left of the strongest layer; with two of three mechanisms that hold by themselves see the layers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with code/attacks")
    parser.add_argument("--only", default="", help="numbers of programs, joined by commas")
    parser.add_argument("--layers", action="store_true", help="the first table only")
    args = parser.parse_args()
    if reason := jail.available():
        raise SystemExit(reason)
    folder = args.data / "code" / "attacks"
    only = [*filter(None, args.only.split(","))]
    attacks = attack_judge.attacks(folder, only)
    if not attacks:
        raise SystemExit(f"no programs {args.only or '*.py'} in {folder}")

    def layer_round(layer: str, where: Mapping[str, Any]) -> Round:
        return attack_judge.run_layer(folder, layer, only=only, **where)

    def partial_round(mechanisms: str) -> Round:
        return attack_judge.run_layer(folder, "unsafe", only=only, mechanisms=mechanisms)

    columns: dict[str, list[str]] = {}
    for title, (layer, where) in LAYERS.items():
        if layer.startswith("bubblewrap") and not shutil.which("bwrap"):
            print(f"{title}: no program bwrap here")
        elif where.get("root") and os.geteuid():
            print(f"{title}: takes root")
        else:
            report(title, attacks, lambda a=layer, b=where: layer_round(a, b), columns)  # type: ignore[misc]
    print(table(["program", *columns], rows(attacks, columns)))
    if args.layers:
        return
    alone: dict[str, list[str]] = {}
    for mechanisms in LEFT:
        report(f"only {mechanisms}", attacks, lambda a=mechanisms: partial_round(a), alone)  # type: ignore[misc]
    naive = [attack_judge.run_naively(folder, attack) for attack in attacks]
    alone["no sandbox"] = [
        f"WON ({', '.join(finding.signs) or finding.verdict})" if attack_judge.won(attack, finding) else finding.verdict
        for attack, finding in zip(attacks, naive, strict=True)
    ]
    print(table(["program", *alone], [row for row in rows(attacks, alone) if any("WON" in text for text in row)]))


def report(title: str, attacks: list[Attack], run: Callable[[], Round], columns: dict[str, list[str]]) -> None:
    """Runs a round, adds its column, and prints what it found in one line."""
    start = time.monotonic()
    done = run()
    if done.unavailable:
        print(f"{title}: {done.unavailable}")
        return
    breaches = [finding.name for finding in done.findings if finding.signs]
    columns[title] = [entry(attack, finding) for attack, finding in zip(attacks, done.findings, strict=True)]
    print(
        f"{title}: layer {done.layer}, {len(breaches)} of {len(attacks)} won {breaches or ''}, "
        f"{len(done.left)} processes outlived the sandbox, {time.monotonic() - start:.0f} s"
    )


def entry(attack: Attack, finding: Finding) -> str:
    return f"WON ({', '.join(finding.signs)})" if finding.signs else finding.verdict


def rows(attacks: list[Attack], columns: Mapping[str, list[str]]) -> list[list[str]]:
    return [[attack.name, *(entries[i] for entries in columns.values())] for i, attack in enumerate(attacks)]


if __name__ == "__main__":
    main()
