"""Makes pages of the notebooks in ``examples/notebooks``: their words and their cells, without outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"


def page(notebook: Path) -> tuple[str, str]:
    """Title and text of a notebook."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    note = f"*A notebook: `examples/notebooks/{notebook.name}`.*"
    return parts[0].partition("\n")[0].lstrip("# "), "\n\n".join([parts[0], note, *parts[1:]]) + "\n"


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and text of every page."""
    lines = [
        "# Notebooks",
        "",
        "They run offline, in a clone, with `pip install jupyterlab` beside the extra `train`;",
        "a test runs them.",
        "",
    ]
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        title, text = page(notebook)
        lines.append(f"* [{title}]({notebook.stem}.md)")
        yield f"notebooks/{notebook.stem}.md", title, text
    yield "notebooks/index.md", "Notebooks", "\n".join(lines) + "\n"
