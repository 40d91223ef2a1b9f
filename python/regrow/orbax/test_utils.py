"""The helpers of Orbax' tests that programs use."""

from __future__ import annotations

import shutil
from typing import Any

from ._errors import refusing
from ._paths import as_path

__getattr__ = refusing(__name__, ("*", "it belongs to Orbax' own tests"))


def erase_and_create_empty(directory: Any) -> Any:
    """Removes a folder with its content, and makes it again."""
    path = as_path(directory)
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


def empty_directory(directory: Any) -> bool:
    return not any(as_path(directory).iterdir())
