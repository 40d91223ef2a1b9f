"""Policies: when a step is saved."""

from __future__ import annotations

from ..checkpoint_managers import (
    AnySavePolicy,
    ContinuousCheckpointingPolicy,
    DecisionContext,
    FixedIntervalPolicy,
    InitialSavePolicy,
    PreemptionCheckpointingPolicy,
    SaveDecisionPolicy,
    SpecificStepsPolicy,
)

__all__ = [
    "AnySavePolicy",
    "ContinuousCheckpointingPolicy",
    "DecisionContext",
    "FixedIntervalPolicy",
    "InitialSavePolicy",
    "PreemptionCheckpointingPolicy",
    "SaveDecisionPolicy",
    "SpecificStepsPolicy",
]
