"""Finds tensors that share memory, by the rules of safetensors and under its names.

Other packages import these functions: transformers imports `storage_ptr` and `storage_size`, and
programs that save tied weights import the others. The rules are exactly those of safetensors,
because they decide which tensors a file has.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

torch: Any = importlib.import_module("torch")


def storage_ptr(tensor: Any) -> int:
    """Returns the address of the storage of a tensor; 0 if it has none."""
    try:
        pointer: int = tensor.untyped_storage().data_ptr()
    except (AttributeError, NotImplementedError, RuntimeError):  # meta tensors
        return 0
    return pointer


def storage_size(tensor: Any) -> int:
    """Returns the length of this storage in bytes. For a tensor without a storage, returns the
    length of its elements.
    """
    try:
        size: int = tensor.untyped_storage().nbytes()
    except (AttributeError, NotImplementedError):
        return int(tensor.nelement() * tensor.element_size())
    return size


def _end_ptr(tensor: Any) -> int:
    """Returns the address after the last byte of a tensor."""
    start: int = tensor.data_ptr()
    if not tensor.nelement():
        return start
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start + (last + 1) * int(tensor.element_size())


def _find_shared_tensors(state_dict: Mapping[str, Any]) -> list[set[str]]:
    """Returns sets of names. The tensors of one set share memory. Tensors without memory are left
    out.
    """
    by_storage: dict[Any, set[str]] = {}
    for name, tensor in state_dict.items():
        if tensor.device.type != "meta" and storage_ptr(tensor) != 0 and storage_size(tensor) != 0:
            key = (tensor.device, storage_ptr(tensor), storage_size(tensor))
            by_storage.setdefault(key, set()).add(name)
    return _filter_shared_not_shared(list(by_storage.values()), state_dict)


def _filter_shared_not_shared(tensors: Iterable[set[str]], state_dict: Mapping[str, Any]) -> list[set[str]]:
    """Divides the names of each storage at places where one tensor ends before the next begins."""
    out: list[set[str]] = []
    for names in tensors:
        if len(names) < 2:
            out.append(names)
            continue
        reached = None
        for start, end, name in sorted(
            (state_dict[name].data_ptr(), _end_ptr(state_dict[name]), name) for name in names
        ):
            if reached is None or start >= reached:
                out.append(set())
            out[-1].add(name)
            reached = end
    return out


def _is_complete(tensor: Any) -> bool:
    """Whether a tensor covers its whole storage."""
    whole: bool = tensor.nelement() * tensor.element_size() == storage_size(tensor)
    return whole and tensor.data_ptr() == storage_ptr(tensor)


def _remove_duplicate_names(
    state_dict: Mapping[str, Any],
    *,
    preferred_names: Iterable[str] | None = None,
    discard_names: Iterable[str] | None = None,
) -> dict[str, list[str]]:
    """Returns for each kept name the other names of the same memory, sorted.

    The kept name must be of a tensor that covers its whole memory. A name of `preferred_names` has
        priority, then the first in the alphabet that is not in `discard_names`, then the first.

    Raises:
        RuntimeError: if no tensor covers the whole memory.
    """
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    out: dict[str, list[str]] = {}
    for names in _find_shared_tensors(state_dict):
        complete = {name for name in names if _is_complete(state_dict[name])}
        if not complete:
            raise RuntimeError(
                f"the tensors {sorted(names)} share memory, and none of them covers all of it. Refusing "
                "to save or load the model, since much more memory could be stored than is needed; save clones of them"
            )
        kept = min(complete & preferred or complete - discarded or complete)
        others = sorted(names - {kept})
        if others:
            out[kept] = others
    return out
