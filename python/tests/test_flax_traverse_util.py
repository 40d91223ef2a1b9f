"""`regrow.flax.traverse_util` beside `flax.traverse_util`."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import flax.traverse_util as theirs
import jax
import numpy as np
import pytest
from flax.core import FrozenDict
from flax_trees import assert_same_values, tree

from regrow.flax import traverse_util as ours

NESTED: list[Any] = [
    {},
    {"a": 1},
    {"a": {"b": {"c": 1, "d": {}}, "e": {}}, "f": [1, {"g": 2}], "h": None},
    FrozenDict({"a": {"b": 1}, "c": {}}),
    {"a": FrozenDict({"b": {"c": {}}})},
    {"a": {"": {"b": 1}}},
]


@pytest.mark.parametrize("name", ["flatten_dict", "unflatten_dict", "path_aware_map"])
def test_a_signature_is_that_of_the_original(name: str) -> None:
    mine, original = (inspect.signature(getattr(package, name)).parameters.values() for package in (ours, theirs))
    assert [(p.name, p.kind, p.default) for p in mine] == [(p.name, p.kind, p.default) for p in original]


@pytest.mark.parametrize("nested", NESTED, ids=repr)
@pytest.mark.parametrize("keep_empty_nodes", [False, True])
@pytest.mark.parametrize("sep", [None, "/"])
def test_dicts_are_flattened_as_by_flax(nested: Any, keep_empty_nodes: bool, sep: str | None) -> None:
    for is_leaf in (None, lambda path, value: len(path) == 1, lambda path, value: "c" in value, lambda *_: True):
        flat = theirs.flatten_dict(nested, keep_empty_nodes, is_leaf, sep)
        mine = ours.flatten_dict(nested, keep_empty_nodes, is_leaf, sep)
        assert list(mine) == list(flat)
        assert mine == flat
        if () not in flat:
            assert_same_values(ours.unflatten_dict(mine, sep), theirs.unflatten_dict(flat, sep))


def test_one_undoes_the_other() -> None:
    nested = {"a": {"b": {"c": 1, "d": {}}, "e": {}}, 3: {4: 5}}
    assert ours.unflatten_dict(ours.flatten_dict(nested, keep_empty_nodes=True)) == nested
    assert theirs.unflatten_dict(ours.flatten_dict(nested, keep_empty_nodes=True)) == nested
    assert ours.unflatten_dict(theirs.flatten_dict(nested, keep_empty_nodes=True)) == nested


def test_a_map_knows_the_path() -> None:
    params = tree("linen")["params"]
    mine, original = (
        package.path_aware_map(lambda path, leaf: np.asarray(leaf) * 2 if "kernel" in path else "/".join(path), params)
        for package in (ours, theirs)
    )
    assert_same_values(mine, original)
    assert ours.path_aware_map(lambda path, leaf: path, {"a": {"b": {}, "c": 1}}) == {"a": {"b": {}, "c": ("a", "c")}}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("flatten_dict", ([1],)),
        ("flatten_dict", (None,)),
        ("unflatten_dict", ([1],)),
        ("unflatten_dict", (FrozenDict({"a": 1}),)),
        ("unflatten_dict", ({(): 1},)),
        ("unflatten_dict", ({("a",): 1, ("a", "b"): 2},)),
        ("flatten_dict", ({1: {2: 3}}, False, None, "/")),
    ],
)
def test_invalid_arguments_are_refused_as_by_flax(name: str, args: Any) -> None:
    messages = []
    for package in (theirs, ours):
        with pytest.raises(Exception) as raised:
            getattr(package, name)(*args)
        messages.append((raised.type, str(raised.value)))
    assert messages[0] == messages[1]


def test_an_empty_node_is_flax_own_and_has_no_leaves() -> None:
    assert ours.empty_node is theirs.empty_node
    flat = ours.flatten_dict({"a": {}, "b": 1}, keep_empty_nodes=True)
    assert jax.tree.map(lambda leaf: leaf + 1, flat) == {("a",): theirs.empty_node, ("b",): 2}
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = ours.no_such_name


WITHOUT_FLAX = """
import jax
from regrow.flax import traverse_util
flat = traverse_util.flatten_dict({"a": {}, "b": 1}, keep_empty_nodes=True)
flat = jax.tree.map(lambda leaf: leaf + 1, flat)
assert traverse_util.unflatten_dict(flat) == {"a": {}, "b": 2}
import flax.traverse_util
assert traverse_util.unflatten_dict(flat) == {"a": {}, "b": 2}
"""


def test_an_empty_node_without_flax_has_no_leaves_either() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_FLAX], check=True)
