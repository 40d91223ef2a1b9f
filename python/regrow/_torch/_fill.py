"""Tensors of PyTorch from regions of leaves: each process reads only its own parts.

    tensor -> boxes of the array in this process -> contiguous memory on the CPU: read into place
                                                 -> other memory: read in groups, then copied

`like=` gives new tensors like those of the template. `out=` fills the memory of the given tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core._dtypes import DTYPES
from .._errors import InvalidArgumentError, LeafTypeError, failure
from .._leaves._meshes import Piece
from .._load._regions import Cut, Place, Reading
from . import _tensors


class Wish(NamedTuple):
    """A tensor that a load makes or fills for one leaf of the result."""

    at: int
    leaf: int
    dtype: int
    saved: tuple[int, ...]
    like: Any
    """The template's tensor."""


class Part(NamedTuple):
    """A piece of a tensor: the place that is read for it, and its destination."""

    place: Place
    memory: np.ndarray[Any, Any] | None
    """The destination, if NumPy can write to its memory."""
    tensor: Any
    """The destination as a tensor."""


class TorchTensors:
    """The tensors that a load makes or fills. They are checked before any read."""

    def __init__(self, wishes: Sequence[Wish], path_of: Callable[[int], str], *, in_place: bool) -> None:
        self._found: dict[int, Any] = {}
        self._in_place = in_place
        self._parts: list[Part] = []
        self.leaves = [wish.leaf for wish in wishes]
        """The positions of the leaves in the checkpoint, including leaves without shards in this
        process.
        """
        for wish in wishes:
            try:
                self._add(wish)
            except _tensors.Refused as refused:
                raise refusal(refused, path_of(wish.at)) from None

    @property
    def places(self) -> list[Place]:
        """All places that are read."""
        return [part.place for part in self._parts]

    def read(self, reading: Reading) -> dict[int, Any]:
        """Reads the tensors, by the numbers of their wishes."""
        fill(self._parts, reading)
        if self._in_place:
            self._say_that_they_changed()
        return self._found

    def _add(self, wish: Wish) -> None:
        torch = sys.modules["torch"]
        like = wish.like
        local = _tensors.local_of(like, has_data=self._in_place)
        target = local.tensor
        if self._in_place:
            if any(step == 0 and size > 1 for step, size in zip(target.stride(), target.shape, strict=True)):
                raise _tensors.Refused("is an expanded tensor: its elements share memory", "fill tensor.clone()")
            self._found[wish.at] = like
        else:
            device = "cpu" if target.device.type == "meta" else target.device
            target = _tensors.empty(tuple(target.shape), target.dtype, device)
            self._found[wish.at] = _like(like, target)
        if target.numel() == 0:
            return  # Read nothing: NumPy has no array of some of these shapes.
        with torch.no_grad():
            target = target.detach()
            shown = _tensors.memory(target) if _tensors.can_be_written(target) else None
            for piece in local.pieces:
                cut = _cut(piece)
                # Do not slice a whole tensor: views of views take time.
                is_whole = piece.box.lens == tuple(target.shape)
                self._parts.append(
                    Part(
                        Place(wish.at, wish.leaf, wish.dtype, Cut((piece.box,), wish.saved)),
                        shown if shown is None or is_whole else shown[cut],
                        target if is_whole else target[cut],
                    )
                )

    def _say_that_they_changed(self) -> None:
        """Tells autograd that the tensors have changed: graphs with their old values are invalid."""
        graph = sys.modules["torch"].autograd.graph
        for tensor in self._found.values():
            if not tensor.is_inference() and hasattr(graph, "increment_version"):
                graph.increment_version(tensor._local_tensor if _tensors.is_dtensor(tensor) else tensor)


def fill(parts: Sequence[Part], reading: Reading) -> None:
    """Reads parts into their destinations."""
    direct = [part for part in parts if _is_direct(part)]
    outs = [part.memory for part in direct if part.memory is not None]
    filled = reading.read_into([part.place for part in direct], outs)
    done = {id(part) for part, is_filled in zip(direct, filled, strict=True) if is_filled}
    rest = {id(part.place): part for part in parts if id(part) not in done}
    for group in reading.groups([part.place for part in rest.values()]):
        for place, (array,) in zip(group, reading.read(group), strict=True):
            _put(rest[id(place)], array)


def refusal(refused: _tensors.Refused, path: str) -> LeafTypeError | InvalidArgumentError:
    """The error for a template's tensor."""
    return failure(LeafTypeError, f"the template {refused.what}", leaf=path, help=refused.help)


def _is_direct(part: Part) -> bool:
    """Whether the engine can read directly into the destination."""
    memory = part.memory
    return (
        memory is not None
        and memory.flags.c_contiguous
        and memory.dtype == DTYPES[part.place.dtype]
        and part.place.cut.is_stored()
    )


def _put(part: Part, array: np.ndarray[Any, Any]) -> None:
    """Copies read bytes to their destination."""
    if part.memory is not None:
        np.copyto(part.memory, array, casting="no")
        return
    torch = sys.modules["torch"]
    staged = torch.empty(array.shape, dtype=part.tensor.dtype)
    np.copyto(_tensors.memory(staged), array, casting="no")
    with torch.no_grad():
        part.tensor.copy_(staged)


def _cut(piece: Piece) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(piece.at, piece.box.lens, strict=True))


def _like(like: Any, local: Any) -> Any:
    """A tensor of the template's kind around the memory of this process' part."""
    torch = sys.modules["torch"]
    made = local
    with torch.no_grad():
        if _tensors.is_dtensor(like):
            made = sys.modules["torch.distributed.tensor"].DTensor.from_local(
                local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
            )
    if isinstance(like, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=like.requires_grad)
    return made.requires_grad_(like.requires_grad)
