"""The functions of `flax.training.checkpoints`, with the same names. Each step is one file, or one
folder of Orbax, in a folder.

    from regrow.flax import checkpoints

    checkpoints.save_checkpoint("runs", state, step=100, keep=3)
    state = checkpoints.restore_checkpoint("runs", state)

Flax' switch `flax_use_orbax_checkpointing` chooses the layout: folders of Orbax if it is on (the
default), legacy files if it is off. A restore reads both with either value. `_folder` says which
names are checkpoints, and commits legacy files. `_orbax_mode` and `_orbax` handle folders of Orbax.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from .. import _native
from .. import flax as serialization
from .._core._location import place
from .._errors import InvalidArgumentError, failure
from . import _bytes, _multiprocess, _orbax, _orbax_mode
from ._checkpoints_private import (  # noqa: F401
    _READ_CHECKPOINT_EVENT,
    _WRITE_CHECKPOINT_EVENT,
    _all_checkpoints,
    _allowempty_listdir,
    _check_overwrite_error,
    _checkpoint_path,
    _checkpoint_path_step,
    _get_checkpoint_paths,
    _is_multiprocess_array,
    _is_orbax_checkpoint,
    _remove_invalid_ckpts,
    _restore_mpas,
    _safe_remove,
    _split_mp_arrays,
)
from ._folder import (
    MP_ARRAY_POSTFIX,
    ORBAX_CKPT_FILENAME,
    ORBAX_MANIFEST_OCDBT,
    ORBAX_METADATA_FILENAME,
    SIGNED_FLOAT_RE,
    as_regrow_error,
    clean_up,
    is_checkpoint_folder,
    list_checkpoints,
    outdates,
    put,
    step_to_save,
)
from ._multiprocess import MP_ARRAY_PH
from ._upstream import frozen_dict_class
from .errors import (
    CheckpointNotFoundError,
    InvalidCheckpointError,
    MPACheckpointingRequiredError,
    MPARestoreDataCorruptedError,
    MPARestoreTargetRequiredError,
    raised,
)

__all__ = [
    "MP_ARRAY_PH",
    "MP_ARRAY_POSTFIX",
    "ORBAX_CKPT_FILENAME",
    "ORBAX_MANIFEST_OCDBT",
    "ORBAX_METADATA_FILENAME",
    "AsyncManager",
    "CheckpointNotFoundError",
    "InvalidCheckpointError",
    "MPACheckpointingRequiredError",
    "MPARestoreDataCorruptedError",
    "MPARestoreTargetRequiredError",
    "available_steps",
    "convert_pre_linen",
    "latest_checkpoint",
    "natural_sort",
    "restore_checkpoint",
    "safe_normpath",
    "save_checkpoint",
    "save_checkpoint_multiprocess",
]

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

UNSIGNED_FLOAT_RE = re.compile(r"[-+]?((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)")
MODULE_NUM_RE = re.compile(r"(.*)_\d+$")
COMMIT_SUCCESS_FILE = "commit_success.txt"
PyTree = Any
MultiprocessArrayType = Any
SCHEME_RE = re.compile(r"(?P<scheme>[a-z][a-z0-9.+-]+://)?(?P<path>.*)", re.IGNORECASE | re.DOTALL)


class AsyncManager:
    """Saves in the background, one checkpoint at a time: ``save_checkpoint(...,
    async_manager=manager)``.
    """

    def __init__(self, max_workers: int = 1) -> None:
        self.executor = concurrent.futures.ThreadPoolExecutor(max_workers=max_workers)
        self.save_future: concurrent.futures.Future[Any] | None = None

    def wait_previous_save(self) -> None:
        """Waits for the save in progress. If the save failed, raises its error, once."""
        if self.save_future is not None:
            try:
                self.save_future.result()
            except BaseException:
                self.save_future = None
                raise

    def save_async(self, task: Callable[[], Any]) -> None:
        """Runs `task` in the background, after the previous task."""
        self.wait_previous_save()
        self.save_future = self.executor.submit(task)


def save_checkpoint(
    ckpt_dir: AnyPath,
    target: Any,
    step: int | float,
    prefix: str = "checkpoint_",
    keep: int = 1,
    overwrite: bool = False,
    keep_every_n_steps: int | None = None,
    async_manager: AsyncManager | None = None,
    orbax_checkpointer: Any = None,
    *,
    extended: bool = False,
) -> str:
    """Saves `target` as ``<ckpt_dir>/<prefix><step>``, then removes checkpoints that need not be
    kept.

    The checkpoint is a folder of Orbax if Flax' switch `flax_use_orbax_checkpointing` is on (the
    default), else a file. It is complete and on the disk before older checkpoints are removed.

    Args:
        ckpt_dir: The folder. It is created if it is missing.
        target: For a file, an object that `to_bytes` accepts; for a folder, a pytree that is
            neither empty nor a single leaf.
        step: A finite number. It orders the checkpoints. ``1`` and ``1.0`` are the same step.
        prefix: The beginning of the names of checkpoints.
        keep: The number of last checkpoints to keep; 0 keeps all.
        overwrite: Replace a checkpoint of this step, with any spelling of its name, and remove the
            checkpoints of later steps.
        keep_every_n_steps: Also keep older checkpoints that are at least this many steps from the
            last kept one.
        async_manager: Save a file in the background; `target` may be changed as soon as this
            returns. A folder is saved before this returns, as in Flax.
        orbax_checkpointer: Save through this, into a folder.
        extended: See `to_bytes`; folders have such leaves anyway.

    Returns:
        The path of the checkpoint.

    Raises:
        InvalidCheckpointError: (a `ValueError` too) if a checkpoint of this step exists and
            `overwrite` was not given; for a file, also if a later one exists.
        InvalidArgumentError: (a `ValueError` too) if `step` is no finite number. Nothing is
            written.
    """
    if async_manager is not None:
        async_manager.wait_previous_save()
    save = _Save(ckpt_dir, prefix, step, keep, overwrite, keep_every_n_steps)
    if orbax_checkpointer or _orbax_mode.is_on():
        return save.into_folder(orbax_checkpointer, target)
    save.check_outdated()
    data = serialization.to_bytes(target, extended=extended)
    save.run(data, async_manager)
    return save.path


def save_checkpoint_multiprocess(
    ckpt_dir: AnyPath,
    target: Any,
    step: int | float,
    prefix: str = "checkpoint_",
    keep: int = 1,
    overwrite: bool = False,
    keep_every_n_steps: int | None = None,
    async_manager: AsyncManager | None = None,
    gda_manager: Any = None,
    orbax_checkpointer: Any = None,
    *,
    extended: bool = False,
) -> str:
    """Saves `target` from several processes, which must all call this; see `save_checkpoint`.

    A folder of Orbax has the arrays that they hold together. A file is written by the first
    process, entries of dicts sorted, and such arrays are refused.

    Raises:
        MPACheckpointingRequiredError, UnsupportedError: for such arrays, all of them named; the
            first without a `gda_manager`, as in the original.
    """
    _multiprocess.wait_for_all("Flax:Checkpoint:StartSave")
    if async_manager is not None:
        async_manager.wait_previous_save()
    save = _Save(ckpt_dir, prefix, step, keep, overwrite, keep_every_n_steps, with_arrays=True)
    if orbax_checkpointer or _orbax_mode.is_on():
        return save.into_folder(orbax_checkpointer, target)
    state = serialization.to_state_dict(target, extended=extended)
    _multiprocess.refuse_shared(state, save.path, step, gda_manager)
    data = serialization.msgpack_serialize(state)
    save.check_outdated()
    _multiprocess.wait_for_all("Flax:Checkpoint:CheckOverwriteBeforeSave")
    if _multiprocess.is_first_process():
        save.run(data, async_manager)
    return save.path


def restore_checkpoint(
    ckpt_dir: AnyPath,
    target: Any,
    step: int | float | None = None,
    prefix: str = "checkpoint_",
    parallel: bool = True,
    gda_manager: Any = None,
    allow_partial_mpa_restoration: bool = False,
    orbax_checkpointer: Any = None,
    orbax_transforms: dict[str, Any] | None = None,
    *,
    missing_ok: bool = True,
    strict: bool = False,
    extended: bool = False,
) -> Any:
    """An object like `target` with the state of a checkpoint.

    If the path is missing, or the folder has no checkpoint, the result is `target`, as in the first
    run of a program.

    Args:
        ckpt_dir: A checkpoint, or a folder of them.
        target: An object with the structure. With `None` the stored maps are returned as they are.
        step: The step of a folder; the last if `None`.
        prefix: The beginning of the names of checkpoints.
        parallel: Map the file into memory, so that arrays are views of it and read when they are
            used; otherwise read it first.
        gda_manager: Reads the arrays that several processes hold together.
        allow_partial_mpa_restoration: Leave the placeholders of such arrays if the target has none
            in their place.
        orbax_checkpointer: Restores a folder that Orbax has written, with the shardings of the
            target's arrays. It is waited for first. Without one, regrow reads the folder.
        orbax_transforms: Orbax' transformations of such a folder; they need Orbax.
        missing_ok: Return `target` if there is no checkpoint to restore. With `False` this is an
            error.
        strict: See `from_state_dict`.
        extended: See `to_bytes`.

    Raises:
        CheckpointNotFoundError: (a `ValueError` too) if there is nothing of that `step`; if a
            folder has no checkpoint but names that begin like one; without `missing_ok`, if there
            is nothing to restore.
        CorruptError: (a `ValueError` too) if the file is damaged.
        ValueError: if target and state differ in their keys.
    """
    if orbax_checkpointer:
        _orbax.wait(orbax_checkpointer)
    path = _path_to_restore(ckpt_dir, step, prefix, missing_ok)
    if path is None:
        return target
    if os.path.isdir(path):
        if orbax_checkpointer:
            return _orbax.restore_through(orbax_checkpointer, path, target, orbax_transforms)
        return _orbax.restore(path, target, orbax_transforms, strict)
    state = _bytes.unpack(_contents(path), file=path)
    state = _multiprocess.restore_shared(state, target, path, step, gda_manager, allow_partial_mpa_restoration)
    if target is None:
        return state
    return serialization.from_state_dict(target, state, strict=strict, extended=extended)


def latest_checkpoint(ckpt_dir: AnyPath, prefix: str = "checkpoint_") -> str | None:
    """The path of the checkpoint with the highest step; `None` if there is none."""
    found, _ = list_checkpoints(_base(ckpt_dir, prefix))
    return found[-1].path if found else None


def available_steps(
    ckpt_dir: AnyPath, prefix: str = "checkpoint_", step_type: Callable[[str], Any] = int
) -> list[int | float]:
    """The steps of the checkpoints in a folder, in order. `step_type` converts the texts in the
    names to numbers.
    """
    found, _ = list_checkpoints(_base(ckpt_dir, prefix))
    return [step_type(checkpoint.text) for checkpoint in found]


def natural_sort(file_list: Iterable[str], signed: bool = True) -> list[str]:
    """Sorts text, with the numbers in it in numeric order: ``f_1, f_2, f_10``. With `signed`, ``-``
    before a number is its sign.
    """
    number = SIGNED_FLOAT_RE if signed else UNSIGNED_FLOAT_RE

    def pieces(text: str) -> list[str | float]:
        # The pattern has one group, so every second piece is a number.
        return [float(piece) if at % 2 else piece for at, piece in enumerate(number.split(text))]

    return sorted(file_list, key=pieces)


def safe_normpath(path: str) -> str:
    """`os.path.normpath`, but a scheme (``gs://``) is not changed."""
    parts = SCHEME_RE.fullmatch(path)
    return path if parts is None else (parts["scheme"] or "") + os.path.normpath(parts["path"])


def convert_pre_linen(params: Any) -> Any:
    """Parameters named before Linen, ``Conv_0, Dense_1``, renamed as Linen does, ``Conv_0,
    Dense_0``.

    Numbers count the modules of each class on its own. Parameters with Linen's names stay as they
    are.
    """
    frozen_dict = frozen_dict_class()
    if not isinstance(params, (dict, frozen_dict)):
        return params
    renamed: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for name in natural_sort(params.keys()):
        parts = MODULE_NUM_RE.match(name)
        new_name = name
        if parts is not None:
            number = counts.get(parts[1], 0)
            counts[parts[1]] = number + 1
            new_name = f"{parts[1]}_{number}"
        renamed[new_name] = convert_pre_linen(params[name])
    return renamed if isinstance(params, dict) else frozen_dict(renamed)


class _Save:
    """One save: its target, and the checkpoints to remove afterwards."""

    def __init__(
        self,
        ckpt_dir: AnyPath,
        prefix: str,
        step: Any,
        keep: int,
        overwrite: bool,
        keep_every_n_steps: int | None,
        with_arrays: bool = False,
    ) -> None:
        if keep < 0:
            raise InvalidArgumentError(f"keep={keep} is not valid: 0 keeps all, 1 the last")
        self.number = step_to_save(step)
        self.base = _base(ckpt_dir, prefix)
        self.path = f"{self.base}{step}"
        self.step = step
        self.keep, self.overwrite, self.keep_every_n_steps = keep, overwrite, keep_every_n_steps
        self.with_arrays = with_arrays

    def check_outdated(self) -> None:
        """Refuses to save a step that is not newer than all others."""
        if self.overwrite:
            return
        if outdates(self.base, self.path, self.number):
            raise raised(InvalidCheckpointError)(self.path, self.step)

    def run(self, data: bytes, async_manager: AsyncManager | None) -> None:
        """Writes the file, now or in the background."""
        if async_manager is not None:
            async_manager.save_async(lambda: self._write(data))
        else:
            self._write(data)

    def into_folder(self, orbax_checkpointer: Any, target: Any) -> str:
        """Saves a folder of Orbax, through a checkpointer if there is one."""
        if orbax_checkpointer:
            _orbax.wait(orbax_checkpointer)
            _orbax.refuse_single_leaf(orbax_checkpointer, target)
        else:
            _orbax_mode.check(target)
        if self.with_arrays and _multiprocess.is_first_process():
            # Clean up before the save, as Flax does in this mode. After the save there is one
            # checkpoint more than `keep`.
            self._clean_up()
        if orbax_checkpointer:
            orbax_checkpointer.save(os.path.abspath(self.path), target, force=self.overwrite)
        else:
            _orbax_mode.save(self.path, target, self.step, overwrite=self.overwrite)
        if not self.with_arrays and _multiprocess.is_first_process():
            _orbax.after_commit(orbax_checkpointer, self._clean_up)
        return self.path

    def _write(self, data: bytes) -> None:
        if not put(self.path, data, overwrite=self.overwrite):
            raise raised(InvalidCheckpointError)(self.path, self.step)
        self._clean_up()

    def _clean_up(self) -> None:
        clean_up(
            self.base,
            self.path,
            keep=self.keep,
            overwrite=self.overwrite,
            keep_every_n_steps=self.keep_every_n_steps,
            with_arrays=self.with_arrays,
        )


def _base(ckpt_dir: AnyPath, prefix: str) -> str:
    """The folder and prefix with which the path of every checkpoint begins."""
    return os.path.join(_folder(ckpt_dir), prefix)


def _folder(ckpt_dir: AnyPath) -> str:
    """The folder, which must be on the local file system."""
    return os.path.normpath(_native.local_path(place("ckpt_dir", ckpt_dir)))


def _path_to_restore(ckpt_dir: AnyPath, step: Any, prefix: str, missing_ok: bool) -> str | None:
    """The path of the checkpoint to restore; `None` if there is none and `missing_ok` allows it."""
    base = _base(ckpt_dir, prefix)
    folder = _folder(ckpt_dir)
    if step is not None:
        path = f"{base}{step}"
        if os.path.exists(path):
            return path
        raise CheckpointNotFoundError(f"Matching checkpoint not found: {path}", file=path)
    help = "leave out missing_ok=False to begin with the target"
    if not os.path.exists(folder):
        if missing_ok:
            return None
        raise failure(CheckpointNotFoundError, f"{folder} does not exist", file=folder, help=help)
    if not os.path.isdir(folder) or is_checkpoint_folder(folder):
        return folder
    found, strays = list_checkpoints(base)
    if found:
        return found[-1].path
    what = f"{folder} has no checkpoint named {prefix!r} and a number"
    if strays:
        # The original would treat one of these as a checkpoint. A fresh start beside them could
        # lose the progress of the run.
        help = "give the path of one of them, or move them away to begin with the target"
        what += f"; similar names: {', '.join(strays)}"
    elif missing_ok:
        return None
    raise failure(CheckpointNotFoundError, what, file=folder, help=help)


def _contents(path: str) -> bytes:
    # Arrays become views of these bytes. The file is read and not mapped, because programs
    # overwrite such files in place.
    with as_regrow_error("cannot read", path), open(path, "rb") as file:
        return file.read()
