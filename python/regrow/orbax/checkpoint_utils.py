"""Makes restore args from a target, and waits for checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._core._duck import has, own_attribute
from . import _leaf_args, metadata
from ._errors import refusing
from ._jax import jax
from ._leaf_args import PLACEHOLDER
from ._paths import as_path
from .path import step as steps

__all__ = [
    "PLACEHOLDER",
    "STANDARD_ARRAY_TYPES",
    "checkpoints_iterator",
    "construct_restore_args",
    "wait_for_new_checkpoint",
]

STANDARD_ARRAY_TYPES = (int, float, np.ndarray, jax.Array)

__getattr__ = refusing(__name__, {"get_snapshot_dir_from_step_dir": "no snapshots are made: see checkpoints_iterator"})


def construct_restore_args(
    target: Any,
    sharding_tree: Any = None,
    set_global_shape: bool = True,
    support_layout: bool = False,
    strict: bool = True,
) -> Any:
    """The restore args of the leaves of a target.

    Args:
        target: A pytree of arrays, their descriptions, metadata, numbers and text.
        sharding_tree: Shardings by leaf, instead of those of the target.
        set_global_shape: Also ask for the target's shapes.
        support_layout: Ignored: the device decides on memory layouts.
        strict: As in `ArrayRestoreArgs`.

    Raises:
        ValueError: for a leaf of another kind.
    """
    if isinstance(target, metadata.TreeMetadata):
        shardings = sharding_tree.tree if isinstance(sharding_tree, metadata.TreeMetadata) else sharding_tree
        args = construct_restore_args(target.tree, shardings, set_global_shape, support_layout, strict)
        return metadata.TreeMetadata(args, target.custom_metadata)
    if sharding_tree is None:
        return jax.tree.map(lambda leaf: _of_leaf(leaf, _sharding(leaf), set_global_shape, strict), target)
    return jax.tree.map(
        lambda leaf, sharding: _of_leaf(leaf, sharding, set_global_shape, strict), target, sharding_tree
    )


def _sharding(leaf: Any) -> Any:
    sharding: Any = own_attribute(leaf, "sharding")
    return sharding.to_jax_sharding() if has(sharding, "to_jax_sharding") else sharding


def _of_leaf(leaf: Any, sharding: Any, set_global_shape: bool, strict: bool) -> Any:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _leaf_args.ArrayRestoreArgs(sharding=sharding, strict=strict)
    if isinstance(leaf, metadata.StringMetadata) or type(leaf).__name__ == "StringMetadata" or isinstance(leaf, str):
        return _leaf_args.RestoreArgs(restore_type=str)
    if type(leaf).__name__ == "ScalarMetadata":
        kinds = {"i": int, "u": int, "f": float, "b": bool}
        return _leaf_args.RestoreArgs(restore_type=kinds.get(np.dtype(leaf.dtype).kind, float), dtype=leaf.dtype)
    is_described = isinstance(leaf, jax.ShapeDtypeStruct) or type(leaf).__name__ == "ArrayMetadata"
    if isinstance(leaf, jax.Array) or (is_described and sharding is not None):
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        shape = leaf.shape if set_global_shape and not is_key else None
        dtype = None if is_key else leaf.dtype
        return _leaf_args.ArrayRestoreArgs(sharding=sharding, global_shape=shape, dtype=dtype, strict=strict)
    if is_described or isinstance(leaf, np.ndarray):
        return _leaf_args.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
    if isinstance(leaf, (int, float)) and not isinstance(leaf, np.generic):
        return _leaf_args.RestoreArgs(restore_type=type(leaf))
    if leaf is PLACEHOLDER:
        return _leaf_args.RestoreArgs(restore_type=type(PLACEHOLDER))
    raise ValueError(f"Unsupported type: {type(leaf)}")


@contextlib.contextmanager
def wait_for_new_checkpoint(
    checkpoint_dir: Any,
    *,
    until_step: int | None = None,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    step_prefix: str | None = None,
    step_format_fixed_length: int | None = None,
    step_name_format: Any = None,
    snapshot_dir: Any = None,
    set_immutable: bool | None = None,
    ignore_snapshot_errors: bool = True,
) -> Iterator[int]:
    """Waits for a step of at least `until_step`. ``with`` gives its number, or -1 after the
    time-out.
    """
    form = step_name_format or _names(step_prefix, step_format_fixed_length)
    yield _wait(checkpoint_dir, form, until_step, seconds_to_sleep, timeout, timeout_fn)


def _names(step_prefix: str | None, step_format_fixed_length: int | None) -> Any:
    return steps.standard_name_format(step_prefix=step_prefix, step_format_fixed_length=step_format_fixed_length)


def _wait(
    checkpoint_dir: Any,
    form: Any,
    until_step: int | None,
    seconds_to_sleep: float,
    timeout: float | None,
    timeout_fn: Callable[[], bool] | None,
) -> int:
    began = time.monotonic()
    while True:
        found = steps.latest_step_metadata(checkpoint_dir, form) if as_path(checkpoint_dir).exists() else None
        if found is not None and (until_step is None or found.step >= until_step):
            latest: int = found.step
            return latest
        if timeout is not None and time.monotonic() - began + seconds_to_sleep > timeout:
            if timeout_fn is None or timeout_fn():
                return -1
            began = time.monotonic()
        time.sleep(seconds_to_sleep)


def checkpoints_iterator(
    checkpoint_dir: Any,
    *,
    min_interval_secs: float = 0,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    step_prefix: str | None = None,
    step_format_fixed_length: int | None = None,
    step_name_format: Any = None,
    snapshot_dir: Any = None,
    set_immutable: bool | None = None,
    ignore_snapshot_errors: bool = True,
) -> Iterator[int]:
    """Yields the newest step each time there is a newer one. Ends after the time-out.

    Unlike Orbax it makes no snapshot folder: an open checkpoint stays readable while it is deleted.
    """
    last = -1
    form = step_name_format or _names(step_prefix, step_format_fixed_length)
    while True:
        began = time.monotonic()
        step = _wait(checkpoint_dir, form, last + 1, seconds_to_sleep, timeout, timeout_fn)
        if step < 0:
            # As in Orbax, the function that ended the wait is called once more.
            if timeout_fn is None or timeout_fn():
                return
            continue
        last = step
        yield step
        time.sleep(max(0.0, began + min_interval_secs - time.monotonic()))
