"""Reads rows of data sets: of JSONL files, and of sets on the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from marft_envs.errors import DataError, imported, reading
from marft_envs.problems.stored import write_text

LARGE = 16 << 20
"""Bytes of a file from which on its rows stay there, and are read again when they are asked for."""
_NAMED = 256
"""Problems at most of which a digest has a hash each."""
T = TypeVar("T")
Places = npt.NDArray[np.int64]
Make = Callable[[dict[str, Any], int, str], T]
"""(row, number of its line, its place in words) -> what is made of it; the same whenever it is called."""


def of_file(path: Path, needs: str = "") -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Returns number, place (as errors name it) and content of each line that is not blank.

    Args:
        path: The file, one JSON object per line.
        needs: What is expected of an object, in words: ``with 'problem' and 'answer'``.

    Raises:
        DataError: It cannot be read or holds no rows; or a line is not UTF-8, no JSON object, nested too deeply, or has
            text that no file can hold (half a surrogate pair), or has a key twice.
    """
    return (line[:3] for line in _lines(path, needs))


def made(
    path: Path, needs: str, make: Make[T], note: Callable[[dict[str, Any], str, T], None] = lambda row, where, x: None
) -> Sequence[T]:
    """Makes something of each row of a file, all of which are looked at now.

    What is made of a large file is not kept but made again when it is asked for: the processes of a machine that read
    the file share its pages in the kernel's cache, and each of them holds its rows' places and ids.

    Args:
        path: The file.
        needs: As for ``of_file``.
        make: Makes it; picklable, and what it makes has an ``id``.
        note: Is called with each row, its place in words, and what was made of it.

    Raises:
        DataError: As ``of_file``, and what ``make`` raises.
    """
    large = path.is_file() and path.stat().st_size >= LARGE
    found: list[T] = []
    places: list[tuple[int, int, int]] = []
    ids: list[str] = []
    for number, where, row, offset, length in _lines(path, needs):
        one = make(row, number, where)
        note(row, where, one)
        if large:
            places.append((number, offset, length))
            ids.append(one.id)  # type: ignore[attr-defined]
        else:
            found.append(one)
    return Lazy(ids, _Lines(path, make), np.array(places, np.int64)) if large else tuple(found)


def stored(data: Any) -> str:
    """Returns where rows of Python are: a JSONL file of that content, in ``$XDG_CACHE_HOME/marft/rows``.

    Args:
        data: A list of dictionaries, a ``datasets.Dataset`` or ``DatasetDict``, a frame of pandas or polars; or a name
            or a path, which is returned as it is.

    Raises:
        DataError: It is something else, or holds something that JSON cannot.
    """
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    splits = {f"-{name}": rows for name, rows in data.items()} if isinstance(data, Mapping) else {"": data}
    texts = {name: _written(rows) for name, rows in splits.items()}
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "marft", "rows").expanduser()
    with reading(f"{folder} cannot be written", "Name one that can: export XDG_CACHE_HOME=FOLDER", DataError):
        for name, text in texts.items():
            write_text(folder / f"{digest}{name}.jsonl", text)
    return str(folder / (f"{digest}.jsonl" if "" in texts else f"{digest}-{{split}}.jsonl"))


def _written(data: Any) -> str:
    """Returns rows as JSONL; a number that is none (pandas' gaps) is left out."""
    rows = data.to_dict("records") if hasattr(data, "iterrows") else getattr(data, "to_dicts", lambda: data)()
    try:
        kept = [{k: value for k, value in row.items() if hasattr(value, "__len__") or value == value} for row in rows]
        return "".join(json.dumps(row, default=lambda value: value.tolist()) + "\n" for row in kept)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(
            f"data is a {type(data).__name__}, which is no list of rows that JSON can hold ({error}). Expected a data"
            " set's name, the path of a JSONL file, a list of dictionaries, or a Dataset or DataFrame."
        ) from error


def pick(items: Sequence[T], numbers: Sequence[int]) -> Sequence[T]:
    """Returns some of what ``made`` returned."""
    return items.pick(numbers) if isinstance(items, Lazy) else tuple(items[i] for i in numbers)


class Lazy(Sequence[T], Generic[T]):
    """What is made whenever it is asked for, and known by ids before.

    Args:
        ids: In their order.
        make: Makes one of its place; the same whenever it is called.
        places: ``[N, 3]`` number, offset and length of each line of a file; None: ids are the places.
    """

    def __init__(self, ids: Iterable[str], make: Callable[[Any], T], places: Places | None = None) -> None:
        self.ids, self._make, self._places = tuple(ids), make, places

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return self.pick(range(len(self))[index])
        return self._make(self.ids[index] if self._places is None else self._places[index])

    def pick(self, numbers: Sequence[int]) -> Lazy[T]:
        """Returns some of them."""
        places = None if self._places is None else self._places[np.asarray(numbers, np.int64)]
        return Lazy((self.ids[i] for i in numbers), self._make, places)

    def lines(self) -> Iterator[bytes] | None:
        """Yields the lines of the file as they stand there; None where things are made of their ids."""
        return None if self._places is None else map(self._make.line, self._places)  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        return Lazy, (self.ids, self._make, self._places)


class _Lines(Generic[T]):
    """Makes something of a line of a file, which is an error if the file changes.

    Args:
        path: The file.
        make: Makes it of a row.
    """

    def __init__(self, path: Path, make: Make[T]) -> None:
        self._path, self._make = path, make
        self._file = os.open(path, os.O_RDONLY)
        self._known = stamp(self._file)
        weakref.finalize(self, os.close, self._file)

    def line(self, place: Places) -> bytes:
        """Returns a line as it stands in the file."""
        if stamp(self._file) != self._known:
            raise DataError(f"{self._path} has changed since it was read. Begin again with the file as it is.")
        return os.pread(self._file, int(place[2]), int(place[1]))

    def __call__(self, place: Places) -> T:
        number, where = int(place[0]), f"{self._path}, line {place[0]}"
        return self._make(_parsed(self.line(place), where), number, where)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Lines, (self._path, self._make)


def stamp(file: int | Path) -> tuple[int, int]:
    """Returns time and size of a file, or of an open one: an edited file has others."""
    state = os.stat(file)
    return state.st_mtime_ns, state.st_size


def _lines(path: Path, needs: str) -> Iterator[tuple[int, str, dict[str, Any], int, int]]:
    """Yields number, place, content, offset and length of each line that is not blank; see ``of_file``."""
    expected, lines, offset = f"JSON object {needs}".rstrip(), 0, 0
    with reading(f"{path} cannot be read", f"Expected one {expected} per line.", DataError), path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            begin, offset = offset + len(raw) - len(line), offset + len(raw)
            if line.strip():
                lines += 1
                where = f"{path}, line {number}"
                row = _parsed(line, where)
                if not isinstance(row, dict):
                    raise DataError(f"{where}: expected a {expected}, got {type(row).__name__}.")
                yield number, where, row, begin, len(line)
    if not lines:
        raise DataError(f"{path} holds no rows. Expected one {expected} per line.")


def digest(task: Any) -> dict[str, Any]:
    """Returns what tells a task's problems from others: how many, a hash of all, and of some by id.

    Problems that are generated from their ids are left out: their ids identify them, without reading any problem.
    """
    problems = getattr(task, "problems", None)
    held: Any = getattr(problems, "_problems", problems)  # of a set
    listed = isinstance(held, tuple | list)
    contents = held.lines() if isinstance(held, Lazy) else map(_content, held) if listed else None
    if contents is None:
        return {}
    hashes = [hashlib.sha256(content).hexdigest() for content in contents]
    ids = held.ids if isinstance(held, Lazy) else [str(getattr(problem, "id", i)) for i, problem in enumerate(held)]
    lines, corpus = map("{} {}".format, hashes, ids), getattr(task, "corpus", "")
    every = hashlib.sha256("\n".join(lines).encode(errors="surrogatepass")).hexdigest()
    some = {ids[i]: hashes[i] for i in range(0, len(ids), len(ids) // _NAMED + 1)}
    return {"name": getattr(problems, "name", ""), "rows": len(ids), "sha256": every, "some": some, "corpus": corpus}


def _content(problem: Any) -> bytes:
    """Returns all that is known of a problem as JSON, the names of its fields included; of what JSON lacks its type."""
    try:
        return json.dumps(problem, default=_parts).encode(errors="surrogatepass")
    except (TypeError, ValueError, RecursionError):
        return b""  # what some library made: its id has to do


def _parts(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, Mapping):
        return dict(value)
    named = [f.name for f in fields(value)] if is_dataclass(value) else getattr(type(value), "model_fields", ())
    return [type(value).__qualname__, {name: getattr(value, name) for name in named}]


def whole(value: Any) -> Any:
    """Returns 1 for 1.0, which is how pandas writes integers of a column with gaps; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def short(value: Any) -> str:
    """A value of a row as an error shows it: its type, and its beginning if it is a plain value."""
    if isinstance(value, str | float) or value is None:
        return ascii(value[:40] + "…" if isinstance(value, str) and len(value) > 40 else value)
    if isinstance(value, bool) or (isinstance(value, int) and value.bit_length() < 100):
        return repr(value)
    return {dict: "an object", list: "a list", int: "a huge integer"}.get(type(value), type(value).__name__)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        repeated = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise DataError(f"the key '{repeated}' stands twice in one object. Keep one of them.")
    return content


def _parsed(raw: bytes, where: str) -> Any:
    try:
        line = raw.decode("utf-8")
        row = json.loads(line, object_pairs_hook=_object)
        if "\\ud" in line.lower():
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        return row
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text ({error}). Save the file as UTF-8.") from error
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: half a surrogate pair ({error.reason}). Write the character itself.") from error
    except RecursionError as error:
        raise DataError(f"{where}: nested too deeply. Expected one object per line.") from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}). Expected one object per line.") from error


def of_hub(
    name: str, hub_id: str, splits: Mapping[str, str], split: str, needs: str, load: Callable[[Any], Iterable[Any]]
) -> Iterable[Mapping[str, Any]]:
    """Returns the rows of one split of a set on the hub, downloaded or from the cache of ``datasets``.

    Args:
        name: The set's, here.
        hub_id: The set's, on the hub.
        splits: Those that it has: ours -> the hub's.
        split: One of ours.
        needs: What a row of a user's own file needs, in words.
        load: Gets the module ``datasets`` and returns the rows.

    Raises:
        DataError: No such split, or the hub cannot be reached; the message names the ways to give data.
        MissingExtraError: ``datasets`` is not installed.
    """
    if split not in splits:
        raise DataError(f"'{name}' has no split '{split}'. It has: {', '.join(splits)}.")
    datasets = imported("datasets", f"The data set '{name}'", "data")
    try:
        return load(datasets)
    except Exception as error:  # the hub's clients raise errors of four unrelated families
        raise DataError(
            f"Could not load '{name}' ({hub_id}) from the hub: {type(error).__name__}: {error}\n"
            "There are three ways to give data: a hub name while online (the cache serves it afterwards), "
            f"the path of a local JSONL file with {needs} in each row, "
            "or the built-in 'procedural' set, which needs no network."
        ) from error
