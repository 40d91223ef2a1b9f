"""Policies: which steps are kept."""

from __future__ import annotations

from ..checkpoint_managers import (
    AnyPreservationPolicy,
    BestN,
    CustomSteps,
    EveryNSeconds,
    EveryNSteps,
    EveryNStepsClosest,
    LatestDuration,
    LatestN,
    PreservationContext,
    PreservationPolicy,
    PreserveAll,
)

__all__ = [
    "AnyPreservationPolicy",
    "BestN",
    "CustomSteps",
    "EveryNSeconds",
    "EveryNSteps",
    "EveryNStepsClosest",
    "LatestDuration",
    "LatestN",
    "PreservationContext",
    "PreservationPolicy",
    "PreserveAll",
]
