"""Recognises the kind of a folder by its files."""

from __future__ import annotations

from typing import Any

from .._paths import as_path

OCDBT_MANIFEST_FILE = "manifest.ocdbt"
PYTREE_METADATA_FILE = "_METADATA"
_AGGREGATE_FILE = "checkpoint"


def is_ocdbt_checkpoint(path: Any) -> bool:
    """Whether the arrays are in an OCDBT database."""
    return bool((as_path(path) / OCDBT_MANIFEST_FILE).exists())


def is_pytree_checkpoint(path: Any) -> bool:
    folder = as_path(path)
    has_arrays = [(child / ".zarray").exists() for child in folder.iterdir() if child.is_dir()]
    has_aggregate = (folder / _AGGREGATE_FILE).is_file()
    if (folder / PYTREE_METADATA_FILE).exists() and (is_ocdbt_checkpoint(folder) or any(has_arrays)):
        return True
    return bool(has_aggregate)


def is_orbax_checkpoint(path: Any) -> bool:
    """Whether a folder is probably a step, an item, or a folder that holds a pytree."""
    folder = as_path(path)
    if not folder.exists():
        raise FileNotFoundError(f"Checkpoint path {folder} does not exist.")
    if not folder.is_dir():
        raise NotADirectoryError(f"Checkpoint path {folder} is not a directory.")
    if (folder / "_CHECKPOINT_METADATA").is_file() or is_pytree_checkpoint(folder):
        return True
    return any(is_pytree_checkpoint(child) for child in folder.iterdir() if child.is_dir())
