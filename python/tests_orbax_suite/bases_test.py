"""The tests of Orbax that come as base classes: each is run with the class that it is for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint._src.checkpointers import checkpointer_test_utils
from orbax.checkpoint._src.handlers import (
    pytree_checkpoint_handler_test_utils,
    standard_checkpoint_handler_test_utils,
)


class CheckpointerTest(checkpointer_test_utils.CheckpointerTestBase.Test):
    """Saves that return when they are done."""

    def checkpointer(self, handler: Any, **options: Any) -> Any:
        return ocp.Checkpointer(handler, **options)


class AsyncCheckpointerTest(checkpointer_test_utils.CheckpointerTestBase.Test):
    """Saves in the background."""

    def checkpointer(self, handler: Any, **options: Any) -> Any:
        return ocp.AsyncCheckpointer(handler, **options)


class PyTreeCheckpointHandlerTest(pytree_checkpoint_handler_test_utils.PyTreeCheckpointHandlerTestBase.Test):
    """Handlers made with public arguments: the original's way goes through its registry of type
    handlers.
    """

    @contextlib.contextmanager
    def ocdbt_checkpoint_handler(
        self, use_ocdbt: bool, use_zarr3: bool = False, pytree_metadata_options: Any = None, **_: Any
    ) -> Iterator[Any]:
        handler = pytree_checkpoint_handler_test_utils.PyTreeCheckpointHandler(
            use_ocdbt=use_ocdbt,
            use_zarr3=use_zarr3,
            **({} if pytree_metadata_options is None else {"pytree_metadata_options": pytree_metadata_options}),
        )
        try:
            yield handler
        finally:
            handler.close()


class StandardCheckpointHandlerTest(
    standard_checkpoint_handler_test_utils.StandardCheckpointHandlerTestBase.Test,
):
    """The handler of arrays and numbers."""

    @property
    def handler(self) -> Any:
        return standard_checkpoint_handler_test_utils.StandardCheckpointHandler()
