"""`StorageWriter` and `StorageReader`: `torch.distributed.checkpoint` (DCP) plans, and regrow
writes and reads the checkpoint.

    dcp.save: plan of each process ──> coordinator: how every tensor is cut ──> write_data: one `regrow.save` by all
    dcp.load: sizes and dtypes from the checkpoint ──> plan of each process ──> read_data: regions into the tensors

The checkpoint is a flat dict by DCP's names. The chunks of a tensor fit its shards. Other objects
are stored as `regrow.torch.save` stores them, without pickle.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from .._core import _arguments, _options
from .._core._cache import through
from .._core._dtypes import DTYPES
from .._core._keywords import keywords
from .._core._location import StrPath, place
from .._core._options import Options
from .._core._report import SaveReport
from .._errors import InvalidArgumentError, LeafTypeError, MismatchError, RegrowError, failure
from .._jobs import _job
from .._jobs._coordination import Session
from .._jobs._job import Job
from .._leaves._meshes import Box
from .._leaves._sharded import ShardedArray
from .._load._opening import opening_of
from .._load._regions import Cut, Place
from .._save._save import save_as
from .._save._writing import Writing
from .._torch import _tensors
from .._torch._fill import Part, fill
from ..layouts import Layout
from ._encode import Encoded, encode
from ._library import torch
from ._nested import PATHS, paths_of, paths_text
from ._objects import pack, unpack
from ._read import Asked, Opened
from ._save import with_record

dcp: Any = importlib.import_module("torch.distributed.checkpoint")
_metadata: Any = importlib.import_module("torch.distributed.checkpoint.metadata")
_planner: Any = importlib.import_module("torch.distributed.checkpoint.planner")
_storage: Any = importlib.import_module("torch.distributed.checkpoint.storage")

CHUNKS_MAX = 1 << 16
"""A tensor with more chunks is refused: its shards do not form a regular grid."""


class Grid(NamedTuple):
    """The division of a tensor into chunks. It is the same in all processes."""

    dtype: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]


class Planned(NamedTuple):
    """The facts of the plans that every process needs."""

    names: list[str]
    """The names of the flat dict, in its order."""
    grids: dict[str, Grid]
    """The grids of the tensors."""
    paths: dict[str, tuple[str | int, ...]] | None
    size: int
    """The number of processes that save."""


class StorageWriter(_storage.StorageWriter):  # type: ignore[misc]
    """Saves the state of a `torch.distributed.checkpoint` save as a regrow checkpoint.

        writer = regrow.torch.StorageWriter("s3://bucket/run/step_100")
        dcp.save(state, storage_writer=writer)

    All processes write together. The checkpoint is committed after the last process has written, or
    not at all.
    """

    @keywords
    def __init__(
        self,
        path: StrPath | None = None,
        *,
        layout: str | Layout | None = None,
        overwrite: bool = False,
        cast: Any = None,
        lossy: bool = False,
        compression: Any = None,
        metadata: Any = None,
        base: StrPath | None = None,
        durable: bool = True,
        parity: str | None = None,
        seal: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        job: Job | None = None,
        options: Options | None = None,
    ) -> None:
        """Writes to `path`.

        Args:
            path: The folder to create, or its URL. The ``checkpoint_id`` of the save replaces it.
            layout: As for `save`.
            overwrite: As for `save`.
            cast: As for `save`.
            lossy: As for `save`.
            compression: As for `save`.
            metadata: As for `save`.
            base: As for `save`.
            durable: As for `save`.
            parity: As for `save`.
            seal: As for `save`.
            storage_options: As for `save`.
            job: As for `regrow.save`.
            options: Rare settings.
        """
        self._path = path
        self._writing = Writing(
            layout=layout, overwrite=overwrite, cast=cast, lossy=lossy, compression=compression, metadata=metadata,
            base=base, durable=durable, parity=parity, seal=seal, storage_options=storage_options, job=job,
            options=options,
        )  # fmt: skip
        self.report: SaveReport | None = None
        """The report of the last save."""

    @property
    def checkpoint_id(self) -> StrPath | None:
        """The path to which it writes."""
        return self._path

    def reset(self, checkpoint_id: Any = None) -> None:
        """Starts a save, at another path if one is given."""
        self._path = self._path if checkpoint_id is None else checkpoint_id
        self.report = None

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **_more: Any) -> None:
        """Does nothing. The save itself reports if a checkpoint cannot be created at the path."""
        if self._path is None:
            raise failure(
                InvalidArgumentError, "the writer has no path", help="StorageWriter(path), or checkpoint_id=path"
            )

    def prepare_local_plan(self, plan: Any) -> Any:
        """Returns the plan of this process unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Sends the grids of all tensors to every process."""
        planned = plan_of(plans)
        return [dataclasses.replace(plan, storage_data=planned) for plan in plans]

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Saves. Returns when all processes have saved."""
        planned: Planned = plan.storage_data
        job = Job.alone() if planned.size == 1 else self._writing.asked_job() or Job()
        writing = dataclasses.replace(self._writing, job=job)
        native_job = _job.chosen(job)
        if planned.size > 1 and (native_job is None or native_job[0].size != planned.size):
            found = 1 if native_job is None else native_job[0].size
            raise failure(
                InvalidArgumentError,
                f"{planned.size} processes save, but the job has {found}",
                help="give job=regrow.jobs.Job(coordinator) with a coordinator of the saving processes",
            )
        arrays, objects = _of_all(plan, planner, planned, native_job, self._path or "")
        tree: dict[str, Any] = {}
        record: dict[str, dict[str, Any]] = {}
        for name in planned.names:
            if name in planned.grids:
                tree[name] = arrays[name]
            else:
                tree[name] = objects[name].tree
                record |= objects[name].record
        writing = writing.laid_out(place("path", self._path or "", writing.storage_options))
        told = with_record(writing, Encoded(tree, record), **{PATHS: paths_text(planned.paths)})
        self.report = save_as(self._path or "", tree, told, progress=False)
        done = torch.futures.Future()
        done.set_result([_storage.WriteResult(item.index, 0, None) for item in plan.items])
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        """Does nothing: the checkpoint is already complete."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Returns whether the id is a path."""
        return isinstance(checkpoint_id, (str, os.PathLike))


def plan_of(plans: list[Any]) -> Planned:
    """Merges the plans of all processes into one.

    Raises:
        InvalidArgumentError: if the shards of a tensor do not form a regular grid.
        LeafTypeError: for dtypes that no checkpoint can hold.
    """
    names: dict[str, None] = {}
    boxes: dict[str, list[Box]] = {}
    kinds: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for plan in plans:
        for item in plan.items:
            name = item.index.fqn
            names[name] = None
            if item.tensor_data is not None:
                chunk = item.tensor_data.chunk
                boxes.setdefault(name, []).append(Box(tuple(chunk.offsets), tuple(chunk.sizes)))
                kinds[name] = item.tensor_data.properties.dtype, tuple(item.tensor_data.size)
    grids = {}
    for name, (dtype, shape) in kinds.items():
        number = _tensors._dtypes().get(dtype)
        if number is None:
            raise LeafTypeError(f"a tensor of dtype {dtype} cannot be stored\n  leaf {name}", leaf=name)
        grids[name] = Grid(DTYPES[number].name, shape, _chunk_shape(name, shape, boxes[name]))
    paths: dict[str, Any] | None = None
    if all(plan.planner_data is not None for plan in plans):
        paths = {name: keys for plan in plans for name, keys in plan.planner_data.items()}
    return Planned(list(names), grids, paths, len(plans))


def _chunk_shape(name: str, shape: tuple[int, ...], boxes: list[Box]) -> tuple[int, ...]:
    """The largest chunk shape for which all boxes consist of whole chunks of a regular grid."""
    chunk = []
    for axis, length in enumerate(shape):
        cuts = {box.starts[axis] for box in boxes}
        cuts |= {end for box in boxes if (end := box.starts[axis] + box.lens[axis]) < length}
        step = math.gcd(*cuts)
        chunk.append(step or length)
    count = math.prod(-(-length // step) if step else 1 for length, step in zip(shape, chunk, strict=True))
    if count > max(CHUNKS_MAX, len(boxes)):
        help = "shard it in equal parts, or save with regrow.torch.save"
        raise failure(
            InvalidArgumentError,
            f"the shards of a tensor do not form a regular grid: they would need {count} chunks",
            f"expected at most {CHUNKS_MAX}",
            leaf=name,
            help=help,
        )
    return tuple(chunk)


def _of_this(plan: Any, planner: Any, planned: Planned) -> tuple[dict[str, Any], dict[str, Encoded]]:
    """The part of this process in the flat dict: its shards of all tensors, and its objects."""
    shards: dict[str, list[tuple[tuple[int, ...], Any]]] = {name: [] for name in planned.grids}
    arrays: dict[str, Any] = {}
    objects: dict[str, Encoded] = {}
    for item in plan.items:
        name = item.index.fqn
        if item.tensor_data is None:
            objects[name] = encode(_object(planner, item), (name,))
            continue
        tensor = planner.resolve_data(item).detach()
        _check(name, tensor)
        shards[name].append((tuple(item.tensor_data.chunk.offsets), _tensors.memory(tensor)))
    for name, (dtype_name, shape, chunk_shape) in planned.grids.items():
        dtype = DTYPES[_native.DTYPES.index(dtype_name)]
        if 0 in shape:
            arrays[name] = np.empty(shape, dtype)
        elif planned.size == 1 and len(shards[name]) == 1 and chunk_shape == shape:
            arrays[name] = shards[name][0][1]
        else:
            arrays[name] = ShardedArray(shape, shards[name], chunk_shape=chunk_shape, dtype=dtype)
    return arrays, objects


def _check(name: str, tensor: Any) -> None:
    try:
        _tensors.check(tensor)
    except _tensors.Refused as refused:
        help = refused.help
        raise failure(LeafTypeError, f"the leaf {refused.what}", leaf=name, help=help) from None


def _object(planner: Any, item: Any) -> Any:
    """The object of an item, before the planner pickles it."""
    lookup = getattr(planner, "lookup_object", None)
    if lookup is None:
        raise failure(
            InvalidArgumentError,
            f"the planner {type(planner).__qualname__} gives only pickled objects, which regrow cannot store",
            leaf=item.index.fqn,
            help="derive it from DefaultSavePlanner, which has lookup_object",
        )
    return lookup(item.index)


def _of_all(
    plan: Any, planner: Any, planned: Planned, job: _job.NativeJob | None, path: StrPath
) -> tuple[dict[str, Any], dict[str, Encoded]]:
    """The arrays of this process, and the objects of all processes. Each object is in the plan of
    one process.
    """
    if job is None:
        return _of_this(plan, planner, planned)
    found, (timeout, prefix) = job
    error: RegrowError | None = None
    arrays: dict[str, Any] = {}
    objects: dict[str, Encoded] = {}
    with Session(found, path, "objects", timeout=timeout, prefix=prefix) as session:
        try:
            arrays, objects = _of_this(plan, planner, planned)
        except RegrowError as raised:
            error = raised
        try:
            session.agree("check", error)
        except RegrowError:
            if error is None:
                raise
            raise error from None
        parts = session.gather("objects", pack(objects))
        merged: dict[str, Encoded] = {}
        for part in parts or ():
            merged |= unpack(part)
        return arrays, unpack(session.broadcast("all", pack(merged)))


_NAMED_MAX = 8
"""The most tensors that one error names."""


class StorageReader(_storage.StorageReader):  # type: ignore[misc]
    """Reads a checkpoint of any layout for `torch.distributed.checkpoint`.

        reader = regrow.torch.StorageReader("s3://bucket/run/step_100")
        dcp.load(state, storage_reader=reader)

    Each process reads the regions of its own shards, from a checkpoint of any source.
    """

    def __init__(
        self,
        path: StrPath | None = None,
        *,
        cast: bool = False,
        step: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        options: Options | None = None,
    ) -> None:
        """Reads from `path`.

        Args:
            path: A checkpoint, or a folder of steps. The ``checkpoint_id`` of the load replaces it.
            cast: Accept tensors with another dtype than the saved ones, and let torch cast the
                data, as DCP's own reader does silently. Otherwise they are an error.
            step: As for `load`.
            storage_options: As for `load`.
            options: Rare settings.
        """
        rare = _options.chosen(options, "load")
        self._path = path
        self._cast = _arguments.flag("cast", cast)
        self._asked = Asked(
            (),
            lambda tensor, _: tensor,
            False,
            _arguments.flag("checksums", rare.checksums),
            _arguments.budget(rare.budget_bytes),
            False,
        )
        self._opening = opening_of(rare, step)
        self._where = storage_options, rare.cache
        self._opened: Opened | None = None
        self._tensors: dict[str, int] = {}
        self._objects: dict[str, Any] = {}

    @property
    def checkpoint_id(self) -> StrPath | None:
        """The path from which it reads."""
        return self._path

    def reset(self, checkpoint_id: Any = None) -> None:
        """Starts a load, from another path if one is given."""
        self._path = self._path if checkpoint_id is None else checkpoint_id
        self._opened = None

    def read_metadata(self, *_args: Any, **_more: Any) -> Any:
        """Returns the content of the checkpoint as DCP's metadata, with each tensor as one chunk."""
        if self._path is None:
            raise failure(
                InvalidArgumentError, "the reader has no path", help="StorageReader(path), or checkpoint_id=path"
            )
        storage_options, cache = self._where
        native = _native.open(through(cache, place("path", self._path, storage_options)), self._opening)
        metadata = None if native.metadata is None else json.loads(native.metadata)
        self._opened = Opened(native, metadata)
        paths = paths_of(metadata)
        self._tensors, self._objects = self._opened.named(flat=paths is not None)
        if paths is None:
            paths = self._opened.paths
        told = {}
        for name, leaf in self._tensors.items():
            dtype, shape = self._opened.form(leaf)
            size = torch.Size(shape)
            whole = _metadata.ChunkStorageMetadata(torch.Size([0] * len(shape)), size)
            told[name] = _metadata.TensorStorageMetadata(_metadata.TensorProperties(dtype=dtype), size, [whole])
        told |= {name: _metadata.BytesStorageMetadata() for name in self._objects}
        return _metadata.Metadata(state_dict_metadata=told, planner_data=paths or None)

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_args: Any, **_more: Any) -> None:
        """Does nothing: the checkpoint is already open."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Returns the plan of this process unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Returns the plans unchanged."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Reads the items of the plan into their targets."""
        opened = self._opened
        if opened is None:
            raise InvalidArgumentError("read_data before read_metadata")
        objects = [item for item in plan.items if item.type == _planner.LoadItemType.BYTE_IO]
        tensors = [item for item in plan.items if item.type != _planner.LoadItemType.BYTE_IO]
        parts, casts, targets = [], [], []
        differing: list[str] = []
        for at, item in enumerate(tensors):
            target = planner.resolve_tensor(item).detach()
            targets.append(target)
            if not target.numel():
                continue
            leaf = self._tensors[item.storage_index.fqn]
            dtype, shape = opened.form(leaf)
            into = target
            if target.dtype != dtype:
                if not self._cast:
                    differing.append(f"{item.storage_index.fqn}: expected {dtype}, found {target.dtype}")
                    continue
                into = torch.empty(target.shape, dtype=dtype)
                casts.append((target, into))
            box = Box(tuple(item.storage_offsets), tuple(item.lengths))
            if tuple(target.shape) != box.lens:
                raise MismatchError(
                    f"the region of a plan and its tensor differ in shape\n  leaf {item.storage_index.fqn}\n"
                    f"  expected {list(target.shape)}, found {list(box.lens)}",
                    leaf=item.storage_index.fqn,
                )
            shown = _tensors.memory(into) if _tensors.can_be_written(into) else None
            parts.append(Part(Place(at, leaf, opened.dtype_number(leaf), Cut((box,), shape)), shown, into))
        if differing:
            help = "make tensors of the saved dtypes, or StorageReader(path, cast=True) to let torch cast"
            listed = "".join(f"\n    {each}" for each in differing[:_NAMED_MAX])
            more = f"\n    and {len(differing) - _NAMED_MAX} more" if len(differing) > _NAMED_MAX else ""
            raise failure(
                MismatchError,
                f"{len(differing)} tensors differ in dtype from the saved ones{listed}{more}",
                help=help,
            )
        with opened.reading(self._asked, sum(part.place.len_bytes() for part in parts)) as reading:
            fill(parts, reading)
        for target, read in casts:
            target.copy_(read)
        for item, target in zip(tensors, targets, strict=True):
            planner.commit_tensor(item, target)
        made = opened.objects(
            {name: self._objects[name] for name in {item.storage_index.fqn for item in objects}}, self._asked
        )
        for item in objects:
            # DCP's planners expect the bytes of torch.save, but this object was never in a file.
            stream = io.BytesIO()
            torch.save(made[item.storage_index.fqn], stream)
            stream.seek(0)
            planner.load_bytes(item, stream)
        done = torch.futures.Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Returns whether the id is a path."""
        return isinstance(checkpoint_id, (str, os.PathLike))
