"""What saves and loads are to do, set before a ``with`` block and in force within it."""

from __future__ import annotations

import contextvars
import copy
import enum
from types import SimpleNamespace, TracebackType
from typing import Any, Self


class CheckpointLayout(enum.Enum):
    """The layout that is loaded. Any layout that regrow knows is recognised by itself; saves are Orbax'."""

    ORBAX = "Orbax"
    SAFETENSORS = "SafeTensors"


def _defaults() -> dict[str, Any]:
    none = SimpleNamespace
    return {
        "array": none(
            saving=none(
                use_ocdbt=True,
                use_zarr3=True,
                ocdbt_target_data_file_size=None,
                storage_options=none(chunk_byte_size=None, dtype=None, shard_axes=()),
            ),
            loading=none(
                use_load_and_broadcast=False,
                load_and_broadcast_options=none(),
                enable_padding_and_truncation=False,
            ),
        ),
        "pytree": none(saving=none(), loading=none(partial_load=False)),
        "memory": none(write_concurrent_bytes=None, read_concurrent_bytes=None),
        "asynchronous": none(timeout_secs=600, post_finalization_callback=None),
        "multiprocessing": none(primary_host=0, active_processes=None, barrier_sync_key_prefix=None),
        "file": none(path_permission_mode=None),
        "deletion": none(gcs_deletion_options=none(todelete_full_path=None)),
        "pathways": none(checkpointing_impl=None),
        "checkpointables": none(registry=None),
        "safetensors": none(),
        "checkpoint_layout": CheckpointLayout.ORBAX,
    }


class Context:
    """Settings, in groups: ``context.array.saving.use_zarr3 = False``.

    Those that say how Orbax does its work are accepted and change nothing.
    """

    def __init__(self, context: Context | None = None, **given: Any) -> None:
        """The defaults, or a copy of another context, with settings of their own by name.

        Raises:
            TypeError: for a group that is not there.
        """
        self.__dict__.update(_defaults() if context is None else copy.deepcopy(_groups(context)))
        self._tokens: list[contextvars.Token[Context | None]] = []
        for name, value in given.items():
            known = name.removesuffix("_options")
            if known not in self.__dict__:
                raise TypeError(f"Context() got an unexpected keyword argument {name!r}")
            if value is not None:
                setattr(self, known, value)

    def __enter__(self) -> Self:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._tokens.pop())

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Context has no {name!r}")


def _groups(context: Context) -> dict[str, Any]:
    return {name: value for name, value in context.__dict__.items() if not name.startswith("_")}


_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("regrow.orbax.v1.context", default=None)


def current() -> Context:
    """The context that is in force."""
    return _current.get() or Context()
