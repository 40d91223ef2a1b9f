"""Writing: a dict of arrays, or a tree of them, to a file or to bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _native
from .._core._location import StrPath, place
from .._core._progress import unwatched
from .._errors import InvalidArgumentError
from .._leaves._columns import JAX_ARRAY, NUMPY_ARRAY, NUMPY_OTHER, NUMPY_SCALAR, LeafColumns, to_native
from .._save._writing import Writing
from .._tree._flatten import DICT, LEAF, ORDERED_DICT, Flat, flatten, path_text
from ..layouts import Safetensors
from ._errors import as_safetensor_errors


def to_file(
    tensors: Any,
    filename: StrPath,
    metadata: Any,
    sep: str | None,
    align: int,
    max_shard_size: int | str | None,
    durable: bool,
) -> None:
    """Writes a file, or with `max_shard_size` a folder of files. Replaces an existing one."""
    with as_safetensor_errors(writing=True):
        flat, leaves = prepared(tensors, sep)
        writing = told(metadata, sep, align, max_shard_size, durable=durable)
        request = writing.request(None, alone=True)
        _native.save(place("filename", filename), flat.structure, leaves, request, unwatched())


def to_bytes(tensors: Any, metadata: Any, sep: str | None, align: int) -> bytes:
    """Returns the bytes of the file."""
    with as_safetensor_errors():
        flat, leaves = prepared(tensors, sep)
        writing = told(metadata, sep, align, None)
        return _native.safetensors_bytes(flat.structure, leaves, writing.request(None, alone=True))


def prepared(tensors: Any, sep: str | None) -> tuple[Flat, LeafColumns]:
    """Returns the tree in columns. All its leaves are arrays.

    Raises:
        TypeError: for a key that is no `str`, a leaf that is no array, or a tree where a flat dict
            is required.
    """
    if sep is None:
        if not isinstance(tensors, Mapping):
            raise TypeError(f"pass tensors as a dict of arrays by name, not as {type(tensors).__name__}")
        for name in tensors:
            if not isinstance(name, str):
                raise TypeError(f"the name of a tensor is a str, not {name!r}")
        tensors = dict(tensors)
    flat = flatten(tensors)
    if sep is None and any(kind not in (LEAF, DICT, ORDERED_DICT) for kind in flat.structure.node_kinds):
        _refuse_tree()
    if sep is None and len(flat.structure.node_kinds) != len(flat.leaves) + 1:
        _refuse_tree()
    leaves = to_native(flat)
    for at, kind in enumerate(leaves.kinds):
        if kind not in (NUMPY_ARRAY, NUMPY_SCALAR, JAX_ARRAY, NUMPY_OTHER):
            what = type(flat.leaves[at]).__name__
            raise TypeError(f"{path_text(flat.structure, at)!r} is not an array but of type {what}")
    return flat, leaves


def _refuse_tree() -> None:
    raise TypeError('pass a dict of arrays by name, or sep="." to join the keys of a tree')


def told(
    metadata: Any, sep: str | None, align: int, max_shard_size: int | str | None, *, durable: bool = True
) -> Writing:
    """Returns the options of a save. The save replaces any file of the name, and escapes dtypes
    that safetensors does not have. The drop-in reads them back.
    """
    if metadata is not None:
        if not isinstance(metadata, Mapping):
            raise TypeError(f"metadata is a dict of str, not {type(metadata).__name__}")
        for name, text in metadata.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise TypeError(f"metadata is a dict of str to str, and {name!r}: {text!r} is not")
        metadata = dict(metadata)
    if sep == "":
        raise InvalidArgumentError("sep is empty, so names could be ambiguous")
    layout = Safetensors(
        structure=False,
        align=align,
        one_file=max_shard_size is None,
        max_shard_bytes=max_shard_size,
        separator="." if sep is None else sep,
    )
    return Writing(layout=layout, metadata=metadata, overwrite="any file", durable=durable, lossy=True)
