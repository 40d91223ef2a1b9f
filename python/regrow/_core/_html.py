"""Small HTML tables of records for notebooks, without scripts, classes or links.

Texts come from files, so every text is made printable and then escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .._text import counted, printable
from ._progress import format_bytes, format_seconds, format_speed

if TYPE_CHECKING:
    from .._load._checkpoint import Checkpoint, Leaf, VerifyReport
    from .._operations._diff import DiffReport, Distance
    from ._report import SaveReport

ROWS_MAX = 20
"""The most rows of a table. If there are more leaves, a line gives their number."""

TEXT_LEN_MAX = 200
"""Longer texts are cut: a key path may have any length."""


def text(value: Any) -> str:
    """A value as printable text, escaped for HTML."""
    shown = printable(str(value)).replace("\n", " ")
    return escape(shown if len(shown) <= TEXT_LEN_MAX else f"{shown[:TEXT_LEN_MAX]}…")


def table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[Any]], left_out: int = 0) -> str:
    """A table below a line of text. Without titles the table has no head. Without rows only the
    line is written.
    """
    head = "".join(f'<th style="text-align:left">{text(title)}</th>' for title in titles)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{text(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    shown = f"<table>{head}<tbody>{body}</tbody></table>" if body else ""
    more = f"<p>and {left_out} more</p>" if left_out > 0 else ""
    return f"<div><p>{text(caption)}</p>{shown}{more}</div>"


def of_text(shown: str) -> str:
    """Lines of text as they are."""
    lines = "\n".join(escape(printable(line)) for line in shown.splitlines())
    return f"<pre>{lines}</pre>"


def of_checkpoint(checkpoint: Checkpoint) -> str:
    """The kind of a checkpoint, and its first leaves."""
    native = checkpoint._native
    about = f"{checkpoint.layout} ({checkpoint.variant})" if checkpoint.variant else checkpoint.layout
    step = "" if checkpoint.step is None else f", step {checkpoint.step} of {len(checkpoint.steps)}"
    leaves = f"{counted(len(checkpoint), 'leaf', 'leaves')}, {format_bytes(native.data_bytes)}"
    count = min(len(checkpoint), ROWS_MAX)
    rows = []
    for at in range(count):
        path, _, kind, dtype, shape = native.leaf(at)
        rows.append(_leaf_row(path, kind, dtype, shape))
    titles = ("key path", "kind", "dtype", "shape", "bytes")
    return table(f"{checkpoint.path}: {about}{step}, {leaves}", titles, rows, len(checkpoint) - count)


def of_leaf(leaf: Leaf) -> str:
    """The facts of a leaf that need no read."""
    known = {
        "stored name": leaf.name,
        "kind": leaf.kind,
        "dtype": leaf.dtype.name,
        "shape": list(leaf.shape),
        "bytes": format_bytes(leaf.nbytes),
        "chunk": None if leaf.chunk_shape is None else list(leaf.chunk_shape),
        "sharding": leaf.sharding,
        "coding": leaf.coding or None,
    }
    return table(leaf.path, (), [(name, value) for name, value in known.items() if value is not None])


def of_save(report: SaveReport) -> str:
    """The line of its text, and the stages."""
    first = str(report).partition("\n")[0]
    rows = [
        (stage.stage, format_seconds(stage.seconds), format_speed(stage.bytes, stage.gb_per_s))
        for stage in report.stages
    ]
    return table(first, ("stage", "time", "speed"), rows)


def of_verify(report: VerifyReport) -> str:
    """The verdict, and the findings."""
    leaves = counted(report.leaf_count, "leaf", "leaves")
    found = "sound" if report.ok else f"damaged: {counted(len(report.findings), 'finding', 'findings')}"
    verdict = f"{found}; {leaves}, {format_bytes(report.checked_bytes)} checked"
    if not report.has_data_checksums:
        verdict += "; no checksum for some of its array data"
    rows = [
        (finding.kind, finding.leaf or "", finding.file or "", finding.message.partition("\n")[0])
        for finding in report.findings[:ROWS_MAX]
    ]
    return table(verdict, ("kind", "leaf", "file", "what"), rows, len(report.findings) - len(rows))


def of_diff(report: DiffReport) -> str:
    """The verdict, and the worst leaves."""
    verdict = report.text.partition("\n")[0]
    titles = (
        "status", "key path", "a", "b", "differ", "nan/inf", "max abs", "max relative", "max ulp", "cosine",
    )  # fmt: skip
    rows = []
    for leaf in report.leaves[:ROWS_MAX]:
        forms = ("" if form is None else f"{form.dtype}{list(form.shape)}" for form in (leaf.a, leaf.b))
        rows.append((leaf.status, leaf.path, *forms, *_distance_cells(leaf.distance)))
    return table(verdict, titles, rows, len(report.leaves) - len(rows))


def _distance_cells(distance: Distance | None) -> tuple[str, ...]:
    if distance is None:
        return ("",) * 6
    numbers = (
        "" if number is None else f"{number:{form}}"
        for number, form in (
            (distance.max_abs, ".2e"),
            (distance.max_relative, ".2e"),
            (distance.max_ulp, "d"),
            (distance.cosine, ".6f"),
        )
    )
    incomparable = str(distance.incomparable_count) if distance.incomparable_count else ""
    return (f"{distance.differing_count} of {distance.element_count}", incomparable, *numbers)


def _leaf_row(path: str, kind: int, dtype: int, shape: tuple[int, ...]) -> tuple[Any, ...]:
    from .._leaves._columns import DTYPES
    from .._native import LEAF_KINDS

    count = 1
    for dim in shape:
        count *= dim
    of = DTYPES[dtype]
    return path, LEAF_KINDS[kind], of.name, list(shape), format_bytes(count * of.itemsize)
