"""What a tensor is to whom: NumPy, JAX, torch; each from a read-only NumPy view."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ._errors import SafetensorError

FromNumpy = Callable[["np.ndarray[Any, Any]"], Any]


def converter(framework: str, device: Any, copy: bool) -> FromNumpy:
    """What makes a framework's tensor of a view.

    Raises:
        SafetensorError: for a framework or device that is not served.
        ModuleNotFoundError: if the framework is not installed.
    """
    if framework in ("numpy", "np"):
        _check_device("numpy", device)
        return to_numpy if copy else _view
    if framework in ("flax", "jax"):
        _check_device("flax", device)
        make: FromNumpy = importlib.import_module("jax.numpy").array
        return make
    if framework in ("pt", "torch", "pytorch"):
        torch = importlib.import_module("regrow.safetensors.torch")
        return lambda view: torch.to_torch(view, device, copy)
    served = "np, numpy, jax, flax, pt, torch, pytorch"
    raise SafetensorError(f"framework {framework} is invalid: it is one of {served}")


def to_numpy(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of its own memory, in C order."""
    return np.array(view, order="C")


def _view(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return view


def _check_device(framework: str, device: Any) -> None:
    if str(device) != "cpu":
        raise SafetensorError(f"Device {device} is not supported for framework {framework}")
