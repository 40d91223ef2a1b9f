"""Notebooks, run by a kernel of Jupyter: their cells show regrow's records.

python tests/test_notebook.py       # executes the notebook of the documentation and writes it
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from conftest import REPOSITORY
from nbclient import NotebookClient

TUTORIAL = REPOSITORY / "docs/tutorials/notebook.ipynb"
MEASURED = re.compile(r" *(?:(?:<|&lt;) ?)?\d+(?:\.\d+)? (?:m?s|GB/s|KiB on disk)\b")

CELLS = [
    "import numpy as np, regrow\n"
    "tree = {'<script>alert(1)</script>': np.float32([1, 2]), 'n': 3}\n"
    "regrow.save('a', tree)",
    "regrow.save('b', {**tree, 'n': 4}); regrow.open('b')",
    "regrow.open('a')['n']",
    "regrow.verify('a')",
    "regrow.diff('a', 'b')",
]


def test_records_show_themselves_as_tables(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    execute(notebook, tmp_path)
    shown = []
    for cell in notebook.cells:
        (output,) = (output for output in cell.outputs if output.output_type == "execute_result")
        shown.append(output.data["text/html"])
        # Where there is no HTML, the text is what it was.
        assert output.data["text/plain"]
    assert not any("<script" in html for html in shown)
    saved, checkpoint, leaf, verified, compared = shown
    assert "commit" in saved and "2 leaves" in saved
    assert "&lt;script&gt;" in checkpoint and "float32" in checkpoint
    assert "scalar" in leaf and "int64" in leaf
    assert "sound; 2 leaves" in verified
    assert "differ: 1 of 2 leaves" in compared and "values" in compared
    nbformat.validate(notebook)


def test_the_tutorial_holds_the_outputs_of_its_cells(tmp_path: Path) -> None:
    written = nbformat.read(TUTORIAL, as_version=4)
    executed = nbformat.read(TUTORIAL, as_version=4)
    execute(executed, tmp_path)
    for ours, theirs in zip(written.cells, executed.cells, strict=True):
        assert outputs(ours) == outputs(theirs), "`python tests/test_notebook.py` writes the outputs"


def outputs(cell: Any) -> str:
    """The outputs of a cell without times and speeds."""
    return MEASURED.sub(" #", nbformat.v4.writes_json(nbformat.v4.new_notebook(cells=[cell])))


def execute(notebook: Any, folder: Path) -> None:
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=100, record_timing=False, resources=where).execute()
    notebook.metadata.language_info = {"name": "python"}  # not the version of Python


if __name__ == "__main__":
    notebook = nbformat.read(TUTORIAL, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
    nbformat.write(notebook, TUTORIAL)
