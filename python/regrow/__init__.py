"""Fast, verified, atomic pytree checkpoints.

    import regrow

    regrow.save(path, tree)                       # an Orbax checkpoint and safetensors files in one
    regrow.save_async(path, tree)                 # returns at once; saves while the program goes on
    tree = regrow.load(path)                      # numpy views, exact containers; no template, no class needed
    state = regrow.load(path, like=state)         # strict: same structure, shapes and dtypes; jax as in `like`
    ckpt = regrow.open(path)                      # any layout: a mapping of key paths to lazy leaves
    ckpt["params/dense/kernel"][0:16]             # reads just those bytes
    regrow.verify(path).ok

Needs numpy and ml_dtypes; JAX, Flax, Equinox and optax are used when the program has imported them. Loading never
runs code from a file and never imports a class that a file names.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from . import _native
from ._attempts import attempts
from ._errors import (
    AlreadyExistsError,
    CancelledError,
    CorruptError,
    InvalidArgumentError,
    IoError,
    LeafNotFoundError,
    LeafTypeError,
    LimitError,
    MismatchError,
    NameCollisionError,
    NotACheckpointError,
    NotFoundError,
    PermissionDeniedError,
    RegrowError,
    ReplacedError,
    SourceChangedError,
    StorageFullError,
    UncommittedError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._async import AsyncSave, AsyncSaver, Blocked, save_async
    from ._checkpoint import Checkpoint, Finding, Item, Leaf, StrPath, VerifyReport
    from ._convert import ConvertPlan, ConvertReport, LeafForm, Loss, PlannedLeaf, convert
    from ._handlers import LeafHandler, LeafRegistry, StandardHandler
    from ._nodes import Node, PrngKey, UnknownLeaf
    from ._options import OrbaxOptions
    from ._progress import Progress
    from ._report import SaveReport, StageReport

__version__: str = _native.__version__

__all__ = [
    "AlreadyExistsError",
    "AsyncSave",
    "AsyncSaver",
    "Blocked",
    "CancelledError",
    "Checkpoint",
    "ConvertPlan",
    "ConvertReport",
    "CorruptError",
    "Finding",
    "InvalidArgumentError",
    "IoError",
    "Item",
    "Leaf",
    "LeafForm",
    "LeafHandler",
    "LeafNotFoundError",
    "LeafRegistry",
    "LeafTypeError",
    "LimitError",
    "Loss",
    "MismatchError",
    "NameCollisionError",
    "Node",
    "NotACheckpointError",
    "NotFoundError",
    "OrbaxOptions",
    "PermissionDeniedError",
    "PlannedLeaf",
    "PrngKey",
    "RegrowError",
    "ReplacedError",
    "SaveReport",
    "SourceChangedError",
    "StageReport",
    "StandardHandler",
    "StorageFullError",
    "UncommittedError",
    "UnknownLeaf",
    "UnsupportedError",
    "VerifyReport",
    "convert",
    "load",
    "open",
    "overview",
    "save",
    "save_async",
    "verify",
]

# What needs NumPy is imported when it is first used: NumPy alone takes ten times as long as all that is above.
_HOMES = {
    "_async": ("AsyncSave", "AsyncSaver", "Blocked", "save_async"),
    "_checkpoint": ("Checkpoint", "Finding", "Item", "Leaf", "StrPath", "VerifyReport"),
    "_convert": ("ConvertPlan", "ConvertReport", "LeafForm", "Loss", "PlannedLeaf", "convert"),
    "_handlers": ("LeafHandler", "LeafRegistry", "StandardHandler"),
    "_nodes": ("Node", "PrngKey", "UnknownLeaf"),
    "_options": ("OrbaxOptions",),
    "_progress": ("Progress",),
    "_report": ("SaveReport", "StageReport"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(importlib.import_module(f".{home}", __name__), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def save(
    path: StrPath,
    tree: Any,
    *,
    layout: str = "regrow",
    overwrite: bool = False,
    durable: bool = True,
    cast: Any = None,
    compression: Any = None,
    metadata: Any = None,
    strict_orbax: bool = False,
    base: StrPath | None = None,
    budget: int | None = None,
    orbax: OrbaxOptions | None = None,
    handlers: LeafRegistry | None = None,
    progress: Progress = None,
    **options: Any,
) -> SaveReport:
    """Saves a pytree at `path`: all of it or nothing, synced to disk.

    Args:
        path: The folder to make.
        tree: Any pytree: dicts with `str` or `int` keys (their order is kept), lists, tuples, named tuples, `None`,
            dataclasses and all that is registered with JAX; leaves are NumPy and JAX arrays of any dtype, NumPy
            and Python numbers, `str`, `bytes` and typed PRNG keys. It must not change while it is being saved.
        layout: ``"regrow"``, an Orbax checkpoint and safetensors files in one set of bytes; or the layout of another
            tool: ``"orbax"``, ``"flax"``, ``"equinox"``, ``"pytree_data"``, ``"trak"``, ``"safetensors"``, ``"npy"``.
        overwrite: Replace a checkpoint that is there; a folder or file that is none is refused.
        durable: Sync to disk before returning. Without it a power cut may cost the checkpoint.
        cast: A dtype for all arrays, or a dict of globs over key paths: ``{"params/**": "bfloat16"}``.
        compression: ``"none"``, ``"zstd"``, ``("zstd", level)`` or a zstd level; the layout's default if `None`.
        metadata: Your own metadata: anything that JSON can say.
        strict_orbax: Refuse leaves that Orbax could not read back as they are, instead of escaping them.
        base: An earlier checkpoint, mostly the last one: data files in which nothing changed since are hard-linked
            instead of written. What changed is found by comparing bytes or digests. Only for ``layout="regrow"``
            without compression. The base may be removed afterwards.
        budget: Extra memory in bytes; 64 MiB if `None`.
        orbax: Options of ``layout="orbax"``; each can be given as a keyword of its own instead.
        handlers: Who is in charge of leaves of your own types.
        progress: `None`: a bar on a terminal if it takes longer than a second; `True`: a bar; `False`: none; or a
            function of the bytes done and the bytes in all. What that raises ends the save, as Ctrl-C does.
        **options: Options of the layout.

    Raises:
        AlreadyExistsError: if `path` is there and `overwrite` was not given.
        LeafTypeError: for a leaf or key that no checkpoint can hold, with its key path.
        NotFoundError: if there is no `base`.
        NameCollisionError: if two leaves would get the same name in the layout asked for.
        StorageFullError, PermissionDeniedError.

    Whatever it raises, nothing that was there before has changed, and nothing is left of what was begun.
    """
    from . import _options
    from ._leaves import to_native
    from ._progress import Watch
    from ._report import SaveReport
    from ._tree import flatten

    native_options = _options.save_options(
        layout=layout,
        overwrite=overwrite,
        durable=durable,
        cast=cast,
        compression=compression,
        metadata=metadata,
        strict_orbax=strict_orbax,
        base=base,
        budget=budget,
        orbax=orbax,
        options=options,
    )
    flat = flatten(tree, handlers)
    with Watch(progress, "saving") as watch:
        report = _native.save(os.fsdecode(path), flat.structure, to_native(flat), native_options, watch)
    return SaveReport.from_native(report)


def load(
    path: StrPath,
    like: Any = None,
    *,
    only: str | Iterable[str] | None = None,
    cast: Any = None,
    partial: bool = False,
    out: Any = None,
    verify: bool = True,
    mmap: bool = False,
    step: int | None = None,
    item: str | None = None,
    shardings: Any = None,
    budget: int | None = None,
    handlers: LeafRegistry | None = None,
    progress: Progress = None,
) -> Any:
    """Loads a checkpoint of any layout, every block checked.

    Without a template arrays come back as read-only NumPy arrays (views of the file itself where they are stored raw
    and the page cache has them, or where they are more than half of the memory available; else read into memory),
    containers as what they were, classes as named tuples of the same name or as `Node`, PRNG keys as `PrngKey`.

    Args:
        path: A checkpoint, or a folder of steps.
        like: A template. Key paths, shapes and dtypes must be the same; leaves become what it holds: `jax.Array`
            with its sharding, NumPy arrays, numbers, text. What no checkpoint can hold stays as it is in `like`.
        only: Globs over key paths: ``"params/**"``. Others vanish from dicts and become ``...`` in sequences; with
            `like` they stay as they are there.
        cast: A dtype for all arrays, or a dict of globs over key paths.
        partial: With `like`: leave out what it lacks, instead of an error.
        out: A pytree of writable NumPy arrays to be filled; it is also what is returned. Contiguous arrays are read
            into as they are and checked on the way: after an error their contents are unspecified.
        verify: Check data against checksums before handing it out.
        mmap: Make views of the file of all that is stored raw, also where the page cache does not have it yet: slower
            to begin with, and memory that the system can take back.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        shardings: Make JAX arrays: one sharding for all, or a dict of globs (or a tree) of them.
        budget: Extra memory beyond the result, in bytes; 64 MiB if `None`.
        handlers: Who restores leaves of your own types; without, they come back as what they are made of.
        progress: As for `save`.

    Raises:
        MismatchError: if the template differs, with every difference.
        CorruptError: with file, leaf and offset.
        NotFoundError, NotACheckpointError, UncommittedError: if there is nothing to load.
    """
    options = {
        "only": only,
        "cast": cast,
        "partial": partial,
        "out": out,
        "verify": verify,
        "mmap": mmap,
        "shardings": shardings,
        "budget": budget,
        "handlers": handlers,
        "progress": progress,
    }
    for is_last in attempts():
        before = _identity(path)
        try:
            return open(path, step=step, item=item).load(like, **options)
        except RegrowError as error:
            # Replaced while it was being read: what is there now is whole, and as good an answer.
            is_replaced = isinstance(error, ReplacedError) or _identity(path) != before
            if is_last or not is_replaced:
                raise
    raise AssertionError("the last attempt returns or raises")


def _identity(path: StrPath) -> tuple[int, int, int] | None:
    """Which folder it is; the time tells apart two that were given the same inode one after the other."""
    try:
        status = os.stat(path)
    except OSError:
        try:
            # A pytree's data and manifest go by a name that neither of them has.
            status = os.stat(os.fsdecode(path) + ".manifest")
        except OSError:
            return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def open(path: StrPath, *, step: int | None = None, item: str | None = None) -> Checkpoint:
    """Opens a checkpoint of any layout: metadata only.

    Raises:
        NotFoundError, NotACheckpointError, UncommittedError, CorruptError, UnsupportedError.
    """
    from ._checkpoint import Checkpoint

    return Checkpoint(_open(path, step, item))


def verify(
    path: StrPath, *, step: int | None = None, item: str | None = None, progress: Progress = None
) -> VerifyReport:
    """Reads and checks the whole checkpoint; damage to one leaf does not hide damage to the next.

    Args:
        path: A checkpoint, or a folder of steps.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        progress: As for `save`.

    Raises:
        RegrowError: only if the checkpoint cannot be opened at all.
    """
    return open(path, step=step, item=item).verify(progress=progress)


def overview(path: StrPath, *, step: int | None = None, item: str | None = None) -> str:
    """The leaves as a table: key path, dtype, shape, bytes; then the totals."""
    return _open(path, step, item).overview()


def _open(path: StrPath, step: int | None, item: str | None) -> _native.Checkpoint:
    from . import _options

    return _native.open(os.fsdecode(path), _options.count("step", step), item)
