"""Loads into a template, which gives structure, dtypes, shapes and kinds of leaves.

The engine compares the checkpoint with the template, and puts all differences into one error. This
module converts each leaf to the kind of its template: a `jax.Array` on the template's devices, a
tensor, a NumPy array or scalar, a Python number, text. A leaf that no checkpoint can hold (a
function in an Equinox module, `...`) stays as the template has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._core._duck import has, own_attribute
from .._core._enums import is_plain_member, plain
from .._errors import MismatchError, NotFoundError, UnsupportedError, failure
from .._jax._shardings import Target, impl_of, sharding_of, weak_number
from .._leaves._columns import (
    NUMPY_OTHER,
    NUMPY_OTHER_SCALAR,
    PLACEHOLDER,
    PRNG_KEY,
    SCALAR,
    STR,
    UNKNOWN,
    LoadedLeaves,
    dtype_numbers,
    is_numpys_alone,
    is_prng_key,
    numpy_other,
)
from .._text import counted
from .._torch import _tensors
from .._torch._fill import Wish, refusal
from .._tree._flatten import Flat, Structure, flatten, path_text
from .._tree._handlers import LeafRegistry
from .._tree._nodes import PrngKey
from ._regions import Cut, Place, check_axes, whole


class Wanted(NamedTuple):
    """The template of one leaf."""

    dtype: int | None
    shape: tuple[int, ...] | None
    make: Callable[[Any, Any], Any]
    """Of the array (or text) that was read, and the leaf's number, the value."""


class _Number(NamedTuple):
    """The stored dtype where the template has a JAX array without axes of a weak type and another
    dtype.
    """

    sharding: Any
    is_pythons: bool


class Differs(Exception):
    """A leaf of the checkpoint that cannot become the leaf of the template."""


class Template:
    """A tree into which a load restores."""

    def __init__(self, like: Any, only: Sequence[str] = (), handlers: LeafRegistry | None = None) -> None:
        import json

        self.flat: Flat = flatten(like, handlers)
        self._jax: dict[int, Any] = {}
        """The positions of JAX arrays, with the template's array or description."""
        self._numbers: dict[int, _Number | None] = {}
        """The positions of JAX arrays without axes and of a weak type. The checkpoint may have a
        Python number there.
        """
        self._torch: dict[int, Any] = {}
        """The positions of torch's tensors, with the template's tensor."""
        self._coming: set[int] = set()
        """Leaves that are read by regions."""
        self._resized: set[int] = set()
        """Leaves whose shape may differ from the stored shape."""
        leaves = self.flat.leaves
        self._native_leaves, self.others = _native.template_leaves(leaves, dtype_numbers(), self._wanted)
        """The requests of leaves that are no plain arrays: `None` for a leaf that no checkpoint can
        hold.
        """
        self.unstorable = [at for at, want in self.others.items() if want is None and leaves[at] is not Ellipsis]
        """Leaves that no checkpoint can hold, without `...`."""
        self.paths: list[str] = _native.paths(self.flat.structure) if only else []
        self.skipped: set[int] = set()
        """Leaves that the load does not request."""
        if only:
            matches = _native.match_paths(list(only), self.paths)
            idle = _native.idle_patterns(list(only), self.paths)
            if idle:
                help = f"key paths of the template are such as {', '.join(self.paths[:5])}"
                named = ", ".join(map(json.dumps, idle))
                raise failure(NotFoundError, f"no leaf of the template matches {named}", help=help)
            self.skipped.update(at for at, match in enumerate(matches) if match < 0)
        self.is_selection = bool(only)

    def columns(self) -> tuple[Structure, _native.TemplateLeaves, bytes]:
        """The template in the form of the native half: the structure, the requests of the leaves,
        and the leaves to skip.
        """
        skips = bytearray(len(self.flat.leaves))
        for at in self._resized:
            skips[at] = 2
        for at in self.skipped:
            skips[at] = 1
        return self.flat.structure, self._native_leaves, bytes(skips)

    def check_unstorable(self, native: _native.Checkpoint) -> None:
        """Refuses a template that has an unsupported type where the checkpoint has a leaf.

        Equinox' files have placeholders for functions: nothing is stored there.
        """
        if not self.unstorable:
            return
        paths = _native.paths(self.flat.structure)
        stored = set(native.paths()).difference(native.placeholders([]))
        found = [at for at in self.unstorable if paths[at] in stored]
        if found:
            lines = [f"\n    kind      {paths[at]}: template {type(self.flat.leaves[at]).__name__}" for at in found]
            places = counted(len(found), "place", "places")
            raise MismatchError(
                f"the template has leaves of types that regrow cannot store, in {places}{''.join(lines)}",
                leaf=paths[found[0]],
                help="use the stored type, or `...` to skip the leaf",
            )

    def is_wanted(self, at: int) -> bool:
        """Whether the load requests this leaf."""
        return at not in self.skipped and self.others.get(at, _PLAIN_ARRAY) is not None

    def leave_out(self, leaves: Sequence[bool]) -> None:
        """Excludes these leaves from the load. They stay as they are in the template."""
        self.skipped.update(at for at, is_left_out in enumerate(leaves) if is_left_out)

    def leave_out_paths(self, paths: frozenset[str]) -> None:
        """Excludes the leaves at these key paths from the load. They stay as they are in the
        template.
        """
        if paths:
            self.skipped.update(at for at, path in enumerate(self.paths_of_all()) if path in paths)

    def has_regions(self) -> bool:
        """Whether there are JAX arrays, tensors, or arrays of another shape: these are read by
        regions.
        """
        return bool(self._jax or self._torch or self._resized)

    def has_tensors(self) -> bool:
        """Whether there are tensors of torch."""
        return bool(self._torch)

    def allow_resizing(self) -> None:
        """Allows arrays whose shape differs from the stored shape. Typed keys of JAX and numbers
        must have the stored shape.
        """
        leaves = self.flat.leaves
        arrays = {at for at, leaf in enumerate(leaves) if type(leaf) is np.ndarray and not is_numpys_alone(leaf.dtype)}
        self._resized = arrays | set(self._torch) | {at for at, leaf in self._jax.items() if not is_prng_key(leaf)}

    def paths_of_all(self) -> list[str]:
        """The key path of every leaf."""
        return _native.paths(self.flat.structure)

    def path_of(self, at: int) -> str:
        """The key path of a leaf."""
        return path_text(self.flat.structure, at)

    def regions(
        self, selected: tuple[list[int], bytes, bytes, list[Any]], shardings: dict[int, Any]
    ) -> tuple[list[Target], list[Place]]:
        """The selected leaves that are read by regions: JAX arrays, and NumPy's of another shape
        than the stored one.

        Raises:
            MismatchError: for an array whose number of axes differs from that of the stored array.
        """
        leaves, kinds, dtypes, shapes = selected
        targets, places = [], []
        for at in sorted({*self._jax, *self._resized} - self._torch.keys()):
            if leaves[at] < 0 or kinds[at] not in _ARRAY_KINDS:
                continue
            like, saved = self.flat.leaves[at], shapes[at]
            wanted = saved if at not in self._resized else tuple(map(int, like.shape))
            if wanted != saved:
                check_axes(self.path_of(at), saved, wanted)
            if at not in self._jax:
                if wanted != saved:
                    places.append(Place(at, leaves[at], dtypes[at], Cut((whole(wanted),), saved)))
                continue
            sharding = shardings.get(at, sharding_of(like))
            if at in self._numbers and dtypes[at] != self._number_of(np.dtype(like.dtype), at):
                # Read whole: the stored leaf is a 64-bit Python number, or has another dtype.
                self._numbers[at] = _Number(sharding, kinds[at] == SCALAR)
                continue
            is_key = is_prng_key(like)
            impl = impl_of(like) if is_key else None
            is_weak = bool(own_attribute(like, "weak_type", False))
            targets.append(Target(at, leaves[at], dtypes[at], saved, wanted, sharding, impl, is_key, is_weak))
        self._coming |= {target.at for target in targets} | {place.at for place in places}
        return targets, places

    def tensors(self, selected: tuple[list[int], bytes, bytes, list[Any]]) -> list[Wish]:
        """The selected leaves that are tensors of torch.

        Raises:
            MismatchError: for a tensor whose number of axes differs from that of the stored array.
        """
        leaves, kinds, dtypes, shapes = selected
        wishes = []
        for at, like in self._torch.items():
            if leaves[at] >= 0 and kinds[at] in _ARRAY_KINDS:
                if len(shapes[at]) != like.dim():
                    # Get the paths only here: the path of one leaf takes as long as those of all
                    # leaves.
                    check_axes(self.path_of(at), shapes[at], tuple(like.shape))
                wishes.append(Wish(at, leaves[at], dtypes[at], shapes[at], like))
        self._coming |= {wish.at for wish in wishes}
        return wishes

    def fill(self, loaded: LoadedLeaves, by_regions: Callable[[], dict[int, Any]] = dict) -> Any:
        """The template's containers with the loaded values, after a check that all values fit. Also
        has the values that are read by regions.

        Args:
            loaded: The leaves that were read, and the leaves without data that are read by regions.
            by_regions: Reads the regions.
        """
        leaves, values, differences = self.flat.leaves, list(loaded.values), []
        coming = self._coming
        places: Iterable[int] = self.others
        if loaded.kinds.strip(_ARRAY_KINDS):
            no_arrays = (at for at, kind in enumerate(loaded.kinds) if kind not in _ARRAY_KINDS)
            places = sorted({*self.others, *no_arrays})
        for at in places:
            want = self.others.get(at, _PLAIN_ARRAY)
            if want is None or at in self.skipped:
                continue
            try:
                _check_implementation(leaves[at], loaded, at)
                if at not in coming:
                    values[at] = want.make(_plain(loaded, at), at)
            except Differs as error:
                differences.append((at, str(error)))
        for at in self.skipped:
            values[at] = leaves[at]
        for at, want in self.others.items():
            if want is None:
                values[at] = leaves[at]
        if differences:
            paths = _native.paths(self.flat.structure)
            lines = [f"\n    kind      {paths[at]}: {text}" for at, text in differences]
            raise MismatchError(
                f"the template does not fit the checkpoint in {counted(len(lines), 'place', 'places')}{''.join(lines)}",
                leaf=paths[differences[0][0]],
                help="change the template",
            )
        for at, value in by_regions().items():
            values[at] = value
        return self.flat.with_leaves(values)

    def _wanted(self, leaf: Any, at: int) -> Wanted | None:
        if is_plain_member(leaf):
            return self._wanted_member(leaf, at)
        cls = type(leaf)
        if cls is np.ndarray:
            return self._wanted_array(leaf.dtype, leaf.shape, at)
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(leaf, (jax.ShapeDtypeStruct, jax.Array)):
            return self._wanted_jax(leaf, at)
        number = next((kind for kind in _PYTHON_NUMBERS if isinstance(leaf, kind)), None)
        if number is not None and not isinstance(leaf, np.generic):
            return Wanted(None, (), lambda value, _at: _python_number(number, value))
        if isinstance(leaf, str) and not isinstance(leaf, np.generic):
            return Wanted(None, None, lambda value, _at: _text(value))
        if cls is bytes:
            return Wanted(dtype_numbers()[np.dtype(np.uint8)], None, lambda value, _at: bytes(_array(value)))
        if cls is PrngKey:
            return Wanted(
                self._number_of(leaf.data.dtype, at),
                tuple(leaf.data.shape),
                lambda value, _at: PrngKey(_array(value), leaf.impl),
            )
        if isinstance(leaf, np.generic) and leaf.dtype in dtype_numbers():
            return Wanted(dtype_numbers()[leaf.dtype], (), lambda value, _at: _array(value)[()])
        if _tensors.is_tensor(leaf):
            return self._wanted_torch(leaf, at)
        dtype, shape = own_attribute(leaf, "dtype"), own_attribute(leaf, "shape")
        if isinstance(dtype, np.dtype) and isinstance(shape, tuple):
            want = self._wanted_array(dtype, tuple(map(int, shape)), at)
            if isinstance(leaf, np.generic):
                return want._replace(make=lambda value, at: want.make(value, at)[()])
            return want
        return None

    def _wanted_member(self, leaf: Any, at: int) -> Wanted | None:
        """The request for a member of an enum: a number or a text."""
        want = self._wanted(plain(leaf), at)
        if want is None:
            return None

        def make(value: Any, at: int) -> Any:
            stored = want.make(value, at)
            try:
                return type(leaf)(stored)
            except ValueError:
                raise Differs(f"template {type(leaf).__name__}, stored {stored!r}") from None

        return want._replace(make=make)

    def _wanted_jax(self, leaf: Any, at: int) -> Wanted:
        """The request for a `jax.Array` or `jax.ShapeDtypeStruct`. For typed keys, the request for
        their data.
        """
        self._jax[at] = leaf
        if is_prng_key(leaf):
            jax = sys.modules["jax"]
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        elif leaf.shape == () and own_attribute(leaf, "weak_type", False):
            self._numbers[at] = None
            return Wanted(None, (), self._weak_number)
        return Wanted(self._number_of(np.dtype(leaf.dtype), at), tuple(leaf.shape), _array_at)

    def _weak_number(self, value: Any, at: int) -> Any:
        """A stored Python number as the array that JAX makes of it."""
        like, number = self.flat.leaves[at], self._numbers[at]
        value = _array(value)
        made = None
        if number is not None and number.is_pythons:
            made = weak_number(value, np.dtype(like.dtype), number.sharding)
        if made is None:
            raise Differs(f"template {like.dtype.name}, stored {value.dtype.name}")
        return made

    def _wanted_torch(self, leaf: Any, at: int) -> Wanted:
        self._torch[at] = leaf
        try:
            return Wanted(_tensors.dtype_number(leaf), tuple(leaf.shape), _array_at)
        except _tensors.Refused as refused:
            raise refusal(refused, path_text(self.flat.structure, at)) from None

    def _wanted_array(self, dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> Wanted:
        if not is_numpys_alone(dtype):
            return Wanted(self._number_of(dtype, at), shape, _array_at)

        def make(value: Any, _at: int) -> Any:
            stored = f"stored {value.dtype} of shape {list(value.shape)}" if has(value, "dtype") else "stored text"
            if stored == "stored text" or (value.dtype, value.shape) != (dtype, shape):
                if stored == "stored text" or (_in_order(value.dtype), value.shape) != (_in_order(dtype), shape):
                    raise Differs(f"template {dtype} of shape {list(shape)}, {stored}")
                return value.astype(dtype)
            return value

        return Wanted(None, None, make)

    def _number_of(self, dtype: np.dtype[Any], at: int) -> int:
        number = dtype_numbers().get(_in_order(dtype))
        if number is None:
            path = path_text(self.flat.structure, at)
            help = "use an array of numbers, or `...` to skip the leaf"
            what = f"the template has the dtype {dtype}, which regrow cannot store"
            raise failure(UnsupportedError, what, leaf=path, help=help)
        return number


_PYTHON_NUMBERS = (bool, int, float, complex)

_ARRAY_KINDS = bytes(
    kind
    for kind in range(len(_native.LEAF_KINDS))
    if kind not in (STR, PLACEHOLDER, UNKNOWN, NUMPY_OTHER, NUMPY_OTHER_SCALAR)
)
"""Kinds of leaves that are loaded as arrays of numbers."""


def _in_order(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def _check_implementation(leaf: Any, loaded: LoadedLeaves, at: int) -> None:
    """Refuses a PRNG key of another implementation: its random numbers would differ."""
    stored = loaded.notes.get(at) if loaded.kinds[at] == PRNG_KEY else None
    if stored is None:
        return
    if isinstance(leaf, PrngKey):
        wanted = leaf.impl
    elif "jax" in sys.modules and has(leaf, "dtype") and is_prng_key(leaf):
        wanted = impl_of(leaf)
    else:
        return
    if str(stored) != str(wanted):
        raise Differs(f"template PRNG key of {wanted}, stored one of {stored}")


def _plain(loaded: LoadedLeaves, at: int) -> Any:
    kind = loaded.kinds[at]
    if kind == STR:
        return loaded.values[at]
    if loaded.values[at] is None:
        if kind == PLACEHOLDER:
            raise Differs("the checkpoint has a placeholder, or this leaf was used for another one")
        raise Differs(f"the checkpoint has a leaf of the unknown type {loaded.notes.get(at)!r}")
    if kind in (NUMPY_OTHER, NUMPY_OTHER_SCALAR):
        # A scalar is also an array without axes here. The template decides which of the two the
        # result is.
        return numpy_other(loaded.values[at], loaded.notes.get(at))
    return loaded.values[at]


def _array(value: Any) -> Any:
    if isinstance(value, str):
        raise Differs("template array, stored text")
    if is_numpys_alone(value.dtype):
        raise Differs(f"template array of numbers, stored {value.dtype}")
    return value


def _array_at(value: Any, _at: int) -> Any:
    return _array(value)


_PLAIN_ARRAY = Wanted(None, None, _array_at)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Differs(f"template str, stored {value.dtype.name} of shape {list(value.shape)}")
    return value


def _python_number(cls: type[Any], value: Any) -> Any:
    number = _array(value).item()
    if type(number) is not cls:
        raise Differs(f"template {cls.__name__}, stored {value.dtype.name}")
    return number
