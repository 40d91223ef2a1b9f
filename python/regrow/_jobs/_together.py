"""Restores in which processes of a job wait for each other.

    begin ── every process of a host in its turn ──┐
                                                   ├── agree that all have restored ── end
    begin ── one replica reads, all receive ───────┘

A process that fails tells the others at once, and they end with its error, as in saves.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from .._core import _arguments, _options
from .._core._location import StrPath
from .._core._options import Options
from .._core._report import Stages
from .._errors import InvalidArgumentError, RegrowError
from .._jax import _single_replica
from . import _job
from ._coordination import Session

T = TypeVar("T")

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Together:
    """The work that processes do together; nothing by default."""

    def __init__(self, path: StrPath, rare: Options, stages: Stages) -> None:
        """Uses the settings of a load."""
        self._path = path
        self._stages = stages
        self._turns = _arguments.flag("in_turns", rare.in_turns)
        self.single_replica = _single_replica.chosen(rare.single_replica)
        if self._turns and self.single_replica is not None:
            raise InvalidArgumentError("`single_replica` and `in_turns` exclude each other: pass one of them")
        is_asked = self._turns or self.single_replica is not None
        job = _job.chosen(rare.job) if is_asked or rare.job is not None else None
        self._job = job if is_asked else None
        self.session: Session | None = None
        """The session with the other processes, if there are any."""

    @property
    def rank(self) -> int:
        """The number of this process."""
        return 0 if self._job is None else self._job[0].rank

    @property
    def size(self) -> int:
        """The number of processes."""
        return 1 if self._job is None else self._job[0].size

    def __enter__(self) -> Together:
        if self._job is not None:
            found, (timeout, prefix) = self._job
            self.session = Session(found, self._path, "restore", timeout=timeout, prefix=prefix)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self.session = self.session, None
        if session is None:
            return
        with session:
            if error is None:
                session.agree("restored")
                return
            told = error if isinstance(error, RegrowError) else f"{type(error).__name__}: {error}"
            # The others may already have an error, or this error may come from one of them.
            with contextlib.suppress(RegrowError):
                session.agree("failed", told)

    def in_turn(self, work: Callable[[], T]) -> T:
        """Runs `work` in this process' turn on its host, and returns its result. Waits until all
        processes of the host have had their turn.
        """
        session = self.session
        if session is None or not self._turns:
            return work()
        done: list[T] = []
        with self._stages.stage("wait_for_turn"):
            ranks = self._ranks_of_this_host(session)
        # Wait for each rank separately, so that each turn has the full time-out.
        for rank in ranks:
            if rank == self.rank:
                done.append(work())
                session.post("turn")
            else:
                with self._stages.stage("wait_for_turn"):
                    session.receive("turn", rank)
        return done[0]

    def _ranks_of_this_host(self, session: Session) -> list[int]:
        import json

        hosts = session.gather("host", host().encode())
        told = b"" if hosts is None else json.dumps([name.decode() for name in hosts]).encode()
        names = json.loads(session.broadcast("hosts", told))
        return [rank for rank, name in enumerate(names) if name == names[self.rank]]


def posts_errors(options: Options | None, path: StrPath) -> contextlib.AbstractContextManager[None]:
    """A context around the work of a process before a load with other processes. It sends an error
    of the work to the other processes.
    """
    if not isinstance(options, Options) or not (options.in_turns or options.single_replica is not None):
        return contextlib.nullcontext()
    return _job.posts_errors(_options.job_of(None, options), path, "restore")


def host() -> str:
    """The host of this process. Containers of one machine that have separate memory count as
    several hosts.
    """
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{platform.node()} {boot}"
