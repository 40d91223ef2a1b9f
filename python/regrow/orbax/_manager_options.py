"""The options of a manager."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Callable, Container
from typing import Any

from .options import AsyncOptions, FileOptions, MultiprocessingOptions

_WRITES = {
    "max_to_keep": None,
    "keep_time_interval": None,
    "keep_period": None,
    "create": False,
    "cleanup_tmp_directories": False,
    "save_on_steps": None,
    "todelete_subdir": None,
    "todelete_full_path": None,
    "should_save_fn": None,
}
"""Options that a read-only manager does not use."""


@dataclasses.dataclass
class CheckpointManagerOptions:
    """When a manager saves, which steps it keeps, and how it names them, as in Orbax."""

    save_interval_steps: int = 1
    max_to_keep: int | None = None
    keep_time_interval: datetime.timedelta | None = None
    keep_period: int | None = None
    best_fn: Callable[[Any], float] | None = None
    best_mode: str = "max"
    keep_checkpoints_without_metrics: bool = True
    step_prefix: str | None = None
    step_format_fixed_length: int | None = None
    step_name_format: Any = None
    create: bool = True
    cleanup_tmp_directories: bool = False
    save_on_steps: Container[int] | None = None
    single_host_load_and_broadcast: bool = False
    todelete_subdir: str | None = None
    todelete_full_path: str | None = None
    enable_background_delete: bool = False
    num_deletion_threads: int | None = None
    read_only: bool = False
    enable_async_checkpointing: bool = True
    async_options: AsyncOptions | None = None
    multiprocessing_options: MultiprocessingOptions = dataclasses.field(default_factory=MultiprocessingOptions)
    should_save_fn: Callable[[int, int | None], bool] | None = None
    file_options: FileOptions = dataclasses.field(default_factory=FileOptions)
    atomicity_options: Any = None
    save_root_metadata: bool = True
    temporary_path_class: Any = None
    save_decision_policy: Any = None
    preservation_policy: Any = None
    prevent_write_metrics: bool = False
    enable_should_save_is_saving_in_progress_check: bool = True
    enable_per_process_directory_creation: bool = False
    lightweight_initialize: bool = False

    def __post_init__(self) -> None:
        if self.best_mode not in ("min", "max"):
            raise ValueError(
                f"`CheckpointManagerOptions.best_mode` must be one of 'min' or 'max'. Got {self.best_mode!r}."
            )
        if self.max_to_keep is not None and self.max_to_keep < 0 and self.preservation_policy is None:
            raise ValueError("Setting of `max_to_keep` must be None or non-negative.")
        if self.todelete_subdir is not None and self.todelete_full_path is not None:
            raise ValueError("`todelete_subdir` and `todelete_full_path` cannot both be set: give one of them.")
        is_form_broadcast = getattr(self.step_name_format, "single_host_load_and_broadcast", False)
        if is_form_broadcast and not self.single_host_load_and_broadcast:
            raise ValueError(
                "`step_name_format.single_host_load_and_broadcast=True` needs"
                " `CheckpointManagerOptions.single_host_load_and_broadcast=True`."
            )
        if self.single_host_load_and_broadcast and self.step_name_format is not None and not is_form_broadcast:
            raise ValueError(
                "`CheckpointManagerOptions.single_host_load_and_broadcast=True` needs"
                " `step_name_format.single_host_load_and_broadcast=True`."
            )
        if self.enable_per_process_directory_creation and self.multiprocessing_options.primary_host is not None:
            raise ValueError("`enable_per_process_directory_creation` goes only with `primary_host=None`.")
        if self.read_only:
            self.save_interval_steps = 0
            for name, value in _WRITES.items():
                if getattr(self, name) not in (value, None):
                    logging.getLogger("regrow.orbax").warning("read_only=True, setting %s=%r.", name, value)
                setattr(self, name, value)
        self.save_on_steps = frozenset(self.save_on_steps or ())  # type: ignore[call-overload]
