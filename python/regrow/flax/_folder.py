"""A folder of checkpoint files: what is in it, how one more gets in, which ones go.

    <folder>/<prefix><step>              a checkpoint: a file, or a folder that Orbax has written
    <folder>/<prefix><step>_gda/         arrays of several processes, beside it
    <folder>/<prefix>tmp                 what a killed writer of Flax has left
    <folder>/<prefix><step>.orbax-checkpoint-tmp...
                                         a folder of Orbax that is being written, by regrow or Orbax
    <folder>/.<prefix><step>.regrow-tmp-<pid>-<random>
                                         being written here; locked while its writer lives
    <folder>/.<prefix><step>.regrow-tmp-<pid>-<random>-replaced
                                         the folder that a file is taking the name of

A name counts as a checkpoint only if a number follows the prefix: `checkpoint_99.bak` is never the
latest, never blocks a save, and is never removed.

A file is written under its temporary name, synced, and then given its own; older ones are removed
only when that is on the disk. The next save in the same folder removes what killed writers have
left: the kernel has given up their locks. A folder that was to be replaced goes back to its name if
no file has that yet.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from typing import NamedTuple

from .. import _native
from .._errors import InvalidArgumentError, IoError, PermissionDeniedError, RegrowError, StorageFullError

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
_TEMPORARY = ".regrow-tmp-"
_REPLACED = "-replaced"
_LEFTOVER = re.compile(rf"\.(.+){re.escape(_TEMPORARY)}\d+-[0-9a-f]{{16}}({_REPLACED})?", re.ASCII | re.DOTALL)
_TRIES = 16
_SHOWN = 60
_NO_HARD_LINKS = {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK}


class Found(NamedTuple):
    """A checkpoint in a folder."""

    step: int | float
    text: str
    """The step as it stands in the name."""
    path: str


def step_of(text: str) -> int | float | None:
    """The number that a name ends in, if it is one."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else None


def step_to_save(step: object) -> int | float:
    """The number that a checkpoint of this step is ordered by.

    Raises:
        InvalidArgumentError: if the name would not end in a number, and the checkpoint would never
            be found.
    """
    try:
        text = f"{step}"
        number = step_of(text)
    except ValueError:
        # An integer of thousands of digits.
        text, number = "an integer that long", None
    if number is None or not math.isfinite(float(text)):
        help = "give an integer, or a finite float"
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        what = f"{shown} ({type(step).__name__}) is no step: a checkpoint of that name would not be found again"
        raise InvalidArgumentError(f"{what}\n  help: {help}", help=help)
    return number


def is_checkpoint_folder(path: str) -> bool:
    """Whether a folder is a checkpoint itself: of Orbax, or of regrow."""
    return any(os.path.exists(os.path.join(path, name)) for name in _FOLDER_MARKERS)


def list_checkpoints(base: str) -> tuple[list[Found], list[str]]:
    """The checkpoints whose path starts with `base`, oldest first; and names that only look like
    some.

    Of two that spell the same step differently, ``1`` and ``1.0``, the one written last is the
    later one: the other is what a writer killed between a save and its cleaning up has left.
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
        elif text != "tmp" and not name.endswith(MP_ARRAY_POSTFIX) and not _is_temporary(name):
            strays.append(name)
    found.sort(key=lambda checkpoint: (checkpoint.step, _written_at(checkpoint.path)))
    return found, strays


def _is_temporary(name: str) -> bool:
    return _TEMPORARY in name or ORBAX_TEMPORARY in name


def outdates(base: str, path: str, step: int | float | None) -> bool:
    """Whether what is there already keeps a checkpoint of this step from being saved at `path`."""
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
    """Removes what need not be kept now that `saved` is there.

    With `overwrite` all later ones, and those that spell the step differently. Then all but the
    last `keep` (none, if that is 0), except that with `keep_every_n_steps` one stays if its step is
    at least that far from the last that stayed for this reason.
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
    """Puts a file there, all of it or nothing, synced to disk; says whether the name was free."""
    folder, name = os.path.split(path)
    with as_regrow_error("cannot write", path):
        _make_folders(folder or ".")
        _sweep(folder or ".")
        descriptor, temporary = _make_temporary(folder, name)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
                was_free = _give_name(temporary, path, overwrite)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(temporary)
        _native.sync_folder(folder or ".")
    return was_free


def _make_temporary(folder: str, name: str) -> tuple[int, str]:
    for _ in range(_TRIES):
        temporary = os.path.join(folder, f".{name}{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        # Another writer took it for a leftover, just before it was locked.
        os.close(descriptor)
    raise OSError(errno.EBUSY, "other writers keep removing the temporary file", folder)


def _give_name(temporary: str, path: str, overwrite: bool) -> bool:
    if overwrite:
        if os.path.isdir(path) and not os.path.islink(path):
            _replace_folder(temporary, path)
        else:
            os.replace(temporary, path)
        return True
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if os.path.lexists(path):
            return False
        os.rename(temporary, path)
    return True


def _replace_folder(temporary: str, path: str) -> None:
    if not is_checkpoint_folder(path):
        raise InvalidArgumentError(f"{path} is a folder that holds no checkpoint", file=path)
    aside = temporary + _REPLACED
    try:
        os.rename(path, aside)
        os.replace(temporary, path)
    except BaseException:
        # Fails where the first has not been done, or both have.
        with contextlib.suppress(OSError):
            os.rename(aside, path)
        raise
    _native.sync_folder(os.path.dirname(path) or ".")
    shutil.rmtree(aside)


def _sweep(folder: str) -> None:
    """Removes or puts back what killed writers have left; where there are no locks, it stays."""
    leftovers = [match for match in map(_LEFTOVER.fullmatch, _names_in(folder)) if match]
    # Files first: a folder whose file is still there afterwards has a writer that lives.
    for match in sorted(leftovers, key=lambda match: match[2] is not None):
        path = os.path.join(folder, match[0])
        with contextlib.suppress(OSError):
            if match[2]:
                _sweep_replaced(path, os.path.join(folder, match[1]))
            else:
                with _locked(path):
                    os.remove(path)


def _sweep_replaced(aside: str, path: str) -> None:
    folder = os.path.dirname(path) or "."
    if os.path.lexists(aside.removesuffix(_REPLACED)):
        return
    if not os.path.lexists(path):
        os.rename(aside, path)
        _native.sync_folder(folder)
        return
    # A writer that lives still holds the lock of the file that it has given the name.
    with _locked(path):
        _native.sync_folder(folder)
        shutil.rmtree(aside)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Holds the lock of a file; an error if another process has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _make_folders(folder: str) -> None:
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder) or "."
    for made in reversed(missing):
        os.makedirs(made, exist_ok=True)
        _native.sync_folder(os.path.dirname(made) or ".")


@contextlib.contextmanager
def as_regrow_error(what: str, path: str) -> Iterator[None]:
    """Within: what the operating system refuses becomes an error of ours, with the file."""
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
