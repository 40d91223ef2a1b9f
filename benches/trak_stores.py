"""TRAK's saver and ours: one model from its registration to its last row, as TRAKer goes through
it.

Left out where traker, and with it PyTorch, is not installed.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import OURS, Clock, Turn, interleave
from setting import Setting, remove

FEATURIZE = "trak featurize"
THEIRS = "trak"
ROWS, COLUMNS, BATCHES = 20_000, 512, 200
STORE = f"{ROWS:,} rows of {COLUMNS}, {BATCHES} batches"
METADATA = {"JL dimension": COLUMNS, "JL matrix type": "rademacher", "train set size": ROWS}


def featurizing(setting: Setting) -> None:
    """All rows of one model; ours are on the disk then, theirs are in the page cache."""
    if importlib.util.find_spec("trak") is None:
        setting.samples.note(f"{THEIRS} is left out: traker is not installed")
        return
    from trak.savers import MmapSaver

    from regrow import trak

    random = np.random.default_rng(0)
    grads = random.standard_normal((ROWS, COLUMNS)).astype(np.float16)
    weights = random.standard_normal((ROWS, 1)).astype(np.float16)
    with setting.room("trak") as room:
        turns = [
            Turn(THEIRS, _life(MmapSaver, room / "theirs", grads, weights)),
            Turn(OURS, _life(trak.MmapSaver, room / "ours", grads, weights)),
        ]
        interleave(setting.samples, STORE, turns, max(setting.rounds, 7), FEATURIZE)


def _life(kind: Any, path: Path, grads: Any, weights: Any) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        remove(path)
        clock.time(FEATURIZE, lambda: featurize(kind, path, grads, weights))
        remove(path)

    return run


def featurize(kind: Any, path: Path, grads: Any, weights: Any) -> None:
    """What TRAKer asks of its saver for each batch."""
    saver = kind(path, METADATA, ROWS, COLUMNS, True, logging.CRITICAL, True)
    saver.register_model_id(0, False)
    store = saver.current_store
    for rows in np.array_split(np.arange(ROWS), BATCHES):
        done = (store["is_featurized"][rows] == 1).reshape(-1)
        left = rows[~done]
        store["grads"][left] = grads[left]
        store["out_to_loss"][left] = weights[left]
        store["is_featurized"][left] = 1
        saver.serialize_current_model_id_metadata()
    assert saver.model_ids[0]["is_featurized"] == 1
