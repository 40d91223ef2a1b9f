"""Compares two checkpoints of any layouts, or a checkpoint with a pytree in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._keywords import keywords
from .._core._progress import Progress, Watch
from .._core._readable import readable
from .._core._report import Finding
from .._core._requests import DiffRequest
from .._errors import InvalidArgumentError
from ._convert import LeafForm
from ._sides import is_place, opened, taken


class Distance(NamedTuple):
    """The distance between the elements of a leaf on both sides. Distances are computed from pairs
    of two finite elements. If there are no such pairs, the distances are `None`.
    """

    element_count: int
    """Pairs of elements."""
    differing_count: int
    """Pairs whose bits differ; if the dtypes differ, pairs whose values differ."""
    outside_count: int
    """Pairs that differ by more than the tolerance."""
    incomparable_count: int
    """Pairs without a distance: one element is NaN or infinite, and the other element differs."""
    nan_counts: tuple[int, int]
    """The number of NaNs on each side."""
    infinity_counts: tuple[int, int]
    """The number of infinite elements on each side."""
    max_abs: float | None
    """The largest ``abs(a - b)``."""
    max_relative: float | None
    """The largest ``abs(a - b) / abs(b)``, where ``b`` is not 0."""
    max_ulp: int | None
    """The largest number of steps between the two values in the dtype; `None` also if the dtypes
    differ.
    """
    cosine: float | None
    """The cosine of the angle between both sides as vectors; `None` also if one side is zero."""
    worst_index: tuple[int, ...] | None
    """The index of the pair that differs most, or of a pair without a distance if there is one;
    `None` if no bits differ.
    """
    worst_values: tuple[complex, complex] | None
    """The values of this pair, as float64, or as complex numbers if one of the values is complex.
    """


class LeafDiff(NamedTuple):
    """One leaf of one side or both."""

    path: str
    """The key path."""
    status: str
    """``equal``, or ``within``: some elements differ, none by more than was allowed. Differences
    are ``values``, ``dtype``, ``kind``, ``shape``, ``only_a``, ``only_b``, and ``unread``, where it
    could not be read."""
    a: LeafForm | None
    """The leaf in `a`."""
    b: LeafForm | None
    """The leaf in `b`."""
    same_file: bool
    """Whether both are the same bytes of one file, as of saves with ``base=``: then they are
    read once.
    """
    distance: Distance | None
    """`None` where the elements were not compared as numbers."""


class ContainerDiff(NamedTuple):
    """A container that has another kind on the other side; or `None` or an empty container that
    only one side has.
    """

    path: str
    a: str | None
    """The container in `a`: ``dict``, ``named_tuple optax.AdamState``."""
    b: str | None
    """The container in `b`."""


class DiffFinding(NamedTuple):
    """A fault of one side."""

    side: str
    """``a`` or ``b``."""
    finding: Finding


@readable
class DiffReport(NamedTuple):
    """The report of `regrow.diff`. As text it is a verdict, and a line for each of the worst
    leaves.
    """

    a: str
    """The first checkpoint; empty for a pytree in memory."""
    b: str
    """The second checkpoint."""
    equal: bool
    """Whether nothing differs by more than the tolerance, and all leaves could be read."""
    leaves: list[LeafDiff]
    """The leaves that differ, the worst first; with ``list_equal=True`` all of them."""
    counts: Mapping[str, int]
    """The number of leaves of each status, including leaves that are not listed."""
    containers: list[ContainerDiff]
    """Containers that differ. They count as differences only with ``check_types=True``."""
    other_kind_count: int
    """Leaves whose kinds differ (a NumPy array and a JAX array), but which count as the same."""
    findings: list[DiffFinding]
    """The errors of leaves that could not be read."""
    read_bytes: int
    """Bytes of both sides that were read, decoded."""
    text: str
    """The text of `str`."""

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return self.equal

    def _repr_html_(self) -> str:
        from .._core import _html

        return _html.of_diff(self)


@keywords
def diff(
    a: Any,
    b: Any,
    *,
    only: str | Iterable[str] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    max_ulp: int | None = None,
    ignore_dtype: bool = False,
    check_types: bool = False,
    equality_only: bool = False,
    list_equal: bool = False,
    step: int | None = None,
    item: str | None = None,
    step_b: int | None = None,
    item_b: str | None = None,
    budget_bytes: int | None = None,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DiffReport:
    """Compares two checkpoints, of any two layouts: structure, dtypes, shapes and every element.

    Leaves are paired by their key paths, or else by the texts of their keys: a list in one layout
    is paired with a dict with the keys ``"0"``, ``"1"`` in another. The order of keys is no
    difference. Metadata and metrics are not compared.

    Without a tolerance the bits must be equal: 0.0 differs from -0.0. With a tolerance an element
        passes if ``abs(a - b) <= atol + rtol * abs(b)``, or if `b` is at most `max_ulp` values of
        the dtype away. NaN passes if both are NaN, an infinity if both are the same.

    Args:
        a: A path or URL, an opened `Checkpoint`, or a pytree in memory: any value but `str`,
            `bytes` or a path.
        b: As `a`.
        only: Globs over key paths. A glob that matches nothing on either side is an error.
        atol: The largest allowed absolute difference.
        rtol: The largest allowed difference relative to `b`.
        max_ulp: The largest allowed distance, in values of the dtype.
        ignore_dtype: Compare the values of different dtypes, as float64.
        check_types: Also compare the types of containers and the kinds of leaves.
        equality_only: Only find the leaves that differ. The read of a leaf ends at the first
            difference, and no distances are computed.
        list_equal: Also list the equal leaves.
        step: The step of both, if they are folders of steps; the newest if `None`.
        item: The item of both.
        step_b: The step of `b`, if it differs.
        item_b: The item of `b`, if it differs.
        budget_bytes: Extra memory, at least 1 MiB; 64 MiB if `None`.
        progress: As for `save`.
        storage_options: As for `load`.

    Raises:
        NotFoundError, NotACheckpointError, UncommittedError, CorruptError: if one of them cannot be
            opened. A leaf that cannot be read is a finding.
        NotFoundError: for globs that match no leaf, with all of them.
        InvalidArgumentError: for a negative tolerance; for one with `equality_only`.
    """
    request = DiffRequest(
        only=_arguments.patterns(only),
        atol=_tolerance("atol", atol),
        rtol=_tolerance("rtol", rtol),
        max_ulp=_arguments.count("max_ulp", max_ulp),
        ignore_dtype=_arguments.flag("ignore_dtype", ignore_dtype),
        check_types=_arguments.flag("check_types", check_types),
        equality_only=_arguments.flag("equality_only", equality_only),
        list_equal=_arguments.flag("list_equal", list_equal),
        budget_bytes=_arguments.budget(budget_bytes),
    )
    steps = _arguments.count("step", step), _arguments.count("step_b", step_b)
    items = _arguments.text("item", item), _arguments.text("item_b", item_b)
    takes_options = [is_place(side) for side in (a, b)]
    if storage_options is not None and not any(takes_options):
        raise InvalidArgumentError("`storage_options` is for URLs, and both checkpoints are in memory or open")
    sides = [taken(name, side, storage_options) for name, side in (("a", a), ("b", b))]

    def compare(_: _native.Attempt) -> DiffReport:
        opened_a = opened(sides[0], steps[0], items[0])
        opened_b = opened(
            sides[1], steps[0] if steps[1] is None else steps[1], items[0] if items[1] is None else items[1]
        )
        with Watch(progress, "comparing") as watch:
            return _report(_native.diff(opened_a, opened_b, request, watch))

    # If a checkpoint is replaced during the comparison, both are opened again. This needs two
    # paths: a checkpoint that the caller has opened cannot be opened again.
    return _native.read_unreplaced(compare) if all(takes_options) else compare(_native.Attempt())


def _tolerance(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        return float(value) if not isinstance(value, (bool, str, bytes)) else _refuse(name, value)
    except (TypeError, ValueError):
        return _refuse(name, value)


def _refuse(name: str, value: Any) -> float:
    raise _arguments.wrong(name, value, "a number of at least 0, or None")


def _report(columns: tuple[Any, ...]) -> DiffReport:
    (a, b), equal, leaves, counts, containers, other_kind_count, findings, read_bytes, text = columns
    return DiffReport(
        a,
        b,
        equal,
        [LeafDiff(path, status, _form(a), _form(b), same, _distance(far)) for path, status, a, b, same, far in leaves],
        dict(counts),
        [ContainerDiff(*container) for container in containers],
        other_kind_count,
        [DiffFinding(side, Finding(*finding)) for side, finding in findings],
        read_bytes,
        text,
    )


def _form(form: tuple[str, str, tuple[int, ...]] | None) -> LeafForm | None:
    return None if form is None else LeafForm(*form)


def _distance(columns: tuple[Any, ...] | None) -> Distance | None:
    if columns is None:
        return None
    counts, (nan_counts, infinity_counts), distances, worst = columns
    element_count, differing_count, outside_count, incomparable_count = counts
    max_abs, max_relative, max_ulp, cosine = distances
    index: tuple[int, ...] | None = None
    values: tuple[complex, complex] | None = None
    if worst is not None:
        index, ((real_a, imag_a), (real_b, imag_b)) = worst
        is_real = imag_a == 0 and imag_b == 0
        values = (real_a, real_b) if is_real else (complex(real_a, imag_a), complex(real_b, imag_b))
    return Distance(
        element_count,
        differing_count,
        outside_count,
        incomparable_count,
        tuple(nan_counts),
        tuple(infinity_counts),
        max_abs,
        max_relative,
        max_ulp,
        cosine,
        index,
        values,
    )
