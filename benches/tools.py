"""The contestants: regrow and what its users have today, each with the same few calls.

`save` makes `path` (a folder) and returns when the data is on the disk: where a tool does not sync
its files, it is done here, as regrow, Orbax and TensorStore do by themselves. `load` gives nested
dicts, or a flat one, of arrays.

pickle is here as a rival only. regrow has nothing to do with it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from measure import sync
from workloads import Tree, leaves

MANY = 20_000
"""Beyond so many leaves a tool that spends a millisecond on each needs minutes."""


class Tool:
    """A tool that can save and load. It takes no part in operations whose optional call it
    lacks.
    """

    name: str
    leaves_max: int | None = None
    slow_from: int | None = None
    """From so many leaves on it takes part in one round only."""
    needs: str | None = None
    """The module it needs."""

    load_into: Callable[[Path, Tree], Any] | None = None
    """Fills the caller's arrays."""
    open: Callable[[Path], Any] | None = None
    """Opens, and reads the first number of one leaf, without reading the others."""
    verify: Callable[[Path], Any] | None = None

    def save(self, path: Path, tree: Tree) -> None:
        """Until it is on the disk."""
        raise NotImplementedError

    def load(self, path: Path) -> Any:
        """All leaves, usable as NumPy arrays."""
        raise NotImplementedError


class Regrow(Tool):
    """Checksummed, atomic, synced."""

    name = "regrow"

    def __init__(self) -> None:
        import regrow

        self.regrow = regrow

    def save(self, path: Path, tree: Tree) -> None:
        self.regrow.save(path, tree)

    def load(self, path: Path) -> Any:
        return self.regrow.load(path)

    def load_into(self, path: Path, into: Tree) -> Any:
        return self.regrow.load_into(path, into)

    def open(self, path: Path) -> Any:
        checkpoint = self.regrow.open(path)
        first = next(iter(checkpoint))
        leaf = checkpoint[first]
        return checkpoint, np.asarray(leaf[(slice(0, 1),) * leaf.ndim])

    def verify(self, path: Path) -> Any:
        report = self.regrow.verify(path)
        assert report.ok, report
        return report


class Safetensors(Tool):
    """One file; no checksums; not synced by itself."""

    name = "safetensors"

    def __init__(self) -> None:
        from safetensors import safe_open
        from safetensors.numpy import load_file, save_file

        self.save_file, self.load_file, self.safe_open = save_file, load_file, safe_open

    def save(self, path: Path, tree: Tree) -> None:
        path.mkdir()
        self.save_file(dict(leaves(tree)), path / "model.safetensors")
        sync(path / "model.safetensors")
        sync(path)

    def load(self, path: Path) -> Any:
        return self.load_file(path / "model.safetensors")

    def load_into(self, path: Path, into: Tree) -> Any:
        copy_into(self.load(path), into)
        return into

    def open(self, path: Path) -> Any:
        with self.safe_open(path / "model.safetensors", framework="np") as file:
            first = next(iter(file.keys()))
            piece = file.get_slice(first)
            rank = len(piece.get_shape())
            return piece[(slice(0, 1),) * rank] if rank else file.get_tensor(first)


class Flax(Tool):
    """`to_bytes` and a file. Not synced by itself."""

    name = "flax"
    needs = "flax"

    def __init__(self) -> None:
        from flax import serialization

        self.serialization = serialization

    def save(self, path: Path, tree: Tree) -> None:
        path.mkdir()
        write_synced(path / "state.msgpack", self.serialization.to_bytes(tree))

    def load(self, path: Path) -> Any:
        return self.serialization.msgpack_restore((path / "state.msgpack").read_bytes())


class Equinox(Tool):
    """`tree_serialise_leaves`. Not synced by itself; its load needs the tree."""

    name = "equinox"
    needs = "equinox"
    leaves_max = MANY

    def __init__(self) -> None:
        import equinox

        self.equinox = equinox
        self.like: Tree = {}

    def save(self, path: Path, tree: Tree) -> None:
        self.like = tree
        path.mkdir()
        with open(path / "model.eqx", "wb") as file:
            self.equinox.tree_serialise_leaves(file, tree)
        sync(path / "model.eqx")
        sync(path)

    def load(self, path: Path) -> Any:
        return self.equinox.tree_deserialise_leaves(path / "model.eqx", self.like)


class Numpy(Tool):
    """A `.npy` file for each leaf. Not synced by itself."""

    name = "numpy"
    leaves_max = MANY

    def save(self, path: Path, tree: Tree) -> None:
        path.mkdir()
        for at, (_, leaf) in enumerate(leaves(tree)):
            with open(path / f"{at}.npy", "wb") as file:
                np.save(file, leaf, allow_pickle=False)
                file.flush()
                sync(path / f"{at}.npy")
        sync(path)

    def load(self, path: Path) -> Any:
        return {file.name: np.load(file) for file in path.iterdir()}

    def load_into(self, path: Path, into: Tree) -> Any:
        for at, (_, leaf) in enumerate(leaves(into)):
            stored = np.load(path / f"{at}.npy")
            np.copyto(leaf, stored.view(leaf.dtype))  # npy has no names for ml_dtypes' types: they come as voids
        return into

    def open(self, path: Path) -> Any:
        return {file.name: np.load(file, mmap_mode="r") for file in path.iterdir()}


class Pickle(Tool):
    """Protocol 5. Not synced by itself; runs what a file says."""

    name = "pickle"

    def save(self, path: Path, tree: Tree) -> None:
        path.mkdir()
        with open(path / "state.pickle", "wb") as file:
            pickle.dump(tree, file, protocol=5)
        sync(path / "state.pickle")
        sync(path)

    def load(self, path: Path) -> Any:
        with open(path / "state.pickle", "rb") as file:
            return pickle.load(file)


class Torch(Tool):
    """`torch.save`. Not synced by itself."""

    name = "torch"
    needs = "torch"

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def save(self, path: Path, tree: Tree) -> None:
        path.mkdir()
        self.torch.save(torch_tensors(tree), path / "state.pt")
        sync(path / "state.pt")
        sync(path)

    def load(self, path: Path) -> Any:
        return torch_arrays(self.torch.load(path / "state.pt", weights_only=True))


class TorchDcp(Torch):
    """torch.distributed.checkpoint with one process. Not synced by itself; its load fills
    tensors.
    """

    name = "torch dcp"
    leaves_max = MANY

    def __init__(self) -> None:
        super().__init__()
        import torch.distributed.checkpoint as dcp

        self.dcp = dcp
        self.like: dict[str, Any] = {}

    def save(self, path: Path, tree: Tree) -> None:
        self.like = torch_tensors(tree)
        self.dcp.save(self.like, checkpoint_id=path, no_dist=True)
        for file in path.iterdir():
            sync(file)
        sync(path)

    def load(self, path: Path) -> Any:
        into = {name: self.torch.empty_like(tensor) for name, tensor in self.like.items()}
        self.dcp.load(into, checkpoint_id=path, no_dist=True)
        return torch_arrays(into)


class RegrowTorch(Torch):
    """`regrow.torch.save` and `load`: tensors, in memory of their own. Checksummed, atomic,
    synced.
    """

    name = "regrow.torch"

    def __init__(self) -> None:
        super().__init__()
        import regrow.torch

        self.ours = regrow.torch

    def save(self, path: Path, tree: Tree) -> None:
        self.ours.save(path, torch_tensors(tree))

    def load(self, path: Path) -> Any:
        return torch_arrays(self.ours.load(path))


class RegrowDcp(TorchDcp):
    """The same state through torch.distributed.checkpoint, with regrow's storage."""

    name = "regrow dcp"

    def __init__(self) -> None:
        super().__init__()
        import regrow.torch

        self.ours = regrow.torch

    def save(self, path: Path, tree: Tree) -> None:
        self.like = torch_tensors(tree)
        self.dcp.save(self.like, storage_writer=self.ours.StorageWriter(path), no_dist=True)

    def load(self, path: Path) -> Any:
        into = {name: self.torch.empty_like(tensor) for name, tensor in self.like.items()}
        self.dcp.load(into, storage_reader=self.ours.StorageReader(path), no_dist=True)
        return torch_arrays(into)


# ---- what they share ------------------------------------------------------------------


def write_synced(path: Path, data: bytes) -> None:
    """One file, on the disk when this returns."""
    with open(path, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
    sync(path)
    sync(path.parent)


def copy_into(loaded: dict[str, np.ndarray], into: Tree) -> None:
    """What a tool that always makes new arrays leaves to its caller."""
    for name, leaf in leaves(into):
        np.copyto(leaf, loaded[name], casting="no")


def torch_tensors(tree: Tree) -> dict[str, Any]:
    """Tensors that share the memory of the arrays."""
    import torch

    out = {}
    for name, leaf in leaves(tree):
        if leaf.dtype.name == "bfloat16":
            out[name] = torch.from_numpy(leaf.view(np.int16)).view(torch.bfloat16)
        else:
            out[name] = torch.from_numpy(leaf)
    return out


def torch_arrays(tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays that share the memory of the tensors."""
    import torch

    return {
        name: (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }


def is_there(tool: type[Tool]) -> bool:
    """Whether the module that it needs is installed."""
    return tool.needs is None or find_spec(tool.needs) is not None
