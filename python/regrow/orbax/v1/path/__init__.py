"""Paths, and those of folders that are being made."""

from __future__ import annotations

import os
from typing import Any, Protocol, runtime_checkable

from ..._paths import path_class
from . import step

__all__ = ["Path", "PathAwaitingCreation", "PathLike", "step"]

Path: Any = path_class()
PathLike = str | os.PathLike[str]


@runtime_checkable
class PathAwaitingCreation(Protocol):
    """A folder that will be there once one has waited for it."""

    @property
    def path(self) -> Any:
        """Where it will be."""

    def __truediv__(self, other: Any) -> PathAwaitingCreation:
        """A folder in it."""
        ...

    async def await_creation(self) -> Any:
        """Waits for it; the path."""
