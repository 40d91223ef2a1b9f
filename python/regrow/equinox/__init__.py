"""Equinox' leaf files: `tree_serialise_leaves` and `tree_deserialise_leaves`, with the same files
and the same calls.

    from regrow.equinox import tree_deserialise_leaves, tree_serialise_leaves

    # Writes all or nothing, and syncs.
    tree_serialise_leaves("model.eqx", model)
    # Compares every leaf before it reads data.
    model = tree_deserialise_leaves("model.eqx", like=model)

These functions read files of Equinox, and Equinox reads their files, bit for bit. Beyond Equinox:
files are replaced in one step; float8, int4 and integers beyond 64 bits come back; every path-like
object is a path; one error lists all mismatches.

In a file that has a path, an index with names and checksums follows the leaves. Equinox ignores the
index. With the index, `regrow.load` loads the whole pytree without a `like`.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from typing import Any

from .._errors import InvalidArgumentError
from ._files import restore_file, save_file
from ._likes import Problem, TreePathError, raise_problems
from ._pytrees import IsLeaf, flatten_with_path
from ._records import Options
from ._walks import (
    changed,
    file_to_read,
    file_to_write,
    or_state_index,
    path_of,
    read_all,
    read_leaf,
    read_old_state,
    rest_of,
    write_all,
    write_leaf,
)

__all__ = [
    "TreePathError",
    "default_deserialise_filter_spec",
    "default_serialise_filter_spec",
    "install",
    "tree_deserialise_leaves",
    "tree_serialise_leaves",
]


def install() -> None:
    """Replaces the functions of the package ``equinox`` by the functions of this module.

    A module that has imported one of the originals by its name keeps the original.
    """
    equinox = importlib.import_module("equinox")
    for name in __all__:
        if name != "install" and hasattr(equinox, name):
            setattr(equinox, name, globals()[name])


def default_serialise_filter_spec(f: Any, x: Any) -> None:
    """Writes a leaf to a binary file object: arrays of JAX and NumPy, and numbers of NumPy and
    Python. Writes nothing for other leaves.

    Args:
        f: Has `write(bytes)`.
        x: The leaf.

    Raises:
        TypeError: for a leaf that has data which no record can hold.
    """
    write_leaf(Options(), f, x)


def default_deserialise_filter_spec(f: Any, x: Any) -> Any:
    """Reads the next record of a binary file object in the form of `x`. Returns `x` itself if `x`
    has no record.

    Args:
        f: Has `read(n)` and `seek(offset, whence)`.
        x: The leaf of `like`.

    Raises:
        EOFError, ValueError, TypeError: if there is no record, if the record is damaged, or if it
            does not contain such a number.
    """
    return read_leaf(Options(), f, x)


def tree_serialise_leaves(
    path_or_file: Any,
    pytree: Any,
    filter_spec: Any = default_serialise_filter_spec,
    is_leaf: IsLeaf = None,
    *,
    hyperparameters: Any = None,
    trailer: bool | None = None,
    strict: bool = False,
    prng_keys: bool = False,
    stop_at_first: bool = False,
    durable: bool = True,
) -> None:
    """Saves the leaves of a pytree.

    A file that has a path is written completely or not at all, and replaces an old file in one
    step.

    Args:
        path_or_file: A path (``.eqx`` is appended to a name without a suffix), or a binary file
            object, which is written from its current position.
        pytree: Its JAX and NumPy arrays and its numbers are saved; other leaves are left out.
        filter_spec: A function of file and leaf that writes a leaf or does nothing; or a pytree of
            such functions, a prefix of `pytree`, each for all leaves below it.
        is_leaf: Whether a node is treated as a leaf.
        hyperparameters: A dict or list for one line of JSON before the leaves. Equinox then reads
            the leaves from the open file, after this line.
        trailer: Whether regrow's index is written after the leaves. By default it is, in files that
            have a path and are written with the default `filter_spec`, unless `strict`. No data may
            follow it.
        strict: Write exactly the bytes of Equinox, which lose the names of float8, int4 and similar
            dtypes.
        prng_keys: Save typed PRNG keys as their key data; otherwise they are an error, as in
            Equinox.
        stop_at_first: Name one leaf that cannot be saved, not all.
        durable: Sync to disk before returning.

    Raises:
        TreePathError: with `path`, for leaves that cannot be saved; the reason is the cause of its
            cause.
    """
    options = Options(strict=strict, prng_keys=prng_keys)
    path, line = path_of(path_or_file), _line(hyperparameters)
    is_default = filter_spec is default_serialise_filter_spec
    if trailer and (path is None or not is_default):
        raise InvalidArgumentError("a trailer needs a file with a path, and the default filter_spec")
    if path is not None and is_default:
        save_file(
            path,
            pytree,
            is_leaf,
            options,
            line=line,
            trailer=not strict if trailer is None else trailer,
            stop_at_first=stop_at_first,
            durable=durable,
        )
        return
    with file_to_write(path, path_or_file, durable) as file:
        if line:
            file.write(line)
        own = functools.partial(write_leaf, options, file)
        write_all(filter_spec, pytree, is_leaf, _calls(default_serialise_filter_spec, own, file))


def tree_deserialise_leaves(
    path_or_file: Any,
    like: Any,
    filter_spec: Any = default_deserialise_filter_spec,
    is_leaf: IsLeaf = None,
    *,
    strict: bool = False,
    stop_at_first: bool = False,
    prng_keys: bool = False,
    strict_scalars: bool = False,
    old_state_index: bool = False,
) -> Any:
    """Loads the leaves of a file into a pytree like `like`.

    Args:
        path_or_file: A path (``.eqx`` is appended to a name without a suffix; a line of
            hyperparameters is skipped), or a binary file object, which is read from its current
            position.
        like: A pytree with the saved structure and with leaves of the same types: arrays,
            `jax.ShapeDtypeStruct` (`equinox.filter_eval_shape`), numbers. Leaves that are never
            saved stay as they are here.
        filter_spec: A function of file and leaf that returns the loaded leaf, or the leaf itself;
            or a pytree of such functions, a prefix of `like`, each for all leaves below it.
        is_leaf: Whether a node is treated as a leaf.
        strict: Leaves or bytes that `like` does not request are an error. Otherwise they are a
            warning, for files with a path.
        stop_at_first: Name one leaf that differs, not all.
        prng_keys: Convert key data to typed PRNG keys where `like` has them.
        strict_scalars: Read a Python bool, int, float or complex only from a record of that kind,
            instead of converting other numbers.
        old_state_index: `like` has `equinox.nn.StateIndex`es, and the file has the data that
            Equinox before 0.11 wrote for them.

    Raises:
        TreePathError: with `path`, for leaves that cannot be read; the reason is the cause of its
            cause.
        RuntimeError: for leaves of another type, shape or dtype than in `like`; all of them.
    """
    options = Options(prng_keys=prng_keys, strict_scalars=strict_scalars)
    path = path_of(path_or_file)
    if path is not None and filter_spec is default_deserialise_filter_spec and not old_state_index:
        return restore_file(path, like, is_leaf, options, strict=strict, stop_at_first=stop_at_first)
    if old_state_index:
        is_leaf = or_state_index(is_leaf)
    with file_to_read(path, path_or_file) as file:
        own = functools.partial(read_old_state if old_state_index else read_leaf, options, file)
        out = read_all(filter_spec, like, is_leaf, _calls(default_deserialise_filter_spec, own, file))
        rest = rest_of(file) if strict else None
    flat = flatten_with_path(out, is_leaf)
    pairs = zip(flat.paths, flat.leaves, flat.treedef.flatten_up_to(like), strict=True)
    messages = [(at, changed(at, new, old, options)) for at, new, old in pairs]
    raise_problems([Problem(at, message, None) for at, message in messages if message is not None], stop_at_first)
    if rest is not None:
        raise RuntimeError(f"the file has {rest} after the leaves of `like`")
    return out


def _calls(default: Callable[..., Any], own: Callable[[Any], Any], file: Any) -> Callable[[Any, Any], Any]:
    """The function that is called for a leaf: the default function with the caller's options."""
    return lambda spec, leaf: own(leaf) if spec is default else spec(file, leaf)


def _line(hyperparameters: Any) -> bytes:
    """The line before the leaves; empty if there are no hyperparameters."""
    if hyperparameters is None:
        return b""
    try:
        line = json.dumps(hyperparameters).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the hyperparameters are not JSON: {error}") from None
    if line[:1] not in (b"{", b"["):
        raise InvalidArgumentError(
            "hyperparameters must be a dict or a list: readers recognize the line by its `{` or `[`"
        )
    return line
