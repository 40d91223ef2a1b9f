"""safetensors' lowest level: tensors by the address of their memory, and as bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .._core._location import StrPath
from . import _save
from ._errors import SafetensorError
from ._open import Tensors

TAGS = {
    "bool": "BOOL",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
    "complex64": "C64",
}
"""The dtype names of frameworks, and the names in files."""

F4 = np.dtype(ml_dtypes.float4_e2m1fn)

DTYPES = {tag: F4 if tag == "F4" else np.dtype(getattr(ml_dtypes, name, name)) for name, tag in TAGS.items()}
"""NumPy's dtypes, by their names in files."""


@dataclass(frozen=True, init=False, eq=False, slots=True)
class TensorSpec:
    """A tensor in memory that another object owns, for `serialize` and `serialize_file`.

    Args:
        dtype: A framework's name of the dtype: ``"float32"``, ``"bfloat16"``,
            ``"float4_e2m1fn_x2"``.
        shape: The shape. For ``float4_e2m1fn_x2`` it counts pairs of elements.
        data_ptr: The address of the bytes, in C order. They must stay at this address until the
            tensor is written.
        data_len: The number of bytes.

    Raises:
        SafetensorError: for a dtype that safetensors does not have.
    """

    dtype: str
    """The name of the dtype in the file: ``"F32"``."""
    shape: list[int]
    """The shape in the file: of ``F4`` in elements."""
    data_ptr: int
    data_len: int

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        tag = TAGS.get(dtype)
        if tag is None:
            raise SafetensorError(f'Unknown dtype "{dtype}". Supported dtypes: {", ".join(TAGS)}')
        dims = [int(dim) for dim in shape]
        for name, number in (("shape", min(dims, default=0)), ("data_ptr", data_ptr), ("data_len", data_len)):
            if number < 0:
                raise OverflowError(f"{name} cannot be negative: {number}")
        if tag == "F4" and dims:
            dims[-1] *= 2
        for field, value in (("dtype", tag), ("shape", dims), ("data_ptr", data_ptr), ("data_len", data_len)):
            object.__setattr__(self, field, value)


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """Returns the bytes of a safetensors file, from tensors at given addresses in memory.

    Raises:
        SafetensorError: if a tensor's shape does not match its length.
        TypeError: for anything but a dict of `TensorSpec`.
    """
    return _save.to_bytes(_arrays(tensor_dict), metadata, None, 8)


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec], filename: StrPath, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes the file that `serialize` returns: completely or not at all, synced to disk.

    Raises:
        SafetensorError: if a tensor's shape does not match its length, or the file cannot be
            written.
        TypeError: for anything but a dict of `TensorSpec`.
    """
    _save.to_file(_arrays(tensor_dict), filename, metadata, None, 8, None, True)


def deserialize(bytes: Any) -> list[tuple[str, dict[str, Any]]]:
    """The tensors of a file in memory as safetensors' lowest level has them: names, each with
    ``dtype``, ``shape`` and its bytes in C order (of a packed dtype with an element a byte)."""
    tensors = Tensors.of_bytes(bytes)
    out = []
    for at, name in enumerate(tensors.names):
        data = bytearray(tensors.view(at).tobytes())
        out.append((name, {"dtype": tensors.tag(at), "shape": list(tensors.shapes[at]), "data": data}))
    return out


def unpack_pairs(pairs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Divides bytes into four-bit elements along the last axis. The first element is the low half
    of the byte.
    """
    halves = np.stack([pairs & 0xF, pairs >> 4], axis=-1)
    return halves.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1]).view(F4)


def pack_pairs(elements: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Reverses `unpack_pairs`."""
    if not elements.ndim or elements.shape[-1] % 2:
        raise SafetensorError(
            f"four-bit elements of shape {list(elements.shape)} do not form pairs along the last axis"
        )
    halves = elements.view(np.uint8)
    return np.asarray((halves[..., 0::2] & 0xF) | (halves[..., 1::2] << 4), np.uint8)


def _arrays(specs: Any) -> dict[str, np.ndarray[Any, Any]]:
    if not isinstance(specs, dict):
        raise TypeError(f"pass tensors as a dict of TensorSpec by name, not as {type(specs).__name__}")
    for name, spec in specs.items():
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"argument 'tensor_dict': {name!r} is not a TensorSpec but of type {type(spec).__name__}")
    return {name: _array(name, spec) for name, spec in specs.items()}


def _array(name: str, spec: TensorSpec) -> np.ndarray[Any, Any]:
    dtype, shape = DTYPES[spec.dtype], tuple(spec.shape)
    if spec.dtype == "F4":
        dtype, shape = np.dtype(np.uint8), (*shape[:-1], shape[-1] // 2) if shape else shape
    expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if expected != spec.data_len or (expected and not spec.data_ptr):
        raise SafetensorError(
            "Error while serializing: invalid shape, data type, or offset for tensor\n"
            f"  leaf {name}\n  expected {expected} bytes, found {spec.data_len} at address {spec.data_ptr}",
            leaf=name,
        )
    if not expected:
        return np.empty(tuple(spec.shape), DTYPES[spec.dtype])
    memory = (ctypes.c_ubyte * expected).from_address(spec.data_ptr)
    array: np.ndarray[Any, Any] = np.frombuffer(memoryview(memory).cast("B"), dtype).reshape(shape)
    return unpack_pairs(array) if spec.dtype == "F4" else array
