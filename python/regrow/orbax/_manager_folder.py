"""The folder of a manager: the steps that storage has committed, and what the folder says of itself."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from . import _saving
from ._manager_options import CheckpointManagerOptions
from ._paths import TMP_DIR_SUFFIX, is_temporary
from .checkpoint_managers import PolicyCheckpointInfo
from .metadata import RootMetadata, read_step_metadata

METRIC_ITEM_NAME = "metrics"
METADATA_ITEM_NAME = "metadata"


def listed(directory: Any, name_format: Any) -> dict[int, PolicyCheckpointInfo]:
    """The steps of a folder, by number."""
    if not directory.exists():
        return {}
    found = sorted(name_format.find_all(directory), key=lambda found: found.step)
    # An empty folder of that name is no step.
    return {each.step: read_info(each.step, each.path) for each in found if any(each.path.iterdir())}


def read_info(step: int, path: Any) -> PolicyCheckpointInfo:
    """A step, as policies see it."""
    told = read_step_metadata(path)
    committed = told.commit_timestamp_nsecs
    seconds = path.stat().st_mtime if committed is None else committed / 1e9
    when = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return PolicyCheckpointInfo(step, when, _read_metrics(path) or told.metrics or None)


def _read_metrics(path: Any) -> Any:
    try:
        return json.loads((path / METRIC_ITEM_NAME / METRIC_ITEM_NAME).read_text())
    except (OSError, ValueError):
        return None


def remove(directory: Any, path: Any, options: CheckpointManagerOptions) -> None:
    """Deletes a step, or moves it to where the options say."""
    if not _saving.is_primary():
        return
    kept = options.todelete_full_path or options.todelete_subdir
    if kept is not None:
        target = directory / kept
        target.mkdir(parents=True, exist_ok=True)
        os.rename(path, target / path.name)
        return
    # Under this name no list has it, however far the deletion comes.
    doomed = directory / f"{path.name}{TMP_DIR_SUFFIX}-deleted"
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed)


def create(directory: Any, options: CheckpointManagerOptions) -> None:
    """Makes the folder, in all processes before any of them goes on."""
    if _saving.is_primary():
        mode = getattr(options.file_options, "path_permission_mode", None)
        directory.mkdir(parents=True, exist_ok=True)
        if mode is not None:
            os.chmod(directory, mode)
    _saving.barrier(f"{directory}:created", 300)


def clean_up(directory: Any, options: CheckpointManagerOptions) -> None:
    """Removes what broken saves have left, where the options say so."""
    if options.cleanup_tmp_directories and _saving.is_primary() and directory.exists():
        for child in directory.iterdir():
            if child.is_dir() and is_temporary(child):
                shutil.rmtree(child)


def write_root_metadata(directory: Any, given: Mapping[str, Any] | None, options: CheckpointManagerOptions) -> None:
    """Writes the folder's own metadata, once."""
    file = directory / METADATA_ITEM_NAME / "_ROOT_METADATA"
    is_wanted = given is not None and options.save_root_metadata and not options.read_only
    if is_wanted and _saving.is_primary() and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.parent / f"_ROOT_METADATA{TMP_DIR_SUFFIX}"
        staged.write_text(json.dumps({"internal_metadata": {}, "custom_metadata": dict(given or {})}))
        os.replace(staged, file)


def read_root_metadata(directory: Any) -> RootMetadata:
    """The folder's own metadata; empty where there is none."""
    for name in ("_ROOT_METADATA", "metadata"):
        try:
            told = json.loads((directory / METADATA_ITEM_NAME / name).read_text())
        except (OSError, ValueError):
            continue
        known = told.get("custom_metadata")
        unknown = {key: value for key, value in told.items() if key not in ("custom_metadata", "internal_metadata")}
        return RootMetadata(told.get("internal_metadata") or {}, {**unknown, **(known or {})})
    return RootMetadata()
