"""Futures, under Orbax' names."""

from ._interfaces import ChainedFuture, Future, NoopFuture
from ._interfaces import CommitFuture as CommitFutureAwaitingContractedSignals

__all__ = ["ChainedFuture", "CommitFutureAwaitingContractedSignals", "Future", "NoopFuture"]
