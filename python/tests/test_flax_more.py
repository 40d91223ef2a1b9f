"""What `regrow.flax` adds: strict restoring, nnx, typed keys; and files of all sorts, damaged
ones too.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import flax.serialization as theirs
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from conftest import same_bits
from flax import nnx
from flax_trees import Moments, Stats, assert_same_values, nnx_model, tree

import regrow
from regrow import flax as ours

REPOSITORY = Path(__file__).parents[2]
CASES = json.loads((REPOSITORY / "fixtures/flax/expected.json").read_text())["cases"]
ACCEPTED_LIKE_THE_ORIGINAL = {"dup_keys", "bitflip_data", "ext3_multi"}


def content(name: str) -> bytes:
    return (REPOSITORY / "fixtures/flax" / name).read_bytes()


def leaf_at(value: Any, path: list[Any]) -> Any:
    for step in path:
        value = value[step["index"] if isinstance(step, dict) else step]
    return value


def assert_is(leaf: Any, expected: dict[str, Any]) -> None:
    """A leaf is what expected.json says."""
    kind = expected["kind"]
    if kind in ("array", "npscalar"):
        assert isinstance(leaf, np.ndarray if kind == "array" else np.generic)
        assert leaf.dtype.name == expected["dtype"]
        assert list(leaf.shape) == expected["shape"]
        assert leaf.nbytes == expected["nbytes"]
        if leaf.dtype.name not in ("float128", "complex256"):  # their padding is anything
            assert hashlib.sha256(leaf.tobytes()).hexdigest() == expected["sha256"]
    elif kind == "float":
        assert type(leaf) is float
        assert leaf.hex() == expected["hex"]
    elif kind == "complex":
        assert [leaf.real.hex(), leaf.imag.hex()] == [float.fromhex(part).hex() for part in expected["hex"]]
    elif kind == "int":
        assert type(leaf) is int
        assert str(leaf) == expected["value"]
    elif kind in ("bool", "str"):
        assert type(leaf).__name__ == kind
        if "value" in expected:
            assert leaf == expected["value"]
        else:
            assert hashlib.sha256(leaf.encode()).hexdigest() == expected["sha256"]
    elif kind == "bytes":
        assert type(leaf) is bytes
        if "hex" in expected:
            assert leaf.hex() == expected["hex"]
        else:
            assert hashlib.sha256(leaf).hexdigest() == expected["sha256"]
    elif kind == "ext":
        assert leaf == (expected["code"], bytes.fromhex(expected["hex"]))
    else:
        assert leaf == {"none": None, "empty-map": {}, "empty-list": []}[kind]


@pytest.mark.parametrize("case", [c for c in CASES if "leaves" in c], ids=lambda case: case["file"])
def test_valid_files_hold_what_is_expected(case: dict[str, Any]) -> None:
    restored = ours.msgpack_restore(content(case["file"]))
    for expected in case["leaves"]:
        assert_is(leaf_at(restored, expected["path"]), expected)
    if case["file"] != "foreign_ext.msgpack":  # each has a type of its own for it, of the same members
        assert_same_values(restored, theirs.msgpack_restore(content(case["file"])))


UNREADABLE = {
    "str": np.array(["ab", "xyz"]),
    "bytes": np.array([b"ab", b"xyz"]),
    "void": np.zeros(2, "V3"),
    "struct": np.zeros(2, "V6"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_files_that_the_original_wrote_and_cannot_read_are_read(kind: str) -> None:
    data = content(f"unreadable_{kind}_array.msgpack")
    (case,) = (case for case in CASES if case["file"] == f"unreadable_{kind}_array.msgpack")
    with pytest.raises(TypeError, match=case["upstream_read"]["chain"][0]["message"]):
        theirs.msgpack_restore(data)
    assert_same_values(ours.msgpack_restore(data), {"v": UNREADABLE[kind], "after": 1})


def test_every_fixture_is_read_here() -> None:
    files = {path.name for path in (REPOSITORY / "fixtures/flax").glob("*.msgpack")}
    unreadable = {f"unreadable_{kind}_array.msgpack" for kind in UNREADABLE}
    assert files == {case["file"] for case in CASES}
    assert files == {c["file"] for c in CASES if "leaves" in c or c["kind"] == "corrupt"} | unreadable


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "corrupt"], ids=lambda case: case["file"])
def test_damaged_files_are_refused(case: dict[str, Any]) -> None:
    data = content(case["file"])
    if case["file"].removesuffix(".msgpack") in ACCEPTED_LIKE_THE_ORIGINAL:
        assert_same_values(ours.msgpack_restore(data), theirs.msgpack_restore(data))
        return
    with pytest.raises(regrow.errors.CorruptError) as raised:
        ours.msgpack_restore(data)
    assert isinstance(raised.value, ValueError)
    assert raised.value.offset_bytes is not None and "at byte" in str(raised.value)
    is_extra = case["upstream_read"].get("chain", [{}])[0].get("type") == "ExtraData"
    if is_extra and case["file"] != "ext1_trailing.msgpack":
        assert isinstance(raised.value, msgpack.exceptions.ExtraData)


@pytest.mark.parametrize("name", ["adamw_clip", "plain", "nested", "dtypes"])
def test_random_damage_ends_in_an_error_or_in_values(name: str) -> None:
    data = ours.to_bytes(tree(name))
    chance = random.Random(5)
    for _ in range(300):
        damaged = bytearray(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.3 else data)
        for _ in range(chance.randrange(4)):
            if damaged:
                damaged[chance.randrange(min(len(damaged), 4000))] = chance.randrange(256)
        with contextlib.suppress(ValueError, AttributeError):
            ours.from_bytes(tree(name), bytes(damaged), strict=True)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(kind: Any) -> None:
    restored = ours.msgpack_restore(kind(ours.to_bytes({"a": np.arange(3)})))
    assert restored["a"].tolist() == [0, 1, 2]
    assert not restored["a"].flags.writeable


def test_text_is_no_buffer() -> None:
    with pytest.raises(TypeError):
        ours.msgpack_restore("text")  # type: ignore[arg-type]


# ---- strict ---------------------------------------------------------------------------


def test_all_differences_come_in_one_error() -> None:
    target = {
        "a": np.zeros((2, 3), np.float32),
        "b": {"x": 1, "y": 2.0, "z": "text", "w": None},
        "l": [np.float32(1), jnp.ones(2), {"q": 1}],
        "m": Moments(np.ones(1), jax.ShapeDtypeStruct((4,), np.int8)),
        "gone": {"deep": np.ones(2)},
        "map": {"k": 1},
        "leaf": np.ones(2),
    }
    state = ours.to_state_dict(
        {
            "a": np.zeros((3, 2), np.float16),
            "b": {"x": True, "y": 2, "z": b"text", "w": 0, "new": 1},
            "l": [np.ones(()), np.ones(2, np.float64), {}],
            "m": Moments(np.ones(1), np.zeros(4, np.int8)),
            "map": 5,
            "leaf": {"k": 1},
        }
    )
    with pytest.raises(regrow.errors.MismatchError) as raised:
        ours.from_state_dict(target, state, strict=True)
    lines = [line.strip() for line in str(raised.value).splitlines()]
    assert lines[0] == "the target does not fit the stored state in 13 places"
    assert lines[1:-1] == [
        "missing   gone: in the target, not in the stored state",
        "shape     a: target (2, 3), stored (3, 2)",
        "dtype     a: target float32, stored float16",
        "extra     b/new: in the stored state, not in the target",
        "kind      b/x: target int, stored bool",
        "kind      b/y: target float, stored int",
        "kind      b/z: target str, stored bytes",
        "kind      b/w: target None, stored int",
        "kind      l/0: target NumPy scalar, stored array",
        "dtype     l/1: target float32, stored float64",
        "missing   l/2/q: in the target, not in the stored state",
        "kind      map: target map, stored int",
        "kind      leaf: target array, stored map",
    ]
    assert raised.value.leaf == "gone"
    assert isinstance(raised.value, ValueError)


def test_strict_asks_nothing_where_the_target_says_nothing() -> None:
    state = {"f": {"a": 1}, "c": np.ones(2)}
    assert ours.from_state_dict({"f": len, "c": np.ndarray}, state, strict=True) == state
    assert ours.from_state_dict(None, state, strict=True) is state
    data = ours.to_bytes(state)
    assert_same_values(ours.from_bytes(None, data, strict=True), ours.msgpack_restore(data))


def test_strict_says_the_place_of_a_root() -> None:
    with pytest.raises(regrow.errors.MismatchError, match=r"shape     \.: target \(2,\), stored \(3,\)"):
        ours.from_bytes(np.ones(2), ours.to_bytes(np.ones(3)), strict=True)


# ---- nnx ------------------------------------------------------------------------------


def test_a_state_of_nnx_is_written_as_its_pure_dict() -> None:
    model = nnx_model()
    state = nnx.state(model)
    with pytest.raises(TypeError, match="can not serialize 'State' object"):
        theirs.to_bytes(state)
    data = ours.to_bytes(state)
    assert data == theirs.to_bytes(nnx.to_pure_dict(state)) == ours.to_bytes(model)
    other = nnx.state(nnx_model())
    nnx.replace_by_pure_dict(other, nnx.restore_int_paths(theirs.msgpack_restore(data)))
    assert_same_values(
        nnx.to_pure_dict(ours.from_bytes(state, data)), jax.tree.map(jnp.asarray, nnx.to_pure_dict(other))
    )
    with pytest.raises(TypeError, match="can not serialize 'State' object"):
        ours.msgpack_serialize(state)


def changed(model: Any) -> Any:
    graph, state = nnx.split(model)
    return nnx.merge(graph, jax.tree.map(lambda leaf: leaf + 1, state))


def test_a_model_of_nnx_is_restored_as_a_new_one() -> None:
    model, trained = nnx_model(), changed(nnx_model())
    x = jnp.ones((4, 2))
    restored = ours.from_bytes(model, ours.to_bytes(trained), strict=True)
    assert ours.to_bytes(model) == ours.to_bytes(nnx_model())
    assert type(restored) is type(model)
    assert np.array_equal(restored(x), trained(x))
    assert not np.array_equal(model(x), trained(x))
    assert ours.is_serializable(model)
    variable = nnx.Param(jnp.ones(2))
    assert ours.from_bytes(variable, ours.to_bytes(np.zeros(2)))[...].tolist() == [0, 0]


def test_a_state_of_nnx_in_a_dataclass() -> None:
    state = Stats(nnx.state(nnx_model()), 3)
    restored = ours.from_bytes(state, ours.to_bytes(Stats(nnx.state(changed(nnx_model())), 4)))
    assert restored.history == 4
    expected = nnx.to_pure_dict(nnx.state(changed(nnx_model())))
    assert_same_values(nnx.to_pure_dict(restored.total), expected)
    with pytest.raises(ValueError, match=r"contains keys \{'layers'\} .* at path \./total/\.$"):
        ours.from_state_dict(state, {"total": {}, "history": 1})


def test_integer_keys_come_back_as_integers() -> None:
    layers = nnx.List([nnx.Linear(2, 2, rngs=nnx.Rngs(at)) for at in range(3)])
    restored = ours.from_bytes(nnx.state(layers), ours.to_bytes(nnx.state(layers)))
    assert list(nnx.to_pure_dict(restored)) == [0, 1, 2]


# ---- extended -------------------------------------------------------------------------


def test_typed_keys_are_written_on_request() -> None:
    state = {
        "rng": jax.random.key(3),
        "many": jax.random.split(jax.random.key(1), 4),
        "impl": jax.random.key(0, impl="rbg"),
    }
    data = ours.to_bytes(state, extended=True)
    assert theirs.msgpack_restore(data)["rng"].dtype == np.uint32
    restored = ours.from_bytes(state, data, strict=True, extended=True)
    for name, key in state.items():
        assert jax.random.key_impl(restored[name]) == jax.random.key_impl(key)
        assert same_bits(jax.random.key_data(restored[name]), jax.random.key_data(key))
    assert ours.from_bytes(state, data)["rng"].dtype == np.uint32
    with pytest.raises(regrow.errors.MismatchError, match="dtype     rng"):
        ours.from_bytes(state, data, strict=True)
    plain = {"rng": regrow.PrngKey(np.arange(2, dtype=np.uint32), "threefry2x32")}
    assert ours.from_bytes(plain, ours.to_bytes(plain, extended=True), extended=True) == plain


def test_a_model_with_randomness_is_written_on_request() -> None:
    model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    with pytest.raises(TypeError, match="PRNGKey"):
        ours.to_bytes(model)
    restored = ours.from_bytes(model, ours.to_bytes(model, extended=True), extended=True)
    x = jnp.ones((4, 2))
    assert np.array_equal(restored(x), model(x))


def test_other_dicts_are_written_on_request() -> None:
    value = {"o": collections.OrderedDict(b=1, a=[2]), "d": collections.defaultdict(list, {"z": np.ones(1), "y": 2})}
    for package in (theirs, ours):
        with pytest.raises(TypeError, match=r"can not serialize 'collections\.OrderedDict' object"):
            package.to_bytes(value)
    restored = ours.from_bytes(value, ours.to_bytes(value, extended=True), extended=True)
    assert_same_values(restored, value)
    assert restored["d"].default_factory is list
    assert ours.to_state_dict(value["o"]) is value["o"]


def test_tuples_are_written_on_the_low_level_on_request() -> None:
    value = {"b": (1, (2.5, [3])), "a": collections.OrderedDict(z=1, y=(Moments(1, 2),))}
    data = ours.msgpack_serialize(value, extended=True)
    assert theirs.msgpack_restore(data) == {"a": {"z": 1, "y": [[1, 2]]}, "b": [1, [2.5, [3]]]}
    assert list(ours.msgpack_restore(data)) == ["a", "b"]
    assert list(ours.msgpack_restore(ours.msgpack_serialize(value, True, extended=True))) == ["b", "a"]
    assert ours.msgpack_serialize([jax.random.key(1)], extended=True) == theirs.msgpack_serialize(
        [np.array([0, 1], np.uint32)]
    )
    assert type(value["b"]) is tuple


def test_a_node_of_regrow_is_a_map() -> None:
    node = regrow.Node("pkg.State", {"step": 1, "w": np.ones(2)})
    data = ours.to_bytes(node)
    assert data == theirs.to_bytes({"step": 1, "w": np.ones(2)})
    assert ours.from_bytes(node, data).step == 1
