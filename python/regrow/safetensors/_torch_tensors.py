"""Converts torch's tensors to NumPy's arrays and back. Makes tensors in private maps of files."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ._errors import SafetensorError
from ._frameworks import Reads
from ._open import Tensors
from ._raw import F4, TAGS, pack_pairs, unpack_pairs

# Import by name: regrow works without torch, so type checks do not cover it.
torch: Any = importlib.import_module("torch")

_TYPES: dict[str, Any] = {tag: getattr(torch, name) for name, tag in TAGS.items() if hasattr(torch, name)}
"""torch's dtypes, by their names in files. Older versions of torch have fewer."""

_PAIRS = _TYPES.get("F4")
"""Two elements of four bits in a byte, the first in the low half: its last axis counts pairs."""

_SIZE: dict[Any, int] = {dtype: torch.empty(0, dtype=dtype, device="cpu").element_size() for dtype in _TYPES.values()}
"""The bytes of an element."""


def _name(dtype: Any) -> str:
    return str(dtype).split(".")[-1]


_TO_NUMPY: dict[Any, np.dtype[Any]] = {
    dtype: np.dtype(getattr(ml_dtypes, _name(dtype), None) or _name(dtype))
    for dtype in _TYPES.values()
    if dtype is not _PAIRS
}

_TO_TORCH: dict[np.dtype[Any], Any] = {numpy: theirs for theirs, numpy in _TO_NUMPY.items()}


def check_device(device: Any) -> None:
    """Refuses a device name for which torch has no device.

    Raises:
        SafetensorError: for such a name.
    """
    if isinstance(device, str):
        try:
            torch.device(device)
        except RuntimeError:
            raise SafetensorError(f"device {device} is invalid") from None


def reads(tensors: Tensors, device: Any) -> Reads:
    """Reads as torch's tensors, in a private map if there is one."""
    return TorchReads(tensors, "cpu" if device is None else device)


class TorchReads(Reads):
    """Reads the tensors as torch's tensors: in the map if the files are mapped, else in memory of
    their own.
    """

    def __init__(self, tensors: Tensors, device: Any) -> None:
        super().__init__(tensors, True)
        self._device = device

    def convert(self, view: np.ndarray[Any, Any]) -> Any:
        return to_torch(view, self._device)

    def whole(self, at: int) -> Any:
        tensor = self._mapped(at)
        return super().whole(at) if tensor is None else tensor.to(self._device)

    def part(self, at: int, index: Any) -> Any:
        tensor = self._mapped(at)
        return super().part(at, index) if tensor is None else tensor[index].to(self._device)

    def _mapped(self, at: int) -> Any:
        place = self.tensors.mapped_bytes(at)
        if place is None:
            return None
        shape, dtype = self.tensors.shapes[at], _getdtype(self.tensors.tag(at))
        if dtype is _PAIRS:
            shape = _pairs(shape)
        buffer, start, length = place
        if not length:
            return torch.empty(shape, dtype=dtype, device="cpu")
        # Each tensor gets its own storage. Otherwise saving a tensor later would save the whole
        # file.
        return torch.frombuffer(buffer, dtype=torch.uint8, count=length, offset=start).view(dtype).reshape(shape)


def to_torch(view: np.ndarray[Any, Any], device: Any = "cpu") -> Any:
    """Returns a tensor with a copy of the array."""
    shape, dtype = view.shape, _TO_TORCH.get(view.dtype)
    if view.dtype == F4 and _PAIRS is not None:
        dtype, view = _PAIRS, pack_pairs(view)
        shape = view.shape
    if dtype is None:
        raise SafetensorError(f"this torch has no dtype {view.dtype}")
    if view.size == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    flat = torch.frombuffer(np.array(view, order="C").reshape(-1).view(np.uint8), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape).to(device)


def to_numpy(name: str, tensor: Any) -> np.ndarray[Any, Any]:
    """Returns an array that shares the memory of a dense, contiguous tensor, if this memory is the
    CPU's.
    """
    raw, _ = _to_ndarray(tensor)
    dtype = np.dtype(np.uint8) if tensor.dtype == _PAIRS else _TO_NUMPY.get(tensor.dtype)
    if dtype is None:
        raise SafetensorError(f"safetensors has no dtype for {tensor.dtype}\n  leaf {name}", leaf=name)
    array = (
        np.empty(tuple(tensor.shape), dtype) if tensor.numel() == 0 else raw.view(dtype).reshape(tuple(tensor.shape))
    )
    return unpack_pairs(array) if tensor.dtype == _PAIRS else array


def _pairs(shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape or shape[-1] % 2:
        raise SafetensorError(f"f4_x2 dtype requires that the last dim be divisible by 2 in torch: got {list(shape)}")
    return (*shape[:-1], shape[-1] // 2)


def _getdtype(dtype_str: str) -> Any:
    """The torch dtype for its name in the file."""
    dtype = _TYPES.get(dtype_str)
    if dtype is None:
        raise SafetensorError(f"this torch has no dtype {dtype_str}")
    return dtype


def _to_ndarray(tensor: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """The bytes of a contiguous tensor, and the tensor that owns them."""
    tensor = tensor.detach().resolve_conj().resolve_neg().to("cpu")
    if tensor.numel() == 0:
        return np.empty(0, np.uint8), tensor
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    raw: np.ndarray[Any, Any] = flat.reshape(-1).view(torch.uint8).numpy()
    return raw, tensor


def _view2torch(safeview: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The result of `deserialize`, as tensors in the memory of its bytes."""
    out = {}
    for name, tensor in safeview:
        dtype = _getdtype(tensor["dtype"])
        if not tensor["data"]:
            out[name] = torch.empty(tensor["shape"], dtype=dtype, device="cpu")
        elif dtype is _PAIRS:
            out[name] = to_torch(np.frombuffer(tensor["data"], F4).reshape(tensor["shape"]))
        else:
            out[name] = torch.frombuffer(tensor["data"], dtype=dtype).reshape(tensor["shape"])
    return out
