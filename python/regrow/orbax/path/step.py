"""Names of steps: the name that is written, and the names that are read."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from .._paths import TMP_DIR_SUFFIX, as_path, is_finalized, is_temporary
from ..metadata import metadata_store, step_metadata_file_path
from .atomicity import AtomicRenameTemporaryPath, TemporaryPath

ALLOWED_STEP_NAME_PATTERN = r"(.+)_(\d+)"
TMP_DIR_STEP_PATTERN = rf".*?_*?(\d+){re.escape(TMP_DIR_SUFFIX)}"
is_path_finalized = is_checkpoint_finalized = is_finalized
is_path_temporary = is_tmp_checkpoint = is_temporary


@dataclasses.dataclass(frozen=True)
class Metadata:
    step: int
    path: Any

    @property
    def init_timestamp_nsecs(self) -> int | None:
        return self._noted("init_timestamp_nsecs")

    @property
    def commit_timestamp_nsecs(self) -> int | None:
        return self._noted("commit_timestamp_nsecs")

    @property
    def commit_timestamp(self) -> datetime.datetime:
        """When the step was committed, or else last written."""
        noted = self.commit_timestamp_nsecs
        seconds = os.path.getmtime(self.path) if noted is None else noted / 1e9
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)

    def _noted(self, name: str) -> int | None:
        told = metadata_store(enable_write=False).read(step_metadata_file_path(self.path)) or {}
        found: int | None = told.get(name)
        return found


MetadataT = TypeVar("MetadataT", bound="Metadata")


class NameFormat(Generic[MetadataT]):
    """The format of the names of steps. Subclass it for your own names."""

    def build_name(self, step: int) -> str:
        raise NotImplementedError

    def find_all(self, base_path: Any) -> Iterator[Metadata]:
        raise NotImplementedError

    def find_step(self, base_path: Any, step: int) -> Metadata:
        for found in self.find_all(base_path):
            if found.step == step:
                return found
        raise ValueError(f"No step path found with name={self.build_name(step)}, step={step} in {base_path}")


@dataclasses.dataclass(frozen=True)
class StandardNameFormat(NameFormat[Any]):
    """``[<prefix>_]<number>``, the number padded with zeros if a width is given."""

    step_prefix: str | None = None
    step_format_fixed_length: int | None = None
    single_host_load_and_broadcast: bool = False
    atomicity_options: Any = dataclasses.field(default=None, compare=False)

    def build_name(self, step: int) -> str:
        number = str(step) if self.step_format_fixed_length is None else f"{step:0{self.step_format_fixed_length}d}"
        return f"{step_prefix_with_underscore(self.step_prefix)}{number}"

    def parse(self, name: str) -> int | None:
        """The step of a name; `None` if it is not the name of a step."""
        prefix = step_prefix_with_underscore(self.step_prefix)
        if not name.startswith(prefix):
            return None
        number = name[len(prefix) :]
        if not re.fullmatch(r"\d+", number, re.ASCII) or self.build_name(int(number)) != name:
            return None
        return int(number)

    def find_all(self, base_path: Any) -> Iterator[Metadata]:
        folder = as_path(base_path)
        for child in folder.iterdir() if folder.is_dir() else ():
            step = self.parse(child.name)
            if step is not None and child.is_dir() and is_finalized(child, self.atomicity_options):
                yield Metadata(step, child)

    def find_step(self, base_path: Any, step: int) -> Metadata:
        path = as_path(base_path) / self.build_name(step)
        if not path.exists() or not is_finalized(path, self.atomicity_options):
            raise ValueError(f"No step path found with name={path.name}, step={step} in {base_path}")
        return Metadata(step, path)


@dataclasses.dataclass(frozen=True)
class _CompositeNameFormat(NameFormat[Any]):
    write: NameFormat[Any]
    read: tuple[NameFormat[Any], ...]

    def build_name(self, step: int) -> str:
        return self.write.build_name(step)

    def find_all(self, base_path: Any) -> Iterator[Metadata]:
        seen = set()
        for form in self.read:
            for found in form.find_all(base_path):
                if found.step not in seen:
                    seen.add(found.step)
                    yield found


def standard_name_format(
    *,
    step_prefix: str | None = None,
    step_format_fixed_length: int | None = None,
    single_host_load_and_broadcast: bool = False,
    temporary_path_cls: Any = None,
    atomicity_options: Any = None,
) -> NameFormat[Any]:
    return StandardNameFormat(step_prefix, step_format_fixed_length, single_host_load_and_broadcast, atomicity_options)


def composite_name_format(
    write_name_format: NameFormat[Any], read_name_formats: Sequence[NameFormat[Any]]
) -> NameFormat[Any]:
    """Several formats that are read. One of them is written."""
    if write_name_format not in read_name_formats:
        raise ValueError(f"{read_name_formats} must include {write_name_format}.")
    return _CompositeNameFormat(write_name_format, tuple(read_name_formats))


def forms_of(name_format: Any) -> list[tuple[str | None, int | None]] | None:
    """Prefix and width of each name, the written one first; `None` for names of another kind."""
    if isinstance(name_format, _CompositeNameFormat):
        several = [name_format.write, *(form for form in name_format.read if form != name_format.write)]
    else:
        several = [name_format]
    forms = [_form_of(form) for form in several]
    return None if None in forms else [form for form in forms if form is not None]


def _form_of(form: Any) -> tuple[str | None, int | None] | None:
    cls = type(form)
    is_original = cls.__name__ == "_StandardNameFormat" and cls.__module__.split(".")[0] == "orbax"
    # A subclass may name and find steps in its own way.
    if (cls is not StandardNameFormat and not is_original) or form.step_prefix == "":
        return None
    return form.step_prefix, form.step_format_fixed_length or None


def step_prefix_with_underscore(step_prefix: str | None) -> str:
    return "" if step_prefix is None else f"{step_prefix}_"


def build_step_path(base_path: Any, name_format: NameFormat[Any], step: int) -> Any:
    """The path of a step, which need not exist."""
    return as_path(base_path) / name_format.build_name(step)


def find_step_path(
    base_path: Any, name_format: NameFormat[Any], *, step: int, include_uncommitted: bool = False
) -> Any:
    """The path of a step; with `include_uncommitted` also of one that is being saved."""
    if include_uncommitted:
        final = build_step_path(base_path, name_format, step)
        for temporary in all_temporary_paths(base_path):
            if temporary.get_final() == final:
                return temporary.get()
    return name_format.find_step(base_path, step).path


def maybe_find_step_metadata(base_path: Any, name_format: NameFormat[Any], *, step: int) -> Metadata | None:
    try:
        return name_format.find_step(base_path, step)
    except ValueError:
        return None


def build_step_metadatas(step_paths: Iterable[Any], build_metadata: Callable[[Any], Any]) -> Iterator[Any]:
    return (found for path in step_paths if (found := build_metadata(path)) is not None)


def latest_step_metadata(root_path: Any, name_format: NameFormat[Any]) -> Metadata | None:
    return max(name_format.find_all(root_path), key=lambda found: found.step, default=None)


def step_metadata_of_checkpoint_path(checkpoint_path: Any, name_format: NameFormat[Any]) -> Metadata:
    path = as_path(checkpoint_path)
    for found in name_format.find_all(path.parent):
        if found.path.name == path.name:
            return found
    raise ValueError(
        f"Failed to resolve step metadata of checkpoint path={checkpoint_path} with NameFormat={name_format}"
    )


def get_save_directory(
    step: int,
    directory: Any,
    name: str | None = None,
    step_prefix: str | None = None,
    override_directory: Any = None,
    step_format_fixed_length: int | None = None,
    step_name_format: NameFormat[Any] | None = None,
) -> Any:
    """The path that a step, or an item of it, is saved to."""
    if directory is None:
        raise ValueError("Directory cannot be None.")
    form = step_name_format or StandardNameFormat(step_prefix, step_format_fixed_length)
    path = build_step_path(directory, form, step) if override_directory is None else as_path(override_directory)
    return path if name is None else path / name


def step_from_checkpoint_name(name: str) -> int:
    """The step of a name with any prefix, also of a save in progress."""
    committed = name.partition(TMP_DIR_SUFFIX)[0]
    if committed.isdigit():
        return int(committed)
    match = re.fullmatch(ALLOWED_STEP_NAME_PATTERN, committed)
    if match:
        return int(match.group(2))
    raise ValueError(f"Unrecognized name format: {name}.")


def checkpoint_steps_paths(checkpoint_dir: Any) -> list[Any]:
    """The paths of all steps, with any prefix."""
    folder = as_path(checkpoint_dir)
    if not folder.exists():
        return []
    return [path for path in folder.iterdir() if _step_of(path) is not None]


def _step_of(path: Any) -> int | None:
    if not path.is_dir() or is_temporary(path):
        return None
    try:
        return step_from_checkpoint_name(path.name)
    except ValueError:
        return None


def checkpoint_steps(checkpoint_dir: Any) -> list[int]:
    return [step_from_checkpoint_name(path.name) for path in checkpoint_steps_paths(checkpoint_dir)]


def any_checkpoint_step(checkpoint_dir: Any) -> int | None:
    return next(iter(checkpoint_steps(checkpoint_dir)), None)


def all_temporary_paths(root_directory: Any, **_: Any) -> list[TemporaryPath]:
    """Saves in progress, and temporary files of broken saves."""
    folder = as_path(root_directory)
    found = [path for path in folder.iterdir() if is_temporary(path)] if folder.exists() else []
    return [AtomicRenameTemporaryPath.from_temporary(path) for path in found]


def tmp_checkpoints(checkpoint_dir: Any) -> list[str]:
    return [path.get().name for path in all_temporary_paths(checkpoint_dir)]


def is_standard_name_format(name_format: NameFormat[Any]) -> bool:
    return isinstance(name_format, StandardNameFormat)


def single_host_load_and_broadcast_name_format(name_format: NameFormat[Any]) -> NameFormat[Any]:
    """The same names. One process reads the list of steps."""
    if not isinstance(name_format, StandardNameFormat):
        raise ValueError(
            f"single_host_load_and_broadcast is only supported for standard name formats. Got {name_format}."
        )
    return dataclasses.replace(name_format, single_host_load_and_broadcast=True)
