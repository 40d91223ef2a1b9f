"""The rare settings of calls: for one call, or for all calls of a block.

    regrow.save(path, tree, options=regrow.Options(budget_bytes=2**28))

    with regrow.options(budget_bytes=2**28, handlers=handlers):
        regrow.save(path, tree)
        regrow.load(path)

A setting of the call takes precedence over the same setting of the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Literal

from .._errors import InvalidArgumentError, failure
from .._jax._single_replica import SingleReplica
from .._jobs._job import Job
from .._load._opening import TrustedKeys
from .._load._salvage import Salvage
from .._tree._handlers import LeafRegistry
from . import _arguments
from ._cache import Cache
from ._location import StrPath
from ._record import Record
from ._report import LoadReport


class Options(Record, frozen=True):
    """Rare settings. A field that the call does not use is an error in ``options=``, and ignored
    in a block.
    """

    budget_bytes: int | None = None
    """Extra memory, at least 1 MiB; 64 MiB if `None`."""
    handlers: LeafRegistry | None = None
    """The handlers of leaves of your own types. A load without them gives what the leaves are
    made of.
    """
    job: Job | None = None
    """The processes that save together, or load together with `single_replica` or `in_turns`;
    see `save`.
    """

    replica_parallel: bool = False
    """Each replica of a replicated array writes a slice. By default the first replica writes the
    whole array.
    """
    wait: float = _arguments.WAIT_DEFAULT
    """How many seconds to wait for another process that changes the same checkpoint, before the
    call raises `BusyError`.
    """
    keep_cached: bool = False
    """Keep the new files in the page cache, so that the next load reads memory instead of the disk.
    The save takes longer, and the system needs memory for the files. No effect in buckets."""
    trust_base: bool = False
    """With ``base=``: link the files of the base without a check."""
    copy: Literal["mutable", "all", "nothing"] = "mutable"
    """What `save_async` copies before it returns. ``"nothing"``: do not change any array until the
    save has ended. ``"all"`` also copies JAX arrays, so that JAX can donate their memory."""
    check_source: bool = False
    """To find a bug: `save_async` hashes what it saves twice, and raises `SourceChangedError` for a
    leaf that the program has changed in between."""

    mmap: bool = False
    """Map the files of all leaves that are stored raw, even if the page cache lacks the files. If
    another program changes such a file in place, the arrays change. If the file gets shorter, a
    read of the arrays ends this program with SIGBUS.
    """
    checksums: bool = True
    """Check data against its checksums."""
    region: Any = None
    """Parts of arrays: a dict of globs with a tuple of slices for each, or a function ``(key path,
    shape) -> slices``, `None` for the whole leaf. Only these parts are read."""
    pad_or_truncate: bool = False
    """Fit arrays into the shapes of `like`, or of `region`: pad with zeros at the end, or drop
    the rest.
    """
    placeholders: bool = False
    """Give ``...`` for leaves that were saved as placeholders, without data, instead of an
    error.
    """
    salvage: Salvage = False
    """Load the intact leaves of a damaged checkpoint. The others are ``...``, or stay as they are
    in `like`. A `SalvageWarning` lists them; a function gets the `SalvageReport` instead:
    ``salvage=print``."""
    nest: str | None = None
    """Split flat names, such as those of an ``.npz``, into dicts of dicts: ``"/"`` makes ``{"a":
    {"b": ...}}`` of ``a/b``."""
    on_report: Callable[[LoadReport], object] | None = None
    """Gets a `LoadReport` at the end: ``on_report=print``."""
    single_replica: SingleReplica | None = None
    """In a job of JAX: one replica reads the shards that all replicas hold, and sends them to the
    others. All processes call the load with the same arguments.
    """
    in_turns: bool = False
    """The processes of one host read one after the other, so that their extra memory is needed
    once. All processes of the job call the load."""

    arrays_only: bool = False
    """Read the arrays without the pytree that is kept beside them, for files whose pytree is
    damaged.
    """
    lost_files: Literal["warn", "error"] = "warn"
    """The treatment of a checkpoint that has lost files and can still be read."""
    ignore_seal: bool = False
    """Read a sealed checkpoint that was changed on purpose."""
    trusted_keys: TrustedKeys = None
    """Public Ed25519 keys, as text (PEM, a line of OpenSSH, 64 hex digits) or paths of files. A
    checkpoint that none of their owners has signed is an error, and each block is checked against
    the signature."""
    cache: StrPath | Cache | None = None
    """A local folder, or a `regrow.Cache`, that keeps blocks read from a bucket or a web server."""


_FIELDS = {
    "save load": "budget_bytes handlers job",
    "save": "replica_parallel copy check_source",
    "save convert": "wait keep_cached trust_base",
    "load open": "mmap cache",
    "load": "checksums region pad_or_truncate placeholders on_report single_replica in_turns",
    "load convert": "salvage nest",
    "load open verify convert": "arrays_only",
    "load open convert": "lost_files",
    "load open verify": "ignore_seal trusted_keys",
}
"""Fields by the calls that they apply to."""

_CALLS = {field: calls.split() for calls, fields in _FIELDS.items() for field in fields.split()}

_DEFAULTS = Options()
_block: ContextVar[Options] = ContextVar("regrow.options", default=_DEFAULTS)


@contextlib.contextmanager
def options(**settings: Any) -> Iterator[Options]:
    """Sets fields of `Options` for all calls of a block, in this thread or task.

    Raises:
        InvalidArgumentError: for a field that `Options` does not have.
    """
    for name in settings:
        if name not in Options.__annotations__:
            help = f"the fields are: {', '.join(Options.__annotations__)}"
            raise failure(InvalidArgumentError, f"options() has no field {name!r}", help=help)
    token = _block.set(_block.get().replaced(**settings))
    try:
        yield _block.get()
    finally:
        _block.reset(token)


def job_of(job: Any, given: Any) -> Any:
    """The job that a call names; wrong settings are not refused here, since the other processes
    are not told yet.
    """
    if job is None and isinstance(given, Options):
        job = given.job
    return _block.get().job if job is None else job


def chosen(given: Any, call: str) -> Options:
    """The settings of a call: the fields that ``options=`` sets, and all other fields from the
    block.

    Raises:
        InvalidArgumentError: for a field of `given` that the call does not use.
    """
    block = _block.get()
    if given is None:
        return block
    if not isinstance(given, Options):
        raise _arguments.wrong("options", given, "a regrow.Options, or None")
    own = {}
    for name, calls in _CALLS.items():
        value, default = getattr(given, name), getattr(_DEFAULTS, name)
        if value is default or (type(value) is type(default) and value == default):
            continue
        if call not in calls:
            raise InvalidArgumentError(f"Options({name}=...) has no effect on `{call}`: leave it out")
        own[name] = value
    return block.replaced(**own)
