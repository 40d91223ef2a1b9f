"""Loads that make JAX arrays or tensors, fill a template or given arrays, or read regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._core import _arguments
from .._core._duck import has, is_a
from .._core._progress import Watch
from .._core._requests import LoadRequest
from .._errors import InvalidArgumentError, LeafTypeError, MismatchError, NotFoundError, failure
from .._jax._replicas import Replicas
from .._jax._shardings import JaxArrays, Target, shardings_by_leaf
from .._leaves._columns import DTYPES, JAX_ARRAY, NUMPY_ARRAY, PRNG_KEY, LoadedLeaves, dtype_numbers, from_native
from .._save._writing import casts
from .._torch._fill import TorchTensors
from .._torch._tensors import is_tensor
from .._tree._flatten import Flat, flatten, path_text, unflatten
from ._like import Template
from ._regions import Cut, Place, Reading, slices_box
from ._wishes import Wishes, read_whole, register_nodes

Selected = tuple[list[int], bytes, bytes, list[Any]]
"""The position of each leaf (-1: none), its kind, its wanted dtype, and its shape."""


def _replicas(
    native: _native.Checkpoint, wishes: Wishes, arrays: JaxArrays | None, path_of: Callable[[int], str]
) -> Replicas | None:
    """The replicas, with one of them as the reader; `None` without `single_replica`. All processes
    agree on them.
    """
    together = wishes.together
    if together.single_replica is None:
        return None
    replicas = Replicas(together.single_replica, arrays, path_of, together.size, together.session)
    replicas.agree(native.step)
    return replicas


def load_like(native: _native.Checkpoint, like: Any, wishes: Wishes, in_place: bool = False) -> Any:
    """Loads into the containers of a template. With `in_place`, also into the memory of its
    tensors.
    """
    template = Template(like, wishes.only, wishes.handlers)
    template.leave_out_paths(wishes.lost)
    if wishes.keeps_missing:
        there = set(native.paths())
        wanted = template.paths_of_all()
        lacking = {path: at for at, path in enumerate(wanted) if path not in there}
        if lacking and len(lacking) == len(wanted):
            raise MismatchError(
                "the checkpoint has no leaf of the template, so the load would return the template unchanged"
            )
        _refuse_descriptions({path: template.flat.leaves[at] for path, at in lacking.items()})
        template.leave_out_paths(frozenset(lacking))
    template.check_unstorable(native)
    if wishes.pad_or_truncate:
        template.allow_resizing()
    by_leaf = {}
    if wishes.shardings is not None:
        by_leaf = shardings_by_leaf(wishes.shardings, template.paths_of_all())
    if not template.has_regions():
        _replicas(native, wishes, None, template.path_of)
        with Watch(wishes.progress, "loading") as watch:
            _, leaves = read_whole(native, wishes, template, watch, [])
        return template.fill(LoadedLeaves(*leaves))
    partial = wishes.drops_extra or template.is_selection
    selected = native.select(LoadRequest(casts=wishes.casts, template=template.columns(), partial=partial))
    targets, places = template.regions(selected, by_leaf)
    if wishes.salvages:
        _check_alone(targets, (wish.like for wish in template.tensors(selected)))
    tensors = TorchTensors(template.tensors(selected), template.path_of, in_place=in_place)
    arrays = JaxArrays(targets, template.path_of) if targets else None
    replicas = _replicas(native, wishes, arrays, template.path_of)
    makers = _Makers(arrays, replicas, tensors)
    unread = [*(target.leaf for target in targets), *(place.leaf for place in places), *tensors.leaves]
    with _Reads(native, wishes, selected, unread, makers, places) as (reading, rest):
        _, leaves = read_whole(native, wishes, template, reading.watch(rest), unread)
        return template.fill(LoadedLeaves(*leaves), lambda: _by_regions(reading, makers, places))


def part_like(native: _native.Checkpoint, like: Any, wishes: Wishes) -> str | None:
    """The key path of a subtree that has all leaves of a template; the whole tree lacks one."""
    wanted = Template(like, wishes.only, wishes.handlers).paths_of_all()
    there = set(native.paths())
    first = next((path for path in wanted if path not in there), None)
    if first is None:
        return None
    above = [path.removesuffix(f"/{first}") for path in there if path.endswith(f"/{first}")]
    fits = [part for part in above if all(f"{part}/{path}" in there for path in wanted)]
    return min(fits, key=len, default=None)


def _refuse_descriptions(kept: Mapping[str, Any]) -> None:
    """Refuses to keep leaves of a template that have no values."""
    described = [path for path, leaf in kept.items() if is_a(leaf, "ShapeDtypeStruct")]
    if described:
        raise failure(
            MismatchError,
            f"the checkpoint lacks {', '.join(described[:10])}, and the template only describes them",
            first_leaf=described[0],
            help='use arrays in the template: missing="keep" keeps them',
        )


def load_parts(native: _native.Checkpoint, wishes: Wishes) -> Any:
    """Loads without a template: JAX arrays by `shardings`, or NumPy arrays by `region`."""
    selected: Selected = native.select(LoadRequest(casts=wishes.casts, only=wishes.only))
    positions, kinds, dtypes, shapes = selected
    all_paths = native.paths()
    paths = [all_paths[leaf] for leaf in positions]
    targets: list[Target] = []
    places: list[Place] = []
    if wishes.shardings is not None:
        for at, sharding in shardings_by_leaf(wishes.shardings, paths).items():
            if kinds[at] in _SPREAD:
                is_key = kinds[at] == PRNG_KEY
                targets.append(
                    Target(at, positions[at], dtypes[at], shapes[at], shapes[at], sharding, _UNKNOWN, is_key)
                )
    elif wishes.region is not None:
        for at, box in _boxes(wishes, paths, kinds, shapes).items():
            places.append(Place(at, positions[at], dtypes[at], Cut((box,), shapes[at])))
    if wishes.salvages:
        _check_alone(targets, ())
    targets = [_with_impl(native, target) if target.is_key else target for target in targets]
    arrays = JaxArrays(targets, lambda at: paths[at]) if targets else None
    makers = _Makers(arrays, _replicas(native, wishes, arrays, lambda at: paths[at]))
    unread = [*(target.leaf for target in targets), *(place.leaf for place in places)]
    with _Reads(native, wishes, selected, unread, makers, places) as (reading, rest):
        structure, leaves = read_whole(native, wishes, None, reading.watch(rest), unread)
        found = _by_regions(reading, makers, places)
    register_nodes()
    loaded = LoadedLeaves(*leaves)
    # The result also has placeholders, for unselected leaves of sequences. So match the arrays by
    # their order: the order is the same in both lists.
    chosen = [at for at, kind in enumerate(kinds) if kind in _SPREAD]
    results = [at for at, kind in enumerate(loaded.kinds) if kind in _SPREAD]
    done = {result: found[at] for at, result in zip(chosen, results, strict=True) if at in found}
    # Leaves that are read by regions already have their final kind; the rest are NumPy arrays.
    as_it_is = bytes(NUMPY_ARRAY if at in done else kind for at, kind in enumerate(loaded.kinds))
    values = from_native(loaded._replace(kinds=as_it_is), lambda at: path_text(structure, at))
    for at, value in done.items():
        values[at] = value
    return unflatten(structure, values, wishes.handlers)


_SPREAD = (JAX_ARRAY, NUMPY_ARRAY, PRNG_KEY)
"""Kinds of leaves that can be divided over devices."""

_UNKNOWN = object()


def _with_impl(native: _native.Checkpoint, target: Target) -> Target:
    """Adds the implementation of the keys, which the data does not record."""
    with Watch(False, "loading") as watch:
        unread = list(range(native.leaf_count))
        _, leaves = native.load(LoadRequest(casts=casts(None), unread=unread), watch)
    return target._replace(key_impl=LoadedLeaves(*leaves).notes.get(target.leaf))


def _check_alone(targets: Iterable[Target], tensors: Iterable[Any]) -> None:
    """Refuses a salvage of arrays that several processes read: their losses would differ."""
    is_shared = any(target.sharding is not None and not target.sharding.is_fully_addressable for target in targets)
    if is_shared or any(has(tensor, "placements") for tensor in tensors):
        help = "make a checkpoint of the intact leaves: regrow.convert(..., options=regrow.Options(salvage=True))"
        what = "`salvage` is for one process, and arrays of the template are spread over several"
        raise failure(InvalidArgumentError, what, help=help)


def _boxes(wishes: Wishes, paths: list[str], kinds: bytes, shapes: list[Any]) -> dict[int, Any]:
    """The requested box of each leaf that has a region."""
    region, pad = wishes.region, wishes.pad_or_truncate
    if callable(region):
        given = {at: region(path, shapes[at]) for at, path in enumerate(paths) if kinds[at] in (JAX_ARRAY, NUMPY_ARRAY)}
        return {at: slices_box(paths[at], each, shapes[at], pad=pad) for at, each in given.items() if each is not None}
    if not isinstance(region, Mapping) or not all(
        isinstance(glob, str) and (given is None or _are_slices(given)) for glob, given in region.items()
    ):
        raise _arguments.wrong("region", region, "a dict of globs with a tuple of slices for each, or a function")
    globs = list(region)
    idle = _native.idle_patterns(globs, paths)
    if idle:
        help = f"key paths are such as {', '.join(paths[:5])}"
        named = ", ".join(f'"{glob}"' for glob in idle)
        raise failure(NotFoundError, f"region: no leaf matches {named}", help=help)
    boxes = {}
    for at, match in enumerate(_native.match_paths(globs, paths)):
        if match < 0 or region[globs[match]] is None:
            continue
        if kinds[at] not in (JAX_ARRAY, NUMPY_ARRAY):
            kind, path = _native.LEAF_KINDS[kinds[at]], paths[at]
            raise LeafTypeError(f"a leaf of kind {kind} has no regions\n  leaf {path}", leaf=path)
        boxes[at] = slices_box(paths[at], region[globs[match]], shapes[at], pad=pad)
    return boxes


def _are_slices(given: Any) -> bool:
    return isinstance(given, slice) or (
        isinstance(given, (tuple, list)) and all(isinstance(entry, slice) for entry in given)
    )


class _Reads:
    """Reads regions with one common progress. Also has the number of bytes that are read whole."""

    def __init__(
        self,
        native: _native.Checkpoint,
        wishes: Wishes,
        selected: Selected,
        unread: list[int],
        makers: _Makers,
        places: list[Place],
    ) -> None:
        leaves, _, dtypes, shapes = selected
        by_regions = set(unread)
        sizes = (
            int(np.prod(shape, dtype=object)) * DTYPES[dtype].itemsize
            for leaf, dtype, shape in zip(leaves, dtypes, shapes, strict=True)
            if leaf >= 0 and leaf not in by_regions
        )
        self._rest = sum(sizes)
        every = [*makers.places(), *places]
        total = self._rest + sum(place.len_bytes() for place in every)
        self._reading = Reading(
            native,
            casting=wishes.casts.casting,
            verify=wishes.verify,
            budget=wishes.budget,
            progress=wishes.progress,
            total=total,
            stages=wishes.stages,
        )

    def __enter__(self) -> tuple[Reading, int]:
        return self._reading.__enter__(), self._rest

    def __exit__(self, *error: Any) -> None:
        self._reading.__exit__(*error)


class _Makers(NamedTuple):
    """The makers of arrays and tensors from regions."""

    arrays: JaxArrays | None
    replicas: Replicas | None
    tensors: TorchTensors | None = None

    def places(self) -> list[Place]:
        """The places that all makers read."""
        made = [each for each in (self.arrays, self.tensors) if each is not None]
        return [place for each in made for place in each.places]

    def read(self, reading: Reading) -> dict[int, Any]:
        """Reads the arrays and tensors, by the index of their leaf in the result."""
        found: dict[int, Any] = {}
        if self.arrays is not None:
            found = self.arrays.read(reading, but=() if self.replicas is None else self.replicas.places)
            if self.replicas is not None:
                found |= self.replicas.read(reading, self.arrays)
        if self.tensors is not None:
            found |= self.tensors.read(reading)
        return found


def _by_regions(reading: Reading, makers: _Makers, places: list[Place]) -> dict[int, Any]:
    found = makers.read(reading)
    for group in reading.groups(places):
        for place, (part,) in zip(group, reading.read(group), strict=True):
            found[place.at] = part
    return found


def load_out(native: _native.Checkpoint, wishes: Wishes) -> Any:
    """Fills the caller's own arrays. Contiguous arrays are filled during the read, others by a copy
    afterwards.
    """
    out = wishes.out
    flat = flatten(out)
    if any(is_tensor(leaf) for leaf in flat.leaves):
        return _load_tensors(native, wishes, flat)
    for at, leaf in enumerate(flat.leaves):
        if not isinstance(leaf, np.ndarray) or not leaf.flags.writeable:
            path = _native.paths(flat.structure)[at]
            raise InvalidArgumentError(f"`out` must have only writable NumPy arrays\n  leaf {path}", leaf=path)
    template = Template(out, wishes.only)
    # The engine fills plain numbers. NumPy handles other dtypes, swapped bytes and gaps with the
    # copy below.
    outs = [
        leaf if leaf.dtype in dtype_numbers() and template.is_wanted(at) else None
        for at, leaf in enumerate(flat.leaves)
    ]
    request = LoadRequest(
        casts=wishes.casts,
        template=template.columns(),
        partial=wishes.drops_extra or template.is_selection,
        verify=wishes.verify,
        budget_bytes=wishes.budget,
    )
    with (
        Watch(wishes.progress, "loading") as watch,
        wishes.stages.stage("read", sum(leaf.nbytes for leaf in flat.leaves)),
    ):
        filled, leaves = native.load_into(request, outs, watch)
    template.leave_out(filled)
    rest = flatten(template.fill(LoadedLeaves(*leaves)))
    for target, source in zip(flat.leaves, rest.leaves, strict=True):
        if target is not source:
            np.copyto(target, source, casting="equiv")
    return out


def _load_tensors(native: _native.Checkpoint, wishes: Wishes, flat: Flat) -> Any:
    """Fills the caller's tensors and arrays. Numbers and texts are returned in new containers."""
    for at, leaf in enumerate(flat.leaves):
        is_array = isinstance(leaf, np.ndarray) and leaf.flags.writeable
        if not (is_array or is_tensor(leaf) or isinstance(leaf, (bool, int, float, complex, str, bytes))):
            path = _native.paths(flat.structure)[at]
            raise InvalidArgumentError(
                f"`out` must have only tensors, writable NumPy arrays, numbers and text\n  leaf {path}",
                leaf=path,
            )
    loaded = flatten(load_like(native, wishes.out, wishes, in_place=True)).leaves
    leaves = []
    for target, source in zip(flat.leaves, loaded, strict=True):
        if isinstance(target, np.ndarray):
            if target is not source:
                np.copyto(target, source, casting="equiv")
            leaves.append(target)
        else:
            leaves.append(source)
    is_whole = all(isinstance(leaf, np.ndarray) or is_tensor(leaf) for leaf in flat.leaves)
    return wishes.out if is_whole else flat.with_leaves(leaves)
