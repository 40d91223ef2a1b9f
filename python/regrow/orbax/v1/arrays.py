"""Arrays, and what stands for them in targets and in metadata."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from ..tree import to_shape_dtype_struct

__all__ = [
    "AbstractArray",
    "AbstractScalar",
    "AbstractShardedArray",
    "ArrayLike",
    "DType",
    "Scalar",
    "Shape",
    "to_shape_dtype_struct",
]

Shape: TypeAlias = tuple[int, ...]
DType = np.dtype
Scalar: TypeAlias = int | float | np.number[Any] | bytes | bool
AbstractScalar: TypeAlias = Scalar


@runtime_checkable
class AbstractArray(Protocol):
    """What has a shape and a dtype: in a target it stands for a NumPy array."""

    shape: Any
    dtype: Any


@runtime_checkable
class AbstractShardedArray(Protocol):
    """What has a sharding, too: in a target it stands for a JAX array."""

    shape: Any
    dtype: Any
    sharding: Any


ArrayLike: TypeAlias = AbstractArray | AbstractShardedArray


@dataclasses.dataclass
class ArrayMetadata:
    """What is known of a JAX array that is stored."""

    shape: Shape | None
    dtype: Any
    sharding_metadata: Any
    storage_metadata: Any

    @property
    def sharding(self) -> Any:
        """The sharding that it was saved with, on the devices of this process; `None` if that is
        not known.
        """
        return None if self.sharding_metadata is None else self.sharding_metadata.to_jax_sharding()


@dataclasses.dataclass
class NumpyShapeDtype:
    """A NumPy array of a target."""

    shape: Shape | None
    dtype: Any


@dataclasses.dataclass
class NumpyMetadata:
    """What is known of a NumPy array that is stored."""

    shape: Shape | None
    dtype: Any
    storage_metadata: Any
