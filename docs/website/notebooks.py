"""Makes pages of the notebooks in ``examples/notebooks``: their words, their cells, and what the cells print and draw.

``PYTHONPATH=docs python -m website.notebooks NAME …`` runs notebooks and writes the outputs into them, with a digest of
what was run, so that a test notices outputs of another program.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
MOST = 10
"""Lines of an output that are shown; of more, those in the middle are left out."""
SVG = {"image/svg+xml": "svg"}
Output = dict[str, str]
"""``text`` and ``svg`` of a cell, where there is some."""


def cells(notebook: Path) -> list[tuple[str, str]]:
    """Kind and source of the cells."""
    read = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in read]


def digest(notebook: Path) -> str:
    """Names what a notebook runs."""
    return hashlib.sha256("\n\n".join(s for kind, s in cells(notebook) if kind == "code").encode()).hexdigest()[:16]


def run(notebook: Path) -> list[Output]:
    """Runs a notebook in the current folder; what each of its cells of code printed and drew."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return [_ran(source, module.__dict__) for kind, source in cells(notebook) if kind == "code"]


def _ran(source: str, names: dict[str, Any]) -> Output:
    from marft_algos.runs import plots

    tree, value, said = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    drawn = hasattr(value, "savefig")
    lines = (said.getvalue() + ("" if value is None or drawn else repr(value))).splitlines()
    if len(lines) > MOST:
        lines = [*lines[: MOST // 2], f"… {len(lines) - MOST} more lines …", *lines[-(MOST // 2) :]]
    out = {
        "text": re.sub(r"\S*/(?=runs/)| at 0x[0-9a-f]+", "", "\n".join(lines)),
        "svg": plots.svg(value) if drawn else "",
    }
    return {kind: text for kind, text in out.items() if text}


def page(notebook: Path, outputs: list[Output]) -> tuple[str, str]:
    """Title and text of a notebook."""
    parts, left = list[str](), iter(outputs)
    for number, (kind, source) in enumerate(cells(notebook)):
        parts.append(source if kind == "markdown" else f"```python\n{source}\n```")
        out = next(left, {}) if kind == "code" else {}
        parts += [f"```{{ .text .output }}\n{out['text']}\n```"] if "text" in out else []
        parts += [f"![What the cell above draws]({notebook.stem}-{number}.svg)"] if "svg" in out else []
    note = f"*A notebook: `examples/notebooks/{notebook.name}`.*"
    return parts[0].partition("\n")[0].lstrip("# "), "\n\n".join([parts[0], note, *parts[1:]]) + "\n"


def stored(notebook: Path) -> list[Output]:
    """The outputs that a notebook carries, one for each of its cells of code.

    Raises:
        ValueError: They are of another program.
    """
    read = json.loads(notebook.read_text(encoding="utf-8"))
    if read["metadata"].get("digest") != digest(notebook):
        raise ValueError(f"type: PYTHONPATH=docs python -m website.notebooks {notebook.stem}")
    found = list[Output]()
    for cell in read["cells"]:
        if cell["cell_type"] == "code":
            parts = [part.get("data", {"text": part.get("text")}) for part in cell["outputs"]]
            found.append({SVG.get(kind, kind): "".join(text) for part in parts for kind, text in part.items()})
    return found


def write(notebook: Path, outputs: list[Output]) -> None:
    """Writes outputs into a notebook, as Jupyter does."""
    read = json.loads(notebook.read_text(encoding="utf-8"))
    read["metadata"]["digest"] = digest(notebook)
    code = [cell for cell in read["cells"] if cell["cell_type"] == "code"]
    for number, (cell, out) in enumerate(zip(code, outputs, strict=True), 1):
        text = [{"name": "stdout", "output_type": "stream", "text": out["text"] + "\n"}] if "text" in out else []
        data = {"image/svg+xml": out.get("svg")}
        svg = [{"data": data, "metadata": {}, "output_type": "display_data"}] if "svg" in out else []
        cell.update(execution_count=number, outputs=[*text, *svg])
    notebook.write_text(json.dumps(read, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and text of every page; pictures have no title."""
    lines = [
        "# Notebooks",
        "",
        "They run offline, in a clone, with `pip install jupyterlab` beside the extra `train`;",
        "a test runs them.",
        "",
    ]
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        ran = stored(notebook)
        title, text = page(notebook, ran)
        lines.append(f"* [{title}]({notebook.stem}.md)")
        code = [number for number, (kind, _) in enumerate(cells(notebook)) if kind == "code"]
        for number, out in zip(code, ran, strict=True):
            if "svg" in out:
                yield f"notebooks/{notebook.stem}-{number}.svg", "", out["svg"]
        yield f"notebooks/{notebook.stem}.md", title, text
    yield "notebooks/index.md", "Notebooks", "\n".join(lines) + "\n"


def main() -> None:
    """Runs the notebooks that are named, and writes what came of them into them."""
    for notebook in (FOLDER / f"{name}.ipynb" for name in sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            write(notebook, run(notebook))


if __name__ == "__main__":
    main()
