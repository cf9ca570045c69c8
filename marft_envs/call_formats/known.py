"""All call formats by name: reads a reply in one, sees that it is in another, finds the one that a template writes.

How each model family writes calls stands in ``call_formats.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from marft_envs.call_formats.base import TABLE, TOKEN, Bad, CallFormat, Schemas, ToolReply
from marft_envs.call_formats.call import ToolCall
from marft_envs.call_formats.gemma import Gemma4
from marft_envs.call_formats.harmony import Harmony
from marft_envs.call_formats.hermes import LOOSE, Hermes, unfenced
from marft_envs.call_formats.pythonic import LIST, SINGLE, LlamaPythonic, PythonBlock
from marft_envs.call_formats.tagged import Glm, Invoked, Muse, QwenXml
from marft_envs.call_formats.tags import Tags
from marft_envs.call_formats.wrapped import Cohere, DeepSeek, JsonList, Kimi, LlamaJson, Mistral
from marft_envs.core import thoughts
from marft_envs.errors import check_known

DEFAULT = "hermes"

_KINDS: tuple[type[CallFormat], ...] = (
    Cohere, DeepSeek, Gemma4, Glm, Harmony, Hermes, Invoked, JsonList, Kimi, LlamaJson, LlamaPythonic, Mistral, Muse,
    PythonBlock, QwenXml, Tags,
)  # fmt: skip


def _made(name: str, kind: str, **fields: Any) -> CallFormat:
    """The call format of an entry in the table."""
    values: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value for field, value in fields.items()
    }
    return next(each for each in _KINDS if each.__name__ == kind)(name, **values)


CALL_FORMATS: dict[str, CallFormat] = {name: _made(name, **entry) for name, entry in TABLE["formats"].items()}
"""Name -> call format."""
MARKS = thoughts.MARKS | frozenset(
    mark for each in CALL_FORMATS.values() for mark in (*each.marks, *each.also) if TOKEN.fullmatch(mark)
)
"""Special tokens that calls and thoughts are written with: decoding must keep them, or they are lost to the readers."""

_SIGNS = tuple((re.compile(pattern), name) for pattern, name in TABLE["signs"])
_PLAIN_TAG = "</{}>"
_LIST_AT_LINE = re.compile(rf"^[ \t]*{LIST.pattern}", re.ASCII | re.MULTILINE)


def call_format(name: str) -> CallFormat:
    """Returns the call format of that name.

    Raises:
        ConfigError: There is none.
    """
    check_known([name], CALL_FORMATS, "There is no call format '{}'.")
    return CALL_FORMATS[name]


def parse(text: str, form: str = DEFAULT, schemas: Schemas | None = None) -> ToolReply:
    """Returns the calls of a reply; what looks like a call in another format is an error, never words. Raises nothing.

    Args:
        text: The reply, thoughts and all.
        form: The call format that is expected; ``any``: whichever it is written in, the default where none is known.
        schemas: Tool -> schema of its arguments, of the tools that the agent holds.
    """
    if not any(sign in text for sign in "<{[(="):
        return ToolReply(words=text.strip())
    if form == "any":
        like = seen(text, schemas or ())
        form = like if like in CALL_FORMATS else DEFAULT
    expected = call_format(form)
    reply = expected.read(text, schemas)
    if reply.error == "too_large" and not _suspicious(text):
        return ToolReply(words=thoughts.spoken(text).strip())
    if reply.error in _SETTLED:
        return reply
    try:
        rest = expected.said(text) if reply.error else reply.words
    except Bad:
        return reply
    other = seen(rest, schemas or (), without=expected)
    if other is None:
        return reply
    if other in (form, "json"):
        return reply if reply.error else ToolReply(error="bad_form" if other == form else "mixed")
    found = CALL_FORMATS[other]
    what = f"this looks like a call in the form of {found.name} ({found.families}); expected {expected.form}"
    return ToolReply(error="other_format", detail=what)


def written(calls: Sequence[ToolCall], form: str = DEFAULT, schemas: Schemas | None = None) -> str:
    """Returns a reply that asks for these calls, which :func:`parse` reads back."""
    return call_format(form).write(calls, schemas)


_SETTLED = frozenset({"too_large", "too_many", "too_deep", "bad_text", "bad_number", "duplicate_key"})


def _suspicious(text: str) -> bool:
    return "{" in text or "tool_call>" in text or "<think>" in text or seen(text, ()) is not None


def seen(text: str, names: Iterable[str], without: CallFormat | None = None) -> str | None:
    """Returns the call format that a reply looks like, ``json`` for a call in plain JSON among words; None: only words.

    Args:
        text: The reply, without thoughts.
        names: Tools that are held; their tags are search tags.
        without: The call format that has read it: of what is left, plain JSON and Python are its business.
    """
    for pattern, name in _SIGNS:
        if pattern.search(text):
            return name
    if "</" in text and any(_PLAIN_TAG.format(name) in text and f"<{name}>" in text for name in names):
        return "tags"
    if 0 <= text.find("<search>") < text.rfind("</search>"):
        return "tags"
    bare = unfenced(text) if "```" in text else text
    stripped = bare.strip()
    if LIST.match(stripped) or SINGLE.fullmatch(stripped) or (stripped.endswith(")]") and _LIST_AT_LINE.search(bare)):
        return "llama-pythonic"
    if LOOSE.search(bare):
        whole = stripped[:1] in "{[" and without is None
        return ("llama-json" if '"parameters"' in bare else "hermes") if whole else "json"
    return None


class Found(NamedTuple):
    """What was found out about the calls that a chat template writes."""

    call_format: CallFormat | None
    """None: no call format reads them."""
    reply: str
    """The part of the rendered text that is the reply, as far as it was read; all of it where nothing could be read."""
    reason: str = ""
    """Why there is no call format."""


def find(rendered: str, calls: Sequence[ToolCall], schemas: Schemas) -> Found:
    """Returns the call format in which a template has written calls.

    Of a text that begins with a reply and goes on with what follows a reply, the longest part is sought that a format
    reads as exactly these calls and no words; of several call formats, the one with the most marks in it is meant.

    Args:
        rendered: What the template writes from where the reply begins to the tool's result.
        calls: What it was given.
        schemas: Of the calls' tools.
    """
    wanted, best = tuple(calls), Found(None, rendered)
    rank = -1
    for each in CALL_FORMATS.values():
        marks = sum(mark in rendered for mark in each.marks)
        if marks < len(each.marks) or marks <= rank:
            continue
        for end in _ends(rendered):
            reply = each.read(rendered[:end], schemas)
            if reply.calls == wanted and not reply.words:
                best, rank = Found(each, rendered[:end]), marks
                break
    if best.call_format is not None:
        return best
    if not rendered.strip() or not any(call.name in rendered for call in wanted):
        return Found(None, rendered, "it leaves calls out")
    like = seen(rendered, [call.name for call in wanted])
    looks = f" (it looks like {like})" if like in CALL_FORMATS else ""
    return Found(None, rendered, f"it writes calls in a form that no call format reads{looks}")


def _ends(rendered: str) -> list[int]:
    """Where a reply may end: before each mark of a template, the last first, and at line ends."""
    places = {match.start() for match in re.finditer(r"<|\[|\n|\Z", rendered)}
    return sorted(places | {match.end() for match in TOKEN.finditer(rendered)}, reverse=True)
