"""Names: globs that match nothing, leaves that print as the same text, and all names of containers
and fields in a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from conftest import assert_same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import regrow
from regrow._tree._nodes import named_tuple_class

TREE = {"params": {"dense": {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}}, "n": 1}
MISTYPED = ["prams/**", "params/dense/kernal", "*/kernel"]


# ---- globs ----------------------------------------------------------------------------


def copied(tree: Any) -> Any:
    return jax.tree.map(np.copy, tree)


def chunks(globs: list[str]) -> Any:
    return {glob: {"chunk_byte_size": 1024} for glob in globs}


CALLS: dict[str, Any] = {
    "load(only=)": lambda path, globs: regrow.load(path, only=globs),
    "load(cast=)": lambda path, globs: regrow.load(path, cast=dict.fromkeys(globs, "float16")),
    "load(like=, only=)": lambda path, globs: regrow.load(path, like=TREE, only=globs),
    "load(like=, cast=)": lambda path, globs: regrow.load(path, like=TREE, cast=dict.fromkeys(globs, "float32")),
    "Checkpoint.load(only=)": lambda path, globs: regrow.open(path).load(only=globs),
    "load(out=, only=)": lambda path, globs: regrow.load_into(
        path, {"params": {"dense": {key: value.copy() for key, value in TREE["params"]["dense"].items()}}}, only=globs
    ),
    "save(cast=)": lambda path, globs: regrow.save(f"{path}.new", TREE, cast=dict.fromkeys(globs, "float16")),
    "save(per_leaf=)": lambda path, globs: regrow.save(
        f"{path}.new", TREE, layout=regrow.layouts.Orbax(per_leaf=chunks(globs))
    ),
    "save_async(cast=)": lambda path, globs: regrow.save_async(
        f"{path}.new", TREE, cast=dict.fromkeys(globs, "float16")
    ).result(),
    "convert(only=)": lambda path, globs: regrow.convert(path, f"{path}.new", only=globs),
    "convert(cast=)": lambda path, globs: regrow.convert(path, f"{path}.new", cast=dict.fromkeys(globs, "float16")),
}


@pytest.mark.parametrize("glob", MISTYPED)
@pytest.mark.parametrize("name", CALLS)
def test_a_glob_that_matches_nothing_is_an_error(name: str, glob: str, path: Path) -> None:
    regrow.save(path, TREE)
    CALLS[name](path, ["params/dense/kernel", "params/**"])
    if os.path.exists(f"{path}.new"):
        os.rename(f"{path}.new", f"{path}.first")
    for globs in ([glob], ["params/**", glob]):
        with pytest.raises(regrow.errors.NotFoundError) as caught:
            CALLS[name](path, globs)
        message = str(caught.value)
        assert json.dumps(glob) in message
        assert '"params/**"' not in message
        assert "params/dense/kernel" in message, "which key paths there are"
        assert not os.path.exists(f"{path}.new")


def test_a_dtype_for_all_is_no_glob(path: Path) -> None:
    regrow.save(path, {}, cast="float16")
    assert regrow.load(path, cast="float16") == {}
    regrow.convert(path, f"{path}.2", dry_run=True)


@pytest.mark.parametrize("only", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_no_glob_at_all_is_an_error(only: Any, path: Path) -> None:
    regrow.save(path, TREE)
    for call in (
        lambda: regrow.load(path, only=only),
        lambda: regrow.load(path, like=TREE, only=only),
        lambda: regrow.convert(path, f"{path}.2", only=only),
    ):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="selects nothing"):
            call()


def test_a_cast_of_nothing_in_the_background_is_told_at_once(path: Path) -> None:
    with regrow.jobs.AsyncSaver() as saver, pytest.raises(regrow.errors.NotFoundError, match="prams"):
        saver.save(path, TREE, cast={"prams/**": "float16"})


# ---- leaves that print as the same text -------------------------------------------------

SAME_TEXT: dict[str, Any] = {
    "a slash": {"a": {"b": 1}, "a/b": 2},
    "a slash, twice": {"a": {"b": {"c": 1}, "b/c": 2}, "a/b": {"c": 3}, "a/b/c": 4},
    "numbers": {1: 1, "1": 2},
    "control characters": {"\n": 1, "\\n": 2},
    "what steers a terminal": {"a\u202e": 1, "a\\u{202e}": 2},
    "stored names of others": {"a": {"b": 1}, "a/b": 2, "a.b": 3, "a%2Fb": 4, "a%b": 5},
    "quoted": {"a": {"b": 1}, "a/b": 2, "['a/b']": 3, "['a']['b']": 4},
}
LAYOUTS = {"regrow": "x", "orbax": "x", "safetensors": "x", "npy": "x.npz", "flax": "x.msgpack", "equinox": "x.eqx",
           "pytree_data": "x"}  # fmt: skip


def assert_whole(ckpt: regrow.Checkpoint, count: int) -> None:
    assert len(ckpt) == count
    assert len(dict(ckpt)) == count
    assert len(list(ckpt)) == len(set(ckpt)) == count
    assert list(ckpt) == list(ckpt.keys()) == list(dict(ckpt))
    values = [leaf.read() for leaf in ckpt.values()]
    assert values == [regrow.open(ckpt.path)[key].read() for key in ckpt]
    assert all(key in ckpt for key in ckpt)
    assert list(map(int, values)) == list(map(int, in_order(regrow.load(ckpt.path))))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SAME_TEXT)
def test_every_leaf_is_in_the_mapping_once(name: str, layout: str, tmp_path: Path) -> None:
    path = tmp_path / LAYOUTS[layout]
    tree = SAME_TEXT[name] if layout == "regrow" else with_arrays(SAME_TEXT[name])
    try:
        regrow.save(path, tree, layout=layout)
    except regrow.RegrowError:
        return  # the layout says that it cannot hold them
    assert_whole(regrow.open(path), len(in_order(tree)))


def with_arrays(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: with_arrays(child) for key, child in tree.items()}
    return np.asarray(tree)


def test_a_key_path_of_several_leaves_names_their_keys(path: Path) -> None:
    regrow.save(path, {"a": {"b": {"c": 1}, "b/c": 2}, "a/b": {"c": 3}, "d": 4})
    ckpt = regrow.open(path)
    with pytest.raises(regrow.errors.LeafNotFoundError, match="several") as caught:
        ckpt["a/b/c"]
    keys = [key for key in ckpt if key != "d"]
    assert len(keys) == 3 and all(key in str(caught.value) for key in keys)
    assert "a/b/c" not in ckpt and ckpt.get("a/b/c") is None


KEYS = st.one_of(
    st.sampled_from(["a", "b", "a/b", "a.b", "", ".", "/", "1", "\n", "\\n", "['a']", "a\u202e", "a\\u{202e}"]),
    st.integers(0, 2),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=st.recursive(
        st.integers(0, 9),
        lambda below: st.one_of(
            st.dictionaries(KEYS, below, min_size=1, max_size=4), st.lists(below, min_size=1, max_size=2)
        ),
        max_leaves=12,
    )
)
def test_every_leaf_of_any_tree_is_in_the_mapping_once(tree: Any, tmp_path: Path) -> None:
    path = tmp_path / "x"
    regrow.save(path, tree, overwrite=True, durable=False)
    count = len(regrow.open(path))
    assert_whole(regrow.open(path), count)
    # In the order in which they were saved, which is not that of JAX.
    assert_same([leaf.read() for leaf in regrow.open(path).values()], in_order(tree))


def in_order(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for child in tree.values() for leaf in in_order(child)]
    return [leaf for child in tree for leaf in in_order(child)] if isinstance(tree, list) else [tree]


# ---- names that a file has chosen -----------------------------------------------------

FIELDS = [
    ("x", "y"), (), ("ﬁ", "fi"), ("K", "\u212a"), ("class", "x"), ("x", "x "), ("_x", "y"), ("x; import os", "y"),
("é", "e\u0301"), ("__class__", "y"), ("count", "index"), ("\u2028", "y"), ("x\0", "y"),
]  # fmt: skip


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: ascii(fields)[:40])
def test_named_tuples_of_any_names_come_back_as_something_that_saves_again(fields: Any, path: Path) -> None:
    node = regrow.Node("some.Point", dict(zip(fields, range(len(fields)), strict=True)), "named_tuple")
    regrow.save(path, {"p": node, "n": 1})
    loaded = regrow.load(path)
    values = list(loaded["p"].values()) if isinstance(loaded["p"], regrow.Node) else list(loaded["p"])
    assert values == list(range(len(fields)))
    regrow.save(path, loaded, overwrite=True)
    assert regrow.load(path) == loaded


def test_a_named_tuple_is_what_named_tuples_are() -> None:
    cls: Any = named_tuple_class("some.module.Point", ("x", "y"))
    point = cls(1, y=2)
    assert isinstance(point, tuple) and (point.x, point.y) == point == (1, 2)
    assert cls._fields == ("x", "y") and cls.__match_args__ == ("x", "y")
    assert point._asdict() == {"x": 1, "y": 2} and point._replace(y=3) == cls._make([1, 3]) == (1, 3)
    assert repr(point) == "Point(x=1, y=2)" and cls.__module__ == "some.module"
    for wrong in (
        lambda: cls(1),
        lambda: cls(1, 2, 3),
        lambda: cls(1, z=2),
        lambda: cls(1, x=2),
        lambda: cls._make([1]),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="z"):
        point._replace(z=1)
    with pytest.raises(AttributeError):
        point.x = 3
    assert jax.tree.map(lambda leaf: leaf + 1, point) == cls(2, 3)
    assert type(jax.tree.map(lambda leaf: leaf, point)) is cls
    match point:
        case cls(x, y):
            assert (x, y) == (1, 2)


HOSTILE = """
import sys
import numpy as np, ml_dtypes
import regrow, regrow.pytree, regrow.equinox
from regrow._leaves._columns import other_dtype
folder = sys.argv[1]
names = {names!r}

def trees(kind):
    for fields in names:
        for n, field in enumerate(fields or ["x"]):
            children = dict(zip(fields, range(len(fields))))
            yield {{
                "node": regrow.Node(field + ".Point", children, kind),
                "key": {{field: 1}},
                "record": np.zeros(2, [(field, "<f4"), ("other", "<i4", (2,))] if field else "V3"),
                "dates": np.zeros(2, "M8[25s]"), "text": np.zeros(2, "U3"),
            }}

def use(kind, count):
    for n, tree in enumerate(trees(kind)):
        for layout, end in (("regrow", ""), ("npy", ".npz"), ("equinox", ".eqx"), ("safetensors", ""), ("flax", "")):
            path = f"{{folder}}/{{layout}}-{{kind}}-{{n}}{{end}}"
            if count == 0:
                try:
                    regrow.save(path, tree, layout=layout, durable=False)
                except regrow.RegrowError:
                    pass
                continue
            try:
                loaded = regrow.load(path)
                regrow.open(path).tree
                regrow.load(path, like=loaded)
            except regrow.RegrowError:
                pass
        if n == count - 1:
            return

stem = f"{{folder}}/model"
regrow.pytree.model_save({{"a": {{1.5: np.zeros(2)}}, ("t", None): np.ones(3)}}, stem)
for kind in ("named_tuple", "dataclass", "custom"):
    use(kind, 0)
use("named_tuple", 1)  # what Python imports when it first needs it
regrow.pytree.model_load(stem)

seen = []
EVENTS = ("compile", "exec", "import")
regrow.errors.CorruptError  # its module is imported when it is first named
sys.addaudithook(lambda event, args: seen.append((event, repr(args)[:300])) if event in EVENTS else None)
for kind in ("named_tuple", "dataclass", "custom"):
    use(kind, 10**9)
regrow.pytree.model_load(stem)
RECORD = "[('x', '<f4', (2,)), (('t', 'y'), '<U3')]"
for text in ("i4,f4", "(2,)i4", "[('x', 'i4,f4')]", RECORD, "[" * 500, "f4 if 1 else f8"):
    try:
        other_dtype(text)
    except regrow.errors.CorruptError:
        pass
assert not seen, seen[:5]
print("quiet")
"""


def test_nothing_that_a_file_says_meets_a_compiler(tmp_path: Path) -> None:
    code = HOSTILE.format(names=FIELDS)
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.stdout == "quiet\n", run.stderr[-3000:]


# ---- shapes ---------------------------------------------------------------------------

SHAPES = {
    "too many bytes": [2**60, 4, 0],
    "an axis too long": [2**62, 0],
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_numpy_has_not_is_told_with_its_leaf(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    path = tmp_path / "x.safetensors"
    good = safetensors.numpy.save({"good": np.ones(2, np.float32)})
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])
    data = good[8 + length :]
    size = 4 * int(np.prod([float(dim) for dim in shape]))
    header["bad"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data + bytes(size))
    try:
        np.ndarray(shape, np.float32, bytes(size))
        pytest.fail("NumPy holds it after all")
    except ValueError:
        pass
    calls: list[Any] = [
        lambda: regrow.load(path),
        lambda: regrow.load(path, options=regrow.Options(mmap=True)),
        lambda: regrow.open(path)["bad"].read(),
        lambda: regrow.open(path)["bad"][...],
        lambda: regrow.open(path)["bad"][0:1],
        lambda: regrow.open(path, options=regrow.Options(mmap=True))["bad"][...],
    ]
    for at, call in enumerate(calls):
        try:
            value = call()
        except regrow.RegrowError as error:
            assert error.leaf == "bad", f"{at}: {error}"
            assert "bad" in str(error)
        else:
            assert at == 4 and isinstance(value, np.ndarray), "a part of it may well be an array"
    assert_same(regrow.load(path, only="good"), {"good": np.ones(2, np.float32)})


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "regrow"},
        {"layout": "orbax"},
        {"layout": regrow.layouts.Orbax(ocdbt=False)},
        {"layout": regrow.layouts.Orbax(ocdbt=False, zarr3=True)},
        {"layout": "npy"},
        {"layout": "safetensors"},
        {"layout": "flax"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_leaves_may_be_called_like_files_of_desktops(options: dict[str, Any], path: Path) -> None:
    tree = {
        "._x": np.arange(3.0), ".DS_Store": np.ones(2), "Thumbs.db": {"desktop.ini": np.zeros(2), "._": np.ones(1)}
    }  # fmt: skip
    regrow.save(path, tree, **options)
    regrow.copy(path, path.with_name("copy"))
    regrow.protect.seal(path.with_name("copy"))
    assert_same(regrow.load(path.with_name("copy")), tree)
    assert regrow.verify(path.with_name("copy")).ok
    regrow.save(path, tree, overwrite=True, **options)
