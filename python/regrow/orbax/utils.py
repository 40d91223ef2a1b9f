"""Helpers, under Orbax' names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._jax import jax
from ._paths import TMP_DIR_SUFFIX
from .multihost import broadcast_one_to_all, is_primary_host, reached_preemption, sync_global_processes
from .path.step import (
    any_checkpoint_step,
    checkpoint_steps,
    checkpoint_steps_paths,
    get_save_directory,
    is_checkpoint_finalized,
    is_tmp_checkpoint,
    step_from_checkpoint_name,
    tmp_checkpoints,
)
from .tree import (
    deserialize_tree,
    from_flat_dict,
    from_flattened_with_keypath,
    get_key_name,
    is_dict_key,
    is_empty_node,
    is_empty_or_leaf,
    is_sequence_key,
    serialize_tree,
    to_flat_dict,
    to_shape_dtype_struct,
    tuple_path_from_keypath,
)

__all__ = [
    "TMP_DIR_SUFFIX",
    "all_leaves_are_placeholders",
    "any_checkpoint_step",
    "broadcast_one_to_all",
    "checkpoint_steps",
    "checkpoint_steps_paths",
    "deserialize_tree",
    "from_flat_dict",
    "from_flattened_with_keypath",
    "fully_replicated_host_local_array_to_global_array",
    "get_key_name",
    "get_save_directory",
    "is_checkpoint_finalized",
    "is_dict_key",
    "is_empty_node",
    "is_empty_or_leaf",
    "is_gcs_path",
    "is_pathways_backend",
    "is_primary_host",
    "is_scalar",
    "is_sequence_key",
    "is_tmp_checkpoint",
    "leaf_is_placeholder",
    "leaf_placeholder",
    "name_from_leaf_placeholder",
    "pytree_structure",
    "reached_preemption",
    "record_saved_duration",
    "serialize_tree",
    "step_from_checkpoint_name",
    "sync_global_devices",
    "sync_global_processes",
    "tmp_checkpoints",
    "to_flat_dict",
    "to_shape_dtype_struct",
    "tuple_path_from_keypath",
]

sync_global_devices = sync_global_processes


def is_pathways_backend() -> bool:
    """Whether JAX runs on Pathways, which is not covered."""
    return False


_LEAF_PLACEHOLDER = "PLACEHOLDER://"


def leaf_placeholder(name: str) -> str:
    """The placeholder in the msgpack file of old layouts for a leaf in another file."""
    return _LEAF_PLACEHOLDER + name


def leaf_is_placeholder(leaf: Any) -> bool:
    """Whether a leaf of that file is stored in another file."""
    return isinstance(leaf, str) and leaf.startswith(_LEAF_PLACEHOLDER)


def name_from_leaf_placeholder(placeholder: str) -> str:
    """The name of the leaf that a placeholder stands for.

    Raises:
        ValueError: for text that is not a placeholder.
    """
    if not leaf_is_placeholder(placeholder):
        raise ValueError(f"Malformed placeholder: {placeholder}")
    return placeholder.removeprefix(_LEAF_PLACEHOLDER)


def all_leaves_are_placeholders(tree: Any) -> bool:
    """Whether all leaves are stored in other files."""
    return all(leaf_is_placeholder(leaf) for leaf in jax.tree.leaves(tree))


def is_scalar(x: Any) -> bool:
    """Whether a value is a number."""
    return isinstance(x, (int, float, np.number))


def is_gcs_path(path: Any) -> bool:
    """Whether a path lies on Google Cloud Storage."""
    return str(path).startswith(("gs://", "/gcs/"))


def record_saved_duration(checkpoint_start_time: float) -> None:
    """Does nothing: the engine's reports have the seconds of a save."""


def pytree_structure(directory: Any) -> Any:
    """The stored tree, with the metadata of its leaves."""
    from ._read import pytree_metadata

    return pytree_metadata(directory).tree


def fully_replicated_host_local_array_to_global_array(arr: Any) -> Any:
    """An array of this process, as a global array that all devices of all processes hold."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    value = np.asarray(arr)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
