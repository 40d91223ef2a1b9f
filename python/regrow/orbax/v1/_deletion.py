"""Deleting a checkpoint, or one checkpointable of several.

The deletion of a whole checkpoint is atomic. The deletion of one checkpointable has three steps:
write a record beside it, remove its files, update the checkpoint's metadata and remove the record.
A reader that finds a record treats the checkpointable as deleted. The same deletion, repeated,
finishes it. Orbax reads and writes the same record, in `_CHECKPOINT_DELETION`.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from ... import _native
from ..._errors import failure
from ..._operations._remove import remove
from .._errors import as_orbax, not_covered
from .._interfaces import Task as Response
from .._paths import BucketPath, as_path
from ..multihost import is_primary_host
from ._context import Context, current
from ._layout import CHECKPOINT_DELETION_KEY as RECORD
from ._layout import CHECKPOINT_METADATA_FILENAME as METADATA
from ._layout import ORBAX_CHECKPOINT_INDICATOR_FILE as INDICATOR
from ._layout import PYTREE_METADATA_FILE, RESERVED_CHECKPOINTABLE_KEYS, invalid
from .errors import DeletionInProgressError, DeletionRecoveryError

_DELETE_ALL = "delete all of it: leave checkpointable_name out"
_MARKS = (INDICATOR, METADATA, PYTREE_METADATA_FILE)


def delete(path: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False) -> bool:
    """Deletes a checkpoint, or one checkpointable of several. Returns whether there was one."""
    return bool(delete_async(path, checkpointable_name=checkpointable_name, missing_ok=missing_ok).result())


def delete_async(path: Any, *, checkpointable_name: str | None = None, missing_ok: bool = False) -> Response[bool]:
    """Deletes as `delete`, in the background. Errors of the arguments are raised at once."""
    work = plan(path, checkpointable_name, missing_ok, current())
    return Response(lambda: False) if work is None else Response(work)


def plan(
    path: Any, name: str | None, missing_ok: bool, context: Context, *, is_step: bool = False
) -> Callable[[], bool] | None:
    """Writes the record of a deletion, and returns its steps; `None` for nothing to delete."""
    check_arguments(name, missing_ok)
    path = as_path(path)
    in_bucket = isinstance(path, BucketPath)
    if context.deletion.gcs_deletion_options.todelete_full_path is not None and not (in_bucket and is_step):
        raise NotImplementedError(f"todelete_full_path is for the steps of a run in a bucket, but {path} is not in one")
    if in_bucket and name is not None:
        raise not_covered("deletions of one checkpointable in a bucket", "delete the checkpoint, or save it again")
    if os.path.islink(path) or not path.name:
        help = "give the path of a checkpoint"
        raise failure(ValueError, f"{path} is a symlink, or the root of a storage", help=help)
    if not path.exists():
        if missing_ok:
            return None
        raise FileNotFoundError(f"Checkpoint at {path} not found.")
    if not path.is_dir():
        raise failure(NotADirectoryError, f"{path} is not a folder", help="give the path of a checkpoint")
    if not is_step:
        _check_root(path)
    if name is None:
        return lambda: _remove(path)
    record = read_record(path)
    if record is None:
        record = _new_record(path, name, missing_ok)
        if record is None:
            return None
        if is_primary_host():
            _write_json(path / RECORD, record, context.file.path_permission_mode)
    elif record["checkpointable_name"] != name:
        what = f"the deletion of {record['checkpointable_name']!r} in {path} has not ended"
        raise failure(DeletionRecoveryError, what, help="delete that first")
    told = record["updated_metadata"]
    return lambda: _remove_item(path, name, told)


def check_arguments(name: Any, missing_ok: Any) -> None:
    if not isinstance(missing_ok, bool):
        raise TypeError(f"missing_ok: expected True or False, found {missing_ok!r}")
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"checkpointable_name: expected text or None, found {name!r}")
    is_reserved = name in ("", ".", "..", METADATA, *RESERVED_CHECKPOINTABLE_KEYS)
    if is_reserved or any(mark in name for mark in ("/", "\\", "\0")):
        raise ValueError(f"checkpointable_name: expected the name of one checkpointable, found {name!r}")


def _check_root(path: Any) -> None:
    """Refuses a path that is not a checkpoint: the deletion would remove the whole folder."""
    if any((path.parent / mark).exists() for mark in (INDICATOR, METADATA, RECORD)):
        help = "give the path of the checkpoint, and checkpointable_name"
        raise invalid(path, f"{path} is a part of a checkpoint", help)
    if not any(path.iterdir()):
        return
    if not any((path / mark).is_file() for mark in _MARKS):
        help = "give the path of one checkpoint; or regrow.remove()"
        raise invalid(path, f"{path} is not a checkpoint of Orbax", help)


def _remove(path: Any) -> bool:
    """Removes a folder. Its name disappears first."""
    if isinstance(path, BucketPath):
        if is_primary_host():
            with as_orbax():
                remove(path)
    elif is_primary_host():
        with as_orbax():
            _native.remove_folder(path)
    return True


def _new_record(path: Any, name: str, missing_ok: bool) -> dict[str, Any] | None:
    told = _metadata(path)
    handlers = told.get("item_handlers")
    if not isinstance(handlers, dict):
        raise invalid(path, f"{path} has no checkpointables by name", _DELETE_ALL)
    if os.path.islink(path / name):
        raise failure(ValueError, f"{path / name} is a symlink", help="delete the checkpoint")
    if name not in handlers or not (path / name).is_dir():
        if missing_ok and not (path / name).exists():
            return None
        raise FileNotFoundError(f"{path} has no checkpointable {name!r}; there are {sorted(handlers)}")
    if not any(
        (path / other).is_dir() for other in handlers if other != name and other not in RESERVED_CHECKPOINTABLE_KEYS
    ):
        raise failure(ValueError, f"{name!r} is the final checkpointable in {path}", help=_DELETE_ALL)
    return {
        "operation_id": uuid.uuid4().hex,
        "checkpointable_name": name,
        "destination": None,
        "original_metadata": told,
        "updated_metadata": _without(told, name),
    }


def _without(told: dict[str, Any], name: str) -> dict[str, Any]:
    return {**told, "item_handlers": {key: value for key, value in told["item_handlers"].items() if key != name}}


def _remove_item(path: Any, name: str, told: dict[str, Any]) -> bool:
    if is_primary_host():
        shutil.rmtree(path / name, ignore_errors=not (path / name).exists())
        _write_json(path / METADATA, told)
        (path / RECORD).unlink()
        _native.sync_folder(path)
    return True


def read_record(path: Any) -> dict[str, Any] | None:
    """The record of a deletion in progress; `None` if there is none."""
    file = as_path(path) / RECORD
    if not file.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(file.read_text())
        check_arguments(record["checkpointable_name"], False)
        is_sound = (
            record["updated_metadata"] == _without(record["original_metadata"], record["checkpointable_name"])
            and _metadata(path) in (record["original_metadata"], record["updated_metadata"])
            and len(bytes.fromhex(record["operation_id"])) == 16
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeletionRecoveryError(f"the record of a deletion cannot be read: {file}: {error}") from error
    if not is_sound:
        raise DeletionRecoveryError(f"the record of a deletion does not fit the checkpoint: {file}")
    return record


def pending(path: Any, requested: Collection[str]) -> str | None:
    """The checkpointable whose deletion was started."""
    record = read_record(path)
    if record is None:
        return None
    name: str = record["checkpointable_name"]
    if name in requested:
        what = f"the deletion of {name!r} in {path} was begun and has not ended"
        raise failure(DeletionInProgressError, what, help="delete it again")
    return name


def refuse_pending(path: Any) -> None:
    """Refuses to replace a checkpoint with a deletion in progress."""
    if not urlsplit(str(path)).netloc and read_record(path) is not None:
        what = f"a deletion in {path} was begun and has not ended"
        raise failure(DeletionInProgressError, what, help="delete the same again, then save")


def _metadata(path: Any) -> dict[str, Any]:
    told = json.loads((as_path(path) / METADATA).read_text())
    if not isinstance(told, dict):
        raise ValueError(f"{path / METADATA} is not a JSON object")
    return told


def _write_json(file: Any, value: dict[str, Any], mode: int | None = None) -> None:
    """Writes a file atomically and syncs it."""
    _native.put_file(file, json.dumps(value, sort_keys=True).encode(), mode or 0o644)
