"""Options of saves and loads, set before a ``with`` block and in force within it."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
from types import TracebackType
from typing import Any, Self

from ..._errors import failure
from . import options
from .options import FROZEN, CheckpointLayout


class Context:
    """Groups of options: ``context.array.saving.use_zarr3 = False``."""

    array: options.ArrayOptions
    asynchronous: options.AsyncOptions
    atomicity: options.AtomicityOptions
    checkpoint_layout: CheckpointLayout
    checkpointables: options.CheckpointablesOptions
    deletion: options.DeletionOptions
    file: options.FileOptions
    memory: options.MemoryOptions
    multiprocessing: options.MultiprocessingOptions
    pathways: options.PathwaysOptions
    pytree: options.PyTreeOptions
    safetensors: options.SafetensorsOptions

    def __init__(
        self,
        context: Context | None = None,
        *,
        pytree_options: options.PyTreeOptions | None = None,
        array_options: options.ArrayOptions | None = None,
        async_options: options.AsyncOptions | None = None,
        multiprocessing_options: options.MultiprocessingOptions | None = None,
        file_options: options.FileOptions | None = None,
        checkpointables_options: options.CheckpointablesOptions | None = None,
        pathways_options: options.PathwaysOptions | None = None,
        checkpoint_layout: CheckpointLayout | str | None = None,
        deletion_options: options.DeletionOptions | None = None,
        memory_options: options.MemoryOptions | None = None,
        safetensors_options: options.SafetensorsOptions | None = None,
        atomicity_options: options.AtomicityOptions | None = None,
    ) -> None:
        """The defaults, or a copy of another context, with its own groups of options."""
        given = locals()
        for name, (argument, default) in _GROUPS.items():
            group = given[argument]
            if group is None and context is not None:
                group = getattr(context, name)
            self.__dict__[name] = default() if group is None else copy.deepcopy(group)
        inherited = CheckpointLayout.ORBAX if context is None else context.checkpoint_layout
        self.checkpoint_layout = CheckpointLayout(checkpoint_layout or inherited)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "checkpoint_layout":
            help = f"set options of a group, or give {name}_options="
            raise failure(AttributeError, f"{name} cannot be set", help=help)
        if id(self) in FROZEN.get():
            help = "set it before the `with` block"
            raise failure(RuntimeError, "checkpoint_layout cannot be set in a context that is in force", help=help)
        self.__dict__[name] = CheckpointLayout(value)

    def __getattr__(self, name: str) -> Any:
        group = _GROUP_OF_ARGUMENT.get(name)
        if group is None or group not in self.__dict__:
            raise AttributeError(f"Context has no {name!r}")
        return self.__dict__[group]

    def __enter__(self) -> Self:
        _outer.set((*_outer.get(), (_current.get(), FROZEN.get())))
        _current.set(self)
        FROZEN.set(FROZEN.get() | {id(self)} | _ids([self.__dict__[name] for name in _GROUPS]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        *others, (context, frozen) = _outer.get()
        _outer.set(tuple(others))
        _current.set(context)
        FROZEN.set(frozen)


_GROUPS: dict[str, tuple[str, Any]] = {
    name: ("async_options" if name == "asynchronous" else f"{name}_options", getattr(options, kind.split(".")[1]))
    for name, kind in Context.__annotations__.items()
    if name != "checkpoint_layout"
}
"""The argument and the class of each group."""
_GROUP_OF_ARGUMENT = {argument: name for name, (argument, _) in _GROUPS.items()}


def _ids(groups: list[Any]) -> set[int]:
    found: set[int] = set()
    while groups:
        group = groups.pop()
        if isinstance(group, options.Options):
            found.add(id(group))
            groups.extend(getattr(group, field.name) for field in dataclasses.fields(group))  # type: ignore[arg-type]
    return found


_outer: contextvars.ContextVar[tuple[tuple[Context | None, frozenset[int]], ...]] = contextvars.ContextVar(
    "regrow.orbax.v1.outer", default=()
)
"""The context that each active context of this thread replaced. Threads may share a context."""
_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("regrow.orbax.v1.context", default=None)


def current(default: Context | None = None) -> Context:
    """The context in force; else `default`, or a new one."""
    return _current.get() or default or Context()


get_context = current
