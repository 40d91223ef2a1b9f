"""Arrays, and their descriptions in targets and in metadata."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ..tree import to_shape_dtype_struct as to_shape_dtype_struct

Shape: TypeAlias = tuple[int, ...]
DType = np.dtype
Scalar: TypeAlias = int | float | np.number[Any] | bytes | bool
AbstractScalar: TypeAlias = Scalar


@runtime_checkable
class AbstractArray(Protocol):
    """A shape and a dtype: in a target, it describes a NumPy array."""

    shape: Any
    dtype: Any


@runtime_checkable
class AbstractShardedArray(Protocol):
    """Adds a sharding: in a target, it describes a JAX array."""

    shape: Any
    dtype: Any
    sharding: Any


ArrayLike: TypeAlias = AbstractArray | AbstractShardedArray


@dataclasses.dataclass
class ArrayMetadata:
    """The metadata of a stored JAX array."""

    shape: Shape | None
    dtype: Any
    sharding_metadata: Any
    storage_metadata: Any

    @property
    def sharding(self) -> Any:
        """The saved sharding, on the devices of this process; `None` if it is not known."""
        return None if self.sharding_metadata is None else self.sharding_metadata.to_jax_sharding()


@dataclasses.dataclass
class NumpyShapeDtype:
    """Describes a NumPy array in a target."""

    shape: Shape | None
    dtype: Any


@dataclasses.dataclass
class NumpyMetadata:
    """The metadata of a stored NumPy array."""

    shape: Shape | None
    dtype: Any
    storage_metadata: Any
