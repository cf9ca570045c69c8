"""Published sets of long documents on the Hugging Face hub: ids and splits stand in ``hub.toml``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from marft_envs import tables
from marft_envs.errors import DataError
from marft_envs.families.docs.document import Document, normal, packed, pieces
from marft_envs.problems.rows import of_hub, short

ENTRY = 400
"""Longest piece, in characters, into which a text that has no entries of its own is cut."""
LETTERS = "ABCD"


class RowParts(NamedTuple):
    """What a row says, as it says it: nothing is checked yet."""

    question: Any
    text: Any
    """A text, or a list of its parts."""
    answer: Any
    """An answer, or a list of those that count."""
    kind: str


@dataclass(frozen=True, slots=True)
class DocsHubSet:
    """One set on the hub."""

    hub_id: str
    read: Callable[[Mapping[str, Any], str], RowParts | None]
    """(row, the hub's split) -> its parts; None for rows that are no question with an exact answer. A missing column is
    a ``KeyError``."""
    splits: Mapping[str, tuple[str, ...]]
    """Our split -> the hub's, one after the other."""
    config: str | None = None
    id: str | None = None
    """The column of the id."""
    features: Mapping[str, str] = field(default_factory=dict)
    """Column -> type, for sets whose files do not agree on one; ``[type]``: a list."""


def hotpotqa(row: Mapping[str, Any], split: str) -> RowParts:
    """Paragraphs with titles, some of which lead to the answer."""
    context = row["context"]
    paragraphs = [
        f"{title}: {''.join(sentences).strip()}"
        for title, sentences in zip(context["title"], context["sentences"], strict=True)
    ]
    return RowParts(row["question"], paragraphs, row["answer"], str(row.get("type", "")) or "hotpotqa")


def musique(row: Mapping[str, Any], split: str) -> RowParts | None:
    """The same, without questions that have no answer."""
    if not row.get("answerable", True):
        return None
    paragraphs = [f"{part['title']}: {part['paragraph_text']}" for part in row["paragraphs"]]
    return RowParts(row["question"], paragraphs, [row["answer"], *row.get("answer_aliases", ())], "musique")


def babilong(row: Mapping[str, Any], split: str) -> RowParts:
    """Facts in a long story."""
    return RowParts(row["question"], row["input"], row["target"], split)


def longbench(row: Mapping[str, Any], split: str) -> RowParts:
    """Choices, answered with a letter."""
    choices = "\n".join(f"{letter}) {row[f'choice_{letter}']}" for letter in LETTERS)
    return RowParts(
        f"{row['question']}\n{choices}\nAnswer with a letter.", row["context"], row["answer"], row["domain"]
    )


def infinite(row: Mapping[str, Any], split: str) -> RowParts:
    """A value that is hidden in noise."""
    return RowParts(row["input"], row["context"], list(row["answer"]), split)


_READERS = {read.__name__: read for read in (babilong, hotpotqa, infinite, longbench, musique)}


def _made(read: str, splits: Mapping[str, Sequence[str]], **fields: Any) -> DocsHubSet:
    """The set of an entry in ``hub.toml``."""
    return DocsHubSet(read=_READERS[read], splits={ours: tuple(theirs) for ours, theirs in splits.items()}, **fields)


HUB: dict[str, DocsHubSet] = {name: _made(**entry) for name, entry in tables.read(__package__, "hub").items()}


def document(parts: RowParts, where: str, identity: str, source: str, page: int) -> Document:
    """Makes a document of a row's parts.

    Args:
        parts: Of the row.
        where: The row, as errors name it.
        identity: Its id.
        source: Name of the set or file.
        page: Characters of a page.

    Raises:
        DataError: A part is not there, or not of its kind.
    """
    if not isinstance(parts.question, str) or not parts.question.strip():
        raise DataError(f"{where}: the question is {short(parts.question)}; expected text.")
    texts = [parts.text] if isinstance(parts.text, str) else parts.text
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: the document is {short(parts.text)}; expected text, or a list of texts.")
    answers = parts.answer if isinstance(parts.answer, list | tuple) else [parts.answer]
    if not answers or not all(isinstance(a, str | int) and not isinstance(a, bool) for a in answers):
        raise DataError(
            f"{where}: the answer is {short(parts.answer)}; expected text, a whole number, or a list of them."
        )
    golds = tuple(str(answer).strip() for answer in answers)
    if not all(map(normal, golds)) or any(c in gold for gold in golds for c in "{}"):
        raise DataError(f"{where}: the answer {short(golds[0])} cannot be given in a box. Fix it or drop the row.")
    try:
        entries = pieces("\n".join(texts), ENTRY)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    kept = tuple(dict.fromkeys(golds))
    return Document(
        identity, parts.kind, parts.question.strip(), entries, packed(entries, page, "\n"), kept, source=source
    )


def rows_to_documents(name: str, found: Iterable[Mapping[str, Any]], hub_split: str, page: int) -> list[Document]:
    """Makes documents of rows in the schema of the hub set ``name``. No network is involved.

    Raises:
        DataError: A column is missing, or holds something else; by number (from 0).
    """
    known, documents = HUB[name], []
    for index, row in enumerate(found):
        where = f"{known.hub_id} ({hub_split}), row {index}"
        try:
            parts = known.read(row, hub_split)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{where}: {type(error).__name__}: {error}. The row has: {', '.join(map(str, row))}."
            ) from error
        if parts is not None:
            identity = f"{name}/{hub_split}/{row[known.id] if known.id and known.id in row else index}"
            documents.append(document(parts, where, identity, name, page))
    return documents


def fetch(name: str, split: str, page: int) -> tuple[Document, ...]:
    """Downloads (or takes from the cache of ``datasets``) one split of a hub set.

    Args:
        name: The set's, here.
        split: ``train`` or ``test``.
        page: Characters of a page.

    Raises:
        DataError: No such split, a bad row, or the hub cannot be reached; the message names the ways to give data.
        MissingExtraError: ``datasets`` is not installed.
    """
    known, documents = HUB[name], []
    for hub_split in known.splits.get(split, ("",)):

        def load(datasets: Any, hub_split: str = hub_split) -> Iterable[Any]:
            features = {"features": _features(datasets, known.features)} if known.features else {}
            return datasets.load_dataset(known.hub_id, known.config, split=hub_split, **features)

        names = {ours: ", ".join(theirs) for ours, theirs in known.splits.items()}
        found = of_hub(name, known.hub_id, names, split, "'document', 'question' and 'answer'", load)
        documents += rows_to_documents(name, found, hub_split, page)
    return tuple(documents)


def _features(datasets: Any, types: Mapping[str, str]) -> Any:
    """Returns what ``datasets`` calls the types of columns."""
    one = datasets.Value
    listed = datasets.Sequence
    return datasets.Features(
        {name: listed(one(kind[1:-1])) if kind[0] == "[" else one(kind) for name, kind in types.items()}
    )
