"""`safetensors.flax`'s functions: dicts of JAX arrays."""

from __future__ import annotations

from typing import Any

import jax  # noqa: F401  (so that JAX's arrays are known as such)

from .._checkpoint import StrPath
from ._open import Tensors, check_backend
from .numpy import loaded, save, save_file

__all__ = ["load", "load_file", "save", "save_file"]


def load(data: bytes, *, nested: bool = False, sep: str = ".") -> dict[str, Any]:
    """The tensors of a safetensors file that is in memory, as JAX arrays on the default device.

    Without ``jax_enable_x64`` JAX makes 32 bits of 64, here as everywhere.

    Raises:
        SafetensorError: if the bytes break the rules of safetensors.
    """
    return loaded(Tensors.of_bytes(data, sep if nested else None), nested, True, "flax")


def load_file(filename: StrPath, *, backend: str = "mmap", nested: bool = False, sep: str = ".") -> dict[str, Any]:
    """The tensors of a safetensors file, an index or a folder, as JAX arrays on the default device.

    Without ``jax_enable_x64`` JAX makes 32 bits of 64, here as everywhere.

    Raises:
        SafetensorError: if the file breaks the rules of safetensors.
        FileNotFoundError: if it is not there.
    """
    check_backend(backend)
    return Tensors.read(filename, sep if nested else None, lambda tensors: loaded(tensors, nested, True, "flax"))
