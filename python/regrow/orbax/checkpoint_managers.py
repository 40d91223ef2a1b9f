"""Policies: when a manager saves, and which steps it keeps."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Container, Sequence
from typing import Any

from .options import MultiprocessingOptions

__all__ = [
    "AnyPreservationPolicy",
    "AnySavePolicy",
    "BestN",
    "ContinuousCheckpointingPolicy",
    "CustomSteps",
    "DecisionContext",
    "EveryNSeconds",
    "EveryNSteps",
    "EveryNStepsClosest",
    "FixedIntervalPolicy",
    "InitialSavePolicy",
    "LatestDuration",
    "LatestN",
    "PolicyCheckpointInfo",
    "PreemptionCheckpointingPolicy",
    "PreservationContext",
    "PreservationPolicy",
    "PreserveAll",
    "SaveDecisionPolicy",
    "SpecificStepsPolicy",
]


@dataclasses.dataclass
class PolicyCheckpointInfo:
    """A step, as policies see it."""

    step: int = 0
    time: datetime.datetime = dataclasses.field(default_factory=lambda: datetime.datetime.now(tz=datetime.UTC))
    metrics: Any = None

    def __str__(self) -> str:
        return f"Checkpoint[step={self.step} | time={self.time}]"


@dataclasses.dataclass(kw_only=True)
class DecisionContext:
    """What a decision to save may depend on."""

    is_saving_in_progress: bool
    reached_preemption: bool
    multiprocessing_options: MultiprocessingOptions = dataclasses.field(default_factory=MultiprocessingOptions)


Previous = Sequence[PolicyCheckpointInfo]


class SaveDecisionPolicy:
    """Whether a step is saved. Subclass it for rules of your own."""

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        """Whether this step is saved."""
        raise NotImplementedError


@dataclasses.dataclass
class FixedIntervalPolicy(SaveDecisionPolicy):
    """Every `interval` steps."""

    interval: int

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        """Whether this step is saved."""
        return step.step % self.interval == 0


class PreemptionCheckpointingPolicy(SaveDecisionPolicy):
    """When the machine is about to be taken away."""

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        """Whether this step is saved."""
        return context.reached_preemption


class InitialSavePolicy(SaveDecisionPolicy):
    """When there is no step yet."""

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        """Whether this step is saved."""
        return not previous_steps


@dataclasses.dataclass
class SpecificStepsPolicy(SaveDecisionPolicy):
    """These steps."""

    steps: Container[int]

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        """Whether this step is saved."""
        return step.step in self.steps


@dataclasses.dataclass(kw_only=True)
class ContinuousCheckpointingPolicy(SaveDecisionPolicy):
    """As often as saves end, and not more often than every `minimum_interval_secs`."""

    minimum_interval_secs: int | None = None

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        """Whether this step is saved."""
        if context.is_saving_in_progress:
            return False
        if not previous_steps or self.minimum_interval_secs is None:
            return True
        return (step.time - previous_steps[-1].time).total_seconds() >= self.minimum_interval_secs


@dataclasses.dataclass
class AnySavePolicy(SaveDecisionPolicy):
    """When any of these says so."""

    policies: Sequence[SaveDecisionPolicy]

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        """Whether this step is saved."""
        return any(policy.should_save(step, previous_steps, context=context) for policy in self.policies)


@dataclasses.dataclass
class PreservationContext:
    """What a decision to keep may depend on."""


class PreservationPolicy:
    """Which steps are kept. Subclass it for rules of your own."""

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept."""
        raise NotImplementedError


@dataclasses.dataclass
class LatestN(PreservationPolicy):
    """The latest `n`; all of them if `None`."""

    n: int | None = None

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept."""
        first = 0 if self.n is None else len(checkpoints) - self.n
        return [at >= first for at in range(len(checkpoints))]


@dataclasses.dataclass
class EveryNSeconds(PreservationPolicy):
    """One in each interval of time."""

    interval_secs: int

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept."""
        kept, last = [], None
        for checkpoint in checkpoints:
            is_due = last is None or (checkpoint.time - last).total_seconds() >= self.interval_secs
            last = checkpoint.time if is_due else last
            kept.append(is_due)
        return kept


@dataclasses.dataclass
class EveryNSteps(PreservationPolicy):
    """Each step that `interval_steps` divides, or that is at least as far from the last one
    kept.
    """

    interval_steps: int
    exact_interval: bool = True
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept.

        Raises:
            ValueError: for an interval of 0.
        """
        if self.interval_steps == 0:
            raise ValueError("interval_steps must not be 0.")
        kept, last = [], None
        for checkpoint in checkpoints:
            if self.exact_interval:
                is_due = checkpoint.step % self.interval_steps == 0
            else:
                is_due = last is None or checkpoint.step - last >= self.interval_steps
            last = checkpoint.step if is_due else last
            kept.append(is_due)
        if self.max_to_keep is not None:
            due = [at for at, is_due in enumerate(kept) if is_due]
            # Of 0 all stay, as in Orbax.
            for at in due[: -self.max_to_keep]:
                kept[at] = False
        return kept


@dataclasses.dataclass
class EveryNStepsClosest(PreservationPolicy):
    """For each multiple of `interval_steps` the step that is closest to it, and the last step."""

    interval_steps: int
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept.

        Raises:
            ValueError: for an interval of 0.
        """
        if self.interval_steps == 0:
            raise ValueError("interval_steps must not be 0.")
        closest: dict[int, tuple[int, int]] = {}
        for at, checkpoint in enumerate(checkpoints):
            multiple = round(checkpoint.step / self.interval_steps)
            distance = abs(checkpoint.step - multiple * self.interval_steps)
            if multiple not in closest or distance <= closest[multiple][0]:
                closest[multiple] = distance, at
        kept = sorted({at for _, at in closest.values()} | ({len(checkpoints) - 1} if checkpoints else set()))
        if self.max_to_keep is not None:
            # Of 0 all stay, as in Orbax.
            kept = kept[-self.max_to_keep :]
        return [at in kept for at in range(len(checkpoints))]


@dataclasses.dataclass
class LatestDuration(PreservationPolicy):
    """Steps that are not older than that, and all after the first of them."""

    duration: datetime.timedelta

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept."""
        now = datetime.datetime.now(tz=datetime.UTC)
        young = (at for at, checkpoint in enumerate(checkpoints) if now - checkpoint.time <= self.duration)
        first = next(young, len(checkpoints))
        return [at >= first for at in range(len(checkpoints))]


@dataclasses.dataclass
class PreserveAll(PreservationPolicy):
    """All of them."""

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept."""
        return [True] * len(checkpoints)


@dataclasses.dataclass
class CustomSteps(PreservationPolicy):
    """These steps."""

    steps: Sequence[int]

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept."""
        return [checkpoint.step in self.steps for checkpoint in checkpoints]


@dataclasses.dataclass
class AnyPreservationPolicy(PreservationPolicy):
    """What any of these keeps."""

    policies: Sequence[PreservationPolicy]

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept."""
        said = [policy.should_preserve(checkpoints, context=context) for policy in self.policies]
        return [any(column) for column in zip(*said, strict=True)] if said else [False] * len(checkpoints)


@dataclasses.dataclass(kw_only=True)
class BestN(PreservationPolicy):
    """The best `n` by a number made of the metrics: the highest, or with `reverse` the lowest."""

    get_metric_fn: Callable[[Any], float]
    reverse: bool = False
    n: int | None = None
    keep_checkpoints_without_metrics: bool = True

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step whether it is kept."""
        if self.n is None or self.n == 0 or len(checkpoints) <= self.n:
            return [self.n != 0] * len(checkpoints)
        measured = [at for at, checkpoint in enumerate(checkpoints) if checkpoint.metrics is not None]
        measured.sort(key=lambda at: self.get_metric_fn(checkpoints[at].metrics), reverse=self.reverse)
        best = set(measured[max(0, len(measured) - self.n) :])
        return [
            at in best or (self.keep_checkpoints_without_metrics and checkpoint.metrics is None)
            for at, checkpoint in enumerate(checkpoints)
        ]
