"""`safetensors.torch`'s functions: dicts of torch tensors, and modules whose tensors share memory.

If two names of a dict share memory, a file with both names would load as two tensors. `save_file`
raises an error for such names. `save_model` writes one of the names, and lists the other names in
the metadata. `load_model` does not count the other names as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .._core._location import StrPath
from . import _save
from ._open import Tensors, opened
from ._open import safe_open as safe_open
from ._raw import TensorSpec
from ._raw import deserialize as deserialize
from ._raw import serialize as serialize
from ._raw import serialize_file as serialize_file
from ._torch_memory import _end_ptr as _end_ptr
from ._torch_memory import _filter_shared_not_shared as _filter_shared_not_shared
from ._torch_memory import _find_shared_tensors, _remove_duplicate_names
from ._torch_memory import _is_complete as _is_complete
from ._torch_memory import storage_ptr as storage_ptr
from ._torch_memory import storage_size as storage_size
from ._torch_tensors import _SIZE as _SIZE
from ._torch_tensors import _TYPES as _TYPES
from ._torch_tensors import _getdtype as _getdtype
from ._torch_tensors import _to_ndarray, to_numpy, to_torch, torch
from ._torch_tensors import _view2torch as _view2torch

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    *,
    align: int = 8,
) -> bytes:
    """Returns the bytes of a safetensors file.

    Args:
        tensors: Dense, contiguous tensors by name. No two may share memory.
        metadata: Text by name, kept in this order.
        align: The data begins at a multiple of this many bytes, a power of two.

    Raises:
        RuntimeError: if tensors share memory.
        ValueError: for a tensor that is sparse or not contiguous, or a value that is no tensor.
        SafetensorError: for a dtype that safetensors does not have.
    """
    return _save.to_bytes(_arrays(tensors), metadata, None, align)


def save_file(
    tensors: Mapping[str, Any],
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    align: int = 8,
    max_shard_size: int | str | None = None,
    durable: bool = True,
) -> None:
    """Saves tensors as a safetensors file: the whole file or nothing, synced to disk. An existing
    file of that name is replaced.

    Args:
        tensors: Dense, contiguous tensors by name. No two may share memory.
        filename: The file. Its folder is created if it is missing.
        metadata: Text by name, kept in this order.
        align: The data begins at a multiple of this many bytes, a power of two.
        max_shard_size: Create a folder at `filename` with ``model.safetensors.index.json`` and
            files of at most this size (``"5GB"`` or bytes).
        durable: Sync to disk before returning.

    Raises:
        RuntimeError: if tensors share memory.
        ValueError: for a tensor that is sparse or not contiguous, or a value that is no tensor.
        SafetensorError: for a dtype that safetensors does not have.
    """
    _save.to_file(_arrays(tensors), filename, metadata, None, align, max_shard_size, durable)


def load(data: bytes) -> dict[str, Any]:
    """Loads the tensors from the bytes of a safetensors file, on the CPU.

    Raises:
        SafetensorError: if the bytes break the rules of safetensors.
    """
    tensors = Tensors.of_bytes(data)
    return {name: to_torch(tensors.view(at)) for at, name in enumerate(tensors.names)}


def load_file(
    filename: StrPath, device: Any = "cpu", *, backend: str = "mmap", copy: bool | None = None
) -> dict[str, Any]:
    """Loads the tensors of a safetensors file, an index or a folder.

    On the CPU the tensors are in a private map of the file, as in safetensors: data is read at its
    first use, and writes to a tensor do not reach the file. A program that rewrites the file in
    place changes the tensors. regrow and safetensors replace files instead.

    Args:
        filename: The file.
        device: The device of the tensors, in any form that torch accepts.
        backend: With ``"pread"`` the tensors have memory of their own.
        copy: With ``True`` the tensors have memory of their own with either backend, with ``False``
            they are in the map.

    Raises:
        SafetensorError: if the file breaks the rules of safetensors.
        FileNotFoundError: if the file does not exist.
    """
    return opened(filename, "pt", device, backend, copy).all()


def save_model(
    model: Any,
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    durable: bool = True,
) -> None:
    """Saves a module. Of several names that share memory, the file contains one. The metadata maps
    the others to it.

    Args:
        model: A `torch.nn.Module`.
        filename: The file.
        metadata: Text by name. Its entries are not overwritten.
        force_contiguous: Save contiguous copies of tensors that are not contiguous.
        durable: Sync to disk before returning.

    Raises:
        RuntimeError: if tensors share memory and none covers all of it.
        ValueError: without `force_contiguous`, for a tensor that is not contiguous.
    """
    state: dict[str, Any] = dict(model.state_dict())
    for kept, others in _remove_duplicate_names(state).items():
        for name in others:
            metadata = {name: kept, **(metadata or {})}
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        save_file(state, filename, metadata, durable=durable)
    except ValueError as error:
        if force_contiguous:
            raise
        raise ValueError(f"{error} Or use save_model(..., force_contiguous=True).") from error


def load_model(
    model: Any, filename: StrPath, strict: bool = True, device: Any = "cpu", *, backend: str = "mmap"
) -> tuple[set[str], list[str]]:
    """Loads a file into a module.

    Args:
        model: A `torch.nn.Module`.
        filename: The file.
        strict: Raise if the module has tensors that the file does not have, or the reverse.
        device: The device to which the tensors of the file are read.
        backend: Accepted for compatibility with safetensors.

    Returns:
        Names in the module that were not loaded, and names in the file that were not used.

    Raises:
        RuntimeError: with `strict`, if there are such names.
    """
    tensors = load_file(filename, device, backend=backend)
    duplicates = _remove_duplicate_names(model.state_dict(), preferred_names=tensors)
    lacking, spare = model.load_state_dict(tensors, strict=False)
    missing, unexpected = set(lacking), list(spare)
    for names in duplicates.values():
        for name in names:
            if name in missing:
                missing.remove(name)
            else:
                # The file has this name, although it is another name of a tensor that the file
                # already has.
                unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        differences: tuple[tuple[Iterable[str], str], ...] = ((missing, "Missing"), (unexpected, "Unexpected"))
        for keys, what in differences:
            quoted = ", ".join(f'"{name}"' for name in sorted(keys))
            lines += [f"    {what} key(s) in state_dict: {quoted}"] if keys else []
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


def _arrays(tensors: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The engine's columns, in the memory of the tensors if they are on the CPU."""
    _evaluate_tensors_for_save(tensors)
    _check_contiguous(tensors)
    return {name: to_numpy(name, tensor) for name, tensor in tensors.items()}


def _evaluate_tensors_for_save(tensors: Any) -> None:
    """Refuses tensors that cannot be saved. The messages are the original's if other programs
    depend on them.

    Raises:
        ValueError: for anything but a dict of dense tensors.
        RuntimeError: for tensors that share memory.
    """
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support. You can make it"
            " a dense tensor before saving with `.to_dense()` but be aware this might make a much larger file than"
            " needed."
        )
    shared = [sorted(names) for names in _find_shared_tensors(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"Some tensors share memory and would come back as separate tensors: {shared}; use save_model, or save "
            "only one name of each"
        )


def _check_contiguous(tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. Save "
                "`.contiguous()` of it, or, if it is part of another tensor, that one alone."
            )


def _flatten_as_ptr(tensors: Any, keep_alive_buffer: list[Any]) -> dict[str, TensorSpec]:
    """The address of each tensor. Objects that own the memory are added to `keep_alive_buffer`."""
    _evaluate_tensors_for_save(tensors)
    _check_contiguous(tensors)
    out = {}
    for name, tensor in tensors.items():
        raw, owner = _to_ndarray(tensor)
        keep_alive_buffer.append((raw, owner))
        dtype = str(tensor.dtype).split(".")[-1]
        out[name] = TensorSpec(dtype=dtype, shape=tensor.shape, data_ptr=raw.ctypes.data, data_len=raw.nbytes)
    return out
