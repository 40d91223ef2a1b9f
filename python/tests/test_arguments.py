"""Every keyword of every public function, given something that it does not take: the message
says which it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow
from regrow._core import _options

TREE = {"a": np.ones((2, 3), np.float32)}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "save": regrow.save,
    "save_async": lambda path, tree, **more: regrow.save_async(path, tree, **more).result(),
    "AsyncSaver.save": lambda path, tree, **more: regrow.jobs.AsyncSaver().save(path, tree, **more).result(),
    "save_items": regrow.save_items,
    "save_items_async": lambda path, items, **more: regrow.save_items_async(path, items, **more).result(),
    "load": regrow.load,
    "load_into": lambda path, out, **more: regrow.load_into(path, out, **more),
    "load_items": regrow.load_items,
    "open": regrow.open,
    "verify": regrow.verify,
    "overview": regrow.overview,
    "convert": regrow.convert,
    "diff": regrow.diff,
    "report": regrow.report,
    "copy": regrow.copy,
    "remove": regrow.remove,
    "add_parity": regrow.protect.add_parity,
    "repair": regrow.protect.repair,
    "seal": regrow.protect.seal,
    "sign": regrow.protect.sign,
    "list_checkpoints": regrow.list_checkpoints,
    "coordinator": regrow.jobs.coordinator,
    "ray_executor": regrow.jobs.ray_executor,
    "Checkpoint.load": lambda path, **more: regrow.open(path).load(**more),
    "Checkpoint.verify": lambda path, **more: regrow.open(path).verify(**more),
}
DECLARED: dict[str, Callable[..., Any]] = {
    "save_async": regrow.save_async,
    "AsyncSaver.save": regrow.jobs.AsyncSaver.save,
    "save_items_async": regrow.save_items_async,
    "load_into": regrow.load_into,
    "Checkpoint.load": regrow.Checkpoint.load,
    "Checkpoint.verify": regrow.Checkpoint.verify,
}
ANYTHING = {"self", "tree", "like", "a", "b", "checkpoint", "others", "shardings", "storage_options"}
"""Any tree is what these take."""

WRONG: list[Any] = [object(), 1.5, ["x"], {"x": object()}, "maybe", -1, b"\xff"]
TAKEN: dict[str, tuple[type[Any], ...]] = {
    "path": (str, bytes), "source": (str, bytes), "target": (str, bytes), "base": (str, bytes), "item": (str,),
    "item_b": (str,), "atol": (float,), "rtol": (float,),
    "folder": (str, bytes), "cache": (str, bytes), "rules": (str, bytes), "items": (list, dict),
    "wait": (float, int),
    "out": (str,), "title": (str,), "key": (str,), "trusted_keys": (str, list, dict), "from_": (str, bytes),
    "only": (str, list, dict), "at": (str,), "metadata": (float, list, str, int), "compression": (int,), "nest": (str,),
}  # fmt: skip
"""What is of a type that the argument takes, and wrong only for what it says: other tests have
that.
"""


def keywords() -> list[tuple[str, str]]:
    found = []
    for name, function in FUNCTIONS.items():
        for parameter in inspect.signature(DECLARED.get(name, function)).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in ANYTHING:
                found.append((name, parameter.name))
    return found


def test_there_are_as_many_as_there_should_be() -> None:
    modules = (regrow, regrow.protect, regrow.jobs)
    named = {name: getattr(module, name) for module in modules for name in module.__all__}
    functions = {name for name, value in named.items() if inspect.isfunction(value)}
    assert functions - {"options"} == {name for name in FUNCTIONS if "." not in name}
    assert len(keywords()) > 60


@pytest.mark.parametrize(("function", "keyword"), keywords(), ids=lambda part: part)
def test_a_wrong_argument_is_named(function: str, keyword: str, path: Path) -> None:
    regrow.save(path, TREE)
    new = f"{path}.new"
    positional: dict[str, Any] = {"path": path}
    if function == "load_into":
        positional = {"path": path, "out": {"a": np.zeros((2, 3), np.float32)}}
    elif function in ("save", "save_async", "AsyncSaver.save"):
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
    "orbax": ["ocdbt", "zarr3", "chunk_byte_size", "shard_axes", "write_chunk_shape", "read_chunk_shape",
              "ocdbt_target_data_file_size", "rich_types", "write_sharding", "write_array_metadatas", "v1", "per_leaf",
              "value_types"],
    "regrow": ["chunk_byte_size", "shard_axes", "write_chunk_shape", "per_leaf", "format"],
    "safetensors": ["align"],
    "equinox": ["trailer"],
}  # fmt: skip


@pytest.mark.parametrize(("layout", "option"), [(layout, option) for layout, all in OPTIONS.items() for option in all])
def test_a_wrong_option_of_a_layout_is_named(layout: str, option: str, path: Path) -> None:
    for value in (object(), 1.5, "maybe", {"x": "y"}):
        with pytest.raises((TypeError, ValueError)) as caught:
            regrow.save(path, TREE, layout=type(regrow.layouts.chosen(layout))(**{option: value}))
        assert option in str(caught.value), f"{value!r}: {caught.value}"
    assert not path.exists()


def test_numpys_flags_and_integers_are_flags_and_integers(path: Path) -> None:
    regrow.save(path, TREE, overwrite=np.bool_(False), options=regrow.Options(budget_bytes=np.int32(1 << 20)))
    assert regrow.load(path, options=regrow.Options(mmap=np.bool_(True), budget_bytes=np.uint64(1 << 20)))[
        "a"
    ].shape == (2, 3)


OPTIONS_TAKE: dict[str, tuple[type[Any], ...]] = {
    "trusted_keys": (str, list, dict, bytes), "cache": (str, bytes), "nest": (str,), "region": (dict,),
    "wait": (float, int),
}  # fmt: skip


@pytest.mark.parametrize("field", list(_options._CALLS))
def test_a_wrong_rare_setting_is_named(field: str, path: Path) -> None:
    """By each call that uses it."""
    regrow.save(path, TREE)
    for call in _options._CALLS[field]:
        for value in WRONG:
            if type(value) in OPTIONS_TAKE.get(field, ()):
                continue
            options = regrow.Options(**{field: value})
            arguments: dict[str, Any] = {
                "save": {"path": f"{path}.new", "tree": TREE},
                "convert": {"source": path, "target": f"{path}.new"},
            }.get(call, {"path": path})
            function = FUNCTIONS["save_async" if field in ("copy", "check_source") else call]
            with pytest.raises((TypeError, ValueError)) as caught:
                function(**arguments, options=options)
            assert field in str(caught.value), f"{call} {value!r}: {caught.value}"
    assert not Path(f"{path}.new").exists()
