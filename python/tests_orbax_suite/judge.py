"""Compares what became of tests with the failures that a file of expectations lists, and prints a
table.

Such a file has ``[[fails]]`` groups: `file`, `kind`, `why` and `tests`. A test is a name, or a
pattern. Tests of the kinds in `NO_JUDGE` do not count. A test of the kind ``either`` may pass or
fail.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

NO_JUDGE = ("private", "original", "either")
"""Kinds of failures that say nothing about what callers see."""


class Expected:
    """The failures that a file lists."""

    def __init__(self, file: Path, only: str = "") -> None:
        self.told: dict[str, Any] = tomllib.loads(file.read_text()) if file.exists() else {}
        self.left_out: dict[str, str] = self.told.get("left_out", {})
        self.kinds: dict[str, str] = {
            f"{group['file']}::{test}": group["kind"]
            for group in self.told.get("fails", ())
            for test in group["tests"]
            if only in group["file"]
        }
        self.patterns = [pattern for pattern in self.kinds if "*" in pattern or "?" in pattern]

    def kind(self, name: str) -> str | None:
        """The kind of the failure that is expected of a test; `None` if the test has to pass."""
        pattern = name if name in self.kinds else next((one for one in self.patterns if fnmatchcase(name, one)), "")
        return self.kinds.get(pattern)

    def wrong(self, outcomes: Mapping[str, str]) -> list[str]:
        """What is not as expected."""
        found: list[str] = []
        for name, outcome in sorted(outcomes.items()):
            kind = self.kind(name)
            if outcome == "failed" and kind is None:
                found.append(f"fails: {name}")
            if outcome == "passed" and kind not in (None, "either"):
                found.append(f"passes, and is expected to fail: {name}")
        for pattern in self.kinds:
            if pattern not in outcomes and not (
                pattern in self.patterns and any(fnmatchcase(name, pattern) for name in outcomes)
            ):
                found.append(f"is expected to fail, and is not there: {pattern}")
        return found


def table(outcomes: Mapping[str, str], expected: Expected) -> str:
    """By file: the tests that ran, those that judge, those of them that passed, and the
    percentage.
    """
    by_file: dict[str, Counter[str]] = {}
    for name, outcome in outcomes.items():
        counts = by_file.setdefault(name.split("::")[0], Counter())
        if outcome == "skipped":
            continue
        counts["tests"] += 1
        if expected.kind(name) not in NO_JUDGE:
            counts["judged"] += 1
            counts["passed"] += outcome == "passed"
    columns = ("tests", "judged", "passed")
    rows = [*sorted(by_file.items()), ("all", sum(by_file.values(), Counter()))]
    lines = ["  ".join(["file".ljust(64), *(column.rjust(7) for column in (*columns, "percent"))])]
    for file, counts in rows:
        percent = f"{100 * counts['passed'] / counts['judged']:.1f}" if counts["judged"] else "-"
        lines.append(
            "  ".join([file.ljust(64), *(str(counts[column]).rjust(7) for column in columns), percent.rjust(7)])
        )
    return "\n".join(lines)
