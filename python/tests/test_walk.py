"""The native walk: on any tree it gives what one level at a time, in Python, would give."""

from __future__ import annotations

import collections
import dataclasses
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import regrow
from regrow import _native, _text
from regrow._leaves import _columns
from regrow._tree import _flatten


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Box:
    inside: Any
    label: Any


@jax.tree_util.register_pytree_node_class
class Registered:
    def __init__(self, *children: Any) -> None:
        self.children = children

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _definition: None, children: Any) -> Registered:
        return cls(*children)


class Special:
    """A leaf that only its handler can save."""

    def __init__(self, state: Any) -> None:
        self.state = state


class SpecialHandler:
    type_name = "tests.Special"

    def save(self, leaf: Special) -> Any:
        return leaf.state

    def restore(self, state: Any) -> Special:
        return Special(state)


HANDLERS = regrow.handlers.LeafRegistry((Special, SpecialHandler()))

DTYPES = [
    *("bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128"),
    *(">f4", ">i8", "<U3", "<M8[s]", "S2"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
]


@st.composite
def arrays(draw: Any) -> Any:
    """NumPy arrays of every kind of dtype and memory: strided, reversed, Fortran, empty, without
    axes.
    """
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = int(np.prod(shape))
    array = np.arange(count).reshape(shape).astype(draw(st.sampled_from(DTYPES)))
    how = draw(st.sampled_from(["plain", "fortran", "reversed", "strided", "read_only"]))
    if how == "fortran":
        array = np.asfortranarray(array)
    elif how == "reversed" and shape:
        array = array[::-1]
    elif how == "strided" and shape:
        array = np.repeat(array, 2, axis=0)[::2]
    elif how == "read_only":
        array.flags.writeable = False
    return array


# Not what this Python knows no character for: the engine may know one, of a later Unicode, and
# shows it.
CHARACTERS = st.characters(exclude_categories=["Cs", "Cn"])

JAX_ARRAYS = st.sampled_from(
    [
        jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
        jnp.float32(2.5),
        jnp.zeros((0, 3), jnp.int32),
        jnp.arange(4, dtype=jnp.bfloat16),
        jnp.array([True, False]),
        jnp.array([1 + 2j], jnp.complex64),
        jax.random.key(3),
    ]
)
LEAVES = st.one_of(
    arrays(),
    JAX_ARRAYS,
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(CHARACTERS, max_size=4),
    st.binary(max_size=4),
    st.sampled_from([np.float32(1.5), np.int8(3), np.bool_(True), ml_dtypes.bfloat16(2)]),
)
KEYS = st.one_of(
    st.text(CHARACTERS, max_size=3),
    st.sampled_from(["w", "kernel", "a/b", "0", ""]),
    st.integers(-(2**63), 2**63 - 1),
)


def containers(children: Any) -> Any:
    some = st.lists(children, max_size=4)
    return st.one_of(
        st.dictionaries(KEYS, children, max_size=4),
        st.dictionaries(KEYS, children, max_size=3).map(collections.OrderedDict),
        st.dictionaries(KEYS, children, max_size=3).map(lambda made: collections.defaultdict(list, made)),
        some,
        some.map(tuple),
        st.builds(Pair, children, children),
        st.builds(Box, children, children),
        some.map(lambda made: Registered(*made)),
        st.none(),
    )


TREES = st.recursive(LEAVES | st.none(), containers, max_leaves=12)


def _harmless(text: str) -> str:
    """Control characters as the engine prints them."""
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    control = {letter for letter in text if unicodedata.category(letter) == "Cc"}
    escaped = {letter: named.get(letter, f"\\u{{{ord(letter):x}}}") for letter in control}
    return "".join(escaped.get(letter, letter) for letter in text)


def walked(node: Any, trail: list[str | int]) -> list[tuple[str, str, Any]]:
    """Kind, key path and value of every node, in preorder: what the native walk is to find,
    spelled out.
    """
    opener = _flatten._OPENERS.get(type(node)) or _flatten._opener_for(node)
    kinds = {type(None): "none", list: "list", tuple: "tuple"}
    path = "/".join(_harmless(str(key)) for key in trail) if trail else "."
    if type(node) in kinds:
        pairs = enumerate(node or ())
        found = [(kinds[type(node)], path, node)]
    elif (type(node) in _flatten._OPENERS and _flatten._OPENERS[type(node)] is None) or opener is None:
        return [("leaf", path, node)]
    else:
        opened = opener(node, [0, *trail])
        pairs = zip(opened.keys, opened.children, strict=True)
        found = [(_native.NODE_KINDS[opened.node_kind], path, node)]
    for key, child in pairs:
        found += walked(child, [*trail, key])
    return found


@settings(deadline=None, max_examples=200)
@given(TREES)
def test_flattens_as_one_level_at_a_time(tree: Any) -> None:
    flat = _flatten.flatten(tree)
    expected = walked(tree, [])
    assert [_native.NODE_KINDS[kind] for kind in flat.structure.node_kinds] == [kind for kind, _, _ in expected]
    leaves = [value for kind, _, value in expected if kind == "leaf"]
    assert len(leaves) == len(flat.leaves)
    assert all(found is leaf for found, leaf in zip(flat.leaves, leaves, strict=True))
    printed = [_text.printable(path) for kind, path, _ in expected if kind == "leaf"]
    assert _native.paths(flat.structure) == printed


@settings(deadline=None, max_examples=200)
@given(TREES)
def test_containers_are_made_again(tree: Any) -> None:
    """Of the same leaves comes an equal tree of the same classes, with the dicts' keys in their
    order.
    """
    flat = _flatten.flatten(tree)
    again = flat.with_leaves(flat.leaves)
    before, after = walked(tree, []), walked(again, [])
    assert [(kind, path, type(value)) for kind, path, value in before] == [
        (kind, path, type(value)) for kind, path, value in after
    ]
    leaves = _flatten.flatten(again).leaves
    assert all(found is leaf for found, leaf in zip(leaves, flat.leaves, strict=True))


class Shown:
    """A tensor of DLPack's, for its consumer."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@settings(deadline=None, max_examples=300)
@given(st.lists(LEAVES, max_size=8))
def test_leaves_are_told_as_python_tells_them(leaves: list[Any]) -> None:
    flat = _flatten.flatten(leaves)
    columns = _columns.to_native(flat)
    for at, leaf in enumerate(leaves):
        told = _columns.tell(leaf, flat, at, {})
        assert (columns.kinds[at], columns.notes.get(at), columns.shardings.get(at)) == (
            told.kind,
            told.note,
            told.sharding,
        )
        found = columns.values[at]
        if type(found).__name__ == "PyCapsule":
            found = jax.dlpack.from_dlpack(Shown(found))
        if isinstance(found, (jax.Array, np.ndarray)):
            found = np.asarray(found)
            assert (found.dtype, found.shape) == (told.value.dtype, told.value.shape)
            assert found.tobytes() == told.value.tobytes()
        else:
            assert found is told.value


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.recursive(LEAVES, lambda c: st.dictionaries(KEYS, c) | st.lists(c) | st.lists(c).map(tuple), max_leaves=8))
def test_saved_and_loaded(path: Path, tree: Any) -> None:
    try:
        regrow.save(path, tree, overwrite=True, durable=False)
    except regrow.RegrowError:
        return  # names that collide, and the like: not the walk's concern
    loaded = regrow.load(path)
    flat, again = _flatten.flatten(tree), _flatten.flatten(loaded)
    assert flat.structure.node_kinds == again.structure.node_kinds
    assert _native.paths(flat.structure) == _native.paths(again.structure)
    for at, (leaf, found) in enumerate(zip(flat.leaves, again.leaves, strict=True)):
        told, loaded_as = _columns.tell(leaf, flat, at, {}), _columns.tell(found, again, at, {})
        assert told.note == loaded_as.note
        assert np.asarray(told.value).tobytes() == np.asarray(loaded_as.value).tobytes()
        if isinstance(found, np.ndarray):
            assert not found.flags.writeable
            assert found.flags.c_contiguous
    lazy = regrow.open(path)
    assert len(lazy) == len(flat.leaves)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from("abcdef"), arrays() | st.integers(0, 9) | st.text("xyz")))
def test_a_template_gives_what_it_holds(path: Path, tree: dict[str, Any]) -> None:
    numbers = {np.dtype(dtype) for dtype in _columns.DTYPES}
    tree = {key: leaf for key, leaf in tree.items() if not isinstance(leaf, np.ndarray) or leaf.dtype in numbers}
    regrow.save(path, tree, overwrite=True, durable=False)
    assert_same(regrow.load(path, like=tree), tree)


def test_handlers_see_every_node(path: Path) -> None:
    tree = {"a": [Special({"x": np.arange(3)}), (Special(7), None)], "b": {"state": 1, "other": 2}}
    regrow.save(path, tree, options=regrow.Options(handlers=HANDLERS))
    loaded = regrow.load(path, options=regrow.Options(handlers=HANDLERS))
    np.testing.assert_array_equal(loaded["a"][0].state["x"], np.arange(3))
    assert loaded["a"][1][0].state == 7
    assert loaded["b"] == {"state": 1, "other": 2}


def test_views_of_files_know_whether_they_are_aligned(path: Path) -> None:
    """Leaves of odd lengths put those that follow at odd places."""
    tree = {f"k{i}": np.arange(3, dtype=np.int8) if i % 2 else np.arange(2, dtype=np.float64) for i in range(8)}
    regrow.save(path.with_suffix(".safetensors"), tree, layout="safetensors")
    for key, array in regrow.load(path.with_suffix(".safetensors")).items():
        address = array.__array_interface__["data"][0]
        assert array.flags.aligned == (address % array.dtype.alignment == 0)
        np.testing.assert_array_equal(array, tree[key])


def test_a_deep_tree_of_classes_is_walked_in_linear_time() -> None:
    tree: Any = 1
    for _ in range(20_000):
        tree = Pair([tree], None)
    flat = _flatten.flatten(tree)
    assert len(flat.structure.node_kinds) == 3 * 20_000 + 1
    made = flat.with_leaves([2])
    for _ in range(20_000):
        made = made.first[0]
    assert made == 2


def test_a_wrong_number_of_leaves_is_refused() -> None:
    flat = _flatten.flatten({"a": 1, "b": [2, 3]})
    for leaves in ([1, 2], [1, 2, 3, 4]):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="one value for each leaf"):
            flat.with_leaves(leaves)


def test_a_dict_that_is_held_twice_is_no_cycle() -> None:
    shared = {"w": 1}
    assert _flatten.flatten([shared, (shared,), {"s": shared}]).leaves == [1, 1, 1]
    cycle: dict[str, Any] = {"a": [()]}
    cycle["a"].append({"b": cycle})
    with pytest.raises(regrow.errors.InvalidArgumentError, match="contains itself") as caught:
        _flatten.flatten({"top": cycle})
    assert caught.value.leaf == "top/a/1/b"


def test_arrays_keep_their_bytes_alive(path: Path) -> None:
    regrow.save(path, {f"k{i}": np.full(5, i) for i in range(100)})
    one = regrow.load(path)["k42"]
    regrow.save(path, {"k0": np.zeros(5)}, overwrite=True)
    np.testing.assert_array_equal(one, 42)
    assert type(one.base).__name__ == "SmallSlabs"
