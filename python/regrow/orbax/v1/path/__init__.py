"""Paths, and paths of folders that are being made."""

from __future__ import annotations

import os
from typing import Any, Protocol, runtime_checkable

from ..._paths import path_class
from . import step as step

Path: Any = path_class()
PathLike = str | os.PathLike[str]


@runtime_checkable
class PathAwaitingCreation(Protocol):
    """A folder that exists after `await_creation`."""

    @property
    def path(self) -> Any: ...

    def __truediv__(self, other: Any) -> PathAwaitingCreation: ...

    async def await_creation(self) -> Any: ...
