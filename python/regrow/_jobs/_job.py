"""The job: the processes that save and load together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .. import _native
from .._core import _arguments
from .._core._location import StrPath
from .._core._record import Record
from .._errors import RegrowError
from ._coordination import Coordinator, Session, coordinator

NativeJob = tuple[Coordinator, tuple[float, str | None]]
"""A job in the form of the native half: a coordinator, the time-out, and the prefix."""


class Job(Record, kw_only=False, frozen=True):
    """The processes that save or load one checkpoint together. Each process saves the shards that
    it holds.

    In an initialised job of JAX, torch or MPI `regrow.save` finds the other processes without a
    `Job`.

        regrow.save(path, tree)  # every process of the job calls it

        # Waits up to a minute for the others.
        regrow.save(path, tree, job=regrow.jobs.Job(timeout=60))
        # This process saves alone.
        regrow.save(path, tree, job=regrow.jobs.Job.alone())
    """

    coordinator: Coordinator | None = None
    """How the processes exchange messages; `regrow.jobs.coordinator()` if `None`."""
    timeout: float = 600.0
    """How many seconds a process waits for the others in each phase of a save or a load."""
    prefix: str | None = None
    """A prefix of the keys in the coordination service. Evaluators that load during a save need
    another one.
    """

    @staticmethod
    def alone() -> Job:
        """A job of this process only."""
        return Job(_native.Coordinator.single())


def chosen(job: Any) -> NativeJob | None:
    """The job for the native half; `None` if this process saves alone.

    Raises:
        InvalidArgumentError: for another type.
    """
    if job is None:
        job = Job()
    if not isinstance(job, Job):
        raise _arguments.wrong("job", job, "a regrow.jobs.Job, or None for the job of this process")
    found = coordinator() if job.coordinator is None else job.coordinator
    return (found, (float(job.timeout), job.prefix)) if found.size > 1 else None


@contextlib.contextmanager
def posts_errors(job: Any, path: StrPath, purpose: str = "save") -> Iterator[None]:
    """A context around the work of a process before a save of `path`, or a restore, with other
    processes. It sends an error of the work to the other processes.

    They receive the reason why this process does not take part, and end at once with this error.
    `job` is the caller's argument.
    """
    try:
        yield
    except Exception as error:
        # A process that does not get this message ends at its time-out, or has already received
        # another error.
        with contextlib.suppress(RegrowError):
            if (native_job := chosen(job)) is not None:
                found, (timeout, prefix) = native_job
                with Session(found, path, purpose, timeout=timeout, prefix=prefix) as session:
                    session.agree("check", error)
        raise
