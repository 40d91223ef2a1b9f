"""For every tree that `save` takes: `load(like=tree)`, `out=`, and saving again are exact, in
every layout.
"""

from __future__ import annotations

import enum
import itertools
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import regrow
from regrow import _native
from regrow._leaves import _columns

ML_OTHERS = [np.dtype(getattr(ml_dtypes, name)) for name in sorted(_columns._ML_OTHERS) if hasattr(ml_dtypes, name)]
RECORD = np.dtype([("x", "<f4"), ("y", ">i4"), ("z", "<U2", (2,))])
OTHERS = [
    np.dtype("<U3"), np.dtype(">U3"), np.dtype("S3"), np.dtype("V3"), np.dtype("<M8[ns]"), np.dtype(">M8[D]"),
    np.dtype("<m8[25s]"), RECORD, np.dtype([("inner", RECORD), ("n", "u1")]), np.dtype(np.longdouble),
    np.dtype(np.clongdouble), *ML_OTHERS,
]  # fmt: skip
NUMBERS = [*_columns.DTYPES, np.dtype(">f4"), np.dtype(">i8"), np.dtype(">c8")]
SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 3), (0, 2), (4, 1, 2)])


@st.composite
def arrays(draw: Any) -> np.ndarray[Any, Any]:
    """Arrays of every dtype that `save` takes, contiguous or not."""
    dtype, shape = draw(st.sampled_from([*OTHERS, *NUMBERS])), draw(SHAPES)
    size = int(np.prod(shape))
    if dtype in (np.dtype("<U3"), np.dtype(">U3")):
        array = np.array([draw(st.sampled_from(["", "a", "bé", "\U0001f600cd"])) for _ in range(size)], dtype)
    elif dtype.fields is not None or (dtype.kind in "SV" and dtype not in _columns.DTYPES):
        array = np.zeros(size, dtype)
        if dtype.names is not None and "y" in dtype.names:
            array["y"] = range(size)
            array["z"] = "ab"
    elif dtype.kind in "Mm":
        array = np.array(range(1, size + 1), "<i8").astype(dtype.str.replace(">", "<")).astype(dtype)
    else:
        bits = np.array([draw(st.integers(0, 3)) for _ in range(size)], np.uint8)
        array = (bits % 2 if dtype.itemsize == 1 else bits).astype(np.float32).astype(dtype)
    array = array.reshape(shape)
    return np.asfortranarray(array) if draw(st.booleans()) else array


# Scalars of dtypes that are NumPy's or ml_dtypes' alone: flax keeps them, the other layouts refuse.
OTHER_SCALARS = [
    np.datetime64("2020"), np.timedelta64(3, "s"), np.longdouble(1.5),
    *(dtype.type(1) for dtype in ML_OTHERS),
]  # fmt: skip
LEAVES = st.one_of(
    arrays(),
    st.sampled_from([True, False, 0, -1, 2**63 - 1, 2**64 - 1, 1.5, float("inf"), 2j, "", "text", "é\n", b"", b"\0a"]),
    st.sampled_from([np.float32(1.5), np.int8(-3), np.bool_(True), np.complex64(1j), ml_dtypes.bfloat16(2)]),
    st.sampled_from(OTHER_SCALARS),
    st.builds(lambda n: jax.numpy.arange(n, dtype=np.float32), st.integers(0, 3)),
    st.sampled_from([jax.random.key(3), jax.random.key(4, impl="rbg")]),
)
TREES = st.recursive(
    LEAVES,
    lambda below: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "c/d", "w"]), below, max_size=3),
        st.lists(below, max_size=3),
        st.lists(below, max_size=3).map(tuple),
        st.none(),
    ),
    max_leaves=6,
)
LAYOUTS = [
    *({"layout": name} for name in _native.LAYOUTS if name not in ("npy", "trak")),
    {"layout": "npy", "name": "x.npz"},
    {"layout": "npy", "name": "x"},
    {"layout": "safetensors", "name": "x.safetensors"},
]
NAMES = {"flax": "x.msgpack", "equinox": "x.eqx"}
FOLDERS = itertools.count()
SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def save(folder: Path, tree: Any, layout: dict[str, str]) -> Path | None:
    """Where it was saved; nothing if the layout cannot hold it."""
    path = folder / str(next(FOLDERS)) / layout.get("name", NAMES.get(layout["layout"], "x"))
    path.parent.mkdir()
    try:
        regrow.save(path, tree, layout=layout["layout"], durable=False)
    except regrow.RegrowError:
        return None
    return path


def native(tree: Any) -> Any:
    """With numbers in this machine's byte order, in which they are loaded."""

    def leaf(value: Any) -> Any:
        if type(value) is np.ndarray and not value.dtype.isnative and value.dtype.newbyteorder("=") in _columns.DTYPES:
            return value.astype(value.dtype.newbyteorder("="))
        return value

    return tree_map(leaf, tree)


def without_jax(tree: Any) -> Any:
    """As a load without a template gives it."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, jax.Array):
            return value
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return regrow.PrngKey(np.asarray(jax.random.key_data(value)), str(jax.random.key_impl(value)))
        return np.asarray(value)

    return tree_map(leaf, tree)


def tree_map(make: Any, tree: Any) -> Any:
    """As `jax.tree.map`, which sorts dicts."""
    if isinstance(tree, dict):
        return {key: tree_map(make, child) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(tree_map(make, child) for child in tree)
    return make(tree)


def leaves_of(tree: Any) -> list[Any]:
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves


def blank(tree: Any) -> Any:
    """The same arrays to be filled, in any byte order."""

    def leaf(value: Any) -> Any:
        # A dtype of ml_dtypes in another byte order is no longer of its class.
        is_swapped = value.dtype.fields is None and value.dtype.isbuiltin != 2
        dtype = value.dtype.newbyteorder(">") if is_swapped else value.dtype
        return np.zeros(value.shape, dtype)

    return tree_map(leaf, tree)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout.values()))
@SETTINGS
@given(tree=TREES)
def test_what_was_saved_is_a_template_for_itself(layout: dict[str, str], tree: Any, tmp_path: Path) -> None:
    path = save(tmp_path, tree, layout)
    if path is None:
        return
    plain = regrow.load(path)
    assert_same(regrow.load(path, like=plain), plain)
    again = save(tmp_path, plain, layout)
    if again is None:
        # Orbax gives complex numbers of NumPy back as Python's, which it does not take.
        assert layout["layout"] == "orbax"
        assert any(type(leaf) is complex for leaf in leaves_of(plain))
    else:
        assert_same(regrow.load(again), plain)
    expected = native(tree)
    try:
        assert_same(plain, without_jax(expected))
    except AssertionError:
        # The layout has made something else of the tree: then that is the template. Ours keeps
        # every tree.
        if layout["layout"] == "regrow":
            raise
        return
    assert_same(without_jax(regrow.load(path, like=tree)), without_jax(expected))
    assert [type(leaf) for leaf in leaves_of(regrow.load(path, like=tree))] == [type(leaf) for leaf in leaves_of(tree)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout.values()))
@SETTINGS
@given(tree=st.dictionaries(st.sampled_from(["a", "b", "w"]), arrays(), min_size=1, max_size=3))
def test_arrays_are_filled_with_any_content(layout: dict[str, str], tree: Any, tmp_path: Path) -> None:
    path = save(tmp_path, tree, layout)
    if path is None:
        return
    plain = regrow.load(path)
    if all(type(leaf) is np.ndarray for leaf in leaves_of(plain)):
        out = tree_map(np.zeros_like, plain)
        assert regrow.load_into(path, out) is out
        assert_same(out, plain)
        swapped = blank(plain)
        dtypes = [leaf.dtype for leaf in leaves_of(swapped)]
        regrow.load_into(path, swapped)
        assert [leaf.dtype for leaf in leaves_of(swapped)] == dtypes
        for leaf, whole in zip(leaves_of(swapped), leaves_of(plain), strict=True):
            assert leaf.astype(whole.dtype).tobytes() == whole.tobytes()


WRONG = {
    "text of another length": (np.array(["abc"]), np.array(["ab"])),
    "dates of another unit": (np.array([1], "M8[s]"), np.array([1], "M8[D]")),
    "dates for numbers": (np.array([1], "M8[s]"), np.array([1], "i8")),
    "numbers for dates": (np.array([1], "i8"), np.array([1], "M8[s]")),
    "bytes of a record": (np.zeros(2, RECORD), np.zeros((2, RECORD.itemsize), np.uint8)),
    "a record of bytes": (np.zeros((2, RECORD.itemsize), np.uint8), np.zeros(2, RECORD)),
    "other fields": (np.zeros(2, [("a", "f4")]), np.zeros(2, [("b", "f4")])),
    "another shape": (np.zeros(2, RECORD), np.zeros(3, RECORD)),
    "text for an array of it": ("abc", np.array(["abc"])),
    "an array of text for text": (np.array("abc"), "abc"),
    "numbers for long doubles": (np.zeros(2), np.zeros(2, np.longdouble)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_template_of_something_else_is_told_by_key_path(name: str, path: Path) -> None:
    stored, like = WRONG[name]
    regrow.save(path, {"x": {"y": stored}, "z": np.zeros(2)})
    with pytest.raises(regrow.errors.MismatchError, match="1 place\n") as caught:
        regrow.load(path, like={"x": {"y": like}, "z": np.zeros(2)})
    assert "x/y" in str(caught.value)
    if isinstance(like, np.ndarray):
        with pytest.raises(regrow.errors.MismatchError, match="x/y"):
            regrow.load_into(path, {"x": {"y": like.copy()}, "z": np.zeros(2)})


@pytest.mark.parametrize("scalar", OTHER_SCALARS, ids=lambda scalar: scalar.dtype.name)
def test_a_scalar_of_numpys_alone_is_a_template_for_itself_and_no_bytes(scalar: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack"
    regrow.save(path, {"t": scalar, "n": 1}, layout="flax")
    found = regrow.load(path, like={"t": scalar, "n": 1})["t"]
    assert type(found) is type(scalar) and found == scalar
    array = np.asarray(scalar)
    found = regrow.load(path, like={"t": np.zeros_like(array), "n": 1})["t"]
    assert type(found) is np.ndarray and found.dtype == array.dtype and found.tobytes() == array.tobytes()
    for like in (np.zeros(array.itemsize, np.uint8), np.zeros((), np.uint8), 1, "text"):
        with pytest.raises(regrow.errors.MismatchError, match=r"1 place\n.* t: "):
            regrow.load(path, like={"t": like, "n": 1})
    with pytest.raises(regrow.errors.MismatchError, match=r"1 place\n.* t: "):
        regrow.load_into(path, {"t": np.zeros(array.itemsize, np.uint8)}, extra="drop")


def test_a_template_of_objects_is_refused_with_its_key_path(path: Path) -> None:
    regrow.save(path, {"x": np.zeros(2)})
    with pytest.raises(regrow.errors.UnsupportedError, match="object") as caught:
        regrow.load(path, like={"x": np.array([None, None])})
    assert caught.value.leaf == "x"


def test_records_whose_fields_overlap_are_refused_with_their_key_path(path: Path) -> None:
    dtype = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]})
    with pytest.raises(regrow.errors.UnsupportedError) as caught:
        regrow.save(path, {"x": np.zeros(2, dtype)})
    assert caught.value.leaf == "x"


class Mode(enum.IntEnum):
    TRAIN = 1
    TEST = 2


class Rate(float, enum.Enum):
    SLOW = 0.5


class Name(enum.StrEnum):
    ADAM = "adam"


class Phase(enum.IntEnum):
    FIRST = 7


class Colour(enum.Enum):
    RED = 1


class Count(int):
    pass


def test_members_of_enums_are_saved_as_their_numbers_and_texts(path: Path) -> None:
    tree = {"mode": Mode.TEST, "rate": Rate.SLOW, "name": Name.ADAM}
    regrow.save(path, tree)
    loaded = regrow.load(path)
    assert loaded == {"mode": 2, "rate": 0.5, "name": "adam"}
    assert [type(loaded[key]) for key in tree] == [int, float, str]
    # A template has the enums.
    restored = regrow.load(path, like={**tree, "mode": Mode.TRAIN})
    assert restored == tree and [type(restored[key]) for key in tree] == [Mode, Rate, Name]
    with pytest.raises(regrow.errors.MismatchError, match="mode: template Phase, stored 2"):
        regrow.load(path, like={**tree, "mode": Phase.FIRST})


@pytest.mark.parametrize(("leaf", "help"), [(Colour.RED, "member.value"), (Count(1), "an exact int")])
def test_other_members_and_subclasses_are_refused_with_advice(path: Path, leaf: Any, help: str) -> None:
    with pytest.raises(regrow.errors.LeafTypeError, match=help) as caught:
        regrow.save(path, {"x": leaf})
    assert caught.value.leaf == "x"
