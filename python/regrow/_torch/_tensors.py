"""Tensors of PyTorch for the engine, with their memory as NumPy's.

A `DTensor` is an array in shards: each process has its local part, and the mesh and the placements
give its place. This module never imports torch: until the program imports torch, there are no
tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._core._dtypes import DTYPES
from .._errors import LimitError, failure
from .._leaves._meshes import AxisCut, Piece, Placed, Unknown, named_sharding

_HELP_PLAIN = "convert it to a plain dense tensor first, or leave it out"


class Refused(Exception):
    """A tensor that no checkpoint can hold, with the reason and advice."""

    def __init__(self, what: str, help: str = _HELP_PLAIN) -> None:
        super().__init__(what)
        self.what = what
        self.help = help


def is_tensor(leaf: Any) -> bool:
    """Whether a value is a tensor. A `DTensor` is a tensor, too."""
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor_type is not None and isinstance(leaf, tensor_type)


def is_dtensor(leaf: Any) -> bool:
    """Whether a tensor is a `DTensor`."""
    dtensor_type = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return dtensor_type is not None and isinstance(leaf, dtensor_type)


def dtype_number(tensor: Any) -> int:
    """The number of the tensor's dtype in the engine.

    Raises:
        Refused: if the engine has none.
    """
    number = _dtypes().get(tensor.dtype)
    if number is None:
        raise Refused(
            f"is a tensor of dtype {tensor.dtype}, which cannot be stored",
            "save tensor.view(torch.uint8), or another dtype of its size",
        )
    return number


def numpy_dtype(tensor: Any) -> np.dtype[Any]:
    """The tensor's dtype in NumPy.

    Raises:
        Refused: if the engine has none.
    """
    return DTYPES[dtype_number(tensor)]


_PACKED = ("int1", "int2", "int4", "uint1", "uint2", "uint4")
"""torch's names for dtypes that pack several elements into a byte. ml_dtypes has one
element in each byte.
"""


@lru_cache(maxsize=1)
def _dtypes() -> dict[Any, int]:
    """The number of each dtype of torch: that of the dtype with the same name."""
    torch = sys.modules["torch"]
    names = ((number, name) for number, name in enumerate(_native.DTYPES) if name not in _PACKED)
    known = ((number, getattr(torch, name, None)) for number, name in names)
    return {dtype: number for number, dtype in known if isinstance(dtype, torch.dtype)}


def check(tensor: Any, *, has_data: bool = True) -> None:
    """Refuses a tensor that is not dense, or whose dtype the engine does not have.

    Args:
        tensor: Plain, the local part of a `DTensor`, or a `DTensor`.
        has_data: Whether it has to have elements: templates need none.

    Raises:
        Refused: with the reason.
    """
    torch = sys.modules["torch"]
    name = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    if not is_dtensor(tensor) and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Refused(f"is of type {name}, a tensor made of other tensors")
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout)
        raise Refused(f"is a {kind} tensor, which regrow cannot store")
    if has_data and tensor.device.type == "meta":
        raise Refused("is a tensor on the device meta: it has no data", "give it data: model.to_empty(device=...)")
    dtype_number(tensor)


def empty(shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """A new tensor.

    Raises:
        LimitError: if there is no memory for it: a file may say any shape.
    """
    torch = sys.modules["torch"]
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        dims = "x".join(map(str, shape))
        raise failure(
            LimitError,
            f"the device {device} has not enough memory for a tensor of {dims} elements of {dtype}",
            help="pass `only` to load fewer leaves, or load on another device",
        ) from error


def memory(tensor: Any) -> np.ndarray[Any, Any]:
    """The memory of a dense tensor as a NumPy array. A copy if the tensor is on another device, or
    is a view that is computed.
    """
    torch = sys.modules["torch"]
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    dtype = numpy_dtype(plain)
    if dtype.isbuiltin == 1:
        return np.asarray(plain.numpy())
    return np.asarray(plain.view(getattr(torch, f"uint{8 * dtype.itemsize}")).numpy()).view(dtype)


def can_be_written(tensor: Any) -> bool:
    """Whether a write to the array of `memory` changes the tensor."""
    return bool(tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg())


class Local(NamedTuple):
    """The shards of a tensor in this process."""

    tensor: Any
    """The memory; for a plain tensor, the tensor itself."""
    pieces: list[Piece]
    """The boxes of the whole array that lie in this memory."""


def local_of(tensor: Any, *, has_data: bool = True) -> Local:
    """The shards of any tensor in this process.

    Raises:
        Refused: for tensors that no checkpoint can hold, and `DTensor`s that do not say which part
            this is.
    """
    if not is_dtensor(tensor):
        tensor = _waited_for(tensor)
        check(tensor, has_data=has_data)
        return Local(tensor, Placed(tuple(tensor.shape), (), ()).pieces(()))
    part = _waited_for(tensor._local_tensor)
    check(part, has_data=has_data)
    placed, coordinate = placed_of(tensor), tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return Local(part, [])
    try:
        expected, pieces = placed.local_shape(coordinate), placed.pieces(coordinate)
    except Unknown as error:
        raise _unknown(tensor, error) from None
    if expected != tuple(part.shape):
        raise Refused(
            f"is a DTensor of shape {list(tensor.shape)} with {_shown(tensor)}, whose part at {list(coordinate)} "
            f"of the mesh has the shape {list(part.shape)}, not {list(expected)}",
            "make it with distribute_tensor, which cuts like torch.chunk; or save a regrow.jobs.ShardedArray",
        )
    return Local(part, pieces)


def _waited_for(tensor: Any) -> Any:
    """The result of a collective, after a wait if it is still running."""
    return tensor.wait() if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


def placed_of(tensor: Any) -> Placed:
    """The position of a `DTensor` on its mesh.

    Raises:
        Refused: for sums that have not been made, and placements that are not known here.
    """
    cuts = []
    for axis, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise Refused(
                f"is a DTensor whose values are partial, {placement} along axis {axis} of the mesh: "
                "no process has its values",
                "redistribute it first: tensor.redistribute(placements=...) with Replicate() or Shard()",
            )
        split = getattr(placement, "split_factor", 0)
        if placement.is_replicate():
            cuts.append(AxisCut(None))
        elif split or placement.is_shard():
            cuts.append(AxisCut(placement.dim, split))
        else:
            raise Refused(f"is a DTensor with the placement {placement!r}, which regrow does not know")
    return Placed(tuple(tensor.shape), tuple(tensor.device_mesh.shape), tuple(cuts))


def _shown(tensor: Any) -> str:
    return f"placements {list(tensor.placements)} on a mesh of {list(tensor.device_mesh.shape)}"


def _unknown(tensor: Any, error: Unknown) -> Refused:
    return Refused(
        f"is a DTensor with {_shown(tensor)}, which do not give the part of this process: {error}",
        "redistribute it to Shard() or Replicate() along each axis of the mesh",
    )


class Told(NamedTuple):
    """The engine's form of a tensor."""

    value: Any
    """An array, or shards in the form of the native half: the dtype, the shape, the shape of a
    chunk, whether every process has the whole array, and the shards with the index of their first
    element.
    """
    sharding: str | None


class _Mesh(NamedTuple):
    """The facts of a mesh that many tensors need."""

    mesh: Any
    coordinate: Sequence[int] | None
    """The coordinate of this process on the mesh; `None` if the process is not on the mesh."""
    is_first: bool
    """Whether this mesh saves its tensors, and no other part of the same root mesh does.

    Of a mesh of two axes, ``mesh["dp"]`` is for each process another mesh, of those that share its
    place along the other axis. A tensor on it is there as many times, like a replica.
    """
    is_all: bool
    """Whether the mesh has every process of the job."""

    @staticmethod
    def of(mesh: Any) -> _Mesh:
        find = getattr(mesh, "_get_root_mesh", None)
        if find is None:
            resources = getattr(sys.modules["torch.distributed.device_mesh"], "_mesh_resources", None)
            root = mesh if resources is None else resources.get_root_mesh(mesh)
        else:
            root = find()
        is_first = bool((mesh.mesh == root.mesh.flatten()[0]).any())
        is_all = mesh.size() == sys.modules["torch.distributed"].get_world_size()
        return _Mesh(mesh, mesh.get_coordinate(), is_first, is_all)


class Teller:
    """Converts the tensors of one save to the engine's form. The tensors share a few meshes."""

    def __init__(self, replica_parallel: bool) -> None:
        self._replica_parallel = replica_parallel
        self._meshes: dict[Any, _Mesh] = {}
        self._texts: dict[Any, str] = {}

    def tell(self, tensor: Any) -> Told:
        """The engine's form of a tensor; with `replica_parallel` each replica of a shard gives a
        slice of it.

        Raises:
            Refused: as `local_of`.
        """
        local = local_of(tensor)
        if not is_dtensor(tensor):
            return Told(memory(local.tensor), None)
        placed, mesh = placed_of(tensor), self._mesh_of(tensor)
        try:
            chunk_shape, sharding = placed.chunk_shape(), self._text_of(placed, mesh.mesh)
        except Unknown as error:
            raise _unknown(tensor, error) from None
        dtype, replicas = numpy_dtype(tensor), placed.replicas()
        if tensor.numel() == 0:
            return Told(np.empty(placed.shape, dtype), sharding)
        is_everywhere = mesh.is_all and replicas == mesh.mesh.size()
        if is_everywhere and replicas == 1:
            return Told(memory(local.tensor), sharding)
        number = placed.replica(mesh.coordinate) if mesh.coordinate is not None and mesh.is_first else None
        axis = next((axis for axis, step in enumerate(chunk_shape) if step > 1 and step % replicas == 0), None)
        shards: list[tuple[Sequence[int], Any]] = []
        if self._replica_parallel and replicas > 1 and axis is not None:
            step = chunk_shape[axis] // replicas
            if number is not None:
                shards = _slices(local, axis, chunk_shape[axis], step, number)
            chunk_shape = (*chunk_shape[:axis], step, *chunk_shape[axis + 1 :])
            return Told((dtype.name, placed.shape, chunk_shape, False, shards), sharding)
        if local.pieces and (is_everywhere or number == 0):
            held = memory(local.tensor)
            shards = [(piece.box.starts, held[_cut(piece)]) for piece in local.pieces]
        return Told((dtype.name, placed.shape, chunk_shape, is_everywhere, shards), sharding)

    def _mesh_of(self, tensor: Any) -> _Mesh:
        mesh = tensor.device_mesh
        known = self._meshes.get(mesh)
        if known is None:
            known = self._meshes[mesh] = _Mesh.of(mesh)
        return known

    def _text_of(self, placed: Placed, mesh: Any) -> str | None:
        """The sharding as JAX text; `None` if JAX has no text for it."""
        spec = placed.spec()
        if spec is None:
            return None
        text = self._texts.get((mesh, spec))
        if text is None:
            names = mesh.mesh_dim_names or [f"axis_{axis}" for axis in range(mesh.ndim)]
            text = self._texts[mesh, spec] = named_sharding(spec, names, mesh.mesh.tolist())
        return text


def _slices(local: Local, axis: int, chunk: int, step: int, number: int) -> list[tuple[Sequence[int], Any]]:
    """For each chunk along an axis, the slice of one replica."""
    shards: list[tuple[Sequence[int], Any]] = []
    if not local.pieces:
        return shards
    held = memory(local.tensor)
    for piece in local.pieces:
        part = held[_cut(piece)]
        for start in range(number * step, part.shape[axis], chunk):
            cut = (slice(None),) * axis + (slice(start, start + step),)
            starts = list(piece.box.starts)
            starts[axis] += start
            shards.append((starts, part[cut]))
    return shards


def _cut(piece: Piece) -> tuple[Any, ...]:
    # With an ellipsis, the result for an array without axes is still an array.
    return (..., *(slice(at, at + size) for at, size in zip(piece.at, piece.box.lens, strict=True)))
