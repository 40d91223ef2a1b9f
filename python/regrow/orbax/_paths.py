"""Paths as Orbax' callers have them: of etils where it is installed, else of the standard library."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
from typing import Any

TMP_DIR_SUFFIX = ".orbax-checkpoint-tmp"
COMMIT_SUCCESS_FILE = "commit_success.txt"


def as_path(path: Any) -> Any:
    """A path with ``/``, ``exists``, ``iterdir`` and ``as_posix``."""
    return path_class()(os.fspath(path))


def path_class() -> Any:
    """The class of such paths."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("etils.epath").Path
    return pathlib.Path


def absolute(path: Any) -> Any:
    """The path of a checkpoint.

    Raises:
        ValueError: for a relative one, as Orbax: jobs whose processes start in different folders would part.
    """
    path = as_path(path)
    if not path.is_absolute():
        raise ValueError(f"Checkpoint path should be absolute. Got {path}\n  help: give os.path.abspath({str(path)!r})")
    return path


def is_temporary(path: Any) -> bool:
    """Whether a folder is a save in progress, or what one has left."""
    path = as_path(path)
    return TMP_DIR_SUFFIX in path.name and not os.path.islink(path)


def is_finalized(path: Any) -> bool:
    """Whether a folder has been committed.

    Raises:
        FileNotFoundError, NotADirectoryError: if it is no folder.
    """
    path = as_path(path)
    if not path.exists():
        raise FileNotFoundError(f"Checkpoint path {path} does not exist.")
    if not path.is_dir():
        raise NotADirectoryError(f"Checkpoint path {path} is not a directory.")
    return not is_temporary(path)
