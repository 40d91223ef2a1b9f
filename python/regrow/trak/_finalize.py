"""TRAK's two final formulas, block by block in float32, without a whole matrix in memory.

TRAK sums in half precision where it stores half precision, which overflows for large train sets.
Here sums are float32 and are cast once, when they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import trak
from .._errors import InvalidArgumentError, NotFoundError
from ._base import ModelIDException

_BLOCK_BYTES = 64 << 20


def finalize_features(
    saver: trak.MmapSaver,
    model_ids: Iterable[int] | None = None,
    *,
    lambda_reg: float = 0.0,
    del_grads: bool = False,
    block_rows: int | None = None,
) -> None:
    """Computes the features of models: X (X'X + lambda I)^-1, scaled by the mean absolute entry of
    the inverse.

    It keeps the P x P matrix and one block of rows in memory.

    Args:
        saver: The store.
        model_ids: The models; all by default. Models that are already finalized are skipped.
        lambda_reg: The ridge penalty.
        del_grads: Delete the gradients once the features are on disk and the model is finalized.
        block_rows: The number of rows at a time; by default as many as fit in 64 MiB.

    Raises:
        ModelIDException: for a model that is not registered or has rows that are not done.
    """
    for model_id in list(saver.model_ids) if model_ids is None else list(model_ids):
        flags = saver.model_ids.get(model_id)
        if flags is None:
            raise ModelIDException(f"Model ID {model_id} not registered, not ready for finalizing.")
        if flags["is_finalized"]:
            saver.logger.warning(f"Model {model_id} is finalized already.")
            continue
        if not flags["is_featurized"]:
            raise ModelIDException(f"Model ID {model_id} not fully featurized, not ready for finalizing.")
        saver.load_current_store(model_id)
        grads, features = saver.current_store["grads"], saver.current_store["features"]
        blocks = _blocks(saver.train_set_size, saver.proj_dim, block_rows)
        xtx = np.zeros((saver.proj_dim, saver.proj_dim), np.float32)
        for rows in blocks:
            block = _float32(grads[rows])
            xtx += block.T @ block
        xtx[np.diag_indices_from(xtx)] += np.float32(lambda_reg)
        inverse = np.linalg.inv(xtx)
        inverse /= np.abs(inverse).mean()
        for rows in blocks:
            features[rows] = _float32(grads[rows]) @ inverse
        flags["is_finalized"] = 1
        saver.serialize_current_model_id_metadata()
        if del_grads:
            saver.del_grads(model_id)


def finalize_scores(
    saver: trak.MmapSaver,
    exp_name: str,
    model_ids: Iterable[int] | None = None,
    *,
    allow_skip: bool = False,
    block_rows: int | None = None,
) -> Any:
    """Computes the scores of an experiment: features times targets, averaged over the models,
    weighted.

    Args:
        saver: The store.
        exp_name: The experiment.
        model_ids: The models; all by default. Models that are not finalized are skipped with a
            warning.
        allow_skip: Also skip models without gradients of the targets.
        block_rows: The number of rows of scores at a time; by default as many as fit in 64 MiB.

    Returns:
        The scores, as a map of their file.

    Raises:
        ModelIDException: if no model is left, or a model has targets that are not done.
        CorruptError: if half precision cannot hold the scores.
    """
    saver._merge_experiments()
    if exp_name not in saver.experiments:
        raise InvalidArgumentError(f"Experiment {exp_name} does not exist. Create it and compute scores first.")
    num_targets = saver.experiments[exp_name]["num_targets"]
    used: list[tuple[Any, Any, Any]] = []
    scores: Any = None
    for model_id in list(saver.model_ids) if model_ids is None else list(model_ids):
        if not saver.model_ids[model_id]["is_finalized"]:
            saver.logger.warning(f"Model {model_id} is not finalized, it is skipped.")
            continue
        try:
            saver.load_current_store(model_id, exp_name, num_targets)
        except NotFoundError:
            if not allow_skip:
                raise
            saver.logger.warning(f"Model {model_id} has no targets of {exp_name}, it is skipped.")
            continue
        missing = saver.missing_targets(exp_name, model_id)
        # If all targets are missing, TRAK may have written them: it is unknown which ones are done.
        if 0 < len(missing) < num_targets:
            raise ModelIDException(f"Model ID {model_id}: targets {missing[:10]} of {exp_name} are not scored yet.")
        targets = saver.current_store[f"{exp_name}_grads"]
        if missing and len(missing) == num_targets and not np.any(targets):
            raise ModelIDException(f"Model ID {model_id}: none of the targets of {exp_name} is scored yet.")
        scores = saver.current_store[f"{exp_name}_scores"]
        saver.load_current_store(model_id, mode="r")
        used.append((saver.current_store["features"], targets, saver.current_store["out_to_loss"]))
    if not used:
        raise ModelIDException("No model IDs to finalize scores for: none is finalized and has targets.")
    count = np.float32(len(used))
    for rows in _blocks(saver.train_set_size, max(num_targets, saver.proj_dim), block_rows):
        block = np.zeros((rows.stop - rows.start, num_targets), np.float32)
        weights = np.zeros((rows.stop - rows.start, 1), np.float32)
        for features, targets, out_to_loss in used:
            block += _float32(features[rows]) @ _float32(targets).T
            weights += _float32(out_to_loss[rows])
        scores[rows] = (block / count) * (weights / count)
    saver.save_scores(exp_name)
    return scores


def _blocks(length: int, columns: int, block_rows: int | None) -> list[slice]:
    step = block_rows or max(1, _BLOCK_BYTES // (4 * max(columns, 1)))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _float32(array: Any) -> Any:
    return np.asarray(array).astype(np.float32)
