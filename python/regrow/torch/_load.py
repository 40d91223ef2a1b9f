"""Loading what a training script has saved."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _arguments
from .._cache import Cache, through
from .._errors import IncompleteCheckpointWarning, InvalidArgumentError, LimitError
from .._load import refuse_placeholders
from .._location import StrPath, place, shown
from .._open import _open, _until_unreplaced
from .._progress import Progress
from ._encode import Walk
from ._locations import mover
from ._nested import nested, path_within, paths_of
from ._read import Asked, Opened
from ._select import dropped


def load(
    path: StrPath,
    map_location: Any = None,
    *,
    like: Any = None,
    only: str | Sequence[str] | None = None,
    mmap: bool = False,
    verify: bool = True,
    step: int | None = None,
    item: str | None = None,
    strict: bool = False,
    budget: int | None = None,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: StrPath | Cache | None = None,
) -> Any:
    """Loads what `save` has saved: the same object. Nothing of a file is ever run.

    Of a checkpoint that something else has saved, in any layout, arrays become tensors. Those of dtypes that torch
    lacks stay NumPy's.

    Args:
        path: A checkpoint, or a folder of steps.
        map_location: Where tensors go, as for `torch.load`: a device; a dict of devices; a function of storage and
            location that gives a storage, or `None`. Where they were saved, if `None`.
        like: An object with tensors at the same key paths, of the same shapes and dtypes: each tensor becomes like the
            one there, with its device, mesh and placements. Each process reads the parts that it has. All else is what
            was saved.
        only: Globs over key paths, as for `regrow.load`: the rest is not read, and what of it is refused does no harm.
            In lists and tuples ``...`` stands in its place. A set, or a dict with keys of any kind, is chosen whole.
        mmap: Tensors lie in private maps of the files: read when they are looked at, and what is written to them does
            not reach the files. With ``verify=False`` nothing is read before.
        verify: Check data against checksums before handing it out.
        step: The step of a folder of steps; the newest if `None`.
        item: The item of a checkpoint of several; all of them if `None`.
        strict: As for `regrow.open`.
        budget: Extra memory beyond the result, in bytes; 64 MiB if `None`.
        progress: As for `regrow.load`.
        storage_options: How to reach the storage of a URL, as for `regrow.save`.
        cache: As for `regrow.load`.

    Raises:
        MismatchError: if `like` differs, with every difference.
        CorruptError: with file, leaf and offset.
        NotFoundError, NotACheckpointError, UncommittedError: if there is nothing to load.
    """
    asked = Asked(
        _arguments.patterns(only),
        mover(map_location),
        _arguments.flag("mmap", mmap),
        _arguments.flag("verify", verify),
        _arguments.count("budget", budget),
        progress,
    )
    if like is not None and (map_location is not None or mmap or asked.only):
        raise InvalidArgumentError(
            "`like` says which tensors there are, and where they go: give no `map_location`, `mmap` or `only` with it"
        )
    at = through(cache, place("path", path, storage_options))
    warned: list[str] = []

    def read() -> Any:
        native = _open(at, step, item, strict=strict)
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
        return _until_unreplaced(at, read)
    finally:
        for warning in warned:
            warnings.warn(f"{shown(path)}: {warning}", IncompleteCheckpointWarning, stacklevel=2)


def _tensors_of(like: Any) -> dict[Any, Any]:
    """The tensors of a template by key path."""
    walk = Walk()
    walk.encoded(like, ())
    return {seen.keys: seen.tensor for seen in walk.tensors}
