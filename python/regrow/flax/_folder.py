"""Lists, adds and removes the checkpoint files of a folder.

    <folder>/<prefix><step>              a checkpoint: a file, or a folder that Orbax has written
    <folder>/<prefix><step>_gda/         arrays of several processes, beside it
    <folder>/<prefix>tmp                 left by a killed writer of Flax
    <folder>/<prefix><step>.orbax-checkpoint-tmp...
                                         being written, by regrow or Orbax

A name counts as a checkpoint only if a number follows the prefix: `checkpoint_99.bak` is never the
latest, never blocks a save, and is never removed.

The engine commits a file as it commits any checkpoint of one file. Older checkpoints are removed
only when the new file is on the disk. The next save in the same folder removes temporary files of
killed writers, and puts back a folder that a killed save was replacing.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
from collections.abc import Iterator
from typing import NamedTuple

from .. import _native
from .._errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    IoError,
    PermissionDeniedError,
    RegrowError,
    StorageFullError,
    failure,
)

ORBAX_CKPT_FILENAME = "checkpoint"
ORBAX_METADATA_FILENAME = "_METADATA"
ORBAX_MANIFEST_OCDBT = "manifest.ocdbt"
ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
MP_ARRAY_POSTFIX = "_gda"

_FOLDER_MARKERS = (
    ORBAX_CKPT_FILENAME,
    ORBAX_METADATA_FILENAME,
    ORBAX_MANIFEST_OCDBT,
    "_CHECKPOINT_METADATA",
    "regrow.json",
)
SIGNED_FLOAT_RE = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)")

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[-+]?\d+", re.ASCII)
_SHOWN = 60


class Found(NamedTuple):
    """A checkpoint in a folder."""

    step: int | float
    text: str
    """The step, as the name writes it."""
    path: str


def step_of(text: str) -> int | float | None:
    """The number at the end of a name; `None` if the end is not a number."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else None


def step_to_save(step: object) -> int | float:
    """The number by which a checkpoint of this step is ordered.

    Raises:
        InvalidArgumentError: if the name would not end in a number, and the checkpoint would never
            be found.
    """
    try:
        text = f"{step}"
        number = step_of(text)
    except ValueError:
        # The number has thousands of digits, more than Python converts.
        text, number = "an integer that long", None
    if number is None or not math.isfinite(float(text)):
        help = "give an integer, or a finite float"
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        what = f"{shown} ({type(step).__name__}) is not a valid step: its checkpoint could not be found again"
        raise failure(InvalidArgumentError, what, help=help)
    return number


def is_checkpoint_folder(path: str) -> bool:
    """Whether a folder is itself a checkpoint of Orbax or regrow."""
    return any(os.path.exists(os.path.join(path, name)) for name in _FOLDER_MARKERS)


def list_checkpoints(base: str) -> tuple[list[Found], list[str]]:
    """The checkpoints whose path begins with `base`, oldest first, and names that only resemble
    checkpoints.

    Two names can spell the same step, ``1`` and ``1.0``. The one written last counts as later: the
    other is from a writer that was killed between a save and its cleanup.
    """
    folder, prefix = os.path.split(base)
    found, strays = [], []
    for name in sorted(_names_in(folder)):
        if not name.startswith(prefix):
            continue
        text = name[len(prefix) :]
        path = os.path.join(folder, name)
        step = step_of(text)
        if step is not None and (not os.path.isdir(path) or is_checkpoint_folder(path)):
            found.append(Found(step, text, path))
        elif text != "tmp" and not name.endswith(MP_ARRAY_POSTFIX) and ORBAX_TEMPORARY not in name:
            strays.append(name)
    found.sort(key=lambda checkpoint: (checkpoint.step, _written_at(checkpoint.path)))
    return found, strays


def outdates(base: str, path: str, step: int | float | None) -> bool:
    """Whether an existing checkpoint prevents the save of this step at `path`."""
    found, _ = list_checkpoints(base)
    return os.path.lexists(path) or (step is not None and any(checkpoint.step >= step for checkpoint in found))


def _written_at(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except (FileNotFoundError, NotADirectoryError):
        return []


# ---- which ones go --------------------------------------------------------------------


def clean_up(
    base: str, saved: str, *, keep: int, overwrite: bool, keep_every_n_steps: int | None, with_arrays: bool
) -> None:
    """Removes checkpoints that need not be kept after the save of `saved`.

    With `overwrite` it removes all later checkpoints, and other spellings of the step. Then it
    removes all but the last `keep` (none, if `keep` is 0). With `keep_every_n_steps` a checkpoint
    also stays if its step is at least this far from the last one that stayed for this reason.
    """
    found, _ = list_checkpoints(base)
    step = next((checkpoint.step for checkpoint in found if checkpoint.path == saved), None)
    if overwrite and step is not None:
        for later in [checkpoint for checkpoint in found if checkpoint.step >= step and checkpoint.path != saved]:
            found.remove(later)
            _remove(later.path, with_arrays)
    last_kept = -float("inf")
    for old in found[:-keep] if keep else []:
        if keep_every_n_steps and old.step and old.step - last_kept >= keep_every_n_steps:
            last_kept = old.step
        elif old.path != saved:
            _remove(old.path, with_arrays)


def _remove(path: str, with_arrays: bool) -> None:
    with as_regrow_error("cannot remove", path), contextlib.suppress(FileNotFoundError):
        if with_arrays and os.path.isdir(path + MP_ARRAY_POSTFIX):
            shutil.rmtree(path + MP_ARRAY_POSTFIX)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)


# ---- how one gets in ------------------------------------------------------------------


def put(path: str, data: bytes, *, overwrite: bool) -> bool:
    """Writes a file: the whole file or nothing, synced to disk. Says whether the name was free."""
    _native.sweep_folder(os.path.dirname(path) or ".")
    try:
        _native.put_checkpoint_file(path, data, overwrite)
    except AlreadyExistsError:
        return False
    return True


@contextlib.contextmanager
def as_regrow_error(what: str, path: str) -> Iterator[None]:
    """A context in which errors of the operating system become errors of regrow, with the file."""
    try:
        yield
    except RegrowError:
        raise
    except OSError as error:
        cls: type[RegrowError] = IoError
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cls = StorageFullError
        elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
            cls = PermissionDeniedError
        raise cls(f"{what} {path}: {error.strerror or error}", file=path) from error
