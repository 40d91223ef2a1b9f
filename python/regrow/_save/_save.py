"""Saves a pytree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _native
from .._core import _arguments
from .._core._keywords import keywords
from .._core._location import StrPath, places
from .._core._options import Options
from .._core._progress import Progress, Watch
from .._core._report import SaveReport
from .._jobs import _job
from .._jobs._job import Job
from .._leaves._columns import to_native
from .._tree._flatten import flatten
from ._layout import Layout
from ._writing import Writing


@keywords
def save(
    path: StrPath,
    tree: Any,
    *,
    layout: str | Layout | None = None,
    overwrite: bool = False,
    cast: Any = None,
    lossy: bool = False,
    compression: Any = None,
    metadata: Any = None,
    base: StrPath | None = None,
    durable: bool = True,
    parity: str | None = None,
    seal: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    job: Job | None = None,
    options: Options | None = None,
) -> SaveReport:
    """Saves a pytree at `path`: the whole pytree or nothing, synced to disk.

    Args:
        path: The folder or file to create, or its URL; not inside a checkpoint.
        tree: Any pytree: dicts with `str` or `int` keys (their order is kept), lists, tuples, named
            tuples, `None`, dataclasses and everything that is registered with JAX. Leaves are NumPy
            and JAX arrays of any dtype, tensors of PyTorch, NumPy and Python numbers, `str`,
            `bytes` and typed PRNG keys. Do not change it during the save.
        layout: `None`: the suffix of the path chooses one file (``.safetensors``, ``.npz``,
            ``.npy``, ``.msgpack``, ``.eqx``); any other path is a folder in the layout
            ``"regrow"``, an Orbax checkpoint and safetensors files in one. Otherwise the layout of
            another tool, by name or with options from `regrow.layouts`: ``"orbax"``, ``"flax"``,
            ``"equinox"``, ``"pytree_data"``, ``"trak"``, ``"safetensors"``, ``"npy"``.
        overwrite: Replace the checkpoint at `path`. A folder or file that is no checkpoint is
            refused, and so is a checkpoint with files of your own beside it.
        cast: A dtype, or a dict of globs over key paths: ``{"params/**": "bfloat16"}``. A floating
            dtype casts floating arrays only, an integer dtype integers, and so on; the whole key
            path of one array casts that array in any case: ``{"step": "float32"}``. A value that
            would change beyond rounding is an error.
        lossy: Also save leaves that the tool of the layout does not read back as they are; the
            report lists them. Let casts change values beyond rounding, as NumPy's ``astype`` does:
            overflow to infinity, integers that wrap around.
        compression: ``"none"``, ``"zstd"``, ``("zstd", level)`` or a zstd level; the layout's
            default if `None`.
        metadata: Your own metadata: any JSON value.
        base: An earlier checkpoint, usually the last one. Data files without changes since then are
            hard-linked instead of written. Only for the layout ``"regrow"`` without compression.
            You may delete the base later.
        durable: Sync to disk before returning. Without it a power cut can destroy the checkpoint.
        parity: Also write parity, as `regrow.protect.add_parity` does: ``"1/16"`` for a sixteenth
            of the size, with which `regrow.protect.repair` can restore the same amount.
        seal: Also write a seal, as `regrow.protect.seal` does. The layout ``"regrow"`` has its
            checksums without one.
        storage_options: Options for the storage of a URL, by the names of fsspec or of the cloud:
            ``{"endpoint_url": ..., "key": ..., "secret": ...}``. Missing options come from the
            environment.
        progress: `None`: a bar on a terminal if the save takes longer than a second; `True`: a bar;
            `False`: no bar; or a function of the bytes done and the total bytes. An exception in
            the function ends the save, as Ctrl-C does.
        job: The processes that save together. `None`: in an initialised job of JAX, torch or MPI
            all of its processes; each calls the save with the same tree and writes the shards that
            it holds. ``regrow.jobs.Job.alone()``: this process alone.
        options: Rare settings.

    Raises:
        AlreadyExistsError: if `path` exists and `overwrite` was not given.
        LeafTypeError: for a leaf or key that no checkpoint can hold, with its key path.
        NotFoundError: if `base` does not exist; for globs that match no leaf, with all of them.
        NameCollisionError: if two leaves would get the same name in this layout.
        InvalidArgumentError: for a path at which no checkpoint can be saved; for options that do
            not fit.
        UnsupportedError: for leaves that the tool of the layout does not read back as they are,
            with their names, unless `lossy` was given; for a URL of a storage that this build does
            not support.
        NotDurableError: if the new checkpoint is committed, but may not survive a power cut.
        TimedOutError: in a job, with the ranks that are missing and the phase in which they are.
        StorageFullError: if the disk is full.
        PermissionDeniedError: if you may not write at the path.

    In a job an error of one process is an error of all processes. After any error except
    `NotDurableError` nothing has changed, and the temporary files are deleted.
    """
    writing = Writing(
        layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
        base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options, job=job, options=options,
    )  # fmt: skip
    return save_as(path, tree, writing, progress)


def save_as(path: StrPath, tree: Any, writing: Writing, progress: Progress = None) -> SaveReport:
    """Saves a pytree with the keywords in `writing`."""
    with _job.posts_errors(writing.asked_job(), path):
        at = places(writing.storage_options, path=path, base=writing.base)
        writing = writing.laid_out(at["path"])
        request, rare = writing.request(at.get("base")), writing.rare()
        flat = flatten(tree, _arguments.handlers(rare.handlers), layout=writing.layout_name)
        leaves = to_native(flat, _arguments.flag("replica_parallel", rare.replica_parallel))
    with Watch(progress, "saving") as watch:
        report = _native.save(at["path"], flat.structure, leaves, request, watch)
    return SaveReport.from_native(report)
