"""How long honest programs wait while hostile ones hold the sandbox's workers.

    python -m benchmarks sandbox_queue [--each N] [--threads N] [--workers N] [--seed N] [--json FILE]

Hostile programs of fifteen kinds, which hang, sleep, or take all that they may have, and honest ones of six kinds are
handed in, shuffled, by threads that share one sandbox; each thread waits for its run and takes the next. The latency of
a run is the time from handing it in to its results. The worst comes at the beginning, when all threads hand in at once;
so the honest programs are also handed in alone, from as many threads. Leaves with status 1 if an honest program has a
wrong verdict, a hostile one passes, or an honest one takes more than ten times the median of the honest alone.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from marft_envs.sandbox import Call, Limits, Sandbox

LIMITS = Limits(cpu_s=1.0, wall_s=2.0, total_s=4.0, memory_mb=128)
MOST_TIMES_MEDIAN = 10.0
ADD = [Call("call", f"[{i}, {i + 1}]") for i in range(10)]
SUMS = [2 * i + 1 for i in range(10)]

HOSTILE = {
    "loops": "def f(a, b):\n    while True: pass",
    "loops while it loads": "while True: pass",
    "sleeps": "import time\ndef f(a, b): time.sleep(1000)",
    "sleeps while it loads": "import time\ntime.sleep(1000)",
    "waits for a lock": "import threading\nlock = threading.Lock()\ndef f(a, b):\n    lock.acquire(); lock.acquire()",
    "reads what never comes": "import os\nr, w = os.pipe()\ndef f(a, b): os.read(r, 1)",
    "stops itself": "import os, signal\ndef f(a, b): os.kill(os.getpid(), signal.SIGSTOP); signal.pause()",
    "busy threads": "import threading\ndef spin():\n    while True: pass\n"
    "def f(a, b):\n    for _ in range(4): threading.Thread(target=spin).start()\n    spin()",
    "a huge number": "def f(a, b): return len(str(7 ** (7 ** 9)))",
    "a slow pattern": "import re\ndef f(a, b): return re.match('(a+)+$', 'a' * 40 + 'b')",
    "takes all memory": "def f(a, b):\n    kept = []\n    while True: kept.append(bytearray(1 << 20))",
    "catches its end": "def f(a, b):\n    while True:\n        try: f(a, b)\n        except BaseException: pass",
    "a slow sum": "def f(a, b): return sum(i * i for i in range(10 ** 10))",
    "wakes now and then": "import time\ndef f(a, b):\n    while True: time.sleep(0.01)",
    "half a call, again and again": "import time\ndef f(a, b):\n    time.sleep(0.9)\n    return a",
}
HONEST: dict[str, tuple[str, list[Any]]] = {
    "adds": ("def f(a, b): return a + b", SUMS),
    "a class": ("class A:\n    def add(self, a, b): return a + b\ndef f(a, b): return A().add(a, b)", SUMS),
    "recursion": ("def g(n): return n and 1 + g(n - 1)\ndef f(a, b): return g(a) + g(b)", SUMS),
    "a sieve": (
        "def f(a, b):\n    n = 2000\n    s = [True] * n\n    for i in range(2, n):\n"
        "        for j in range(i * i, n, i): s[j] = False\n    return sum(s) and a + b",
        SUMS,
    ),
    "sorts": ("def f(a, b): return sorted(range(3000, 0, -1))[0] - 1 + a + b", SUMS),
    "a library": (
        "import collections, itertools\n"
        "def f(a, b): return a + b + 0 * len(collections.Counter(itertools.permutations(range(5))))",
        SUMS,
    ),
}


def hand_in(
    sandbox: Sandbox, runs: list[tuple[str, str, list[Any] | None]], threads: int
) -> list[tuple[str, float, bool]]:
    """Runs all programs. Returns name, seconds from handing in to results, and whether it passed, for each."""
    done: list[tuple[str, float, bool]] = []
    lock, todo = threading.Lock(), iter(runs)

    def serve() -> None:
        while True:
            with lock:
                run = next(todo, None)
            if run is None:
                return
            name, source, expected = run
            start = time.perf_counter()
            results = sandbox.run_calls(source, "f", ADD, limits=LIMITS)
            right = [result.value for result in results] == (expected or SUMS)
            done.append((name, time.perf_counter() - start, right))

    many = [threading.Thread(target=serve) for _ in range(threads)]
    for thread in many:
        thread.start()
    for thread in many:
        thread.join()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=100, help="hostile and honest programs, so many of each")
    parser.add_argument("--threads", type=int, default=32, help="threads that hand in")
    parser.add_argument("--workers", type=int, default=2, help="workers of the sandbox")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    runs: list[tuple[str, str, list[Any] | None]] = []
    for i in range(args.each):
        bad, good = ([*kinds][i % len(kinds)] for kinds in (HOSTILE, HONEST))
        runs += [(bad, HOSTILE[bad], None), (good, *HONEST[good])]
    random.Random(args.seed).shuffle(runs)
    start = time.perf_counter()
    with Sandbox(workers=args.workers) as sandbox:
        sandbox.warm_up()
        alone = sorted(seconds for _, seconds, _ in hand_in(sandbox, [run for run in runs if run[2]], args.threads))
        done = hand_in(sandbox, runs, args.threads)
        layer = sandbox.layer
    honest = sorted(seconds for name, seconds, _ in done if name in HONEST)
    hostile = [seconds for name, seconds, _ in done if name in HOSTILE]
    wrong = Counter(name for name, _, right in done if right != (name in HONEST))
    median, most, usual = statistics.median(honest), honest[-1], statistics.median(alone)
    print(f"{layer}, {args.workers} workers, {args.threads} threads, {args.each} hostile and as many honest programs")
    print(f"honest   median {median:.3f} s, 90 % {honest[int(0.9 * len(honest))]:.3f} s, most {most:.3f} s")
    print(f"         most / median {most / median:.1f}")
    print(f"alone    median {usual:.3f} s, most {alone[-1]:.3f} s: the honest ones without the hostile")
    print(f"hostile  median {statistics.median(hostile):.1f} s, most {max(hostile):.1f} s")
    print(f"all      {time.perf_counter() - start:.1f} s; wrong verdicts: {dict(wrong) or 'none'}")
    if args.json:
        figures = {"honest": honest, "hostile": hostile, "wrong": wrong}
        args.json.write_text(json.dumps(figures) + "\n", encoding="utf-8")
    if wrong or most > MOST_TIMES_MEDIAN * usual:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
