"""Filters, errors and fixtures: where Equinox fails, the same is said, and the files that it
wrote are read.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from equinox_trees import assert_leaves, chain, without, written

import regrow
from regrow import equinox as ours

# ---- filters --------------------------------------------------------------------------


def skip(_file: Any, leaf: Any = None) -> Any:
    return leaf


def write_doubled(file: Any, leaf: Any) -> None:
    np.save(file, np.asarray(leaf) * 2)


def read_halved(file: Any, leaf: Any) -> Any:
    return jnp.asarray(np.load(file) / 2, leaf.dtype)


def test_functions_for_leaves_and_for_parts(tmp_path: Path) -> None:
    tree = {"a": [jnp.arange(3.0), jnp.ones(2)], "b": (jnp.arange(4.0), np.float32(3)), "c": jnp.zeros(())}
    like = without(tree)
    for write, read in ((ours, eqx), (eqx, ours), (ours, ours)):
        save, load = write.default_serialise_filter_spec, read.default_deserialise_filter_spec
        specs: list[tuple[Any, Any, Any]] = [
            ({"a": write_doubled, "b": save, "c": skip}, {"a": read_halved, "b": load, "c": skip}, tree),
            ({"a": skip, "b": (save, skip), "c": save}, {"a": skip, "b": (load, skip), "c": load}, None),
        ]
        for write_spec, read_spec, expected in specs:
            for target in (tmp_path / "x", None):
                file = io.BytesIO()
                write.tree_serialise_leaves(target or file, tree, write_spec)
                file.seek(0)
                loaded = read.tree_deserialise_leaves(target or file, like, read_spec)
                assert_leaves(loaded, expected or {"a": like["a"], "b": (tree["b"][0], like["b"][1]), "c": tree["c"]})


def test_is_leaf(tmp_path: Path) -> None:
    tree = {"a": [1, 2], "b": 3}
    is_leaf = lambda node: isinstance(node, list)  # noqa: E731
    save = lambda file, leaf: np.save(file, np.asarray(leaf))  # noqa: E731
    load = lambda file, leaf: np.load(file).tolist()  # noqa: E731
    for write, read in ((ours, eqx), (eqx, ours)):
        write.tree_serialise_leaves(tmp_path / "x", tree, save, is_leaf)
        assert read.tree_deserialise_leaves(tmp_path / "x", {"a": [0, 0], "b": 0}, load, is_leaf) == tree
        write.tree_serialise_leaves(tmp_path / "x", tree, is_leaf=is_leaf)
        assert read.tree_deserialise_leaves(tmp_path / "x", {"a": [0], "b": 0}, is_leaf=is_leaf) == {"a": [0], "b": 3}


@pytest.mark.parametrize(
    "spec",
    [
        lambda module: {"b": module.default_serialise_filter_spec},
        lambda module: {"a": 3},
        lambda module: [module.default_serialise_filter_spec],
        lambda _module: write_fails,
        lambda _module: {"a": write_fails},
    ],
)
def test_functions_that_do_not_fit_fail_as_the_original(spec: Any) -> None:
    errors = []
    for module in (ours, eqx):
        with pytest.raises(Exception) as error:
            module.tree_serialise_leaves(io.BytesIO(), {"a": [1, 2]}, spec(module))
        errors.append(chain(error.value))
    assert errors[0] == errors[1]


def write_fails(_file: Any, leaf: Any) -> None:
    raise KeyError(leaf)


# ---- errors ---------------------------------------------------------------------------


SAVED = {"a": jnp.arange(3.0), "b": [np.arange(2), 1.5], "c": jnp.ones((2, 2))}
LIKES = {
    "shape": {**SAVED, "a": jnp.zeros(4)},
    "shape of NumPy": {**SAVED, "b": [np.zeros((2, 1), int), 0.5]},
    "dtype": {**SAVED, "a": jnp.zeros(3, int)},
    "dtype of NumPy": {**SAVED, "b": [np.zeros(2, np.int32), 0.5]},
    "type": {**SAVED, "b": [np.ma.zeros(2, int), 0.5]},
    "shape of a struct": {**SAVED, "a": jax.ShapeDtypeStruct((4,), jnp.float32)},
    "array for a number": {**SAVED, "a": 1.5},
    "text for an array": {**SAVED, "a": "text"},
    "too many": {**SAVED, "d": 1.0, "e": 2.0},
    "two of them": {**SAVED, "a": jnp.zeros(4), "c": jnp.zeros((2, 2), int)},
    "key": {**SAVED, "a": jax.random.key(0)},
}


@pytest.mark.parametrize("name", LIKES)
@pytest.mark.parametrize("cut", [None, 130, 200, 3])
def test_errors_say_what_theirs_say(name: str, cut: int | None, tmp_path: Path) -> None:
    data = written(eqx.tree_serialise_leaves, SAVED)[:cut]
    (tmp_path / "x.eqx").write_bytes(data)
    for make in (lambda: io.BytesIO(data), lambda: tmp_path / "x"):
        errors = []
        for module in (eqx, ours):
            with pytest.raises(RuntimeError) as error:
                module.tree_deserialise_leaves(make(), LIKES[name])
            errors.append(chain(error.value))
        assert errors[0] == errors[1]


def test_all_that_differs_is_told_at_once(tmp_path: Path) -> None:
    ours.tree_serialise_leaves(tmp_path / "x", SAVED)
    like = {"a": jnp.zeros(4), "b": [np.zeros(2, np.int8), 1], "c": jnp.zeros((2, 2), int), "d": jnp.zeros(1)}
    with pytest.raises(RuntimeError) as error:
        ours.tree_deserialise_leaves(tmp_path / "x", {key: like[key] for key in "abc"})
    text = str(error.value)
    assert "(DictKey(key='a'),) has changed shape from (4,)" in text.split("\n")[0]
    assert "(this is where a was stored)" in text and "(this is where b/0 was stored)" in text
    assert text.count("has changed") == 3
    with pytest.raises(RuntimeError) as error:
        ours.tree_deserialise_leaves(tmp_path / "x", {key: like[key] for key in "abc"}, stop_at_first=True)
    assert str(error.value).count("has changed") == 1
    with pytest.raises(ours.TreePathError, match="DictKey\\(key='d'\\)") as failed:
        ours.tree_deserialise_leaves(tmp_path / "x", like)
    assert str(failed.value).count("has changed") == 3
    assert failed.value.path == (jax.tree_util.DictKey("d"),)
    file = io.BytesIO((tmp_path / "x.eqx").read_bytes())
    with pytest.raises(RuntimeError) as error:
        ours.tree_deserialise_leaves(file, {key: like[key] for key in "abc"})
    assert str(error.value).count("has changed") == 3


def test_all_that_cannot_be_saved_is_told_at_once(tmp_path: Path) -> None:
    tree = [np.array([None]), 1, jax.random.key(0), np.array(["a"], np.dtypes.StringDType())]
    with pytest.raises(ours.TreePathError) as error:
        ours.tree_serialise_leaves(tmp_path / "x", tree)
    assert error.value.path == (jax.tree_util.SequenceKey(0),)
    assert str(error.value).count("Error at leaf") == 3
    with pytest.raises(ours.TreePathError) as error:
        ours.tree_serialise_leaves(tmp_path / "x", tree, stop_at_first=True)
    assert str(error.value).count("Error at leaf") == 1
    chains = []
    for module in (ours, eqx):
        with pytest.raises(RuntimeError) as failed:
            module.tree_serialise_leaves(io.BytesIO(), [jax.random.key(0)])
        chains.append(chain(failed.value))
    assert chains[0] == chains[1]


def test_what_is_left_over(tmp_path: Path) -> None:
    ours.tree_serialise_leaves(tmp_path / "x", {"a": 1, "b": 2.5})
    with pytest.warns(UserWarning, match=r"1 more record \(b\)"):
        assert ours.tree_deserialise_leaves(tmp_path / "x", {"a": 0}) == {"a": 1}
    with pytest.raises(RuntimeError, match=r"1 more record \(b\)"):
        ours.tree_deserialise_leaves(tmp_path / "x", {"a": 0}, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = (tmp_path / "x.eqx").read_bytes()
        assert ours.tree_deserialise_leaves(io.BytesIO(data), {"a": 0, "b": 0.5}, strict=True) == {"a": 1, "b": 2.5}
        ours.tree_deserialise_leaves(io.BytesIO(data), {"a": 0})
        ours.tree_deserialise_leaves(tmp_path / "x", {"a": 0, "b": 0.5}, strict=True)
    with pytest.raises(RuntimeError, match="another record"):
        ours.tree_deserialise_leaves(io.BytesIO(data), {"a": 0}, strict=True)


# ---- the fixtures ---------------------------------------------------------------------


def case_names(kind: str) -> list[str]:
    root = Path(__file__).parents[2] / "fixtures" / "equinox"
    return [case["file"] for case in json.loads((root / "expected.json").read_text())["cases"] if case["kind"] == kind]


@pytest.fixture
def case(fixtures: Path, request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    cases = json.loads((fixtures / "equinox" / "expected.json").read_text())["cases"]
    found = next(case for case in cases if case["file"] == request.param)
    return fixtures / "equinox" / request.param, found


NUMBERS = {"pybool": bool, "pyint": int, "pyfloat": float, "pycomplex": complex}


def leaf_like(leaf: dict[str, Any], record: dict[str, Any] | None = None) -> Any:
    kind = leaf["like"]
    if kind == "skip":
        return "skipped"
    if kind in NUMBERS:
        return NUMBERS[kind]()
    descr = record["descr"] if record is not None else ""
    # What is told of these by name alone is no dtype.
    if kind == "numpy" and (isinstance(descr, list) or descr.startswith((">", "|S", "<U", "|V"))):
        return np.zeros(leaf["shape"], descr if isinstance(descr, str) else [tuple(field) for field in descr])
    dtype = np.dtype(getattr(ml_dtypes, leaf["dtype"], None) or leaf["dtype"])
    if kind == "jax":
        return jnp.zeros(leaf["shape"], dtype)
    zeros = np.zeros(leaf["shape"], dtype)
    return zeros if kind == "numpy" else zeros[()]


@pytest.mark.parametrize("case", case_names("valid"), indirect=True)
def test_fixtures_that_equinox_wrote(case: tuple[Path, dict[str, Any]]) -> None:
    path, about = case
    leaves = [leaf for leaf in about["leaves"] if leaf["like"] != "skip"]
    # What a custom filter left out has no record.
    leaves = leaves[len(leaves) - len(about["records"]) :]
    like = [leaf_like(leaf, record) for leaf, record in zip(leaves, about["records"], strict=True)]
    with open(path, "rb") as file:
        file.seek(about["prefix_len"])
        loaded = [ours.tree_deserialise_leaves(path, like), ours.tree_deserialise_leaves(file, like)]
    assert_leaves(loaded[0], loaded[1])
    for leaf, wanted, found in zip(leaves, like, loaded[0], strict=True):
        assert type(found) is type(wanted)
        array = np.asarray(found)
        if leaf["dtype"] == "uint64" and leaf["like"] == "pyint":
            array = np.asarray(found, np.uint64)
        data = array.astype(array.dtype.newbyteorder("<")) if array.dtype.kind in "iufc" else array
        assert hashlib.sha256(data.tobytes()).hexdigest() == leaf["sha256"], leaf
    if about["upstream_read"]["outcome"] == "ok" and about["prefix_len"] == 0:
        assert_leaves(eqx.tree_deserialise_leaves(path, like), loaded[0])


READ_BY_US_ALONE = ["header_10001.eqx"]
OTHER_WORDS = [
    "npz.eqx",  # NumPy opens the archive, and Equinox complains of its class
    "version_4.eqx",
    "version_1_1.eqx",
    "shape_negative.eqx",
    "shape_huge.eqx",
    "shape_overflow.eqx",
]


@pytest.mark.parametrize("case", case_names("corrupt"), indirect=True)
@pytest.mark.parametrize("as_path", [True, False])
def test_fixtures_that_are_bad(case: tuple[Path, dict[str, Any]], as_path: bool) -> None:
    path, about = case
    like = [leaf_like(leaf) for leaf in about["like"]]
    make = (lambda: path) if as_path else (lambda: io.BytesIO(path.read_bytes()))
    outcome = about["upstream_read_file" if as_path else "upstream_read_bytesio"]
    if outcome["outcome"] == "ok" or path.name in READ_BY_US_ALONE:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = ours.tree_deserialise_leaves(make(), like)
        if path.name not in READ_BY_US_ALONE:
            assert_leaves(loaded, eqx.tree_deserialise_leaves(make(), like))
        return
    with pytest.raises((RuntimeError, regrow.errors.CorruptError, regrow.errors.UnsupportedError)) as error:
        ours.tree_deserialise_leaves(make(), like)
    with pytest.raises(RuntimeError) as theirs:
        eqx.tree_deserialise_leaves(make(), like)
    if isinstance(error.value, RuntimeError) and path.name not in OTHER_WORDS:
        assert chain(error.value)[0] == chain(theirs.value)[0]
