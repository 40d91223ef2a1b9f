"""Restores through a function of the caller that changes the pytree: Orbax' oldest form of
transformations.

    function(item, structure, infos) -> structure, infos

`structure` and `infos` are trees in the stored structure: the description of each leaf, and its
location. The function returns the structure of the result. Each info in the result stands for the
leaf that it came from. The restore reads the leaf with the restore args of its new place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .._errors import failure
from . import _leaf_args, _read
from ._jax import jax
from ._paths import as_path
from .tree import flatten_with_path, is_empty_node, tuple_path_from_keypath
from .type_handlers import ParamInfo

Function = Callable[[Any, Any, Any], tuple[Any, Any]]

_VALUE_TYPES = {"jax_array": "jax.Array", "numpy_array": "np.ndarray", "str": "string"}


@dataclasses.dataclass
class ValueEntry:
    """The description of a leaf, as in Orbax."""

    value_type: str
    skip_deserialize: bool = False


def restore(path: Any, args: Any, registry: Any = None) -> Any:
    """Restores the pytree at a path, as the function in the arguments changes it."""
    if args.transforms is not None:
        help = "leave one of them out"
        raise failure(ValueError, "Cannot provide both `transforms` and `legacy_transform_fn`.", help=help)
    function: Function = args.legacy_transform_fn
    stored = _read.open_pytree(path, registry)
    entries, infos = [], []
    for at in stored.order:
        leaf = stored.leaves[at]
        is_empty = is_empty_node(leaf)
        entries.append(leaf if is_empty else ValueEntry(_VALUE_TYPES.get(leaf.kind, "scalar")))
        infos.append(leaf if is_empty else ParamInfo(name=".".join(at), parent_dir=as_path(path)))
    structure, where = (jax.tree_util.tree_unflatten(stored.structure, each) for each in (entries, infos))
    _, wanted = function(args.item, structure, where)
    flat, layout = flatten_with_path(wanted)
    named = {".".join(at): at for at in stored.order}
    order, sources, kept = [], {}, {}
    for keys, info in flat:
        at = tuple_path_from_keypath(keys)
        order.append(at)
        name = getattr(info, "name", None)
        if is_empty_node(info):
            kept[at] = info
        elif name in named:
            sources[at] = named[name]
        else:
            raise failure(
                ValueError,
                f"legacy_transform_fn gave something that is not a leaf of {path}",
                f"found {info!r}",
                leaf="/".join(at),
                help="return infos that the function received",
            )
    restore_args = _leaf_args.by_path(args.restore_args, _leaf_args.is_restore_args)
    values = kept | _read.load_flat(stored, restore_args, list(sources), {}, sources)
    return jax.tree_util.tree_unflatten(layout, [values[at] for at in order])
