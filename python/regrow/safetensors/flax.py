"""`safetensors.flax`'s functions: dicts of JAX arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array as Array

from .._core._location import StrPath
from . import numpy as numpy
from ._open import Tensors, check_backend
from ._open import safe_open as safe_open
from .numpy import loaded

__all__ = ["load", "load_file", "save", "save_file"]


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    *,
    sep: str | None = None,
    align: int = 8,
) -> bytes:
    """Returns the bytes of a safetensors file of JAX arrays: see `regrow.safetensors.numpy.save`."""
    return numpy.save(tensors, metadata, sep=sep, align=align)


def save_file(
    tensors: Mapping[str, Any],
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    sep: str | None = None,
    align: int = 8,
    max_shard_size: int | str | None = None,
    durable: bool = True,
) -> None:
    """Saves JAX arrays as a safetensors file: see `regrow.safetensors.numpy.save_file`."""
    numpy.save_file(tensors, filename, metadata, sep=sep, align=align, max_shard_size=max_shard_size, durable=durable)


def load(data: bytes, *, nested: bool = False, sep: str = ".") -> dict[str, Any]:
    """Loads the bytes of a safetensors file as JAX arrays on the default device.

    Without ``jax_enable_x64`` JAX reduces 64-bit dtypes to 32 bits, as it does everywhere.

    Raises:
        SafetensorError: if the bytes break the rules of safetensors.
    """
    return loaded(Tensors.of_bytes(data, sep if nested else None), nested, True, "flax")


def load_file(filename: StrPath, *, backend: str = "mmap", nested: bool = False, sep: str = ".") -> dict[str, Any]:
    """Loads a safetensors file, an index or a folder as JAX arrays on the default device.

    Without ``jax_enable_x64`` JAX reduces 64-bit dtypes to 32 bits, as it does everywhere.

    Raises:
        SafetensorError: if the file breaks the rules of safetensors.
        FileNotFoundError: if the file does not exist.
    """
    check_backend(backend)
    return Tensors.read(filename, sep if nested else None, lambda tensors: loaded(tensors, nested, True, "flax"))


def _np2jnp(numpy_dict: dict[str, Any]) -> dict[str, Any]:
    """Replaces NumPy arrays in the dict by JAX arrays. Private in the original, but other packages
    import it.
    """
    for name, array in numpy_dict.items():
        numpy_dict[name] = jnp.array(array)
    return numpy_dict


def _jnp2np(jnp_dict: dict[str, Any]) -> dict[str, Any]:
    """Replaces JAX arrays in the dict by NumPy arrays. Private in the original, like the function
    above.
    """
    for name, array in jnp_dict.items():
        jnp_dict[name] = np.asarray(array)
    return jnp_dict
