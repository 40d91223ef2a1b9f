"""A broadcast of arrays of any dtype along one axis of a mesh, bit for bit.

    parts of a device ── one array of 32-bit words ── sum over the axis ── words ── parts, by bits

One replica gives its words, and all others give zeros, so the sum equals these words. A sum of
floats would lose the sign of a zero and the bits of a NaN. One collective broadcasts all leaves of
a group.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .._errors import IoError, UnsupportedError, failure

WORD_BYTES = 4
ALIGN_WORDS = 32
"""Parts begin where accelerators like to read: at multiples of 128 bytes."""


def part_words(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """The words of a part of an array, with the padding up to the next part."""
    return _up(math.prod(shape) * dtype.itemsize, ALIGN_WORDS * WORD_BYTES) // WORD_BYTES


class Broadcast:
    """A broadcast from the devices at one position of a mesh axis to all other devices along the
    axis.
    """

    def __init__(self, mesh: Any, axis: int, source: int) -> None:
        """A broadcast on a `jax.sharding.Mesh`. `axis` is the number of the axis."""
        jax: Any = sys.modules["jax"]
        if not hasattr(jax, "shard_map") or not hasattr(jax, "set_mesh"):
            help = "update JAX, or leave out `single_replica`"
            raise failure(
                UnsupportedError,
                f"JAX {jax.__version__} has no jax.shard_map and jax.set_mesh, which broadcasts need",
                help=help,
            )
        self._jax = jax
        # Use axes of the type `Auto`, even if the caller's mesh has axes of other types.
        self._mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
        self._axis = mesh.axis_names[axis]
        own = jax.process_index()
        self._local = [device for device in mesh.devices.flat if device.process_index == own]
        readers = {device.process_index for device in np.take(mesh.devices, source, axis).flat}
        self.is_reader = own in readers
        """Whether this process sends the words that the other processes receive."""

    def rounded(self, words: int) -> int:
        """A length of a broadcast, rounded up, so that few lengths occur and JAX compiles few
        programs.
        """
        return _up(words, max(ALIGN_WORDS, 1 << max(words.bit_length() - 4, 0)))

    def put(self, words: int, given: Mapping[Any, np.ndarray[Any, Any]]) -> Any:
        """Puts the words of a reader on its devices, and zeros on the devices of other processes.
        `None` if this process has no devices.
        """
        if not self._local:
            return None
        jax, ones = self._jax, (1,) * (self._mesh.devices.ndim - 1)
        if self.is_reader:
            each = [given[device].reshape(1, *ones, words) for device in self._local]
            arrays = jax.device_put(each, list(self._local))
        else:
            with jax.set_mesh(_local_mesh(tuple(self._local))):
                zeros = _zeros(tuple(self._local), ones, words)()
            arrays = [shard.data for shard in zeros.addressable_shards]
        shape = (*self._mesh.devices.shape, words)
        sharding = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(*self._mesh.axis_names))
        return jax.block_until_ready(jax.make_array_from_single_device_arrays(shape, sharding, arrays))

    def prepare(self, words: int) -> None:
        """Compiles the broadcast of this many words, so that the compilation cannot fail during the
        broadcast.
        """
        if self._local:
            with self._jax.set_mesh(self._mesh):
                _sum(self._mesh, self._axis, words)

    def first(self) -> Any:
        """The offset of the first part, for `take`."""
        if not self._local:
            return None
        jax = self._jax
        everywhere = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())
        return jax.make_array_from_callback((), everywhere, lambda _: np.int32(0))

    def run(self, words: int, sent: Any) -> Any:
        """Broadcasts the words that all processes have put. Every process must call this."""
        if not self._local:
            return None
        return _sum(self._mesh, self._axis, words)(sent)

    def take(self, received: Any, offset: Any, shape: tuple[int, ...], dtype: np.dtype[Any], spec: Any) -> Any:
        """Returns the array whose parts of this shape begin at the word `offset` of the received
        words, and the offset of the next array. `offset` is a result of `first` or of the last
        call: it is already on the devices, so that no call sends it. `None` without devices.
        """
        if not self._local:
            return None, offset
        with self._jax.set_mesh(self._mesh):
            is_whole = received.shape[-1] == part_words(shape, dtype)
            return _taken(self._mesh, self._axis, spec, shape, dtype, is_whole)(received, offset)


@contextmanager
def failures() -> Iterator[None]:
    """A context around broadcasts and around waits for their results. It raises errors of JAX as
    errors of regrow.
    """
    jax: Any = sys.modules["jax"]
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        help = "read the logs of the other processes: one of them may have ended"
        raise failure(IoError, f"a broadcast has failed: {error}", help=help) from error


@functools.lru_cache(maxsize=64)
def _local_mesh(devices: tuple[Any, ...]) -> Any:
    jax: Any = sys.modules["jax"]
    return jax.sharding.Mesh(np.array(devices), ("local",))


@functools.lru_cache(maxsize=64)
def _zeros(devices: tuple[Any, ...], ones: tuple[int, ...], words: int) -> Any:
    """Makes zeros on devices of this process, without other processes."""
    jax: Any = sys.modules["jax"]
    sharding = jax.sharding.NamedSharding(_local_mesh(devices), jax.sharding.PartitionSpec("local"))
    shape = (len(devices), *ones, words)
    return jax.jit(lambda: jax.numpy.zeros(shape, np.uint32), out_shardings=sharding)


@functools.lru_cache(maxsize=64)
def _sum(mesh: Any, axis: str, words: int) -> Any:
    """The compiled sum over the axis."""
    jax: Any = sys.modules["jax"]
    spec = jax.sharding.PartitionSpec
    given = jax.ShapeDtypeStruct(
        (*mesh.devices.shape, words), np.uint32, sharding=jax.sharding.NamedSharding(mesh, spec(*mesh.axis_names))
    )
    summed = jax.shard_map(
        lambda part: jax.lax.psum(part, axis),
        mesh=mesh,
        in_specs=spec(*mesh.axis_names),
        out_specs=_without(mesh, axis),
        check_vma=False,
    )
    return jax.jit(summed).lower(given).compile()


@functools.lru_cache(maxsize=4096)
def _taken(mesh: Any, axis: str, spec: Any, shape: tuple[int, ...], dtype: np.dtype[Any], is_whole: bool) -> Any:
    """Makes the function that takes one array out of the received words."""
    jax: Any = sys.modules["jax"]
    words, everywhere = part_words(shape, dtype), jax.sharding.PartitionSpec()

    def take(received: Any, offset: Any) -> Any:
        flat = received.reshape(-1)
        part = flat if is_whole else jax.lax.dynamic_slice(flat, (offset,), (words,))
        return _of_words(jax, part, math.prod(shape), dtype).reshape(shape), offset + np.int32(0 if is_whole else words)

    in_specs = (_without(mesh, axis), everywhere)
    return jax.jit(jax.shard_map(take, mesh=mesh, in_specs=in_specs, out_specs=(spec, everywhere), check_vma=False))


def _without(mesh: Any, axis: str) -> Any:
    """The sharding of the words after the sum: replicated along the axis, otherwise unchanged."""
    jax: Any = sys.modules["jax"]
    return jax.sharding.PartitionSpec(*(None if name == axis else name for name in mesh.axis_names))


def _of_words(jax: Any, words: Any, count: int, dtype: np.dtype[Any]) -> Any:
    """Converts 32-bit words to `count` numbers of this dtype."""
    bits = jax.lax.bitcast_convert_type
    if dtype.kind == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        pairs = _of_words(jax, words, 2 * count, half).reshape(count, 2)
        return jax.lax.complex(pairs[:, 0], pairs[:, 1])
    size = dtype.itemsize
    if size > WORD_BYTES:
        words = words.reshape(-1, size // WORD_BYTES)
    numbers = bits(words, np.dtype(f"u{size}")).reshape(-1)[:count]
    if dtype == np.bool_:
        return numbers != 0
    width = _bits_of(jax, dtype)
    if width < 8:
        # In the memory of the host, each such number takes one byte.
        numbers = numbers.astype(f"uint{width}")
    return bits(numbers, dtype)


def _bits_of(jax: Any, dtype: np.dtype[Any]) -> int:
    if dtype.itemsize > 1:
        return 8 * dtype.itemsize
    is_integer = jax.numpy.issubdtype(dtype, np.integer)
    return int((jax.numpy.iinfo if is_integer else jax.numpy.finfo)(dtype).bits)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
