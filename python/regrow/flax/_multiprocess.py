"""Arrays that several processes hold together, as legacy checkpoints have them.

The state dict has the text `//GDAPlaceholder:<path>` where such an array was; the array is a zarr
array in the folder `<checkpoint>_gda/<path>`. Only the caller's `GlobalAsyncCheckpointManager`
can read it onto the devices of all processes. This module finds the arrays, and calls the manager
with their paths.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

from .._errors import CorruptError, UnsupportedError, failure
from .._text import counted
from ._folder import MP_ARRAY_POSTFIX
from ._state_dict import to_state_dict
from ._upstream import is_jax_array, loaded
from .errors import (
    MPACheckpointingRequiredError,
    MPARestoreDataCorruptedError,
    MPARestoreTargetRequiredError,
    raised,
)

MP_ARRAY_PH = "//GDAPlaceholder:"

Path = tuple[str, ...]


def split_shared(state: Any) -> tuple[Any, list[tuple[Any, str]]]:
    """The state with placeholders for arrays with shards in other processes, and these arrays with
    their paths.
    """
    shared = {at: leaf for at, leaf in _leaves(state) if _is_shared(leaf)}
    names = {at: "/".join(map(str, at)) for at in shared}
    placeholders = {at: MP_ARRAY_PH + name for at, name in names.items()}
    return _replaced(state, placeholders), [(leaf, names[at]) for at, leaf in shared.items()]


def refuse_shared(state: Any, path: str, step: Any, gda_manager: Any) -> None:
    """Refuses to save arrays with shards in other processes. One error names all of them."""
    shared = ["/".join(at) or "." for at, leaf in _leaves(state) if _is_shared(leaf)]
    if not shared:
        return
    if not gda_manager:
        raise raised(MPACheckpointingRequiredError)(path, step, shared)
    help = "save them as an Orbax checkpoint, or gather them first with process_allgather"
    lines = "".join(f"\n    {name}" for name in shared)
    arrays = counted(len(shared), "array has", "arrays have")
    raise failure(
        UnsupportedError,
        f"{arrays} parts in other processes{lines}",
        first_leaf=shared[0],
        file=path,
        help=help,
    )


def restore_shared(state: Any, target: Any, path: str, step: Any, gda_manager: Any, allow_partial: bool) -> Any:
    """The state with the arrays in place of their placeholders.

    Raises:
        MPACheckpointingRequiredError: if there are placeholders and no manager.
        MPARestoreTargetRequiredError: if the target has no array in such a place.
        MPARestoreDataCorruptedError: if the folder of an array is missing.
        CorruptError: if a placeholder names a path outside the checkpoint's folder of arrays.
    """
    waiting = [(at, leaf) for at, leaf in _leaves(state) if isinstance(leaf, str) and leaf.startswith(MP_ARRAY_PH)]
    if not waiting:
        return state
    folders = {at: _folder_of(at, leaf, path) for at, leaf in waiting}
    report = [_line(at, folder) for at, folder in folders.items()]
    if not gda_manager:
        raise raised(MPACheckpointingRequiredError)(path, step, report)
    if target is None and not allow_partial:
        raise raised(MPARestoreTargetRequiredError)(path, step, None, report)
    targets = dict(_leaves(to_state_dict(target)))
    known = [at for at in folders if is_jax_array(targets.get(at))]
    unknown = [at for at in folders if not is_jax_array(targets.get(at))]
    if unknown and not allow_partial:
        report = [_line(at, folders[at]) for at in unknown]
        raise raised(MPARestoreTargetRequiredError)(path, step, unknown[0], report)
    missing = [at for at in known if not os.path.isdir(folders[at])]
    if missing:
        report = [_line(at, folders[at]) for at in missing]
        raise raised(MPARestoreDataCorruptedError)(step, path, report)
    if not known:
        return state
    gda_manager.wait_until_finished()
    specs = [{"driver": "zarr", "kvstore": {"driver": "file", "path": os.path.abspath(folders[at])}} for at in known]
    arrays = gda_manager.deserialize([targets[at].sharding for at in known], specs)
    return _replaced(state, dict(zip(known, arrays, strict=True)))


def is_first_process() -> bool:
    """Whether this process writes the checkpoint."""
    jax = loaded("jax")
    return jax is None or jax.process_index() == 0


def wait_for_all(name: str) -> None:
    """Waits until all processes have made this call."""
    jax = loaded("jax")
    if jax is not None and jax.process_count() > 1:
        importlib.import_module("jax.experimental.multihost_utils").sync_global_devices(name)


def _folder_of(at: Path, placeholder: str, path: str) -> str:
    name = placeholder.removeprefix(MP_ARRAY_PH)
    if os.path.isabs(name) or ".." in name.split("/"):
        leaf = "/".join(map(str, at)) or "."
        raise CorruptError(f"{path}: {leaf} is in {name}, outside the checkpoint", file=path, leaf=leaf)
    return os.path.join(path + MP_ARRAY_POSTFIX, name)


def _is_shared(leaf: Any) -> bool:
    return is_jax_array(leaf) and not leaf.is_fully_addressable


def _leaves(state: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(state, dict):
        for key, child in state.items():
            yield from _leaves(child, (*at, key))
    else:
        yield at, state


def _replaced(state: Any, arrays: dict[Path, Any], at: Path = ()) -> Any:
    if isinstance(state, dict):
        return {key: _replaced(child, arrays, (*at, key)) for key, child in state.items()}
    return arrays.get(at, state)


def _line(at: Path, folder: str) -> str:
    note = "" if os.path.isdir(folder) else ", which is missing"
    return f"{'/'.join(map(str, at)) or '.'} is in {folder}{note}"
