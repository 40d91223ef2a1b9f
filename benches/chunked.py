"""The contestants that store arrays in chunks: Orbax, compressed and not, and TensorStore, which
Orbax stands on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tools import MANY, Tool
from workloads import Tree, leaves

SLOW_FROM = 5_000


class Orbax(Tool):
    """With its defaults: OCDBT, zarr v2, zstd. Synced by itself."""

    name = "orbax"
    needs = "orbax.checkpoint"
    leaves_max = MANY
    slow_from = SLOW_FROM
    options: dict[str, bool] = {}  # noqa: RUF012

    def __init__(self) -> None:
        import orbax.checkpoint as ocp

        self.checkpointer = ocp.PyTreeCheckpointer(**self.options)

    def save(self, path: Path, tree: Tree) -> None:
        self.checkpointer.save(path, tree)

    def load(self, path: Path) -> Any:
        return self.checkpointer.restore(path)


class OrbaxZarr3(Orbax):
    """OCDBT, zarr v3, zstd."""

    name = "orbax zarr3"
    options = {"use_zarr3": True}  # noqa: RUF012


class OrbaxRaw(Orbax):
    """OCDBT, zarr v2, uncompressed: Orbax at its fastest on a local disk."""

    name = "orbax raw"
    options = {"use_compression": False}  # noqa: RUF012


class OrbaxZarr3Raw(Orbax):
    """OCDBT, zarr v3, uncompressed."""

    name = "orbax zarr3 raw"
    options = {"use_zarr3": True, "use_compression": False}  # noqa: RUF012


class TensorStore(Tool):
    """zarr v3, uncompressed, a folder for each leaf, all leaves at once. Synced by itself."""

    name = "tensorstore"
    needs = "tensorstore"
    leaves_max = MANY
    slow_from = SLOW_FROM

    def __init__(self) -> None:
        import tensorstore

        self.ts = tensorstore

    def save(self, path: Path, tree: Tree) -> None:
        path.mkdir()
        pending = []
        for name, leaf in leaves(tree):
            shape = list(leaf.shape)
            metadata = {
                "shape": shape,
                "data_type": leaf.dtype.name,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(1, n) for n in shape]}},
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            }
            spec = {**self._spec(path, name), "metadata": metadata}
            pending.append((self.ts.open(spec, create=True), leaf))
        writes = [store.result().write(leaf) for store, leaf in pending]
        (path / "names").write_text("\n".join(name for name, _ in leaves(tree)))
        for write in writes:
            write.result()

    def load(self, path: Path) -> Any:
        names = (path / "names").read_text().split("\n")
        stores = {name: self.ts.open(self._spec(path, name), open=True) for name in names}
        reads = {name: store.result().read() for name, store in stores.items()}
        return {name: np.asarray(read.result()) for name, read in reads.items()}

    def _spec(self, path: Path, name: str) -> dict[str, Any]:
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path / name}/"}}
