"""A judge for data and manifest files, written from the description of the original alone.

It reads as the original does (`ast.literal_eval`, then `numpy.frombuffer` on a writable map of the
data), so what it refuses the original refuses; and it writes as the original does under NumPy 1, or
with `numpy_2` under NumPy 2.
"""

from __future__ import annotations

import ast
import mmap
import pprint
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def load(stem: Path) -> Any:
    """What the original's loader gives."""
    entries = ast.literal_eval(Path(f"{stem}.manifest").read_text("utf-8"))
    with open(f"{stem}.data", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    pairs = []
    for entry in entries:
        start, nbytes = entry["offset"], entry["nbytes"]
        flat = np.frombuffer(memoryview(memory)[start : start + nbytes], dtype=entry["dtype"])
        pairs.append((tuple(entry["path"]), flat.reshape(entry["shape"])))
    return nest(pairs)


def nest(pairs: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """Nested dicts; these tests ask for no conflicts."""
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][1]
    root: dict[Any, Any] = {}
    for path, value in pairs:
        at = root
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = value
    return root


def contents(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Paths and arrays, in the order of the dicts."""
    if not isinstance(tree, dict):
        return [(path, tree)]
    return [pair for key, child in tree.items() for pair in contents(child, (*path, key))]


def save(stem: Path, tree: Any, byte_align: int = 8, numpy_2: bool = False) -> int:
    """What the original's writer makes."""
    blob = bytearray()
    entries = []
    for path, array in contents(tree):
        array = np.asarray(array)
        if array.dtype == BFLOAT16:
            array = array.astype(np.float32)
        offset: Any = np.int64(len(blob)) if numpy_2 else len(blob)
        entries.append(
            {"path": path, "dtype": array.dtype.str, "shape": array.shape, "nbytes": array.nbytes, "offset": offset}
        )
        blob += array.tobytes()
        blob += bytes(-len(blob) % byte_align)
    Path(f"{stem}.data").write_bytes(bytes(blob) or b"\0")
    with open(f"{stem}.manifest", "w", encoding="utf-8") as file:
        pprint.pprint(entries, stream=file)
    return len(blob)
