"""Packs what a benchmark has found, without the runs themselves, so that another checkout goes on from there.

::

    python -m benchmarks pack runs/toys                             # -> benchmarks/results/toys.tar.xz
    mkdir -p runs && tar -xf benchmarks/results/toys.tar.xz -C runs
    marft bench run examples/configs/bench_toys.toml --out runs/toys

What failed is left out, and is tried again; so are results of cells that the grid no longer has. Equal results make an
equal file.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from pathlib import Path

from marft_algos.bench.folder import BenchFolder

RESULTS = Path(__file__).parent / "results"
MEMORY = "memory.json"
"""In a benchmark's folder: what ``benchmarks.learning.population`` has measured of its teams, where it has."""


def pack(folder: BenchFolder, out: Path) -> int:
    """Writes the archive; returns how many results it holds."""
    keys = sorted({cell["key"] for cells in folder.described()["stages"].values() for cell in cells})
    results = [result for key in keys if (result := folder.result_file(key)).is_file()]
    jobs = [folder.job_file(result.stem) for result in results]
    beside = [memory] if (memory := folder.root / MEMORY).is_file() else []
    with tarfile.open(out, "w:xz") as archive:
        for file in (folder.bench_file, folder.grid_file, *beside, *jobs, *results):
            content = file.read_bytes()
            entry = tarfile.TarInfo(str(Path(folder.root.name) / file.relative_to(folder.root)))  # nobody's, of no time
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return len(results)


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
