"""The tensors of each framework: NumPy, JAX, torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import SafetensorError
from ._slices import checked

if TYPE_CHECKING:
    from ._open import Tensors

NUMPY = ("numpy", "np")
JAX = ("flax", "jax")
TORCH = ("pt", "torch", "pytorch")


class Reads:
    """Reads the tensors of a file as NumPy arrays: in memory of their own, or with ``copy=False``
    as read-only views.
    """

    def __init__(self, tensors: Tensors, copy: bool) -> None:
        self.tensors = tensors
        self._copy = copy

    def convert(self, view: np.ndarray[Any, Any]) -> Any:
        """Returns the framework's tensor for a view."""
        return np.array(view, order="C") if self._copy else view

    def whole(self, at: int) -> Any:
        """Returns a whole tensor."""
        return self.convert(self.tensors.view(at))

    def part(self, at: int, index: Any) -> Any:
        """Returns a part of a tensor, by safetensors' rules for slices."""
        return self.convert(self.tensors.part(at, checked(index, self.tensors.shapes[at])))

    def all(self) -> dict[str, Any]:
        """Returns every tensor by its name."""
        return {name: self.whole(at) for at, name in enumerate(self.tensors.names)}


class JaxReads(Reads):
    """Reads the tensors as JAX arrays."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__(tensors, True)
        self._make: Any = importlib.import_module("jax.numpy").array

    def convert(self, view: np.ndarray[Any, Any]) -> Any:
        return self._make(view)


def check(framework: str, device: Any) -> None:
    """Refuses a framework or a device that is not supported.

    Raises:
        SafetensorError: if the framework or the device is not supported.
        ModuleNotFoundError: if torch is requested and is not installed.
    """
    if not isinstance(framework, str):
        raise TypeError(f"framework is a str, not {type(framework).__name__}")
    if framework in TORCH:
        importlib.import_module("regrow.safetensors._torch_tensors").check_device(device)
        return
    if framework not in (*NUMPY, *JAX):
        raise SafetensorError(f"framework {framework} is invalid: it is one of {', '.join((*NUMPY, *JAX, *TORCH))}")
    if device is not None and str(device) != "cpu":
        theirs = NUMPY[0] if framework in NUMPY else JAX[0]
        raise SafetensorError(f"Device {device} is not supported for framework {theirs}")


def reads(tensors: Tensors, framework: str, device: Any, copy: bool | None) -> Reads:
    """Returns the `Reads` of a framework that has passed `check`. torch's tensors are mapped if
    `tensors` is mapped.
    """
    if framework in NUMPY:
        return Reads(tensors, copy is not False)
    if framework in JAX:
        return JaxReads(tensors)
    made: Reads = importlib.import_module("regrow.safetensors._torch_tensors").reads(tensors, device)
    return made
