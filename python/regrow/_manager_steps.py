"""A folder of steps as a `Manager` sees it: what is there, and what rank 0 says of it to the processes of a job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from . import _arguments, _native
from ._coordination import Session
from ._errors import InvalidArgumentError, RegrowError, from_native
from ._job import NativeJob
from ._location import Location, place
from ._manager_policies import Metric


class Step(NamedTuple):
    """A step that the storage has committed."""

    number: int
    name: str
    """Its name in the folder."""
    path: str
    """Its path or URL."""
    time: float | None
    """When it was committed, in seconds since 1970; `None` if nobody knows."""
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
        """What `look` gives on rank 0, in every process: something that JSON can say. Its error is that of all."""
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

    def tell(self, number: int, failure: RegrowError | None, is_fault: bool) -> RegrowError | None:
        """Tells all processes what became of a restore here; gives the failure of any that is the step's own.

        Raises:
            RegrowError: if one of them has failed in another way.
        """
        if self._job is None:
            return None
        coordinator, (timeout, prefix) = self._job
        own = None if failure is None else (is_fault, failure.kind, str(failure))
        with Session(coordinator, self._place, f"manager-restore-{number}", timeout=timeout, prefix=prefix) as session:
            told = session.gather("restored", json.dumps(own).encode())
            # What no other step would spare goes first.
            failed = sorted(said for said in map(json.loads, told or []) if said is not None)
            verdict = json.loads(session.broadcast("verdict", json.dumps(failed[0] if failed else None).encode()))
        if verdict is None:
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
        """The committed steps."""
        return [int(number) for number in self.of_rank_0("steps", self._own_numbers)]

    def latest(self) -> int | None:
        """The newest of them."""
        found = self.of_rank_0("latest", self.own_latest)
        return None if found is None else int(found)

    def own_latest(self) -> int | None:
        """The same, as this process alone sees it."""
        found = self.native.latest()
        return None if found is None else found[0]

    def best(self, metric: Metric | None) -> int | None:
        """The best of them by a metric."""
        if metric is None:
            help = 'make the manager with best="eval/loss:min"'
            raise InvalidArgumentError(f"there is no best step, since no metric was named\n  help: {help}", help=help)

        def find() -> int | None:
            facts = [(found[0], found[3], found[4], False, False) for found in self.native.list()[0]]
            return _native.best_step(facts, metric.name, metric.is_max)

        found = self.of_rank_0("best", find)
        return None if found is None else int(found)

    def all(self) -> list[Step]:
        """All that is known of them."""
        return [step_of(found) for found in self.native.list()[0]]

    def delete(self, numbers: Iterable[int], aside: str | None, *, force: bool) -> None:
        """Deletes steps on rank 0.

        Raises:
            InvalidArgumentError: if somebody reads one of them, without `force`.
            RegrowError: if one of them could not be deleted.
        """
        wanted = list(numbers)
        for step, what, _, _, finding in self.native.delete(wanted, aside, force):
            if what == "leased":
                help = "wait for its reader, or say force=True"
                raise InvalidArgumentError(f"step {step} is being read\n  help: {help}", help=help)
            if what == "failed" and finding is not None:
                raise _error_of(finding)
        self.native.refresh()

    def _own_numbers(self) -> list[int]:
        return [found[0] for found in self.native.list()[0]]


def step_of(found: Any) -> Step:
    """Of what the native half gives."""
    number, name, location, seconds, metrics, metadata = found
    return Step(number, name, location.__fspath__(), seconds, json.loads(metrics), json.loads(metadata))


def number_of(step: Any) -> int:
    """A step's number, whatever kind of integer it is."""
    number = _arguments.count("step", step)
    if number is None:
        raise _arguments.wrong("step", step, "the number of a step")
    return number


def _error_of(finding: Any) -> RegrowError:
    kind, message, file, leaf, offset = finding
    error: RegrowError = from_native(kind, message, file, leaf, offset, None)
    return error
