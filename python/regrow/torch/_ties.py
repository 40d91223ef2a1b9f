"""Tensors that lie in each other's memory: written once, and tied again when they are loaded.

Two tensors are tied if bytes of one are bytes of the other. Of those that are, one is stored, the cover:

    w = base                      base has every byte that the others reach: it is stored as itself
    v = base[2:], t = base.T      of these shape, strides and the offset in the cover are recorded
    a = base[:3], b = base[1:]    none has all bytes: where the first stands the bytes are stored as they lie

Parts of one storage that do not touch each other are tensors of their own, as for safetensors. A `DTensor` is tied only
to itself: what a process sees of the others' memory differs from process to process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _torch
from ._library import torch
from ._pointers import Keys, pointer

ALIGN_BYTES = 16
"""Stored bytes of several tensors begin at a multiple of the longest element's."""


class Seen(NamedTuple):
    """A tensor where it was found."""

    keys: Keys
    tensor: Any


class Stored(NamedTuple):
    """What stands in the checkpoint where a tensor was."""

    value: Any
    """A tensor, or ``...`` where it is part of another one."""
    entry: dict[str, Any]
    """What makes the tensor of it."""


def stored(tensors: Sequence[Seen]) -> dict[int, Stored]:
    """What is stored instead of those tensors that are not stored as themselves, by their numbers."""
    found: dict[int, Stored] = {}
    firsts: dict[int, int] = {}
    by_memory: dict[Any, list[int]] = defaultdict(list)
    for at, (_, tensor) in enumerate(tensors):
        first = firsts.setdefault(id(tensor), at)
        if first != at:
            found[at] = Stored(..., {"same": pointer(tensors[first].keys)})
        elif _torch.is_dtensor(tensor) or tensor.layout != torch.strided or tensor.is_quantized:
            continue
        elif tensor.device.type != "meta" and tensor.numel():
            by_memory[tensor.device, tensor.untyped_storage().data_ptr()].append(at)
    for members in by_memory.values():
        if len(members) > 1:
            for group in _touching(members, tensors):
                found |= _tied(group, tensors)
    for at, (_, tensor) in enumerate(tensors):
        if at not in found and not _torch.is_dtensor(tensor) and _is_unnamed(tensor):
            # The engine has no name for its dtype: the bytes alone.
            whole = tensor.detach().resolve_conj().contiguous()
            found[at] = Stored(_bytes(whole, *_extent(whole)), {"bits": _view(whole, 0)})
    return found


def _extent(tensor: Any) -> tuple[int, int]:
    """First byte in its storage, and the byte behind the last."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if not tensor.numel():
        return start, start
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size


def _touching(members: Sequence[int], tensors: Sequence[Seen]) -> list[list[int]]:
    """Tensors of one storage in groups, each in the order of the tree, of those that reach into each other."""
    groups: list[list[int]] = []
    reached = 0
    for (start, end), at in sorted((_extent(tensors[at].tensor), at) for at in members):
        if not groups or start >= reached:
            groups.append([])
        groups[-1].append(at)
        reached = max(reached, end)
    return [sorted(group) for group in groups if len(group) > 1]


def _tied(group: Sequence[int], tensors: Sequence[Seen]) -> dict[int, Stored]:
    extents = [_extent(tensors[at].tensor) for at in group]
    start, end = min(first for first, _ in extents), max(last for _, last in extents)
    covers = (at for at, extent in zip(group, extents, strict=True) if extent == (start, end))
    cover = next((at for at in covers if _is_plain(tensors[at].tensor)), None)
    found = {}
    if cover is None:
        cover = group[0]
        start -= start % ALIGN_BYTES
        tensor = tensors[cover].tensor
        found[cover] = Stored(_bytes(tensor, start, end), {"bits": _view(tensor, start)})
    of = pointer(tensors[cover].keys)
    for at in group:
        if at != cover:
            found[at] = Stored(..., {"of": of, "view": _view(tensors[at].tensor, start)})
    return found


def _is_plain(tensor: Any) -> bool:
    """Whether what is stored of it is its memory, byte for byte."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg() and not _is_unnamed(tensor)


def _is_unnamed(tensor: Any) -> bool:
    """Whether the engine has no name for its dtype; quantized ones are refused elsewhere."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return False
    try:
        _torch.dtype_number(tensor)
    except _torch.Refused:
        return True
    return False


def _bytes(tensor: Any, start: int, end: int) -> Any:
    """Bytes of its storage."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), start, (end - start,), (1,))


def _view(tensor: Any, start: int) -> dict[str, Any]:
    """What makes the tensor again of the bytes from `start` on."""
    view: dict[str, Any] = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "offset": tensor.storage_offset() * tensor.element_size() - start,
    }
    view |= {"conj": True} if tensor.is_conj() else {}
    view |= {"neg": True} if tensor.is_neg() else {}
    return view
