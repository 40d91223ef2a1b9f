"""Handlers of random keys: the key, and a small JSON file with its kind."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import _other_handlers, _standard_handlers
from ._composite import BY_STORED_NAME, CompositeArgs, CompositeCheckpointHandler
from ._interfaces import AsyncCheckpointHandler, NoopFuture
from ._jax import jax
from ._standard_handlers import HANDLERS
from .checkpoint_args import CheckpointArgs, register_with_handler


class BaseRandomKeyCheckpointHandler(AsyncCheckpointHandler):
    """A key in one folder and its metadata in another, both below the folder of the item."""

    def __init__(self, key_name: str) -> None:
        self._key_name = key_name
        self._about_name = f"{key_name}_metadata"
        self._items = CompositeCheckpointHandler()

    def checkpoint_save_args(self, args: Any) -> tuple[Any, Any]:
        """Arguments that save the key, and arguments that save its metadata as JSON.

        Raises:
            TypeError: for a value that is not a key.
        """
        raise NotImplementedError

    def checkpoint_restore_args(self, args: Any) -> Any:
        """Arguments that restore the key."""
        raise NotImplementedError

    def post_restore(self, item: Any, metadata: dict[str, Any]) -> Any:
        """The key, made from the stored value."""
        raise NotImplementedError

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Saves a key into a folder that is there."""
        key, about = self.checkpoint_save_args(next(iter((*args, *kwargs.values())), None))
        items = {self._key_name: key, self._about_name: about}
        self._items.save(directory, args=CompositeArgs(**items))

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Saves before it returns; the list of futures is empty."""
        self.save(directory, *args, **kwargs)
        return [NoopFuture()]

    def restore(self, directory: Any, args: Any = None) -> Any:
        """Restores the key."""
        key = self.checkpoint_restore_args(args)
        items = {self._key_name: key, self._about_name: _other_handlers.JsonRestoreArgs()}
        found = self._items.restore(directory, args=CompositeArgs(**items))
        return self.post_restore(found[self._key_name], found[self._about_name])


class JaxRandomKeyCheckpointHandler(BaseRandomKeyCheckpointHandler):
    """A key of `jax.random`, typed or not."""

    def __init__(self, key_name: str | None = None) -> None:
        super().__init__(key_name or "jax_random_key")

    def checkpoint_save_args(self, args: Any) -> tuple[Any, Any]:
        """As `BaseRandomKeyCheckpointHandler`."""
        key = args.item
        if not isinstance(key, jax.Array):
            raise TypeError(f"Unsupported type: {type(key)}.")
        about: dict[str, Any] = {"typed": bool(jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key))}
        if about["typed"]:
            # Orbax does not store the implementation, and restores the default one.
            about["impl"] = str(jax.random.key_impl(key))
            key = jax.random.key_data(key)
        return _other_handlers.ArraySaveArgs(key, args.save_args), _other_handlers.JsonSaveArgs(about)

    def checkpoint_restore_args(self, args: Any) -> Any:
        """As `BaseRandomKeyCheckpointHandler`."""
        return _other_handlers.ArrayRestoreArgs(restore_args=getattr(args, "restore_args", None))

    def post_restore(self, item: Any, metadata: dict[str, Any]) -> Any:
        """As `BaseRandomKeyCheckpointHandler`."""
        return jax.random.wrap_key_data(item, impl=metadata.get("impl")) if metadata["typed"] else item

    @classmethod
    def typestr(cls) -> str:
        """The name of the original's class, for its readers."""
        return f"{HANDLERS}.random_key_checkpoint_handler.JaxRandomKeyCheckpointHandler"


class NumpyRandomKeyCheckpointHandler(BaseRandomKeyCheckpointHandler):
    """The state of NumPy's legacy generator: `numpy.random.get_state()`, a tuple or a dict."""

    def __init__(self, key_name: str | None = None) -> None:
        super().__init__(key_name or "np_random_key")

    def checkpoint_save_args(self, args: Any) -> tuple[Any, Any]:
        """As `BaseRandomKeyCheckpointHandler`."""
        if not isinstance(args.item, (tuple, dict)):
            raise TypeError(f"Unsupported type: {type(args.item)}.")
        about = {"legacy": isinstance(args.item, tuple)}
        return _standard_handlers.PyTreeSaveArgs(args.item), _other_handlers.JsonSaveArgs(about)

    def checkpoint_restore_args(self, args: Any) -> Any:
        """As `BaseRandomKeyCheckpointHandler`."""
        return _standard_handlers.PyTreeRestoreArgs()

    def post_restore(self, item: Any, metadata: dict[str, Any]) -> Any:
        """As `BaseRandomKeyCheckpointHandler`."""
        return tuple(item) if metadata["legacy"] else item

    @classmethod
    def typestr(cls) -> str:
        """The name of the original's class, for its readers."""
        return f"{HANDLERS}.random_key_checkpoint_handler.NumpyRandomKeyCheckpointHandler"


@register_with_handler(JaxRandomKeyCheckpointHandler, for_save=True)
@dataclasses.dataclass
class JaxRandomKeySaveArgs(CheckpointArgs):
    """Saves a key of `jax.random`."""

    item: Any
    save_args: Any = None


@register_with_handler(JaxRandomKeyCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class JaxRandomKeyRestoreArgs(CheckpointArgs):
    """Restores a key of `jax.random`."""

    restore_args: Any = None


@register_with_handler(NumpyRandomKeyCheckpointHandler, for_save=True)
@dataclasses.dataclass
class NumpyRandomKeySaveArgs(CheckpointArgs):
    """Saves the state of NumPy's legacy generator."""

    item: Any


@register_with_handler(NumpyRandomKeyCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class NumpyRandomKeyRestoreArgs(CheckpointArgs):
    """Restores the state of NumPy's legacy generator."""


BY_STORED_NAME |= {cls.__name__: cls for cls in (JaxRandomKeyCheckpointHandler, NumpyRandomKeyCheckpointHandler)}
