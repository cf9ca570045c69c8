"""A packed benchmark: what a grid has found, without the runs, as one file.

What failed is left out, and so are results of runs that the grid no longer has. Equal results make an equal file.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from marft_algos.extras.bench.folder import BenchFolder

MEMORY = "memory.json"
"""In a benchmark's folder: what ``benchmarks.learning.population`` has measured of its teams, where it has."""


def pack(folder: BenchFolder, out: Path) -> int:
    """Writes the archive; returns how many results it holds.

    Raises:
        ConfigError: The folder is no benchmark, or another version's.
    """
    keys = sorted({grid_run["key"] for grid_runs in folder.described()["stages"].values() for grid_run in grid_runs})
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
