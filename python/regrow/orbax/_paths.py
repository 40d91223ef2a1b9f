"""Path objects as callers of Orbax use them: of etils if it is installed, else of the standard
library.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
from typing import Any

from .._errors import failure
from ._bucket_path import BucketPath, bucket_path

TMP_DIR_SUFFIX = ".orbax-checkpoint-tmp"
COMMIT_SUCCESS_FILE = "commit_success.txt"


def as_path(path: Any) -> Any:
    """A path with ``/``, ``exists`` and ``iterdir``. One in a bucket reads through the engine."""
    found = bucket_path(path)
    return path_class()(os.fspath(path)) if found is None else found


def path_class() -> Any:
    """The class of paths of the local file system."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("etils.epath").Path
    return pathlib.Path


def absolute(path: Any) -> Any:
    path = as_path(path)
    if not path.is_absolute():
        raise failure(
            ValueError, f"Checkpoint path should be absolute. Got {path}", help=f"give os.path.abspath({str(path)!r})"
        )
    return path


def read_json(file: Any) -> dict[str, Any] | None:
    """The JSON object in a file; `None` if the file is missing or holds anything else."""
    try:
        told = json.loads(as_path(file).read_text())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def is_pytree(path: Any) -> bool:
    """Whether a folder is a pytree in the layout of Orbax or regrow."""
    return any((as_path(path) / name).exists() for name in ("_METADATA", "regrow.json"))


def is_temporary(path: Any) -> bool:
    """Whether a folder is a save in progress, or the temporary files of a broken one."""
    path = as_path(path)
    return TMP_DIR_SUFFIX in path.name and not os.path.islink(path)


def wants_marker(atomicity_options: Any) -> bool:
    """Whether options accept a folder on a disk only with the marker of a commit."""
    if atomicity_options is None:
        return False
    mode = getattr(atomicity_options.mode, "name", None)
    if mode not in ("AUTO", "ATOMIC_RENAME", "COMMIT_FILE"):
        raise ValueError(f"Unsupported atomicity_mode: {atomicity_options.mode}.")
    return mode == "COMMIT_FILE" and not atomicity_options.allow_legacy_atomic_rename


def lacks_marker(path: Any, atomicity_options: Any) -> bool:
    """Whether options want a marker and a folder has none: its save never ended."""
    return wants_marker(atomicity_options) and not (as_path(path) / COMMIT_SUCCESS_FILE).is_file()


def is_finalized(path: Any, atomicity_options: Any = None) -> bool:
    """Whether a folder is committed: by its marker in a bucket or on request, else by its name."""
    path = as_path(path)
    if not path.exists():
        raise FileNotFoundError(f"Checkpoint path {path} does not exist.")
    if not path.is_dir():
        raise NotADirectoryError(f"Checkpoint path {path} is not a directory.")
    if isinstance(path, BucketPath) and not (path / COMMIT_SUCCESS_FILE).is_file():
        return False
    return not is_temporary(path) and not lacks_marker(path, atomicity_options)
