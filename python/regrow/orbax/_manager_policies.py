"""Which steps a manager deletes: a function of the steps and the options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._manager_options import CheckpointManagerOptions
from .checkpoint_managers import (
    AnyPreservationPolicy,
    BestN,
    EveryNSeconds,
    EveryNSteps,
    LatestN,
    PolicyCheckpointInfo,
    PreservationContext,
)


def to_delete(listed: Sequence[PolicyCheckpointInfo], options: CheckpointManagerOptions) -> list[int]:
    """The steps that are not kept. One step always is: the latest, where nothing else would be."""
    policy = _policy(options)
    if policy is None or len(listed) < 2:
        return []
    kept = list(policy.should_preserve(listed, context=PreservationContext()))
    if not any(kept):
        kept[-1] = True
    return [info.step for info, is_kept in zip(listed, kept, strict=True) if not is_kept]


def _policy(options: CheckpointManagerOptions) -> Any:
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
