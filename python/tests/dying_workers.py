"""Executors whose workers die, and what they run: imported in workers, so nothing large is
imported here.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import resource
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any


class LostError(Exception):
    """What an executor raises whose worker is gone."""


def die_at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_writing(function: Callable[..., Any], *arguments: Any) -> Any:
    """Ends by a signal in the middle of the data file."""
    # Python ignores the signal; its own `signal` is for the main thread, and calls may come on
    # others.
    ctypes.CDLL(None).signal(signal.SIGXFSZ, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    function(*arguments)
    raise AssertionError("it was to die")


def die_when_done(function: Callable[..., Any], *arguments: Any) -> Any:
    """Leaves all files of its share."""
    function(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(function: Callable[..., Any], *arguments: Any) -> Any:
    """As far as its executor knows."""
    function(*arguments)
    raise LostError


def once(flag: str, how: Callable[..., Any], function: Callable[..., Any], *arguments: Any) -> Any:
    """Dies the first time, also where an executor calls it again by itself."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return function(*arguments)
    return how(function, *arguments)


class Killing:
    """An executor that lets some calls kill their worker: the first of these many submissions.

    With a `flag`, the path of a file, only one worker is killed, also if the call is made again.
    """

    def __init__(self, executor: Any, kills: int, how: Callable[..., Any], flag: str | None = None) -> None:
        self.executor = executor
        self.kills = kills
        self.how = how
        self.flag = flag
        self.submitted = 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        pickle.dumps((function, arguments))
        self.submitted += 1
        if self.submitted > self.kills:
            return self.executor.submit(function, *arguments)
        if self.flag is not None:
            return self.executor.submit(once, self.flag, self.how, function, *arguments)
        return self.executor.submit(self.how, function, *arguments)


class Pools:
    """An executor that gives each call a process of its own."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        future = pool.submit(function, *arguments)
        pool.shutdown(wait=False)
        return future


def kill_once(flag: str) -> None:
    """In a pool's workers, the first to come here dies a moment later, during any work."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    signal.setitimer(signal.ITIMER_REAL, 0.3)


class Replacing:
    """An executor that replaces the source before its first call."""

    def __init__(self, executor: Any, replace: Callable[[], Any]) -> None:
        self.executor = executor
        self.replace: Callable[[], Any] | None = replace

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        if self.replace is not None:
            self.replace()
            self.replace = None
        future: Future[Any] = self.executor.submit(function, *arguments)
        return future
