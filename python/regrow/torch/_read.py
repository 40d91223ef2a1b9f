"""Reads the tensors of a checkpoint: into new memory, as private maps, or into the tensors of a
template.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _native
from .._core._dtypes import DTYPES
from .._core._progress import Progress
from .._core._report import Stages
from .._core._requests import LoadRequest
from .._errors import MismatchError, UnsupportedError
from .._leaves._columns import JAX_ARRAY, NUMPY_ARRAY, LoadedLeaves, from_native
from .._load._regions import Reading
from .._save._writing import casts
from .._torch import _tensors
from .._torch._fill import TorchTensors, Wish
from .._tree._flatten import unflatten
from ._decode import RECORD, Decoder, children_of, is_container, leaves_of, misfit, record_of, view_of
from ._library import torch
from ._locations import Move
from ._mapped import Maps
from ._pointers import Keys, is_integer, pointer, shown
from ._select import marked
from ._ties import storage_len_max


class Asked(NamedTuple):
    """The tensors to read, and the settings of the read."""

    only: Sequence[str]
    """Globs. If there are none, everything is read."""

    move: Move
    mmap: bool
    verify: bool
    budget: int | None
    progress: Progress


class Opened:
    """An opened checkpoint, with the facts about its leaves that need no read of data."""

    def __init__(self, native: _native.Checkpoint, metadata: Any) -> None:
        self._native = native
        self._structure, self._kinds, self._dtypes, self._shapes, self._names = native.tree()
        # Files of torch.save have no metadata. The engine reports the storages that their pickle
        # describes.
        self._is_of_torch = native.objects is not None
        self._entries = record_of({RECORD: native.objects} if self._is_of_torch else metadata)
        self._tree = unflatten(self._structure, list(range(native.leaf_count)))
        self._places = {leaf: pointer(keys) for keys, leaf in leaves_of(self._tree)}
        self._numbers = {place: leaf for leaf, place in self._places.items()}
        torch_dtypes = {number: dtype for dtype, number in _tensors._dtypes().items()}
        self._tensor_dtypes = {
            leaf: torch_dtypes[self._dtypes[leaf]]
            for leaf, place in self._places.items()
            if self._is_tensor(leaf, place) and self._dtypes[leaf] in torch_dtypes
        }
        """torch's dtypes of the leaves that are tensors. Those that torch has no dtype for stay
        NumPy's.
        """
        self._tied = {leaf for leaf, place in self._places.items() if self._is_tied(place)}
        """Leaves that are made of others: their own numbers are not read."""

    def _is_tensor(self, leaf: int, place: str) -> bool:
        return self._kinds[leaf] in (NUMPY_ARRAY, JAX_ARRAY) and "is" not in self._entries.get(place, {})

    def _is_tied(self, place: str) -> bool:
        entry = self._entries.get(place, {})
        return "same" in entry or "of" in entry

    def load(self, asked: Asked, path_of: Callable[[Keys], Keys]) -> Any:
        """Loads everything, or the parts that globs over the user's key paths select, with ``...``
        for the rest.
        """
        tree = marked(self._tree, self._entries, asked.only, path_of) if asked.only else self._tree
        found = self._values(self._needed(tree), asked)
        return Decoder(self._entries, found.__getitem__, self._numbers).decoded(tree)

    def _needed(self, tree: Any) -> set[int]:
        """Returns the leaves of a part of the tree, and the leaves whose memory they share."""
        needed = set()
        for _, leaf in leaves_of(tree):
            while leaf not in needed:
                needed.add(leaf)
                entry = self._entry_of(leaf)
                leaf = self._numbers.get(entry.get("same", entry.get("of")), leaf)
        return needed

    def _entry_of(self, leaf: int) -> Mapping[str, Any]:
        return self._entries.get(self._places[leaf], {})

    def _location_of(self, leaf: int) -> str:
        device = self._entry_of(leaf).get("device")
        return device if isinstance(device, str) else "cpu"

    def _values(self, leaves: set[int], asked: Asked) -> dict[int, Any]:
        """Returns the values of leaves by number: tensors where requested, other leaves as
        `regrow.load` returns them.
        """
        tensors = [leaf for leaf in self._tensor_dtypes if leaf in leaves and leaf not in self._tied]
        sharing = [leaf for leaf in tensors if "storage" in self._entry_of(leaf)]
        with self.reading(asked, sum(map(self._len_bytes, leaves - self._tied))) as reading:
            wanted = tensors if asked.mmap else sharing if self._is_of_torch else []
            watch = reading.watch(sum(map(self._len_bytes, wanted)))
            maps = Maps(self._native, wanted, asked.verify, watch)
            made = self._in_storages(sharing, maps, asked)
            for leaf in set(wanted) - set(sharing):
                tensor = maps.tensor(leaf, *self.form(leaf))
                if tensor is not None:
                    made[leaf] = asked.move(tensor, self._location_of(leaf))
            unmapped = [leaf for leaf in tensors if leaf not in made]
            found = self._read(self._made(unmapped), reading, leaves, asked)
        made |= self._filled([leaf for leaf in sharing if leaf not in made], found, asked)
        for leaf in unmapped:
            if leaf not in made:
                made[leaf] = asked.move(found[leaf], self._location_of(leaf))
        return found | made

    def _in_storages(self, leaves: Sequence[int], maps: Maps, asked: Asked) -> dict[int, Any]:
        """Returns the tensors of a torch.save file whose storages are shared or have gaps. They get
        such storages again, if the storages are mapped.
        """
        storages: dict[int, Any] = {}
        made: dict[int, Any] = {}
        if not self._is_of_torch:
            return made
        for leaf in leaves:
            entry = self._entry_of(leaf)
            number, view = entry["storage"], entry["view"]
            if number not in storages:
                storage = maps.storage(leaf, view["offset"], entry["len"])
                if storage is None:
                    continue
                storages[number] = asked.move(storage if asked.mmap else storage.clone(), self._location_of(leaf))
            made[leaf] = view_of(storages[number], view)
        return made

    def _filled(self, leaves: Sequence[int], found: Mapping[int, Any], asked: Asked) -> dict[int, Any]:
        """Makes shared storages from tensors that were read one by one."""
        storages: dict[str, Any] = {}
        lens: dict[str, int] = defaultdict(int)
        for leaf in self._tensor_dtypes:
            lens[str(self._entry_of(leaf).get("storage"))] += self._len_bytes(leaf)
        made = {}
        for leaf in leaves:
            entry = self._entry_of(leaf)
            at = str(entry["storage"])
            try:
                len_bytes = entry["len"]
                if at not in storages:
                    if not self._is_of_torch and not 0 <= len_bytes <= storage_len_max([lens[at]]):
                        raise ValueError(f"a storage of {len_bytes} bytes for tensors of {lens[at]}")
                    storage = torch.zeros(len_bytes, dtype=torch.uint8)
                    storages[at] = asked.move(storage, self._location_of(leaf))
                view = made[leaf] = view_of(storages[at], entry["view"])
                value = found[leaf]
                for axis, step in enumerate(view.stride()):
                    if step == 0 and view.shape[axis]:
                        # These elements share one position in memory: write only one of them.
                        view, value = view.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
                view.copy_(value)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise misfit(error, self._places[leaf]) from None
        return made

    def load_like(self, likes: Mapping[Keys, Any], asked: Asked) -> Any:
        """Loads everything. Each tensor has the mesh, placements and device of the tensor in a
        template.
        """
        sources = {self._places[leaf]: leaf for leaf in self._tensor_dtypes}
        wanted = {_saved_as(pointer(keys), sources): (keys, like) for keys, like in likes.items()}
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
            # These numbers follow the numbers of the leaves, because two tensors may be parts of
            # one leaf.
            at = self._native.leaf_count + len(wishes)
            places[at] = place
            wishes.append(Wish(at, leaf, self._dtypes[leaf], saved[1], like))
        if different:
            raise _mismatch("tensors differ from the template", different)
        found = self._read_all(TorchTensors(wishes, places.__getitem__, in_place=False), asked, set(self._places))
        by_place = {place: found[at] for at, place in places.items()}
        # For tensors the template has priority over the record.
        entries = {place: entry for place, entry in self._entries.items() if place not in by_place}
        made = _Likes(entries, found.__getitem__, self._numbers, by_place).decoded(self._tree)
        for keys in likes:
            _give_integers(made, keys)
        return made

    # ---- for `StorageReader`: tensors by DCP's names, and the rest

    @property
    def paths(self) -> dict[str, Keys]:
        """For each name that `named` returns, the keys from which it was built."""
        return self._paths

    def named(self, *, flat: bool) -> tuple[dict[str, int], dict[str, Any]]:
        """Returns the leaves that are tensors, and the other parts of the tree, by DCP's names. If
        the tree is ``flat``, the names are the keys of the root. Otherwise they are the keys of
        dicts, and of lists of dicts or tensors, joined by dots.
        """
        tensors: dict[str, int] = {}
        objects: dict[str, tuple[Keys, Any]] = {}
        self._paths: dict[str, Keys] = {}
        sources = {self._places[leaf]: leaf for leaf in self._tensor_dtypes}
        pending: list[tuple[Keys, Any]] = [((), self._tree)]
        while pending:
            keys, node = pending.pop()
            place = pointer(keys)
            is_dict = isinstance(node, dict) and self._entries.get(place, {}).get("is", "dict") == "dict"
            if not keys and not is_dict:
                raise UnsupportedError("torch.distributed.checkpoint loads dicts, but this checkpoint is not a dict")
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
        """Whether DCP flattens a list: it contains dicts or tensors."""
        if type(node) is not list or pointer(keys) in self._entries:
            return False
        return any(
            self._is_traversed(child, (*keys, at))
            if isinstance(child, list)
            else isinstance(child, dict) or (isinstance(child, int) and child in self._tensor_dtypes)
            for at, child in enumerate(node)
        )

    def form(self, leaf: int) -> tuple[Any, tuple[int, ...]]:
        """Returns the dtype and the shape of a tensor."""
        return self._tensor_dtypes[leaf], tuple(self._shapes[leaf])

    def dtype_number(self, leaf: int) -> int:
        """Returns the engine's number for the dtype of a leaf."""
        return self._dtypes[leaf]

    def reading(self, asked: Asked, total: int) -> Reading:
        """Returns a `Reading` of `total` bytes."""
        return Reading(
            self._native,
            verify=asked.verify,
            budget=asked.budget,
            progress=asked.progress,
            total=total,
            stages=Stages(False),
        )

    def objects(self, parts: Mapping[str, tuple[Keys, Any]], asked: Asked) -> dict[str, Any]:
        """Loads the parts of the tree that are not tensors, as objects."""
        if not parts:
            return {}
        below = {leaf for _, node in parts.values() for leaf in self._needed(node)}
        found = self._read_all(self._made(below & set(self._tensor_dtypes) - self._tied), asked, below)
        decoder = Decoder(self._entries, found.__getitem__, self._numbers)
        return {name: decoder.decoded(node, keys) for name, (keys, node) in parts.items()}

    def _made(self, leaves: Iterable[int]) -> TorchTensors:
        """Creates tensors in new memory."""
        wishes: list[Wish] = []
        # Make the last tensor first: systems allocate memory downwards, and the read fills the
        # tensors in the order of their leaves.
        for leaf in sorted(leaves, reverse=True):
            dtype, shape = self.form(leaf)
            like = torch.empty(shape, dtype=dtype, device="meta")
            wishes.append(Wish(leaf, leaf, self._dtypes[leaf], shape, like))
        return TorchTensors(wishes, lambda leaf: self._native.paths()[leaf], in_place=False)

    def _len_bytes(self, leaf: int) -> int:
        return math.prod(self._shapes[leaf]) * DTYPES[self._dtypes[leaf]].itemsize

    def _read_all(self, tensors: TorchTensors, asked: Asked, leaves: set[int]) -> dict[int, Any]:
        others = leaves - set(self._tensor_dtypes)
        total = sum(map(self._len_bytes, others)) + sum(place.len_bytes() for place in tensors.places)
        with self.reading(asked, total) as reading:
            return self._read(tensors, reading, leaves, asked)

    def _read(self, tensors: TorchTensors, reading: Reading, leaves: set[int], asked: Asked) -> dict[int, Any]:
        """Reads these tensors by number, and the leaves that are not tensors."""
        others = leaves - set(self._tensor_dtypes)
        unread = [leaf for leaf in self._places if leaf not in others]
        request = LoadRequest(casts=casts(None), verify=asked.verify, budget_bytes=asked.budget, unread=unread)
        structure, columns = self._native.load(request, reading.watch(sum(map(self._len_bytes, others))))
        made = tensors.read(reading)
        paths = _native.paths(structure)
        loaded = LoadedLeaves(*columns)
        # An unread leaf has no value to convert, so give it a kind that stays unchanged.
        kinds = bytes(kind if leaf in others else NUMPY_ARRAY for leaf, kind in enumerate(loaded.kinds))
        values = from_native(loaded._replace(kinds=kinds), paths.__getitem__)
        return {**dict(enumerate(values)), **made}


class _Likes(Decoder):
    """Puts the tensors of a template into their positions."""

    def __init__(self, entries: Any, value_of: Any, numbers: Any, by_place: Mapping[str, Any]) -> None:
        super().__init__(entries, value_of, numbers)
        self._by_place = by_place

    def decoded(self, node: Any, keys: Keys = ()) -> Any:
        tensor = self._by_place.get(pointer(keys))
        return super().decoded(node, keys) if tensor is None else tensor


def _saved_as(place: str, saved: Container[str]) -> str:
    """Returns the key path of the tensor with the same name: DCP writes integer keys of dicts as
    text.
    """
    return place if place in saved else next((at for at in _with_texts(place) if at in saved), place)


def _with_texts(place: str) -> Iterator[str]:
    """Yields the same key path with integer keys as text: the outermost, the two outermost, and so
    on; then each key alone.
    """
    keys = place.split("/")
    integers = [at for at, key in enumerate(keys) if is_integer(key)]
    for chosen in [integers[:count] for count in range(1, len(integers) + 1)] + [[at] for at in integers[1:]]:
        yield "/".join(f"~2{key}" if at in chosen else key for at, key in enumerate(keys))


def _give_integers(node: Any, keys: Keys) -> None:
    """Replaces text keys of dicts by the integer keys of a template, in the same order."""
    for key in keys:
        if isinstance(node, dict) and key not in node and isinstance(key, int) and str(key) in node:
            items = [(key if each == str(key) else each, value) for each, value in node.items()]
            node.clear()
            node.update(items)
        try:
            node = node[key]
        except (KeyError, IndexError, TypeError):
            return


def _check_names(saved: Iterable[str], wanted: Iterable[str]) -> None:
    saved, wanted = set(saved), set(wanted)
    different = [f"{place}: expected by the template, not in the checkpoint" for place in sorted(wanted - saved)]
    different += [f"{place}: in the checkpoint, not in the template" for place in sorted(saved - wanted)]
    if different:
        raise _mismatch("the tensors differ from the template", different)


def _mismatch(what: str, different: list[str]) -> MismatchError:
    listed = "\n    ".join(different[:50])
    more = f"\n    and {len(different) - 50} more" if len(different) > 50 else ""
    return MismatchError(f"{what}:\n    {listed}{more}")
