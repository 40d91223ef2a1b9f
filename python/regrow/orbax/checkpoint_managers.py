"""Policies: when a manager saves, and which steps it keeps."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Container, Sequence
from typing import Any

from .options import MultiprocessingOptions


@dataclasses.dataclass
class PolicyCheckpointInfo:
    step: int = 0
    time: datetime.datetime = dataclasses.field(default_factory=lambda: datetime.datetime.now(tz=datetime.UTC))
    metrics: Any = None

    def __str__(self) -> str:
        return f"Checkpoint[step={self.step} | time={self.time}]"


@dataclasses.dataclass(kw_only=True)
class DecisionContext:
    is_saving_in_progress: bool
    reached_preemption: bool
    multiprocessing_options: MultiprocessingOptions = dataclasses.field(default_factory=MultiprocessingOptions)


Previous = Sequence[PolicyCheckpointInfo]


class SaveDecisionPolicy:
    """Decides whether a step is saved. Subclass it for your own rules."""

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        """Whether this step is saved."""
        raise NotImplementedError


@dataclasses.dataclass
class FixedIntervalPolicy(SaveDecisionPolicy):
    interval: int

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        return step.step % self.interval == 0


class PreemptionCheckpointingPolicy(SaveDecisionPolicy):
    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        return context.reached_preemption


class InitialSavePolicy(SaveDecisionPolicy):
    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        return not previous_steps


@dataclasses.dataclass
class SpecificStepsPolicy(SaveDecisionPolicy):
    steps: Container[int]

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        return step.step in self.steps


@dataclasses.dataclass(kw_only=True)
class ContinuousCheckpointingPolicy(SaveDecisionPolicy):
    """Saves when the save before has ended, at most once in `minimum_interval_secs`."""

    minimum_interval_secs: int | None = None

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        if context.is_saving_in_progress:
            return False
        if not previous_steps or self.minimum_interval_secs is None:
            return True
        return (step.time - previous_steps[-1].time).total_seconds() >= self.minimum_interval_secs


@dataclasses.dataclass
class AnySavePolicy(SaveDecisionPolicy):
    policies: Sequence[SaveDecisionPolicy]

    def should_save(self, step: PolicyCheckpointInfo, previous_steps: Previous, *, context: DecisionContext) -> bool:
        return any(policy.should_save(step, previous_steps, context=context) for policy in self.policies)


@dataclasses.dataclass
class PreservationContext:
    """The data that a decision to keep may use."""


class PreservationPolicy:
    """Decides which steps are kept. Subclass it for your own rules."""

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        """For each step, whether to keep it."""
        raise NotImplementedError


@dataclasses.dataclass
class LatestN(PreservationPolicy):
    """Keeps the latest `n` steps; all if `None`."""

    n: int | None = None

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        first = 0 if self.n is None else len(checkpoints) - self.n
        return [at >= first for at in range(len(checkpoints))]


@dataclasses.dataclass
class EveryNSeconds(PreservationPolicy):
    """Keeps one step in each interval of time."""

    interval_secs: int

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        kept, last = [], None
        for checkpoint in checkpoints:
            is_due = last is None or (checkpoint.time - last).total_seconds() >= self.interval_secs
            last = checkpoint.time if is_due else last
            kept.append(is_due)
        return kept


@dataclasses.dataclass
class EveryNSteps(PreservationPolicy):
    """Keeps multiples of `interval_steps`, or steps at least that far from the last kept one."""

    interval_steps: int
    exact_interval: bool = True
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
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
            # A `max_to_keep` of 0 keeps all due steps, as in Orbax.
            for at in due[: -self.max_to_keep]:
                kept[at] = False
        return kept


@dataclasses.dataclass
class EveryNStepsClosest(PreservationPolicy):
    """Keeps the step closest to each multiple of `interval_steps`, and the last step."""

    interval_steps: int
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
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
            # A `max_to_keep` of 0 keeps all these steps, as in Orbax.
            kept = kept[-self.max_to_keep :]
        return [at in kept for at in range(len(checkpoints))]


@dataclasses.dataclass
class LatestDuration(PreservationPolicy):
    """Keeps steps that are not older than a duration, and all steps after the first of them."""

    duration: datetime.timedelta

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        now = datetime.datetime.now(tz=datetime.UTC)
        young = (at for at, checkpoint in enumerate(checkpoints) if now - checkpoint.time <= self.duration)
        first = next(young, len(checkpoints))
        return [at >= first for at in range(len(checkpoints))]


@dataclasses.dataclass
class PreserveAll(PreservationPolicy):
    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        return [True] * len(checkpoints)


@dataclasses.dataclass
class CustomSteps(PreservationPolicy):
    steps: Sequence[int]

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        return [checkpoint.step in self.steps for checkpoint in checkpoints]


@dataclasses.dataclass
class AnyPreservationPolicy(PreservationPolicy):
    policies: Sequence[PreservationPolicy]

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        said = [policy.should_preserve(checkpoints, context=context) for policy in self.policies]
        return [any(column) for column in zip(*said, strict=True)] if said else [False] * len(checkpoints)


@dataclasses.dataclass(kw_only=True)
class BestN(PreservationPolicy):
    """Keeps the `n` steps with the highest number from the metrics, with `reverse` the lowest."""

    get_metric_fn: Callable[[Any], float]
    reverse: bool = False
    n: int | None = None
    keep_checkpoints_without_metrics: bool = True

    def should_preserve(self, checkpoints: Previous, *, context: PreservationContext) -> Sequence[bool]:
        if self.n is None or self.n == 0 or len(checkpoints) <= self.n:
            return [self.n != 0] * len(checkpoints)
        measured = [at for at, checkpoint in enumerate(checkpoints) if checkpoint.metrics is not None]
        measured.sort(key=lambda at: self.get_metric_fn(checkpoints[at].metrics), reverse=self.reverse)
        best = set(measured[max(0, len(measured) - self.n) :])
        return [
            at in best or (self.keep_checkpoints_without_metrics and checkpoint.metrics is None)
            for at, checkpoint in enumerate(checkpoints)
        ]
