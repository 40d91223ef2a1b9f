"""The engine. Data crosses in columns: `_tree` and `_leaves` explain them."""

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
"""Name, path, layout, state, steps; files, bytes and seconds since 1970, if the storage knows
them; the problem, if there is one.
"""

_Maps = tuple[list[MapBuffer], list[tuple[int, int, int] | None]]
_Watch = tuple[bool, Callable[[int, int], object] | None]
_Loss = tuple[str, str, str]
_Saved = tuple[str, int, int, int, float, list[tuple[str, float, int, float]], str, int, list[str], list[_Loss]]

def command(arguments: list[str], packages: Callable[[], list[tuple[str, str | None, str]]]) -> int:
    """Runs the command `regrow` and returns its exit code. The first argument is the program name.

    ``packages`` is called if it wants to know: name, version if it is installed, and use of each.
    """

@final
class Location:
    """A storage with its options, and a path in it. Every function with a `_Place` parameter
    accepts one.
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
        """Returns ``file``, ``folder`` or ``other``, or `None` if nothing exists at the path."""

    def entries(self) -> list[tuple[str, bool]]:
        """The names in the folder, sorted, and whether each leads to a folder."""

    def read(self, len_max_bytes: int) -> bytes | None:
        """Returns the bytes of a small file, at most the given number, or `None` if the file does
        not exist.
        """

    def write(self, data: bytes) -> None:
        """Writes a small file and replaces an existing one. A reader sees either the old or the new
        content.
        """

@final
class Cache:
    """A folder on a local disk that keeps blocks read from buckets."""

    def __new__(cls, folder: str, max_size: str) -> Cache: ...
    def report(self) -> tuple[int, int, int]:
        """Returns the bytes read from the folder, the bytes fetched because the folder did not have
        them, and the number of damaged blocks.
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
    """A coordinator implemented by the engine. It follows the protocol `regrow.Coordinator`."""

    @staticmethod
    def single() -> Coordinator:
        """Returns the coordinator of a job with one process."""

    @staticmethod
    def folder(path: _Place, rank: int, size: int) -> Coordinator:
        """Returns a coordinator that uses a folder which all processes see."""

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
    """One save or restore by all processes. `wait` is the time-out in seconds, and the prefix of
    the keys.
    """

    def __new__(cls, coordinator: Any, target: _Place, purpose: str, wait: tuple[float, str | None]) -> Session: ...
    def gather(self, phase: str, value: bytes) -> list[bytes] | None:
        """Returns the values of all processes on rank 0."""

    def broadcast(self, phase: str, value: bytes) -> bytes:
        """Returns the value of rank 0 on every process."""

    def agree(self, phase: str, error: tuple[str, str] | None) -> None:
        """Raises in every process if one of them passes an error, which is its kind and its
        message.
        """

    def post(self, phase: str, value: bytes) -> None:
        """Hands a value to the process that asks for it."""

    def receive(self, phase: str, rank: int) -> bytes:
        """Returns the value that another process has posted."""

    def shares_storage(self, target: _Place) -> None:
        """Raises in every process unless all of them see what rank 0 writes there."""

    def finish(self) -> None:
        """Ends the session as a success."""

    def leave(self) -> None:
        """Ends the session. It counts as a failure if `finish` was not called before."""

@final
class Structure:
    """The nodes of a tree, without its leaves."""

    @property
    def node_kinds(self) -> bytes:
        """The kind of every node, in preorder: positions in `NODE_KINDS`."""

@final
class Flat:
    """A flattened tree, and the data to build each of its containers again."""

    @property
    def structure(self) -> Structure: ...
    @property
    def leaves(self) -> list[Any]: ...
    def with_leaves(self, leaves: list[Any]) -> Any:
        """Returns the same containers with other leaves."""

@final
class TemplateLeaves:
    """The requests that the leaves of a template make."""

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
    """Builds a tree. ``other`` builds every node that is no dict, list, tuple or `None`.
    ``handled`` is a pair of keys and a function that builds the value of a dict with exactly these
    keys.
    """

def leaf_columns(leaves: list[Any], hooks: tuple[Any, ...]) -> _LeavesIn:
    """Describes leaves for the engine. Hooks: kinds by class, numbers by dtype, ``other(leaf, at)``
    for the kind, value, note and sharding of all other leaves, whether a class exposes the memory
    of its arrays, for a sharding its text and whether its arrays are contiguous, and for JAX the
    class of shardings on one device and the function that exports an array by DLPack. Exported
    arrays are capsules, from which one save can take the tensor.
    """

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
    """Runs saves one after the other, on a thread of its own."""

    def __new__(cls) -> AsyncSaver: ...
    def save(
        self,
        path: _Place,
        structure: Structure,
        leaves: _LeavesIn,
        options: SaveRequest,
        how: BackgroundRequest,
    ) -> SaveHandle | None:
        """Takes the snapshot. Returns `None` if the save is to be skipped."""

    def wait(self, timeout: float | None) -> bool:
        """Waits until nothing is left to save. Returns `False` if that takes longer than `timeout`
        seconds.
        """

    def is_busy(self) -> bool: ...
    def running(self) -> tuple[str, int, int] | None:
        """Returns the target of the running save, the bytes done, and the total bytes."""

    def release_memory(self) -> None: ...
    def wait_for_room(self, when_busy: str) -> float:
        """Waits until a new save need not wait for an earlier one. Returns the seconds it waited."""

    def save_items(
        self,
        items: ItemsSave,
        how: BackgroundRequest,
        before_commit: Callable[[], object] | None = None,
    ) -> SaveHandle:
        """Adds the trees that `items` keeps, as they are now, and commits the checkpoint once
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
        """Keeps a tree until `AsyncSaver.save_items` adds it."""

    def json(self, name: str, text: str, file: str | None) -> None:
        """Adds a JSON document with this text, in a file of the given or the usual name."""

    def metrics(self, text: str) -> None:
        """Adds metrics. The text is a JSON object."""

    def file(self, name: str, file: str, data: bytes) -> None:
        """Adds one file of an item."""

    def copy_of(self, name: str, source: str) -> None:
        """Adds a copy of a local file or folder."""

    def folder(self, name: str) -> str:
        """Returns a local folder in which the caller can write the files of an item until the
        commit.
        """

    def files(self, item: str) -> None: ...
    def handler(self, item: str, handler: str) -> None:
        """Sets the class with which Orbax reads an item."""

    def metadata(self, text: str) -> None:
        """Adds members to the metadata of the checkpoint itself. The text is a JSON object."""

    def commit(self, gets_signals: bool) -> _Saved:
        """Gives the checkpoint its final name. Returns the report."""

    def fail(self, kind: str, what: str) -> None: ...
    def drop(self) -> None:
        """Abandons the save and leaves nothing behind."""

    def cancel(self) -> None:
        """Asks the running work to stop."""

    def progress(self) -> tuple[int, int]:
        """Returns the bytes done and the total bytes."""

@final
class SaveHandle:
    """A save in the background."""

    @property
    def path(self) -> str: ...
    @property
    def blocked(self) -> tuple[float, float, int]:
        """Returns the seconds of the call, the seconds in which the call waited for an earlier
        save, and the bytes copied.
        """

    def progress(self) -> tuple[str, int, int]:
        """Returns the stage, the bytes done and the total bytes."""

    def is_done(self) -> bool: ...
    def cancel(self) -> None: ...
    def wait(self, timeout: float | None) -> _Saved | None:
        """Returns the report, or `None` if the save takes longer than `timeout` seconds."""

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
    """Reads a file of rules. Returns the layout, its options as JSON, globs, renames, casts,
    transposes, reshapes, and whether the conversion may lose something.
    """

def plan_convert(
    source: _Place, target: _Place, save: SaveRequest, convert: ConvertRequest, all_steps: bool
) -> list[
    tuple[int | None, tuple[list[tuple[str, str | None, _Info, _Info]], list[tuple[str, str, str]], list[_Finding]]]
]:
    """Returns the step (if all are converted), the result for each leaf, the losses that the target
    causes, and the losses that the source already has. Raises the errors with which `convert` would
    refuse.
    """

def convert(
    source: _Place,
    target: _Place,
    save: SaveRequest,
    convert: ConvertRequest,
    all_steps: bool,
    watch: _Watch,
) -> list[tuple[int | None, tuple[_Saved, list[tuple[str, str, str]], list[_Finding]]]]:
    """Converts. Returns the step (if all are converted), the result of `save`, the losses that the
    target causes, and the losses that the source already has.
    """

@final
class SharedConvert:
    """A conversion by several processes, which this process has started."""

    def __new__(
        cls, source: _Place, target: _Place, save: SaveRequest, convert: ConvertRequest, gets_signals: bool
    ) -> SharedConvert: ...
    def about(self, count: int) -> tuple[str, int | None, list[int]]:
        """Returns the ticket with which workers join, the step that was opened, and the bytes of
        each of `count` shares.
        """

    def finish(
        self, shares: list[tuple[int, int, int, list[int]]], gets_signals: bool
    ) -> tuple[_Saved, list[tuple[str, str, str]]]:
        """Builds one checkpoint from the results of `convert_share` for all shares. Returns the
        result of `convert`.
        """

    def give_up(self) -> None:
        """Removes the written files, unless the conversion is finished."""

def convert_share(
    source: _Place,
    target: _Place,
    save: SaveRequest,
    convert: ConvertRequest,
    share: tuple[str, int, int],
    watch: _Watch,
) -> tuple[int, int, int, list[int]]:
    """Writes one share of a conversion, given by its ticket, its number and the number of shares.
    Returns the number of the writer, the bytes of its files if only the writer knows them, and the
    bytes that a base already had.
    """

_Form = tuple[str, str, tuple[int, ...]]
_Distance = tuple[
    tuple[int, int, int, int],
    tuple[list[int], list[int]],
    tuple[float | None, float | None, int | None, float | None],
    tuple[tuple[int, ...], list[list[float]]] | None,
]

def held(structure: Structure, leaves: _LeavesIn) -> Checkpoint:
    """Returns a pytree as a checkpoint in memory."""

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
    ignore dtypes, to check types, to test only equality, to list equal leaves; budget. Returns the
    paths, the verdict, the leaves, counts by status, containers, leaves of another kind, findings
    by side, bytes read, and the report as text.
    """

@final
class ReportPage:
    """A page, and the data on it."""

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
        """Key paths, with the number of inspected elements, NaNs, infinities and zeros, and the
        lowest, highest, mean, standard deviation and norm.
        """

def report(
    subjects: Sequence[Checkpoint | _Place],
    request: ReportRequest,
    watch: _Watch,
) -> ReportPage:
    """Reads the first checkpoint and compares it with the others."""

def copy(source: _Place, target: _Place, request: CopyRequest, watch: _Watch) -> tuple[str, int, int, int, float]:
    """Copies. Returns the path, the files, the bytes, the bytes that already existed, and the
    seconds.
    """

def seal(path: _Place, step: int | None, remove: bool, wait: float, watch: _Watch) -> tuple[str, int, int, bool]:
    """Returns the path, the files, the bytes, and whether anything has changed."""

def add_parity(
    path: _Place, ratio: str, step: int | None, remove: bool, wait: float, watch: _Watch
) -> tuple[str, int, int, int, bool]:
    """Returns the path, the files, the bytes, the bytes of parity, and whether anything has
    changed.
    """

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
    """Returns the path, the files, the bytes, and the public keys of all signers."""

def public_key(text: str) -> str:
    """Returns the hex digits of a public key, or of the key in a file."""

def remove(path: _Place, unfinished: bool, force: bool, wait: float) -> tuple[str, int, int]:
    """Removes a checkpoint or the leftovers of a save. Returns the path, the files and the bytes."""

def list_checkpoints(folder: _Place) -> list[_Listed]:
    """Returns the checkpoints directly in a folder."""

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
    """A folder of steps. Each name form is a prefix and a width. The first form is used for new
    names. With `None`, the forms of the folder are used.
    """

    def __new__(
        cls,
        root: _Place,
        forms: Sequence[tuple[str | None, int | None]] | None,
        given: Sequence[tuple[int, str]] | None = None,
    ) -> Steps: ...
    @property
    def root(self) -> Location: ...
    def name(self, step: int) -> str:
        """Returns the name of a new step."""

    def list(self) -> _StepList:
        """Returns the committed steps by number, the names of saves that never ended, and notes."""

    def find(self, step: int) -> _Step | None: ...
    def step(self, step: int) -> _Step:
        """Raises if the step does not exist."""

    def leased(self) -> _Numbers:
        """Returns the steps that have readers."""

    def lease(self, step: int) -> StepLease: ...
    def lock(self) -> WriterLock: ...
    def delete(self, steps: Sequence[int], aside: str | None, also_leased: bool) -> _Deletions: ...
    def refresh(self) -> None:
        """Updates the pointer from the list of steps, and removes the leftovers of killed saves and
        deletions.
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
    """The steps of a folder that only this run writes to. `options` has the fields of
    `regrow._manager._manager.RunOptions`.
    """

    def __new__(cls, root: _Place, options: Any) -> Run: ...
    @property
    def steps(self) -> Steps:
        """Returns the folder, without the other processes of a job."""

    def numbers(self) -> _Numbers:
        """Returns the committed steps of any history."""

    def latest(self) -> int | None:
        """Returns the newest step of the current history."""

    def abandoned(self) -> _Numbers:
        """Returns the steps of other histories."""

    def best(self, metric: str, is_max: bool) -> int | None:
        """Returns the best step of the current history by a metric."""

    def should_save(self, step: int) -> bool:
        """Returns whether `begin` would begin the step."""

    def begin(
        self, step: int, force: bool, overwrite: bool, metrics: str, raised: BaseException | None
    ) -> DueStep | None:
        """Begins a step, if it is due. `metrics` is a JSON object. `raised` is raised in all
        processes.
        """

    def wait_for_grace(self, step: int) -> None:
        """Waits for the save of a program that is asked to end."""

    def wait(self, timeout: float | None) -> bool:
        """Waits for all saves. Returns `False` after `timeout` seconds."""

    def failure(self) -> BaseException | None:
        """Returns the first exception of a save that no call has raised yet."""

    def pending(self) -> _Numbers:
        """Returns the steps whose saves have not ended."""

    def delete(self, step: int, force: bool) -> None: ...
    def delete_abandoned(self) -> _Numbers: ...
    def roll_back(self, step: int) -> None: ...
    def restore(self, step: int | None, load: Callable[[int, str], Any]) -> tuple[int, Any, Sequence[tuple[int, Any]]]:
        """Calls `load` with the number and the name of a step, or with `None` for the newest good
        one. Returns the number of the step, the result of `load`, and the newer steps with the
        exception of each.
        """

    def wait_for_new(self, after: int | None, timeout: float | None, every: float) -> int | None:
        """Waits for a step newer than `after`, and protects it from deletion. Returns `None` after
        the time-out.
        """

    def close(self) -> None:
        """Waits for all saves and releases the folder."""

@final
class DueStep:
    """A step that must be saved now."""

    @property
    def name(self) -> str: ...
    @property
    def record(self) -> str:
        """The record for the metadata of the step, as JSON."""

    @property
    def is_preempted(self) -> bool: ...
    def may_replace(self) -> bool:
        """Whether the save replaces an existing step at its path."""

    def base(self) -> str | None:
        """The name of the step whose files are linked."""

    def follow(self, handle: Any, blocked_seconds: float) -> Followed:
        """Takes over the save. `handle` is a `regrow.SaveHandle`."""

@final
class Followed:
    """The save of a step, together with the work after it."""

    def is_done(self) -> bool: ...
    def wait(self, timeout: float | None) -> _Saved | None: ...

@final
class Together:
    """The processes that share a folder of steps."""

    def __new__(cls, root: _Place, job: Any) -> Together: ...
    def of_rank_0(self, purpose: str, look: Callable[[], str]) -> str:
        """Returns, in every process, the text that `look` returns on rank 0."""

def open(path: _Place, opening: Opening) -> Checkpoint:
    """Opens a checkpoint of any layout."""

def open_intact(
    path: _Place, opening: Opening, watch: _Watch
) -> tuple[Checkpoint, list[_Finding], list[_Finding], bool]:
    """Opens and verifies a damaged checkpoint. Returns it with placeholders for lost leaves, the
    reason for each lost leaf, the other findings, and whether the pytree is lost.
    """

def verify(path: _Place, opening: Opening, watch: _Watch) -> _Verified:
    """Reads and checks everything. Returns the result of `Checkpoint.verify`."""

def verify_steps(path: _Place, opening: Opening, watch: _Watch) -> list[tuple[int, _Verified | None, _Finding | None]]:
    """Verifies each committed step of a folder. Returns its number, and its result or the reason
    why it cannot be opened.
    """

def verify_share(
    path: _Place, opening: Opening, share: tuple[int, int], watch: _Watch
) -> tuple[_Verified, list[tuple[int, str]]]:
    """Checks one share, given by its number and the number of shares. Returns the result of
    `verify`, and for each finding its place among the findings of all shares and its text in one
    line.
    """

def literal(text: str) -> Any:
    """Returns the value of a Python literal. The engine reads it as `ast.literal_eval` does,
    without Python's compiler.
    """

def safetensors_open(path: _Place, separator: str | None) -> Checkpoint:
    """Opens a safetensors file as a flat dict, or with a separator as nested dicts."""

def safetensors_open_mapped(path: _Place) -> tuple[Checkpoint, _Maps | None]:
    """Opens a safetensors file as a flat dict, with its files as private maps. Returns for each
    leaf the number of its map, its first byte and its length in bytes. Returns no maps if the file
    system has none.
    """

def safetensors_open_bytes(file: bytes, separator: str | None) -> Checkpoint:
    """Opens the bytes of a safetensors file in the same way."""

def safetensors_bytes(structure: Structure, leaves: _LeavesIn, options: SaveRequest) -> bytes:
    """Returns the bytes of the file that `save` would write."""

def paths(structure: Structure) -> list[str]:
    """Returns the printed key path of every leaf."""

def idle_patterns(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Returns the patterns that match none of the paths."""

def match_paths(patterns: Sequence[str], paths: Sequence[str]) -> list[int]:
    """Returns for each path the position of the first pattern that matches, or -1 if none does."""

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
    """Returns the local path that a path or URL names. Raises if it names another storage than the
    local file system.
    """

def layout_for(path: _Place) -> str:
    """Returns the layout of a save whose caller names none: the layout of the path's suffix, or the
    default layout.
    """

def refuse_folder_named_like_a_file(path: _Place, layout: str) -> None:
    """Raises if a folder at this path would have the name of a file."""

def set_mode(path: str | PathLike[str], mode: int) -> None:
    """Sets the mode of a local file or folder, unless it already has this mode: some file systems
    refuse every change.
    """

def sync_folder(folder: str | PathLike[str]) -> None:
    """Syncs the names in a local folder to the disk, if its file system can."""

def put_file(path: str | PathLike[str], data: bytes, mode: int | None = None) -> None:
    """Writes a file or replaces an existing one, completely or not at all, and syncs it. A new file
    gets the mode `mode`.
    """

def put_checkpoint_file(path: str | PathLike[str], data: bytes, overwrite: bool) -> None:
    """Writes a checkpoint of one file. With `overwrite`, it replaces a checkpoint of any kind."""

def sweep_folder(folder: str | PathLike[str]) -> None:
    """Removes temporary files of killed writers from a folder, and restores the files that they
    were replacing.
    """

def remove_folder(folder: str | PathLike[str]) -> None:
    """Removes a folder with any content. The name is free before the content is removed."""

def is_locked(folder: str | PathLike[str]) -> bool:
    """Returns whether a live writer of regrow has, or may have, the lock of a temporary folder."""

def pytree_identity(stem: str, manifest_suffix: str) -> str | None:
    """Returns a text that differs between two manifests of a stem, or `None` if there is no
    manifest. Also finds the manifest of a killed save.
    """

@final
class Attempt:
    """One attempt of a read."""

    def __new__(cls) -> Attempt: ...
    def watch(self, checkpoint: Checkpoint) -> Checkpoint:
        """Records a checkpoint that the attempt reads. If another checkpoint takes its path, an
        error of the attempt counts as `ReplacedError`.
        """

def read_unreplaced(read: Callable[[Attempt], _T]) -> _T:
    """Returns the result of `read`. Calls `read` again if it raises because a checkpoint was
    replaced.
    """

def pytree_appears(stem: str, manifest_suffix: str) -> bool:
    """Returns whether the manifest of a stem exists, now or after the commits that are in progress."""

def pytree_entries(
    stem: str, data_suffix: str, manifest_suffix: str, verify: bool
) -> tuple[str, list[tuple[str, str, tuple[int, ...], int]], list[str]]:
    """Returns the data file, its arrays (path as a literal, type string, shape, offset) and the
    paths of empty dicts.
    """

_NpyHeader = tuple[str, bool, tuple[int, ...]]
_EquinoxTrailer = tuple[Structure, bytes, list[Any], dict[int, str], dict[int, str]]

def npy_header(descr: str, fortran_order: bool, shape: Sequence[int]) -> bytes:
    """Returns everything before the data of an npy record. `descr` is a Python literal."""

def parse_npy_header(prelude: bytes) -> _NpyHeader:
    """Parses the header at the start of `prelude`."""

def jax_leaf_order(structure: Structure) -> list[int]:
    """Returns for each leaf in JAX' order its position in the order of the tree."""

def open_equinox(path: str) -> EquinoxFile:
    """Reads the headers of a leaf file."""

def write_equinox(
    path: str,
    line: bytes,
    records: Sequence[tuple[_NpyHeader, Any]],
    trailer: _EquinoxTrailer | None,
    durable: bool,
) -> None:
    """Writes a leaf file, completely or not at all: the first line, the headers and bytes of the
    records, and the trailer.
    """

@final
class EquinoxFile:
    """An opened leaf file. The headers are in memory, the data is on disk."""

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
        """Returns the key path of each record, if regrow's trailer contains it."""

    def read(self, wanted: Sequence[tuple[int, Any]]) -> None:
        """Reads the stored bytes of records into arrays of `uint8`, and checks them."""

@final
class StagedFile:
    """A file with a temporary name, which Python writes. `commit` gives it its final name."""

    def __new__(cls, path: str, durable: bool) -> StagedFile: ...
    @property
    def path(self) -> str | None: ...
    def commit(self) -> None:
        """Syncs the file and gives it its final name."""

    def discard(self) -> None:
        """Removes the file, unless it already has its final name."""

@final
class Slab:
    """Bytes that the engine owns, exposed by the buffer protocol; read-only."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class MapBuffer:
    """A private map of a file, exposed by the buffer protocol. It is writable, and writes do not
    reach the file.
    """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Checkpoint:
    """An opened checkpoint. Each leaf is named by its position in flatten order."""

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
        """Returns the subtree at a printed key path."""

    def transformed(
        self,
        rename: Sequence[tuple[str, str]],
        transpose: Sequence[tuple[str, Sequence[int]]],
        reshape: Sequence[tuple[str, Sequence[int]]],
    ) -> Checkpoint:
        """Returns the checkpoint with its leaves renamed, transposed and reshaped."""

    def item_files(self, item: str) -> list[tuple[str, bytes]]:
        """Returns the files of an item, by their names relative to the item."""

    @property
    def metadata(self) -> str | None: ...
    @property
    def objects(self) -> str | None:
        """Returns, as JSON, the facts about objects of PyTorch that the pytree does not contain."""

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
        """Returns the key path, stored name, kind, dtype and shape."""

    def tree(self) -> tuple[Structure, bytes, bytes, list[tuple[int, ...]], list[str]]:
        """Returns the structure, and the kinds, dtypes, shapes and stored names of the leaves."""

    def first_keys(self, count: int) -> list[str] | None:
        """Returns the first `count` of `keys`, or `None` if they depend on the paths of all leaves."""

    def keys(self) -> list[str]:
        """Returns a text for every leaf, with which `find` finds exactly this leaf."""

    def paths(self) -> list[str]:
        """Returns the printed key path of every leaf. Two leaves may have the same."""

    def placeholders(self, only: Sequence[str]) -> list[str]:
        """Returns the printed key paths of the leaves without data that match a pattern, or of all
        leaves without data if there are no patterns.
        """

    def info(self, leaf: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, str | None, str]:
        """Returns the chunk shape, the write shape, the sharding as JSON, and the coding."""

    def find(self, path: str) -> int:
        """Returns the position of the leaf with this key path or stored name."""

    def read(self, leaf: int) -> _Leaves:
        """Reads one leaf and checks it."""

    def region(self, leaf: int, starts: Sequence[int], lens: Sequence[int]) -> Slab:
        """Reads a hyper-rectangle of one leaf, in C order."""

    def load_regions(
        self,
        wanted: Sequence[tuple[int, int, Regions]],
        how: RegionsRequest,
        watch: _Watch,
    ) -> list[np.ndarray[Any, Any]]:
        """Reads regions of leaves (leaf, starts, lengths, number of the dtype), each into an array
        of its own.
        """

    def select(self, load: LoadRequest) -> tuple[list[int], bytes, bytes, list[Any]]:
        """Returns the leaves that a load would return, with -1 where it returns none: positions,
        kinds, requested dtypes, shapes.
        """

    def load(self, load: LoadRequest, watch: _Watch) -> tuple[Structure, _Leaves]:
        """Loads all leaves or a selection. The leaves at the positions `unread` come without data."""

    def load_into(
        self, load: LoadRequest, outs: list[np.ndarray[Any, Any] | None], watch: _Watch
    ) -> tuple[list[bool], _Leaves]:
        """Loads into arrays: one array, or `None`, for each leaf of the template. Returns which
        arrays were filled in place, and the other leaves.
        """

    def is_replaced(self) -> bool:
        """Returns whether another checkpoint has taken the path since this one was opened."""

    def map_private(self, leaves: Sequence[int], unverified: bool, watch: _Watch) -> _Maps:
        """Returns private maps of the files of these leaves, and for each leaf the number of its
        map, its first byte and its length.
        """
    def verify(self, watch: _Watch) -> _Verified:
        """Returns the findings, the checked bytes, the number of leaves, whether a checksum covers
        every data byte, and notes.
        """

    def overview(self) -> str:
        """Returns the leaves as a table."""

@final
class TrakStore:
    """A TRAK store that is open for work."""

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
        """Returns the models with their flags, the experiments as JSON, and the problems of the
        files.
        """

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
        """Returns the key, path, dtype, rows, columns and data offset of each array. The mask comes
        last, as ``mask``.
        """

    def write_rows(self, key: str, rows: Any, data: Any) -> int | None:
        """Writes rows. For an array with a mask, returns the first written row that contains NaN or
        infinity.
        """

    def mark(self, rows: Any, is_done: bool) -> None: ...
    def flush(self) -> None: ...
    def count_done(self) -> int: ...
    def missing(self) -> list[int]: ...

def trak_repair(path: str, metadata: str | None, half_precision: bool | None, recompute_zero_rows: bool) -> list[str]:
    """Repairs a store and returns the repairs as text."""

def load_regions_into(
    checkpoint: Checkpoint,
    wanted: Sequence[tuple[int, int, Regions]],
    outs: Sequence[np.ndarray[Any, Any]],
    how: RegionsRequest,
    watch: _Watch,
) -> list[bool]:
    """Reads regions (leaf, number of the dtype, region) into contiguous arrays that share no
    memory.
    """
