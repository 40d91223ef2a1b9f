"""When a manager saves, and which steps it deletes, as functions of the steps and the options."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from ._manager_options import CheckpointManagerOptions
from .checkpoint_managers import (
    AnyPreservationPolicy,
    AnySavePolicy,
    BestN,
    DecisionContext,
    EveryNSeconds,
    EveryNSteps,
    FixedIntervalPolicy,
    InitialSavePolicy,
    LatestN,
    PolicyCheckpointInfo,
    PreemptionCheckpointingPolicy,
    PreservationContext,
    SpecificStepsPolicy,
)

Listed = Sequence[PolicyCheckpointInfo]


def is_due(step: int, previous: Listed, options: CheckpointManagerOptions, *, is_saving: bool, preempted: bool) -> bool:
    """Whether to save a step. `previous` has the existing steps and the one in progress."""
    latest = max((info.step for info in previous), default=None)
    if latest is not None and latest >= step:
        return False
    policy = options.save_decision_policy
    if policy is None and options.should_save_fn is not None:
        return preempted or bool(options.should_save_fn(step, latest))
    context = DecisionContext(
        is_saving_in_progress=is_saving and options.enable_should_save_is_saving_in_progress_check,
        reached_preemption=preempted,
        multiprocessing_options=options.multiprocessing_options,
    )
    now = PolicyCheckpointInfo(step, datetime.datetime.now(tz=datetime.UTC))
    return bool((policy or _usual(options)).should_save(now, previous, context=context))


def _usual(options: CheckpointManagerOptions) -> AnySavePolicy:
    regular = [FixedIntervalPolicy(options.save_interval_steps)] if options.save_interval_steps > 0 else []
    set_steps = SpecificStepsPolicy(options.save_on_steps or ())
    return AnySavePolicy([*regular, set_steps, PreemptionCheckpointingPolicy(), InitialSavePolicy()])


def to_delete(listed: Listed, options: CheckpointManagerOptions) -> list[int]:
    """The steps to delete. At least one step stays: the latest, if nothing else would."""
    policy = _preservation(options)
    if policy is None or len(listed) < 2:
        return []
    kept = list(policy.should_preserve(listed, context=PreservationContext()))
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
    policies: list[Any] = []
    if options.best_fn is None:
        policies.append(LatestN(options.max_to_keep))
    else:
        policies.append(
            BestN(
                get_metric_fn=options.best_fn,
                reverse=options.best_mode == "min",
                n=options.max_to_keep,
                keep_checkpoints_without_metrics=options.keep_checkpoints_without_metrics,
            )
        )
    if options.keep_period is not None:
        policies.append(EveryNSteps(options.keep_period))
    if options.keep_time_interval is not None:
        policies.append(EveryNSeconds(int(options.keep_time_interval.total_seconds())))
    return AnyPreservationPolicy(policies)


def best(listed: Listed, options: CheckpointManagerOptions) -> int | None:
    """The best step by `best_fn`, the latest of equal ones. NaN sorts as in Orbax."""
    function = options.best_fn
    measured = [info for info in listed if info.metrics is not None]
    if function is None or not measured:
        return None
    return sorted(measured, key=lambda info: function(info.metrics), reverse=options.best_mode == "min")[-1].step
