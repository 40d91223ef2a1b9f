"""Values that regrow can serialise and Flax cannot: nnx states and modules, typed PRNG keys.

An `nnx.State` becomes what ``nnx.to_pure_dict`` makes of it, so that Flax reads the file with
``nnx.replace_by_pure_dict``. A restore changes nothing in place: it makes a new state or module
with the new values. Integer keys are text in the file and integers again in the state.

A typed PRNG key becomes its key data, an ``uint32`` array. From such a file, Flax restores the bare
array in place of the key. Therefore regrow saves keys only with ``extended=True``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core._duck import has
from .._tree._nodes import Node, PrngKey
from . import _state_dict
from ._upstream import Handlers, is_jax_array, loaded


def handlers(cls: type[Any]) -> Handlers | None:
    """The handlers of an nnx class, and of regrow's own stand-in for classes; `None` for all
    others.
    """
    if cls is Node:
        return _NODE
    nnx = loaded("flax.nnx")
    for name, pair in (("State", _STATE), ("Variable", _VARIABLE), ("Pytree", _MODULE), ("Module", _MODULE)):
        base = getattr(nnx, name, None)
        if isinstance(base, type) and issubclass(cls, base):
            return pair
    return None


def key_handlers(value: Any) -> Handlers | None:
    """The handlers of typed PRNG keys."""
    if type(value) is PrngKey:
        return _PLAIN_KEY
    if not is_jax_array(value):
        return None
    jax = loaded("jax")
    return _JAX_KEY if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else None


def _state_to(state: Any) -> Any:
    return _state_dict.to_state_dict(loaded("flax.nnx").to_pure_dict(state))


def _state_back(target: Any, state: Any) -> Any:
    nnx = loaded("flax.nnx")
    restored = _state_dict.from_state_dict(nnx.to_pure_dict(target), state, ".")
    flat = []
    for path, old in nnx.to_flat_state(target):
        new = restored
        for key in path:
            new = new[key]
        flat.append((path, old.replace(_as_held(old.get_value(), new)) if has(old, "get_value") else new))
    return nnx.from_flat_state(flat)


def _as_held(old: Any, new: Any) -> Any:
    """A JAX array, if the state had a JAX array. Modules change their variables in place, but a
    view of a file cannot be changed.
    """
    if not is_jax_array(old) or not isinstance(new, np.ndarray):
        return new
    jax = loaded("jax")
    array = jax.numpy.asarray(new)
    return array if array.dtype == new.dtype else new.copy()


def _variable_to(variable: Any) -> Any:
    return _state_dict.to_state_dict(variable.get_value())


def _variable_back(target: Any, state: Any) -> Any:
    old = target.get_value()
    return target.replace(_as_held(old, _state_dict.from_state_dict(old, state, ".")))


def _module_to(module: Any) -> Any:
    return _state_to(loaded("flax.nnx").state(module))


def _module_back(target: Any, state: Any) -> Any:
    nnx = loaded("flax.nnx")
    graph, old = nnx.split(target)
    return nnx.merge(graph, _state_back(old, state))


def _node_to(node: Node) -> Any:
    return {str(key): _state_dict.to_state_dict(child) for key, child in node.items()}


def _node_back(target: Node, state: Any) -> Any:
    children = dict(target.items())
    restored = _state_dict.from_state_dict(children, state, ".")
    get = object.__getattribute__
    return Node(get(target, "_type_name"), restored, get(target, "_kind"), get(target, "_key_kinds"))


def _jax_key_to(key: Any) -> Any:
    return np.asarray(loaded("jax").random.key_data(key))


def _jax_key_back(target: Any, state: Any) -> Any:
    random = loaded("jax").random
    return random.wrap_key_data(np.asarray(state), impl=random.key_impl(target))


def _plain_key_to(key: PrngKey) -> Any:
    return key.data


def _plain_key_back(target: PrngKey, state: Any) -> Any:
    return PrngKey(np.asarray(state), target.impl)


_STATE: Handlers = (_state_to, _state_back)
_VARIABLE: Handlers = (_variable_to, _variable_back)
_MODULE: Handlers = (_module_to, _module_back)
_NODE: Handlers = (_node_to, _node_back)
_JAX_KEY: Handlers = (_jax_key_to, _jax_key_back)
_PLAIN_KEY: Handlers = (_plain_key_to, _plain_key_back)
