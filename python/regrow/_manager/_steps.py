"""The folder of steps of a `Manager`, and the messages of rank 0 to the other processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from .._core import _arguments
from .._core._location import Location, place
from .._errors import InvalidArgumentError, RegrowError, failure, from_native
from .._jobs._coordination import Session
from .._jobs._job import NativeJob

if TYPE_CHECKING:
    from ._policies import Metric
from ._records import Records


class Step(NamedTuple):
    """A step that the storage has committed."""

    number: int
    name: str
    """Its name in the folder."""
    path: str
    """Its path or URL."""
    time: float | None
    """When it was committed, in seconds since 1970; `None` if unknown."""
    metrics: dict[str, Any]
    """The metrics that were saved with it."""
    metadata: dict[str, Any]
    """Your own metadata."""


class Steps:
    """The steps of a folder. In a job every process asks, and rank 0 looks."""

    def __init__(
        self, root: Location, forms: Sequence[tuple[str | None, int | None]] | None, job: NativeJob | None
    ) -> None:
        self.root = root
        self._place = place("directory", root)
        self.native = _native.Steps(self._place, forms)
        self._job = job

    def at(self, name: str) -> Location:
        """Where a step with this name is."""
        return self.root / name

    @property
    def is_first(self) -> bool:
        """Whether this process decides and deletes."""
        return self._job is None or self._job[0].rank == 0

    @property
    def is_shared(self) -> bool:
        """Whether there are other processes."""
        return self._job is not None

    def of_rank_0(self, what: str, look: Callable[[], Any]) -> Any:
        """What `look` gives on rank 0, in every process: something that JSON can say. Its error
        is that of all.
        """
        if self._job is None:
            return look()
        coordinator, (timeout, prefix) = self._job
        with Session(coordinator, self._place, f"manager-{what}", timeout=timeout, prefix=prefix) as session:
            found, error = None, None
            if self.is_first:
                try:
                    found = look()
                except RegrowError as raised:
                    error = raised
            told = json.dumps(found).encode()
            # The error of rank 0 is raised there as it is, and in the others as one of its kind.
            try:
                session.agree("looked", error)
            except RegrowError:
                if error is not None:
                    raise error from None
                raise
            return json.loads(session.broadcast("found", told))

    def of_all(self, what: str, own: Any, decide: Callable[[list[Any]], Any]) -> Any:
        """What `decide` makes on rank 0 of what each process gives, in every process: something
        that JSON can say.
        """
        if self._job is None:
            return decide([own])
        coordinator, (timeout, prefix) = self._job
        with Session(coordinator, self._place, f"manager-{what}", timeout=timeout, prefix=prefix) as session:
            given = session.gather("given", json.dumps(own).encode())
            decided = None if given is None else decide([json.loads(one) for one in given])
            return json.loads(session.broadcast("decided", json.dumps(decided).encode()))

    def agree(self, what: str, failure: BaseException | None) -> None:
        """Raises in every process if one of them brings a failure; in that one the failure
        itself.
        """
        if self._job is None:
            if failure is not None:
                raise failure
            return
        coordinator, (timeout, prefix) = self._job
        with Session(coordinator, self._place, f"manager-{what}", timeout=timeout, prefix=prefix) as session:
            try:
                session.agree("agreed", failure)
            except RegrowError:
                if failure is not None:
                    raise failure from None
                raise

    def tell(self, number: int, failure: RegrowError | None, is_fault: bool) -> RegrowError | None:
        """Tells all processes what became of a restore here; gives the failure of any that is the
        step's own.

        Raises:
            RegrowError: if one of them has failed in another way.
        """
        own = None if failure is None else (is_fault, failure.kind, str(failure))
        # What no other step would spare goes first.
        verdict = self.of_all(
            f"restore-{number}", own, lambda told: min((said for said in told if said is not None), default=None)
        )
        if verdict is None or self._job is None:
            return None
        may_pass_over, kind, message = verdict
        error = from_native(kind, message, None, None, None, None)
        if not may_pass_over:
            raise error
        return error

    def share_forms(self) -> None:
        """All processes name steps as rank 0 does."""
        if self._job is not None:
            forms = self.of_rank_0("forms", lambda: self.native.forms)
            self.native = _native.Steps(self._place, [(prefix, width) for prefix, width in forms])

    def numbers(self) -> list[int]:
        """The committed steps, of any history."""
        return [int(number) for number in self.of_rank_0("steps", self._own_numbers)]

    def current(self, history: _native.History | None) -> list[int]:
        """The committed steps of a history, by number; of the one that the storage says, if
        `None`.
        """
        return [int(number) for number in self.of_rank_0("steps", lambda: self.native.current(history))]

    def abandoned(self) -> list[int]:
        """The committed steps of other histories."""
        return [int(number) for number in self.of_rank_0("abandoned", self.native.abandoned)]

    def latest(self, history: _native.History | None) -> int | None:
        """The newest of a history."""

        def find() -> int | None:
            if history is not None:
                return max(self.native.current(history), default=None)
            found = self.native.latest()
            return None if found is None else found[0]

        found = self.of_rank_0("latest", find)
        return None if found is None else int(found)

    def best(self, metric: Metric | None, history: _native.History | None) -> int | None:
        """The best of a history by a metric."""
        if metric is None:
            help = 'make the manager with keep=regrow.Keep(by="eval/loss:min")'
            raise failure(InvalidArgumentError, "there is no best step: the manager has no metric", help=help)

        found = self.of_rank_0("best", lambda: self.native.best(metric.name, metric.is_max, history))
        return None if found is None else int(found)

    def all(self) -> list[Step]:
        """All that is known of them."""
        return [step_of(found) for found in self.native.list()[0]]

    def delete(self, numbers: Iterable[int], aside: str | None, *, force: bool, records: Records) -> None:
        """Deletes steps on rank 0, and has it recorded.

        Raises:
            InvalidArgumentError: if one of them is being read, without `force`.
            RegrowError: if one of them could not be deleted.
        """
        done = self.native.delete(list(numbers), aside, force)
        self.record(done, records)
        for step, what, _, _, finding in done:
            if what == "leased":
                help = "wait for its reader, or pass force=True"
                raise failure(InvalidArgumentError, f"step {step} is being read", help=help)
            if what == "failed" and finding is not None:
                raise _error_of(finding)
        self.native.refresh()

    def record(self, done: Sequence[Any], records: Records) -> None:
        """A record of each deletion; none of what was not there, or stays for its reader."""
        for step, what, stored_bytes, moved_to, finding in done:
            if what in ("removed", "moved", "failed"):
                records.add(
                    "delete", step, self.at(self.native.name(step)).url, is_bad=finding is not None,
                    bytes=stored_bytes if what == "removed" else None, moved_to=moved_to,
                    error=finding[1] if finding else None,
                )  # fmt: skip

    def _own_numbers(self) -> list[int]:
        return [found[0] for found in self.native.list()[0]]


def step_of(found: Any) -> Step:
    """Of what the native half gives."""
    number, name, location, seconds, metrics, metadata = found
    return Step(number, name, location.__fspath__(), seconds, json.loads(metrics), json.loads(metadata))


def number_of(step: Any) -> int:
    """A step's number, from any kind of integer."""
    number = _arguments.count("step", step)
    if number is None:
        raise _arguments.wrong("step", step, "the number of a step")
    return number


def _error_of(finding: Any) -> RegrowError:
    kind, message, file, leaf, offset = finding
    error: RegrowError = from_native(kind, message, file, leaf, offset, None)
    return error
