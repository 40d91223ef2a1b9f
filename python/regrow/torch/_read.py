"""The tensors of a checkpoint: in memory of their own; in private maps; or where a template says."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .. import _native, _torch
from .._dtypes import DTYPES
from .._errors import MismatchError, ReplacedError, UnsupportedError
from .._leaves import JAX_ARRAY, NUMPY_ARRAY, LoadedLeaves, from_native
from .._progress import Progress
from .._regions import Reading
from .._report import Stages
from .._torch_fill import TorchTensors, Wish
from .._tree import unflatten
from ._decode import RECORD, Decoder, children_of, is_container, leaves_of, record_of, view_of
from ._library import torch
from ._locations import Move
from ._pointers import Keys, pointer, shown


class Asked(NamedTuple):
    """How to read."""

    move: Move
    mmap: bool
    verify: bool
    budget: int | None
    progress: Progress


class Opened:
    """An opened checkpoint, with what is known of its leaves before any is read."""

    def __init__(self, native: _native.Checkpoint, metadata: Any) -> None:
        self._native = native
        self._structure, self._kinds, self._dtypes, self._shapes, self._names = native.tree()
        # Files of torch.save have no metadata; what their pickle says of storages is the engine's word.
        self._is_of_torch = native.objects is not None
        self._entries = record_of({RECORD: native.objects} if self._is_of_torch else metadata)
        self._tree = unflatten(self._structure, list(range(native.leaf_count)))
        self._leaves = list(leaves_of(self._tree))
        self._numbers = {pointer(keys): leaf for keys, leaf in self._leaves}
        torch_dtypes = {number: dtype for dtype, number in _torch._dtypes().items()}
        self._tensor_dtypes = {
            leaf: torch_dtypes[self._dtypes[leaf]]
            for keys, leaf in self._leaves
            if self._is_tensor(leaf, pointer(keys)) and self._dtypes[leaf] in torch_dtypes
        }
        """torch's dtypes of the leaves that are tensors. Those that torch has no dtype for stay NumPy's."""
        self._tied = [leaf for keys, leaf in self._leaves if self._is_tied(pointer(keys))]
        """Leaves that have nothing of their own."""

    def _is_tensor(self, leaf: int, place: str) -> bool:
        is_array = self._kinds[leaf] in (NUMPY_ARRAY, JAX_ARRAY)
        return is_array and "is" not in self._entries.get(place, {}) and not self._is_tied(place)

    def _is_tied(self, place: str) -> bool:
        entry = self._entries.get(place, {})
        return "same" in entry or "of" in entry

    def load(self, asked: Asked) -> Any:
        """All of it."""
        mapped = self._mapped(asked) if asked.mmap else {}
        tensors = self._made(leaf for leaf in self._tensor_dtypes if leaf not in mapped)
        found = self._read(tensors, asked) | mapped
        locations = {
            self._numbers[place]: entry["device"]
            for place, entry in self._entries.items()
            if isinstance(entry.get("device"), str) and place in self._numbers
        }
        in_storages = self._in_storages(found, locations, asked.move) if self._is_of_torch else {}
        for leaf in self._tensor_dtypes:
            if leaf not in in_storages:
                found[leaf] = asked.move(found[leaf], locations.get(leaf, "cpu"))
        found |= in_storages
        return Decoder(self._entries, found.__getitem__, self._numbers).decoded(self._tree)

    def _in_storages(self, found: Mapping[int, Any], locations: Mapping[int, str], move: Move) -> dict[int, Any]:
        """Tensors of a file of torch.save that share storages, or have gaps there: in such storages again."""
        storages: dict[Any, Any] = {}
        made = {}
        for place, entry in self._entries.items():
            leaf = self._numbers.get(place)
            if "storage" not in entry or leaf not in self._tensor_dtypes:
                continue
            number = entry["storage"]
            if number not in storages:
                storage = torch.zeros(entry["len"], dtype=torch.uint8)
                storages[number] = move(storage, locations.get(leaf, "cpu"))
            view = made[leaf] = view_of(storages[number], entry["view"])
            value = found[leaf]
            for axis, step in enumerate(view.stride()):
                if step == 0 and view.shape[axis]:
                    # Elements that are one.
                    view, value = view.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
            view.copy_(value)
        return made

    def load_like(self, likes: Mapping[Keys, Any], asked: Asked) -> Any:
        """All of it, with tensors as in a template: mesh, placements, device."""
        sources = self._sources()
        wanted = {pointer(keys): (keys, like) for keys, like in likes.items()}
        _check_names(sources, wanted)
        wishes: list[Wish] = []
        places: dict[int, str] = {}
        different: list[str] = []
        for place, (keys, like) in wanted.items():
            leaf = sources[place]
            saved = self._tensor_dtypes[leaf], tuple(self._shapes[leaf])
            if saved != (like.dtype, tuple(like.shape)):
                expected = f"{like.dtype} {list(like.shape)}"
                different.append(f"{shown(keys)}: expected {expected}, found {saved[0]} {list(saved[1])}")
                continue
            # Behind the numbers of the leaves: two tensors may be of one leaf.
            at = self._native.leaf_count + len(wishes)
            places[at] = place
            wishes.append(Wish(at, leaf, self._dtypes[leaf], saved[1], like))
        if different:
            raise _mismatch("tensors differ from the template", different)
        found = self._read(TorchTensors(wishes, places.__getitem__, in_place=False), asked)
        by_place = {place: found[at] for at, place in places.items()}
        # What the record says of tensors, the template says better.
        entries = {place: entry for place, entry in self._entries.items() if place not in by_place}
        return _Likes(entries, found.__getitem__, self._numbers, by_place).decoded(self._tree)

    # ---- for `StorageReader`: tensors by DCP's names, and the rest

    @property
    def paths(self) -> dict[str, Keys]:
        """Of each name that `named` gives the keys that it is made of."""
        return self._paths

    def named(self, *, flat: bool) -> tuple[dict[str, int], dict[str, Any]]:
        """Leaves that are tensors, and parts of the tree that are none, by DCP's names: the root's own keys if it is
        ``flat``, else the keys of dicts, and lists of them or of tensors, with dots between."""
        tensors: dict[str, int] = {}
        objects: dict[str, tuple[Keys, Any]] = {}
        self._paths: dict[str, Keys] = {}
        sources = self._sources()
        pending: list[tuple[Keys, Any]] = [((), self._tree)]
        while pending:
            keys, node = pending.pop()
            place = pointer(keys)
            is_dict = isinstance(node, dict) and self._entries.get(place, {}).get("is", "dict") == "dict"
            if not keys and not is_dict:
                raise UnsupportedError(
                    "torch.distributed.checkpoint loads dicts, and this checkpoint holds something else"
                )
            if not (flat and keys) and (is_dict or self._is_traversed(node, keys)):
                pending.extend(reversed([((*keys, key), child) for key, child in children_of(node)]))
                continue
            name = ".".join(map(str, keys))
            self._paths[name] = keys
            if place in sources and not is_container(node):
                tensors[name] = sources[place]
            else:
                objects[name] = keys, node
        return tensors, objects

    def _is_traversed(self, node: Any, keys: Keys) -> bool:
        """Whether DCP goes into a list: one with dicts or tensors in it."""
        if type(node) is not list or pointer(keys) in self._entries:
            return False
        return any(
            self._is_traversed(child, (*keys, at))
            if isinstance(child, list)
            else isinstance(child, dict) or (isinstance(child, int) and child in self._tensor_dtypes)
            for at, child in enumerate(node)
        )

    def form(self, leaf: int) -> tuple[Any, tuple[int, ...]]:
        """dtype and shape of a tensor."""
        return self._tensor_dtypes[leaf], tuple(self._shapes[leaf])

    def dtype_number(self, leaf: int) -> int:
        """The number of the dtype of a leaf in the engine."""
        return self._dtypes[leaf]

    def reading(self, asked: Asked, total: int) -> Reading:
        """Reads of so many bytes."""
        return Reading(
            self._native,
            verify=asked.verify,
            budget=asked.budget,
            progress=asked.progress,
            total=total,
            stages=Stages(False),
        )

    def objects(self, parts: Mapping[str, tuple[Keys, Any]], asked: Asked) -> dict[str, Any]:
        """Parts of the tree that are no tensors, as objects."""
        if not parts:
            return {}
        below = {leaf for keys, node in parts.values() for _, leaf in leaves_of(node)}
        found = self._read(self._made(below & set(self._tensor_dtypes)), asked)
        decoder = Decoder(self._entries, found.__getitem__, self._numbers)
        return {name: decoder.decoded(node, keys) for name, (keys, node) in parts.items()}

    def _made(self, leaves: Iterable[int]) -> TorchTensors:
        """Tensors in new memory."""
        wishes: list[Wish] = []
        for leaf in leaves:
            dtype, shape = self.form(leaf)
            like = torch.empty(shape, dtype=dtype, device="meta")
            wishes.append(Wish(leaf, leaf, self._dtypes[leaf], shape, like))
        return TorchTensors(wishes, lambda leaf: self._native.paths()[leaf], in_place=False)

    def _sources(self) -> dict[str, int]:
        """For each tensor the leaf that has its elements."""
        sources = {pointer(keys): leaf for keys, leaf in self._leaves if leaf in self._tensor_dtypes}
        apart = []
        for place, entry in self._entries.items():
            if "same" in entry:
                sources[place] = sources[entry["same"]]
            elif "of" in entry:
                base, view = sources[entry["of"]], entry["view"]
                is_whole = (
                    view["offset"] == 0
                    and tuple(view["shape"]) == tuple(self._shapes[base])
                    and view["dtype"] == str(self._tensor_dtypes[base]).removeprefix("torch.")
                    and torch.empty_strided(view["shape"], view["stride"], device="meta").is_contiguous()
                )
                sources[place] = base
                apart += [] if is_whole else [place]
            elif "bits" in entry:
                apart.append(place)
        if apart:
            help = "load it without `like`"
            listed = "\n    ".join(apart)
            raise UnsupportedError(
                f"tensors that are parts of each other cannot be loaded like others:\n    {listed}\n  help: {help}",
                help=help,
            )
        return sources

    def _read(self, tensors: TorchTensors, asked: Asked) -> dict[int, Any]:
        """The tensors of a checkpoint's leaves by number, and the leaves that are none."""
        unread = [*self._tensor_dtypes, *self._tied]
        by_regions = set(unread)
        rest = sum(
            math.prod(shape) * DTYPES[self._dtypes[leaf]].itemsize
            for leaf, shape in enumerate(self._shapes)
            if leaf not in by_regions
        )
        total = rest + sum(place.len_bytes() for place in tensors.places)
        with self.reading(asked, total) as reading:
            structure, leaves = self._native.load(
                [], [], None, False, not asked.verify, False, asked.budget, reading.watch(rest), unread
            )
            made = tensors.read(reading)
        paths = _native.paths(structure)
        values = from_native(LoadedLeaves(*leaves), paths.__getitem__)
        return {**dict(enumerate(values)), **made}

    def _mapped(self, asked: Asked) -> dict[int, Any]:
        """Tensors in private maps of the data files, of what lies there as it is."""
        if asked.verify:
            report = self._native.verify((False, None))
            if report[0]:
                # Raised as a load raises it.
                self._native.load([], [], None, False, False, True, asked.budget, (False, None))
        made = {}
        by_name = {self._names[leaf]: leaf for leaf in self._tensor_dtypes}
        for file in self._data_files():
            native, maps = _native.safetensors_open_mapped(file)
            if maps is None:
                continue
            names = native.tree()[4]
            for name, place in zip(names, maps[1], strict=True):
                leaf = by_name.get(name)
                if leaf is None or place is None:
                    continue
                dtype, shape = self._tensor_dtypes[leaf], tuple(self._shapes[leaf])
                number, start, length = place
                if length and length == dtype.itemsize * math.prod(shape):
                    flat = torch.frombuffer(maps[0][number], dtype=torch.uint8, count=length, offset=start)
                    made[leaf] = flat.view(dtype).reshape(shape)
        if self._native.is_replaced():
            raise ReplacedError("another checkpoint has taken the place of this one while it was being mapped")
        return made

    def _data_files(self) -> list[str]:
        """The safetensors files of the checkpoint, on a local file system."""
        path = self._native.path
        if self._native.layout == "safetensors":
            return [path]
        if self._native.layout != "regrow" or not os.path.isdir(path):
            return []
        return sorted(
            entry.path for entry in os.scandir(path) if entry.name.endswith(".safetensors") and entry.is_file()
        )


class _Likes(Decoder):
    """Puts the tensors of a template in their places."""

    def __init__(self, entries: Any, value_of: Any, numbers: Any, by_place: Mapping[str, Any]) -> None:
        super().__init__(entries, value_of, numbers)
        self._by_place = by_place

    def decoded(self, node: Any, keys: Keys = ()) -> Any:
        tensor = self._by_place.get(pointer(keys))
        return super().decoded(node, keys) if tensor is None else tensor


def _check_names(saved: Iterable[str], wanted: Iterable[str]) -> None:
    saved, wanted = set(saved), set(wanted)
    different = [f"{place}: expected by the template, not in the checkpoint" for place in sorted(wanted - saved)]
    different += [f"{place}: in the checkpoint, not in the template" for place in sorted(saved - wanted)]
    if different:
        raise _mismatch("the tensors are not those of the template", different)


def _mismatch(what: str, different: list[str]) -> MismatchError:
    listed = "\n    ".join(different[:50])
    more = f"\n    and {len(different) - 50} more" if len(different) > 50 else ""
    return MismatchError(f"{what}:\n    {listed}{more}")
