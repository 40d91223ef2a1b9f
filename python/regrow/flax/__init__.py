"""The functions of `flax.serialization`, with the same names and arguments.

    from regrow import flax as serialization

    data = serialization.to_bytes(state)  # the same bytes as Flax
    state = serialization.from_bytes(state, data)  # views of `data`
    # Compares shapes, dtypes and keys first.
    state = serialization.from_bytes(state, data, strict=True)

There are two layers. `to_state_dict` makes a *state dict* of an object: nested maps of leaves.
`from_state_dict` puts its values onto a target. The *encoding* makes bytes of such maps:
`msgpack_serialize`, `msgpack_restore`. `to_bytes` and `from_bytes` do both steps.

The other parts of the package are `regrow.flax.traverse_util` and `regrow.flax.checkpoints`. The
package uses JAX and Flax if the program has imported them, and never imports them itself.
"""

from __future__ import annotations

from typing import Any

from .._core import _install
from . import _bytes, _state_dict, _strict

__all__ = [
    "MAX_CHUNK_SIZE",
    "checkpoints",
    "current_path",
    "from_bytes",
    "from_state_dict",
    "install",
    "is_serializable",
    "msgpack_restore",
    "msgpack_serialize",
    "register_serialization_state",
    "to_bytes",
    "to_state_dict",
    "traverse_util",
]

MAX_CHUNK_SIZE: float = 2**30
"""Longer arrays are written in pieces of at most this many bytes. Each call reads this value."""


def to_bytes(target: Any, *, extended: bool = False) -> bytes:
    """The state of `target` in msgpack. The entries have the order of the dicts.

    Args:
        target: Any object with a state dict; JAX and NumPy arrays, numbers, text, bytes and `None`
            are leaves.
        extended: Also write what the original cannot: typed PRNG keys (as their key data),
            `OrderedDict`, `defaultdict`.

    Raises:
        TypeError: for a leaf or key that msgpack or Flax cannot express.
        OverflowError: for an integer beyond 64 bits.
        ValueError: for arrays of objects, records, text or raw bytes.
    """
    return _bytes.pack(to_state_dict(target, extended=extended), MAX_CHUNK_SIZE)


def from_bytes(target: Any, encoded_bytes: Any, *, strict: bool = False, extended: bool = False) -> Any:
    """An object like `target` with the state in bytes of `to_bytes`.

    Array leaves are read-only NumPy views of `encoded_bytes`.

    Args:
        target: An object with the structure. Its leaves are not inspected, except for `strict`.
            With `None` the maps are returned as they are.
        encoded_bytes: Any bytes-like object, a memory map too.
        strict: Compare keys, kinds, shapes and dtypes first.
        extended: Restore what `to_bytes` writes with the same option.

    Raises:
        CorruptError: (a `ValueError` too) if the bytes are damaged.
        ValueError: if target and state differ in their keys.
        MismatchError: with `strict`, with every difference.
    """
    return from_state_dict(target, msgpack_restore(encoded_bytes), strict=strict, extended=extended)


def to_state_dict(target: Any, *, extended: bool = False) -> Any:
    """The state of `target` as nested dicts with text keys; `target` itself if it is a leaf.

    Args:
        target: Any object.
        extended: See `to_bytes`.

    Raises:
        ValueError: if two keys of a dict have the same text.
    """
    with _state_dict.extended(extended):
        return _state_dict.to_state_dict(target)


def from_state_dict(target: Any, state: Any, name: str = ".", *, strict: bool = False, extended: bool = False) -> Any:
    """An object like `target` with the leaves of `state`. `target` does not change.

    Args:
        target: An object with the structure.
        state: A result of `to_state_dict`.
        name: The name of the place in messages: in a handler, the name of the child.
        strict: Compare keys, kinds, shapes and dtypes first.
        extended: See `to_bytes`.

    Raises:
        ValueError: if target and state differ in their keys.
        MismatchError: with `strict`, with every difference.
    """
    with _state_dict.extended(extended):
        if strict:
            _strict.check(target, state)
        return _state_dict.from_state_dict(target, state, name)


def register_serialization_state(
    ty: type[Any],
    ty_to_state_dict: _state_dict.ToStateDict,
    ty_from_state_dict: _state_dict.FromStateDict,
    override: bool = False,
) -> None:
    """Makes a class serialisable, in regrow and in Flax. A class that is registered with Flax is
    known here, too.

    Args:
        ty: The class. The handler does not apply to its subclasses.
        ty_to_state_dict: Returns the state of an instance: a dict with text keys, or any value that
            can be written.
        ty_from_state_dict: Returns a new instance for an instance and a state.
        override: Replace an existing handler.

    Raises:
        ValueError: if there is a handler and `override` was not given.
    """
    _state_dict.register(ty, ty_to_state_dict, ty_from_state_dict, override)


def install() -> None:
    """Replaces ``flax.serialization``, ``flax.traverse_util`` and ``flax.training.checkpoints`` by
    the modules of this package.

    This affects all later imports.

    Raises:
        RuntimeError: if the program has already imported Flax: code that imported its modules keeps
            them.
    """
    places = {"serialization": "", "traverse_util": ".traverse_util", "training.checkpoints": ".checkpoints"}
    _install.install({f"flax.{name}": f"{__name__}{own}" for name, own in places.items()})


def is_serializable(target: Any) -> bool:
    """Whether a class, or the class of an object, has a state dict (leaves have none)."""
    return _state_dict.is_serializable(target if isinstance(target, type) else type(target))


def current_path() -> str:
    """Within a handler: the path of the object in the restore, ``./params/dense``."""
    return _state_dict.current_path()


def msgpack_serialize(pytree: Any, in_place: bool = False, *, extended: bool = False) -> bytes:
    """Nested dicts and lists of leaves in msgpack, the entries of dicts sorted by key.

    Args:
        pytree: Dicts and lists of arrays, numbers, text, bytes and `None`; nothing that needs a
            state dict.
        in_place: Keep the order of the entries, and change the dicts as the original does: JAX
            arrays in them become NumPy arrays, arrays beyond `MAX_CHUNK_SIZE` become maps of
            pieces.
        extended: Also write typed PRNG keys (as key data), `OrderedDict` and `defaultdict` (as
            dicts), tuples (as lists). They are restored in these forms.

    Raises:
        TypeError, OverflowError: see `to_bytes`.
        ValueError: if the keys of a dict cannot be sorted; and see `to_bytes`.
    """
    value = pytree
    if extended or not in_place:
        value = _bytes.copied(pytree, in_order=in_place, extended=extended)
    data = _bytes.pack(value, MAX_CHUNK_SIZE)
    if in_place:
        _bytes.convert_in_place(pytree, MAX_CHUNK_SIZE)
    return data


def msgpack_restore(encoded_pytree: Any) -> Any:
    """Nested dicts and lists of leaves, from bytes in msgpack.

    Array leaves are read-only NumPy views of `encoded_pytree`; those that were written in pieces
    are copies. Extensions that Flax does not know and timestamps are msgpack's own, if the program
    has imported it.

    Args:
        encoded_pytree: Any bytes-like object, a memory map too.

    Raises:
        CorruptError: (a `ValueError` too) if the bytes are damaged, with the path of the leaf.
    """
    return _bytes.unpack(encoded_pytree)


# Import these modules at the end: they use the names above.
from . import _private, checkpoints, traverse_util  # noqa: E402
from ._private import (  # noqa: E402, F401
    _chunk,
    _chunk_array_leaves_in_place,
    _dict_state_dict,
    _dict_to_tuple,
    _dtype_from_name,
    _is_namedtuple,
    _list_state_dict,
    _msgpack_ext_pack,
    _msgpack_ext_unpack,
    _MsgpackExtType,
    _NamedTuple,
    _namedtuple_state_dict,
    _ndarray_from_bytes,
    _ndarray_to_bytes,
    _np_convert_in_place,
    _record_path,
    _restore_dict,
    _restore_list,
    _restore_namedtuple,
    _tuple_to_dict,
    _unchunk,
    _unchunk_array_leaves_in_place,
)
from ._state_dict import _ErrorContext  # noqa: E402, F401


def __getattr__(name: str) -> Any:
    return _private.dynamic(name)
