"""Restores of a step: of its item without a name, or of several items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._core._duck import is_a
from .._errors import failure
from . import _composite
from ._composite import CompositeArgs, CompositeCheckpointHandler
from ._handlers import PyTreeCheckpointHandler, handler_of_args, restore_pytree
from ._manager_folder import METRIC_ITEM_NAME
from ._paths import is_pytree
from .checkpointers import call_of

DEFAULT_ITEM_NAME = "default"


class Restorer:
    """Decides at each call, not once for a manager, which items are restored."""

    def __init__(self, composite: CompositeCheckpointHandler, is_by_name: bool) -> None:
        self._composite = composite
        self._is_by_name = is_by_name

    def restore(self, path: Any, items: Any, restore_kwargs: Any, args: Any) -> Any:
        """Restores what the arguments ask for, or the items and keywords of the older interface."""
        names = _composite.item_names(path)
        if args is not None and not is_a(args, "CompositeArgs"):
            return self._restore_default(path, names, args)
        if args is not None:
            return self._composite.restore(path, args)
        keywords = restore_kwargs or {}
        if self._is_by_name or (items is None and not keywords and DEFAULT_ITEM_NAME not in names):
            if is_pytree(path):
                return restore_pytree(path, call_of(PyTreeCheckpointHandler(), (), {}, for_save=False).args)
            targets = dict(items) if items else {}
            wanted = targets or dict.fromkeys(name for name in names if name != METRIC_ITEM_NAME)
            out = {name: self._legacy_args(name, item, keywords.get(name) or {}) for name, item in wanted.items()}
            return self._composite.restore(path, CompositeArgs(**out))
        return self._restore_default(path, names, self._legacy_args(DEFAULT_ITEM_NAME, items, keywords))

    def _legacy_args(self, name: str, item: Any, keywords: Mapping[str, Any]) -> Any:
        if item is None and not keywords:
            return None
        handler = self._composite._handlers.get(name) or PyTreeCheckpointHandler()
        call = call_of(handler, (item,), dict(keywords), for_save=False)
        return item if call.args is None else call.args

    def _restore_default(self, path: Any, names: list[str], args: Any) -> Any:
        if DEFAULT_ITEM_NAME in names:
            return self._composite.restore(path, CompositeArgs(**{DEFAULT_ITEM_NAME: args}))[DEFAULT_ITEM_NAME]
        if is_pytree(path):
            handler = PyTreeCheckpointHandler() if args is None else handler_of_args(args)
            return handler.restore(path, args=args)
        raise failure(
            KeyError,
            f'Item "{DEFAULT_ITEM_NAME}" was not found in {path}. Available items: {names}',
            help="name the items: restore(step, args=args.Composite(name=...))",
        )
