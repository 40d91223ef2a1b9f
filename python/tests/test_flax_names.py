"""Every name that `flax.serialization`, `flax.training.checkpoints` and `flax.traverse_util` define
is here too.

Private ones count: packages import them, so they are interface. What is missing on purpose stands
in `EXCEPTIONS`, and in the guide.
"""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

import flax.serialization
import flax.training.checkpoints
import flax.traverse_util
import msgpack
import numpy as np
import pytest
from conftest import REPOSITORY, same_bits
from flax import serialization

import regrow.flax
import regrow.flax.checkpoints
import regrow.flax.traverse_util
from regrow import flax as ours

PAIRS = (
    (flax.serialization, regrow.flax),
    (flax.training.checkpoints, regrow.flax.checkpoints),
    (flax.traverse_util, regrow.flax.traverse_util),
)

EXCEPTIONS = {
    "_make_mpa_dirs": "arrays with shards in other processes are not written",
    "_save_commit": "part of a save through the temporary file that all savers of a folder share",
    "_save_main_ckpt_file": "part of a save through the temporary file that all savers of a folder share",
    "_save_mpas": "arrays with shards in other processes are not written",
}


def defined_in(module: types.ModuleType) -> list[str]:
    """Names of functions, classes and constants that the source of a module defines at its top,
    imports aside.
    """
    names: dict[str, None] = {}
    waiting: list[ast.stmt] = ast.parse(inspect.getsource(module)).body
    for statement in waiting:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            names[statement.name] = None
        elif isinstance(statement, ast.Assign):
            names.update((target.id, None) for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names[statement.target.id] = None
        elif isinstance(statement, ast.With):
            waiting.extend(statement.body)
    return list(names)


NAMES = [(theirs, mine, name) for theirs, mine in PAIRS for name in defined_in(theirs)]


def test_the_lists_of_names_are_not_empty() -> None:
    counts = [len(defined_in(theirs)) for theirs, _ in PAIRS]
    assert all(count >= 20 for count in counts), counts
    assert {name for _, _, name in NAMES} >= {
        "MAX_CHUNK_SIZE",
        "_msgpack_ext_pack",
        "t_identity",
        "SCHEME_RE",
        "PyTree",
    }


@pytest.mark.parametrize(("theirs", "mine", "name"), NAMES, ids=lambda value: getattr(value, "__name__", value))
def test_a_name_of_the_original_is_here(theirs: Any, mine: Any, name: str) -> None:
    if name in EXCEPTIONS:
        assert not hasattr(mine, name)
        return
    original, found = getattr(theirs, name), getattr(mine, name)
    assert inspect.isclass(found) == inspect.isclass(original)
    assert callable(found) == callable(original)
    if inspect.isfunction(original) or name in ("AsyncManager", "ModelParamTraversal"):
        compare_signatures(found, original)
    if inspect.isclass(original):
        compare_methods(found, original)
    if isinstance(original, (int, str)):
        assert found == original


def compare_signatures(found: Any, original: Any) -> None:
    """The original's parameters come first, equal; what is new is a keyword with a default."""
    mine, expected = (list(inspect.signature(function).parameters.values()) for function in (found, original))
    shared, more = mine[: len(expected)], mine[len(expected) :]
    assert [(p.name, p.kind, p.default) for p in shared] == [(p.name, p.kind, p.default) for p in expected]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


def compare_methods(found: Any, original: Any) -> None:
    """Every public method of the original is there with its parameters."""
    for name, method in vars(original).items():
        if inspect.isfunction(method) and not name.startswith("_") and name != "replace":
            compare_signatures(getattr(found, name), method)


def test_every_exception_stands_in_the_guide() -> None:
    guide = (REPOSITORY / "docs/guide/flax.md").read_text()
    defined = {name for _, _, name in NAMES}
    for name in EXCEPTIONS:
        assert name in defined
        assert f"`{name}`" in guide


# ---- what the private names do --------------------------------------------------------

LEAVES = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(3, np.int16),
    np.zeros((0, 4)),
    np.float64(1.5),
    np.bool_(True),
    1 - 2j,
    *(np.dtype(name).type(1) for name in ("bfloat16", "int4", "complex64")),
]


@pytest.mark.parametrize("leaf", LEAVES, ids=repr)
def test_the_hooks_of_msgpack_are_those_of_the_original(leaf: Any) -> None:
    mine, original = (
        msgpack.packb({"a": leaf}, default=module._msgpack_ext_pack, strict_types=True)
        for module in (ours, serialization)
    )
    assert mine == original
    back = msgpack.unpackb(mine, ext_hook=ours._msgpack_ext_unpack)["a"]
    expected = msgpack.unpackb(mine, ext_hook=serialization._msgpack_ext_unpack)["a"]
    assert type(back) is type(expected) and same_bits(back, expected)
    foreign = msgpack.unpackb(msgpack.packb(msgpack.ExtType(9, b"x")), ext_hook=ours._msgpack_ext_unpack)
    assert foreign == msgpack.ExtType(9, b"x")
    with pytest.raises(ValueError, match="Object and structured"):
        ours._msgpack_ext_pack(np.array([None]))


def test_arrays_are_cut_and_joined_as_the_original_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ours, serialization):
        monkeypatch.setattr(module, "MAX_CHUNK_SIZE", 40)

    def tree() -> dict[str, Any]:
        return {"a": {"big": np.arange(24.0).reshape(4, 6), "small": np.ones(2)}, "list": [np.arange(100)]}

    mine, original = tree(), tree()
    assert ours._chunk_array_leaves_in_place(mine) is mine
    serialization._chunk_array_leaves_in_place(original)
    assert serialization.msgpack_serialize(mine, in_place=True) == serialization.msgpack_serialize(
        original, in_place=True
    )
    assert list(mine["a"]["big"]) == list(original["a"]["big"])
    for joined in (ours._unchunk_array_leaves_in_place(original), serialization._unchunk_array_leaves_in_place(mine)):
        assert same_bits(joined["a"]["big"], tree()["a"]["big"])
    assert same_bits(ours._unchunk(ours._chunk(np.arange(30.0))), np.arange(30.0))
    assert same_bits(
        ours._unchunk_array_leaves_in_place(ours._chunk_array_leaves_in_place(np.arange(30))), np.arange(30)
    )
    with pytest.raises(AssertionError):
        ours._unchunk({})


def test_the_registry_and_the_path_are_those_of_flax() -> None:
    assert ours._STATE_DICT_REGISTRY is serialization._STATE_DICT_REGISTRY
    assert ours._error_context is serialization._error_context
    with ours._record_path("here"), serialization._record_path("there"):
        assert ours.current_path() == serialization.current_path() == "here/there"
    assert ours.current_path() == ""
    with pytest.raises(AttributeError, match="_no_such_name"):
        _ = ours._no_such_name
