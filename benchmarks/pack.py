"""Packs what a benchmark has found, without the runs themselves, so that another checkout goes on from there.

::

    python -m benchmarks pack runs/toys                             # -> benchmarks/results/toys.tar.xz
    mkdir -p runs && tar -xf benchmarks/results/toys.tar.xz -C runs
    marft bench run examples/configs/bench_toys.toml --out runs/toys

The same as ``marft bench pack``, into the repository. What failed is left out, and is tried again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.packed import MEMORY, pack

__all__ = ["MEMORY", "RESULTS", "pack"]

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Packs one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the benchmark")
    parser.add_argument("--out", type=Path, help="the archive; benchmarks/results/NAME.tar.xz if not given")
    args = parser.parse_args()
    folder = BenchFolder(args.folder.resolve())
    out = args.out or RESULTS / f"{folder.root.name}.tar.xz"
    print(f"{pack(folder, out)} results: {out}, {out.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
