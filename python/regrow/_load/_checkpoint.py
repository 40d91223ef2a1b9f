"""An opened checkpoint and its lazy leaves."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import _native
from .._core import _arguments, _options
from .._core._keywords import keywords
from .._core._location import StrPath
from .._core._options import Options
from .._core._progress import Progress, Watch
from .._core._readable import readable
from .._core._report import Finding, Stages, messages_of
from .._errors import InvalidArgumentError, LeafNotFoundError, LeafTypeError, NotFoundError, failure
from .._jobs._together import Together, posts_errors
from .._leaves._columns import DTYPES, PLACEHOLDER, STR, UNKNOWN, LoadedLeaves, as_array, from_native
from .._text import counted, printable, shortened
from .._tree._flatten import unflatten
from . import _load
from ._wishes import register_nodes

FIRST_PATHS = 256
"""The number of key paths that the engine returns without an index of all leaves."""


class Item(NamedTuple):
    """A named part of a checkpoint."""

    name: str
    kind: str


class Leaf:
    """A leaf that has not been read yet.

    ``leaf[0:16]`` reads only these bytes (or the chunks that contain them). ``leaf[...]`` and
    ``np.asarray(leaf)`` read the whole leaf. Every read is checked if the layout has checksums.
    """

    __slots__ = ("_at", "_known", "_native")

    def __init__(self, native: _native.Checkpoint, at: int) -> None:
        self._native = native
        self._at = at
        self._known: tuple[str, str, int, int, tuple[int, ...]] | None = None

    def _info(self) -> tuple[str, str, int, int, tuple[int, ...]]:
        """Key path, stored name, kind, dtype and shape; read at the first use."""
        if self._known is None:
            self._known = self._native.leaf(self._at)
        return self._known

    @property
    def path(self) -> str:
        """The key path: ``params/dense/kernel``."""
        return self._info()[0]

    @property
    def name(self) -> str:
        """The stored name: ``params.dense.kernel``."""
        return self._info()[1]

    @property
    def kind(self) -> str:
        """The kind of the saved leaf: ``jax_array``, ``numpy_array``, ``scalar``, ``str``,
        ...
        """
        return _native.LEAF_KINDS[self._info()[2]]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements; ``uint8`` for text."""
        return DTYPES[self._info()[3]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; for text the length of its UTF-8 in bytes."""
        return self._info()[4]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for dim in self.shape:
            size *= dim
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded leaf."""
        return self.size * self.dtype.itemsize

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """The smallest piece that is stored and decoded alone, where the layout cuts arrays."""
        return self._native.info(self._at)[0]

    @property
    def write_shape(self) -> tuple[int, ...] | None:
        """The shape of one piece that the writer wrote."""
        return self._native.info(self._at)[1]

    @property
    def sharding(self) -> Any:
        """The sharding at the time of the save, as Orbax' JSON. A read does not need it."""
        import json

        text = self._native.info(self._at)[2]
        return None if text is None else json.loads(text)

    @property
    def coding(self) -> str:
        """The encoding of the leaf's bytes: ``raw``, ``zstd``, ..."""
        return self._native.info(self._at)[3]

    def read(self) -> Any:
        """The leaf in the form in which `regrow.load` returns it."""
        (value,) = from_native(LoadedLeaves(*self._native.read(self._at)), lambda _: self.path)
        return value

    def __getitem__(self, index: Any) -> Any:
        path, _, kind, _, shape = self._info()
        if kind in (STR, PLACEHOLDER, UNKNOWN):
            raise LeafTypeError(f"a leaf of kind {self.kind} has no elements\n  leaf {path}", leaf=path)
        region = basic_region(index, shape)
        if region.is_whole:
            _, (array,), _ = self._native.read(self._at)
        else:
            buffer = memoryview(self._native.region(self._at, region.starts, region.lens))
            array = as_array(region.lens, self.dtype, buffer, path)
        return array[region.then]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = np.asarray(self[...])
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError("a leaf of another dtype needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a leaf without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<regrow.Leaf {self.path} {self.kind} {self.dtype.name}{list(self.shape)}>"

    def _repr_html_(self) -> str:
        from .._core import _html

        return _html.of_leaf(self)


class BasicRegion(NamedTuple):
    """The region of an index of NumPy, and the steps after its read."""

    starts: tuple[int, ...]
    lens: tuple[int, ...]
    then: tuple[int | slice | EllipsisType | None, ...]
    is_whole: bool


def basic_region(index: Any, shape: tuple[int, ...]) -> BasicRegion:
    """The smallest hyper-rectangle that holds ``array[index]``, with NumPy's rules for basic
    indexing.

    Raises:
        IndexError: as NumPy, for an index outside of the array or too many of them.
        InvalidArgumentError: for indices by array or list, which NumPy calls advanced.
    """
    entries = index if isinstance(index, tuple) else (index,)
    dots = sum(entry is Ellipsis for entry in entries)
    given = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if dots > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if given > len(shape):
        raise IndexError(f"too many indices: the leaf has {counted(len(shape), 'axis', 'axes')}, {given} were indexed")
    starts: list[int] = []
    lens: list[int] = []
    then: list[int | slice | EllipsisType | None] = []
    for entry in entries if dots else (*entries, Ellipsis):
        axis = len(starts)
        if entry is None:
            then.append(None)
        elif entry is Ellipsis:
            rest = shape[axis : axis + len(shape) - given]
            starts += [0] * len(rest)
            lens += rest
            # Add the ellipsis only if the caller wrote one: after integer indices for all axes, it
            # turns a scalar into an array.
            then += [Ellipsis] if dots else [slice(None)] * len(rest)
        elif isinstance(entry, slice):
            steps = range(*entry.indices(shape[axis]))
            low, high = (min(steps[0], steps[-1]), max(steps[0], steps[-1]) + 1) if steps else (0, 0)
            starts.append(low)
            lens.append(high - low)
            then.append(slice(None, None, steps.step))
        else:
            at = _integer(entry)
            if not -shape[axis] <= at < shape[axis]:
                raise IndexError(f"index {at} is out of bounds for axis {axis} with size {shape[axis]}")
            starts.append(at % shape[axis])
            lens.append(1)
            then.append(0)
    return BasicRegion(tuple(starts), tuple(lens), tuple(then), tuple(lens) == shape)


def _integer(entry: Any) -> int:
    try:
        if not isinstance(entry, (bool, np.bool_)):
            return operator.index(entry)
    except TypeError:
        pass
    help = "read it first: leaf[...][index]"
    raise failure(
        InvalidArgumentError,
        f"a lazy leaf is indexed by integers, slices, None and ..., not {type(entry).__name__}",
        help=help,
    )


class Checkpoint(Mapping[str, Leaf]):
    """An opened checkpoint of any layout: a mapping of key paths to lazy leaves. Only metadata has
    been read.

    Every leaf is there once. Leaves whose key paths print as the same text, as in ``{"a": {"b": x}, "a/b":
    y}``, go by their stored names instead, or by key paths that quote each key: ``['a/b']``.
    """

    def __init__(self, native: _native.Checkpoint) -> None:
        self._native = native
        self._item_kinds = dict(native.items)
        """The items that an index can name; none of a part of a checkpoint."""

    @functools.cached_property
    def _by_path(self) -> dict[str, int]:
        """The leaves by key path; made at the first use, because `load` does not need them."""
        keys = self._native.keys()
        return dict(zip(keys, range(len(keys)), strict=True))

    def __getitem__(self, path: str) -> Any:
        """The leaf of a key path (``params/dense/kernel``) or of a stored name; the subtree of a
        shorter key path, or the item of a name.

        A subtree is a `Checkpoint` too, with key paths relative to the subtree:
        ``checkpoint["params"].load(like=params)``. An item of files is returned as `Files`.

        Raises:
            LeafNotFoundError: if the checkpoint has none of them, or several leaves have the key
                path; the error names their keys.
        """
        if not isinstance(path, str):
            raise TypeError(f"a checkpoint is indexed by key path, a str, not by {type(path).__name__}")
        if self._is_indexed and path in self._by_path:
            return Leaf(self._native, self._by_path[path])
        try:
            return Leaf(self._native, self._native.find(path))
        except (InvalidArgumentError, NotFoundError) as error:
            absent = error
        try:
            return part_of(self._native.at(path))
        except (InvalidArgumentError, NotFoundError):
            found = self._item(*path.split("/", 1))
            if found is not None:
                return found
            items = f"; the items are: {', '.join(self._item_kinds)}" if self._item_kinds else ""
            raise LeafNotFoundError(
                absent.message + items, file=absent.file, leaf=path, help=f"{absent.help or ''}{items}"
            ) from None

    def _item(self, name: str, path: str | None = None) -> Any:
        """The item of this name, or its part at a path; `None` if there is no such item. For
        checkpoints whose key paths do not begin with the item's name.
        """
        trees = [each for each, kind in self._item_kinds.items() if not kind.startswith(("files: ", "metrics"))]
        if name in self._item_kinds and _load.holds_files(self._native, name):
            if path is None:
                return files_of(self._native, name)
            raise failure(
                LeafNotFoundError,
                f"the item {name!r} is files, not a pytree",
                leaf=f"{name}/{path}",
                help=f"read all of its files with checkpoint[{name!r}]",
            )
        # If there is only one tree, its key paths do not begin with its name.
        if trees != [name]:
            return None
        whole = part_of(self._native)
        return whole if path is None else whole[path]

    @property
    def _is_indexed(self) -> bool:
        return "_by_path" in self.__dict__

    def __contains__(self, path: object) -> bool:
        return path in self._by_path

    def __iter__(self) -> Iterator[str]:
        if not self._is_indexed:
            # Finding the first few keys does not need an index.
            first = self._native.first_keys(FIRST_PATHS)
            if first is not None:
                yield from first
                yield from itertools.islice(self._by_path, len(first), None)
                return
        yield from self._by_path

    def __len__(self) -> int:
        return self._native.leaf_count

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        about = f"{self.layout} ({self.variant})" if self.variant else self.layout
        return f"<regrow.Checkpoint {str(self.path)!r}: {printable(about)}, {counted(len(self), 'leaf', 'leaves')}>"

    def _repr_html_(self) -> str:
        from .._core import _html

        return _html.of_checkpoint(self)

    @property
    def path(self) -> str:
        """The path at which the checkpoint was opened."""
        return self._native.path

    @property
    def layout(self) -> str:
        """Name of the layout: ``regrow``, ``orbax``, ``safetensors``."""
        return self._native.layout

    @property
    def variant(self) -> str:
        """The variant of the layout: ``ocdbt, zarr v3``."""
        return self._native.variant

    @property
    def tree(self) -> Any:
        """The structure with lazy leaves: the same containers as `regrow.load` returns."""
        register_nodes()
        leaves = [Leaf(self._native, at) for at in range(len(self))]
        return unflatten(self._native.structure, leaves)

    @property
    def metadata(self) -> Any:
        """The user's own metadata, if any."""
        return _from_json(self._native.metadata)

    @property
    def metrics(self) -> Any:
        """Metrics saved with a step, if any."""
        return _from_json(self._native.metrics)

    @property
    def step(self) -> int | None:
        """The step that was opened, for a folder of steps."""
        return self._native.step

    @property
    def steps(self) -> list[int]:
        """All committed steps, for a folder of steps."""
        return self._native.steps

    @property
    def items_info(self) -> list[Item]:
        """The items of a checkpoint of several items."""
        return [Item(name, kind) for name, kind in self._native.items]

    @property
    def notes(self) -> list[str]:
        """Notes for a reader that are not errors."""
        return self._native.notes

    @property
    def warnings(self) -> list[str]:
        """The lost files of a checkpoint that can still be read. `open` warned of each."""
        return self._native.warnings

    def overview(self) -> Overview:
        """The checkpoint on one page: layout, step, metadata, sizes, shardings, largest leaves."""
        return Overview(self._native.overview())

    def verify(self, *, progress: Progress = None) -> VerifyReport:
        """Reads and checks everything; see `regrow.verify`. For a subtree: the leaves of the
        subtree, and all files.
        """
        with Watch(progress, "verifying") as watch:
            return VerifyReport.from_native(self._native.verify(watch))

    @keywords
    def load(
        self,
        like: Any = None,
        *,
        at: str | None = None,
        only: str | Iterable[str] | None = None,
        rename: Mapping[str, str] | None = None,
        rules: StrPath | None = None,
        cast: Any = None,
        lossy: bool = False,
        missing: _load.Missing = "error",
        extra: _load.Extra = "error",
        classes: Literal["dict"] | None = None,
        shardings: Any = None,
        progress: Progress = None,
        options: Options | None = None,
    ) -> Any:
        """Loads the whole checkpoint or a selection; see `regrow.load`.

        Args:
            like: A template, as for `regrow.load`, like all that follows.
            at: The key path of a subtree.
            only: Globs over key paths.
            rename: Regular expressions over whole key paths, and the key paths of the result.
            rules: A TOML file of rules.
            cast: A dtype, or a dict of globs over key paths.
            lossy: Let casts change values beyond rounding.
            missing: With ``"keep"``, leaves of `like` that are not in the checkpoint stay as they
                are.
            extra: With ``"drop"``, leaves of the checkpoint that are not in `like` are not read.
            classes: With ``"dict"``, nodes and named tuples become dicts.
            shardings: Make JAX arrays.
            progress: As for `regrow.save`.
            options: Rare settings; not those of the opening.
        """
        asked = _load.Loading(
            at=at, only=only, rename=rename, rules=rules, cast=cast, lossy=lossy, missing=missing, extra=extra,
            classes=classes, shardings=shardings, progress=progress,
        )  # fmt: skip
        with posts_errors(options, self._native.path):
            rare = _options.chosen(options, "load")
            report = _arguments.function("on_report", rare.on_report)
            asked = asked.with_rules()
        stages = Stages(report is not None)
        with Together(self._native.path, rare, stages) as together:
            wishes = asked.wishes(rare, together, stages)
            view = asked.view_of(self._native)
            loaded = together.in_turn(lambda: _load.load(view, like, wishes))
        if report is not None:
            report(stages.report(self._native.path))
        return loaded


class Overview(str):
    """A checkpoint on one page. A notebook or a terminal shows it as text, shortened if long."""

    __slots__ = ()

    def __repr__(self) -> str:
        return shortened(self)

    def _repr_html_(self) -> str:
        from .._core import _html

        return _html.of_text(shortened(self))


@readable
class VerifyReport(NamedTuple):
    """The report of `regrow.verify`."""

    findings: list[Finding]
    """All findings; empty if the checkpoint is sound."""
    checked_bytes: int
    """Bytes of data checked, decoded."""
    leaf_count: int
    """Leaves read."""
    has_data_checksums: bool
    """Whether checksums cover every data byte. If not, damage to array data can go unseen."""
    notes: Sequence[str] = ()
    """Notes. A sound checkpoint can have notes."""
    unprotected_bytes: int = 0
    """Bytes of array data, decoded, without a checksum. `regrow.protect.seal` writes checksums for
    them.
    """
    signer: str | None = None
    """The trusted key that signed the checkpoint, as hex digits; `None` if the call requires no
    signature.
    """
    unprotected_files: Sequence[tuple[str, int]] = ()
    """The `unprotected_bytes` of each file. For small arrays in an OCDBT index, the checkpoint
    stands in place of the file.
    """
    step: int | None = None
    """The step that was verified, of a folder of steps."""

    @property
    def ok(self) -> bool:
        """Whether the checkpoint has no findings."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.ok:
            leaves, checked = counted(self.leaf_count, "leaf", "leaves"), counted(self.checked_bytes, "byte", "bytes")
            return f"sound: {leaves}, {checked} checked"
        return "\n".join(messages_of(self.findings))

    def _repr_html_(self) -> str:
        from .._core import _html

        return _html.of_verify(self)

    @classmethod
    def from_native(cls, report: tuple[Any, ...]) -> VerifyReport:
        """From the native half's columns."""
        findings, *others = report
        return cls([Finding(*finding) for finding in findings], *others)


def _from_json(text: str | None) -> Any:
    import json

    return None if text is None else json.loads(text)


def files_of(native: _native.Checkpoint, item: str) -> Any:
    """The `Files` of an item."""
    from .._save._item_kinds import Files  # imports `pathlib`

    return Files(dict(native.item_files(item)))


def part_of(native: _native.Checkpoint) -> Checkpoint:
    """A checkpoint that is a part of another one: it has no items."""
    part = Checkpoint(native)
    part._item_kinds = {}
    return part
