"""Reading: an opened file, its tensors, slices of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from .. import _native
from .._core._location import StrPath, place, shown
from .._errors import NotFoundError, ReplacedError
from .._leaves._columns import DTYPES, UNKNOWN
from .._load._checkpoint import basic_region
from .._tree._flatten import unflatten
from ._errors import SafetensorError, as_safetensor_errors
from ._frameworks import TORCH, Reads, check, reads

BACKENDS = ("mmap", "pread")

_Made = TypeVar("_Made")


Maps = tuple[list[_native.MapBuffer], list[tuple[int, int, int] | None]]
"""The files as private maps, and for each tensor the number of its map, its first byte and its
length.
"""


class Tensors:
    """The tensors of an opened file, in the order of their bytes."""

    def __init__(self, native: _native.Checkpoint, maps: Maps | None = None) -> None:
        self.native = native
        self.maps = maps
        self.structure, kinds, dtypes, shapes, names = native.tree()
        self.kinds = kinds
        self.dtypes = dtypes
        self.shapes: list[tuple[int, ...]] = shapes
        self.names = names
        self.by_name = {name: at for at, name in enumerate(names)}

    @classmethod
    def of_path(cls, path: StrPath, separator: str | None = None) -> Tensors:
        """Opens a file of any name, an index, or a folder."""
        with _opening(path):
            return cls(_native.safetensors_open(place("filename", path), separator))

    @classmethod
    def mapped(cls, path: StrPath) -> Tensors:
        """Opens the files in the same way, as private maps if the file system has them."""
        with _opening(path):
            return cls(*_native.safetensors_open_mapped(place("filename", path)))

    @classmethod
    def read(cls, path: StrPath, separator: str | None, make: Callable[[Tensors], _Made]) -> _Made:
        """Computes a result from the files at `path`. Repeats this if one of several files was
        replaced in between.
        """
        return _native.read_unreplaced(lambda _: make(cls.of_path(path, separator)))

    @classmethod
    def of_bytes(cls, data: Any, separator: str | None = None) -> Tensors:
        """Opens the bytes of a file."""
        with as_safetensor_errors():
            return cls(_native.safetensors_open_bytes(data if isinstance(data, bytes) else bytes(data), separator))

    @property
    def metadata(self) -> dict[str, str] | None:
        """The value of ``__metadata__``; `None` if the file has none."""
        text = self.native.metadata
        if text is None:
            return None
        metadata: dict[str, str] = json.loads(text)
        return metadata

    def tag(self, at: int) -> str:
        """Returns safetensors' name for the dtype of a tensor."""
        return _native.SAFETENSORS_DTYPES[self.dtypes[at]] or ""

    def view(self, at: int) -> np.ndarray[Any, Any]:
        """Returns a whole tensor, read-only. It is a view of the file, unless the file stores it
        packed.
        """
        self.check_dtype(at)
        with as_safetensor_errors():
            _, values, _ = self.native.read(at)
        array: np.ndarray[Any, Any] = values[0]
        return array

    def part(self, at: int, index: Any) -> np.ndarray[Any, Any]:
        """Returns the result of NumPy's basic indexing, always as an array. Reads only the bytes
        from the first to the last selected element.
        """
        self.check_dtype(at)
        region = basic_region(index, self.shapes[at])
        with as_safetensor_errors():
            buffer = memoryview(self.native.region(at, region.starts, region.lens))
        array: np.ndarray[Any, Any] = np.ndarray(region.lens, DTYPES[self.dtypes[at]], buffer)
        return np.asarray(array[region.then])

    def tree(self, convert: Callable[[np.ndarray[Any, Any]], Any]) -> Any:
        """Returns every tensor, in the nested dicts into which the separator divides the names."""
        return unflatten(self.structure, [convert(self.view(at)) for at in range(len(self.names))])

    def mapped_bytes(self, at: int) -> tuple[_native.MapBuffer, int, int] | None:
        """Returns the map that contains the stored bytes of a whole tensor, the first byte and the
        length. Returns `None` without maps.
        """
        self.check_dtype(at)
        if self.maps is None or (place := self.maps[1][at]) is None:
            return None
        number, start, length = place
        return self.maps[0][number], start, length

    def check_dtype(self, at: int) -> None:
        """Refuses a dtype whose bits safetensors does not define."""
        if self.kinds[at] == UNKNOWN:
            raise SafetensorError(
                f"Dtype not understood: {self.tag(at)}: safetensors does not define its bits\n  leaf {self.names[at]}",
                leaf=self.names[at],
            )


@contextmanager
def _opening(path: StrPath) -> Iterator[None]:
    """Reports a missing file with the words of safetensors."""
    with as_safetensor_errors():
        try:
            yield
        except NotFoundError as error:
            name = shown(path)
            if isinstance(error, ReplacedError) or os.path.lexists(name):
                raise
            raise NotFoundError(f"No such file or directory: {name}", file=name) from None


class safe_open:
    """Opens a safetensors file. Each tensor is read on request.

    Args:
        filename: The file. Also ``model.safetensors.index.json``, or a folder with one.
        framework: The framework of the tensors: ``"np"`` or ``"numpy"``, ``"jax"`` or ``"flax"``,
            ``"pt"`` or ``"torch"``.
        device: The device of the tensors. Only torch accepts others than ``"cpu"``.
        backend: ``"mmap"`` returns torch's tensors on the CPU in a private map of the file,
            ``"pread"`` in memory of their own. Arrays of NumPy and JAX always have memory of their
            own.
        copy: With ``True``, torch's tensors have memory of their own with either backend, with
            ``False`` they are in the map. With ``False``, NumPy arrays (and slices) are read-only
            views if possible.

    Writes to a tensor in a private map do not reach the file.

    Raises:
        SafetensorError: if the file breaks the rules of safetensors.
        FileNotFoundError: if the file does not exist.
    """

    def __init__(
        self,
        filename: StrPath,
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        copy: bool | None = None,
    ) -> None:
        self._reads: Reads | None = opened(filename, framework, device, backend, copy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _exc_type: type[BaseException] | None,
        _exc_value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._reads = None

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted."""
        return sorted(self._open().tensors.names)

    def offset_keys(self) -> list[str]:
        """Returns the names of the tensors, in the order of their bytes."""
        return list(self._open().tensors.names)

    def metadata(self) -> dict[str, str] | None:
        """Returns the metadata of the file, or `None` if there is none."""
        return self._open().tensors.metadata

    def get_tensor(self, name: str) -> Any:
        """Returns a whole tensor."""
        return self._open().whole(self._at(name))

    def get_tensors(self) -> dict[str, Any]:
        """Returns every tensor by its name."""
        return self._open().all()

    def get_slice(self, name: str) -> SafeSlice:
        """Returns a tensor to be sliced. Slicing reads only the requested bytes."""
        return SafeSlice(self._open(), self._at(name))

    def _open(self) -> Reads:
        if self._reads is None:
            raise SafetensorError("File is closed")
        return self._reads

    def _at(self, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(f"a tensor is selected by its name, a str, not by {type(name).__name__}")
        at = self._open().tensors.by_name.get(name)
        if at is None:
            raise SafetensorError(f"File does not contain tensor {name}", leaf=name)
        return at


class _safe_open_handle(safe_open):
    """Calls `safe_open` with the name of a file object.

    Raises:
        AttributeError: if `f` has no ``fileno`` or no ``name``: it is no file of the system.
    """

    def __init__(
        self, f: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap", copy: bool | None = None
    ) -> None:
        _ = f.fileno
        super().__init__(os.fspath(f.name), framework, device, backend=backend, copy=copy)


class SafeSlice:
    """A tensor that has not been read: ``file.get_slice(name)[0:16, ..., 3]``."""

    def __init__(self, reads: Reads, at: int) -> None:
        self._reads = reads
        self._at = at

    def get_shape(self) -> list[int]:
        """Returns the shape of the whole tensor."""
        return list(self._reads.tensors.shapes[self._at])

    def get_dtype(self) -> str:
        """Returns safetensors' name of the dtype: ``F32``, ``BF16``."""
        return self._reads.tensors.tag(self._at)

    def __getitem__(self, index: Any) -> Any:
        """A part of it: integers, slices with bounds inside and a positive step, ``...``. In a
        private map of each tensor that torch takes."""
        return self._reads.part(self._at, index)


def opened(filename: StrPath, framework: str, device: Any, backend: str, copy: bool | None) -> Reads:
    """Opens a file, an index or a folder for reads in a framework."""
    check_backend(backend)
    check(framework, device)
    is_mapped = framework in TORCH and (backend == "mmap" if copy is None else not copy)
    tensors = Tensors.mapped(filename) if is_mapped else Tensors.of_path(filename)
    return reads(tensors, framework, device, copy)


def check_backend(backend: str) -> None:
    """Refuses a backend that safetensors does not have."""
    if backend not in BACKENDS:
        raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
