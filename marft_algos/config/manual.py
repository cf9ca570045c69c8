"""What ``marft COMMAND --help`` shows beside the options: examples to copy, and which options most people need.

One table, ``manual.txt``: blocks of a command with its module and what it does, its groups of options, and
examples, each with what it is for; above some, the title of those that follow.
``docs/cli.md`` holds its examples: ``python -m marft_algos.config.manual docs/cli.md`` writes them there.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from marft_algos import terminal

MANY = 12
"""Options above which ``--help`` shows the common ones only."""
WHOLE = "--help-all"
WIDTH = 76
"""Longest line of an example and its note; else the note is above, and the command has several lines."""
LONGEST = 86
"""Characters of a line of an example on the page, without the two that continue it."""


@dataclass(frozen=True)
class CommandEntry:
    """What is shown of one command."""

    examples: tuple[tuple[str, str], ...]
    """(words behind ``marft COMMAND``, what they are for); a shell reads the latter as a comment."""
    common: tuple[str, ...] = ()
    """Fields of the options that most people need; they come first."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Title, one word -> fields of the others. Of ``train`` they are the sections of the settings."""
    title: str = ""
    """Of the commands that it is listed with."""
    module: str = ""
    """Has ``run_<command>``, and the dataclass ``<Command>Arguments`` that it takes; empty: a verb."""
    what: str = ""
    """What it does."""


@dataclass(frozen=True)
class About:
    """What help says beside the options."""

    prog: str
    """As the command is typed, with the words that usage has to show."""
    command: str
    """Its key in ``MANUAL``."""
    text: str
    """One line, and below it further text."""
    sections: tuple[str, ...] = ()
    """Of the settings, those that the short help has beside the common ones."""


def _read() -> dict[str, CommandEntry]:
    entries, title = {}, ""
    table = (resources.files("marft_algos.config") / "manual.txt").read_text(encoding="utf-8")
    for first, *lines in (block.splitlines() for block in table.split("\n\n")):
        if first.startswith("= "):
            title, (first, *lines) = first.removeprefix("= "), lines
        command, module, what = f"{first} |  | ".split(" | ")[:3]
        examples = [line[1:].partition(" # ") for line in lines if line[0] == "$"]
        parts = [line.partition(": ") for line in lines if line[0] != "$"]
        groups = {title: tuple(names.split()) for title, _, names in parts}
        common = groups.pop("common", ())
        typed = tuple((words.strip(), note) for words, _, note in examples)
        entries[command] = CommandEntry(typed, common, groups, title, module, what)
    return entries


MANUAL = _read()
"""Command, with its verb -> what is shown of it."""
TITLES = list(dict.fromkeys(entry.title for entry in MANUAL.values()))
"""As ``marft`` alone lists the commands."""


def asked(argv: Sequence[str]) -> bool:
    """Whether help is wanted, rather than what the words say."""
    return any(word in ("-h", "--help", WHOLE) for word in argv)


def described(text: str) -> str:
    """Writes what stands below the examples: paragraphs, wrapped; one that begins with its title stays as it is."""
    parts = [part for part in re.split(r"\n\s*\n", text.strip("\n")) if part]
    titled = [part for part in parts if re.match(r"[^\n]*:\n", part)]
    plain = [f"  {terminal.plain(part)}" for part in parts if part not in titled]
    return "".join(f"\n\n{part}" for part in ([f"Description:\n{chr(10).join(plain)}"] if plain else []) + titled)


def examples(command: str, indent: str = "  ") -> str:
    """Writes a command's examples, each with its note above it, to be copied: zsh reads a note behind as arguments."""
    typed = [(f"marft {command} {words}".rstrip(), note) for words, note in MANUAL[command].examples]
    lines = [line for words, note in typed for line in (f"# {note}", *_continued(words))]
    return "\n".join(indent + line for line in lines)


def _continued(words: str) -> list[str]:
    """Returns the lines of a command, which goes on in the next before an option."""
    options = re.sub(" (?![-'])", "\0", words)
    parts = textwrap.wrap(options, WIDTH, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(parts).replace("\0", " ").split("\n")


def page(command: str) -> str:
    """Writes a command's examples as a block of shell for ``docs/cli.md``, each below the comment that explains it."""
    lines = []
    for words, note in MANUAL[command].examples:
        first, *options = re.split(r" (?=--[a-z])", f"marft {command} {words}".rstrip())
        rows = [first]
        for option in options:
            longer = f"{rows[-1]} {option}"
            rows[-1:] = [longer] if len(longer) <= LONGEST else [rows[-1], f"    {option}"]
        lines += [f"# {note}", " \\\n".join(rows)]
    return "```sh\n" + "\n".join(lines) + "\n```"


def replaced(text: str) -> str:
    """Returns the page with the examples of now, each block below the mark that names its command."""
    marked = r"(<!-- no-output: examples of ([a-z ]+) -->\n)```sh\n.*?\n```"
    return re.sub(marked, lambda found: found[1] + page(found[2]), text, flags=re.DOTALL)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(replaced(file.read_text(encoding="utf-8")), encoding="utf-8")
