"""Helpers, under Orbax' names."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._jax import jax
from ._paths import TMP_DIR_SUFFIX as TMP_DIR_SUFFIX
from .multihost import broadcast_one_to_all as broadcast_one_to_all
from .multihost import is_primary_host as is_primary_host
from .multihost import reached_preemption as reached_preemption
from .multihost import sync_global_processes as sync_global_processes
from .path.step import any_checkpoint_step as any_checkpoint_step
from .path.step import checkpoint_steps as checkpoint_steps
from .path.step import checkpoint_steps_paths as checkpoint_steps_paths
from .path.step import get_save_directory as get_save_directory
from .path.step import is_checkpoint_finalized as is_checkpoint_finalized
from .path.step import is_tmp_checkpoint as is_tmp_checkpoint
from .path.step import step_from_checkpoint_name as step_from_checkpoint_name
from .path.step import tmp_checkpoints as tmp_checkpoints
from .tree import deserialize_tree as deserialize_tree
from .tree import from_flat_dict as from_flat_dict
from .tree import from_flattened_with_keypath as from_flattened_with_keypath
from .tree import get_key_name as get_key_name
from .tree import is_dict_key as is_dict_key
from .tree import is_empty_node as is_empty_node
from .tree import is_empty_or_leaf as is_empty_or_leaf
from .tree import is_sequence_key as is_sequence_key
from .tree import serialize_tree as serialize_tree
from .tree import to_flat_dict as to_flat_dict
from .tree import to_shape_dtype_struct as to_shape_dtype_struct
from .tree import tuple_path_from_keypath as tuple_path_from_keypath

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
    if not leaf_is_placeholder(placeholder):
        raise ValueError(f"Malformed placeholder: {placeholder}")
    return placeholder.removeprefix(_LEAF_PLACEHOLDER)


def all_leaves_are_placeholders(tree: Any) -> bool:
    return all(leaf_is_placeholder(leaf) for leaf in jax.tree.leaves(tree))


def is_scalar(x: Any) -> bool:
    return isinstance(x, (int, float, np.number))


def is_gcs_path(path: Any) -> bool:
    """Whether a path lies on Google Cloud Storage."""
    return str(path).startswith(("gs://", "/gcs/"))


def record_saved_duration(checkpoint_start_time: float) -> None:
    """Does nothing: the engine's reports have the seconds of a save."""


def pytree_structure(directory: Any) -> Any:
    from ._read import pytree_metadata

    return pytree_metadata(directory).tree


def fully_replicated_host_local_array_to_global_array(arr: Any) -> Any:
    """An array of this process, as a global array that all devices of all processes hold."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    value = np.asarray(arr)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
