"""One replica reads and the others receive, so a byte that all replicas hold is read once.

    leaves ──┬── cut along the replica axis, or no NamedSharding ──▶ all processes read their parts
             └── equal in every replica: groups bounded by memory
                     readers    read a group ──┐
                                               ├── all agree that it was read ── broadcast ──▶ arrays
                     receivers                 ┘

Each process checks the replicas before it reads. The broadcast is a collective: if one process had
failed, the others would hang in the broadcast. So all processes agree before they enter it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._errors import InvalidArgumentError, failure
from .._jobs._coordination import Session
from .._leaves._columns import DTYPES
from .._leaves._meshes import Box
from .._load._regions import Place, Reading
from .._text import counted
from ._broadcast import Broadcast, failures, part_words
from ._shardings import JaxArrays, Spread
from ._single_replica import SingleReplica

MEMORY_LIMIT_DEFAULT_BYTES = 256 << 20

BUFFERS = 4
"""The buffers that a device holds at once in addition to the results: the sent and the received
words of this group and of the next group.
"""

GROUP_WORDS_MAX = 1 << 30
"""JAX counts the elements of an array with 32 bits."""


class _Common(NamedTuple):
    """A leaf that is the same in all replicas."""

    place: Place
    spread: Spread
    part_shape: tuple[int, ...]
    """The shards on each device."""

    @property
    def words(self) -> int:
        return part_words(self.part_shape, DTYPES[self.place.dtype])


class Replicas:
    """The replicas of one load, and their common leaves. Made before anything is read."""

    def __init__(
        self,
        wanted: SingleReplica,
        arrays: JaxArrays | None,
        path_of: Callable[[int], str],
        size: int,
        session: Session | None,
    ) -> None:
        """Finds the common leaves of the arrays that a job of `size` processes loads in one
        session.

        Raises:
            InvalidArgumentError: if there are no replicas, or none such, or they share processes,
                or no leaf is common.
        """
        jax: Any = sys.modules.get("jax")
        _check_processes(jax, size)
        self._session = session
        self._wanted = wanted
        self._path_of = path_of
        self._common: dict[Any, list[_Common]] = {}
        """The common leaves of each mesh, in the order of the checkpoint."""
        reasons: dict[str, list[str]] = {}
        spreads = {} if arrays is None else arrays.spreads
        places = [] if arrays is None else sorted(arrays.places, key=lambda place: place.leaf)
        for place in places:
            spread = spreads[place.at]
            reason = _why_not(wanted, spread)
            if reason:
                reasons.setdefault(reason, []).append(path_of(place.at))
                continue
            sharding, shape = spread.target.sharding, spread.shape
            rest = spread.target.wanted[len(shape) :]
            common = _Common(place, spread, (*sharding.shard_shape(shape), *rest))
            if all(common.part_shape):
                self._common.setdefault(sharding.mesh, []).append(common)
        if not self._common:
            raise _nothing_in_common(wanted, reasons)
        self._broadcasts = {mesh: _broadcast(wanted, mesh) for mesh in self._common}
        self.places = {common.place.at for common in self._all()}
        """Which leaves come from one replica, by their numbers in the result."""

    def agree(self, step: int | None) -> None:
        """Returns if all processes request the same leaves of the same step, so that all processes
        enter the same broadcasts.

        Raises:
            InvalidArgumentError: in all processes, with the ranks that differ from rank 0.
        """
        if self._session is None:
            return
        digests = self._session.gather("wanted", f"{step} ".encode() + self._digest())
        error = None
        others = [] if digests is None else [rank for rank, each in enumerate(digests) if each != digests[0]]
        if digests is not None and others:
            ranks = f"{'rank' if len(others) == 1 else 'ranks'} {', '.join(map(str, others))}"
            what = f"{ranks} would receive other arrays than rank 0 requested"
            steps = [each.partition(b" ")[0].decode() for each in digests]
            if len(set(steps)) > 1:
                what = f"{ranks} found another step than rank 0: by rank {', '.join(steps)}"
            help = "give the same tree, shardings, step and options in every process"
            error = failure(InvalidArgumentError, what, help=help)
        self._session.agree("same", error)

    def _digest(self) -> bytes:
        wanted = self._wanted
        said: list[Any] = [wanted.axis, wanted.replica, self._group_words()]
        for mesh, leaves in self._common.items():
            devices = [device.id for device in mesh.devices.flat]
            said.append([mesh.axis_names, mesh.devices.shape, devices])
            said += [
                [
                    self._path_of(place.at),
                    place.leaf,
                    place.dtype,
                    spread.target.saved,
                    spread.shape,
                    str(spread.spec),
                    shape,
                ]
                for (place, spread, shape) in leaves
            ]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest().encode()

    def read(self, reading: Reading, arrays: JaxArrays) -> dict[int, Any]:
        """Reads the arrays, by their numbers in the result. Each device holds two groups at a time."""
        found: dict[int, Any] = {}
        on_their_way: list[Any] = []
        for number, (mesh, group) in enumerate(self._groups()):
            broadcast = self._broadcasts[mesh]
            places = [common.place for common in group]
            words = sum(common.words for common in group)
            # A single array is not rounded: it may be longer than JAX can slice.
            words = words if len(group) == 1 else broadcast.rounded(words)
            parts = reading.read(places) if broadcast.is_reader else []
            with reading.stages.stage("receive"):
                sent = broadcast.put(words, _buffers(group, parts, words))
                del parts
                broadcast.prepare(words)
            with reading.stages.stage("wait_for_readers"):
                if self._session is not None:
                    self._session.agree(f"read-{number}")
            len_bytes = 0 if broadcast.is_reader else sum(place.len_bytes() for place in places)
            with reading.stages.stage("receive", len_bytes), failures():
                arrays.wait(on_their_way)
                on_their_way = []
                received = broadcast.run(words, sent)
                del sent
                offset = broadcast.first()
                for common in group:
                    dtype, spec = DTYPES[common.place.dtype], common.spread.spec
                    taken, offset = broadcast.take(received, offset, common.part_shape, dtype, spec)
                    found[common.place.at] = arrays.of_taken(common.spread, taken)
                    on_their_way.append(found[common.place.at])
            if not broadcast.is_reader:
                reading.received(len_bytes)
        with reading.stages.stage("receive"), failures():
            arrays.wait(on_their_way)
        return found

    def _groups(self) -> Iterator[tuple[Any, list[_Common]]]:
        words_max = self._group_words()
        for mesh, leaves in self._common.items():
            group: list[_Common] = []
            words = 0
            for common in leaves:
                if group and words + common.words > words_max:
                    yield mesh, group
                    group, words = [], 0
                group.append(common)
                words += common.words
            yield mesh, group

    def _group_words(self) -> int:
        limit = self._wanted.memory_limit_bytes
        limit = MEMORY_LIMIT_DEFAULT_BYTES if limit is None else limit
        return min(limit // BUFFERS // 4, GROUP_WORDS_MAX)

    def _all(self) -> Iterator[_Common]:
        for leaves in self._common.values():
            yield from leaves


def _check_processes(jax: Any, size: int) -> None:
    count = 1 if jax is None else jax.process_count()
    if count == 1:
        help = "leave out `single_replica`: one process reads each byte once for all of its devices"
        raise failure(
            InvalidArgumentError,
            "single_replica is for jobs of several processes of JAX, and this is one process",
            help=help,
        )
    if count != size:
        help = "leave out `job`, or pass a job of the same processes"
        raise failure(
            InvalidArgumentError,
            "single_replica needs a job of all processes of JAX",
            f"expected {count} processes, found {size} in the job",
            help=help,
        )


def _why_not(wanted: SingleReplica, spread: Spread) -> str:
    """The reason why every process reads a leaf; empty if all replicas have the same leaf."""
    jax: Any = sys.modules["jax"]
    sharding = spread.target.sharding
    if not isinstance(sharding, jax.sharding.NamedSharding):
        named = "no sharding" if sharding is None else f"a {type(sharding).__name__}"
        return f"with {named}, not a NamedSharding"
    mesh = sharding.mesh
    axis = _axis_name(wanted, mesh)
    if axis is None:
        return f"on a mesh without this axis, of {_axes(mesh)}"
    if spread.is_cut_along(axis):
        return f"cut along {axis}, by {sharding.spec}"
    kind = sharding.memory_kind
    if kind is not None and kind != jax.local_devices()[0].default_memory().kind:
        return f"in memory of the kind {kind}"
    return ""


def _axis_name(wanted: SingleReplica, mesh: Any) -> str | None:
    names = mesh.axis_names
    if isinstance(wanted.axis, str):
        return wanted.axis if wanted.axis in names else None
    return names[wanted.axis] if wanted.axis < len(names) else None


def _axes(mesh: Any) -> str:
    return ", ".join(f"{name}: {length}" for name, length in mesh.shape.items())


def _broadcast(wanted: SingleReplica, mesh: Any) -> Broadcast:
    """The broadcast from one replica to the others.

    Raises:
        InvalidArgumentError: for a mesh whose replicas are not fit for it.
    """
    axis = mesh.axis_names.index(_axis_name(wanted, mesh))
    name, count = mesh.axis_names[axis], mesh.devices.shape[axis]
    if wanted.replica >= count:
        raise InvalidArgumentError(
            f"replica {wanted.replica} does not exist\n"
            f"  expected below {count}, the length of the axis {name!r} of the mesh, found {wanted.replica}"
        )
    if count == 1:
        help = "leave out `single_replica`, or name another axis"
        raise failure(
            InvalidArgumentError,
            f"the axis {name!r} of the mesh has only one replica",
            f"mesh {_axes(mesh)}",
            help=help,
        )
    replicas_of: dict[int, set[int]] = {}
    for index, device in np.ndenumerate(mesh.devices):
        replicas_of.setdefault(device.process_index, set()).add(index[axis])
    shared = {process: sorted(replicas) for process, replicas in replicas_of.items() if len(replicas) > 1}
    if shared:
        process, replicas = next(iter(shared.items()))
        help = "order the devices of the mesh so that each replica has whole processes, or leave out `single_replica`"
        raise failure(
            InvalidArgumentError,
            f"replicas along the axis {name!r} share {counted(len(shared), 'process', 'processes')}",
            f"mesh {_axes(mesh)}; process {process} has devices of the replicas {', '.join(map(str, replicas))}",
            help=help,
        )
    return Broadcast(mesh, axis, wanted.replica)


def _nothing_in_common(wanted: SingleReplica, reasons: Mapping[str, Sequence[str]]) -> InvalidArgumentError:
    lines = [
        f"\n    {counted(len(paths), 'leaf', 'leaves')} {reason}, such as {paths[0]}"
        for reason, paths in reasons.items()
    ]
    lines = lines or ["\n    the load has no jax.Array: pass `like` with some, or `shardings`"]
    help = "name the axis of the mesh along which the arrays are replicated, or leave out `single_replica`"
    return failure(
        InvalidArgumentError,
        f"no leaf is replicated along the axis {wanted.axis!r}{''.join(lines)}",
        help=help,
    )


def _buffers(
    group: Sequence[_Common], parts: Sequence[Sequence[np.ndarray[Any, Any]]], words: int
) -> dict[Any, np.ndarray[Any, Any]]:
    """The buffers that the devices of a reader send: the concatenated parts of the group. Devices
    with the same parts share a buffer.
    """
    sent: dict[Any, np.ndarray[Any, Any]] = {}
    if not parts:
        return sent
    by_boxes: dict[tuple[Box, ...], np.ndarray[Any, Any]] = {}
    for device in group[0].spread.devices or ():
        positions = [(common.spread.devices or []).index(device) for common in group]
        boxes = tuple(common.place.cut.boxes[position] for common, position in zip(group, positions, strict=True))
        if boxes not in by_boxes:
            buffer = np.zeros(words * 4, np.uint8)
            offset = 0
            for common, each, position in zip(group, parts, positions, strict=True):
                flat = np.ascontiguousarray(each[position]).reshape(-1).view(np.uint8)
                buffer[offset : offset + flat.size] = flat
                offset += common.words * 4
            by_boxes[boxes] = buffer.view(np.uint32)
        sent[device] = by_boxes[boxes]
    return sent
