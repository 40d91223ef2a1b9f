"""`safetensors.numpy`'s functions: dicts of NumPy arrays. JAX arrays may be saved, too."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .._core._location import StrPath
from . import _save
from ._frameworks import reads
from ._open import Tensors, check_backend
from ._open import safe_open as safe_open
from ._raw import DTYPES, TensorSpec
from ._raw import deserialize as deserialize
from ._raw import serialize as serialize
from ._raw import serialize_file as serialize_file

__all__ = ["load", "load_file", "save", "save_file"]


def save(
    tensor_dict: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    *,
    sep: str | None = None,
    align: int = 8,
) -> bytes:
    """Returns the bytes of a safetensors file, the same bytes that safetensors returns.

    Args:
        tensor_dict: Arrays by name. Any strides and byte order; with `sep` any pytree of arrays.
        metadata: Text by name, kept in this order.
        sep: Join the keys of a tree with this.
        align: The data begins at a multiple of this many bytes, a power of two.

    Raises:
        SafetensorError: for a dtype that safetensors does not have, or two tensors of the same
            name.
        TypeError: for a value that is no array, or a name that is no `str`.
    """
    return _save.to_bytes(tensor_dict, metadata, sep, align)


def save_file(
    tensor_dict: Mapping[str, Any],
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    sep: str | None = None,
    align: int = 8,
    max_shard_size: int | str | None = None,
    durable: bool = True,
) -> None:
    """Saves arrays as a safetensors file, with the same bytes as safetensors: the whole file or
    nothing, synced to disk.

    An existing file of that name is replaced.

    Args:
        tensor_dict: Arrays by name. Any strides and byte order; with `sep` any pytree of arrays.
        filename: The file. Its folder is created if it is missing.
        metadata: Text by name, kept in this order.
        sep: Join the keys of a tree with this.
        align: The data begins at a multiple of this many bytes, a power of two (4096: a page).
        max_shard_size: Create a folder at `filename` with ``model.safetensors.index.json`` and
            files of at most this size (``"5GB"`` or bytes).
        durable: Sync to disk before returning.

    Raises:
        SafetensorError: for a dtype that safetensors does not have, or two tensors of the same
            name.
        TypeError: for a value that is no array, or a name that is no `str`.
        StorageFullError, PermissionDeniedError: an existing file is unchanged.
    """
    _save.to_file(tensor_dict, filename, metadata, sep, align, max_shard_size, durable)


def load(data: bytes, *, nested: bool = False, sep: str = ".", copy: bool = True) -> dict[str, Any]:
    """Loads the arrays from the bytes of a safetensors file.

    Args:
        data: The file's bytes.
        nested: Split the names at `sep`, and return nested dicts.
        sep: The separator.
        copy: With ``False``, the arrays are read-only views of `data`.

    Raises:
        SafetensorError: if the bytes break the rules of safetensors.
    """
    return loaded(Tensors.of_bytes(data, sep if nested else None), nested, copy)


def load_file(
    filename: StrPath,
    *,
    backend: str = "mmap",
    nested: bool = False,
    sep: str = ".",
    copy: bool = True,
) -> dict[str, Any]:
    """Loads the arrays of a safetensors file.

    Args:
        filename: The file. Also ``model.safetensors.index.json``, or a folder with one.
        backend: Accepted for compatibility with safetensors.
        nested: Split the names at `sep`, and return nested dicts.
        sep: The separator.
        copy: With ``False``, the arrays are read-only views of the file.

    Raises:
        SafetensorError: if the file breaks the rules of safetensors.
        FileNotFoundError: if the file does not exist.
    """
    check_backend(backend)
    return Tensors.read(filename, sep if nested else None, lambda tensors: loaded(tensors, nested, copy))


def loaded(tensors: Tensors, nested: bool, copy: bool, framework: str = "numpy") -> dict[str, Any]:
    """Returns all tensors, as a flat dict or as nested dicts."""
    read = reads(tensors, framework, "cpu", copy)
    tree: dict[str, Any] = tensors.tree(read.convert) if nested else read.all()
    return tree


# ---- names that are private there, and that others import -----------------------------


_TYPES: dict[str, Any] = {tag: dtype.type for tag, dtype in DTYPES.items()}


def _getdtype(dtype_str: str) -> Any:
    """The NumPy type for the name of a dtype in the file."""
    return _TYPES[dtype_str]


def _is_little_endian(tensor: np.ndarray[Any, Any]) -> bool:
    order = tensor.dtype.byteorder
    return order in "|<" or (order == "=" and sys.byteorder == "little")


def _flatten(tensor_dict: Mapping[str, np.ndarray[Any, Any]], keep_alive_buffer: list[Any]) -> dict[str, TensorSpec]:
    """The address of each array. An array whose bytes are not as in a file is copied into
    `keep_alive_buffer`.
    """
    out = {}
    for name, array in tensor_dict.items():
        lying = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        if not np.may_share_memory(lying, array):
            keep_alive_buffer.append(lying)
        out[name] = TensorSpec(
            dtype=lying.dtype.name, shape=lying.shape, data_ptr=lying.ctypes.data, data_len=lying.nbytes
        )
    return out


def _view2np(safeview: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, np.ndarray[Any, Any]]:
    """The result of `deserialize`, as arrays in the memory of its bytes."""
    return {
        name: np.frombuffer(tensor["data"], _getdtype(tensor["dtype"])).reshape(tensor["shape"])
        for name, tensor in safeview
    }
