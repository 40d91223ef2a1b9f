"""What the tests of TRAK stores share."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from regrow import trak

METADATA = {"JL dimension": 4, "JL matrix type": "rademacher", "train set size": 6}
OURS = {".regrow.lock", "_checkpoint.json"}


class Saver(trak.MmapSaver):
    """Syncs each batch, so that files can be compared after each call."""

    sync_interval = 0.0


def make(folder: Path, **changes: Any) -> Saver:
    arguments: dict[str, Any] = {
        "metadata": METADATA,
        "train_set_size": 6,
        "proj_dim": 4,
        "load_from_save_dir": True,
        "logging_level": logging.CRITICAL,
        "use_half_precision": True,
    }
    return Saver(folder, **{**arguments, **changes})


def expected_stores(fixtures: Path, kind: str) -> list[dict[str, Any]]:
    expected = json.loads((fixtures / "trak/expected.json").read_text())
    return [store for store in expected["stores"] if store["kind"] == kind]


def files_of(folder: Path) -> dict[str, list[Any]]:
    """Size and hash of every file that is TRAK's; what is ours is not compared."""
    found: dict[str, list[Any]] = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in OURS and not path.name.startswith("_targets_"):
            data = path.read_bytes()
            found[str(path.relative_to(folder))] = [len(data), hashlib.sha256(data).hexdigest()]
    return found


def pattern(rows: list[int], columns: int, k: int) -> np.ndarray[Any, Any]:
    return (((7 * np.arange(len(rows) * columns) + k) % 64) / 8).reshape(len(rows), columns)


def mask_on_disk(folder: Path, model: int = 0) -> list[int]:
    data = (folder / f"{model}/_is_featurized.mmap").read_bytes()[128:]
    return np.frombuffer(data, np.int32).tolist()


def run_python(program: str, **variables: str) -> None:
    environment = {**os.environ, **variables}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, env=environment, timeout=100)
