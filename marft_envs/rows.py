"""Reads rows of data sets: of JSONL files, and of sets on the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError, MissingExtraError


def of_file(path: Path, needs: str = "") -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yields number, place (as errors name it) and content of each line that is not blank.

    Args:
        path: The file, one JSON object per line.
        needs: What is expected of an object, in words: ``with 'problem' and 'answer'``.

    Raises:
        DataError: It cannot be read or holds no rows; or a line is not UTF-8, no JSON object, nested too deeply, or has
            text that no file can hold (half a surrogate pair).
    """
    expected, lines = f"JSON object {needs}".rstrip(), 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                if line.strip():
                    lines += 1
                    where = f"{path}, line {number}"
                    row = _parsed(line, where)
                    if not isinstance(row, dict):
                        raise DataError(f"{where}: expected a {expected}, got {type(row).__name__}.")
                    yield number, where, row
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    if not lines:
        raise DataError(f"{path} holds no rows. Expected one {expected} per line.")


def _parsed(raw: bytes, where: str) -> Any:
    try:
        line = raw.decode("utf-8")
        row = json.loads(line)
        if "\\ud" in line.lower():
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        return row
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
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"The data set '{name}'", "data") from error
    try:
        return load(datasets)
    except Exception as error:  # the hub's clients raise errors of four unrelated families
        raise DataError(
            f"Could not load '{name}' ({hub_id}) from the hub: {type(error).__name__}: {error}\n"
            "There are three ways to give data: a hub name while online (the cache serves it afterwards), "
            f"the path of a local JSONL file with {needs} in each row, "
            "or the built-in 'procedural' set, which needs no network."
        ) from error
