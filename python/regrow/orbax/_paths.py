"""Paths as Orbax' callers have them: of etils where it is installed, else of the standard
library.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
from typing import Any

from ._bucket_path import BucketPath, bucket_path

TMP_DIR_SUFFIX = ".orbax-checkpoint-tmp"
COMMIT_SUCCESS_FILE = "commit_success.txt"


def as_path(path: Any) -> Any:
    """A path with ``/``, ``exists``, ``iterdir`` and ``as_posix``; of a bucket one that reads
    through the engine.
    """
    found = bucket_path(path)
    return path_class()(os.fspath(path)) if found is None else found


def path_class() -> Any:
    """The class of paths of the local file system."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("etils.epath").Path
    return pathlib.Path


def absolute(path: Any) -> Any:
    """The path of a checkpoint.

    Raises:
        ValueError: for a relative one, as Orbax: jobs whose processes start in different folders
            would part.
    """
    path = as_path(path)
    if not path.is_absolute():
        raise ValueError(f"Checkpoint path should be absolute. Got {path}\n  help: give os.path.abspath({str(path)!r})")
    return path


def is_temporary(path: Any) -> bool:
    """Whether a folder is a save in progress, or what one has left."""
    path = as_path(path)
    return TMP_DIR_SUFFIX in path.name and not os.path.islink(path)


def wants_marker(atomicity_options: Any) -> bool:
    """Whether options say that only the marker of a commit makes a folder on a disk a checkpoint.

    Raises:
        ValueError: for a mode that there is not.
    """
    if atomicity_options is None:
        return False
    mode = getattr(atomicity_options.mode, "name", None)
    if mode not in ("AUTO", "ATOMIC_RENAME", "COMMIT_FILE"):
        raise ValueError(f"Unsupported atomicity_mode: {atomicity_options.mode}.")
    return mode == "COMMIT_FILE" and not atomicity_options.allow_legacy_atomic_rename


def lacks_marker(path: Any, atomicity_options: Any) -> bool:
    """Whether a folder has no marker, and options want one: its save never ended."""
    return wants_marker(atomicity_options) and not (as_path(path) / COMMIT_SUCCESS_FILE).is_file()


def is_finalized(path: Any, atomicity_options: Any = None) -> bool:
    """Whether a folder has been committed: by its marker in a bucket and where options say so, else
    by its name.

    Raises:
        ValueError: for options of a mode that there is not.
        FileNotFoundError, NotADirectoryError: if it is no folder.
    """
    path = as_path(path)
    if not path.exists():
        raise FileNotFoundError(f"Checkpoint path {path} does not exist.")
    if not path.is_dir():
        raise NotADirectoryError(f"Checkpoint path {path} is not a directory.")
    if isinstance(path, BucketPath) and not (path / COMMIT_SUCCESS_FILE).is_file():
        return False
    return not is_temporary(path) and not lacks_marker(path, atomicity_options)
