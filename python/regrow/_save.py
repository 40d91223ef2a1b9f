"""Saving a pytree."""

from __future__ import annotations

from typing import Any

from . import _arguments, _native, _options
from ._checkpoint import StrPath
from ._handlers import LeafRegistry
from ._leaves import to_native
from ._options import OrbaxOptions
from ._progress import Progress, Watch
from ._report import SaveReport
from ._tree import flatten


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
        path: The folder or file to make, on a local file system; not inside a checkpoint.
        tree: Any pytree: dicts with `str` or `int` keys (their order is kept), lists, tuples, named tuples, `None`,
            dataclasses and all that is registered with JAX; leaves are NumPy and JAX arrays of any dtype, NumPy
            and Python numbers, `str`, `bytes` and typed PRNG keys. It must not change while it is being saved.
        layout: ``"regrow"``, an Orbax checkpoint and safetensors files in one set of bytes; or the layout of another
            tool: ``"orbax"``, ``"flax"``, ``"equinox"``, ``"pytree_data"``, ``"trak"``, ``"safetensors"``, ``"npy"``.
        overwrite: Replace a checkpoint that is there; a folder or file that is none is refused, and so is a checkpoint
            with files of your own beside it.
        durable: Sync to disk before returning. Without it a power cut may cost the checkpoint.
        cast: A dtype for all arrays, or a dict of globs over key paths, each of which has to match a leaf:
            ``{"params/**": "bfloat16"}``.
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
        NotFoundError: if there is no `base`; for globs that match no leaf, all of them named.
        NameCollisionError: if two leaves would get the same name in the layout asked for.
        InvalidArgumentError: for a place that no checkpoint can be saved to.
        UnsupportedError: for an address such as ``gs://bucket/x``.
        NotDurableError: if the new checkpoint is there, but might not survive a power cut.
        StorageFullError, PermissionDeniedError.

    After any error but `NotDurableError` nothing that was there before has changed, and nothing is left of what was
    begun.
    """
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
    target = _arguments.path("path", path)
    flat = flatten(tree, _arguments.handlers(handlers), layout=layout)
    with Watch(progress, "saving") as watch:
        report = _native.save(target, flat.structure, to_native(flat), native_options, watch)
    return SaveReport.from_native(report)
