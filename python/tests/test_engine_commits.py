"""The engine alone commits, locks and syncs: Python's code has no second protocol for these."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "regrow"

FORBIDDEN = re.compile(r"\b(fcntl|flock|lockf|fsync|fdatasync|st_ino|st_dev|st_ctime_ns)\b|\bos\.stat\(")


def test_python_neither_locks_nor_syncs_nor_tells_files_apart() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not found, "\n".join(["use the engine: regrow._native.put_file, StagedFile, is_locked, ...", *found])
