"""The private names of `flax.training.checkpoints` that other packages import. `checkpoints` has
them all.

Flax' functions for the temporary file that all savers of a folder share are missing: regrow has no
such file. The table in `docs/guide/flax.md` lists them.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from . import _multiprocess
from ._folder import (
    ORBAX_CKPT_FILENAME,
    ORBAX_MANIFEST_OCDBT,
    ORBAX_METADATA_FILENAME,
    SIGNED_FLOAT_RE,
    clean_up,
    list_checkpoints,
    outdates,
    step_of,
)
from ._upstream import is_jax_array
from .errors import InvalidCheckpointError, raised

_READ_CHECKPOINT_EVENT = "/jax/checkpoint/read/durations_sec"
_WRITE_CHECKPOINT_EVENT = "/jax/checkpoint/write/durations_sec"


def _is_multiprocess_array(value: Any) -> bool:
    return is_jax_array(value) and not value.is_fully_addressable


def _checkpoint_path(ckpt_dir: str, step: int | float | str, prefix: str = "checkpoint_") -> str:
    return os.path.join(ckpt_dir, f"{prefix}{step}")


def _checkpoint_path_step(path: str) -> float | None:
    numbers = SIGNED_FLOAT_RE.findall(path)
    return float(numbers[-1]) if numbers else None


def _allowempty_listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


def _safe_remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def _is_orbax_checkpoint(path: str) -> bool:
    names = (ORBAX_CKPT_FILENAME, ORBAX_METADATA_FILENAME, ORBAX_MANIFEST_OCDBT)
    return any(os.path.exists(os.path.join(path, name)) for name in names)


def _split_mp_arrays(target: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, str]]]:
    return _multiprocess.split_shared(target)


def _restore_mpas(
    state_dict: Any,
    target: Any,
    ckpt_path: str,
    step: int | float | None,
    gda_manager: Any,
    allow_partial: bool = False,
) -> Any:
    return _multiprocess.restore_shared(state_dict, target, ckpt_path, step, gda_manager, allow_partial)


def _remove_invalid_ckpts(
    ckpt_path: str, base_path: str, keep: int, overwrite: bool, keep_every_n_steps: int | None, has_mpa: bool
) -> None:
    clean_up(
        base_path,
        ckpt_path,
        keep=keep,
        overwrite=overwrite,
        keep_every_n_steps=keep_every_n_steps,
        with_arrays=has_mpa,
    )


def _check_overwrite_error(ckpt_tmp_path: str, ckpt_path: str, base_path: str, step: int) -> None:
    number = step_of(ckpt_path.removeprefix(base_path))
    if outdates(base_path, ckpt_path, number):
        raise raised(InvalidCheckpointError)(ckpt_path, step)


def _get_checkpoint_paths(
    ckpt_dir: str | os.PathLike[str], step: int | float, prefix: str = "checkpoint_"
) -> tuple[str, str, str]:
    folder = os.path.normpath(os.fspath(ckpt_dir))
    base = os.path.join(folder, prefix)
    return f"{base}{step}", f"{base}tmp", base


def _all_checkpoints(ckpt_dir: str | os.PathLike[str], prefix: str = "checkpoint_") -> list[str]:
    found, _ = list_checkpoints(os.path.join(os.fspath(ckpt_dir), prefix))
    return [checkpoint.path for checkpoint in found]
