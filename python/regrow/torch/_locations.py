"""Where loaded tensors go: `map_location`, in all the forms that `torch.load` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._core import _arguments
from .._errors import InvalidArgumentError, failure
from ._library import torch

Move = Callable[[Any, str], Any]
"""Moves a tensor from the CPU to its target device. The second argument is the device on which it
was saved.
"""


def mover(map_location: Any) -> Move:
    """Returns the function that moves tensors as `map_location` requests.

    Raises:
        InvalidArgumentError: if `map_location` has a form or a device name that torch does not
            know.
    """
    if map_location is None:
        return _to
    if isinstance(map_location, (str, torch.device)):
        try:
            device = str(torch.device(map_location))
        except RuntimeError as error:
            raise _wrong(map_location) from error
        return lambda tensor, saved: _to(tensor, device)
    if isinstance(map_location, Mapping):
        if not all(isinstance(each, (str, torch.device)) for pair in map_location.items() for each in pair):
            raise _wrong(map_location)
        known = {str(saved): str(device) for saved, device in map_location.items()}
        return lambda tensor, saved: _to(tensor, known.get(saved, saved))
    if callable(map_location):
        return lambda tensor, saved: _by_function(map_location, tensor, saved)
    raise _wrong(map_location)


def _wrong(map_location: Any) -> InvalidArgumentError:
    takes = "a device, a dict of devices, a function (storage, location) -> storage, or None"
    return _arguments.wrong("map_location", map_location, takes)


def _to(tensor: Any, device: str) -> Any:
    if device == "cpu":
        return tensor
    try:
        return tensor.to(device)
    except (RuntimeError, AssertionError) as error:
        # Show only the first line of torch's error: the others are about debugging kernels.
        why = str(error).partition("\n")[0]
        help = 'give map_location, such as map_location="cpu"'
        raise failure(
            InvalidArgumentError, f"a tensor cannot be put on the device {device}: {why}", help=help
        ) from None


def _by_function(function: Callable[[Any, str], Any], tensor: Any, saved: str) -> Any:
    storage = function(tensor.untyped_storage(), saved)
    if storage is None:
        return _to(tensor, saved)
    storage = getattr(storage, "_untyped_storage", storage)
    if not isinstance(storage, torch.UntypedStorage):
        raise InvalidArgumentError(
            f"map_location gave {type(storage).__qualname__}\n  expected a storage, or None for the device {saved}"
        )
    if storage.data_ptr() == tensor.untyped_storage().data_ptr() and storage.device == tensor.device:
        return tensor
    empty = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
