"""The engine, in columns: see `_tree` and `_leaves` for what they mean."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeVar, final

import numpy as np
from typing_extensions import Buffer

from ._core._requests import (
    BackgroundRequest,
    ConvertRequest,
    CopyRequest,
    DiffRequest,
    ItemsRequest,
    LoadRequest,
    RegionsRequest,
    ReportRequest,
    SaveRequest,
)
from ._load._opening import Opening

_T = TypeVar("_T")

__version__: str
NODE_KINDS: tuple[str, ...]
KEY_KINDS: tuple[str, ...]
LEAF_KINDS: tuple[str, ...]
DTYPES: tuple[str, ...]
SAFETENSORS_DTYPES: tuple[str | None, ...]
LAYOUTS: tuple[str, ...]
TREE_DEPTH_MAX: int
EQUINOX_TRAILER_MAGIC: bytes

_Leaves = tuple[bytes, list[Any], dict[int, str]]
_LeavesIn = tuple[bytes, list[Any], dict[int, str], dict[int, str]]
_Info = tuple[str, str, list[int]]
_Finding = tuple[str, str, str | None, str | None, int | None]
_Listed = tuple[str, str, str | None, str, list[int], tuple[int | None, int | None, float | None], _Finding | None]
"""Name, path, layout, state, steps; files, bytes and seconds since 1970, where the storage
knows; what is wrong.
"""

_Maps = tuple[list[MapBuffer], list[tuple[int, int, int] | None]]
_Watch = tuple[bool, Callable[[int, int], object] | None]
_Loss = tuple[str, str, str]
_Saved = tuple[str, int, int, int, float, list[tuple[str, float, int, float]], str, int, list[str], list[_Loss]]

def command(arguments: list[str], packages: Callable[[], list[tuple[str, str | None, str]]]) -> int:
    """Runs the command `regrow`, and gives the number to end the process with; the first argument
    is its name.

    ``packages`` is called if it wants to know: name, version if it is installed, and use of each.
    """

@final
class Location:
    """A storage with its options, and a path in it. Functions that take a path as `_Place` take
    one.
    """

    def __new__(cls, path: str, options: Sequence[tuple[str, str]]) -> Location: ...
    def __fspath__(self) -> str:
        """The path or URL, without the options."""

    def cached(self, cache: Cache) -> Location:
        """The same location, read through a cache."""

    @property
    def local_path(self) -> str | None:
        """The path, if it is one of the local file system."""

    def look(self) -> str | None:
        """What is there: ``file``, ``folder`` or ``other``; `None` if nothing is."""

    def entries(self) -> list[tuple[str, bool]]:
        """The names in the folder, sorted, and whether each leads to a folder."""

    def read(self, len_max_bytes: int) -> bytes | None:
        """The bytes of a small file, at most so many; `None` if there is none."""

    def write(self, data: bytes) -> None:
        """Writes a small file, and replaces an existing one: a reader sees the old or the
        new one.
        """

@final
class Cache:
    """A folder of a local disk that keeps what was read from buckets."""

    def __new__(cls, folder: str, max_size: str) -> Cache: ...
    def report(self) -> tuple[int, int, int]:
        """Bytes read from the folder, bytes fetched since it did not have them, blocks that were
        damaged.
        """

_Verified = tuple[list[_Finding], int, int, bool, list[str], int, str | None, list[tuple[str, int]], int | None]
"""Findings, bytes read, leaves, whether there are checksums, notes, bytes nothing protects,
signer, files, step.
"""

_Place = str | Location

@final
class Regions:
    """Hyper-rectangles of one leaf, or of all leaves with the same ones: their offsets and
    shapes.
    """

    def __new__(cls, boxes: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Regions: ...

@final
class Coordinator:
    """A coordinator of the engine's own. It keeps the protocol `regrow.Coordinator`."""

    @staticmethod
    def single() -> Coordinator:
        """A job of one process."""

    @staticmethod
    def folder(path: _Place, rank: int, size: int) -> Coordinator:
        """A folder that all processes see."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def value_len_max_bytes(self) -> int: ...
    def put_if_absent(self, key: str, value: bytes) -> bool: ...
    def get(self, key: str, wait: float) -> bytes | None: ...
    def get_many(self, keys: list[str]) -> dict[str, bytes] | None: ...
    def remove(self, key: str) -> None: ...
    def live(self) -> list[int] | None: ...

@final
class Session:
    """One save or restore by all processes. `wait` is the time-out in seconds, and what is put
    in front of keys.
    """

    def __new__(cls, coordinator: Any, target: _Place, purpose: str, wait: tuple[float, str | None]) -> Session: ...
    def gather(self, phase: str, value: bytes) -> list[bytes] | None:
        """What every process gives, on rank 0."""

    def broadcast(self, phase: str, value: bytes) -> bytes:
        """What rank 0 gives, on every process."""

    def agree(self, phase: str, error: tuple[str, str] | None) -> None:
        """Raises in every process if one of them brings an error: its kind, and what it says."""

    def post(self, phase: str, value: bytes) -> None:
        """Gives a value to the process that asks for it."""

    def receive(self, phase: str, rank: int) -> bytes:
        """What another process has given."""

    def shares_storage(self, target: _Place) -> None:
        """Raises in every process unless all of them see what rank 0 writes there."""

    def finish(self) -> None:
        """Ends it well."""

    def leave(self) -> None:
        """Ends it, as a failure if it was not finished."""

@final
class Structure:
    """The nodes of a tree, without its leaves."""

    @property
    def node_kinds(self) -> bytes:
        """The kind of every node, in preorder: positions in `NODE_KINDS`."""

@final
class Flat:
    """A tree taken apart, and how each of its containers is made again."""

    @property
    def structure(self) -> Structure: ...
    @property
    def leaves(self) -> list[Any]: ...
    def with_leaves(self, leaves: list[Any]) -> Any:
        """The same containers with other leaves."""

@final
class TemplateLeaves:
    """What the leaves of a template want."""

def flatten(tree: object, hooks: tuple[Any, ...], handlers: Any) -> Flat:
    """Takes a tree apart. Hooks: the table of classes, the opener of a class that is not in it, the
    opener of what a handler is in charge of, the refusal of cycles and that of depth. Each leaf or
    container is first shown to ``handlers.own_handler_of``, if there are handlers."""

def unflatten(
    structure: Structure,
    leaves: list[Any],
    other: Callable[[int, list[str | int], bytes, str | None, list[Any]], Any],
    handled: tuple[tuple[str, str], Callable[[dict[str, Any], int], Any]] | None,
) -> Any:
    """Puts a tree together; ``other`` makes what is no dict, list, tuple or `None`, ``handled`` has
    two keys and makes what dicts of just these stand for."""

def leaf_columns(leaves: list[Any], hooks: tuple[Any, ...]) -> _LeavesIn:
    """What leaves are to the engine. Hooks: kinds by class, numbers by dtype, ``other(leaf, at)``
    for kind, value, note and sharding of all other leaves, whether a class shows the memory of its
    arrays, of a sharding its text and whether its arrays lie in one piece, and of JAX the class of
    shardings on one device and what exports an array by DLPack. Exported arrays are capsules, from
    which one save can take the tensor."""

def template_leaves(
    leaves: list[Any], numbers: dict[Any, int], wanted: Callable[[Any, int], Any]
) -> tuple[TemplateLeaves, dict[int, Any]]:
    """What the leaves of a template want; of those that are no plain arrays also what `wanted`
    says, by number.
    """

def save(path: _Place, structure: Structure, leaves: _LeavesIn, options: SaveRequest, watch: _Watch) -> _Saved:
    """Saves a tree; gives path, stored bytes, number of leaves, bytes of data, seconds, stages, I/O
    path, reused bytes, notes, losses.

    `watch`: whether this thread gets signals, and what to call with the bytes done and the bytes in
    all. Signals are handled during the work; what they or the callback raise is raised when the
    work has stopped.
    """

@final
class AsyncSaver:
    """Saves one after the other, on a thread of its own."""

    def __new__(cls) -> AsyncSaver: ...
    def save(
        self,
        path: _Place,
        structure: Structure,
        leaves: _LeavesIn,
        options: SaveRequest,
        how: BackgroundRequest,
    ) -> SaveHandle | None:
        """Takes the snapshot; `None` if the save is to be skipped."""

    def wait(self, timeout: float | None) -> bool:
        """Waits until nothing is left to save; `False` if that takes longer than `timeout`
        seconds.
        """

    def is_busy(self) -> bool: ...
    def running(self) -> tuple[str, int, int] | None:
        """Where the save that is running goes, bytes done, bytes in all."""

    def release_memory(self) -> None: ...
    def wait_for_room(self, when_busy: str) -> float:
        """Waits until a save need not wait for an earlier one; seconds."""

    def save_items(
        self,
        items: ItemsSave,
        how: BackgroundRequest,
        before_commit: Callable[[], object] | None = None,
    ) -> SaveHandle:
        """Adds the trees that `items` keeps to it, as they are now, and commits it once
        `before_commit` is done.
        """

@final
class ItemsSave:
    """A checkpoint of several items that is being written."""

    def __new__(
        cls,
        path: _Place,
        options: ItemsRequest,
        gets_signals: bool,
        progress: Callable[[int, int], object] | None,
    ) -> ItemsSave: ...
    @property
    def path(self) -> str: ...
    def tree(
        self,
        name: str,
        structure: Structure,
        leaves: _LeavesIn,
        options: SaveRequest,
        gets_signals: bool,
    ) -> None:
        """Adds a tree."""

    def later(self, name: str, structure: Structure, leaves: _LeavesIn, options: SaveRequest) -> None:
        """Keeps a tree for `AsyncSaver.save_items`, which adds it."""

    def json(self, name: str, text: str, file: str | None) -> None:
        """Adds a JSON document of this text, in a file of this name or the usual one."""

    def metrics(self, text: str) -> None:
        """Adds metrics, a JSON object of this text."""

    def file(self, name: str, file: str, data: bytes) -> None:
        """Adds one file of an item."""

    def copy_of(self, name: str, source: str) -> None:
        """Adds a copy of a local file or folder."""

    def folder(self, name: str) -> str:
        """A local folder for the files of an item, until the commit."""

    def files(self, item: str) -> None: ...
    def handler(self, item: str, handler: str) -> None:
        """The class by which Orbax reads an item."""

    def metadata(self, text: str) -> None:
        """Adds members to the checkpoint's own metadata, a JSON object of this text."""

    def commit(self, gets_signals: bool) -> _Saved:
        """Gives the checkpoint its name; the report."""

    def fail(self, kind: str, what: str) -> None: ...
    def drop(self) -> None:
        """Gives it up: nothing is left."""

    def cancel(self) -> None:
        """Asks the running work to stop."""

    def progress(self) -> tuple[int, int]:
        """Bytes done, bytes in all."""

@final
class SaveHandle:
    """A save in the background."""

    @property
    def path(self) -> str: ...
    @property
    def blocked(self) -> tuple[float, float, int]:
        """Seconds of the call, seconds of it that it waited for an earlier save, bytes copied."""

    def progress(self) -> tuple[str, int, int]:
        """Stage, bytes done, bytes in all."""

    def is_done(self) -> bool: ...
    def cancel(self) -> None: ...
    def wait(self, timeout: float | None) -> _Saved | None:
        """The report; `None` if that takes longer than `timeout` seconds."""

def convert_rules(
    file: _Place,
) -> tuple[
    str | None,
    str,
    list[str],
    list[tuple[str, str]],
    list[tuple[str, str]],
    list[tuple[str, list[int]]],
    list[tuple[str, list[int]]],
    bool,
]:
    """Reads a file of rules; gives layout, its options as JSON, globs, renames, casts, transposes,
    reshapes, whether it may lose something."""

def plan_convert(
    source: _Place, target: _Place, save: SaveRequest, convert: ConvertRequest, all_steps: bool
) -> list[
    tuple[int | None, tuple[list[tuple[str, str | None, _Info, _Info]], list[tuple[str, str, str]], list[_Finding]]]
]:
    """Gives the step (if all are converted), what would become of each leaf, what the target cannot
    hold, and what the source has lost; raises what `convert` would refuse."""

def convert(
    source: _Place,
    target: _Place,
    save: SaveRequest,
    convert: ConvertRequest,
    all_steps: bool,
    watch: _Watch,
) -> list[tuple[int | None, tuple[_Saved, list[tuple[str, str, str]], list[_Finding]]]]:
    """Converts; gives the step (if all are converted), what `save` gives, what the target cannot
    hold, and what the source has lost."""

@final
class SharedConvert:
    """A conversion by several processes, which this one has begun."""

    def __new__(
        cls, source: _Place, target: _Place, save: SaveRequest, convert: ConvertRequest, gets_signals: bool
    ) -> SharedConvert: ...
    def about(self, count: int) -> tuple[str, int | None, list[int]]:
        """By what workers join, the step that was opened, and the bytes of each of `count`
        shares.
        """

    def finish(
        self, shares: list[tuple[int, int, int, list[int]]], gets_signals: bool
    ) -> tuple[_Saved, list[tuple[str, str, str]]]:
        """Makes one checkpoint of what `convert_share` gave for each share; gives what `convert`
        gives.
        """

    def give_up(self) -> None:
        """Removes what was written, unless it is finished."""

def convert_share(
    source: _Place,
    target: _Place,
    save: SaveRequest,
    convert: ConvertRequest,
    share: tuple[str, int, int],
    watch: _Watch,
) -> tuple[int, int, int, list[int]]:
    """Writes a share of a conversion: its ticket, its number, of how many. Gives the writer's
    number, bytes of its files where only it can tell, bytes that a base had."""

_Form = tuple[str, str, tuple[int, ...]]
_Distance = tuple[
    tuple[int, int, int, int],
    tuple[list[int], list[int]],
    tuple[float | None, float | None, int | None, float | None],
    tuple[tuple[int, ...], list[list[float]]] | None,
]

def held(structure: Structure, leaves: _LeavesIn) -> Checkpoint:
    """A pytree as a checkpoint in memory."""

def diff(
    a: Checkpoint,
    b: Checkpoint,
    request: DiffRequest,
    watch: _Watch,
) -> tuple[
    tuple[str, str],
    bool,
    list[tuple[str, str, _Form | None, _Form | None, bool, _Distance | None]],
    list[tuple[str, int]],
    list[tuple[str, str | None, str | None]],
    int,
    list[tuple[str, _Finding]],
    int,
    str,
]:
    """Compares two opened checkpoints. Options: globs; ``atol``, ``rtol``, ``max_ulp``; whether to
    ignore dtypes, to check types, to look for equality alone, to list equal leaves; budget. Gives
    the paths, the verdict, the leaves, counts by status, containers, leaves of another kind,
    findings by side, bytes read, and the report as text."""

@final
class ReportPage:
    """What a page says, and the page."""

    @property
    def title(self) -> str: ...
    @property
    def is_sound(self) -> bool: ...
    def html(self) -> str: ...
    def save(self, path: str, overwrite: bool) -> None: ...
    def json(self) -> str: ...
    def statistics(
        self,
    ) -> (
        tuple[
            list[str],
            tuple[list[int], list[int], list[int], list[int]],
            tuple[list[float], list[float], list[float], list[float], list[float]],
        ]
        | None
    ):
        """Key paths; elements looked at, NaNs, infinities, zeros; lowest, highest, mean,
        standard deviation, norm.
        """

def report(
    subjects: Sequence[Checkpoint | _Place],
    request: ReportRequest,
    watch: _Watch,
) -> ReportPage:
    """Reads the first, and compares it with the others."""

def copy(source: _Place, target: _Place, request: CopyRequest, watch: _Watch) -> tuple[str, int, int, int, float]:
    """Copies; gives path, files, bytes, bytes that were there already, seconds."""

def seal(path: _Place, step: int | None, remove: bool, wait: float, watch: _Watch) -> tuple[str, int, int, bool]:
    """Path, files, bytes, whether anything has changed."""

def add_parity(
    path: _Place, ratio: str, step: int | None, remove: bool, wait: float, watch: _Watch
) -> tuple[str, int, int, int, bool]:
    """Path, files, bytes, bytes of parity, whether anything has changed."""

def repair(
    path: _Place, from_: _Place | None, step: int | None, check: bool, wait: float, watch: _Watch
) -> tuple[
    str,
    int,
    list[tuple[str, int]],
    list[tuple[str, int, str, bool]],
    list[_Finding],
    list[_Finding],
    list[str],
    bool,
    bool,
    str,
    str,
    str | None,
]:
    """Path, bytes, healed, recovered, lost, findings, notes, was the parity damaged, a check,
    text, verdict, proof.
    """

def sign(path: _Place, key: str, step: int | None, wait: float, watch: _Watch) -> tuple[str, int, int, list[str]]:
    """Path, files, bytes, the public keys of all signers."""

def public_key(text: str) -> str:
    """The hex digits of a public key, or of the one in a file."""

def remove(path: _Place, unfinished: bool, force: bool, wait: float) -> tuple[str, int, int]:
    """Removes a checkpoint, or what a save has left; gives path, files, bytes."""

def list_checkpoints(folder: _Place) -> list[_Listed]:
    """The checkpoints right in a folder."""

_Step = tuple[int, str, Location, float | None, str, str]
"""Number, name, place, seconds since 1970, metrics and metadata as JSON."""

_Deletion = tuple[int, str, int, str | None, _Finding | None]
"""Number; ``removed``, ``moved``, ``leased``, ``gone`` or ``failed``; bytes, where it is now,
why it failed.
"""

_Numbers = list[int]
_Deletions = list[_Deletion]
_StepList = tuple[list[_Step], list[str], list[str]]

@final
class Steps:
    """A folder of steps. Forms of names are prefix and width, the one that is written first; those
    of the folder if `None`."""

    def __new__(
        cls,
        root: _Place,
        forms: Sequence[tuple[str | None, int | None]] | None,
        given: Sequence[tuple[int, str]] | None = None,
    ) -> Steps: ...
    @property
    def root(self) -> Location: ...
    def name(self, step: int) -> str:
        """The name of a new step."""

    def list(self) -> _StepList:
        """Committed steps by number, names of saves that never ended, and notes."""

    def find(self, step: int) -> _Step | None: ...
    def step(self, step: int) -> _Step:
        """Raises if it is not there."""

    def leased(self) -> _Numbers:
        """Steps that have readers."""

    def lease(self, step: int) -> StepLease: ...
    def lock(self) -> WriterLock: ...
    def delete(self, steps: Sequence[int], aside: str | None, also_leased: bool) -> _Deletions: ...
    def refresh(self) -> None:
        """Brings the pointer in line with the list, and removes what killed saves and deletions
        have left.
        """

@final
class StepLease:
    """Keeps a step from being deleted."""

    def release(self) -> None: ...

@final
class WriterLock:
    """The right to write to a folder of steps."""

    def release(self) -> None: ...

@final
class Preemption:
    """Whether the program is asked to end. With `agreed`, all processes of a job set it before the
    same step, or none does.
    """

    def __new__(cls, agreed: bool) -> Preemption: ...
    def set(self) -> None: ...
    @property
    def is_set(self) -> bool: ...

@final
class Run:
    """The steps of a folder, which this run alone writes to. `options` has the fields of
    `regrow._manager._manager.RunOptions`.
    """

    def __new__(cls, root: _Place, options: Any) -> Run: ...
    @property
    def steps(self) -> Steps:
        """The folder, without the other processes of a job."""

    def numbers(self) -> _Numbers:
        """The committed steps of any history."""

    def latest(self) -> int | None:
        """The newest step of the current history."""

    def abandoned(self) -> _Numbers:
        """The steps of other histories."""

    def best(self, metric: str, is_max: bool) -> int | None:
        """The best step of the current history by a metric."""

    def should_save(self, step: int) -> bool:
        """Whether `begin` would begin the step."""

    def begin(
        self, step: int, force: bool, overwrite: bool, metrics: str, raised: BaseException | None
    ) -> DueStep | None:
        """Begins a step, if it is due. `metrics` is a JSON object. `raised` is raised in all
        processes.
        """

    def wait_for_grace(self, step: int) -> None:
        """Waits for the save of a program that is asked to end."""

    def wait(self, timeout: float | None) -> bool:
        """Waits for all saves; `False` after `timeout` seconds."""

    def failure(self) -> BaseException | None:
        """The first exception of a save that no call has raised yet."""

    def pending(self) -> _Numbers:
        """Steps whose saves have not ended."""

    def delete(self, step: int, force: bool) -> None: ...
    def delete_abandoned(self) -> _Numbers: ...
    def roll_back(self, step: int) -> None: ...
    def restore(self, step: int | None, load: Callable[[int, str], Any]) -> tuple[int, Any, Sequence[tuple[int, Any]]]:
        """Calls `load` with the number and the name of a step, or with `None` of the newest good
        one. Gives its number, what `load` gave, and newer steps with the exception of each.
        """

    def wait_for_new(self, after: int | None, timeout: float | None, every: float) -> int | None:
        """Waits for a step newer than `after`, and keeps it from being deleted; `None` after the
        time.
        """

    def close(self) -> None:
        """Waits for all saves, and gives the folder up."""

@final
class DueStep:
    """A step that is to be saved now."""

    @property
    def name(self) -> str: ...
    @property
    def record(self) -> str:
        """The record for its metadata, as JSON."""

    @property
    def is_preempted(self) -> bool: ...
    def may_replace(self) -> bool:
        """Whether the save replaces what is at its path."""

    def base(self) -> str | None:
        """The name of the step whose files are linked."""

    def follow(self, handle: Any, blocked_seconds: float) -> Followed:
        """Takes over the save. `handle` is a `regrow.SaveHandle`."""

@final
class Followed:
    """The save of a step, and what follows it."""

    def is_done(self) -> bool: ...
    def wait(self, timeout: float | None) -> _Saved | None: ...

@final
class Together:
    """The processes that share a folder of steps."""

    def __new__(cls, root: _Place, job: Any) -> Together: ...
    def of_rank_0(self, purpose: str, look: Callable[[], str]) -> str:
        """The text that `look` gives on rank 0, in every process."""

def open(path: _Place, opening: Opening) -> Checkpoint:
    """Opens a checkpoint of any layout."""

def open_intact(
    path: _Place, opening: Opening, watch: _Watch
) -> tuple[Checkpoint, list[_Finding], list[_Finding], bool]:
    """Opens and verifies a damaged checkpoint; gives it with placeholders for lost leaves, why each
    is lost, what else is wrong, and whether the pytree is lost."""

def verify(path: _Place, opening: Opening, watch: _Watch) -> _Verified:
    """Reads and checks everything: what `Checkpoint.verify` gives."""

def verify_steps(path: _Place, opening: Opening, watch: _Watch) -> list[tuple[int, _Verified | None, _Finding | None]]:
    """The same of each committed step of a folder: its number, and what was found or why it
    cannot be opened.
    """

def verify_share(
    path: _Place, opening: Opening, share: tuple[int, int], watch: _Watch
) -> tuple[_Verified, list[tuple[int, str]]]:
    """Checks a share: its number, of how many. Gives what `verify` gives; of each finding, its
    place among those of all shares and what it says in one line."""

def literal(text: str) -> Any:
    """The value of a Python literal, read by the engine: as `ast.literal_eval`, without Python's
    compiler.
    """

def safetensors_open(path: _Place, separator: str | None) -> Checkpoint:
    """Opens a safetensors file as a flat dict, or with a separator as dicts in each other."""

def safetensors_open_mapped(path: _Place) -> tuple[Checkpoint, _Maps | None]:
    """Opens a safetensors file as a flat dict, with its files as private maps; for each leaf the
    number of its map, first byte and length in bytes. No maps where the file system has none."""

def safetensors_open_bytes(file: bytes, separator: str | None) -> Checkpoint:
    """The same of a file's bytes."""

def safetensors_bytes(structure: Structure, leaves: _LeavesIn, options: SaveRequest) -> bytes:
    """The bytes of the file that `save` would write."""

def paths(structure: Structure) -> list[str]:
    """The printed key path of every leaf."""

def idle_patterns(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """The patterns that match none of the paths."""

def match_paths(patterns: Sequence[str], paths: Sequence[str]) -> list[int]:
    """For each path the position of the first pattern that matches; -1 if none does."""

def msgpack_pack(value: object, max_chunk_size: int) -> bytes:
    """One msgpack object of raw dicts, lists and leaves, as Flax encodes it: dicts in their own
    order.

    Takes exactly ``dict`` (keys: any scalar), ``list``, ``None``, ``bool``, ``int``, ``float``,
    ``complex``, ``str``, ``bytes``, ``bytearray``, ``memoryview``, NumPy arrays and scalars,
    ``jax.Array``, ``ExtType`` and ``Timestamp``. Arrays that are values of dicts, or the root, and
    are longer than ``max_chunk_size`` bytes become maps of chunks.

    Raises:
        TypeError: ``can not serialize 'X' object``, for any other type; the key path follows.
        OverflowError: ``Integer value out of range``; the key path follows.
        ValueError: for an array of objects, records, text or void, and below 1024 levels, with the
            key path.
    """

def msgpack_unpack(data: Buffer) -> Any:
    """The object in ``data``: raw dicts with keys of any kind, lists, leaves.

    Arrays are read-only views of ``data`` and keep it alive; those in chunks are put together and
    writable. Of a key that is there twice the last value counts. Unknown extensions come as
    ``regrow._msgpack.ExtType``, extension -1 as ``regrow._msgpack.Timestamp``.

    Raises:
        ValueError: ``regrow._msgpack.MsgpackError``, with the offset and the key path of what is
            wrong.
    """

def local_path(path: _Place) -> str:
    """The local path that a path or URL names; raises for another storage than the local file
    system.
    """

def layout_for(path: _Place) -> str:
    """The layout that a save to a path has where the caller names none: that of its suffix, or
    the default layout.
    """

def refuse_folder_named_like_a_file(path: _Place, layout: str) -> None:
    """Raises if a folder at a path would have the name of a file."""

def set_mode(path: str | PathLike[str], mode: int) -> None:
    """Gives a local file or folder a mode, unless it has it: some file systems refuse every
    change.
    """

def sync_folder(folder: str | PathLike[str]) -> None:
    """Puts the names in a local folder on the disk, where its file system can."""

def put_file(path: str | PathLike[str], data: bytes, mode: int | None = None) -> None:
    """Writes a file, over another one if it is there: all of it or nothing, synced. A new file gets
    `mode`.
    """

def put_checkpoint_file(path: str | PathLike[str], data: bytes, overwrite: bool) -> None:
    """Writes a checkpoint of one file; with `overwrite`, over a checkpoint of any kind."""

def sweep_folder(folder: str | PathLike[str]) -> None:
    """Removes temporary files of killed writers from a folder, and puts back what they were
    replacing.
    """

def remove_folder(folder: str | PathLike[str]) -> None:
    """Removes a folder of any content. Its name is free first."""

def is_locked(folder: str | PathLike[str]) -> bool:
    """Whether a live writer of regrow has the lock of a temporary folder, or may have it."""

def pytree_identity(stem: str, manifest_suffix: str) -> str | None:
    """Tells one manifest of a stem from the next; `None` without one. Looks where a killed save
    left it, too.
    """

@final
class Attempt:
    """One attempt of a read."""

    def __new__(cls) -> Attempt: ...
    def watch(self, checkpoint: Checkpoint) -> Checkpoint:
        """Notes a checkpoint that the attempt reads. If another one takes its path, an error of the
        attempt counts as `ReplacedError`.
        """

def read_unreplaced(read: Callable[[Attempt], _T]) -> _T:
    """What `read` returns. `read` is called again if it raises because a checkpoint was
    replaced.
    """

def pytree_appears(stem: str, manifest_suffix: str) -> bool:
    """Whether the manifest of a stem is there, now or after the commits that are under way."""

def pytree_entries(
    stem: str, data_suffix: str, manifest_suffix: str, verify: bool
) -> tuple[str, list[tuple[str, str, tuple[int, ...], int]], list[str]]:
    """The data file, its arrays (path as a literal, type string, shape, offset) and the paths of
    empty dicts.
    """

_NpyHeader = tuple[str, bool, tuple[int, ...]]
_EquinoxTrailer = tuple[Structure, bytes, list[Any], dict[int, str], dict[int, str]]

def npy_header(descr: str, fortran_order: bool, shape: Sequence[int]) -> bytes:
    """Everything before the data of an npy record; `descr` is a Python literal."""

def parse_npy_header(prelude: bytes) -> _NpyHeader:
    """The header at the start of `prelude`."""

def jax_leaf_order(structure: Structure) -> list[int]:
    """For each leaf in JAX' order its position in the tree's own."""

def open_equinox(path: str) -> EquinoxFile:
    """Reads the headers of a leaf file."""

def write_equinox(
    path: str,
    line: bytes,
    records: Sequence[tuple[_NpyHeader, Any]],
    trailer: _EquinoxTrailer | None,
    durable: bool,
) -> None:
    """Writes a leaf file, all of it or nothing: the line in front, headers and bytes of the
    records, the trailer.
    """

@final
class EquinoxFile:
    """An opened leaf file: headers in memory, data on disk."""

    @property
    def headers(self) -> list[_NpyHeader]: ...
    @property
    def end(self) -> int: ...
    @property
    def is_broken(self) -> bool: ...
    @property
    def trailing_len(self) -> int: ...
    @property
    def trailer_damage(self) -> str | None: ...
    def names(self) -> list[str] | None:
        """The key path of each record, where regrow's trailer tells."""

    def read(self, wanted: Sequence[tuple[int, Any]]) -> None:
        """Reads the data of records, as it lies, into arrays of `uint8`; checked."""

@final
class StagedFile:
    """A file under a temporary name, for Python to write. `commit` gives it its own name."""

    def __new__(cls, path: str, durable: bool) -> StagedFile: ...
    @property
    def path(self) -> str | None: ...
    def commit(self) -> None:
        """Syncs the file and gives it its name."""

    def discard(self) -> None:
        """Removes it, unless it has its name."""

@final
class Slab:
    """Bytes that the engine holds, for the buffer protocol; read-only."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class MapBuffer:
    """A private map of a file, for the buffer protocol; writable: what is written to it does not
    reach the file.
    """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Checkpoint:
    """An opened checkpoint; leaves go by their position in flatten order."""

    @property
    def path(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def steps(self) -> list[int]: ...
    @property
    def items(self) -> list[tuple[str, str]]: ...
    def at(self, path: str) -> Checkpoint:
        """The subtree at a printed key path."""

    def transformed(
        self,
        rename: Sequence[tuple[str, str]],
        transpose: Sequence[tuple[str, Sequence[int]]],
        reshape: Sequence[tuple[str, Sequence[int]]],
    ) -> Checkpoint:
        """The leaves renamed, transposed and reshaped."""

    def item_files(self, item: str) -> list[tuple[str, bytes]]:
        """The files of an item, by their names below it."""

    @property
    def metadata(self) -> str | None: ...
    @property
    def objects(self) -> str | None:
        """What is to be known of objects of PyTorch beyond the pytree, as JSON."""

    @property
    def metrics(self) -> str | None: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def structure(self) -> Structure: ...
    @property
    def leaf_count(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    def leaf(self, leaf: int) -> tuple[str, str, int, int, tuple[int, ...]]:
        """Key path, stored name, kind, dtype and shape."""

    def tree(self) -> tuple[Structure, bytes, bytes, list[tuple[int, ...]], list[str]]:
        """The structure; kinds, dtypes, shapes and stored names of the leaves."""

    def first_keys(self, count: int) -> list[str] | None:
        """The first of `keys`, if they can be told without looking at all leaves."""

    def keys(self) -> list[str]:
        """A text for every leaf, by which `find` finds it and no other."""

    def paths(self) -> list[str]:
        """The printed key path of every leaf; two may be the same."""

    def placeholders(self, only: Sequence[str]) -> list[str]:
        """The printed key paths of leaves without data that a pattern matches; of all, without
        patterns.
        """

    def info(self, leaf: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, str | None, str]:
        """Chunk shape, write shape, sharding as JSON, coding."""

    def find(self, path: str) -> int:
        """The position of the leaf of this key path or stored name."""

    def read(self, leaf: int) -> _Leaves:
        """One leaf, checked."""

    def region(self, leaf: int, starts: Sequence[int], lens: Sequence[int]) -> Slab:
        """A hyper-rectangle of one leaf, in C order."""

    def load_regions(
        self,
        wanted: Sequence[tuple[int, int, Regions]],
        how: RegionsRequest,
        watch: _Watch,
    ) -> list[np.ndarray[Any, Any]]:
        """Regions of leaves (leaf, starts, lengths, number of the dtype), each an array of its
        own.
        """

    def select(self, load: LoadRequest) -> tuple[list[int], bytes, bytes, list[Any]]:
        """The leaves that a load would give, -1 where it gives none: positions, kinds, dtypes as
        wanted, shapes.
        """

    def load(self, load: LoadRequest, watch: _Watch) -> tuple[Structure, _Leaves]:
        """All of it, or a selection; the leaves of the positions `unread` come without data."""

    def load_into(
        self, load: LoadRequest, outs: list[np.ndarray[Any, Any] | None], watch: _Watch
    ) -> tuple[list[bool], _Leaves]:
        """Into arrays, one or `None` a leaf of the template; which of them were filled where
        they are, and the rest.
        """

    def is_replaced(self) -> bool:
        """Whether another checkpoint has taken the path since this one was opened."""

    def map_private(self, leaves: Sequence[int], unverified: bool, watch: _Watch) -> _Maps:
        """Private maps of the files of these leaves; for each leaf the number of its map, first
        byte and length.
        """
    def verify(self, watch: _Watch) -> _Verified:
        """Findings, checked bytes, number of leaves, whether every data byte is under a
        checksum, notes.
        """

    def overview(self) -> str:
        """The leaves as a table."""

@final
class TrakStore:
    """A TRAK store that is being worked on."""

    def __new__(
        cls,
        path: str,
        sizes: tuple[int, int],
        half_precision: bool,
        mode: str,
        metadata: str,
        sync_interval: float | None,
    ) -> TrakStore: ...
    def catalog(self) -> tuple[list[tuple[int, bool, bool]], str, list[str]]:
        """Models with their flags, experiments as JSON, what is wrong with the files."""

    def register(self, id: int, reset: bool) -> tuple[bool, bool]: ...
    def reset_arrays(self, id: int) -> None: ...
    def model(self, id: int) -> TrakArrays: ...
    def write_flags(self, id: int, is_finalized: bool) -> tuple[bool, bool]: ...
    def refresh_flags(self) -> None: ...
    def lower_flags(self, id: int, keep_featurized: bool, keep_finalized: bool) -> None: ...
    def delete_grads(self, id: int) -> None: ...
    def init_experiment(self, name: str, num_targets: int, id: int, reset: bool) -> tuple[int, bool]: ...
    def experiment(self, name: str, num_targets: int, id: int) -> TrakArrays: ...
    def finalize_scores(self, name: str, is_final: bool, allow_non_finite: bool) -> None: ...
    def bind_checkpoint(self, id: int, identity: str) -> None: ...

@final
class TrakArrays:
    """The open arrays of a model, or of an experiment for one model."""

    def describe(self) -> list[tuple[str, str, str, int, int, int]]:
        """Key, path, dtype, rows, columns and offset of the data of each; the mask last, as
        ``mask``.
        """

    def write_rows(self, key: str, rows: Any, data: Any) -> int | None:
        """Gives the first row of an array with a mask that holds NaN or infinity."""

    def mark(self, rows: Any, is_done: bool) -> None: ...
    def flush(self) -> None: ...
    def count_done(self) -> int: ...
    def missing(self) -> list[int]: ...

def trak_repair(path: str, metadata: str | None, half_precision: bool | None, recompute_zero_rows: bool) -> list[str]:
    """Repairs a store; says what was done."""

def load_regions_into(
    checkpoint: Checkpoint,
    wanted: Sequence[tuple[int, int, Regions]],
    outs: Sequence[np.ndarray[Any, Any]],
    how: RegionsRequest,
    watch: _Watch,
) -> list[bool]:
    """Reads regions (leaf, number of the dtype, what of it) to contiguous arrays that share no
    memory.
    """
