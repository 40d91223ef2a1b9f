"""A notebook, run by a kernel of Jupyter: what its cells show of regrow's records."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

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
    NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()
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
