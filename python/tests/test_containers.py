"""Containers come back as what they were: types, keys, order, emptiness, depth."""

from __future__ import annotations

import collections
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import assert_same, round_trip

import regrow


class Adam(NamedTuple):
    count: Any
    mu: Any


@dataclass
class Point:
    y: Any
    x: Any
    note: str = field(default="n", init=False)


ARRAY = np.arange(6, dtype=np.int32).reshape(2, 3)

TREES = {
    "a single leaf": ARRAY,
    "a single number": 3,
    "None alone": None,
    "an empty dict": {},
    "an empty list": [],
    "an empty tuple": (),
    "insertion order": {"b": 1, "a": 2, "c": {"z": 1, "y": ARRAY}},
    "int keys": {3: 1, 1: 2, -5: ARRAY, 2**63 - 1: 0, -(2**63): 0},
    "int and text keys": {0: 1, "0": 2},
    "empties inside": {"a": {}, "b": [], "c": (), "d": None, "e": [{}, (None, [])]},
    "lists and tuples": [1, (2, [3, (4,)]), ({"x": (5,)},)],
    "ordered dict": collections.OrderedDict([("z", 1), ("a", ARRAY)]),
    "text keys of all kinds": {
        "": 1,
        " ": 2,
        "a/b": 3,
        "a.b": 4,
        "a": {"b": 5},
        "é☃": 6,
        "\n": 7,
        "%2E": 8,
        "..": 9,
    },
    "scalars": [
        True,
        False,
        0,
        -1,
        2**63 - 1,
        2**64 - 1,
        -(2**63),
        0.1,
        1e308,
        1 + 2j,
        "text",
        "",
        "é",
        b"",
        b"\0\xff",
    ],
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_comes_back_exactly(path: Path, tree: Any) -> None:
    assert_same(tree, round_trip(path, tree))


def test_special_floats_come_back(path: Path) -> None:
    loaded = round_trip(path, [float("inf"), float("-inf"), -0.0, float("nan")])
    assert loaded[:2] == [float("inf"), float("-inf")]
    assert str(loaded[2]) == "-0.0"
    assert loaded[3] != loaded[3]


def test_defaultdict_comes_back_without_its_factory(path: Path) -> None:
    loaded = round_trip(path, collections.defaultdict(list, {"b": 1, "a": 2}))
    assert type(loaded) is collections.defaultdict
    assert list(loaded.items()) == [("b", 1), ("a", 2)]
    assert loaded.default_factory is None


def test_named_tuple_comes_back_by_name_and_fields(path: Path) -> None:
    loaded = round_trip(path, {"opt": Adam(count=3, mu={"w": ARRAY})})["opt"]
    assert type(loaded).__name__ == "Adam"
    assert type(loaded) is not Adam, "loading must not look for the class"
    assert loaded._fields == ("count", "mu")
    assert loaded.count == 3
    assert loaded == (3, loaded.mu)


def test_two_loads_share_a_named_tuple_class(path: Path) -> None:
    regrow.save(path, [Adam(1, 2), Adam(3, 4)])
    first, second = regrow.load(path), regrow.load(path)
    assert type(first[0]) is type(first[1]) is type(second[0])


def test_dataclass_comes_back_as_a_node(path: Path) -> None:
    loaded = round_trip(path, Point(y=ARRAY, x=2))
    assert isinstance(loaded, regrow.Node)
    np.testing.assert_array_equal(loaded.y, ARRAY)
    assert (loaded.x, loaded["x"], list(loaded), loaded.note) == (2, 2, ["y", "x", "note"], "n")
    with pytest.raises(AttributeError, match="no child 'z'"):
        _ = loaded.z


def test_stand_ins_are_saved_as_what_they_were(path: Path, tmp_path: Path) -> None:
    regrow.save(path, {"p": Point(1, 2), "a": Adam(3, 4)})
    again = tmp_path / "again"
    regrow.save(again, regrow.load(path))
    restored = regrow.load(again, like={"p": Point(0, 0), "a": Adam(0, 0)})
    assert restored == {"p": Point(1, 2), "a": Adam(3, 4)}
    assert repr(regrow.load(again)) == repr(regrow.load(path))


def test_a_field_that_no_named_tuple_can_have(path: Path, tmp_path: Path) -> None:
    # Only a file can say so: the name of a field is a word of Python.
    node = regrow.Node("m.Odd", {"class": 1, "_x": 2}, "named_tuple")
    loaded = round_trip(path, node)
    assert (loaded["class"], loaded["_x"]) == (1, 2)


def walk_down(tree: Any) -> tuple[int, Any]:
    depth = 0
    while isinstance(tree, (list, dict)):
        tree, depth = next(iter(tree.values() if isinstance(tree, dict) else tree)), depth + 1
    return depth, tree


def test_five_thousand_levels(path: Path) -> None:
    tree: Any = 7
    for level in range(5000):
        tree = [tree] if level % 2 else {"k": tree}
    assert walk_down(round_trip(path, tree)) == (5000, 7)


def test_a_tree_that_contains_itself_is_refused(path: Path) -> None:
    tree: dict[str, Any] = {"a": [1]}
    tree["a"].append(tree)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="contains itself") as caught:
        regrow.save(path, tree)
    assert caught.value.leaf == "a/1"
    assert not path.exists()


def test_the_same_object_twice_is_no_cycle(path: Path) -> None:
    shared = {"w": ARRAY}
    assert_same({"a": shared, "b": [shared, shared]}, round_trip(path, {"a": shared, "b": [shared, shared]}))


@pytest.mark.parametrize("key", [1.5, None, True, (1, 2), b"k", 2**63, np.int64(1)], ids=repr)
def test_other_keys_are_refused_by_name(path: Path, key: Any) -> None:
    with pytest.raises(regrow.errors.LeafTypeError) as caught:
        regrow.save(path, {"outer": {key: 1}})
    assert repr(key) in str(caught.value)
    assert caught.value.leaf == "outer"
    assert isinstance(caught.value, TypeError)
    assert not path.exists()


def test_a_key_that_is_no_text_is_refused(path: Path) -> None:
    with pytest.raises(regrow.errors.UnsupportedError, match="Unicode"):
        regrow.save(path, {"\ud800": 1})


def test_works_without_jax(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np, regrow
from dataclasses import dataclass
from typing import NamedTuple
class N(NamedTuple):
    a: object
@dataclass
class D:
    b: object
tree = {{"n": N([np.ones(2)]), "d": D((1, None))}}
regrow.save({str(tmp_path / "x")!r}, tree)
back = regrow.load({str(tmp_path / "x")!r}, like=tree)
assert type(back["n"]) is N and type(back["d"]) is D and back["d"].b == (1, None)
regrow.load({str(tmp_path / "x")!r})
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_hundred_thousand_leaves_are_quick(path: Path) -> None:
    tree = {f"layer{i}": {f"w{j}": np.float32([i, j]) for j in range(100)} for i in range(1000)}
    started = time.process_time()
    from regrow._leaves._columns import to_native
    from regrow._tree._flatten import flatten

    to_native(flatten(tree))
    flattening = time.process_time() - started
    regrow.save(path, tree, durable=False)
    loaded = regrow.load(path)
    assert sum(len(layer) for layer in loaded.values()) == 100_000
    np.testing.assert_array_equal(loaded["layer999"]["w99"], [999, 99])
    # Far above what it takes, far below what a call for each leaf would.
    assert flattening < 2
