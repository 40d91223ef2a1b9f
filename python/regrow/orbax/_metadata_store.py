"""Reads and writes the JSON files of checkpoints and managers' folders, as dicts."""

from __future__ import annotations

import json
import os
from typing import Any

from ._paths import as_path, read_json


def step_metadata_file_path(path: Any) -> Any:
    return _folder(path) / "_CHECKPOINT_METADATA"


def root_metadata_file_path(path: Any, *, legacy: bool = False) -> Any:
    """The metadata file of a manager's folder; with `legacy`, under its name before 2024."""
    return _folder(path) / ("metadata" if legacy else "_ROOT_METADATA")


def _folder(path: Any) -> Any:
    folder = as_path(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"Path is not a directory: {folder}")
    return folder


class MetadataStore:
    """Reads and writes JSON files of metadata. They are small, so `write` waits for the file."""

    def __init__(self, enable_write: bool) -> None:
        self._enable_write = enable_write

    def is_blocking_writer(self) -> bool:
        """Whether `write` returns after the file is written."""
        return True

    def write(self, file_path: Any, metadata: dict[str, Any]) -> None:
        """Writes a file, and replaces an existing one."""
        file = as_path(file_path)
        if not self._enable_write:
            return
        if not file.parent.exists():
            raise ValueError(f"Metadata path does not exist: {file.parent}")
        staged = file.parent / f".{file.name}.{os.getpid()}"
        staged.write_text(json.dumps(metadata))
        staged.replace(file)

    def read(self, file_path: Any) -> dict[str, Any] | None:
        """The content of a file; `None` if it is missing or is not JSON."""
        return read_json(file_path)

    def update(self, file_path: Any, **kwargs: Any) -> None:
        """Replaces some keys of a file."""
        if self._enable_write:
            self.write(file_path, (self.read(file_path) or {}) | kwargs)

    def wait_until_finished(self) -> None:
        """Waits for writes in progress."""

    def close(self) -> None:
        """Waits for writes, and closes the store."""


def metadata_store(*, enable_write: bool, blocking_write: bool = False) -> MetadataStore:
    """A store; without `enable_write` it only reads. Writes always block."""
    return MetadataStore(enable_write)
