"""Loads objects that a training script has saved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import _native
from .._core import _arguments, _options
from .._core._cache import through
from .._core._keywords import keywords
from .._core._location import StrPath, place, shown
from .._core._options import Options
from .._core._progress import Progress
from .._core._warnings import warn
from .._errors import IncompleteCheckpointWarning, InvalidArgumentError, LimitError
from .._load._load import refuse_placeholders
from .._load._opening import opening_of
from ._encode import Walk
from ._locations import mover
from ._nested import nested, path_within, paths_of
from ._read import Asked, Opened
from ._select import dropped


@keywords
def load(
    path: StrPath,
    map_location: Any = None,
    *,
    like: Any = None,
    at: str | None = None,
    only: str | Sequence[str] | None = None,
    step: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = None,
    options: Options | None = None,
) -> Any:
    """Loads an object as `save` has saved it. No code of a file is ever run.

    If another tool has saved the checkpoint, in any layout, arrays become tensors. Arrays of dtypes
    that torch does not have stay NumPy arrays.

    Args:
        path: A checkpoint, or a folder of steps.
        map_location: The devices of the tensors, as for `torch.load`: a device; a dict of devices;
            a function of storage and location that returns a storage or `None`. With `None`, each
            tensor goes to the device on which it was saved.
        like: An object with tensors at the same key paths, of the same shapes and dtypes. Each
            loaded tensor gets the device, mesh and placements of its tensor there. Each process
            reads the parts that it has. Everything else is as it was saved.
        at: The item of a checkpoint with several items; all items if `None`.
        only: Globs over key paths, as for `regrow.load`. The rest is not read, and may be
            unsupported. In lists and tuples ``...`` takes its place. A set, or a dict with keys of
            any kind, is selected as a whole.
        step: The step of a folder of steps; the newest if `None`.
        storage_options: Options for the storage of a URL, as for `regrow.save`.
        progress: As for `regrow.load`.
        options: Rare settings. With `mmap` the tensors are in private maps of the files: they are
            read when they are used, and changes to them do not reach the files. With
            ``checksums=False`` nothing is read before that.

    Raises:
        MismatchError: if `like` differs, with the first 100 differences.
        CorruptError: with file, leaf and offset.
        NotFoundError, NotACheckpointError, UncommittedError: if there is no checkpoint to load.
    """
    rare = _options.chosen(options, "load")
    asked = Asked(
        _arguments.patterns(only),
        mover(map_location),
        _arguments.flag("mmap", rare.mmap),
        _arguments.flag("checksums", rare.checksums),
        _arguments.budget(rare.budget_bytes),
        progress,
    )
    if like is not None and (map_location is not None or rare.mmap or asked.only):
        raise InvalidArgumentError(
            "`like` names the tensors and their devices: give no `map_location`, `mmap` or `only` with it"
        )
    where = through(rare.cache, place("path", path, storage_options))
    # `Opened` maps tensors itself, in private maps.
    opening = opening_of(replace(rare, mmap=False), step, at)
    warned: list[str] = []

    def read(attempt: _native.Attempt) -> Any:
        native = attempt.watch(_native.open(where, opening))
        warned[:] = native.warnings
        metadata = None if native.metadata is None else json.loads(native.metadata)
        opened = Opened(native, metadata)
        if like is None and not asked.only:
            refuse_placeholders(native.placeholders([]), "select others with `only`")
        try:
            if like is not None:
                return nested(opened.load_like(_tensors_of(like), asked), metadata)
            paths = paths_of(metadata) or {}
            made = nested(opened.load(asked, lambda keys: path_within(paths, keys)), metadata)
            return dropped(made) if asked.only else made
        except RecursionError:
            raise LimitError(f"{shown(path)} is nested too deeply for Python") from None

    try:
        return _native.read_unreplaced(read)
    finally:
        for warning in warned:
            warn(f"{shown(path)}: {warning}", IncompleteCheckpointWarning)


def _tensors_of(like: Any) -> dict[Any, Any]:
    """The tensors of a template by key path."""
    walk = Walk()
    walk.encoded(like, ())
    return {seen.keys: seen.tensor for seen in walk.tensors}
