"""What programs use of Orbax' test helpers."""

from __future__ import annotations

import shutil
from typing import Any

from ._paths import as_path

__all__ = ["empty_directory", "erase_and_create_empty"]


def erase_and_create_empty(directory: Any) -> Any:
    """Removes a folder with all that is in it, and makes it anew."""
    path = as_path(directory)
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


def empty_directory(directory: Any) -> bool:
    """Whether a folder is empty."""
    return not any(as_path(directory).iterdir())
