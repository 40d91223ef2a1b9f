"""The folder of a manager, on a disk or in a bucket: the steps that storage has committed, what is
deleted of them, and what the folder says of itself.

Steps are found, leased and deleted by the engine's own manager. On a disk it leaves nothing of its
own in the folder.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .. import _job, _native
from .._copy import copy
from .._errors import AlreadyExistsError, CorruptError, RegrowError, from_native
from .._location import Location, place
from .._manager_steps import Steps
from .._open import verify
from . import _saving, _settings
from ._bucket_path import BucketPath
from ._errors import as_orbax
from ._manager_options import CheckpointManagerOptions
from ._paths import TMP_DIR_SUFFIX, as_path, is_finalized, is_temporary, lacks_marker, wants_marker
from .checkpoint_managers import PolicyCheckpointInfo
from .metadata import RootMetadata
from .path import step as steps

METRIC_ITEM_NAME = "metrics"
METADATA_ITEM_NAME = "metadata"

_log = logging.getLogger("regrow.orbax")

_OWN = ".regrow"
"""Where the engine's manager keeps leases, and who writes."""

_LOCK_TRIES = 20
_LOCK_PACE_SECONDS = 0.05


class Folder:
    """The steps of a folder."""

    def __init__(self, directory: Any, options: CheckpointManagerOptions) -> None:
        """Of a folder, which need not be there."""
        self.path = as_path(directory)
        self.name_format = options.step_name_format or steps.standard_name_format(
            step_prefix=options.step_prefix, step_format_fixed_length=options.step_format_fixed_length
        )
        self._options = options
        wants_marker(options.atomicity_options)
        self._bucket = self.path if isinstance(self.path, BucketPath) else None
        self._location = Location(self.path) if self._bucket is None else self._bucket.location
        self._forms = steps.forms_of(self.name_format)
        with as_orbax():
            self._steps = Steps(self._location, self._forms, _job.chosen(None))

    @property
    def _engine(self) -> _native.Steps:
        """The engine's steps. Names of a form that it does not know are found by whoever made
        the form.
        """
        if self._forms is not None:
            return self._steps.native
        found = self.name_format.find_all(self.path) if self.path.exists() else ()
        given = [(each.step, each.path.name) for each in found]
        return _native.Steps(place("directory", self._location), None, given)

    # ---- what is there ----------------------------------------------------------------

    def listed(self) -> dict[int, PolicyCheckpointInfo]:
        """The steps that are there, by number: as process 0 sees them, where the options say so."""

        def look() -> Any:
            found = self._engine.list()[0]
            return [[number, at, metrics] for number, name, _, at, metrics, _ in found if self._is_marked(name)]

        is_told = self._options.single_host_load_and_broadcast
        found = self.of_process_0("orbax-steps", look) if is_told else look()
        return {step[0]: self._info(*step) for step in found}

    def of_process_0(self, what: str, look: Callable[[], Any]) -> Any:
        """What `look` gives on process 0, in every process: something that JSON can say. Its
        error is that of all.
        """
        return self._steps.of_rank_0(what, look)

    def _info(self, number: int, seconds: float | None, metrics: str) -> PolicyCheckpointInfo:
        when = datetime.datetime.fromtimestamp(seconds or 0, tz=datetime.UTC)
        return PolicyCheckpointInfo(number, when, json.loads(metrics) or None)

    def _is_marked(self, name: str) -> bool:
        """Whether a step has the marker of a commit, or needs none."""
        return not lacks_marker(self.path / name, self._options.atomicity_options)

    def path_of(self, step: int) -> Any:
        """Where a new step of this number goes."""
        return steps.build_step_path(self.path, self.name_format, step)

    def find(self, step: int) -> Any:
        """The path of a step that is there; `None` if it is not."""
        found = self._engine.find(step) if step >= 0 else None
        return None if found is None or not self._is_marked(found[1]) else self.path / found[1]

    def metrics(self, step: int) -> Any:
        """The metrics that are stored with a step; `None` if it has none."""
        found = self._engine.find(step)
        return None if found is None else json.loads(found[4]) or None

    def to_restore(self, step: Any) -> tuple[Any, int | None]:
        """Where a step is, the latest if `None`, and its number; of a path, which is taken as it
        is, there is none.

        Raises:
            FileNotFoundError: if it is not there.
            ValueError: if it was never committed.
        """
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
        """Whether a step is committed; where the switch says so it is read for that, all of it.

        Raises:
            CorruptError: if it is not what was saved.
        """
        path = self.find(step)
        if path is None or not _settings.checks_saves() or not _saving.is_primary():
            return path is not None
        try:
            wrong = [finding.message for finding in verify(path, progress=False).findings]
        except CorruptError as error:
            wrong = [error.message]
        if wrong:
            help = f"nothing was deleted; {wrong[0]}"
            raise CorruptError(
                f"step {step} is not what was saved\n  in {path}\n  help: {help}", file=str(path), help=help
            )
        return True

    @contextlib.contextmanager
    def reading(self, step: int) -> Iterator[None]:
        """Keeps a step from being deleted meanwhile, by this program or another, where the
        folder can be written to.
        """
        lease = None
        # Where it is gone the restore says so.
        with contextlib.suppress(RegrowError):
            lease = self._engine.lease(step)
        try:
            yield
        finally:
            if lease is not None:
                lease.release()
                self._leave_nothing()

    # ---- writing ----------------------------------------------------------------------

    def create(self) -> None:
        """Makes the folder, in all processes before any of them goes on."""
        if self._bucket is None and _saving.is_primary():
            mode = getattr(self._options.file_options, "path_permission_mode", None)
            is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            if is_new and mode is not None:
                _native.set_mode(self.path, mode)
        _saving.barrier(f"{self.path}:created", 300)

    def set_permissions(self, step: int) -> None:
        """Gives the folders of a step that was saved the permissions that the options say."""
        mode = getattr(self._options.file_options, "path_permission_mode", None)
        if mode is None or self._bucket is not None or not _saving.is_primary():
            return
        path = self.path_of(step)
        for folder in (path, *(child for child in path.iterdir() if child.is_dir())):
            _native.set_mode(folder, mode)

    def check_writer(self) -> None:
        """Refuses to write beside a `regrow.Manager`, which writes alone.

        Raises:
            AlreadyExistsError: if one has this folder, in this program or another.
        """
        own = self.path / _OWN
        if not _saving.is_primary() or not (own / ("writer.lock" if self._bucket is None else "writer.json")).exists():
            return
        for left in reversed(range(_LOCK_TRIES)):
            try:
                # Others of this package, who only ask as this does, have it for a moment.
                self._steps.native.lock().release()
                return
            except AlreadyExistsError:
                if left == 0:
                    raise
                time.sleep(_LOCK_PACE_SECONDS)

    def point(self) -> None:
        """Says which step is newest, where lists are long: in a bucket."""
        if self._bucket is not None and _saving.is_primary():
            self._engine.refresh()

    def delete(self, numbers: list[int]) -> dict[int, RegrowError | None]:
        """Deletes steps, or moves them where the options say; those that are still there: somebody
        reads them, or why.

        Process 0 deletes, and tells the others.
        """
        if not numbers or not _saving.is_primary():
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
        """Copies a step to another place: below the folder, or of the bucket."""
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
        """Removes what broken saves have left, where the options say so; what is being written
        by regrow stays.
        """
        if not self._options.cleanup_tmp_directories or not _saving.is_primary():
            return
        for name in self._engine.list()[1]:
            path = self.path / name
            at = place("path", self._location / name)
            try:
                _native.remove(at, True, False)
            except AlreadyExistsError as error:
                # Written to lately. Regrow's writers hold a lock; of others nobody knows, and their
                # caller has asked.
                if self._bucket is None and not _is_locked(path):
                    _native.remove(at, True, True)
                else:
                    _log.warning("%s was not removed: %s", path, error)
            except RegrowError as error:
                _log.warning("%s was not removed: %s", path, error)

    def _leave_nothing(self) -> None:
        """Removes the folders of leases, where nobody has put anything into them."""
        if self._bucket is not None:
            return
        for folder in (os.path.join(_OWN, "leases"), os.path.join(_OWN, "deleting"), _OWN):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(self.path, folder))

    # ---- what the folder says of itself -----------------------------------------------

    def write_root_metadata(self, given: Mapping[str, Any] | None) -> None:
        """Writes the folder's own metadata, once."""
        file = self.path / METADATA_ITEM_NAME / "_ROOT_METADATA"
        is_wanted = given is not None and self._options.save_root_metadata and not self._options.read_only
        if not is_wanted or not _saving.is_primary() or file.exists():
            return
        text = json.dumps({"internal_metadata": {}, "custom_metadata": dict(given or {})})
        if self._bucket is not None:
            file.write_text(text)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.parent / f"_ROOT_METADATA{TMP_DIR_SUFFIX}"
        staged.write_text(text)
        os.replace(staged, file)

    def read_root_metadata(self) -> RootMetadata | None:
        """The folder's own metadata; `None` where there is none."""
        for name in ("_ROOT_METADATA", "metadata"):
            try:
                told = json.loads((self.path / METADATA_ITEM_NAME / name).read_text())
            except (OSError, ValueError):
                continue
            known = told.get("custom_metadata")
            unknown = {key: value for key, value in told.items() if key not in ("custom_metadata", "internal_metadata")}
            return RootMetadata(told.get("internal_metadata") or {}, {**unknown, **(known or {})})
        return None


def _is_locked(folder: Any) -> bool:
    """Whether a writer of regrow has this temporary folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
