"""`safetensors.torch`'s functions: dicts of torch tensors, and modules whose tensors share memory.

Two names of the same memory cannot both be written: they would come back as two tensors. `save_file` refuses them;
`save_model` keeps one name of each and tells in the metadata which names it left out, and `load_model` knows that
they belong to the model.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from .._checkpoint import StrPath
from . import _save
from ._errors import SafetensorError
from ._open import Tensors, check_backend

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]

# By name: regrow works without torch, and its types are not checked against it.
torch: Any = importlib.import_module("torch")

_F4 = np.dtype(ml_dtypes.float4_e2m1fn)

_NAMES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "complex64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)

_TO_NUMPY: dict[Any, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name, None) or name) for name in _NAMES if hasattr(torch, name)
}
"""torch's dtypes and NumPy's. Older torches have fewer."""

_TO_TORCH: dict[np.dtype[Any], Any] = {numpy: theirs for theirs, numpy in _TO_NUMPY.items()}

_PAIRS = getattr(torch, "float4_e2m1fn_x2", None)
"""Two elements of four bits in a byte, the first in the low half: its last axis counts pairs."""


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    *,
    align: int = 8,
) -> bytes:
    """The bytes of a safetensors file.

    Args:
        tensors: Dense, contiguous tensors by name, no two in the same memory.
        metadata: Text by name, kept in this order.
        align: The data begins at a multiple of this many bytes, a power of two.

    Raises:
        RuntimeError: if tensors share memory.
        ValueError: for a tensor that is sparse or not contiguous, or no tensor at all.
        SafetensorError: for a dtype that safetensors lacks.
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
    """Saves tensors as a safetensors file: all of it or nothing, synced to disk. A file of that name is replaced.

    Args:
        tensors: Dense, contiguous tensors by name, no two in the same memory.
        filename: The file; its folder is made if it is missing.
        metadata: Text by name, kept in this order.
        align: The data begins at a multiple of this many bytes, a power of two.
        max_shard_size: Make a folder at `filename`, each file in it at most this large (``"5GB"`` or bytes), with
            ``model.safetensors.index.json``.
        durable: Sync to disk before returning.

    Raises:
        RuntimeError: if tensors share memory.
        ValueError: for a tensor that is sparse or not contiguous, or no tensor at all.
        SafetensorError: for a dtype that safetensors lacks.
    """
    _save.to_file(_arrays(tensors), filename, metadata, None, align, max_shard_size, durable)


def load(data: bytes) -> dict[str, Any]:
    """The tensors of a safetensors file that is in memory, on the CPU.

    Raises:
        SafetensorError: if the bytes break the rules of safetensors.
    """
    return Tensors.of_bytes(data).all(lambda view: to_torch(view, "cpu", True))


def load_file(filename: StrPath, device: Any = "cpu", *, backend: str = "mmap", copy: bool = True) -> dict[str, Any]:
    """The tensors of a safetensors file, an index or a folder.

    Args:
        filename: The file.
        device: Where they are to be; anything that torch takes.
        backend: Taken for safetensors' sake.
        copy: ``False`` shares the memory of the map, on the CPU: such tensors must not be written to.

    Raises:
        SafetensorError: if the file breaks the rules of safetensors.
        FileNotFoundError: if it is not there.
    """
    check_backend(backend)
    return Tensors.read(filename, None, lambda tensors: tensors.all(lambda view: to_torch(view, device, copy)))


def save_model(
    model: Any,
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    durable: bool = True,
) -> None:
    """Saves a module. Of names that share memory one is kept; the metadata tells of which name it is for the others.

    Args:
        model: A `torch.nn.Module`.
        filename: The file.
        metadata: Text by name; what it says already stays.
        force_contiguous: Save contiguous copies of tensors that are not.
        durable: Sync to disk before returning.

    Raises:
        RuntimeError: if tensors share memory and none is all of it.
        ValueError: without `force_contiguous`, for a tensor that is not contiguous.
    """
    state: dict[str, Any] = dict(model.state_dict())
    for kept, others in duplicate_names(state).items():
        for name in others:
            metadata = {name: kept, **(metadata or {})} if metadata is None or name not in metadata else metadata
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state, filename, metadata, durable=durable)


def load_model(
    model: Any, filename: StrPath, strict: bool = True, device: Any = "cpu", *, backend: str = "mmap"
) -> tuple[set[str], list[str]]:
    """Loads a file into a module.

    Args:
        model: A `torch.nn.Module`.
        filename: The file.
        strict: Err if the module has tensors that the file lacks, or the reverse.
        device: Where the file's tensors are read to.
        backend: Taken for safetensors' sake.

    Returns:
        Names in the module that were not loaded, and names in the file that were not used.

    Raises:
        RuntimeError: with `strict`, if there are any.
    """
    tensors = load_file(filename, device, backend=backend)
    duplicates = duplicate_names(model.state_dict(), preferred_names=tensors)
    lacking, spare = model.load_state_dict(tensors, strict=False)
    missing, unexpected = set(lacking), list(spare)
    for names in duplicates.values():
        for name in names:
            if name in missing:
                missing.remove(name)
            else:
                # The file has it, though it is another name of a tensor that the file has, too.
                unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"{type(model).__name__} cannot be loaded from {filename}: their tensors differ"]
        lines += [f"  not in the file: {', '.join(sorted(missing))}"] if missing else []
        lines += [f"  not in the module: {', '.join(sorted(unexpected))}"] if unexpected else []
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


def to_torch(view: np.ndarray[Any, Any], device: Any = "cpu", copy: bool = True) -> Any:
    """A tensor of an array: a copy, or in the memory of `view` where that lies in C order."""
    shape, dtype = view.shape, _TO_TORCH.get(view.dtype)
    if view.dtype == _F4 and _PAIRS is not None:
        dtype, view = _PAIRS, _pack(view)
        shape = view.shape
    if dtype is None:
        raise SafetensorError(f"this torch has no dtype {view.dtype}")
    if view.size == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    array = np.array(view, order="C") if copy else np.ascontiguousarray(view)
    with warnings.catch_warnings():
        # A map is read-only, and torch has no such tensors: `copy=False` says that nobody writes.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        flat = torch.frombuffer(array.reshape(-1).view(np.uint8), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape).to(device)


def _arrays(tensors: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What the engine takes, in the memory of the tensors if that is the CPU's."""
    if not isinstance(tensors, Mapping):
        raise ValueError(f"tensors are given as a dict of torch.Tensor by name, not as {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name!r} is no torch.Tensor but of type {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise ValueError(f"{name!r} is sparse: save {name}.to_dense(), which may be much larger")
    shared = [sorted(names) for names in shared_names(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"these tensors share memory and would come back as separate ones: {shared}; use save_model, "
            "or save only one name of each"
        )
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name!r} is not contiguous: save {name}.contiguous(), or with save_model(..., force_contiguous=True)"
            )
    return {name: _to_numpy(name, tensor) for name, tensor in tensors.items()}


def _to_numpy(name: str, tensor: Any) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().resolve_conj().resolve_neg().to("cpu")
    shape = tuple(tensor.shape)
    dtype = np.dtype(np.uint8) if tensor.dtype == _PAIRS else _TO_NUMPY.get(tensor.dtype)
    if dtype is None:
        raise SafetensorError(f"safetensors has no dtype for {tensor.dtype}\n  leaf {name}", leaf=name)
    if tensor.numel() == 0:
        array = np.empty(shape, dtype)
    else:
        flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        array = flat.reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(shape)
    return _unpack(array) if tensor.dtype == _PAIRS else array


def _pack(elements: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pairs along the last axis, the first in the low half."""
    if not elements.ndim or elements.shape[-1] % 2:
        raise SafetensorError(f"four-bit elements of shape {list(elements.shape)} are no pairs along the last axis")
    halves = elements.view(np.uint8)
    return np.asarray((halves[..., 0::2] & 0xF) | (halves[..., 1::2] << 4), np.uint8)


def _unpack(pairs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    halves = np.stack([pairs & 0xF, pairs >> 4], axis=-1)
    return halves.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1]).view(_F4)


# ---- memory that tensors share ------------------------------------------------------------------------------


def shared_names(tensors: Mapping[str, Any]) -> list[set[str]]:
    """Names by the memory they reach: those in one set overlap, one after the other."""
    storages: dict[Any, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta":
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() and storage.nbytes():
            key = (str(tensor.device), storage.data_ptr(), storage.nbytes())
            storages.setdefault(key, []).append((*_reach(tensor), name))
    out: list[set[str]] = []
    for reaches in storages.values():
        end = -1
        for start, stop, name in sorted(reaches):
            if start >= end:
                out.append(set())
            out[-1].add(name)
            end = max(end, stop)
    return out


def _reach(tensor: Any) -> tuple[int, int]:
    """The address of the first byte, and the one after the last."""
    start: int = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def duplicate_names(state: Mapping[str, Any], preferred_names: Iterable[str] = ()) -> dict[str, list[str]]:
    """For each name that is kept the others of the same memory, sorted.

    A name is kept that is all of its storage: of `preferred_names` if there is one, else the first in the alphabet.

    Raises:
        RuntimeError: if no name is all of it.
    """
    preferred = set(preferred_names)
    out: dict[str, list[str]] = {}
    for names in shared_names(state):
        if len(names) < 2:
            continue
        complete = {name for name in names if _is_complete(state[name])}
        if not complete:
            raise RuntimeError(
                f"the tensors {sorted(names)} share memory and none of them is all of it, so saving one would lose the "
                "others; save clones of them"
            )
        kept = min(complete & preferred or complete)
        out[kept] = sorted(names - {kept})
    return out


def _is_complete(tensor: Any) -> bool:
    storage = tensor.untyped_storage()
    whole: bool = tensor.numel() * tensor.element_size() == storage.nbytes()
    return whole and tensor.data_ptr() == storage.data_ptr()
