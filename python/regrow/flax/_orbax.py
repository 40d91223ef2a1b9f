"""Folders of Orbax: saved and restored through the caller's checkpointer, or read without one.

A checkpointer that saves in the background has not committed when its `save` returns. This module
waits for the commit before it lists checkpoints or removes older ones: if the save fails, or the
program dies, the older checkpoints still exist.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

import regrow

from .. import _native
from .. import flax as serialization
from .._core._duck import own_attribute
from .._errors import InvalidArgumentError, MismatchError, failure
from .._load._checkpoint import Checkpoint
from .._load._open import _open
from .._tree._flatten import flatten
from ._orbax_mode import refusal
from ._upstream import is_jax_array, loaded

Task = Callable[[], None]


# ---- through a checkpointer -----------------------------------------------------------


def wait(checkpointer: Any) -> None:
    """Waits until the checkpointer has committed its save."""
    if hasattr(checkpointer, "wait_until_finished"):
        checkpointer.wait_until_finished()


def refuse_single_leaf(checkpointer: Any, target: Any) -> None:
    """Refuses a leaf that only Orbax' handler of single arrays can save.

    Raises:
        InvalidArgumentError: (a `ValueError` too), as the original.
    """
    tree_util = getattr(loaded("jax"), "tree_util", None)
    handler = getattr(checkpointer, "_handler", None)
    is_for_arrays = type(handler).__name__ == "ArrayCheckpointHandler"
    if tree_util is None or is_for_arrays or not tree_util.treedef_is_leaf(tree_util.tree_structure(target)):
        return
    raise refusal(f"a single {type(target).__name__}")


def after_commit(checkpointer: Any, task: Task) -> None:
    """Runs `task` when the last save has been committed: now, or in the call that waits for the
    checkpointer.

    Callers wait with `wait_until_finished`. The checkpointer also calls it before each save and
    restore, and when it is closed. Therefore this method of this one checkpointer runs the due
    tasks.
    """
    if not hasattr(checkpointer, "wait_until_finished"):
        task()
        return
    waiting = _waiting.get(checkpointer)
    if waiting is None:
        waiting = _waiting[checkpointer] = []
        _run_after_waiting(checkpointer, waiting)
    waiting.append(task)


_waiting: weakref.WeakKeyDictionary[Any, list[Task]] = weakref.WeakKeyDictionary()


def _run_after_waiting(checkpointer: Any, waiting: list[Task]) -> None:
    original = type(checkpointer).wait_until_finished
    itself = weakref.ref(checkpointer)

    def wait_until_finished() -> None:
        due = waiting[:]
        waiting.clear()
        # If a save has failed, this raises, and the old checkpoint stays.
        original(itself())
        for task in due:
            task()

    # If the object allows no attributes, one checkpoint too many stays until the next save.
    with contextlib.suppress(AttributeError):
        checkpointer.wait_until_finished = wait_until_finished


def restore_through(checkpointer: Any, path: str, target: Any, transforms: dict[str, Any] | None) -> Any:
    """Restores a folder with a checkpointer, with the arguments of the original. Arrays get the
    shardings of the target's arrays.

    Args:
        checkpointer: Orbax' own, or anything with its `restore`.
        path: The folder.
        target: An object with the structure and the shardings; `None` for all stored leaves.
        transforms: Orbax' transformations.
    """
    options = {} if target is None else _restore_options(checkpointer, target, transforms)
    restored = serialization.to_state_dict(checkpointer.restore(os.path.abspath(path), item=target, **options))
    return restored if target is None else serialization.from_state_dict(target, restored)


def _restore_options(checkpointer: Any, target: Any, transforms: dict[str, Any] | None) -> dict[str, Any]:
    orbax, jax = loaded("orbax.checkpoint"), loaded("jax")
    if orbax is None or jax is None:
        return {} if transforms is None else {"transforms": transforms}
    shardings = jax.tree_util.tree_map(lambda leaf: own_attribute(leaf, "sharding"), target)
    if jax.tree_util.tree_leaves(shardings):
        args = orbax.checkpoint_utils.construct_restore_args(target, shardings, set_global_shape=False)
    else:
        args = jax.tree_util.tree_map(lambda _: orbax.RestoreArgs(restore_type=np.ndarray), target)
    options = {"restore_args": args}
    if isinstance(getattr(checkpointer, "_handler", None), orbax.PyTreeCheckpointHandler):
        if transforms is None:
            flat = orbax.utils.to_flat_dict(target, sep="/", keep_empty_nodes=True)
            transforms = {key: orbax.Transform(use_fallback=True) for key, leaf in flat.items() if leaf is None}
        options["transforms"] = transforms
    return options


# ---- without one ----------------------------------------------------------------------


def restore(path: str, target: Any, transforms: dict[str, Any] | None, strict: bool) -> Any:
    """Restores a folder of Orbax or regrow, without Orbax unless there are transformations.

    Raises:
        MismatchError: with `strict`, if target and checkpoint differ.
        InvalidArgumentError: for transformations, if the program has not imported Orbax.
    """
    if transforms:
        orbax = loaded("orbax.checkpoint")
        if orbax is None:
            help = "import orbax.checkpoint, which has these transformations"
            raise failure(InvalidArgumentError, "orbax_transforms need Orbax", file=path, help=help)
        with orbax.Checkpointer(orbax.PyTreeCheckpointHandler()) as checkpointer:
            return restore_through(checkpointer, path, target, transforms)
    if target is None:
        return serialization.to_state_dict(regrow.load(path))
    try:
        return regrow.load(path, target, extra="error" if strict else "drop")
    except MismatchError:
        if strict:
            raise
        return _native.read_unreplaced(lambda attempt: _restore_what_fits(path, target, attempt))


def _restore_what_fits(path: str, target: Any, attempt: _native.Attempt) -> Any:
    """Restores as Orbax does with the arguments of the original. The checkpoint determines shapes,
    and also dtypes unless the target has JAX arrays. Leaves that are not in the checkpoint keep the
    value of the target.
    """
    flat = flatten(target)
    paths = _native.paths(flat.structure)
    has_shardings = any(own_attribute(leaf, "sharding") is not None for leaf in flat.leaves)
    # The warnings were already passed on by the earlier load.
    checkpoint = Checkpoint(attempt.watch(_open(path)))
    stored: dict[str, list[regrow.reports.Leaf]] = {}
    for found in checkpoint.values():
        stored.setdefault(found.path, []).append(found)
    for printed in paths:
        if len(stored.get(printed, [])) > 1:
            # Ignoring these leaves would leave untrained values in the target without a message.
            help = "give a target that fits the checkpoint: then the keys decide, not their printed form"
            what = f"several leaves of the checkpoint have the printed key path {printed}"
            raise failure(MismatchError, what, first_leaf=printed, help=help)
    alone = {printed: leaves[0] for printed, leaves in stored.items()}
    asked = [_asked(leaf, alone.get(printed)) for leaf, printed in zip(flat.leaves, paths, strict=True)]
    values = flatten(checkpoint.load(flat.with_leaves(asked), extra="drop")).leaves
    for at, (leaf, template) in enumerate(zip(flat.leaves, asked, strict=True)):
        if template is ...:
            values[at] = leaf
        elif template is not leaf:
            values[at] = _as_target(values[at], leaf, has_shardings)
    return flat.with_leaves(values)


def _asked(leaf: Any, stored: regrow.reports.Leaf | None) -> Any:
    """The template for a leaf: the leaf itself if it matches the stored form, otherwise an array of
    the stored form.
    """
    if stored is None or stored.kind in ("placeholder", "unknown"):
        return ...
    if stored.kind in ("str", "prng_key"):
        return "" if stored.kind == "str" else leaf
    if stored.kind == "scalar" and type(leaf) in _KINDS_OF_NUMBERS:
        is_same = stored.dtype.kind in _KINDS_OF_NUMBERS[type(leaf)]
    else:
        is_same = own_attribute(leaf, "shape") == stored.shape and own_attribute(leaf, "dtype") == stored.dtype
    # An array of the stored shape and dtype that takes the memory of one element.
    return leaf if is_same else np.broadcast_to(np.zeros((), stored.dtype), stored.shape)


_KINDS_OF_NUMBERS = {bool: "b", int: "iu", float: "f", complex: "c"}


def _as_target(value: Any, leaf: Any, has_shardings: bool) -> Any:
    """Converts a stored value in the way of Orbax, if its form differs from the target's leaf."""
    sharding = own_attribute(leaf, "sharding")
    if sharding is not None:
        is_committed = not is_jax_array(leaf) or leaf.committed
        return loaded("jax").device_put(value.astype(leaf.dtype), sharding if is_committed else None)
    if not has_shardings or isinstance(value, str):
        return value
    if type(leaf) in _KINDS_OF_NUMBERS and value.ndim == 0:
        return type(leaf)(value.item())
    return value.astype(leaf.dtype) if isinstance(leaf, np.ndarray) else value
