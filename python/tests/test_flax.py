"""`regrow.flax` beside `flax.serialization`: the same bytes, the same objects, the same
messages.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import flax.serialization as theirs
import jax
import numpy as np
import pytest
from conftest import same_bits
from flax import traverse_util
from flax.core import FrozenDict
from flax_trees import MAKERS, Moments, Net, Stats, assert_same_values, tree

from regrow import flax as ours

NAMES = list(MAKERS)
PUBLIC = [
    "to_bytes",
    "from_bytes",
    "to_state_dict",
    "from_state_dict",
    "register_serialization_state",
    "is_serializable",
    "msgpack_serialize",
    "msgpack_restore",
    "current_path",
]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theirs, "MAX_CHUNK_SIZE", 20)
    monkeypatch.setattr(ours, "MAX_CHUNK_SIZE", 20)


def assert_same_objects(left: Any, right: Any) -> None:
    """The same structure, to JAX, and the same leaves, in type and bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert type(one) is type(other)
        assert same_bits(one, other) if hasattr(one, "dtype") else repr(one) == repr(other)


def assert_as_flax(name: str, *args: Any) -> None:
    """Both packages give the same, or raise the same; ours may be of a class of its own below that
    of the original, and say more in further lines."""
    outcomes = []
    for package in (theirs, ours):
        try:
            outcomes.append(getattr(package, name)(*args))
        except Exception as error:
            outcomes.append(error)
    expected, found = outcomes
    if isinstance(expected, Exception):
        assert isinstance(found, type(expected)), repr(found)
        assert f"{found}\n".startswith(f"{expected}\n")
    else:
        assert_same_values(found, expected)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_signature_is_that_of_the_original(name: str) -> None:
    mine = list(inspect.signature(getattr(ours, name)).parameters.values())
    original = list(inspect.signature(getattr(theirs, name)).parameters.values())
    shared, more = mine[: len(original)], mine[len(original) :]
    assert [(p.name, p.kind, p.default) for p in shared] == [(p.name, p.kind, p.default) for p in original]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


def test_nothing_public_is_missing() -> None:
    functions = {
        name
        for name, value in vars(theirs).items()
        if isinstance(value, types.FunctionType) and value.__module__ == theirs.__name__ and not name.startswith("_")
    }
    assert functions == set(PUBLIC)
    assert ours.MAX_CHUNK_SIZE == theirs.MAX_CHUNK_SIZE


@pytest.mark.parametrize("name", NAMES)
def test_state_dicts_are_the_same(name: str) -> None:
    assert_same_values(ours.to_state_dict(tree(name)), theirs.to_state_dict(tree(name)))


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_the_same(name: str) -> None:
    assert ours.to_bytes(tree(name)) == theirs.to_bytes(tree(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("in_place", [False, True])
def test_low_level_bytes_are_the_same(name: str, in_place: bool) -> None:
    mine, original = theirs.to_state_dict(tree(name)), theirs.to_state_dict(tree(name))
    assert ours.msgpack_serialize(mine, in_place) == theirs.msgpack_serialize(original, in_place)
    assert_same_values(mine, original)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_chunks")
def test_bytes_in_pieces_are_the_same(name: str) -> None:
    mine, original = theirs.to_state_dict(tree(name)), theirs.to_state_dict(tree(name))
    data = ours.to_bytes(tree(name))
    assert data == theirs.to_bytes(tree(name))
    assert ours.msgpack_serialize(mine, True) == theirs.msgpack_serialize(original, True)
    assert_same_values(mine, original)
    assert_same_objects(ours.from_bytes(tree(name), data), theirs.from_bytes(tree(name), data))


@pytest.mark.parametrize("name", NAMES)
def test_each_restores_what_the_other_wrote(name: str) -> None:
    target, data = tree(name), theirs.to_bytes(tree(name))
    expected = theirs.from_bytes(target, data)
    assert_same_objects(ours.from_bytes(target, data), expected)
    assert_same_objects(ours.from_bytes(target, data, strict=True), expected)
    assert_same_objects(theirs.from_bytes(target, ours.to_bytes(target)), expected)
    assert_same_values(ours.msgpack_restore(data), theirs.msgpack_restore(data))
    assert_same_values(ours.from_bytes(None, data), theirs.from_bytes(None, data))


def test_lists_stay_lists_on_the_low_level() -> None:
    pytree = {"l": [np.ones(3), [np.float16(1), {"z": 1, "a": [2, 3]}], "s"], "e": [], 3.5: {None: b"x"}}
    for value in (pytree["l"], {"b": pytree["l"], "a": []}, {3: 1, 1.5: 2, True: 3}, {b"k": 1}, {None: 1}):
        data = theirs.msgpack_serialize(value)
        assert ours.msgpack_serialize(value) == data
        assert_same_values(ours.msgpack_restore(data), theirs.msgpack_restore(data))


def test_restored_arrays_are_views() -> None:
    data = ours.to_bytes({"a": np.arange(1000), "b": [np.ones(5)]})
    restored = ours.from_bytes({"a": 0, "b": [0]}, data)
    buffer = np.frombuffer(data, np.uint8)
    for array in (restored["a"], restored["b"][0]):
        assert np.shares_memory(array, buffer)
        assert not array.flags.writeable


def test_a_named_tuple_of_before_2021_is_read(fixtures: Path) -> None:
    legacy = {"name": "Moments", "fields": {"0": "mean", "1": "var"}, "values": {"0": 1, "1": np.ones(2)}}
    assert_same_objects(
        ours.from_state_dict(Moments(0, 0), legacy),
        theirs.from_state_dict(Moments(0, 0), legacy),
    )
    assert ours.from_state_dict(Moments(0, np.ones(2)), legacy, strict=True).mean == 1


def test_the_target_does_not_change() -> None:
    target = {"a": [np.zeros(2)], "s": Stats(np.zeros(2), [1])}
    before = theirs.to_bytes(target)
    ours.from_bytes(target, ours.to_bytes({"a": [np.ones(2)], "s": Stats(np.ones(2), [2])}))
    assert theirs.to_bytes(target) == before


# ---- messages -------------------------------------------------------------------------

UNSERIALISABLE: dict[str, Any] = {
    "tuple": (1, 2),
    "tuple_in_dict": {"a": (1,)},
    "object": {"a": object()},
    "set": {"a": {1}},
    "function": {"a": len},
    "class": float,
    "tuple_key": {(1, 2): 3},
    "int_too_big": {"a": 2**64},
    "int_too_small": {"a": -(2**63) - 1},
    "object_array": {"a": np.array([object()])},
    "aligned_record": {"a": np.zeros(2, np.dtype([("x", "i1"), ("y", "f8")], align=True))},
    "struct": {"a": jax.ShapeDtypeStruct((1,), np.float32)},
    "frozen": FrozenDict({"a": 1}),
    "mixed_keys": {0: 1, "a": 2},
    "mixed_keys_below": {"x": {0: 1, "a": 2}},
}


@pytest.mark.parametrize("name", UNSERIALISABLE)
@pytest.mark.parametrize("in_place", [False, True])
def test_values_that_cannot_be_written_are_refused_as_by_flax(name: str, in_place: bool) -> None:
    assert_as_flax("msgpack_serialize", UNSERIALISABLE[name], in_place)
    if not in_place:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            ours.msgpack_serialize(UNSERIALISABLE[name])


def test_typed_keys_are_refused_as_by_flax() -> None:
    assert_as_flax("to_bytes", {"k": jax.random.key(0)})
    with pytest.raises(TypeError, match=r"^JAX array with PRNGKey dtype cannot be converted to a NumPy array"):
        ours.to_bytes({"k": jax.random.key(0)})


ONE = np.ones(1)
MISMATCHES: dict[str, tuple[Any, Any]] = {
    "dict_missing": ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}),
    "dict_below_list": ([{"b": 1}], {"0": {}}),
    "dict_leaf": ({"a": {"b": 1}}, {"a": 5}),
    "dict_array": ({"a": {"b": 1}}, {"a": ONE}),
    "frozen_missing": (FrozenDict({"a": {"b": 1}}), {"a": {}}),
    "list_length": ({"a": [1, 2, 3]}, {"a": {"0": 1}}),
    "list_key": ([1, 2], {"0": 1, "x": 2}),
    "list_leaf": ([1], 5),
    "tuple_length": ((1, 2), {"0": 1}),
    "named_tuple": ({"m": Moments(1, 2)}, {"m": {"mean": 1}}),
    "named_tuple_extra": (Moments(1, 2), {"mean": 1, "var": 2, "x": 3}),
    "named_tuple_leaf": (Moments(1, 2), 5),
    "struct_missing": ({"p": Stats(1, [2])}, {"p": {"total": 1}}),
    "struct_unknown": ({"p": Stats(1, [2])}, {"p": {"total": 1, "history": {"0": 2}, "z": 3, "y": 4}}),
    "struct_below": ({"p": Net({"w": 1}, Stats(1, ()))}, {"p": {"weight": {}, "stats": {}}}),
    "struct_deep": ({"p": Net({"w": 1}, Stats(1, ()))}, {"p": {"weight": {"w": 1}, "stats": {"total": 1}}}),
    "partial": (jax.tree_util.Partial(len, {"a": 1}), {"args": {"0": {}}, "keywords": {}}),
    "partial_missing": (jax.tree_util.Partial(len), {"args": {}}),
    "extra_is_dropped": ({"a": 1}, {"a": 2, "b": 3}),
    "leaf_gets_a_map": ({"a": 1}, {"a": {"b": 3}}),
    "class_as_target": (dict, {"a": {"b": 3}}),
    "kinds_are_not_compared": ({"a": ONE}, {"a": "text"}),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_is_reported_as_by_flax(name: str) -> None:
    assert_as_flax("from_state_dict", *MISMATCHES[name])


@pytest.mark.parametrize("value", [{1: 0, "1": 1}, FrozenDict({1: 0, "1": 1}), {"a": {2: 0, "2": 1}}])
def test_keys_with_the_same_text_are_refused_as_by_flax(value: Any) -> None:
    assert_as_flax("to_state_dict", value)
    with pytest.raises(ValueError, match=r"^Dict keys do not have a unique string representation: "):
        ours.to_state_dict(value)


def test_an_error_below_a_key_that_is_no_text_says_the_path() -> None:
    target = FrozenDict({1: {"a": 0}})
    with pytest.raises(TypeError):
        theirs.from_state_dict(target, {"1": {}})
    with pytest.raises(ValueError, match=r"not present in state dict at path \./1$"):
        ours.from_state_dict(target, {"1": {}})


def test_the_path_is_empty_again_after_an_error() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=r"at path \./a$"):
            ours.from_state_dict({"a": {"b": 1}}, {"a": {}})
    assert ours.current_path() == theirs.current_path() == ""


def test_text_with_lone_surrogates_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        theirs.to_bytes({"a": "\ud800"})
    with pytest.raises(UnicodeEncodeError):
        ours.to_bytes({"a": "\ud800"})


# ---- what the original gets wrong -----------------------------------------------------


def test_big_endian_arrays_keep_their_numbers() -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    assert not np.array_equal(theirs.msgpack_restore(theirs.to_bytes(array)), array)
    assert np.array_equal(theirs.msgpack_restore(ours.to_bytes(array)), array)
    assert np.array_equal(theirs.msgpack_restore(ours.to_bytes({"a": np.float64(2).astype(">f8")}))["a"], 2)


@pytest.mark.parametrize("dtype", ["<U3", "S3", "V3", [("x", "i2"), ("y", "f4")]])
def test_arrays_that_could_not_be_read_back_are_refused(dtype: Any) -> None:
    array = np.zeros(2, np.dtype(dtype))
    data = theirs.to_bytes({"a": array})
    with pytest.raises(TypeError):
        theirs.msgpack_restore(data)
    with pytest.raises(ValueError, match="a"):
        ours.to_bytes({"a": array})


# ---- types of one's own ---------------------------------------------------------------


class Celsius:
    """An unknown type."""

    def __init__(self, degrees: Any) -> None:
        self.degrees = degrees


def to_celsius(target: Celsius) -> Any:
    return {"degrees": ours.to_state_dict(target.degrees)}


def from_celsius(target: Celsius, state: Any) -> Celsius:
    return Celsius(theirs.from_state_dict(target.degrees, state["degrees"], name="degrees"))


@pytest.fixture(params=[ours, theirs], ids=["registered_with_regrow", "registered_with_flax"])
def registered(request: pytest.FixtureRequest) -> Any:
    request.param.register_serialization_state(Celsius, to_celsius, from_celsius)
    yield request.param
    del theirs._STATE_DICT_REGISTRY[Celsius]


@pytest.mark.usefixtures("registered")
def test_a_type_registered_with_one_is_known_to_both() -> None:
    assert ours.is_serializable(Celsius)
    assert theirs.is_serializable(Celsius(1))
    value = {"t": Stats(Celsius([np.ones(2)]), ())}
    data = theirs.to_bytes(value)
    assert ours.to_bytes(value) == data
    for package in (ours, theirs):
        assert np.array_equal(package.from_bytes(value, data)["t"].total.degrees[0], np.ones(2))
        with pytest.raises(ValueError, match=r"at path \./t/total/degrees$"):
            package.from_state_dict(value, {"t": {"total": {"degrees": {}}, "history": {}}})
        with pytest.raises(ValueError, match='a serialization handler for "Celsius" is already registered'):
            package.register_serialization_state(Celsius, to_celsius, from_celsius)


@pytest.mark.usefixtures("registered")
def test_a_handler_is_replaced_on_request_and_may_pass_values_through() -> None:
    ours.register_serialization_state(Celsius, lambda target: target.degrees, lambda _, state: Celsius(state), True)
    for package in (ours, theirs):
        assert package.from_bytes(Celsius(0), package.to_bytes(Celsius(21))).degrees == 21
    theirs.register_serialization_state(Celsius, lambda target: {0: 1}, from_celsius, override=True)
    for package in (ours, theirs):
        with pytest.raises(AssertionError, match=r"^A state dict must only have string keys\.$"):
            package.to_state_dict(Celsius(0))


def test_the_handler_of_a_builtin_can_be_replaced() -> None:
    original = theirs._STATE_DICT_REGISTRY[list]
    theirs.register_serialization_state(list, lambda value: {"n": len(value)}, lambda *_: ["x"], override=True)
    try:
        assert ours.to_state_dict({"a": [1, 2]}) == {"a": {"n": 2}}
        assert ours.from_state_dict([], {"n": 1}) == ["x"]
    finally:
        theirs._STATE_DICT_REGISTRY[list] = original


@pytest.mark.parametrize(
    "value", [{}, [], (), Moments(1, 2), FrozenDict(), Stats(1, 2), Stats, 1, None, ONE, dict, int, Celsius(1)]
)
def test_what_is_serializable_is_so_to_both(value: Any) -> None:
    assert ours.is_serializable(value) == theirs.is_serializable(value)


BEFORE_FLAX = """
import sys
from typing import NamedTuple
import numpy as np
from regrow import flax as serialization
from regrow.flax import checkpoints, traverse_util

class Own:
    def __init__(self, x): self.x = x
class Pair(NamedTuple):
    a: object
    b: object

serialization.register_serialization_state(Own, lambda v: {"x": v.x}, lambda v, s: Own(s["x"]))
data = serialization.to_bytes({"o": Own(np.arange(3)), "p": Pair(1, [2.5])})
assert serialization.from_bytes({"o": Own(0), "p": Pair(0, [0])}, data)["p"] == Pair(1, [2.5])
assert traverse_util.flatten_dict({"a": {}}, keep_empty_nodes=True) == {("a",): traverse_util.empty_node}
assert not {"jax", "flax", "msgpack"} & set(sys.modules), "imported something by itself"
import flax.serialization
serialization.is_serializable(Own)
assert flax.serialization.to_bytes({"o": Own(np.arange(3)), "p": Pair(1, [2.5])}) == data
"""


def test_nothing_is_imported_and_what_was_registered_before_flax_is_handed_over() -> None:
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", BEFORE_FLAX], check=True)


# ---- code of users --------------------------------------------------------------------

USER_CODE = """
def save(path, state):
    with open(path, "wb") as file:
        file.write(serialization.to_bytes(state))

def restore(path, state):
    with open(path, "rb") as file:
        return serialization.from_bytes(state, file.read())

def parameters(path, sep="/"):
    with open(path, "rb") as file:
        state = serialization.msgpack_restore(file.read())
    return traverse_util.flatten_dict(state["params"], sep=sep)

class Counter:
    def __init__(self, n): self.n = n

serialization.register_serialization_state(
    Counter,
    lambda c: {"n": serialization.to_state_dict(c.n)},
    lambda c, s: Counter(serialization.from_state_dict(c.n, s["n"], name="n")),
)

def run(path, state):
    save(path, {"state": state, "counter": Counter(3), "params": state.params})
    back = restore(path, {"state": state, "counter": Counter(0), "params": state.params})
    try:
        restore(path, {"state": state, "counter": Counter({"a": 1}), "params": state.params})
    except Exception as error:
        message = (type(error).__name__, str(error))
    frozen = serialization.to_state_dict(state)
    changed = traverse_util.path_aware_map(lambda path, leaf: leaf * 2 if "kernel" in path else leaf, frozen["params"])
    frozen["params"] = changed
    return back["state"], back["counter"].n, message, parameters(path), serialization.from_state_dict(state, frozen)
"""


def test_code_of_users_does_the_same(tmp_path: Path) -> None:
    from regrow.flax import traverse_util as our_traverse_util

    results = []
    for name, serialization, traverse in (("theirs", theirs, traverse_util), ("ours", ours, our_traverse_util)):
        module: dict[str, Any] = {"serialization": serialization, "traverse_util": traverse}
        exec(compile(USER_CODE, name, "exec"), module)
        results.append(module["run"](tmp_path / name, tree("adamw_clip")))
    original, mine = results
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert_same_objects(mine[0], original[0])
    assert mine[1:3] == original[1:3]
    assert_same_values(mine[3], original[3])
    assert_same_objects(mine[4], original[4])
