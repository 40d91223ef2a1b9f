"""Reads Flax' switch for folders of Orbax, and saves such a folder if the switch is on and the
caller gives no checkpointer.

`regrow.save` writes the same layout as Orbax' checkpointer of pytrees, without Orbax or JAX.
"""

from __future__ import annotations

import os
from typing import Any

import regrow

from .. import _native
from .._core._duck import own_attribute
from .._errors import AlreadyExistsError, InvalidArgumentError, LeafTypeError, failure
from .._tree._flatten import flatten
from ._upstream import loaded
from .errors import InvalidCheckpointError, raised

SWITCH = "flax_use_orbax_checkpointing"
_OFF = ("0", "f", "false", "n", "no", "off")


class UnsupportedLeafError(LeafTypeError, ValueError):
    """A folder of Orbax cannot hold a leaf of this type. Orbax raises a `ValueError`."""


def is_on() -> bool:
    """The setting of Flax' configuration, which is on by default. Without Flax, the environment
    variable that sets it.
    """
    configured = own_attribute(getattr(loaded("flax.configurations"), "config", None), SWITCH)
    return os.environ.get(SWITCH.upper(), "on").lower() not in _OFF if configured is None else bool(configured)


def check(target: Any) -> None:
    """Refuses leaves that folders of Orbax cannot hold.

    Raises:
        InvalidArgumentError: (a `ValueError` too) for a single leaf and for an empty target.
    """
    if _native.paths(flatten(target).structure) == ["."]:
        raise refusal(f"a single {type(target).__name__}")
    if target is None or (hasattr(target, "__len__") and len(target) == 0):
        raise refusal("an empty target")


def save(path: str, target: Any, step: Any, *, overwrite: bool) -> None:
    """Saves a folder of Orbax.

    Raises:
        InvalidCheckpointError: (a `ValueError` too) if the path exists and `overwrite` was not
            given.
        UnsupportedLeafError: (a `TypeError` and a `ValueError`) for a leaf that Orbax cannot store.
    """
    try:
        regrow.save(path, target, layout="orbax", overwrite=overwrite)
    except AlreadyExistsError:
        raise raised(InvalidCheckpointError)(path, step) from None
    except LeafTypeError as error:
        raise UnsupportedLeafError(error.message, file=error.file, leaf=error.leaf, help=error.help) from None


def refusal(found: str) -> InvalidArgumentError:
    """The error for a leaf that only Flax' legacy files hold."""
    help = f"save a dict with leaves in it, or turn {SWITCH} off"
    what = f"Orbax backend only accept pytree as save target, not {found}"
    return failure(InvalidArgumentError, what, help=help)
