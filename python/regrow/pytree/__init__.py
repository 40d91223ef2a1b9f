"""Models as `STEM.data` and `STEM.manifest`: the functions of gemma.cpp's Python tools, on regrow's
engine.

    from regrow import pytree

    size, seconds = pytree.model_save(params, "runs/gemma")
    params = pytree.model_load("runs/gemma")  # private views of the file
    pytree.model_overview(params)

A model is a tree of dicts with any keys that Python can print and read again, and with NumPy or JAX
arrays as leaves; or a single array. Both files are written under a temporary name, synced, and
renamed: the data first, the manifest last. Everything that a manifest says is checked before an
array is made.

The functions have the names, arguments and results of the original. Some cases in which the
original fails or loses data work here: manifests of NumPy 2 load, suffixes are honoured, a
transform is called once, conflicts of paths are errors, summaries of arrays that are not contiguous
work.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TextIO

import ml_dtypes
import numpy as np

from .. import _native
from .._core import _install
from .._core._location import StrPath, place
from .._core._progress import unwatched
from .._errors import (
    InvalidArgumentError,
    LeafTypeError,
    LimitError,
    RegrowError,
    ReplacedError,
    UnsupportedError,
    failure,
)
from .._leaves._columns import NUMPY_ARRAY, NUMPY_OTHER, dtype_numbers
from .._save._writing import Writing
from .._text import printable
from .._tree._flatten import flatten
from ..layouts import PytreeData
from ._walk import (
    InvalidTreeNodeError,
    NotAMLModelTreeNodeError,
    RevTuplePath,
    deep_freeze,
    everything_is_a_leaf_node_handler,
    immutabledict,
    leaf_summary,
    linearize_revtuple_path,
    pytree_leaf_iter,
    pytree_map,
    revtuple_autovifify_from_linear,
    type_name,
)

__all__ = [
    "InvalidTreeNodeError",
    "NotAMLModelTreeNodeError",
    "deep_freeze",
    "everything_is_a_leaf_node_handler",
    "immutabledict",
    "install",
    "leaf_summary",
    "linearize_revtuple_path",
    "ml_model_leaf_summary",
    "ml_model_node_handler",
    "model_contents",
    "model_load",
    "model_overview",
    "model_save",
    "pytree_leaf_iter",
    "pytree_map",
    "revtuple_autovifify_from_linear",
]

Path = tuple[Any, ...]
Array = np.ndarray[Any, Any]

DATA_SUFFIX = ".data"
MANIFEST_SUFFIX = ".manifest"


# ---- trees of dicts and arrays --------------------------------------------------------


def ml_model_node_handler(
    revtuple_path: RevTuplePath, node: Any
) -> tuple[Callable[[list[Any]], Any], Iterator[tuple[Any, Any]]] | None:
    """Opens dicts. Arrays are leaves.

    Raises:
        NotAMLModelTreeNodeError: for anything else.
    """
    if isinstance(node, dict):
        keys = list(node)
        return lambda values: dict(zip(keys, values, strict=True)), iter(node.items())
    if isinstance(node, np.ndarray) or _is_jax_array(node):
        return None
    path = linearize_revtuple_path(revtuple_path)
    raise NotAMLModelTreeNodeError(f"The node at {path!r} is a {type_name(node)}, neither a dict nor an array.")


def _is_jax_array(node: Any) -> bool:
    array_type = getattr(sys.modules.get("jax"), "Array", None)
    return array_type is not None and isinstance(node, array_type)


def _leaves(tree: Any) -> Iterator[tuple[Path, Any]]:
    return pytree_leaf_iter(tree, lambda path, leaf: (linearize_revtuple_path(path), leaf), ml_model_node_handler)


def _empty_dicts(tree: Any) -> list[Path]:
    """Returns the paths of empty dicts below the root."""
    found: list[Path] = []

    def handler(path: RevTuplePath, node: Any) -> Any:
        if path and isinstance(node, dict) and not node:
            found.append(linearize_revtuple_path(path))
        return ml_model_node_handler(path, node)

    for _ in pytree_leaf_iter(tree, lambda _path, _leaf: None, handler):
        pass
    return found


def model_contents(tree: Any) -> dict[Path, Any]:
    """The arrays of a model by their paths, in the order of the tree."""
    return dict(_leaves(tree))


# ---- summaries ------------------------------------------------------------------------

_PATH_COLUMNS = 60
_START_ITEMS = 5


def ml_model_leaf_summary(revtuple_path: RevTuplePath, x: Any, sep: str = ", ") -> str:
    """One line about an array: type, SHA-256 of its bytes, statistics, shape, dtype, first items.

    A value without such statistics (text, bfloat16, an empty array, a value that is no array) is
    shown by its `repr`.
    """
    place = ",".join(map(repr, linearize_revtuple_path(revtuple_path)))
    about = _array_summary(x, sep) or f"{type_name(x)}({x!r})"
    return f"{place:<{_PATH_COLUMNS}}: {about}"


def _array_summary(x: Any, sep: str) -> str | None:
    if not (isinstance(x, np.ndarray) or _is_jax_array(x)):
        return None
    array = np.asarray(x)
    # Dtypes of ml_dtypes (`isbuiltin == 2`) may have the kind of floats.
    if array.dtype.kind not in "biufc" or array.dtype.isbuiltin == 2 or not array.size:
        return None
    fingerprint = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
    with np.errstate(all="ignore"):
        statistics = (("min", array.min()), ("max", array.max()), ("mean", array.mean()), ("std", array.std()))
    numbers = ", ".join(f"{name}={value:.6g}" for name, value in statistics)
    start = ", ".join(_start(array))
    parts = (
        type_name(x),
        f"fp=0x{fingerprint}",
        numbers,
        f"shape={array.shape!r}, dtype={array.dtype}",
        f"start=[{start}]",
    )
    return f"<{sep.join(parts)}>"


def _start(array: Array) -> list[str]:
    """The first items in C order, as NumPy 1 prints scalars."""
    return [_number_text(item) for item in itertools.islice(array.flat, _START_ITEMS)]


def _number_text(item: Any) -> str:
    """The text of a number. Only for large float16 numbers does NumPy 2 print fewer digits than
    NumPy 1.
    """
    if isinstance(item, np.float16) and 1000 <= abs(item) < np.inf:
        return np.format_float_positional(item, unique=True, trim="0")
    return str(item)


def model_overview(tree: Any, out: TextIO | None = None) -> None:
    """Prints a line for each array of a model to `out`, or to the standard output."""
    for line in pytree_leaf_iter(tree, ml_model_leaf_summary, ml_model_node_handler):
        print(printable(line), file=out)


# ---- saving ---------------------------------------------------------------------------


class _Stored(NamedTuple):
    """An array that is being saved; `nbytes` is its length in the file."""

    path: Path
    array: Array
    nbytes: int


def model_save(
    tree: Any,
    filepath_stem: StrPath,
    data_suffix: str = DATA_SUFFIX,
    manifest_suffix: str | None = MANIFEST_SUFFIX,
    key: Callable[[Path], Any] | None = None,
    array_transform_by_pytree_key: Mapping[Path, Callable[[Array], Any]] | None = None,
    report: Callable[[str], Any] | None = None,
    byte_align: int = 8,
    *,
    native_dtypes: bool = False,
    extra_keys: bool = True,
    overwrite: bool = True,
    durable: bool = True,
) -> tuple[int, float]:
    """Saves a model as a data file and a manifest: both files or neither, synced to disk.

    Args:
        tree: Dicts with arrays in them, or one array.
        filepath_stem: The beginning of both file names.
        data_suffix: The end of the data file's name.
        manifest_suffix: The end of the manifest's name; `None` for no manifest.
        key: Returns a sort key for a path. Arrays are written in this order; arrays with equal keys
            keep the order of the tree. An array is left out if the key of its path is `None`.
        array_transform_by_pytree_key: By path, a function that converts the array before it is
            written. Each is called once.
        report: Called with some lines of text about each array.
        byte_align: Each array begins at a multiple of this.
        native_dtypes: Keep bfloat16, float8 and similar dtypes under their own names, which the
            original cannot read. Otherwise bfloat16 becomes float32 and the others are refused.
        extra_keys: Keep checksums and empty dicts in keys of the manifest that the original
            ignores. Without them both files are those of the original under NumPy 1, byte for byte.
        overwrite: Replace existing files, as the original does.
        durable: Sync to disk before returning.

    Returns:
        The size of the data, padding included, and the seconds it took.

    Raises:
        NotAMLModelTreeNodeError: if a node of the tree is neither a dict nor an array.
        RegrowError: for dtypes and keys that cannot be stored; the old files are then unchanged.
    """
    since = time.monotonic()
    if byte_align < 1:
        raise InvalidArgumentError(f"byte_align={byte_align} is less than 1")
    empty = _empty_dicts(tree)
    contents = _in_order(tree, key)
    _refuse_too_deep(itertools.chain((len(path) for path, _ in contents), (len(path) + 1 for path in empty)))
    stored = [_prepare(path, leaf, array_transform_by_pytree_key, native_dtypes) for path, leaf in contents]
    size = 0
    for path, array, nbytes in stored:
        size += -(-nbytes // byte_align) * byte_align
        if report is not None:
            report(_report_text(path, array, nbytes))
    layout = PytreeData(
        paths=[repr(item.path) for item in stored],
        empty=[repr(path) for path in empty] if stored else [],
        byte_align=byte_align,
        native_dtypes=native_dtypes,
        extra_keys=extra_keys,
        manifest=manifest_suffix is not None,
        data_suffix=data_suffix,
        manifest_suffix=MANIFEST_SUFFIX if manifest_suffix is None else manifest_suffix,
    )
    _native.save(
        place("filepath_stem", filepath_stem),
        flatten([item.array for item in stored]).structure,
        _columns(stored),
        Writing(
            layout=layout,
            overwrite="any file" if overwrite else False,
            durable=durable,
            # The original changes values without a warning.
            lossy=True,
        ).request(None, alone=True),
        unwatched(),
    )
    return size, time.monotonic() - since


def _refuse_too_deep(depths: Iterable[int]) -> None:
    """Refuses a tree that could not be loaded again. `depths` is the number of dicts around each
    leaf.
    """
    depth = max(depths, default=0)
    if depth > _native.TREE_DEPTH_MAX:
        raise LimitError(f"the model is nested {depth} levels deep: at most {_native.TREE_DEPTH_MAX} can be loaded")


def _in_order(tree: Any, key: Callable[[Path], Any] | None) -> list[tuple[Path, Any]]:
    leaves = list(_leaves(tree))
    if key is None:
        return leaves
    placed = [(key(path), path, leaf) for path, leaf in leaves]
    placed = [item for item in placed if item[0] is not None]
    placed.sort(key=lambda item: item[0])
    return [(path, leaf) for _, path, leaf in placed]


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def _prepare(path: Path, leaf: Any, transforms: Mapping[Path, Any] | None, native: bool) -> _Stored:
    array = np.asarray(leaf)
    transform = (transforms or {}).get(path)
    if transform is not None:
        # Widen before the transform, as the original does.
        widened = array.astype(np.float32) if array.dtype == _BFLOAT16 and not native else array
        array = np.asarray(transform(widened))
    if array.dtype.hasobject:
        raise failure(
            LeafTypeError,
            f"the array at {path!r} holds Python objects, which cannot be stored",
            first_leaf="/".join(map(str, path)),
            help="convert it to an array of numbers or text",
        )
    is_widened = array.dtype == _BFLOAT16 and not native
    return _Stored(path, array, array.nbytes * (2 if is_widened else 1))


def _report_text(path: Path, array: Array, nbytes: int) -> str:
    start = ", ".join(_start(array) if array.dtype != _BFLOAT16 else _start(_widened_start(array)))
    return f"# Adding: {path!r}\n  bytes: {nbytes:>10}, shape: {array.shape!r:<30},\n  start: [{start}, ...]"


def _widened_start(array: Array) -> Array:
    return np.asarray(list(itertools.islice(array.flat, _START_ITEMS)), np.float32)


def _columns(stored: list[_Stored]) -> tuple[bytes, list[Any], dict[int, str], dict[int, str]]:
    """Returns the arrays as columns for the engine. Numbers stay as they are. All other arrays
    become bytes with their type string.
    """
    kinds = bytearray()
    values: list[Any] = []
    notes: dict[int, str] = {}
    for at, (_, array, _) in enumerate(stored):
        if array.dtype in dtype_numbers():
            kinds.append(NUMPY_ARRAY)
            values.append(array)
            continue
        # This also describes arrays of other byte orders, whose bytes are written unchanged.
        descr = np.lib.format.dtype_to_descr(array.dtype)
        notes[at] = descr if isinstance(descr, str) else repr(descr)
        kinds.append(NUMPY_OTHER)
        raw = np.frombuffer(array.tobytes(), np.uint8)
        values.append(raw.reshape(*array.shape, array.dtype.itemsize))
    return bytes(kinds), values, notes, {}


# ---- loading --------------------------------------------------------------------------

_ACCESS = {"r": mmap.ACCESS_READ, "c": mmap.ACCESS_COPY, "r+": mmap.ACCESS_WRITE}


def model_load(
    filepath_stem: StrPath,
    mmapped: bool = True,
    *,
    mode: Literal["c", "r", "r+"] = "c",
    verify: bool = True,
    data_suffix: str = DATA_SUFFIX,
    manifest_suffix: str = MANIFEST_SUFFIX,
) -> Any:
    """Loads a model that `model_save`, or the original's `model_save`, has saved.

    Args:
        filepath_stem: The beginning of both file names.
        mmapped: Return views of the file. Otherwise each array has its own memory.
        mode: The effect of a change to a view. ``"c"``: it changes this program's copy of the page
            and never the file. ``"r"``: NumPy refuses it. ``"r+"``: it changes the file, as in the
            original.
        verify: Check the data against the manifest's checksums, if it has any.
        data_suffix: The end of the data file's name, if the manifest does not contain it.
        manifest_suffix: The end of the manifest's name.

    Raises:
        NotFoundError: if one of the files is missing.
        CorruptError: if the data does not fit the manifest.
    """
    if mode not in _ACCESS:
        raise InvalidArgumentError(f'mode={mode!r} is not "c", "r" or "r+"')
    stem = _native.local_path(place("filepath_stem", filepath_stem))
    manifest = stem + manifest_suffix

    def replaced() -> ReplacedError:
        return ReplacedError(f"{manifest} was replaced while it was being read", file=manifest)

    def read(_: _native.Attempt) -> tuple[Any, list[Any], list[str]]:
        before = _native.pytree_identity(stem, manifest_suffix)
        try:
            data, entries, empty = _native.pytree_entries(stem, data_suffix, manifest_suffix, verify)
            memory = _map(data, mode if mmapped else "r")
        except (RegrowError, OSError) as error:
            # The manifest was absent before and after. One writer may have ended in between, and
            # another begun.
            if before is None:
                is_replaced = _native.pytree_appears(stem, manifest_suffix)
            else:
                is_replaced = _native.pytree_identity(stem, manifest_suffix) != before
            if is_replaced:
                raise replaced() from error
            raise
        # If the manifest still exists, it belongs to the mapped data: a save removes the manifest
        # before the data.
        if before is None or _native.pytree_identity(stem, manifest_suffix) != before:
            raise replaced()
        return memory, entries, empty

    memory, entries, empty = _native.read_unreplaced(read)
    tree = revtuple_autovifify_from_linear(
        (path, _array(memory, entry, mmapped))
        for path, entry in zip(_paths([entry[0] for entry in entries]), entries, strict=True)
    )
    for path in _paths(empty):
        at = tree
        for key in path:
            at = at.setdefault(key, {})
    return tree


def _map(path: str, mode: str) -> Any:
    with open(path, "r+b" if mode == "r+" else "rb") as file:
        # An empty file cannot be mapped. All its arrays are empty.
        if not os.fstat(file.fileno()).st_size:
            return bytearray()
        try:
            return mmap.mmap(file.fileno(), 0, access=_ACCESS[mode])
        except OSError as error:
            if mode == "r+":
                raise failure(
                    UnsupportedError,
                    f"cannot map {path} for writing: {error.strerror}",
                    file=path,
                    help='the file system has no shared maps; use mode="c", and save what you change',
                ) from error
        data = file.read()
        return data if mode == "r" else bytearray(data)


def _paths(literals: list[str]) -> list[Path]:
    """The key paths for texts of the engine, parsed in one call."""
    paths: list[Path] = _native.literal(f"[{','.join(literals)}]")
    return paths


def _array(memory: Any, entry: tuple[str, str, tuple[int, ...], int], mmapped: bool) -> Array:
    _, dtype, shape, offset = entry
    array: Array = np.ndarray(shape, np.dtype(dtype), memory, offset)
    return array if mmapped else array.copy()


# ---- in the original's place ----------------------------------------------------------


def install() -> None:
    """Registers this module as ``ml_model_transforms``, for all later imports of that name.

    Raises:
        RuntimeError: if the program has already imported the original: modules that imported its
            functions keep them.
    """
    _install.install({"ml_model_transforms": __name__})
