"""Reading: an opened file, its tensors, slices of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from .. import _native
from .._attempts import attempts
from .._checkpoint import StrPath, basic_region
from .._errors import InvalidArgumentError, ReplacedError
from .._leaves import DTYPES, UNKNOWN
from .._tree import unflatten
from ._errors import SafetensorError, SafetensorIndexError, as_safetensor_errors
from ._frameworks import FromNumpy, converter

BACKENDS = ("mmap", "pread")

_Made = TypeVar("_Made")


class Tensors:
    """The tensors of an opened file, in the order of their bytes."""

    def __init__(self, native: _native.Checkpoint) -> None:
        self.native = native
        self.structure, kinds, dtypes, shapes, names = native.tree()
        self.kinds = kinds
        self.dtypes = dtypes
        self.shapes: list[tuple[int, ...]] = shapes
        self.names = names
        self.by_name = {name: at for at, name in enumerate(names)}

    @classmethod
    def of_path(cls, path: StrPath, separator: str | None = None) -> Tensors:
        """Opens a file of any name, an index, or a folder."""
        with as_safetensor_errors():
            return cls(_native.safetensors_open(os.fsdecode(path), separator))

    @classmethod
    def read(cls, path: StrPath, separator: str | None, make: Callable[[Tensors], _Made]) -> _Made:
        """Makes something of all that is at `path`; anew, if one of several files was replaced meanwhile."""
        for is_last in attempts():
            try:
                return make(cls.of_path(path, separator))
            except ReplacedError:
                if is_last:
                    raise
        raise AssertionError("the last attempt returns or raises")

    @classmethod
    def of_bytes(cls, data: Any, separator: str | None = None) -> Tensors:
        """Opens a file that is in memory."""
        with as_safetensor_errors():
            return cls(_native.safetensors_open_bytes(data if isinstance(data, bytes) else bytes(data), separator))

    @property
    def metadata(self) -> dict[str, str] | None:
        """``__metadata__``; `None` if the file has none."""
        text = self.native.metadata
        if text is None:
            return None
        metadata: dict[str, str] = json.loads(text)
        return metadata

    def tag(self, at: int) -> str:
        """safetensors' name of a tensor's dtype."""
        return _native.SAFETENSORS_DTYPES[self.dtypes[at]] or ""

    def view(self, at: int) -> np.ndarray[Any, Any]:
        """A whole tensor, read-only: of the file itself, unless it is packed there."""
        self._check(at)
        with as_safetensor_errors():
            _, values, _ = self.native.read(at)
        array: np.ndarray[Any, Any] = values[0]
        return array

    def part(self, at: int, index: Any) -> np.ndarray[Any, Any]:
        """What NumPy's basic indexing gives, always an array; only the bytes between its corners are read."""
        self._check(at)
        region = basic_region(index, self.shapes[at])
        with as_safetensor_errors():
            buffer = memoryview(self.native.region(at, region.starts, region.lens))
        array: np.ndarray[Any, Any] = np.ndarray(region.lens, DTYPES[self.dtypes[at]], buffer)
        return np.asarray(array[region.then])

    def all(self, convert: FromNumpy) -> dict[str, Any]:
        """Every tensor by its name."""
        return {name: convert(self.view(at)) for at, name in enumerate(self.names)}

    def tree(self, convert: FromNumpy) -> Any:
        """Every tensor, in the dicts that its name was cut into."""
        return unflatten(self.structure, [convert(self.view(at)) for at in range(len(self.names))])

    def _check(self, at: int) -> None:
        if self.kinds[at] == UNKNOWN:
            raise SafetensorError(
                f"Dtype not understood: {self.tag(at)}: safetensors does not say how its bits lie\n"
                f"  leaf {self.names[at]}",
                leaf=self.names[at],
            )


class safe_open:
    """Opens a safetensors file; its tensors are read when asked for.

    Args:
        filename: The file. Also ``model.safetensors.index.json``, or a folder with one.
        framework: What tensors are to be: ``"np"`` or ``"numpy"``, ``"jax"`` or ``"flax"``, ``"pt"`` or ``"torch"``.
        device: Where; other than ``"cpu"`` for torch only.
        backend: ``"mmap"`` or ``"pread"``: taken for safetensors' sake, both read the same way.
        copy: ``False`` gives NumPy's arrays (and slices) as read-only views where they can be; torch's tensors then
            share the map and must not be written to.

    Raises:
        SafetensorError: if the file breaks the rules of safetensors.
        FileNotFoundError: if it is not there.
    """

    def __init__(
        self,
        filename: StrPath,
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
        copy: bool = True,
    ) -> None:
        check_backend(backend)
        self._convert = converter(framework, device, copy)
        self._tensors: Tensors | None = Tensors.of_path(filename)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._tensors = None

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._open().names)

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        return list(self._open().names)

    def metadata(self) -> dict[str, str] | None:
        """The text beside the tensors; `None` if there is none."""
        return self._open().metadata

    def get_tensor(self, name: str) -> Any:
        """A whole tensor."""
        return self._convert(self._open().view(self._at(name)))

    def get_tensors(self) -> dict[str, Any]:
        """Every tensor by its name."""
        return self._open().all(self._convert)

    def get_slice(self, name: str) -> SafeSlice:
        """A tensor to be sliced: only the bytes asked for are read."""
        return SafeSlice(self._open(), self._at(name), self._convert)

    def _open(self) -> Tensors:
        if self._tensors is None:
            raise SafetensorError("File is closed")
        return self._tensors

    def _at(self, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(f"a tensor goes by its name, a str, not by {type(name).__name__}")
        at = self._open().by_name.get(name)
        if at is None:
            raise SafetensorError(f"File does not contain tensor {name}", leaf=name)
        return at


class SafeSlice:
    """A tensor that has not been read: ``file.get_slice(name)[0:16, ..., 3]``."""

    def __init__(self, tensors: Tensors, at: int, convert: FromNumpy) -> None:
        self._tensors = tensors
        self._at = at
        self._convert = convert

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._tensors.shapes[self._at])

    def get_dtype(self) -> str:
        """safetensors' name of the dtype: ``F32``, ``BF16``."""
        return self._tensors.tag(self._at)

    def __getitem__(self, index: Any) -> Any:
        """What NumPy's basic indexing gives: integers, slices with any step, ``...`` and `None`."""
        try:
            part = self._tensors.part(self._at, index)
        except IndexError as error:
            raise SafetensorIndexError(f"Error during slicing {_shown(index)}: {error}") from None
        except InvalidArgumentError as error:
            raise SafetensorError(f"Unsupported slice index {_shown(index)}: {error.message}") from None
        except ValueError as error:
            raise SafetensorError(f"Error during slicing {_shown(index)}: {error}") from None
        return self._convert(part)


def deserialize(bytes: Any) -> list[tuple[str, dict[str, Any]]]:
    """The tensors of a file in memory as safetensors' lowest level has them: names, each with ``dtype``, ``shape``
    and its bytes in C order (of a packed dtype with an element a byte)."""
    tensors = Tensors.of_bytes(bytes)
    out = []
    for at, name in enumerate(tensors.names):
        data = bytearray(tensors.view(at).tobytes())
        out.append((name, {"dtype": tensors.tag(at), "shape": list(tensors.shapes[at]), "data": data}))
    return out


def check_backend(backend: str) -> None:
    """Refuses what is no backend of safetensors."""
    if backend not in BACKENDS:
        raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')


def _shown(index: Any) -> str:
    entries: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    return f"[{', '.join(map(repr, entries))}]"
