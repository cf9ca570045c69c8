"""A packed benchmark: what a grid has found, without the runs, as one file; and reading one that anybody may have made.

What failed is left out, and so are results of cells that the grid no longer has. Equal results make an equal file.
Reading one executes nothing and writes nothing but the files named here, of bounded size, into a temporary folder.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from marft_algos.extras.bench.folder import BenchFolder
from marft_envs.errors import DataError

MEMORY = "memory.json"
"""In a benchmark's folder: what ``benchmarks.learning.population`` has measured of its teams, where it has."""
LARGEST = 256 * 2**20
"""Bytes of an archive, unpacked; the largest of the project has 16 MiB."""
_DICTIONARY = 128 * 2**20
"""Bytes that the decompressor may take: ``xz -9`` asks for 65 MiB, a file made to exhaust memory for four GiB."""
_NAME = re.compile(r"(\w[\w.-]*)/(bench\.json|grid\.toml|memory\.json|(?:jobs|results)/[0-9a-f]{16}\.json)")


@dataclass(frozen=True, slots=True)
class PackedBenchmark:
    """A benchmark that was read, and the file that it was read from."""

    folder: BenchFolder
    """Of a temporary folder, which goes when reading is over."""
    file: Path
    """As it was named."""
    sha256: str
    """Of the packed file; of a folder, that of the file that ``pack`` makes of it."""

    @property
    def name(self) -> str:
        """Names it for people: the file's name, without folders."""
        return self.file.name if self.file.suffix == ".xz" else f"{self.folder.root.name}.tar.xz"


def pack(folder: BenchFolder, out: Path) -> int:
    """Writes the archive; returns how many results it holds.

    Raises:
        ConfigError: The folder is no benchmark, or another version's.
    """
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


def files(paths: list[Path]) -> list[Path]:
    """Lists packed files and folders of benchmarks; any other folder stands for the packed files in it.

    Raises:
        DataError: Nothing is there.
    """
    out: list[Path] = []
    for path in paths:
        several = path.is_dir() and not (path / "bench.json").is_file()
        named = sorted(path.glob("*.tar.xz")) if several else [path]
        if not named or not path.exists():
            raise DataError(f"'{path}' holds no packed benchmark. Make one: marft bench pack DIR --out NAME.tar.xz")
        out += named
    return out


@contextmanager
def unpacked(path: Path) -> Iterator[PackedBenchmark]:
    """Reads a packed file, or a benchmark's folder as if it had been packed.

    Raises:
        DataError: It is damaged, or holds what no packed benchmark does.
        ConfigError: A folder that is no benchmark.
    """
    with tempfile.TemporaryDirectory(prefix="marft-packed-") as aside:
        file = path
        if path.is_dir():
            file = Path(aside) / "packed.tar.xz"
            pack(BenchFolder(path.resolve()), file)
        content = _read(file)
        root = _extract(_decompress(content, path), Path(aside) / "content", path)
        yield PackedBenchmark(BenchFolder(root), path, hashlib.sha256(content).hexdigest())


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"'{path}' has more than {LARGEST // 2**20} MiB. Expected a packed benchmark.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}. Expected a packed benchmark.") from error


def _decompress(content: bytes, path: Path) -> bytes:
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_DICTIONARY)
    try:
        plain = decompressor.decompress(content, LARGEST + 1)
    except lzma.LZMAError as error:
        raise DataError(f"'{path}' is damaged, or no .tar.xz: {error}. {AGAIN}") from error
    if len(plain) > LARGEST:
        raise DataError(f"'{path}' would unpack to more than {LARGEST // 2**20} MiB. No packed benchmark does.")
    if not decompressor.eof or decompressor.unused_data:
        raise DataError(f"'{path}' is damaged: it ends too early, or goes on behind its end. {AGAIN}")
    return plain


AGAIN = "Get it again, or make it again: marft bench pack DIR"


def _extract(plain: bytes, out: Path, path: Path) -> Path:
    """Writes the known files alone; returns the benchmark's folder."""
    roots, seen = set[str](), set[str]()
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            for member in archive:
                match = _NAME.fullmatch(member.name)
                if match is None or not member.isreg() or member.issparse() or member.name in seen:
                    raise DataError(
                        f"'{path}' holds {member.name!r}, which no packed benchmark does, or twice."
                        " Expected NAME/bench.json, grid.toml, jobs/KEY.json and results/KEY.json, as `marft bench"
                        " pack` writes them."
                    )
                seen.add(member.name)
                roots.add(match[1])
                handle = archive.extractfile(member)
                assert handle is not None  # of a regular file
                (out / member.name).parent.mkdir(parents=True, exist_ok=True)
                (out / member.name).write_bytes(handle.read())
    except OSError as error:
        raise DataError(f"'{path}' cannot be unpacked: {error.strerror}. Expected short names, and room.") from error
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"'{path}' is damaged: {error}. {AGAIN}") from error
    if len(roots) != 1:
        raise DataError(f"'{path}' holds {len(roots)} benchmarks. Expected one, in a folder of its own.")
    return out / roots.pop()
