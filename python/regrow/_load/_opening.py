"""The options with which the engine opens a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._location import StrPath

if TYPE_CHECKING:
    from .._core._options import Options

TrustedKeys = StrPath | Iterable[StrPath] | None
"""Public keys, each as text or as the path of a file."""


class Opening(NamedTuple):
    """The engine's options of opening, as columns, with their defaults."""

    step: int | None = None
    item: str | None = None
    lost_is_error: bool = False
    arrays_only: bool = False
    mmap: bool = False
    ignore_seal: bool = False
    trusted_keys: tuple[str, ...] = ()
    """The keys, as hex digits."""
    by_names: bool = False
    """Whether a template gives the tree. Arrays without their tree are then opened by their names.
    """


def keys_of(trusted_keys: TrustedKeys) -> tuple[str, ...]:
    """The hex digits of the trusted keys; none if the call requires no signature."""
    if trusted_keys is None:
        return ()
    wanted = "a public key, the path of a file with one, or several of these"
    if isinstance(trusted_keys, (str, os.PathLike)):
        given: list[StrPath] = [trusted_keys]
    elif isinstance(trusted_keys, Iterable):
        given = list(trusted_keys)
    else:
        raise _arguments.wrong("trusted_keys", trusted_keys, wanted)
    # An empty list trusts no key, so nothing could be loaded. It is probably a mistake.
    if not given or not all(isinstance(key, (str, os.PathLike)) for key in given):
        raise _arguments.wrong("trusted_keys", trusted_keys, wanted)
    return tuple(_native.public_key(os.fspath(key)) for key in given)


def opening_of(rare: Options, step: int | None, item: str | None = None, *, by_names: bool = False) -> Opening:
    """The checked options of opening, from the settings of a call."""
    lost = _arguments.choice("lost_files", rare.lost_files, ("warn", "error"))
    return Opening(
        _arguments.count("step", step),
        _arguments.text("item", item),
        lost == "error",
        _arguments.flag("arrays_only", rare.arrays_only),
        _arguments.flag("mmap", rare.mmap),
        _arguments.flag("ignore_seal", rare.ignore_seal),
        keys_of(rare.trusted_keys),
        by_names,
    )
