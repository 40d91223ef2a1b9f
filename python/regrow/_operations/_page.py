"""`regrow.report`: checkpoints as an HTML page."""

from __future__ import annotations

import html as _html
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import _native
from .._core import _arguments
from .._core._keywords import keywords
from .._core._location import StrPath
from .._core._progress import Progress, Watch
from .._core._requests import ReportRequest
from .._errors import InvalidArgumentError
from ._sides import is_place, taken

_COUNTS = ("count", "nan_count", "infinity_count", "zero_count")
_NUMBERS = ("min", "max", "mean", "std", "l2_norm")

HEIGHT = "720px"
"""The height of the frame in a notebook."""


class ReportPage:
    """The result of `regrow.report`: a page, and the numbers on the page. A notebook shows the page
    in a frame.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _native.ReportPage) -> None:
        self._native = native

    @property
    def title(self) -> str:
        """The title of the page."""
        return self._native.title

    @property
    def ok(self) -> bool:
        """Whether the checked checkpoints have no damage."""
        return self._native.is_sound

    @property
    def html(self) -> str:
        """The page: one HTML file that needs no network. Each access makes the page again."""
        return self._native.html()

    @property
    def model(self) -> dict[str, Any]:
        """The content of the page as data, as `regrow report --json` prints it:
        ``model["checkpoint"]["findings"]``. Each access makes the data again. Each column has a row
        for each leaf.
        """
        model: dict[str, Any] = json.loads(self._native.json())
        return model

    @property
    def statistics(self) -> dict[str, Any] | None:
        """A column for each statistic, with a row for each leaf; `None` with ``statistics=False``.

        ``path`` is a list of key paths; ``count`` (elements looked at), ``nan_count``,
        ``infinity_count`` and ``zero_count`` are arrays of uint64; ``min``, ``max``, ``mean``,
        ``std`` and ``l2_norm`` are arrays of float64, over the finite elements, with NaN where
        there are none. `pandas.DataFrame` takes it as it is."""
        columns = self._native.statistics()
        if columns is None:
            return None
        paths, counts, numbers = columns
        table: dict[str, Any] = {"path": paths}
        table.update((name, np.array(column, np.uint64)) for name, column in zip(_COUNTS, counts, strict=True))
        table.update((name, np.array(column, np.float64)) for name, column in zip(_NUMBERS, numbers, strict=True))
        return table

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the page to a file: the whole page or nothing.

        Args:
            path: The file.
            overwrite: Replace an existing HTML file, but no other file.

        Raises:
            AlreadyExistsError: if the file exists and may not be replaced.
        """
        self._native.save(_local(path), _arguments.flag("overwrite", overwrite))

    def __repr__(self) -> str:
        return f"ReportPage({self.title!r})"

    def _repr_html_(self) -> str:
        # Without `allow-same-origin`, the page's script cannot access the notebook.
        return (
            f'<iframe sandbox="allow-scripts" style="width:100%;height:{HEIGHT};border:0" '
            f'title="{_html.escape(self.title)}" srcdoc="{_html.escape(self.html)}"></iframe>'
        )


@keywords
def report(
    checkpoint: Any,
    *others: Any,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    only: str | Iterable[str] | None = None,
    sample: int | None = None,
    statistics: bool = True,
    title: str | None = None,
    step: int | None = None,
    item: str | None = None,
    budget_bytes: int | None = None,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ReportPage:
    """A page about a checkpoint: one HTML file for a browser, which needs no network.

    It shows sizes, all leaves with their statistics and histograms, shardings, checksums and
    damage; with `others` the differences from each; of a folder of steps the newest step, and
    sizes, times, metrics and norms of all.

    Every byte is read once, and once more on both sides for each of `others`. Of a folder at most
    20 steps are read.

    Args:
        checkpoint: A path or URL, an opened `Checkpoint`, or a pytree in memory: anything but
            `str`, `bytes` or a path.
        others: Checkpoints to compare it with.
        out: A file to write the page to.
        overwrite: Replace the HTML file `out`, but no other file.
        only: Globs over key paths: only these leaves are read and compared. All are listed.
        sample: Read about this many bytes of each larger array, in evenly spread blocks; all if
            `None`.
        statistics: `False` reads no data: the page has no statistics, and damage to data is not
            found. `others` are compared as before.
        title: The title of the page; the last part of the path if `None`.
        step: The step of each folder of steps; the newest if `None`.
        item: The item of each checkpoint with several items.
        budget_bytes: Extra memory for reading, at least 1 MiB; 64 MiB if `None`.
        progress: As for `save`.
        storage_options: As for `load`.

    Raises:
        NotFoundError, NotACheckpointError, UncommittedError, CorruptError: if one of them cannot be
            opened. Damaged leaves are listed on the page.
        NotFoundError: for globs that match no leaf, with all of them.
        AlreadyExistsError: if `out` exists and may not be replaced.
    """
    _arguments.flag("overwrite", overwrite)
    sides = (checkpoint, *others)
    if storage_options is not None and not any(is_place(side) for side in sides):
        raise InvalidArgumentError("`storage_options` is for URLs, and all checkpoints are in memory or open")
    shown = ", ".join(repr(os.fspath(side)) if isinstance(side, (str, os.PathLike)) else "..." for side in sides)
    request = ReportRequest(
        title=_arguments.text("title", title),
        command=f"regrow.report({shown})",
        only=_arguments.patterns(only),
        sample_bytes=_arguments.count("sample", sample),
        statistics=_arguments.flag("statistics", statistics),
        step=_arguments.count("step", step),
        item=_arguments.text("item", item),
        budget_bytes=_arguments.budget(budget_bytes),
    )
    file = None if out is None else _local(out)
    subjects = [taken("checkpoint" if at == 0 else "others", side, storage_options) for at, side in enumerate(sides)]
    with Watch(progress, "reading") as watch:
        page = ReportPage(_native.report(subjects, request, watch))
    if file is not None:
        page.save(file, overwrite=overwrite)
    return page


def _local(path: StrPath) -> str:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise _arguments.wrong("out", path, "a path of the local file system")
    return os.fspath(path)
