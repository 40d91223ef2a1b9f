"""The job that a process is part of: who saves and restores together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import _arguments, _native
from ._coordination import Coordinator, Session, coordinator
from ._errors import RegrowError
from ._location import StrPath

NativeJob = tuple[Coordinator, tuple[float, str | None]]
"""A coordinator, and how long to wait under which prefix, as the native half takes it."""


@dataclass(frozen=True)
class Job:
    """The processes that save one checkpoint together, each the shards that it holds, or restore one together.

    Inside an initialised job of JAX, torch or MPI nobody has to make one: `regrow.save` finds the others by itself.

        regrow.save(path, tree)                                       # every process of the job calls it
        regrow.save(path, tree, job=regrow.jobs.Job(timeout=60))           # ... and waits a minute for the others
        regrow.save(path, tree, job=regrow.jobs.Job.alone())               # this process alone saves what it has
    """

    coordinator: Coordinator | None = None
    """How the processes find each other's words; what `regrow.jobs.coordinator()` finds if `None`."""
    timeout: float = 600.0
    """How many seconds a process waits for the others in each phase of a save or a restore."""
    prefix: str | None = None
    """Put in front of the keys of the coordination service: another one for evaluators, which restore meanwhile."""

    @staticmethod
    def alone() -> Job:
        """A job of this process only, whatever it is part of."""
        return Job(_native.Coordinator.single())


def chosen(job: Any) -> NativeJob | None:
    """What the native half is told: nothing if this process saves alone.

    Raises:
        InvalidArgumentError: for what is no job.
    """
    if job is None:
        job = Job()
    if not isinstance(job, Job):
        raise _arguments.wrong("job", job, "regrow.jobs.Job, or None for the job that this process is part of")
    found = coordinator() if job.coordinator is None else job.coordinator
    return (found, (float(job.timeout), job.prefix)) if found.size > 1 else None


@contextlib.contextmanager
def posts_errors(job: Any, path: StrPath, purpose: str = "save") -> Iterator[None]:
    """Around what a process does before it meets the others for a save of `path`, or a restore.

    They are told why it does not come, and end with that at once. `job` is what the caller gave.
    """
    try:
        yield
    except Exception as error:
        # A process that cannot be told finds out at its time-out, or was told of another error before.
        with contextlib.suppress(RegrowError):
            if (native_job := chosen(job)) is not None:
                found, (timeout, prefix) = native_job
                with Session(found, path, purpose, timeout=timeout, prefix=prefix) as session:
                    session.agree("check", error)
        raise
