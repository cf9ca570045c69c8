"""Makes something fail on purpose in a small run on this machine, and says what came of it.

    python -m benchmarks drill [NAME ...|all] [--times N] [--seed S] [--out FILE.json]

Each time is a training of some seconds with the embedded model, disturbed at a random moment; its weights are compared
with those of the undisturbed run. Only processes that the test has started are touched. The exit code is 1 where a
test does not do what it promises. Without names, it lists the tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import shlex
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_algos.lazy import require_training
from marft_algos.runs.disk import write_whole
from marft_algos.terminal import say
from marft_envs.errors import ConfigError, MissingExtraError, did_you_mean

if TYPE_CHECKING:
    from benchmarks.drills.rehearsal import Result


def main(argv: Sequence[str] | None = None) -> int:
    """Plays the fault-injection tests that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="which fault-injection tests; all: every one")
    parser.add_argument("--times", type=int, default=1, help="how often each")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", default="", help="JSON file of results; those of tests that are not named stay there")
    options = parser.parse_args(argv)
    if options.times < 1 or options.seed < 0:
        parser.error("--times is 1 or more, and --seed is 0 or more")
    if sys.platform != "linux":
        raise ConfigError("The tests find processes in /proc, which this system does not have. Expected Linux.")
    from benchmarks.drills.faults import FAULT_TESTS

    if not options.names:
        say(*(f"{name:<16} {one.fails}\n{'':<16} → {one.then}" for name, one in FAULT_TESTS.items()), sep="\n")
        return 0
    names = list(FAULT_TESTS) if options.names == ["all"] else list(options.names)
    for name in names:
        if name not in FAULT_TESTS:
            raise ConfigError(f"There is no fault-injection test '{name}'. {did_you_mean(name, FAULT_TESTS)}")
    require_training()
    from benchmarks.drills.rehearsal import Rehearsal

    _check_cluster([name for name in names if "ray" in FAULT_TESTS[name].kind])
    words = sys.argv[1:] if argv is None else argv
    failed, before = 0, _read(Path(options.out)) if options.out else {}
    with tempfile.TemporaryDirectory(prefix="marft-fault-") as folder:
        rehearsal = Rehearsal(Path(folder), options.seed)
        say(f"seed {options.seed}; undisturbed: {rehearsal.digest[:16]}")
        for name in names:
            results: list[Result] = []
            while (left := options.times - sum(len(result.hits) for result in results)) > 0:
                results.append(rehearsal.play(name, len(results), left))
                say(_line(name, results[-1]))
                failed += bool(results[-1].faults)
                if options.out:
                    about = {
                        "command": shlex.join(["python", "-m", "benchmarks", "drill", *words]),
                        "seed": options.seed,
                    }
                    rows = {"undisturbed": rehearsal.digest, **_table(results)}
                    before[name] = about | rows | {"runs": [dataclasses.asdict(result) for result in results]}
                    write_whole(Path(options.out), json.dumps(before, indent=1) + "\n")
            say(_summary(name, results))
    return int(failed > 0)


def _check_cluster(names: Sequence[str]) -> None:
    if names and importlib.util.find_spec("ray") is None:
        raise MissingExtraError(f"The fault-injection test '{names[0]}'", "cluster")


def _line(name: str, result: Result) -> str:
    equal = "the undisturbed run's weights" if result.equal else "other weights"
    lines = [f"{name}: {equal}, after {result.seconds:.0f} s"]
    for hit in result.hits:
        noticed = "not needed any more" if hit.noticed_s is None else f"noticed after {hit.noticed_s:.1f} s"
        lines.append(f"  {hit.what}, {hit.after_s:.1f} s from its start; {noticed}")
    return "\n".join([*lines, *(f"  FAILED: {fault}" for fault in result.faults)])


def _table(results: Sequence[Result]) -> dict[str, Any]:
    """Counts hits: a run that did not do as promised has failed at each of its own."""
    noticed = [hit.noticed_s for result in results for hit in result.hits if hit.noticed_s is not None]
    return {
        "times": sum(len(result.hits) for result in results),
        "as_promised": sum(len(result.hits) for result in results if not result.faults),
        "equal": sum(len(result.hits) for result in results if result.equal),
        "noticed": len(noticed),
        "noticed_median_s": round(statistics.median(noticed), 2) if noticed else None,
        "noticed_most_s": max(noticed, default=None),
    }


def _summary(name: str, results: Sequence[Result]) -> str:
    table = _table(results)
    seen = f", noticed within {table['noticed_most_s']:.1f} s" if table["noticed"] else ""
    times = table["times"]
    return f"{name}: {table['as_promised']} of {times} as promised, {table['equal']} with the same weights{seen}"


def _read(out: Path) -> dict[str, Any]:
    """Reads earlier results.

    Raises:
        ConfigError: The file is something else, or its folder is not there.
    """
    try:
        content = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {out} cannot be read: {error}. Expected an earlier result, or a new file.") from error
    if not isinstance(content, dict) or not out.parent.is_dir():
        raise ConfigError(f"--out {out} is no file of results. Expected one, or a new file in a folder that is there.")
    return content


if __name__ == "__main__":
    sys.exit(main())
