"""Data and manifest: both ways with the original, against every fixture, and what ours does
better.
"""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import original_pytree as original
import pytest
from conftest import REPOSITORY, assert_same, same_bits

import regrow
from regrow import pytree

FIXTURES = REPOSITORY / "fixtures" / "pytree"
CASES = {case["stem"]: case for case in json.loads((FIXTURES / "expected.json").read_text())["cases"]}
VALID = [case for case in CASES.values() if case["kind"] == "valid"]
READABLE = [
    case for case in VALID if (FIXTURES / f"{case['stem']}.manifest").is_file() and "bad_struct" not in case["stem"]
]
NUMPY_1 = [case for case in READABLE if case["numpy_major"] == 1]


def key_of(value: Any) -> Any:
    """A key as `expected.json` wraps it."""
    match value:
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"float": text}:
            return float.fromhex(text)
        case {"tuple": items}:
            return tuple(map(key_of, items))
    return value


def path_of(item: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(map(key_of, item["path"]))


def raw_tree(case: dict[str, Any]) -> Any:
    """The tree of a case, taken from its bytes by what `expected.json` says of them."""
    data = (FIXTURES / case["data_file"]).read_bytes()
    pairs = []
    for entry in case["entries"]:
        part = data[entry["offset"] : entry["offset"] + entry["nbytes"]]
        pairs.append((path_of(entry), np.frombuffer(part, entry["dtype"]).reshape(entry["shape"])))
    return pytree.revtuple_autovifify_from_linear(pairs)


def load_case(case: dict[str, Any], **options: Any) -> Any:
    suffix = case["data_file"].removeprefix(case["stem"])
    return pytree.model_load(FIXTURES / case["stem"], data_suffix=suffix, **options)


SAMPLE: dict[Any, Any] = {
    "layer": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float16)},
    5: {None: np.array(3, np.int8), (1, "t"): np.array(["ab", "c"])},
    "z": np.zeros((0, 3)),
    "big": np.arange(4, dtype=">i2"),
}


# ---- fixtures -------------------------------------------------------------------------


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case["stem"])
@pytest.mark.parametrize("mmapped", [True, False])
def test_what_the_original_wrote_is_loaded(case: dict[str, Any], mmapped: bool) -> None:
    assert_same(load_case(case, mmapped=mmapped), raw_tree(case))


@pytest.mark.parametrize("case", NUMPY_1, ids=lambda case: case["stem"])
def test_both_files_are_written_byte_for_byte(case: dict[str, Any], tmp_path: Path) -> None:
    entries = {path_of(entry): at for at, entry in enumerate(case["entries"])}
    size, seconds = pytree.model_save(
        raw_tree(case),
        tmp_path / "m",
        data_suffix=case["data_file"].removeprefix(case["stem"]),
        key=lambda path: entries[path],
        byte_align=case["options"].get("byte_align", 8),
        extra_keys=False,
    )
    written = {file.name.removeprefix("m"): file.read_bytes() for file in tmp_path.iterdir()}
    stem = case["stem"]
    assert written == {
        case["data_file"].removeprefix(stem): (FIXTURES / case["data_file"]).read_bytes(),
        ".manifest": (FIXTURES / f"{stem}.manifest").read_bytes(),
    }
    assert size == case["returned_size"] and type(size) is int and seconds > 0


def test_the_data_alone_is_written_byte_for_byte(tmp_path: Path) -> None:
    case = CASES["np1_no_manifest"]
    tree = raw_tree(CASES["np1_align1"])
    size, _ = pytree.model_save(tree, tmp_path / "m", manifest_suffix=None, data_suffix="", byte_align=1)
    assert size == case["returned_size"]
    assert (tmp_path / "m").read_bytes() == (FIXTURES / case["data_file"]).read_bytes()
    assert os.listdir(tmp_path) == ["m"]


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in NUMPY_1
        if case.get("overview_of_input")
        and case["stem"]
        in (
            "np1_basic",
            "np1_root",
            "np1_names",
            "np1_dtypes",
            "np1_stats",
            "np1_empty_inside",
            "np1_align3",
        )
    ],
    ids=lambda case: case["stem"],
)
def test_overviews_are_printed_as_the_original_does_under_numpy_1(case: dict[str, Any]) -> None:
    out = io.StringIO()
    pytree.model_overview(raw_tree(case), out)
    assert out.getvalue() == case["overview_of_input"]


def test_reports_are_those_of_the_original(tmp_path: Path) -> None:
    lines: list[str] = []
    pytree.model_save(raw_tree(CASES["np1_report"]), tmp_path / "m", report=lines.append)
    assert lines == CASES["np1_report"]["report_lines"] == CASES["np2_report"]["report_lines"]


@pytest.mark.parametrize("stem", [stem for stem, case in CASES.items() if case["kind"] == "corrupt"])
def test_bad_files_are_refused_or_say_what_they_mean(stem: str) -> None:
    if stem in ("c_unaligned", "c_extra_key", "c_list_path", "c_json", "c_whitespace"):
        expected = CASES[stem]["upstream_load"]["np2"]["leaves"]
        found = pytree.model_contents(pytree.model_load(FIXTURES / stem))
        assert [(path, str(array.dtype), array.shape) for path, array in found.items()] == [
            (path_of(leaf), leaf["dtype"], tuple(leaf["shape"])) for leaf in expected
        ]
        return
    with pytest.raises((regrow.errors.CorruptError, regrow.errors.UnsupportedError)) as caught:
        pytree.model_load(FIXTURES / stem)
    assert caught.value.file is not None


@pytest.mark.parametrize("name", ["list", "float", "npscalar", "none"])
def test_nodes_that_are_no_model_are_refused_by_name(name: str, tmp_path: Path) -> None:
    node: Any = {"list": [1], "float": 1.0, "npscalar": np.float32(1), "none": None}[name]
    assert CASES[f"np2_bad_node_{name}"]["save"]["outcome"] == "error"
    for call in (lambda tree: pytree.model_save(tree, tmp_path / "m"), pytree.model_overview, pytree.model_contents):
        with pytest.raises(pytree.NotAMLModelTreeNodeError, match=r"\('a', 'k'\)"):
            call({"a": {"k": node}})
    assert issubclass(pytree.NotAMLModelTreeNodeError, pytree.InvalidTreeNodeError)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int4", "float8_e5m2"])
def test_small_dtypes_are_refused_or_kept_under_their_names(name: str, tmp_path: Path) -> None:
    assert CASES[f"np2_bad_{name}"]["save"]["outcome"] == "error"
    tree = {"a": {"k": np.ones(3, getattr(ml_dtypes, name))}}
    with pytest.raises(regrow.errors.UnsupportedError, match="native_dtypes") as caught:
        pytree.model_save(tree, tmp_path / "m")
    assert caught.value.leaf == "a/k"
    pytree.model_save(tree, tmp_path / "m", native_dtypes=True)
    assert_same(pytree.model_load(tmp_path / "m"), tree)


def test_records_and_objects_are_refused_where_the_original_writes_rubbish(tmp_path: Path) -> None:
    for array in (np.zeros(2, "<f4,<i2"), np.zeros(2, object), np.zeros(2, "V4")):
        with pytest.raises(regrow.errors.UnsupportedError) as caught:
            pytree.model_save({"a": {"k": array}}, tmp_path / "m")
        assert caught.value.leaf == "a/k"
    assert os.listdir(tmp_path) == []
    for stem in ("np1_bad_struct", "np2_bad_struct"):
        with pytest.raises(regrow.errors.CorruptError, match="nbytes is not the size"):
            pytree.model_load(FIXTURES / stem)


# ---- with the original ----------------------------------------------------------------


@pytest.mark.parametrize("extra_keys", [True, False])
def test_the_original_loads_ours(extra_keys: bool, tmp_path: Path) -> None:
    pytree.model_save(SAMPLE, tmp_path / "m", extra_keys=extra_keys)
    assert_same(original.load(tmp_path / "m"), SAMPLE)


@pytest.mark.parametrize("numpy_2", [True, False])
def test_ours_loads_what_the_original_saves(numpy_2: bool, tmp_path: Path) -> None:
    original.save(tmp_path / "m", SAMPLE, numpy_2=numpy_2)
    assert_same(pytree.model_load(tmp_path / "m"), SAMPLE)
    if numpy_2:
        with pytest.raises(ValueError, match="malformed node"):
            original.load(tmp_path / "m")


def test_both_write_the_same_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    words = ["a", "some module ", "it's", '"', "é☃", "x" * 90, "line\nbreak ", "\\", "\u200b"]
    tree: dict[Any, Any] = {}
    for at in range(60):
        keys = ["".join(rng.choice(words, rng.integers(1, 8))) + str(at) for _ in range(rng.integers(1, 4))]
        inner = tree
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = np.zeros(tuple(rng.integers(0, 3, rng.integers(0, 5))), rng.choice(["<f4", "|u1", ">f8"]))
    for align in (1, 8, 13):
        assert (
            original.save(tmp_path / "o", tree, align)
            == pytree.model_save(tree, tmp_path / "m", byte_align=align, extra_keys=False)[0]
        )
        for suffix in (".data", ".manifest"):
            assert (tmp_path / f"m{suffix}").read_bytes() == (tmp_path / f"o{suffix}").read_bytes()


def test_the_original_loads_any_pytree_that_regrow_saves(tmp_path: Path) -> None:
    state = {"layers": [np.arange(3), (jnp.ones(2), 2.5)], "name": "net", "none": None, "empty": {}}
    regrow.save(tmp_path / "m", state, layout="pytree_data", lossy=True)
    expected = {
        "layers": {0: np.arange(3), 1: {0: np.ones(2, np.float32), 1: np.array(2.5)}},
        "name": np.frombuffer(b"net", np.uint8),
    }
    assert_same(original.load(tmp_path / "m"), expected)
    loaded = regrow.load(tmp_path / "m")
    assert type(loaded["layers"]) is list and type(loaded["layers"][1]) is tuple
    assert loaded["layers"][1][1] == 2.5 and loaded["name"] == "net" and loaded["none"] is None
    assert loaded["empty"] == {} and list(loaded) == list(state)
    assert_same(pytree.model_load(tmp_path / "m"), expected | {"empty": {}})


def test_regrow_opens_the_stem_and_both_files(tmp_path: Path) -> None:
    original.save(tmp_path / "m", {"a": np.arange(4, dtype=">i4"), "t": np.array(["ab"])}, numpy_2=True)
    for name in ("m", "m.manifest", "m.data"):
        opened = regrow.open(tmp_path / name)
        assert opened.layout == "pytree_data"
        assert same_bits(opened["a"].read(), np.arange(4, dtype=np.int32))
        assert same_bits(opened["t"].read(), np.array(["ab"]))
        assert same_bits(opened["a"][1:3], np.arange(1, 3, dtype=np.int32))
    assert regrow.verify(tmp_path / "m").ok


# ---- saving ---------------------------------------------------------------------------


def test_keys_sort_and_filter(tmp_path: Path) -> None:
    asked: list[Any] = []

    def key(path: tuple[Any, ...]) -> Any:
        asked.append(path)
        return {"c": 0, "a": 1, "d": 1, "b": None}[path[0]]

    tree = {name: np.full(2, at) for at, name in enumerate("abcd")}
    pytree.model_save(tree, tmp_path / "m", key=key)
    assert list(pytree.model_load(tmp_path / "m")) == ["c", "a", "d"]
    assert sorted(asked) == [("a",), ("b",), ("c",), ("d",)]


def test_transforms_are_called_once_with_what_was_widened(tmp_path: Path) -> None:
    seen: list[Any] = []

    def transform(array: Any) -> Any:
        seen.append(array.dtype)
        return array.T * 2

    tree = {"a": {"w": np.ones((2, 3), ml_dtypes.bfloat16)}, "b": np.ones(2)}
    pytree.model_save(tree, tmp_path / "m", array_transform_by_pytree_key={("a", "w"): transform})
    assert seen == [np.float32]
    loaded = pytree.model_load(tmp_path / "m")
    assert same_bits(loaded["a"]["w"], np.full((3, 2), 2, np.float32)) and same_bits(loaded["b"], np.ones(2))


def test_bfloat16_becomes_float32_or_stays(tmp_path: Path) -> None:
    array = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    lines: list[str] = []
    size, _ = pytree.model_save({"k": array[1:4]}, tmp_path / "s", report=lines.append)
    assert size == 16 and "bytes:         12" in lines[0]
    pytree.model_save({"k": array}, tmp_path / "m")
    wide = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    assert same_bits(original.load(tmp_path / "m")["k"], wide)
    pytree.model_save({"k": array}, tmp_path / "m", native_dtypes=True)
    assert same_bits(pytree.model_load(tmp_path / "m")["k"], array)


def test_jax_arrays_and_every_layout_of_memory(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    tree = {"t": base.T, "f": np.asfortranarray(base), "s": base[::2, ::-3], "j": jnp.asarray(base), "r": base[:, 1]}
    pytree.model_save(tree, tmp_path / "m")
    loaded = original.load(tmp_path / "m")
    for name, array in tree.items():
        assert np.array_equal(loaded[name], array)


def test_suffixes_are_honoured(tmp_path: Path) -> None:
    pytree.model_save(SAMPLE, tmp_path / "m", data_suffix=".bin", manifest_suffix=".mf")
    assert sorted(os.listdir(tmp_path)) == ["m.bin", "m.mf"]
    assert_same(pytree.model_load(tmp_path / "m", data_suffix=".bin", manifest_suffix=".mf"), SAMPLE)
    pytree.model_save(SAMPLE, tmp_path / "n", data_suffix=".bin")
    assert_same(pytree.model_load(tmp_path / "n"), SAMPLE)


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError, match="byte_align"):
        pytree.model_save(SAMPLE, tmp_path / "m", byte_align=0)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="path of a leaf"):
        pytree.model_save({frozenset([1]): np.ones(1)}, tmp_path / "m")
    with pytest.raises(regrow.errors.AlreadyExistsError):
        for _ in range(2):
            pytree.model_save(SAMPLE, tmp_path / "m", overwrite=False)
    with pytest.raises(regrow.errors.InvalidArgumentError, match="mode"):
        pytree.model_load(tmp_path / "m", mode="w")  # type: ignore[arg-type]
    with pytest.raises(regrow.errors.NotFoundError):
        pytree.model_load(tmp_path / "nothing")


@pytest.mark.parametrize("tree", [{}, {"a": np.zeros(0)}, {"a": {"b": np.zeros((2, 0))}}])
def test_models_without_a_byte(tree: Any, tmp_path: Path) -> None:
    size, _ = pytree.model_save(tree, tmp_path / "m")
    assert size == 0 and (tmp_path / "m.data").read_bytes() == b"\0"
    assert_same(pytree.model_load(tmp_path / "m"), tree)
    assert_same(original.load(tmp_path / "m"), tree)


def test_empty_dicts_are_kept_where_an_array_can_carry_them(tmp_path: Path) -> None:
    tree = {"a": {"w": np.ones(2), "e": {}}, "f": {}}
    pytree.model_save(tree, tmp_path / "m")
    assert_same(pytree.model_load(tmp_path / "m"), tree)
    assert_same(original.load(tmp_path / "m"), {"a": {"w": np.ones(2)}})
    pytree.model_save(tree, tmp_path / "m", extra_keys=False)
    assert_same(pytree.model_load(tmp_path / "m"), {"a": {"w": np.ones(2)}})


# ---- loading --------------------------------------------------------------------------


def test_views_do_not_change_the_file_unless_asked(tmp_path: Path) -> None:
    stem = tmp_path / "m"
    pytree.model_save({"a": np.zeros(4)}, stem)
    array = pytree.model_load(stem)["a"]
    array[:] = 7
    assert array.sum() == 28 and same_bits(pytree.model_load(stem)["a"], np.zeros(4))
    with pytest.raises(ValueError, match="read-only"):
        pytree.model_load(stem, mode="r")["a"][0] = 1
    owned = pytree.model_load(stem, mmapped=False)["a"]
    assert owned.flags.owndata and owned.flags.writeable and owned.flags.aligned
    pytree.model_load(stem, mode="r+")["a"][:] = 5
    with pytest.raises(regrow.errors.CorruptError, match="crc32c"):
        pytree.model_load(stem)
    assert same_bits(pytree.model_load(stem, verify=False)["a"], np.full(4, 5.0))


def test_read_only_files_load(tmp_path: Path) -> None:
    pytree.model_save(SAMPLE, tmp_path / "m")
    for suffix in (".data", ".manifest"):
        (tmp_path / f"m{suffix}").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert_same(pytree.model_load(tmp_path / "m"), SAMPLE)
        assert_same(pytree.model_load(tmp_path / "m", mmapped=False), SAMPLE)
    finally:
        tmp_path.chmod(0o755)


def test_damaged_data_is_named(tmp_path: Path) -> None:
    pytree.model_save({"a": {"w": np.zeros(4)}, "b": np.zeros(3)}, tmp_path / "m")
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[33] ^= 4
    (tmp_path / "m.data").write_bytes(data)
    with pytest.raises(regrow.errors.CorruptError) as caught:
        pytree.model_load(tmp_path / "m")
    assert caught.value.leaf == "b" and caught.value.offset_bytes == 32


def test_readers_see_one_save_or_the_other(tmp_path: Path) -> None:
    stem = tmp_path / "m"
    trees = [{"a": np.full(1000 + at, at), "b": np.full(10, at)} for at in range(5)]
    pytree.model_save(trees[0], stem)
    stop = threading.Event()

    def overwrite() -> None:
        while not stop.is_set():
            for tree in trees:
                pytree.model_save(tree, stem, durable=False, extra_keys=False)

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for _ in range(100):
            for loaded in (regrow.load(stem), pytree.model_load(stem)):
                assert_same(loaded, trees[int(loaded["b"][0])])
    finally:
        stop.set()
        writer.join()


# ---- the generic helpers --------------------------------------------------------------


def handler(_path: Any, node: Any) -> Any:
    if isinstance(node, dict):
        keys = list(node)
        return lambda values: dict(zip(keys, values, strict=True)), iter(node.items())
    if isinstance(node, (list, tuple)):
        return type(node), iter(enumerate(node))
    return None


def test_paths_are_linked_from_the_leaf_up() -> None:
    assert pytree.linearize_revtuple_path(()) == ()
    assert pytree.linearize_revtuple_path(("c", ("b", ("a", ())))) == ("a", "b", "c")
    assert pytree.linearize_revtuple_path(("b", ("a", ())), present_as=list) == ["a", "b"]
    assert pytree.linearize_revtuple_path(("b", ("a", ())), "/".join) == "a/b"


def test_leaves_come_lazily_and_in_order() -> None:
    tree = {"b": [1, (2, [])], "a": {"c": 3}, "d": {}}
    pairs = pytree.pytree_leaf_iter(tree, lambda path, leaf: (pytree.linearize_revtuple_path(path), leaf), handler)
    assert iter(pairs) is pairs
    assert list(pairs) == [(("b", 0), 1), (("b", 1, 0), 2), (("a", "c"), 3)]
    assert list(pytree.pytree_leaf_iter([1, 2], lambda path, leaf: (path, leaf))) == [((), [1, 2])]
    assert pytree.everything_is_a_leaf_node_handler((), {}) is None
    taken = pytree.pytree_leaf_iter([1, 0, 2], lambda _path, leaf: 1 // leaf, handler)
    assert next(taken) == 1
    with pytest.raises(ZeroDivisionError):
        next(taken)


def test_mapping_keeps_the_shape() -> None:
    tree = {"b": [1, (2, [])], "a": {"c": 3}, "d": {}}
    doubled = pytree.pytree_map(tree, lambda _path, leaf: leaf * 2, handler)
    assert doubled == {"b": [2, (4, [])], "a": {"c": 6}, "d": {}} and list(doubled) == list(tree)
    assert pytree.pytree_map(3, lambda path, leaf: (path, leaf)) == ((), 3)
    model = {"a": {"w": np.ones(2)}}
    assert_same(
        pytree.pytree_map(model, lambda _path, leaf: leaf + 1, pytree.ml_model_node_handler),
        {"a": {"w": np.full(2, 2.0)}},
    )


def test_summaries_of_leaves() -> None:
    assert pytree.leaf_summary((), 5) == "builtins.int(5)"
    assert pytree.leaf_summary((), "x" * 38) == f"builtins.str('{'x' * 38}')"
    assert pytree.leaf_summary((), "x" * 39) == f"builtins.str('{'x' * 39} ...)"
    path = ("b", ("a", ()))
    line = pytree.ml_model_leaf_summary(path, np.arange(6, dtype=np.float32).reshape(2, 3), sep=" | ")
    assert line.startswith("'a','b'".ljust(60) + ": <numpy.ndarray | fp=0x")
    assert line.endswith(
        " | min=0, max=5, mean=2.5, std=1.70783 | shape=(2, 3), dtype=float32 | start=[0.0, 1.0, 2.0, 3.0, 4.0]>"
    )
    assert pytree.ml_model_leaf_summary((), [1]) == f"{'':<60}: builtins.list([1])"
    assert pytree.ml_model_leaf_summary((), np.array(["a"])) == f"{'':<60}: numpy.ndarray(array(['a'], dtype='<U1'))"
    assert "dtype=bfloat16))" in pytree.ml_model_leaf_summary((), np.ones(2, ml_dtypes.bfloat16))
    assert "ArrayImpl, fp=0x" in pytree.ml_model_leaf_summary((), jnp.ones(2))


def test_overviews_of_arrays_that_are_not_contiguous(capsys: pytest.CaptureFixture[str]) -> None:
    base = np.arange(6.0).reshape(2, 3)
    pytree.model_overview({"k": base.T})
    expected = pytree.ml_model_leaf_summary(("k", ()), np.ascontiguousarray(base.T))
    assert capsys.readouterr().out == expected + "\n"


def test_freezing() -> None:
    frozen = pytree.deep_freeze({"a": [1, {2, 3}, {"b": ()}], "c": ("x", [None])}, leaf_fn=lambda leaf: leaf or "none")
    assert isinstance(frozen, pytree.immutabledict) and hash(frozen) == hash(pytree.immutabledict(frozen))
    assert frozen["a"] == (1, frozenset([2, 3]), {"b": ()}) and frozen["c"] == ("x", ("none",))
    assert pytree.deep_freeze([1, [2]], is_sequence=lambda node: False) == [1, [2]]
    with pytest.raises(TypeError):
        frozen["a"] = 1


def test_nesting_by_paths() -> None:
    nest = pytree.revtuple_autovifify_from_linear
    assert nest([]) == {} and nest([((), 5)]) == 5
    assert nest(iter([(("a", "b"), 1), (("a", "c"), 2), (("d",), {})])) == {"a": {"b": 1, "c": 2}, "d": {}}
    for pairs in ([((), 1), (("a",), 2)], [(("a",), 2), ((), 1)], [((), 1), ((), 1)], [((), None), (("a",), 1)]):
        with pytest.raises(ValueError, match="Root-value seen alongside other values"):
            nest(pairs)
    for pairs, place in (
        ([(("a",), 1), (("a",), 2)], r"\('a',\) stands there twice"),
        ([(("a",), 1), (("a", "b"), 2)], r"\('a', 'b'\) lies below another, at \('a',\)"),
        ([(("a",), {}), (("a", "b"), 2)], r"\('a', 'b'\) lies below another"),
        ([(("a", "b"), 1), (("a",), 2)], r"\('a',\) stands where others lie below"),
    ):
        with pytest.raises(ValueError, match=place):
            nest(pairs)


DEPTH = 20_000


def test_depth_costs_no_stack(tmp_path: Path) -> None:
    deep: Any = np.arange(3)
    for _ in range(DEPTH):
        deep = {"a": deep}
    ((path, _),) = pytree.model_contents(deep).items()
    assert len(path) == DEPTH
    pytree.model_save(deep, tmp_path / "m")
    ((found, array),) = pytree.model_contents(pytree.model_load(tmp_path / "m")).items()
    assert found == path and same_bits(array, np.arange(3))
    mapped = pytree.pytree_map(deep, lambda _path, leaf: leaf + 1, pytree.ml_model_node_handler)
    assert next(iter(pytree.model_contents(mapped).values()))[0] == 1
    nested: Any = 1
    for _ in range(100_000):
        nested = [nested]
    frozen = pytree.deep_freeze(nested)
    assert next(iter(pytree.pytree_leaf_iter(frozen, lambda _path, leaf: leaf, handler))) == 1
    long = tuple(range(100_000))
    assert len(pytree.model_contents(pytree.revtuple_autovifify_from_linear([(long, np.ones(1))]))) == 1
