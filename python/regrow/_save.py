"""Saving a pytree."""

from __future__ import annotations

from typing import Any, Unpack

from . import _arguments, _job, _native, _options
from ._keywords import SAVE, SaveOptions
from ._leaves import to_native
from ._location import StrPath, places
from ._progress import Progress, Watch
from ._report import SaveReport
from ._tree import flatten


@SAVE.documented
def save(path: StrPath, tree: Any, *, progress: Progress = None, **options: Unpack[SaveOptions]) -> SaveReport:
    """Saves a pytree at `path`: all of it or nothing, synced to disk.

    Args:
        path: The folder or file to make, or its URL; not inside a checkpoint.
        tree: Any pytree: dicts with `str` or `int` keys (their order is kept), lists, tuples, named tuples, `None`,
            dataclasses and all that is registered with JAX; leaves are NumPy and JAX arrays of any dtype, tensors of
            PyTorch, NumPy and Python numbers, `str`, `bytes` and typed PRNG keys. It must not change while it is
            being saved.
        progress: `None`: a bar on a terminal if it takes longer than a second; `True`: a bar; `False`: none; or a
            function of the bytes done and the bytes in all. What that raises ends the save, as Ctrl-C does.
        **options: The keywords of `SaveOptions`.

    Raises:
        AlreadyExistsError: if `path` is there and `overwrite` was not given.
        LeafTypeError: for a leaf or key that no checkpoint can hold, with its key path.
        NotFoundError: if there is no `base`; for globs that match no leaf, all of them named.
        NameCollisionError: if two leaves would get the same name in the layout asked for.
        InvalidArgumentError: for a place that no checkpoint can be saved to; for options that do not fit.
        UnsupportedError: for leaves that the tool of the layout would not read back as they are, unless `lossy` was
            given: it names them; for a URL of which this build knows no storage.
        NotDurableError: if the new checkpoint is there, but might not survive a power cut.
        TimedOutError: in a job, with the ranks that have not come and the phase in which they are missed.
        StorageFullError: if the disk is full.
        PermissionDeniedError: where the user may not write.

    In a job of several processes an error of one is an error of all. After any error but `NotDurableError` nothing that
    was there before has changed, and nothing is left of what was begun.
    """
    with _job.posts_errors(options.get("job"), path):
        given = SAVE.chosen("save", options, ["progress"])
        at = places(given["storage_options"], path=path, base=given["base"])
        given = _options.with_layout(given, at["path"])
        native_options = _options.of_write(given, at.get("base"))
        flat = flatten(tree, _arguments.handlers(given["handlers"]), layout=given["layout"])
        leaves = to_native(flat, _arguments.flag("replica_parallel", given["replica_parallel"]))
    with Watch(progress, "saving") as watch:
        report = _native.save(at["path"], flat.structure, leaves, native_options, watch)
    return SaveReport.from_native(report)
