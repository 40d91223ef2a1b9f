"""Writes and reads leaves through file objects, each with the function in the user's
`filter_spec`.
"""

from __future__ import annotations

import copy
import io
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import _native
from .._core._location import place
from .._tree._nodes import PrngKey
from ._likes import (
    Kind,
    Result,
    TreePathError,
    changed_message,
    difference,
    failed_at,
    finish,
    kind_of,
    result_of,
    to_jax,
    tree_path_error,
)
from ._pytrees import IsLeaf, Path, flatten_with_path, imported
from ._records import MAGIC, Options, is_trailer, read_record, to_record, write_record

Call = Callable[[Any, Any], Any]
"""Takes the user's function and a leaf."""

# ---- paths and files ------------------------------------------------------------------


def path_of(path_or_file: Any) -> pathlib.Path | None:
    """The path of a file, by Equinox' rule for suffixes; `None` for a file object."""
    if not isinstance(path_or_file, (str, os.PathLike)):
        return None
    path = pathlib.Path(_native.local_path(place("path_or_file", path_or_file)))
    return path.with_suffix(".eqx") if path.suffix == "" else path


@contextmanager
def file_to_write(path: pathlib.Path | None, file: Any, durable: bool) -> Iterator[Any]:
    """The file object, or a new file for the path. It gets its name when it is complete."""
    if path is None:
        yield file
        return
    staged = _native.StagedFile(os.fspath(path), durable)
    try:
        with open(os.fsdecode(staged.path or ""), "wb") as opened:
            yield opened
        staged.commit()
    finally:
        staged.discard()


@contextmanager
def file_to_read(path: pathlib.Path | None, file: Any) -> Iterator[Any]:
    """The file object, or an opened file for the path, after the line of hyperparameters."""
    if path is None:
        yield file
        return
    with open(path, "rb") as opened:
        if opened.peek(1)[:1] in (b"{", b"["):
            opened.readline()
        yield opened


def rest_of(file: Any) -> str | None:
    """The kind of the next bytes of a file object; `None` at the end. The position of the object
    does not change.
    """
    start = file.read(len(MAGIC))
    if start:
        file.seek(-len(start), io.SEEK_CUR)
    return None if not start or is_trailer(start) else "another record" if start == MAGIC else "more bytes"


# ---- walking --------------------------------------------------------------------------


def for_each(filter_spec: Any, tree: Any, is_leaf: IsLeaf, call: Call) -> Iterator[tuple[Any, list[Any]]]:
    """The parts of `tree`, each covered by one function. Each part has its structure, and the
    results of `call` for its leaves.

    Raises:
        TreePathError: if `call` raises.
    """
    specs = flatten_with_path(filter_spec)
    for path, spec, part in zip(specs.paths, specs.leaves, specs.treedef.flatten_up_to(tree), strict=True):
        flat = flatten_with_path(part, is_leaf)
        values = []
        for below, leaf in zip(flat.paths, flat.leaves, strict=True):
            try:
                values.append(call(spec, leaf))
            except Exception as error:
                inner: Exception = error
                if not isinstance(error, TreePathError):
                    inner = tree_path_error(failed_at(below), below)
                    inner.__cause__ = error
                at = (*path, *(error.path if isinstance(error, TreePathError) else below))
                raise tree_path_error(failed_at(at), at) from inner
        yield flat.treedef, values


def write_all(filter_spec: Any, tree: Any, is_leaf: IsLeaf, call: Call) -> None:
    """Calls the functions, and ignores their results."""
    for _ in for_each(filter_spec, tree, is_leaf, call):
        pass


def read_all(filter_spec: Any, like: Any, is_leaf: IsLeaf, call: Call) -> Any:
    """The tree of the functions' results."""
    parts = [treedef.unflatten(values) for treedef, values in for_each(filter_spec, like, is_leaf, call)]
    return flatten_with_path(filter_spec).treedef.unflatten(parts)


# ---- single leaves --------------------------------------------------------------------


def write_leaf(options: Options, file: Any, leaf: Any) -> None:
    """Writes the record of a leaf, if it has one."""
    record = to_record(leaf, options)
    if record is not None:
        write_record(file, record)


def read_leaf(options: Options, file: Any, leaf: Any) -> Any:
    """Reads the next record in the form of the leaf, if the leaf has a record."""
    kind = kind_of(leaf, options)
    if kind is Kind.SKIP:
        return leaf
    array = read_record(file)
    if kind is Kind.NUMBER and difference((), result_of(leaf, kind, array.shape, array.dtype, options), leaf):
        raise TypeError(f"a record of dtype {array.dtype} cannot become a {type(leaf).__name__}")
    value = finish(array, leaf, kind)
    return to_jax([value])[0] if kind is Kind.JAX else value


def changed(path: Path, new: Any, old: Any, options: Options) -> str | None:
    """The difference between a read leaf and the leaf of `like`."""
    if kind_of(old, options) is Kind.KEY:
        # The data of a key was checked when the key was made.
        shapes = [key.data.shape if isinstance(key, PrngKey) else getattr(key, "shape", None) for key in (old, new)]
        return None if shapes[0] == shapes[1] else changed_message(path, "shape", *shapes)
    jax = imported("jax")
    if isinstance(new, np.ndarray) or (jax is not None and isinstance(new, jax.Array)):
        return difference(path, Result(type(new), new.shape, new.dtype), old)
    return difference(path, Result(type(new), None, None), old)


# ---- Equinox before 0.11 --------------------------------------------------------------


def or_state_index(is_leaf: IsLeaf) -> Callable[[Any], bool]:
    """Also treats every `StateIndex` as a leaf."""
    return lambda node: _is_state_index(node) or (is_leaf is not None and is_leaf(node))


def _is_state_index(node: Any) -> bool:
    equinox = imported("equinox")
    return equinox is not None and isinstance(node, equinox.nn.StateIndex)


def read_old_state(options: Options, file: Any, index: Any) -> Any:
    """The records that Equinox before 0.11 wrote for a state: whether the state has a value,
    whether the value is one array, and the arrays.
    """
    if not _is_state_index(index):
        return read_leaf(options, file, index)
    if not read_record(file).item():
        return index
    count = None if read_record(file).item() else int(read_record(file).item())
    arrays = to_jax([read_record(file) for _ in range(1 if count is None else count)])
    init = flatten_with_path(index.init)
    made = copy.copy(index)
    value = arrays[0] if count is None else tuple(arrays)
    if len(init.leaves) == len(arrays):
        value = init.treedef.unflatten(arrays)
    object.__setattr__(made, "init", value)
    return made
