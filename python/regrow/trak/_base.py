"""TRAK's own classes, or stand-ins if TRAK is not installed.

Importing TRAK imports PyTorch, so only `regrow.trak` imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:

    class AbstractSaver: ...

    class ModelIDException(Exception): ...
else:
    try:
        from trak.savers import AbstractSaver, ModelIDException
    except ImportError:

        class AbstractSaver:
            """The base of TRAK's savers; TRAK's own class if TRAK is installed."""

        class ModelIDException(Exception):
            """A model ID is registered already, or not yet; TRAK's own class where it is
            installed.
            """


__all__ = ["AbstractSaver", "ModelIDException"]
