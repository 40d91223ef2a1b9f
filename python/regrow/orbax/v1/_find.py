"""Finds a checkpoint and its pytrees, by Orbax' rules.

A checkpoint with the file ``orbax.checkpoint`` is of v1: its checkpointables have names, and it has
a ``_CHECKPOINT_METADATA``. All others are of v0: checkpointables by name, or one pytree. A pytree
has a ``_METADATA``.
"""

from __future__ import annotations

from typing import Any

from ..._errors import RegrowError
from ..._load._open import open as open_checkpoint
from .._composite import item_names
from .._errors import not_covered
from .._paths import as_path, is_temporary, lacks_marker
from .._paths import is_pytree as is_pytree
from ..metadata import read_step_metadata
from . import _deletion
from ._context import current
from ._layout import AUTO_CHECKPOINTABLE_KEY as AUTO
from ._layout import (
    CHECKPOINT_METADATA_FILENAME,
    ORBAX_CHECKPOINT_INDICATOR_FILE,
    PYTREE_METADATA_FILE,
    InvalidLayoutError,
    invalid,
)
from ._layout import RESERVED_CHECKPOINTABLE_KEYS as RESERVED
from ._layout import STATE_CHECKPOINTABLE_KEY as STATE
from .options import CheckpointLayout

_COPY = "copy the whole checkpoint again"
_MARKS = (CHECKPOINT_METADATA_FILENAME, ORBAX_CHECKPOINT_INDICATOR_FILE)


def names_in(path: Any, *, requested: Any = ()) -> list[str]:
    """The checkpointables of a checkpoint, without those whose deletion was started."""
    deleted = _deletion.pending(path, requested)
    return [name for name in item_names(path) if name not in RESERVED and name != deleted]


def checkpoint(path: Any) -> Any:
    """The path of a committed checkpoint: a folder, or the file of another layout."""
    path = as_path(path)
    wrong = _what_is_wrong(path)
    if wrong is not None:
        why, help = wrong
        what = f"Could not recognize the checkpoint at {path} as a valid Orbax checkpoint: {why}"
        raise invalid(path, what, help)
    return path


def _what_is_wrong(path: Any) -> tuple[str, str | None] | None:
    """The reason, and what to do; `None` for a committed checkpoint."""
    if not path.exists():
        return f"Checkpoint at {path} not found.", None
    if is_temporary(path) or lacks_marker(path, current().atomicity):
        return f"Found incomplete checkpoint at {path}.", "load one that was committed"
    if not path.is_dir():
        return None
    has_metadata = (path / CHECKPOINT_METADATA_FILENAME).exists()
    if _is_v1(path):
        return None if has_metadata else (f"{CHECKPOINT_METADATA_FILENAME} is missing", _COPY)
    if (path.parent / CHECKPOINT_METADATA_FILENAME).exists():
        return "it is a part of a checkpoint", f"give {path.parent}, and checkpointable_name={path.name!r}"
    if not (has_metadata or is_pytree(path)) and any(
        (child / CHECKPOINT_METADATA_FILENAME).exists() for child in path.iterdir()
    ):
        return "it is a folder of checkpoints", "give the path of one"
    return None


def composite(path: Any) -> Any:
    """The path of a checkpoint with named checkpointables."""
    if current().checkpoint_layout is CheckpointLayout.SAFETENSORS:
        raise not_covered("checkpointables of the layout safetensors", "use load() or metadata()")
    path = checkpoint(path)
    is_single = not path.is_dir() or is_pytree(path)
    if is_single or (not _is_v1(path) and isinstance(read_step_metadata(path).item_handlers, str)):
        raise invalid(path, f"{path} is one pytree, with no named checkpointables", "use load() or metadata()")
    if not item_names(path):
        raise invalid(path, f"{path} has no named checkpointables", "use load()")
    return path


def pytree(path: Any, name: str | None) -> tuple[Any, str | None]:
    """The path of a pytree: a checkpoint and one of its names, or the path itself for `None`."""
    if name == "" or (name != AUTO and name in RESERVED):
        raise ValueError(f"checkpointable_name: expected the name of a pytree, found {name!r}")
    path = checkpoint(path)
    if current().checkpoint_layout is CheckpointLayout.SAFETENSORS and path.is_dir():
        if not any(file.name.endswith(".safetensors") for file in path.iterdir()):
            raise invalid(path, f"{path} has no safetensors files")
        return path, None
    wanted = None if name == AUTO else name
    if not path.is_dir() or (wanted is None and is_pytree(path)):
        if wanted is not None:
            raise no_pytree(path, "it is one file", "leave checkpointable_name out")
        return path, None
    names = names_in(path, requested=() if wanted is None else (wanted,))
    found = sorted((one for one in names if is_pytree(path / one)), key=lambda one: (one != STATE, one))
    if name == AUTO and found:
        return path, found[0]
    if wanted is None:
        _refuse_others(path, found)
        return path, None
    if wanted in found:
        return path, wanted
    if is_pytree(path):
        raise no_pytree(path, f"it is one pytree, and has no {name!r}", "give checkpointable_name=None")
    raise no_pytree(path, f"it has no pytree {name!r}; it has {found}", "give one of these names")


def _refuse_others(path: Any, found: list[str]) -> None:
    """Refuses a folder of Orbax that is not itself a pytree."""
    if found or _is_v1(path) or isinstance(read_step_metadata(path).item_handlers, dict):
        help = "use load_checkpointables()" if not found else "give one of these names, or none"
        raise no_pytree(path, f"the pytrees in it have names: {found}", help)
    if _is_of_orbax(path):
        raise no_pytree(path, f"{PYTREE_METADATA_FILE} is missing", _COPY)


def _is_of_orbax(path: Any) -> bool:
    """Whether a folder has the layout of Orbax, and not of another tool."""
    try:
        return open_checkpoint(path).layout == "orbax"
    except RegrowError as error:
        return PYTREE_METADATA_FILE in error.message


def no_pytree(path: Any, why: str, help: str | None = None) -> InvalidLayoutError:
    what = f"Failed to interpret path {path} as a {'V1' if _is_v1(path) else 'V0'} Orbax PyTree: {why}"
    return invalid(path, what, help)


def is_orbax_checkpoint(path: Any) -> bool:
    """Whether the path is a checkpoint of Orbax, not a part of one and not a folder of several."""
    path = as_path(path)
    if not path.is_dir() or is_temporary(path) or _is_marked(path.parent):
        return False
    return any((path / mark).exists() for mark in (*_MARKS, PYTREE_METADATA_FILE))


def _is_v1(path: Any) -> bool:
    return bool((path / ORBAX_CHECKPOINT_INDICATOR_FILE).exists())


def _is_marked(path: Any) -> bool:
    return any((path / mark).exists() for mark in _MARKS)
