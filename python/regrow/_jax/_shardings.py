"""JAX arrays from regions of leaves: each process reads only the shards of its own devices.

    sharding -> a box for each addressable device -> parts in host memory -> a buffer a device -> one global array

Shards go to their devices a group of leaves at a time, while the next group is read. On CPU the
memory of a shard becomes the buffer of its device, so all shards are read together. A shard owns
its memory, which is never a map of a file.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._core._duck import has, own_attribute
from .._errors import InvalidArgumentError, NotFoundError, UnsupportedError, failure
from .._leaves._columns import DTYPES
from .._leaves._meshes import Box
from .._load._regions import Cut, Place, Reading, box_of, whole
from .._text import counted
from .._tree._flatten import flatten
from ._puts import Puts


class Target(NamedTuple):
    """A JAX array that a load makes for one leaf of the result."""

    at: int
    leaf: int
    dtype: int
    saved: tuple[int, ...]
    wanted: tuple[int, ...]
    """The shape of what is stored, if it is another one in the end; of keys, of their data."""
    sharding: Any
    """`None`: JAX' default device, uncommitted."""
    key_impl: Any = None
    is_key: bool = False
    is_weak: bool = False
    """Whether the array has a weak type, like an array that JAX makes of a Python number."""


class Spread(NamedTuple):
    """The boxes and the devices of a target."""

    target: Target
    shape: tuple[int, ...]
    """The shape of the array, or of the array of keys."""
    devices: list[Any] | None
    """The device of each box; `None` for one whole array."""

    @property
    def spec(self) -> Any:
        """The partition spec of a `NamedSharding`."""
        return self.target.sharding.spec

    def is_cut_along(self, axis: str) -> bool:
        """Whether a `NamedSharding` divides the array over this axis of its mesh."""
        return any(axis in (each if isinstance(each, tuple) else (each,)) for each in self.spec)


def shardings_by_leaf(shardings: Any, paths: list[str]) -> dict[int, Any]:
    """The sharding of each leaf, from one sharding for all leaves, a dict by glob, or a tree of
    shardings. The first glob that matches decides.

    Raises:
        NotFoundError: for globs that match no leaf, all of them named.
    """
    flat = flatten(shardings)
    globs = ["**" if path == "." else path for path in _native.paths(flat.structure)]
    for glob, leaf in zip(globs, flat.leaves, strict=True):
        if not has(leaf, "device_set"):
            raise InvalidArgumentError(f"shardings has {leaf!r} at {glob}: that is not a jax.sharding.Sharding")
    exact = dict(zip(globs, flat.leaves, strict=True))
    idle = [glob for glob in _native.idle_patterns(globs, paths) if glob not in paths and glob != "**"]
    if idle:
        help = f"key paths are such as {', '.join(paths[:5])}"
        named = ", ".join(f'"{glob}"' for glob in idle)
        raise failure(NotFoundError, f"shardings: no leaf matches {named}", help=help)
    found: dict[int, Any] = {}
    rest = []
    for at, path in enumerate(paths):
        if path in exact:
            found[at] = exact[path]
        else:
            rest.append(at)
    matches = _native.match_paths(globs, [paths[at] for at in rest])
    found.update((at, flat.leaves[match]) for at, match in zip(rest, matches, strict=True) if match >= 0)
    return found


def sharding_of(like: Any) -> Any:
    """The sharding of a template's array. `None`, JAX' default device, if the program has not put
    the array on a device.
    """
    if like is None or own_attribute(like, "committed", True) is False:
        return None
    return own_attribute(like, "sharding")


def impl_of(key: Any) -> Any:
    """The implementation of a key array, or of the description of one."""
    jax = sys.modules["jax"]
    return jax.random.key_impl(key) if isinstance(key, jax.Array) else key.dtype._impl.name


def weak_number(value: Any, dtype: np.dtype[Any], sharding: Any) -> Any:
    """The array that JAX makes of a number of Python, of a weak type; `None` if this dtype cannot
    hold the number.

    Floats are rounded as JAX rounds them.
    """
    jax = sys.modules["jax"]
    kinds = {"u": "i"}.get(value.dtype.kind, value.dtype.kind), {"u": "i"}.get(dtype.kind, dtype.kind)
    with np.errstate(over="ignore"):
        narrow = value.astype(dtype)
    is_lost = narrow != value if kinds[0] == "i" else np.isinf(narrow) != np.isinf(value)
    if kinds[0] != kinds[1] or is_lost:
        return None
    if sharding is None:
        return Puts().as_weak(jax.device_put(narrow))
    return Puts().as_weak(jax.make_array_from_callback((), sharding, lambda _: narrow))


class JaxArrays:
    """The JAX arrays that a load makes. Their shapes and shardings are checked before any read."""

    def __init__(self, targets: Sequence[Target], path_of: Callable[[int], str]) -> None:
        import jax

        self._jax: Any = jax
        self._path_of = path_of
        self._refuse_narrowing(targets)
        self.places: list[Place] = []
        self.spreads: dict[int, Spread] = {}
        """The spread of each target, by the target's number."""
        self._known: dict[tuple[Any, ...], tuple[Cut, list[Any] | None]] = {}
        self._of_cpus: dict[Any, bool] = {}
        """The shardings over CPUs alone."""
        self._puts = Puts()
        failed: list[tuple[int, str]] = []
        for target in targets:
            try:
                self.places.append(self._place(target))
            except (ValueError, TypeError, IndexError) as error:
                failed.append((target.at, str(error)))
        if failed:
            lines = [f"\n    {path_of(at)}: {text}" for at, text in failed]
            places = counted(len(failed), "place", "places")
            help = "give another sharding, or another shape with options=regrow.Options(pad_or_truncate=True)"
            raise failure(
                InvalidArgumentError,
                f"the sharding does not fit the array in {places}{''.join(lines)}",
                first_leaf=path_of(failed[0][0]),
                help=help,
            )

    def read(self, reading: Reading, but: Collection[int] = ()) -> dict[int, Any]:
        """The arrays, by the numbers of their targets, `but` those. Arrays for CPUs are read in one
        group, because the memory of their parts is that of the result. For other devices, the host
        holds two groups.
        """
        found: dict[int, Any] = {}
        on_their_way: list[Any] = []
        wanted = [place for place in self.places if place.at not in but]
        of_cpus = [place for place in wanted if self._is_for_cpus(place)]
        others = reading.groups([place for place in wanted if not self._is_for_cpus(place)])
        for group in itertools.chain([of_cpus] if of_cpus else [], others):
            parts = reading.read(group)
            self.wait(on_their_way)
            on_their_way = self._put(group, parts, found)
        self.wait(on_their_way)
        return found

    def _is_for_cpus(self, place: Place) -> bool:
        sharding = self.spreads[place.at].target.sharding
        if sharding not in self._of_cpus:
            devices = self._jax.local_devices()[:1] if sharding is None else sharding.addressable_devices
            self._of_cpus[sharding] = all(device.platform == "cpu" for device in devices)
        # Padding makes another copy.
        return self._of_cpus[sharding] and place.cut.is_stored()

    def wait(self, arrays: list[Any]) -> None:
        """Waits until arrays are on their devices."""
        self._jax.block_until_ready(arrays)

    def of_taken(self, spread: Spread, taken: Any) -> Any:
        """The array of the parts that `taken` has on the devices of this process; `None` if
        there are none.
        """
        if taken is None:
            return self._assembled(spread, [])
        made = taken
        if spread.target.is_key or taken.sharding != spread.target.sharding:
            by_device = {shard.device: shard.data for shard in taken.addressable_shards}
            made = self._assembled(spread, [by_device[device] for device in spread.devices or ()])
        return self._puts.as_weak(made) if spread.target.is_weak else made

    def _put(self, group: Sequence[Place], parts: Sequence[Sequence[Any]], found: dict[int, Any]) -> list[Any]:
        """Puts the parts of a group on their devices."""
        jax = self._jax
        on_their_way: list[Any] = []
        for place, each in zip(group, parts, strict=True):
            spread = self.spreads[place.at]
            target = spread.target
            if spread.devices is None:
                array = self._puts.one(each[0], target.sharding)
                value = jax.random.wrap_key_data(array, impl=target.key_impl) if target.is_key else array
            elif target.is_key or not each:
                array = value = self._of_devices(spread, each)
            else:
                array = value = self._puts.spread(spread.shape, target.sharding, spread.devices, each)
            if target.is_weak:
                array = value = self._puts.as_weak(array)
            found[place.at] = value
            on_their_way.append(array)
        return on_their_way

    def _of_devices(self, spread: Spread, parts: Sequence[Any]) -> Any:
        """Makes an array of keys, or an array without shards in this process."""
        target, jax = spread.target, self._jax
        kind = getattr(target.sharding, "memory_kind", None)
        on = [jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for device in spread.devices or ()]
        return self._assembled(spread, jax.device_put(list(parts), on))

    def _assembled(self, spread: Spread, parts: Sequence[Any]) -> Any:
        target, jax = spread.target, self._jax
        if target.is_key:
            parts = [jax.random.wrap_key_data(part, impl=target.key_impl) for part in parts]
        if parts:
            return jax.make_array_from_single_device_arrays(spread.shape, target.sharding, list(parts))
        dtype = DTYPES[target.dtype]
        if target.is_key:
            dtype = jax.eval_shape(lambda: jax.random.key(0, impl=target.key_impl)).dtype
        return jax.make_array_from_single_device_arrays(spread.shape, target.sharding, [], dtype=dtype)

    def _place(self, target: Target) -> Place:
        shape = self._key_shape(target) if target.is_key else target.wanted
        key = (target.sharding, shape, target.wanted, target.saved)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _cut(target, shape)
        cut, devices = known
        self.spreads[target.at] = Spread(target, shape, devices)
        return Place(target.at, target.leaf, target.dtype, cut)

    def _key_shape(self, target: Target) -> tuple[int, ...]:
        jax = self._jax
        data = jax.ShapeDtypeStruct(target.wanted, np.uint32)
        return tuple(jax.eval_shape(lambda data: jax.random.wrap_key_data(data, impl=target.key_impl), data).shape)

    def _refuse_narrowing(self, targets: Iterable[Target]) -> None:
        narrowed: dict[int, Any] = {}
        for target in targets:
            if target.dtype not in narrowed:
                dtype = DTYPES[target.dtype]
                narrowed[target.dtype] = self._jax.dtypes.canonicalize_dtype(dtype)
            if narrowed[target.dtype] != DTYPES[target.dtype]:
                path = self._path_of(target.at)
                help = "set jax_enable_x64, or pass cast=..."
                raise failure(
                    UnsupportedError,
                    f"JAX would change {DTYPES[target.dtype].name} into {narrowed[target.dtype].name}",
                    leaf=path,
                    help=help,
                )


def _cut(target: Target, shape: tuple[int, ...]) -> tuple[Cut, list[Any] | None]:
    """The shards of an array of this shape for the devices of this process, and these devices."""
    sharding = target.sharding
    if sharding is not None:
        # For a spec that is longer than the rank, this gives a clearer error than the next call.
        getattr(sharding, "check_compatible_aval", sharding.shard_shape)(shape)
    if sharding is None or (len(sharding.device_set) == 1 and sharding.is_fully_addressable):
        return Cut((whole(target.wanted),), target.saved), None
    by_device = sharding.addressable_devices_indices_map(shape)
    # The data of PRNG keys has more axes than the keys' shape.
    rest = (slice(None),) * (len(target.wanted) - len(shape))
    boxes: list[Box] = [box_of((*index, *rest), target.wanted) for index in by_device.values()]
    return Cut(boxes, target.saved), list(by_device)
