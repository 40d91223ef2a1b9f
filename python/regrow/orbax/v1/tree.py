"""Pytrees: their types, and one made of several."""

from typing import Generic, TypeVar

import numpy as np

from .._jax import jax
from ..tree import JsonType, PyTreeKey
from ..tree import PyTreePath as PyTreeKeyPath
from ..tree import merge_trees as merge
from .arrays import AbstractArray, AbstractScalar, AbstractShardedArray, Scalar

__all__ = ["AbstractLeaf", "JsonType", "Leaf", "PyTree", "PyTreeKey", "PyTreeKeyPath", "PyTreeOf", "merge"]

T = TypeVar("T")


class PyTreeOf(Generic[T]):
    """A pytree with leaves of one type, for annotations."""


class PyTree:
    """Any pytree, for annotations."""


Leaf = jax.Array | np.ndarray | Scalar | str
"""Types of leaves that can be saved."""
AbstractLeaf = AbstractArray | AbstractShardedArray | AbstractScalar | str
"""Types of leaves in a target."""
