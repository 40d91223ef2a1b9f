"""The folder of a manager, on a disk or in a bucket: its committed steps, their deletion, and the
folder's own metadata.

The engine's own manager finds, leases and deletes the steps. On a disk this manager leaves none of
its own files in the folder.

Process 0 of a job chooses the steps to delete, deletes them and sends the list of deleted steps to
the others. So the lists of all processes match the storage, although a reader may keep a step and
each process has its own clock.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .. import _native
from .._core._location import Location, place
from .._errors import AlreadyExistsError, CorruptError, InvalidArgumentError, RegrowError, failure, from_native
from .._jobs import _job
from .._load._open import verify
from .._operations._copy import copy
from . import _manager_options, _settings
from ._errors import as_orbax
from ._manager_options import CheckpointManagerOptions
from ._paths import BucketPath, as_path, is_finalized, is_temporary, lacks_marker, read_json, wants_marker
from .checkpoint_managers import PolicyCheckpointInfo
from .metadata import RootMetadata, deserialize_root_metadata, serialize_root_metadata
from .multihost import barrier, is_primary_host
from .path import step as steps

METRIC_ITEM_NAME = "metrics"
METADATA_ITEM_NAME = "metadata"

_log = logging.getLogger("regrow.orbax")

_OWN = ".regrow"
"""The folder of leases and of the writer's lock of the engine's manager."""

_LOCK_TRIES = 20
_LOCK_PACE_SECONDS = 0.05


class Folder:
    def __init__(self, directory: Any, options: CheckpointManagerOptions) -> None:
        """The folder at `directory`, which need not exist."""
        self.path = as_path(directory)
        self.name_format = options.step_name_format or steps.standard_name_format(
            step_prefix=options.step_prefix, step_format_fixed_length=options.step_format_fixed_length
        )
        self._options = options
        wants_marker(options.atomicity_options)
        self._bucket = self.path if isinstance(self.path, BucketPath) else None
        self._location = Location(self.path) if self._bucket is None else self._bucket
        self._forms = steps.forms_of(self.name_format)
        with as_orbax():
            self._steps = _native.Steps(place("directory", self._location), self._forms)
            job = _job.chosen(None)
            self._together = None if job is None else _native.Together(place("directory", self._location), job)

    @property
    def _engine(self) -> _native.Steps:
        """The engine's steps. If the engine does not know the name format, the format object finds
        the steps.
        """
        if self._forms is not None:
            return self._steps
        found = self.name_format.find_all(self.path) if self.path.exists() else ()
        given = [(each.step, each.path.name) for each in found]
        return _native.Steps(place("directory", self._location), None, given)

    def listed(self) -> dict[int, PolicyCheckpointInfo]:
        """The existing steps, by number. Process 0 lists them for all if the options say so."""

        def look() -> Any:
            found = self._engine.list()[0]
            return [[number, at, metrics] for number, name, _, at, metrics, _ in found if self._is_marked(name)]

        is_told = self._options.single_host_load_and_broadcast
        found = self.of_process_0("orbax-steps", look) if is_told else look()
        return {step[0]: self._info(*step) for step in found}

    def of_process_0(self, what: str, look: Callable[[], Any]) -> Any:
        """Returns in every process what `look` returns, or raises, on process 0, as JSON."""
        if self._together is None:
            return look()
        return json.loads(self._together.of_rank_0(what, lambda: json.dumps(look())))

    def _info(self, number: int, seconds: float | None, metrics: str) -> PolicyCheckpointInfo:
        when = datetime.datetime.fromtimestamp(seconds or 0, tz=datetime.UTC)
        return PolicyCheckpointInfo(number, when, json.loads(metrics) or None)

    def _is_marked(self, name: str) -> bool:
        """Whether a step has the marker of a commit, or needs none."""
        return not lacks_marker(self.path / name, self._options.atomicity_options)

    def path_of(self, step: int) -> Any:
        return steps.build_step_path(self.path, self.name_format, step)

    def find(self, step: int) -> Any:
        """The path of an existing step; `None` if there is none."""
        found = self._engine.find(step) if step >= 0 else None
        return None if found is None or not self._is_marked(found[1]) else self.path / found[1]

    def metrics(self, step: int) -> Any:
        found = self._engine.find(step)
        return None if found is None else json.loads(found[4]) or None

    def to_restore(self, step: Any) -> tuple[Any, int | None]:
        """The path and number of a step, the latest if `None`. A path has no number."""
        if step is None:
            step = max(self.listed(), default=None)
            if step is None:
                raise FileNotFoundError(f"No steps found in {self.path}.")
        is_path = isinstance(step, (str, os.PathLike))
        path = self.path / os.fspath(step) if is_path else self.find(step) or self.path_of(step)
        if not path.exists():
            raise FileNotFoundError(f"Checkpoint at {path} not found.")
        is_unmarked = lacks_marker(path, self._options.atomicity_options)
        if is_temporary(path) or is_unmarked or (self._bucket is not None and not is_finalized(path)):
            raise ValueError(f"Found incomplete checkpoint at {path}.")
        return path, None if is_path else step

    def is_good(self, step: int) -> bool:
        """Whether a step is committed. If the switch is on, the whole step is read to check it."""
        path = self.find(step)
        if path is None or not _settings.checks_saves() or not is_primary_host():
            return path is not None
        try:
            wrong = [finding.message for finding in verify(path, progress=False).findings]
        except CorruptError as error:
            wrong = [error.message]
        if wrong:
            help = f"nothing was deleted; {wrong[0]}"
            raise failure(CorruptError, f"step {step} is not what was saved", f"in {path}", file=str(path), help=help)
        return True

    @contextlib.contextmanager
    def reading(self, step: int) -> Iterator[None]:
        """Protects a step from deletion while it is read, if the folder is writable."""
        lease = None
        # Ignore a failure here: if the step was deleted, the restore itself raises the error.
        with contextlib.suppress(RegrowError):
            lease = self._engine.lease(step)
        try:
            yield
        finally:
            if lease is not None:
                lease.release()
                self._leave_nothing()

    def create(self) -> None:
        """Makes the folder before any process continues."""
        if self._bucket is None and is_primary_host():
            mode = getattr(self._options.file_options, "path_permission_mode", None)
            is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            if is_new and mode is not None:
                _native.set_mode(self.path, mode)
        barrier(f"{self.path}:created", 300)

    def set_permissions(self, step: int) -> None:
        mode = getattr(self._options.file_options, "path_permission_mode", None)
        if mode is None or self._bucket is not None or not is_primary_host():
            return
        path = self.path_of(step)
        for folder in (path, *(child for child in path.iterdir() if child.is_dir())):
            _native.set_mode(folder, mode)

    def check_writer(self) -> None:
        """Refuses to write in the folder of a `regrow.Manager`, which is its only writer."""
        own = self.path / _OWN
        if not is_primary_host() or not (own / ("writer.lock" if self._bucket is None else "writer.json")).exists():
            return
        for left in reversed(range(_LOCK_TRIES)):
            try:
                # Other managers of this package make the same check, and hold the lock for a
                # moment.
                self._steps.lock().release()
                return
            except AlreadyExistsError:
                if left == 0:
                    raise
                time.sleep(_LOCK_PACE_SECONDS)

    def point(self) -> None:
        """Stores which step is newest, in buckets, where listings are long."""
        if self._bucket is not None and is_primary_host():
            self._engine.refresh()

    def delete(self, numbers: list[int]) -> dict[int, RegrowError | None]:
        """Deletes or moves steps. Returns those that remain: `None` for a reader, or the error."""
        if not numbers or not is_primary_host():
            return {}
        native = self._engine
        left: dict[int, RegrowError | None] = {}
        if self._options.todelete_full_path is not None:
            read = set(native.leased())
            left = dict.fromkeys(number for number in numbers if number in read)
            numbers = [number for number in numbers if number not in read]
            for number in numbers:
                self._copy_aside(native, number, self._options.todelete_full_path)
        for number, *_, what, _, _, finding in native.delete(numbers, self._options.todelete_subdir, False):
            if what in ("leased", "failed"):
                left[number] = None if finding is None else from_native(*finding, None)
        self._leave_nothing()
        return left

    def _copy_aside(self, native: _native.Steps, number: int, full_path: str) -> None:
        """Copies a step to another folder below this one, or in the bucket."""
        found = native.find(number)
        if found is None:
            return
        now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d-%H%M%S-%f")
        name = f"{found[1]}-{now}"
        if self._bucket is None:
            target: Any = self.path / full_path / name
            target.parent.mkdir(parents=True, exist_ok=True)
        else:
            scheme, _, rest = str(self._bucket).partition("://")
            bucket = rest.partition("/")[0]
            target = self._bucket / f"{scheme}://{bucket}/{full_path.strip('/')}/{name}"
        copy(self.path / found[1], target)

    def clean_up(self) -> None:
        """Removes temporary files of broken saves, if the options say so."""
        if not self._options.cleanup_tmp_directories or not is_primary_host():
            return
        for name in self._engine.list()[1]:
            path = self.path / name
            at = place("path", self._location / name)
            try:
                _native.remove(at, True, False, 0.0)
            except AlreadyExistsError as error:
                # The engine refuses because the file was written recently. Without a lock the file
                # is not regrow's. Remove it then, because the options ask for it.
                if self._bucket is None and not _native.is_locked(path):
                    _native.remove(at, True, True, 0.0)
                else:
                    _log.warning("%s was not removed: %s", path, error)
            except RegrowError as error:
                _log.warning("%s was not removed: %s", path, error)

    def _leave_nothing(self) -> None:
        """Removes the folders of leases if they are empty."""
        if self._bucket is not None:
            return
        for folder in (os.path.join(_OWN, "leases"), os.path.join(_OWN, "deleting"), _OWN):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(self.path, folder))

    def write_root_metadata(self, given: Mapping[str, Any] | None) -> None:
        """Writes the folder's own metadata, once."""
        file = self.path / METADATA_ITEM_NAME / "_ROOT_METADATA"
        is_wanted = given is not None and self._options.save_root_metadata and not self._options.read_only
        if not is_wanted or not is_primary_host() or file.exists():
            return
        text = json.dumps(serialize_root_metadata(RootMetadata(custom_metadata=dict(given or {}))))
        if self._bucket is not None:
            file.write_text(text)
            return
        _native.put_file(file, text.encode())

    def read_root_metadata(self) -> RootMetadata | None:
        for name in ("_ROOT_METADATA", "metadata"):
            told = read_json(self.path / METADATA_ITEM_NAME / name)
            if told is not None:
                return deserialize_root_metadata(told)
        return None


class Followed:
    """Tasks after saves, in one thread and in order."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def add(self, task: Callable[..., None], *args: Any) -> None:
        """Runs a task after all earlier ones."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="regrow.orbax deletions")
        before = self._last

        def work() -> None:
            if before is not None and (error := before.exception()) is not None:
                # Raise the error of the earlier task again: `wait` reads only the last task.
                task(*args)
                raise error
            task(*args)

        try:
            self._last = self._executor.submit(work)
        except RuntimeError:
            # At exit an executor accepts no more tasks. Run the task in the thread of the save, for
            # which the interpreter waits.
            task(*args)

    def wait(self) -> None:
        """Waits for all tasks, and raises their error once."""
        last = self._last
        if last is None:
            return
        try:
            last.result()
        except BaseException:
            self._last = None
            raise

    def close(self) -> None:
        """Waits for all tasks, and ends the thread."""
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None


class Deletions(Followed):
    """Deletes steps of a folder. Deletions after saves run in their own thread."""

    def __init__(
        self,
        folder: Folder,
        options: CheckpointManagerOptions,
        listed: Callable[[], list[PolicyCheckpointInfo]],
        forget: Callable[[int], object],
    ) -> None:
        """Deletes steps of `listed`, and calls `forget` for each deleted step."""
        super().__init__()
        self._folder = folder
        self._options = options
        self._listed = listed
        self._forget = forget
        self._chosen = threading.Event()
        self._chosen.set()
        self.doomed: set[int] = set()
        """Steps that a thread is deleting."""

    def follow(self, saved: int, *, is_unranked: bool = False) -> None:
        """After a save, deletes in the background the steps that the options do not keep."""
        self._chosen = chosen = threading.Event()
        self.add(self._tidy, saved, chosen, is_unranked)

    def wait_for_choice(self) -> None:
        """Waits until the steps to delete after the last save are chosen."""
        self._chosen.wait()

    def delete(self, step: int) -> None:
        self.wait()

        def work() -> None:
            left = self._folder.delete([step])
            if step in left:
                raise left[step] or failure(
                    InvalidArgumentError, f"step {step} is being read", help="wait until it is closed"
                )

        with as_orbax():
            self._folder.of_process_0(f"orbax-deletion-{step}", work)
        self._forget(step)
        with as_orbax():
            self._folder.point()

    def _tidy(self, saved: int, chosen: threading.Event, is_unranked: bool) -> None:
        """Deletes the steps that the options do not keep, after the save. Never deletes all steps."""
        doomed: list[int] = []
        try:
            try:
                if not _manager_options.keeps_all(self._options) or _settings.checks_saves():
                    doomed = self._folder.of_process_0("orbax-deletions-chosen", lambda: self._choice_after(saved))
                self.doomed.update(doomed)
            except Exception:
                # The save has raised this error of `best_fn` already.
                if not is_unranked:
                    raise
            finally:
                chosen.set()
            if doomed:
                for step in self._folder.of_process_0("orbax-deletions", lambda: self._delete(doomed)):
                    self._forget(step)
        finally:
            self.doomed.difference_update(doomed)
        self._folder.point()

    def _choice_after(self, saved: int) -> list[int]:
        return _manager_options.to_delete(self._listed(), self._options) if self._folder.is_good(saved) else []

    def _delete(self, doomed: list[int]) -> list[int]:
        left = self._folder.delete(doomed)
        for step, error in left.items():
            # The next save tries again to delete the step.
            _log.warning("step %d was not deleted: %s", step, error or "it is being read")
        return [step for step in doomed if step not in left]
