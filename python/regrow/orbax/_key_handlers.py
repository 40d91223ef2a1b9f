"""Handlers of random keys: the key, and a small JSON file with its kind."""

from __future__ import annotations

from typing import Any

from . import _handler_args
from ._composite import BY_STORED_NAME, CompositeArgs, CompositeCheckpointHandler
from ._handlers import register_all
from ._interfaces import OrbaxHandler
from ._jax import jax


class BaseRandomKeyCheckpointHandler(OrbaxHandler):
    """A key in one folder and its metadata in another, both below the folder of the item."""

    def __init__(self, key_name: str) -> None:
        self._key_name = key_name
        self._about_name = f"{key_name}_metadata"
        self._items = CompositeCheckpointHandler()

    def checkpoint_save_args(self, args: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def checkpoint_restore_args(self, args: Any) -> Any:
        raise NotImplementedError

    def post_restore(self, item: Any, metadata: dict[str, Any]) -> Any:
        raise NotImplementedError

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        key, about = self.checkpoint_save_args(next(iter((*args, *kwargs.values())), None))
        items = {self._key_name: key, self._about_name: about}
        self._items.save(directory, args=CompositeArgs(**items))

    def restore(self, directory: Any, args: Any = None) -> Any:
        key = self.checkpoint_restore_args(args)
        items = {self._key_name: key, self._about_name: _handler_args.JsonRestoreArgs()}
        found = self._items.restore(directory, args=CompositeArgs(**items))
        return self.post_restore(found[self._key_name], found[self._about_name])


class JaxRandomKeyCheckpointHandler(BaseRandomKeyCheckpointHandler):
    """A key of `jax.random`, typed or not."""

    _typestr = "random_key_checkpoint_handler.JaxRandomKeyCheckpointHandler"

    def __init__(self, key_name: str | None = None) -> None:
        super().__init__(key_name or "jax_random_key")

    def checkpoint_save_args(self, args: Any) -> tuple[Any, Any]:
        key = args.item
        if not isinstance(key, jax.Array):
            raise TypeError(f"Unsupported type: {type(key)}.")
        about: dict[str, Any] = {"typed": bool(jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key))}
        if about["typed"]:
            # Orbax does not store the implementation, and restores the default one.
            about["impl"] = str(jax.random.key_impl(key))
            key = jax.random.key_data(key)
        return _handler_args.ArraySaveArgs(key, args.save_args), _handler_args.JsonSaveArgs(about)

    def checkpoint_restore_args(self, args: Any) -> Any:
        return _handler_args.ArrayRestoreArgs(restore_args=getattr(args, "restore_args", None))

    def post_restore(self, item: Any, metadata: dict[str, Any]) -> Any:
        return jax.random.wrap_key_data(item, impl=metadata.get("impl")) if metadata["typed"] else item


class NumpyRandomKeyCheckpointHandler(BaseRandomKeyCheckpointHandler):
    """The state of NumPy's legacy generator: `numpy.random.get_state()`, a tuple or a dict."""

    _typestr = "random_key_checkpoint_handler.NumpyRandomKeyCheckpointHandler"

    def __init__(self, key_name: str | None = None) -> None:
        super().__init__(key_name or "np_random_key")

    def checkpoint_save_args(self, args: Any) -> tuple[Any, Any]:
        if not isinstance(args.item, (tuple, dict)):
            raise TypeError(f"Unsupported type: {type(args.item)}.")
        about = {"legacy": isinstance(args.item, tuple)}
        return _handler_args.PyTreeSaveArgs(args.item), _handler_args.JsonSaveArgs(about)

    def checkpoint_restore_args(self, args: Any) -> Any:
        return _handler_args.PyTreeRestoreArgs()

    def post_restore(self, item: Any, metadata: dict[str, Any]) -> Any:
        return tuple(item) if metadata["legacy"] else item


_HANDLERS = (JaxRandomKeyCheckpointHandler, NumpyRandomKeyCheckpointHandler)
BY_STORED_NAME |= {cls.__name__: cls for cls in _HANDLERS}
register_all(*_HANDLERS)
