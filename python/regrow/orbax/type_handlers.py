"""Types of leaves, as Orbax names what has to do with them.

The engine saves and restores leaves; handlers of types of your own are for `regrow.LeafRegistry`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ._errors import not_covered
from ._leaf_args import PLACEHOLDER, ArrayRestoreArgs, RestoreArgs, SaveArgs, SingleReplicaArrayRestoreArgs

__all__ = [
    "PLACEHOLDER",
    "ArrayHandler",
    "ArrayRestoreArgs",
    "NumpyHandler",
    "RestoreArgs",
    "SaveArgs",
    "ScalarHandler",
    "SingleReplicaArrayHandler",
    "SingleReplicaArrayRestoreArgs",
    "StringHandler",
    "TypeHandler",
    "is_ocdbt_checkpoint",
    "register_type_handler",
]


class TypeHandler:
    """What saves and restores leaves of one type."""


class _Accepted(TypeHandler):
    """One of Orbax' own: its options say how Orbax does its work, and change nothing here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class ArrayHandler(_Accepted):
    """JAX arrays."""


class SingleReplicaArrayHandler(ArrayHandler):
    """JAX arrays, read by one replica; see `regrow.SingleReplica`."""


class NumpyHandler(_Accepted):
    """NumPy arrays."""


class ScalarHandler(_Accepted):
    """Numbers."""


class StringHandler(_Accepted):
    """Text."""


def register_type_handler(ty: Any, handler: Any, func: Any = None, override: bool = False) -> None:
    """Accepts Orbax' own handlers, for types that the engine knows.

    Raises:
        NotCoveredError: for a handler of your own.
    """
    if not isinstance(handler, _Accepted) and not type(handler).__module__.startswith("orbax.checkpoint"):
        _refuse(type(handler).__name__)


def _refuse(name: str) -> NoReturn:
    raise not_covered(
        f"type handlers of your own ({name})", "give a regrow.LeafRegistry to regrow.save and regrow.load"
    )


def is_ocdbt_checkpoint(path: Any) -> bool:
    """Whether the arrays are in a database."""
    from ._paths import as_path

    return bool((as_path(path) / "manifest.ocdbt").exists())
