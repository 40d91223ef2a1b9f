"""Every keyword of every public function, given something that it does not take: the message says which it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow

TREE = {"a": np.ones((2, 3), np.float32)}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "save": regrow.save,
    "save_async": lambda path, tree, **more: regrow.save_async(path, tree, **more).wait(),
    "AsyncSaver.save": lambda path, tree, **more: regrow.AsyncSaver().save(path, tree, **more).wait(),
    "save_items": regrow.save_items,
    "save_items_async": lambda path, items, **more: regrow.save_items_async(path, items, **more).wait(),
    "load": regrow.load,
    "load_items": regrow.load_items,
    "open": regrow.open,
    "verify": regrow.verify,
    "overview": regrow.overview,
    "convert": regrow.convert,
    "diff": regrow.diff,
    "report": regrow.report,
    "copy": regrow.copy,
    "remove": regrow.remove,
    "add_parity": regrow.add_parity,
    "repair": regrow.repair,
    "seal": regrow.seal,
    "sign": regrow.sign,
    "list_checkpoints": regrow.list_checkpoints,
    "coordinator": regrow.coordinator,
    "ray_executor": regrow.ray_executor,
    "Checkpoint.load": lambda path, **more: regrow.open(path).load(**more),
    "Checkpoint.verify": lambda path, **more: regrow.open(path).verify(**more),
}
DECLARED: dict[str, Callable[..., Any]] = {
    "save_async": regrow.save_async,
    "AsyncSaver.save": regrow.AsyncSaver.save,
    "save_items_async": regrow.save_items_async,
    "Checkpoint.load": regrow.Checkpoint.load,
    "Checkpoint.verify": regrow.Checkpoint.verify,
}
ANYTHING = {"self", "tree", "like", "a", "b", "checkpoint", "others"}
"""Any tree is what these take."""

WRONG: list[Any] = [object(), 1.5, ["x"], {"x": object()}, "maybe", -1, b"\xff"]
TAKEN: dict[str, tuple[type[Any], ...]] = {
    "path": (str, bytes), "source": (str, bytes), "target": (str, bytes), "base": (str, bytes), "item": (str,),
    "item_b": (str,), "atol": (float,), "rtol": (float,),
    "folder": (str, bytes), "cache": (str, bytes), "rules": (str, bytes), "items": (list, dict),
    "out": (str,), "title": (str,), "key": (str,), "trusted_keys": (str, list, dict), "from_": (str, bytes),
    "only": (str, list, dict), "metadata": (float, list, str, int), "compression": (int,), "nest": (str,),
}  # fmt: skip
"""What is of a type that the argument takes, and wrong only for what it says: other tests have that."""


def keywords() -> list[tuple[str, str]]:
    found = []
    for name, function in FUNCTIONS.items():
        for parameter in inspect.signature(DECLARED.get(name, function)).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in ANYTHING:
                found.append((name, parameter.name))
    return found


def test_there_are_as_many_as_there_should_be() -> None:
    functions = {name for name in regrow.__all__ if inspect.isfunction(getattr(regrow, name))}
    assert functions == {name for name in FUNCTIONS if "." not in name}
    assert len(keywords()) > 60


@pytest.mark.parametrize(("function", "keyword"), keywords(), ids=lambda part: part)
def test_a_wrong_argument_is_named(function: str, keyword: str, path: Path) -> None:
    regrow.save(path, TREE)
    new = f"{path}.new"
    positional: dict[str, Any] = {"path": path}
    if function in ("save", "save_async", "AsyncSaver.save"):
        positional = {"path": new, "tree": TREE}
    elif function in ("save_items", "save_items_async"):
        positional = {"path": new, "items": {"a": TREE}}
    elif function == "load_items":
        regrow.save_items(path, {"a": TREE}, overwrite=True)
    elif function == "list_checkpoints":
        positional = {"folder": path.parent}
    elif function == "diff":
        positional = {"a": path, "b": path}
    elif function == "report":
        positional = {"checkpoint": path}
    elif function == "sign":
        positional = {"path": path, "key": Path(__file__).parents[2] / "fixtures/keys/alice.pem"}
    elif function in ("convert", "copy"):
        positional = {"source": path, "target": new}
    if keyword == "path" and function.startswith("Checkpoint"):
        return
    for value in WRONG:
        if type(value) in TAKEN.get(keyword, ()):
            continue
        arguments = positional | {keyword: value}
        with pytest.raises((TypeError, ValueError)) as caught:
            FUNCTIONS[function](**arguments)
        assert keyword in str(caught.value), f"{value!r}: {caught.value}"
    assert not Path(new).exists()
    assert path.exists()


OPTIONS = {
    "orbax": ["use_ocdbt", "use_zarr3", "chunk_byte_size", "shard_axes", "write_chunk_shape", "read_chunk_shape",
              "ocdbt_target_data_file_size", "rich_types", "write_sharding", "write_array_metadatas", "v1", "per_leaf",
              "value_types"],
    "regrow": ["chunk_byte_size", "shard_axes", "write_chunk_shape", "per_leaf", "data_format"],
    "safetensors": ["max_shard_size", "align"],
    "equinox": ["trailer"],
}  # fmt: skip


@pytest.mark.parametrize(("layout", "option"), [(layout, option) for layout, all in OPTIONS.items() for option in all])
def test_a_wrong_option_of_a_layout_is_named(layout: str, option: str, path: Path) -> None:
    for value in (object(), 1.5, "maybe", {"x": "y"}):
        with pytest.raises((TypeError, ValueError)) as caught:
            regrow.save(path, TREE, layout=layout, **{option: value})
        assert option in str(caught.value), f"{value!r}: {caught.value}"
    assert not path.exists()


def test_numpys_flags_and_integers_are_flags_and_integers(path: Path) -> None:
    regrow.save(path, TREE, overwrite=np.bool_(False), budget=np.int32(1 << 20))
    assert regrow.load(path, mmap=np.bool_(True), budget=np.uint64(1 << 20))["a"].shape == (2, 3)
