"""Pytrees by key path: flat dicts, nested dicts, descriptions of arrays, comparison and merges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from .._core._duck import has, own_attribute
from .._errors import failure
from .._load._checkpoint import Leaf
from ._errors import refusing
from ._jax import jax

__getattr__ = refusing(__name__, ("tree_trim", "restore with partial_restore=True, or map the smaller tree"))

PyTree = Any
PyTreeKey: TypeAlias = (
    jax.tree_util.SequenceKey | jax.tree_util.DictKey | jax.tree_util.GetAttrKey | jax.tree_util.FlattenedIndexKey
)
PyTreePath: TypeAlias = tuple[PyTreeKey, ...]
JsonType: TypeAlias = list[Any] | dict[str, Any]
_T = TypeVar("_T")
PyTreeOf: TypeAlias = Any | _T
KeyPath = tuple[str, ...]


def is_empty_node(x: Any) -> bool:
    """Whether a value is `None` or a container without children."""
    if x is None:
        return True
    if type(x) in _NO_NODES:
        return False
    if _is_container(type(x)):
        return len(x) == 0
    found = jax.tree_util.default_registry.flatten_one_level(x)
    return found is not None and not list(found[0])


_NO_NODES = frozenset({np.ndarray, jax.ShapeDtypeStruct, Leaf, str, bool, int, float, complex})
"""Types of leaves that cannot be registered as nodes. Most leaves have such a type, and asking JAX
is slow.
"""


def _is_container(cls: type[Any]) -> bool:
    # Cache the answer for each type: `isinstance(_, Mapping)` is slow, and a tree has few types.
    known = _CONTAINERS.get(cls)
    if known is None:
        known = _CONTAINERS[cls] = issubclass(cls, (Mapping, list, tuple))
    return known


_CONTAINERS: WeakKeyDictionary[type[Any], bool] = WeakKeyDictionary()


def is_empty_or_leaf(x: Any) -> bool:
    """Whether a value is an empty node, or not a container."""
    return is_empty_node(x) or jax.tree_util.treedef_is_leaf(jax.tree_util.tree_structure(x))


def get_key_name(key: Any) -> int | str:
    """The name of a key of JAX: an index, or a name as text."""
    if isinstance(key, jax.tree_util.DictKey):
        return str(key.key)
    for name in ("key", "idx", "name"):
        if has(key, name):
            found: int | str = getattr(key, name)
            return found
    raise ValueError(f"Unsupported key type: {type(key)}")


_NAME_OF: dict[type[Any], Callable[[Any], Any]] = {
    jax.tree_util.DictKey: attrgetter("key"),
    jax.tree_util.FlattenedIndexKey: attrgetter("key"),
    jax.tree_util.SequenceKey: attrgetter("idx"),
    jax.tree_util.GetAttrKey: attrgetter("name"),
}
"""The names of JAX' own keys. Nearly all keys are of these types."""


def is_sequence_key(key: Any) -> bool:
    return isinstance(key, (jax.tree_util.FlattenedIndexKey, jax.tree_util.SequenceKey))


def is_dict_key(key: Any) -> bool:
    return isinstance(key, (jax.tree_util.DictKey, jax.tree_util.GetAttrKey))


def tuple_path_from_keypath(keypath: tuple[Any, ...]) -> KeyPath:
    names: list[Callable[[Any], Any]] = [_NAME_OF.get(type(key), get_key_name) for key in keypath]
    return tuple([str(name_of(key)) for name_of, key in zip(names, keypath, strict=True)])


str_keypath = tuple_path_from_keypath


def flatten_with_path(tree: Any) -> tuple[list[tuple[tuple[Any, ...], Any]], Any]:
    """Leaves and empty nodes with their key paths, and the structure."""
    flat, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_empty_node)
    return flat, structure


def from_flattened_with_keypath(flat_with_keys: list[tuple[tuple[Any, ...], Any]]) -> Any:
    """Nested dicts and lists, made from leaves with JAX' key paths."""
    if not flat_with_keys:
        raise ValueError("Unsupported empty flattened tree")
    root: list[Any] = [None]
    for keypath, leaf in flat_with_keys:
        parent, at = root, 0
        for key in keypath:
            if parent[at] is None:
                parent[at] = [] if is_sequence_key(key) else {}
            node, name = parent[at], get_key_name(key)
            if isinstance(node, list):
                node += [None] * (int(name) + 1 - len(node))
            else:
                node.setdefault(name, None)
            parent, at = node, name  # type: ignore[assignment]
        parent[at] = leaf
    return root[0]


def serialize_tree(tree: Any, keep_empty_nodes: bool = False) -> Any:
    """The tree with dicts for classes and lists for tuples."""
    flat, _ = flatten_with_path(tree)
    kept = [(path, leaf) for path, leaf in flat if keep_empty_nodes or not is_empty_node(leaf)]
    if kept and not kept[0][0]:
        return tree
    return from_flattened_with_keypath(kept)


def deserialize_tree(serialized: Any, target: Any, keep_empty_nodes: bool = False) -> Any:
    """The leaves of nested dicts and lists, in the containers of a target."""

    def find(keypath: tuple[Any, ...], leaf: Any) -> Any:
        found = serialized
        for key in keypath:
            try:
                found = _child(found, key)
            except (KeyError, IndexError):
                if is_empty_node(leaf):
                    return leaf
                raise
        return found

    return jax.tree_util.tree_map_with_path(find, target, is_leaf=is_empty_node if keep_empty_nodes else None)


def _child(node: Any, key: Any) -> Any:
    """The child at a key. For dicts and sequences by the key's name, for others by the key itself."""
    name = get_key_name(key)
    if isinstance(node, Mapping):
        return node[name if name in node else str(name)]
    if type(node) in (list, tuple):
        return node[int(name)]
    return children_by_key(node)[jax.tree_util.keystr((key,))]


def is_flat_dict(tree: Any) -> bool:
    return isinstance(tree, dict) and all(is_empty_or_leaf(value) for value in tree.values())


def to_flat_dict(
    tree: Any, sep: str | None = None, keep_empty_nodes: bool = False, is_leaf: Callable[[Any], bool] | None = None
) -> dict[Any, Any]:
    """Leaves by key path: tuples of strings, or strings joined by `sep`."""
    stop: Callable[[Any], bool] = lambda node: is_empty_node(node) or (is_leaf is not None and is_leaf(node))  # noqa: E731
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=stop)
    named = {tuple_path_from_keypath(path): leaf for path, leaf in flat if keep_empty_nodes or not is_empty_node(leaf)}
    return named if sep is None else {sep.join(path): leaf for path, leaf in named.items()}


def from_flat_dict(
    flat_dict: Mapping[Any, Any], target: Any = None, sep: str | None = None, *, inplace: bool = False
) -> Any:
    """The tree of a flat dict, in the containers of a target or as nested dicts."""
    if target is None:
        if () in flat_dict:
            if len(flat_dict) > 1:
                raise ValueError("the key path () is that of a tree of one leaf: expected no other key path")
            return flat_dict[()]
        out: dict[Any, Any] = {}
        for path, leaf in flat_dict.items():
            keys = tuple(path.split(sep)) if sep is not None else path
            node = out
            for key in keys[:-1]:
                node = node.setdefault(key, {})
            node[keys[-1]] = leaf
        return out
    flat, structure = flatten_with_path(target)
    leaves = []
    for keypath, leaf in flat:
        path = tuple_path_from_keypath(keypath)
        key = sep.join(path) if sep is not None else path
        leaves.append(leaf if is_empty_node(leaf) and key not in flat_dict else flat_dict[key])
    return jax.tree_util.tree_unflatten(structure, leaves)


def param_name_from_keypath(keypath: tuple[Any, ...]) -> str:
    return ".".join(tuple_path_from_keypath(keypath))


def get_param_names(item: Any, *, include_empty_nodes: bool = True) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: param_name_from_keypath(path), item, is_leaf=is_empty_node if include_empty_nodes else None
    )


def to_shape_dtype_struct(arr: Any, dtype: Any = None, scalar_dtype: Any = None, support_format: bool = False) -> Any:
    """The description of an array, with its sharding. Numbers get `scalar_dtype` if it is given."""
    if isinstance(arr, (int, float, np.number)):
        return arr if scalar_dtype is None else scalar_dtype(arr)
    if isinstance(arr, str) or arr is PLACEHOLDER_LEAF:
        return arr
    shape = own_attribute(arr, "shape")
    shape = own_attribute(arr, "global_shape") if shape is None else shape
    if shape is None or not has(arr, "dtype"):
        raise ValueError(f"Unsupported type: {type(arr)}")
    sharding: Any = own_attribute(arr, "sharding")
    if has(sharding, "to_jax_sharding"):
        sharding = sharding.to_jax_sharding()
    if shape == () and type(arr).__name__ == "ScalarMetadata":
        return 0 if np.dtype(arr.dtype).kind in "iu" else 0.0
    return jax.ShapeDtypeStruct(tuple(shape), arr.dtype if dtype is None else dtype, sharding=sharding)


PLACEHOLDER_LEAF = ...


IsLeaf = Callable[[Any], bool]


class Diff(NamedTuple):
    """The values of two trees at one key path; `None` if a tree lacks the key."""

    lhs: Any
    rhs: Any


def tree_difference(
    a: Any, b: Any, *, is_leaf: IsLeaf | None = None, leaves_equal: Callable[[Any, Any], bool] | None = None
) -> Any:
    """A tree of `Diff`, with `None` where two trees agree; `None` for equal trees."""
    ends = is_leaf or _is_leaf
    equal = leaves_equal or (lambda one, other: type(one) is type(other))
    if ends(a) and ends(b):
        return None if equal(a, b) else Diff(a, b)
    if type(a) is not type(b):
        return Diff(type(a), type(b))
    if isinstance(a, (list, tuple)) and len(a) != len(b):
        return Diff((type(a), len(a)), (type(b), len(b)))
    left, right = children_by_key(a), children_by_key(b)
    found: dict[Any, Any] = {}
    for key in {**left, **right}:
        if key in left and key in right:
            found[key] = tree_difference(left[key], right[key], is_leaf=is_leaf, leaves_equal=leaves_equal)
        else:
            found[key] = Diff(left.get(key), right.get(key))
    if all(diff is None for diff in found.values()):
        return None
    if isinstance(a, Mapping):
        return {key: diff for key, diff in found.items() if diff is not None}
    return _like(a, [found[key] for key in left])


def merge_trees(*trees: Any, overwrite: bool = False, is_leaf: IsLeaf | None = None) -> Any:
    ends: IsLeaf = lambda node: node is None or _is_leaf(node) or (is_leaf is not None and is_leaf(node))  # noqa: E731
    if not overwrite:
        seen: set[Any] = set()
        for tree in trees:
            paths = {path for path, _ in jax.tree_util.tree_flatten_with_path(tree, is_leaf=ends)[0] if path}
            if common := seen & paths:
                told = sorted(jax.tree_util.keystr(path) for path in common)
                raise failure(ValueError, f"Found common key paths: {told[:10]}", help="give overwrite=True")
            seen |= paths
    return functools.reduce(functools.partial(_merged, overwrite=overwrite, ends=ends, path=()), trees) if trees else {}


def _merged(earlier: Any, later: Any, *, overwrite: bool, ends: IsLeaf, path: tuple[str, ...]) -> Any:
    at = "/".join(path) or "the root"
    if ends(earlier) or ends(later):
        if overwrite:
            return later
        if ends(earlier) and ends(later):
            raise failure(ValueError, f"Found common key paths: {at}", help="give overwrite=True")
        raise ValueError(f"Types do not match at {at}: {type(earlier)} and {type(later)}")
    if type(earlier) is not type(later):
        raise ValueError(f"Types do not match at {at}: {type(earlier)} and {type(later)}")
    if isinstance(earlier, (list, tuple)) and len(earlier) != len(later):
        raise ValueError(f"Sequence lengths do not match at {at}: {len(earlier)} and {len(later)}")
    is_mapping = isinstance(earlier, Mapping)
    left, right = children_by_key(earlier), children_by_key(later)
    out = dict(left)
    for key, child in right.items():
        if key not in left or (left[key] is None and not is_mapping):
            out[key] = child
        elif child is not None or is_mapping:
            out[key] = _merged(left[key], child, overwrite=overwrite, ends=ends, path=(*path, str(key)))
    return out if type(earlier) is dict else _like(earlier, out if is_mapping else list(out.values()))


def _is_leaf(node: Any) -> bool:
    return bool(jax.tree_util.all_leaves([node]))


def _one_level(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    found: tuple[list[tuple[Any, Any]], Any] = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda child: child is not node
    )
    return found


def children_by_key(node: Any) -> dict[Any, Any]:
    """The children of a node: of a mapping by its keys, of other nodes by JAX' keys as text."""
    if isinstance(node, Mapping):
        return dict(node)
    return {jax.tree_util.keystr(path): child for path, child in _one_level(node)[0]}


def _like(node: Any, children: Any) -> Any:
    """A node of the same kind with these children."""
    if isinstance(node, Mapping):
        make: Any = type(node)
        return make(children)
    return jax.tree_util.tree_unflatten(_one_level(node)[1], children)
