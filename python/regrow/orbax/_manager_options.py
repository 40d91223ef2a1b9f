"""The options of a manager, and their effects: when it saves, and which steps it deletes."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Callable, Container, Sequence
from typing import Any

from . import checkpoint_managers as policies
from .options import AsyncOptions, FileOptions, MultiprocessingOptions

_WRITES: dict[str, Any] = {"create": False, "cleanup_tmp_directories": False} | dict.fromkeys(
    "max_to_keep keep_time_interval keep_period save_on_steps todelete_subdir todelete_full_path should_save_fn".split()
)
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


Listed = Sequence[policies.PolicyCheckpointInfo]


def is_due(step: int, previous: Listed, options: CheckpointManagerOptions, *, is_saving: bool, preempted: bool) -> bool:
    """Whether to save a step. `previous` has the existing steps and the one in progress."""
    latest = max((info.step for info in previous), default=None)
    if latest is not None and latest >= step:
        return False
    policy = options.save_decision_policy
    if policy is None and options.should_save_fn is not None:
        return preempted or bool(options.should_save_fn(step, latest))
    context = policies.DecisionContext(
        is_saving_in_progress=is_saving and options.enable_should_save_is_saving_in_progress_check,
        reached_preemption=preempted,
        multiprocessing_options=options.multiprocessing_options,
    )
    now = policies.PolicyCheckpointInfo(step, datetime.datetime.now(tz=datetime.UTC))
    return bool((policy or _usual(options)).should_save(now, previous, context=context))


def _usual(options: CheckpointManagerOptions) -> policies.AnySavePolicy:
    regular = [policies.FixedIntervalPolicy(options.save_interval_steps)] if options.save_interval_steps > 0 else []
    set_steps = policies.SpecificStepsPolicy(options.save_on_steps or ())
    return policies.AnySavePolicy(
        [*regular, set_steps, policies.PreemptionCheckpointingPolicy(), policies.InitialSavePolicy()]
    )


def to_delete(listed: Listed, options: CheckpointManagerOptions) -> list[int]:
    """The steps to delete. At least one step stays: the latest, if nothing else would."""
    policy = _preservation(options)
    if policy is None or len(listed) < 2:
        return []
    kept = list(policy.should_preserve(listed, context=policies.PreservationContext()))
    if not any(kept):
        kept[-1] = True
    return [info.step for info, is_kept in zip(listed, kept, strict=True) if not is_kept]


def error_of_ranks(listed: Listed, options: CheckpointManagerOptions) -> Exception | None:
    """The error of `best_fn` for one of the metrics, if there are more steps than are kept."""
    is_due = options.max_to_keep is not None and len(listed) > options.max_to_keep
    if options.best_fn is not None and options.preservation_policy is None and is_due:
        try:
            for info in listed:
                if info.metrics is not None:
                    options.best_fn(info.metrics)
        except Exception as error:
            return error
    return None


def keeps_all(options: CheckpointManagerOptions) -> bool:
    return _preservation(options) is None


def _preservation(options: CheckpointManagerOptions) -> Any:
    if options.preservation_policy is not None:
        return options.preservation_policy
    if options.max_to_keep is None:
        return None
    chosen: list[Any] = []
    if options.best_fn is None:
        chosen.append(policies.LatestN(options.max_to_keep))
    else:
        chosen.append(
            policies.BestN(
                get_metric_fn=options.best_fn,
                reverse=options.best_mode == "min",
                n=options.max_to_keep,
                keep_checkpoints_without_metrics=options.keep_checkpoints_without_metrics,
            )
        )
    if options.keep_period is not None:
        chosen.append(policies.EveryNSteps(options.keep_period))
    if options.keep_time_interval is not None:
        chosen.append(policies.EveryNSeconds(int(options.keep_time_interval.total_seconds())))
    return policies.AnyPreservationPolicy(chosen)


def best(listed: Listed, options: CheckpointManagerOptions) -> int | None:
    """The best step by `best_fn`, the latest of equal ones. NaN sorts as in Orbax."""
    function = options.best_fn
    measured = [info for info in listed if info.metrics is not None]
    if function is None or not measured:
        return None
    return sorted(measured, key=lambda info: function(info.metrics), reverse=options.best_mode == "min")[-1].step
