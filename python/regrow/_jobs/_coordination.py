"""Messages between the processes of a job, through a service that the job has already.

    JAX     jax.distributed.initialize() was called     its coordination service
    torch   torch.distributed is initialised            its default store
    MPI     mpi4py.MPI is imported                      messages on a copy of COMM_WORLD
    Folder  given by the caller                         files or objects in a folder that all processes see

`coordinator()` takes the first service that is ready and has more than one process. It never
imports JAX, torch or MPI. `Coordinator` is the protocol of a service: put a value under a new key,
and get values.
"""

from __future__ import annotations

import importlib
import sys
from typing import Protocol, runtime_checkable

from .. import _native
from .._core._arguments import count, wrong
from .._core._location import StrPath, place

_SERVICES = {
    "jax": "_coordination_jax",
    "torch.distributed": "_coordination_torch",
    "mpi4py.MPI": "_coordination_mpi",
}
"""The module of each service, by the module that the program imports for it."""


@runtime_checkable
class Coordinator(Protocol):
    """A service through which the processes of a job exchange messages. Any thread may call it.

    Keys are names of ASCII letters, digits, ``-``, ``_`` and ``.``, with ``/`` between them. Values
    are never empty.

    An object may have one more method, so that process 0 need not ask for each of the others:
    ``get_many(keys: list[str]) -> dict[str, bytes] | None``. It returns the existing values that
    one call to the service returns, or ``None`` if the call returns none. The keys are in one
    folder, and their values are short.
    """

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def size(self) -> int:
        """The number of processes."""

    @property
    def value_len_max_bytes(self) -> int:
        """The longest value that the service takes."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Puts a value under a new key; ``False`` if the key exists. If several processes call at
        the same time, one gets ``True``.
        """

    def get(self, key: str, wait: float) -> bytes | None:
        """The value of the key. Waits for the value for this many seconds; ``None`` if there is no
        value by then.
        """

    def remove(self, key: str) -> None:
        """Removes the key, and all keys that begin with it and a ``/``, as far as the service
        can find them.
        """

    def live(self) -> list[int] | None:
        """The ranks that are known to live; ``None`` if unknown. Does not wait."""


class Folder:
    """A coordinator for processes that share nothing but a folder, on a disk or in a bucket.

    Every process passes the same folder, which no other job uses at the same time. It is created
    when it is needed. It is slower than a service: a disk is checked up to every 50 ms, a bucket up
    to twice a second.
    """

    def __init__(self, path: StrPath, *, rank: int, size: int) -> None:
        """The process `rank` of `size`.

        Raises:
            InvalidArgumentError: if there is no such rank.
        """
        ranks = {name: count(name, number) for name, number in {"rank": rank, "size": size}.items()}
        for name, number in ranks.items():
            if number is None:
                raise wrong(name, number, "a number of at least 0")
        self._native = _native.Coordinator.folder(place("path", path), rank, size)

    @property
    def rank(self) -> int:
        return self._native.rank

    @property
    def size(self) -> int:
        return self._native.size

    @property
    def value_len_max_bytes(self) -> int:
        return self._native.value_len_max_bytes

    def put_if_absent(self, key: str, value: bytes) -> bool:
        return self._native.put_if_absent(key, value)

    def get(self, key: str, wait: float) -> bytes | None:
        return self._native.get(key, wait)

    def get_many(self, keys: list[str]) -> dict[str, bytes] | None:
        """The values of those keys that exist now, read several at a time."""
        return self._native.get_many(keys)

    def remove(self, key: str) -> None:
        self._native.remove(key)

    def live(self) -> list[int] | None:
        return self._native.live()


def coordinator() -> Coordinator:
    """The coordinator of this job: the service of JAX, torch or MPI if one is ready, otherwise a
    coordinator of this process alone.

    Raises:
        UnsupportedError: if the service does not have a required function.
    """
    for ready, home in _SERVICES.items():
        if ready in sys.modules:
            found: Coordinator | None = importlib.import_module(f".{home}", __package__).find()
            if found is not None:
                return found
    return _native.Coordinator.single()


class Session:
    """One save or restore of one checkpoint, in which every process of the job takes part.

    Every process runs the same phases in the same order. Each phase has its own name. The first
    error of any process ends the session for all. An exception that leaves the `with` block does
    the same.

        with Session(regrow.jobs.coordinator(), path, "save") as session:
            parts = session.gather("index", my_index)       # on rank 0, else None
            session.agree("written")
    """

    def __init__(
        self,
        coordinator: Coordinator,
        path: StrPath,
        purpose: str,
        *,
        timeout: float = 600.0,
        prefix: str | None = None,
    ) -> None:
        """Returns when all processes have made this call. `timeout` is in seconds, for each phase.

        Raises:
            TimedOutError: with the ranks that have not arrived or have ended.
            RegrowError: of another process, as an error of its kind.
        """
        wait = (timeout, prefix)
        self._native = _native.Session(coordinator, place("path", path), purpose, wait)

    def gather(self, phase: str, value: bytes) -> list[bytes] | None:
        """The values of all processes in the order of ranks, on rank 0. The others do not wait."""
        return self._native.gather(phase, value)

    def broadcast(self, phase: str, value: bytes = b"") -> bytes:
        """The value of rank 0, on every process."""
        return self._native.broadcast(phase, value)

    def agree(self, phase: str, error: BaseException | str | None = None) -> None:
        """Waits until every process has made this call. If one process passes an error, all
        processes raise it.
        """
        text = str(error)
        kind = getattr(error, "kind", None)
        if isinstance(error, BaseException) and kind is None:
            text = f"{type(error).__name__}: {error}"
        told = None if error is None else (kind or "io", text)
        self._native.agree(phase, told)

    def post(self, phase: str, value: bytes = b"") -> None:
        """Offers a value of this process to the processes that call `receive`; does not wait."""
        self._native.post(phase, value)

    def receive(self, phase: str, rank: int) -> bytes:
        """The value that the process `rank` posted. Waits for it."""
        return self._native.receive(phase, rank)

    def shares_storage(self, path: StrPath) -> None:
        """Raises `InvalidArgumentError` in every process unless all processes see a file that rank
        0 writes beside `path`.
        """
        self._native.shares_storage(place("path", path))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._native.finish()
        else:
            self._native.leave()
