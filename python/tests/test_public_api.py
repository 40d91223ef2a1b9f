"""Public names stay as they were, unless a change is intended and reviewed."""

from __future__ import annotations

import difflib

import public_api


def test_public_names_and_signatures_are_those_of_the_snapshot() -> None:
    were = public_api.FILE.read_text().splitlines()
    changes = [*difflib.unified_diff(were, public_api.lines(), "public_api.txt", "now", lineterm="", n=0)]
    assert not changes, "the public API changes; if it is to, run make api\n" + "\n".join(changes)
