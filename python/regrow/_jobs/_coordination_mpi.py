"""MPI: messages on a copy of a communicator of mpi4py.

Rank 0 holds the keys and answers questions on a thread. Each call asks one question and polls for
the answer. A blocking call of MPI would never return if the other side failed; a poll returns.

    question    tag 1             (tag of the answer, what, key, value)     any rank -> rank 0
    answer      tag of its own    what was asked for                        rank 0 -> that rank

While questions arrive, the thread looks for the next one every 0.5 ms; after a pause, every 20 ms.
The thread needs `MPI.THREAD_MULTIPLE`, which mpi4py asks for by default.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import sys
import threading
import time
from typing import Any

from .._errors import RegrowError, TimedOutError, UnsupportedError, failure

QUESTION = 1
FIRST_ANSWER, LAST_ANSWER = 2, 32767
"""Tags; the last is the largest that every MPI has."""

ANSWER_SECONDS = 60.0
"""How long rank 0 may take to answer: its thread does nothing else."""

LOOKS_SECONDS = (0.0005, 0.02)
BUSY_SECONDS = 1.0


class MpiCoordinator:
    """The processes of a communicator."""

    value_len_max_bytes = 64 << 20

    def __init__(self, communicator: Any) -> None:
        """Every process of the communicator calls this at the same time: it makes a copy of the
        communicator.
        """
        mpi: Any = sys.modules["mpi4py.MPI"]
        if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
            help = "leave mpi4py.rc.thread_level at `multiple`, or give regrow.jobs.Folder(path, rank=, size=)"
            raise failure(UnsupportedError, "this MPI was not initialised for calls from several threads", help=help)
        self._communicator, request = communicator.Idup()
        _until(request.Test, "every process makes its coordinator at the same time")
        self.rank: int = self._communicator.Get_rank()
        self.size: int = self._communicator.Get_size()
        self._tags = itertools.cycle(range(FIRST_ANSWER, LAST_ANSWER + 1))
        self._lock = threading.Lock()
        self._keys: dict[str, bytes] = {}
        self._ends = threading.Event()
        self._server = threading.Thread(target=self._serve, name="regrow-mpi", daemon=True)
        if self.rank == 0:
            self._server.start()
        # `atexit` runs this before mpi4py ends MPI. After that no MPI call is allowed.
        atexit.register(self._end)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        return bool(self._ask("put", key, value))

    def get(self, key: str, wait: float) -> bytes | None:
        until = time.monotonic() + wait
        pause, longest = LOOKS_SECONDS
        while (found := self._ask("get", key)) is None:
            left = until - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(pause * 2, longest)
        return bytes(found)

    def get_many(self, keys: list[str]) -> dict[str, bytes] | None:
        found: dict[str, bytes] = self._ask("get many", keys)
        return found

    def remove(self, key: str) -> None:
        self._ask("remove", key)

    def live(self) -> list[int] | None:
        return None

    def _ask(self, what: str, key: str | list[str], value: bytes | None = None) -> Any:
        if self.rank == 0:
            return self._answer(what, key, value)
        with self._lock:
            tag = next(self._tags)
        sent = self._communicator.isend((tag, what, key, value), dest=0, tag=QUESTION)
        _until(sent.Test, "rank 0 does not accept requests")
        found: Any = None

        def arrives() -> bool:
            nonlocal found
            found = self._communicator.improbe(source=0, tag=tag)
            return found is not None

        _until(arrives, "rank 0 does not answer")
        return found.recv()

    def _answer(self, what: str, key: Any, value: bytes | None) -> Any:
        with self._lock:
            match what:
                case "get":
                    return self._keys.get(key)
                case "put":
                    is_absent = key not in self._keys
                    if is_absent and value is not None:
                        self._keys[key] = value
                    return is_absent
                case "get many":
                    return {each: self._keys[each] for each in key if each in self._keys}
                case "end":
                    return None
                case _:
                    for found in [found for found in self._keys if found == key or found.startswith(f"{key}/")]:
                        del self._keys[found]
                    return None

    def _end(self) -> None:
        """For rank 0: answers until all others have ended, too, or have asked nothing for some
        time.
        """
        self._ends.set()
        if self.rank == 0:
            self._server.join()
            return
        with contextlib.suppress(RegrowError):
            self._ask("end", "")

    def _serve(self) -> None:
        mpi: Any = sys.modules["mpi4py.MPI"]
        shortest, longest = LOOKS_SECONDS
        status, asked, heard = mpi.Status(), 0.0, time.monotonic()
        answers: list[Any] = []
        left = self.size - 1
        while left or answers:
            if not self._ends.is_set():
                heard = time.monotonic()
            elif time.monotonic() - max(asked, heard) > ANSWER_SECONDS:
                return
            question = self._communicator.improbe(source=mpi.ANY_SOURCE, tag=QUESTION, status=status)
            if question is None:
                answers = [answer for answer in answers if not answer.Test()]
                time.sleep(shortest if time.monotonic() - asked < BUSY_SECONDS else longest)
                continue
            asked = time.monotonic()
            tag, what, key, value = question.recv()
            left -= what == "end"
            answers.append(self._communicator.isend(self._answer(what, key, value), dest=status.Get_source(), tag=tag))


def _until(done: Any, otherwise: str) -> None:
    """Polls until `done()` returns true."""
    until = time.monotonic() + ANSWER_SECONDS
    pause, longest = LOOKS_SECONDS
    while not done():
        if time.monotonic() > until:
            raise TimedOutError(f"MPI: {otherwise}, within {ANSWER_SECONDS:.0f} s")
        time.sleep(pause)
        pause = min(pause * 2, longest)


_found: MpiCoordinator | None = None


def find() -> MpiCoordinator | None:
    """The coordinator of COMM_WORLD, if that has more than one process. It is made once."""
    global _found
    mpi: Any = sys.modules["mpi4py.MPI"]
    if _found is None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1:
        _found = MpiCoordinator(mpi.COMM_WORLD)
    return _found
