"""Runs the blocks of pages and writes what they print below them: ``python -m website.blocks [--sh] PAGE …``.

A block of Python or of a shell that prints something is followed by a block ``output``. Python blocks of a page run in
their order, in one process. With ``--sh``, blocks of a shell of all pages run in one empty folder with a link to
``examples``; a block is saved there first if the words before it end with "Save it as FILE:". A line
``<!-- no-test -->`` before a block says that it needs a network, a GPU or an answer of somebody, and
``<!-- no-output: REASON -->`` why nothing is shown below it; neither is run.

In an output ``…`` stands for anything, on one line or on several. Numbers with a decimal point may differ from what is
printed elsewhere, as times and scores depend on the machine; everything else must agree.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIP = re.compile(r"<!-- (?:no-test|no-output: ([^>]+)) -->")
QUIET = "prints nothing"
"""The reason of a block that is run and has no output."""
SAVED = re.compile(r"[Ss]ave (?:it|this) as `?([^`\s]+)`?:$")
END = "\x1eend of block "
MOST = 16
"""Lines of an output that are written; of more, those in the middle are left out."""


@dataclass(frozen=True)
class Block:
    """One block of code of a page. Lines are counted from 0; ``end`` is that of the closing fence."""

    language: str
    start: int
    end: int
    body: tuple[str, ...]
    file: str
    """What the words before it say to save it as, or ""."""
    skipped: bool
    quiet: bool
    """Whether it is run all the same, and prints nothing."""
    output: Block | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.body)


def blocks(page: Path) -> list[Block]:
    """The blocks of code of a page, each with the block ``output`` that follows it."""
    lines, found, at = page.read_text(encoding="utf-8").splitlines(), list[Block](), 0
    while at < len(lines):
        if not (fence := re.match(r"\s*```(\w+)", lines[at])):
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        before = [line for line in lines[max(at - 3, 0) : at] if line.strip()]
        saved = SAVED.search(before[-1].strip()) if before else None
        mark = SKIP.fullmatch(before[-1].strip()) if before else None
        quiet = bool(mark and mark[1] == QUIET)
        block = Block(fence[1], at, end, tuple(lines[at + 1 : end]), saved[1] if saved else "", bool(mark), quiet)
        if block.language == "output" and found and not any(line.strip() for line in lines[found[-1].end + 1 : at]):
            found[-1] = replace(found[-1], output=block)
        else:
            found.append(block)
        at = end + 1
    return found


def program(page: Path) -> str:
    """The page as a program: its Python blocks, each followed by a mark that it prints, at the line where it stands."""
    lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
    for block in blocks(page):
        if block.language == "python" and not block.skipped:
            lines[block.start + 1 : block.end] = block.body
            lines[block.end] = f"print({f'{END}{block.start}'!r}, flush=True)"
    return "\n".join(lines) + "\n"


def printed(said: str) -> dict[int, str]:
    """What each block of a program has printed, by the line where it starts."""
    parts = re.split(rf"{END}(\d+)\n", said)
    return {int(line): text.rstrip() for text, line in zip(parts[::2], parts[1::2], strict=False)}


def agrees(shown: str, came: str) -> bool:
    """Whether what is shown is what came out."""
    pattern = r"(?s:.*)".join(map(re.escape, _masked(shown).split("…")))
    return re.fullmatch(pattern, _masked(came)) is not None


def _masked(text: str) -> str:
    lines = (re.sub(r"[-+−]?\d+\.\d+(?:e[-+]?\d+)?", "#", line).rstrip() for line in text.splitlines())
    return re.sub(r" +", " ", "\n".join(lines)).strip()


def disagreements(page: Path, came: Mapping[int, str]) -> list[str]:
    """Blocks of a page whose output is not what came out of them, or is missing."""
    found = []
    for block in blocks(page):
        if block.start in came:
            shown = block.output.text if block.output else ""
            if not agrees(shown, came[block.start]):
                found.append(f"{page.name}:{block.start + 1} shows\n{shown}\nand prints\n{came[block.start]}")
    return found


def silent(page: Path) -> list[str]:
    """Blocks of a shell that neither show what they print nor say why."""
    wanted = (b for b in blocks(page) if b.language in ("sh", "bash") and not b.skipped and b.output is None)
    return [f"{page.name}:{block.start + 1}: {block.body[0]}" for block in wanted]


def written(page: Path, came: Mapping[int, str]) -> str:
    """The page with these outputs."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in reversed(blocks(page)):
        if (text := came.get(block.start)) is None or (block.output and agrees(block.output.text, text)):
            continue
        shown = text.splitlines()
        if len(shown) > MOST:
            shown = [*shown[: MOST // 2], "…", *shown[-MOST // 2 :]]
        last = block.output.end if block.output else block.end
        lines[block.end + 1 : last + 1] = ["", "```output", *shown, "```"] if shown else []
    return "\n".join(lines) + "\n"


def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="page-")
    for name in ("examples", "benchmarks"):
        Path(folder, name).symlink_to(ROOT / name)
    return folder


def ran(page: Path, folder: str, *, shell: bool) -> dict[int, str]:
    """Runs the blocks of a page in a folder; what each has printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    more = {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    if not shell:
        file = Path(folder, f"{page.stem.replace('-', '_')}.py")
        file.write_text(program(page), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(file)], cwd=folder, env=os.environ | more, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{page}: its Python ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return printed(done.stdout)
    came = dict[int, str]()
    for block in blocks(page):
        if block.file and block.language in ("python", "toml", "json", "yaml", "jsonl"):
            Path(folder, block.file).write_text(block.text + "\n", encoding="utf-8")
        elif block.language in ("sh", "bash") and (not block.skipped or block.quiet):
            print(f"{page.name}:{block.start + 1}", file=sys.stderr, flush=True)
            done = subprocess.run(["bash", "-eu", "-c", block.text], cwd=folder, env=os.environ | more, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
            if done.returncode:
                sys.exit(f"{page}:{block.start + 1} ended with {done.returncode}:\n{done.stdout[-4000:]}")
            came[block.start] = done.stdout.replace(folder, ".").rstrip()
    return came


def main(words: list[str]) -> None:
    """Writes the outputs of pages into them."""
    shell, shared = "--sh" in words, _folder()
    for page in (Path(word) for word in words if word != "--sh"):
        folder = shared if shell else _folder()
        page.write_text(written(page, ran(page, folder, shell=shell)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
