"""Executors: run shares of the work in processes that do not form a job.

| from | an executor is |
|---|---|
| `concurrent.futures` | any executor: processes, threads, `mpi4py.futures.MPIPoolExecutor` |
| Dask | a `distributed.Client` |
| Ray | `ray_executor()` |
"""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Callable
from typing import Any, Protocol

from .._core import _arguments
from .._errors import InvalidArgumentError


class Executor(Protocol):
    """Runs functions in other processes."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Starts a call. Returns an object whose ``result()`` waits, and raises the error of the
        call.
        """


def ray_executor(**options: Any) -> RayExecutor:
    """An executor that makes each share a task of Ray. Connects to Ray, if the program is not
    connected yet.

    Args:
        **options: For each task, as for Ray's own ``options``: ``num_cpus=4``, ``resources=...``.
    """
    return RayExecutor(options)


class RayExecutor:
    """Ray as an executor: `submit` makes a task, which Ray does not repeat by itself."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._options = {"max_retries": 0, **options}
        if not self._ray.is_initialized():
            self._ray.init()

    @property
    def workers(self) -> int:
        """The number of tasks that run at the same time: the processors of the cluster."""
        processors = self._ray.cluster_resources().get("CPU", 1)
        return max(1, int(processors / (self._options.get("num_cpus") or 1)))

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> RayFuture:
        """Starts a task."""
        task = self._ray.remote(function).options(**self._options)
        return RayFuture(self._ray, task.remote(*arguments))


class RayFuture:
    """The future result of a task of Ray."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference

    def result(self) -> Any:
        """Waits for the result, and raises the error of the task."""
        return self._ray.get(self._reference)


# ---- arguments ------------------------------------------------------------------------


def chosen(executor: Any, workers: Any) -> tuple[Executor, int] | None:
    """The executor and the number of shares that a caller requests; `None` for work without an
    executor.
    """
    if executor is None:
        if workers is not None:
            raise InvalidArgumentError(
                f"workers={workers!r} needs executor=: it is the number of shares of an executor"
            )
        return None
    if not callable(getattr(executor, "submit", None)):
        raise _arguments.wrong("executor", executor, "an executor: something with submit(function, *arguments)")
    if workers is None:
        return executor, _workers(executor)
    number = _arguments.count("workers", workers)
    if number is None or not 1 <= number < 2**16:
        raise _arguments.wrong("workers", workers, "a number of shares, at least 1")
    return executor, number


def _workers(executor: Any) -> int:
    """The number of workers according to the executor."""
    told = getattr(executor, "workers", None) or getattr(executor, "_max_workers", None)
    if told is None and callable(getattr(executor, "nthreads", None)):
        told = sum(executor.nthreads().values())
    try:
        number = operator.index(told)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    return min(number, 2**16 - 1) if number > 0 else 2 * (os.cpu_count() or 1)
