"""The data that is saved: pytrees of NumPy arrays, in the shapes of `workloads.json`.

Numbers are normal with a deviation of 0.02, as weights are, so that compression has as much to do
as it has with weights. They are cut from one pool of them, at places that differ from leaf to leaf:
drawing a gigabyte afresh takes longer than saving it.

Every page is written to before anything is measured. First touches of memory run at a fraction of
its speed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Tree = dict[str, Any]
Entry = dict[str, Any]

FILE = Path(__file__).resolve().parent / "workloads.json"
POOL_BYTES = 64 << 20
POOL_STEP = 4099  # a prime: no two leaves of a workload begin at the same place of the pool soon
RARE_ELEMENTS = 1 << 18  # casts to small floats are slow
PAGE = 4096
TOUCHED_FROM_BYTES = 1 << 20


@lru_cache(maxsize=1)
def shapes() -> dict[str, list[Entry]]:
    """Every workload: its name, and its entries."""
    return json.loads(FILE.read_text())["workloads"]


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype, or that of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


def expand(entries: list[Entry]) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Every leaf of a workload: its path, shape and dtype."""
    for entry in entries:
        counts = entry.get("repeat", 1)
        outer, inner = counts if isinstance(counts, list) else (counts, 1)
        shape, dtype = tuple(entry["shape"]), dtype_of(entry["dtype"])
        for i in range(outer):
            for j in range(inner):
                yield entry["path"].replace("{i}", str(i)).replace("{j}", str(j)), shape, dtype


@lru_cache(maxsize=1)
def _normals() -> np.ndarray:
    pool = np.random.default_rng(0).standard_normal(POOL_BYTES // 4, np.float32)
    pool *= np.float32(0.02)
    return pool


class _Pools:
    """A pool for each dtype: what leaves are cut from."""

    def __init__(self) -> None:
        self.by_dtype: dict[str, np.ndarray] = {}
        self.place = 0

    def leaf(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        pool = self.by_dtype.get(dtype.name)
        if pool is None:
            pool = self.by_dtype[dtype.name] = self._pool(dtype)
        out = np.empty(shape, dtype)
        flat = out.reshape(-1)
        filled = 0
        while filled < flat.size:
            at = self.place % pool.size
            part = min(flat.size - filled, pool.size - at)
            flat[filled : filled + part] = pool[at : at + part]
            filled += part
            self.place += part + POOL_STEP
        return out

    @staticmethod
    def _pool(dtype: np.dtype[Any]) -> np.ndarray:
        if dtype.name in WEIGHTS:
            return _normals().astype(dtype)
        if dtype.kind in "fcV" and dtype.name not in INTEGERS:  # most of ml_dtypes' floats are of kind V
            return _normals()[:RARE_ELEMENTS].astype(dtype)
        return np.random.default_rng(1).integers(0, 2, RARE_ELEMENTS, np.uint8).astype(dtype)


WEIGHTS = frozenset("float32 bfloat16 float16".split())
INTEGERS = frozenset("int1 uint1 int2 uint2 int4 uint4".split())


def build(workload: str) -> Tree:
    """The workload as nested dicts of NumPy arrays; also `bytes N` and `leaves N`."""
    kind, _, number = workload.partition(" ")
    if number:
        return {"bytes": of_bytes, "leaves": of_leaves}[kind](int(number))
    return nest(expand(shapes()[workload]))


def nest(leaves_: Iterator[tuple[str, tuple[int, ...], np.dtype[Any]]]) -> Tree:
    """Nested dicts of arrays, from paths with slashes."""
    pools, tree = _Pools(), Tree()
    for path, shape, dtype in leaves_:
        *folders, name = path.split("/")
        node = tree
        for key in folders:
            node = node.setdefault(key, {})
        node[name] = pools.leaf(shape, dtype)
    return tree


def of_bytes(len_bytes: int, leaf_count: int = 64) -> Tree:
    """A tree of so many bytes in all, for growth in bytes."""
    shape = (len_bytes // leaf_count // 4096, 1024)
    return nest((f"layers/{at}/w", shape, np.dtype(np.float32)) for at in range(leaf_count))


def of_leaves(leaf_count: int, len_bytes: int = 256) -> Tree:
    """A tree of so many small leaves, a thousand in a dict, for growth in leaves."""
    dtype = np.dtype(np.float32)
    return nest((f"m/{at // 1000}/{at % 1000}/w", (len_bytes // 4,), dtype) for at in range(leaf_count))


def changed(tree: Tree, workload: str) -> Tree:
    """The same tree after a step: what the workload says never changes is the same array, all
    else is new.
    """
    never = {path for entry in shapes()[workload] if entry.get("changes") == "never" for path, _, _ in expand([entry])}
    out = Tree()
    for path, leaf in leaves(tree, "/"):
        *folders, name = path.split("/")
        node = out
        for key in folders:
            node = node.setdefault(key, {})
        node[name] = leaf if path in never else leaf + leaf.dtype.type(1)
    return out


def leaves(tree: Any, separator: str = ".", path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every leaf, under its path."""
    for key, child in tree.items():
        name = f"{path}{separator}{key}" if path else str(key)
        if isinstance(child, dict):
            yield from leaves(child, separator, name)
        else:
            yield name, child


def size(tree: Tree) -> tuple[int, int]:
    """How many leaves, and how many bytes in all."""
    count, len_bytes = 0, 0
    for _, leaf in leaves(tree):
        count, len_bytes = count + 1, len_bytes + leaf.nbytes
    return count, len_bytes


def like(tree: Tree) -> Tree:
    """Arrays of the same shapes to load into, every page of them written to."""
    return {key: like(child) if isinstance(child, dict) else _filled(child) for key, child in tree.items()}


def _filled(leaf: np.ndarray) -> np.ndarray:
    out = np.empty_like(leaf)
    out.reshape(-1).view(np.uint8).fill(1)
    return out


def touch(tree: Any) -> int:
    """Reads a byte of each page of the large leaves: a lazy map pays here for what it put off."""
    total = 0
    for _, leaf in leaves(tree):
        if leaf.nbytes >= TOUCHED_FROM_BYTES:
            total += int(np.asarray(leaf).reshape(-1).view(np.uint8)[::PAGE].sum())
    return total
