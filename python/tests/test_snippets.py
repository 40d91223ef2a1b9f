"""The Python blocks of README and docs/ do what the pages say. How they are marked: see
`snippets`.
"""

from __future__ import annotations

import ast
import contextlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from snippets import Page, pages, unknown_names

INDENTED = re.compile(r"^\n((?: {4}.*\n|\n)+)", re.MULTILINE)
HERE = [page for page in pages() if not page.kind]


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.run(tmp_path, monkeypatch)


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_blocks_that_do_not_run_name_what_there_is(page: Page) -> None:
    for block in page.blocks:
        if not block.is_run and "torch" not in block.text:
            assert not unknown_names(block.text), f"{page.name}:{block.line}"


def test_examples_of_docstrings_name_what_there_is() -> None:
    found = 0
    for path in sorted((REPOSITORY / "python/regrow").rglob("*.py")):
        for example in examples(path):
            found += 1
            # These tests have no torch.
            assert "torch" in example or not unknown_names(example), f"{path}:\n{example}"
            # As in pages: on the site a longer line scrolls sideways.
            assert max(map(len, example.splitlines())) <= 76, f"{path}:\n{example}"
    assert found > 20


def examples(path: Path) -> Iterator[str]:
    """The Python in the docstrings of a file: indented blocks below an empty line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            for block in INDENTED.findall(f"{ast.get_docstring(node) or ''}\n"):
                text = textwrap.dedent(block)
                with contextlib.suppress(SyntaxError):  # a picture
                    ast.parse(text)
                    yield text
