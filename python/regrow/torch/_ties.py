"""Tensors that share memory: each tensor is written in full, and the record ties them again.

Every reader finds the numbers of every tensor. Only the record says which memory tensors share:

    w = base                      base has every byte that the others reach, and needs no entry
    v = base[2:], t = base.T      entries: shape, strides, and the offset in the memory of base
    a = base[:3], b = base[1:]    none has all bytes. Entries: shape, strides, offset in a new storage

Parts of one storage that do not touch each other are separate tensors, as for safetensors. A
`DTensor` is tied only to the same `DTensor`, because each process has another part of its memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._torch import _tensors
from ._library import torch
from ._pointers import Keys, pointer

ALIGN_BYTES = 16
"""A storage begins at a multiple of this length, the length of the longest element."""
STORAGE_PER_BYTE_MAX = 64
"""A storage is restored if it is at most this many times as long as its tensors. The tensors of
longer storages get memory of their own.
"""


class Seen(NamedTuple):
    """A tensor and the place where it was found."""

    keys: Keys
    tensor: Any


def ties(tensors: Sequence[Seen]) -> dict[int, dict[str, Any]]:
    """Returns the record's entries of tensors in the memory of other tensors, by their numbers."""
    found: dict[int, dict[str, Any]] = {}
    firsts: dict[int, int] = {}
    by_memory: dict[Any, list[int]] = defaultdict(list)
    for at, (_, tensor) in enumerate(tensors):
        first = firsts.setdefault(id(tensor), at)
        if first != at:
            found[at] = {"same": pointer(tensors[first].keys)}
        elif _tensors.is_dtensor(tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            continue
        elif tensor.device.type != "meta" and tensor.numel():
            by_memory[tensor.device, tensor.untyped_storage().data_ptr()].append(at)
    for members in by_memory.values():
        for group in _touching(members, tensors):
            found |= _tied(group, tensors)
    return found


def _extent(tensor: Any) -> tuple[int, int]:
    """Returns the first byte of a tensor in its storage, and the byte after the last."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size


def _touching(members: Sequence[int], tensors: Sequence[Seen]) -> list[list[int]]:
    """Divides the tensors of one storage into groups that share bytes. Each group is in the order
    of the tree.
    """
    groups: list[list[int]] = []
    reached = 0
    for (start, end), at in sorted((_extent(tensors[at].tensor), at) for at in members):
        if not groups or start >= reached:
            groups.append([])
        groups[-1].append(at)
        reached = max(reached, end)
    return [sorted(group) for group in groups if len(group) > 1]


def _tied(group: Sequence[int], tensors: Sequence[Seen]) -> dict[int, dict[str, Any]]:
    extents = [_extent(tensors[at].tensor) for at in group]
    start, end = min(first for first, _ in extents), max(last for _, last in extents)
    covers = (at for at, extent in zip(group, extents, strict=True) if extent == (start, end))
    cover = next((at for at in covers if _is_plain(tensors[at].tensor)), None)
    if cover is not None:
        of = pointer(tensors[cover].keys)
        return {at: {"of": of, "view": _view(tensors[at].tensor, start)} for at in group if at != cover}
    storage = pointer(tensors[group[0]].keys)
    start -= start % ALIGN_BYTES
    len_bytes = end - start
    if len_bytes > storage_len_max(tensors[at].tensor.nbytes for at in group):
        return {}
    return {at: {"storage": storage, "len": len_bytes, "view": _view(tensors[at].tensor, start)} for at in group}


def storage_len_max(lens_bytes: Iterable[int]) -> int:
    """Returns the longest storage that tensors of these lengths may have."""
    return ALIGN_BYTES + STORAGE_PER_BYTE_MAX * sum(lens_bytes)


def _is_plain(tensor: Any) -> bool:
    """Whether the stored bytes of a tensor are the bytes of its memory."""
    return bool(tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def _view(tensor: Any, start: int) -> dict[str, Any]:
    """Returns the record entry that builds the tensor from the bytes from `start` on."""
    view: dict[str, Any] = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "offset": tensor.storage_offset() * tensor.element_size() - start,
    }
    view |= {"conj": True} if tensor.is_conj() else {}
    view |= {"neg": True} if tensor.is_neg() else {}
    return view
