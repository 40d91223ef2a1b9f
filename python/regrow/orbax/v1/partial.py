"""One checkpoint of a pytree that is saved in parts, one after the other, and published in the end.

    ocp.partial.save(path, {"encoder": encoder})
    ocp.partial.save(path, {"decoder": decoder})
    ocp.partial.finalize(path)

Until `finalize` there is nothing at the path. A part is a checkpoint of regrow's own layout in ``<path>.partial_save``,
whose arrays are views of its files: `finalize` holds none of them in memory while it writes the whole.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import _job
from ..._checkpoint import Leaf
from ..._items import ItemsSave
from ..._leaves import JAX_ARRAY, NUMPY_ARRAY
from ..._nodes import PrngKey
from ..._open import open as open_checkpoint
from ..._options import OrbaxOptions
from .. import _saving
from .._errors import as_orbax
from .._jax import jax
from .._paths import absolute
from ..tree import from_flattened_with_keypath, is_empty_node, tuple_path_from_keypath
from . import _pytrees
from ._context import current
from ._layout import STATE_CHECKPOINTABLE_KEY as STATE
from ._responses import Response

__all__ = ["finalize", "save", "save_async"]

SUFFIX = ".partial_save"


class PartialSaveReplacementError(ValueError):
    """A leaf is saved twice."""


_TIMEOUT_SECONDS = 1200
"""How long processes wait for each other."""


def save(path: Any, state: Any, *, custom_metadata: Any = None) -> None:
    """Saves some leaves of a checkpoint. Leaves that are saved later may not be saved again.

    Raises:
        FileExistsError: if there is something at the path.
        PartialSaveReplacementError: (a `ValueError`) for a leaf that was saved before.
        ValueError: for leaves that cannot be saved.
    """
    save_async(path, state, custom_metadata=custom_metadata).result()


def save_async(path: Any, state: Any, *, custom_metadata: Any = None) -> Response[None]:
    """The same in the background: returns when the snapshot is taken."""
    from ..._async import saver_of_calls

    final, session = _places(path)
    if final.exists():
        raise FileExistsError(f"Finalized checkpoint already exists at {final}.\n  help: delete it first")
    _pytrees.check_leaves(state)
    _refuse_saved(session, state)
    tree, keywords = _pytrees.save_plan(state, current())
    told = {"custom_metadata": custom_metadata or {}, "whole": _form(keywords)}
    # Sorted by name, parts are in the order of their saves.
    part = session / f"{time.time_ns():020}-{uuid.uuid4().hex}"
    with as_orbax():
        saving = saver_of_calls().save(str(part), tree, layout="regrow", metadata=told, when_busy="queue", **keywords)

    def finish() -> None:
        with as_orbax():
            saving.wait()

    return Response(finish)


def finalize(path: Any) -> None:
    """Publishes what was saved in parts: all of it or nothing.

    Raises:
        FileExistsError: if there is something at the path.
        FileNotFoundError: if nothing was saved in parts for it.
        PartialSaveReplacementError: (a `ValueError`) for a leaf that was saved twice.
    """
    final, session = _places(path)
    if final.exists():
        raise FileExistsError(f"Finalized checkpoint already exists at {final}.\n  help: delete it first")
    if not session.exists():
        raise FileNotFoundError(f"Partial save path {session} does not exist.\n  help: call partial.save() first")
    _saving.barrier(f"{final}:finalize", _TIMEOUT_SECONDS)
    if _saving.is_primary():
        with as_orbax():
            _publish(final, session)
        shutil.rmtree(session)
    _saving.barrier(f"{final}:finalized", _TIMEOUT_SECONDS)


def _form(keywords: dict[str, Any]) -> dict[str, Any]:
    """Of the keywords of a save those that say how the whole is written, taken out of them, as JSON has them."""
    form = {name: keywords.pop(name) for name in list(keywords) if name not in ("budget", "replica_parallel")}
    if "orbax" in form:
        form["orbax"] = dataclasses.asdict(form["orbax"])
    return form


def _places(path: Any) -> tuple[Any, Any]:
    """Where the checkpoint will be, and where its parts are."""
    path = absolute(path)
    final = path.parent / path.name.removesuffix(SUFFIX)
    return final, final.parent / f"{final.name}{SUFFIX}"


def _parts(session: Any) -> list[Any]:
    if not session.exists():
        return []
    return sorted(part for part in session.iterdir() if (part / "regrow.json").exists())


def _refuse_saved(session: Any, state: Any) -> None:
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    wanted = {tuple_path_from_keypath(keys) for keys, leaf in flat if leaf is not ...}
    for part in _parts(session):
        for keys, leaf in _leaves_of(open_checkpoint(str(part)).tree):
            if isinstance(leaf, Leaf) and leaf.kind != "placeholder":
                _refuse(tuple_path_from_keypath(keys), wanted)


def _refuse(at: tuple[str, ...], others: Any) -> None:
    if at in others:
        raise PartialSaveReplacementError(
            f"the leaf {'/'.join(at)} was saved in an earlier part\n  help: save each leaf once"
        )


def _leaves_of(tree: Any) -> list[tuple[Any, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, (Leaf, PrngKey)) or is_empty_node(node)
    )
    return list(flat)


def _publish(final: Any, session: Any) -> None:
    """Writes what is in the parts as one checkpoint."""
    leaves: dict[tuple[str, ...], tuple[Any, Any]] = {}
    shardings: dict[int, Any] = {}
    custom: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for part in _parts(session):
        checkpoint = open_checkpoint(str(part))
        about = checkpoint.metadata or {}
        told = told or about
        custom |= about["custom_metadata"]
        loaded = checkpoint.load(mmap=True, progress=False)
        for (keys, leaf), (_, value) in zip(_leaves_of(checkpoint.tree), _leaves_of(loaded), strict=True):
            at = tuple_path_from_keypath(keys)
            if value is ...:
                continue
            _refuse(at, leaves)
            leaves[at] = keys, value
            if isinstance(leaf, Leaf) and leaf.kind == "jax_array":
                shardings[id(value)] = leaf.sharding
    options: dict[str, Any] = dict(told["whole"] if told else _form(_pytrees.save_plan(None, current())[1]))
    if "orbax" in options:
        options["orbax"] = OrbaxOptions(**options["orbax"])
    if jax.process_count() > 1:
        options["job"] = _job.Job.alone()
    with ItemsSave(str(final), metadata=custom or None, **options) as whole:
        if leaves:
            _add(whole, from_flattened_with_keypath(list(leaves.values())), shardings)
        whole.commit()


def _add(whole: ItemsSave, tree: Any, shardings: Mapping[int, Any]) -> None:
    """Adds the tree, its arrays as what they were when they were saved: JAX' or NumPy's."""
    import json

    flat, columns, options = whole._tree(STATE, tree, {})
    kinds = bytearray(columns.kinds)
    texts = dict(columns.shardings)
    for at, value in enumerate(flat.leaves):
        if id(value) in shardings and kinds[at] == NUMPY_ARRAY and isinstance(value, np.ndarray):
            kinds[at] = JAX_ARRAY
            if shardings[id(value)] is not None:
                texts[at] = json.dumps(shardings[id(value)])
    columns = columns._replace(kinds=bytes(kinds), shardings=texts)
    whole._native.tree(STATE, flat.structure, columns, options, False)
