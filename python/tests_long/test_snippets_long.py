"""The Python blocks of the pages that take seconds; `make test-long`. How they are marked: see
`snippets`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from snippets import Page, pages


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in pages() if page.kind == "long"], ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.run(tmp_path, monkeypatch)
