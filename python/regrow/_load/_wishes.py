"""A request to an opened checkpoint, and its plain part."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from .._core._progress import Progress
from .._core._report import Stages
from .._core._requests import Casts, LoadRequest
from .._jobs._together import Together
from .._leaves._columns import LoadedLeaves
from .._tree._handlers import LeafRegistry
from .._tree._nodes import register_with_jax

if TYPE_CHECKING:
    from ._like import Template


class Wishes(NamedTuple):
    """A request to an opened checkpoint."""

    only: list[str]
    casts: Casts
    keeps_missing: bool
    drops_extra: bool
    as_dicts: bool
    placeholders: bool
    out: Any
    verify: bool
    mmap: bool
    shardings: Any
    region: Any
    pad_or_truncate: bool
    budget: int | None
    handlers: LeafRegistry | None
    progress: Progress
    together: Together
    stages: Stages
    salvages: bool = False
    """Whether to load the intact leaves of a damaged checkpoint."""
    lost: frozenset[str] = frozenset()
    """The key paths of lost leaves, if the checkpoint is salvaged."""


def register_nodes() -> None:
    """Makes `Node` a pytree node of JAX, if the program has imported JAX."""
    if "jax" in sys.modules:
        register_with_jax()


def read_whole(
    native: _native.Checkpoint, wishes: Wishes, template: Template | None, watch: Any, unread: list[int]
) -> Any:
    request = LoadRequest(
        casts=wishes.casts,
        only=wishes.only if template is None else (),
        template=None if template is None else template.columns(),
        partial=template is not None and (wishes.drops_extra or template.is_selection),
        verify=wishes.verify,
        mmap=wishes.mmap,
        budget_bytes=wishes.budget,
        unread=unread,
    )
    with wishes.stages.stage("read"):
        structure, leaves = native.load(request, watch)
    if wishes.stages.is_asked_for:
        # A leaf that is read by regions is `None` here.
        whole = (getattr(value, "nbytes", 0) for value in LoadedLeaves(*leaves).values)
        wishes.stages.add("read", len_bytes=sum(whole))
    return structure, leaves
