"""``python -m benchmarks [NAME] …``: ``envs`` (the default), or one of ``NAMES``."""

from __future__ import annotations

import runpy
import sys

from marft_envs.errors import MarftError

NAMES: tuple[str, ...] = ("envs", "grader", "mutations", "ladder", "levels", "real")
NAMES += ("sandbox", "sandbox_queue", "code_real", "reflection", "attacks", "tools_real", "depot", "overlap")
NAMES += ("statistics", "toys_matrix", "pack", "population", "sampled", "house", "same_weights", "barrier")
NAMES += ("tools_ordering", "compact", "tools_learning", "adapters_learning", "adapters_trl", "selfplay")
NAMES += ("perf_decode", "perf_gpu", "perf_help", "perf_iteration", "perf_scaling", "perf_throughput", "perf_trl")

if __name__ == "__main__":
    given = {name.removeprefix("perf_"): name for name in NAMES} | {name: name for name in NAMES}
    name = given[sys.argv.pop(1)] if len(sys.argv) > 1 and sys.argv[1] in given else "envs"
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    except MarftError as error:  # a folder that is none, a wrong grid: as `marft` says it
        sys.exit(f"error: {error}")
