"""The Python blocks of README and docs/ do what the pages say. How they are marked: see
`snippets`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from snippets import Page, pages, unknown_names

HERE = [page for page in pages() if not page.kind]


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.run(tmp_path, monkeypatch)


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_blocks_that_do_not_run_name_what_there_is(page: Page) -> None:
    for block in page.blocks:
        if not block.is_run and "torch" not in block.text:
            assert not unknown_names(block.text), f"{page.name}:{block.line}"
