"""Subtrees (`at=`, `checkpoint["params"]`), two-sided templates, and names that change while
leaves are loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from conftest import assert_same

import regrow


class Pair(NamedTuple):
    left: Any
    right: Any


def tree() -> dict[str, Any]:
    return {
        "params": {
            "dense": {"kernel": np.arange(6.0).reshape(2, 3), "bias": np.zeros(3, np.float32)},
            "layers": [np.arange(3), {"w": np.ones((1, 2))}, (np.int8(3), "text", None)],
        },
        "pair": Pair(np.arange(4), {"x": 1.5}),
        "step": 7,
    }


LAYOUTS = {"regrow": "x", "orbax": "x", "flax": "x.msgpack", "npy": "x.npz"}


@pytest.fixture(params=LAYOUTS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / LAYOUTS[request.param]
    regrow.save(path, tree(), layout=request.param, lossy=True)
    return path


def part(whole: Any, at: str) -> Any:
    for key in at.split("/"):
        whole = whole[int(key)] if isinstance(whole, (list, tuple)) else whole[key]
    return whole


@pytest.mark.parametrize("at", ["params", "params/dense", "params/dense/kernel", "params/layers", "pair", "step"])
def test_a_subtree_is_that_part_of_the_whole(saved: Path, at: str) -> None:
    wanted = part(regrow.load(saved), at)
    assert_same(regrow.load(saved, at=at), wanted)
    assert_same(regrow.open(saved, at=at).load(), wanted)
    found = regrow.open(saved)[at]
    if isinstance(found, regrow.Checkpoint):
        assert_same(found.load(), wanted)
        assert_same(regrow.load(saved, like=wanted, at=at), wanted)
        assert found.verify().ok and len(found) == len(regrow.open(saved, at=at))
    above = f"{at}/"
    expected = [key.removeprefix(above) for key in regrow.open(saved) if key.startswith(above)]
    assert list(regrow.open(saved, at=at)) == (expected or ["."])


def test_subtrees_of_subtrees_and_slices(saved: Path) -> None:
    params = regrow.open(saved)["params"]
    assert np.array_equal(params["dense/kernel"][1:, :2], tree()["params"]["dense"]["kernel"][1:, :2])
    assert_same(params["dense"].load(), regrow.load(saved, at="params/dense"))


@pytest.mark.parametrize("at", ["param", "params/none", "params/dense/kernel/x", ".", "/", "params/", "../x", "\0"])
def test_an_absent_subtree_is_an_error_that_names_those_there_are(saved: Path, at: str) -> None:
    for call in (lambda: regrow.load(saved, at=at), lambda: regrow.open(saved, at=at), lambda: regrow.open(saved)[at]):
        with pytest.raises(regrow.errors.LeafNotFoundError, match="help: the key paths are"):
            call()
    with pytest.raises(regrow.errors.InvalidArgumentError, match="at=''"):
        regrow.load(saved, at="")


def test_items_are_the_first_level_of_a_checkpoint_of_items(path: Path) -> None:
    regrow.save_items(path, {"state": {"p": {"w": np.ones(3)}}, "config": regrow.Json({"a": [1, 2]})})
    assert regrow.load(path, at="state/p/w").sum() == 3 and regrow.load(path, at="config/a") == [1, 2]
    assert_same(regrow.load(path, at="state"), {"p": {"w": np.ones(3)}})
    with pytest.raises(regrow.errors.LeafNotFoundError, match="the key paths are"):
        regrow.load(path, at="none")


def test_damage_outside_of_a_subtree_does_no_harm(path: Path) -> None:
    regrow.save(path, {"good": np.arange(3000.0), "bad": np.arange(5000.0)}, durable=False)
    (file,) = path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[data.index(np.arange(5000.0).tobytes()[20_000:20_100])] ^= 1
    file.write_bytes(data)
    assert np.array_equal(regrow.load(path, at="good"), np.arange(3000.0))
    with pytest.raises(regrow.errors.CorruptError):
        regrow.load(path, at="bad")
    found: list[Any] = []
    assert regrow.load(path, at="bad", options=regrow.Options(salvage=found.append)) is ...
    assert found[0].lost_paths == ["bad"]


def test_what_only_the_template_or_only_the_checkpoint_has(saved: Path) -> None:
    at = "params/dense"
    whole = regrow.load(saved, at=at)
    new = np.full(2, 9.0)
    with pytest.raises(regrow.errors.MismatchError, match="missing"):
        regrow.load(saved, {**whole, "new": new}, at=at)
    kept = regrow.load(saved, {**whole, "new": {"deep": new}}, at=at, missing="keep")
    assert kept["new"]["deep"] is new and np.array_equal(kept["kernel"], whole["kernel"])
    with pytest.raises(regrow.errors.MismatchError, match="extra"):
        regrow.load(saved, {"bias": whole["bias"]}, at=at)
    assert list(regrow.load(saved, {"bias": whole["bias"]}, at=at, extra="drop")) == ["bias"]
    with pytest.raises(regrow.errors.MismatchError, match="has no leaf of the template"):
        regrow.load(saved, {"new": new}, at=at, missing="keep", extra="drop")
    # Another shape is neither.
    with pytest.raises(regrow.errors.MismatchError, match="shape"):
        regrow.load(saved, {"kernel": np.zeros((9, 9))}, at=at, missing="keep", extra="drop")
    for policy in ("missing", "extra"):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="needs a template"):
            regrow.load(saved, **{policy: "keep" if policy == "missing" else "drop"})


@pytest.mark.parametrize("policies", [{}, {"extra": "drop"}, {"missing": "keep"}, {"missing": "keep", "extra": "drop"}])
def test_a_template_of_a_part_is_an_error_that_names_the_part(saved: Path, policies: dict[str, str]) -> None:
    dense = regrow.load(saved, at="params/dense")
    for at, given in (("params/dense", {}), ("params/dense", {"at": "params"})):
        with pytest.raises(regrow.errors.MismatchError, match=f"pass at='{at}'") as error:
            regrow.load(saved, like=dense, **given, **policies)
        assert str(error.value).count("pass at=") == 1
    assert_same(regrow.load(saved, like=dense, at="params/dense", **policies), dense)


def test_a_description_is_not_kept_in_the_place_of_an_array(path: Path) -> None:
    regrow.save(path, {"w": np.ones(2)})
    described = jax.ShapeDtypeStruct((3,), np.float32)
    with pytest.raises(regrow.errors.MismatchError, match="lacks new/a, and the template only describes"):
        regrow.load(path, {"w": np.ones(2), "new": {"a": described}}, missing="keep")


def test_leaves_are_renamed_and_turned_while_they_are_loaded(saved: Path, tmp_path: Path) -> None:
    renamed = regrow.load(saved, at="params", rename={"dense/(.*)": "head/$1"})
    assert_same(renamed["head"], regrow.load(saved, at="params/dense"))
    like = {"head": {"kernel": np.zeros((2, 3))}}
    loaded = regrow.load(saved, like, at="params", rename={"dense/(.*)": "head/$1"}, extra="drop")
    assert np.array_equal(loaded["head"]["kernel"], tree()["params"]["dense"]["kernel"])
    rules = tmp_path / "rules.toml"
    rules.write_text("only = ['kernel']\n[[transpose]]\nleaves = 'kernel'\naxes = [1, 0]\n")
    turned = regrow.load(saved, at="params/dense", rules=rules)
    assert np.array_equal(turned["kernel"], tree()["params"]["dense"]["kernel"].T) and list(turned) == ["kernel"]
    with pytest.raises(regrow.errors.NameCollisionError):
        regrow.load(saved, at="params/dense", rename={"bias": "kernel"})
    with pytest.raises(regrow.errors.InvalidArgumentError, match="matches no key path"):
        regrow.load(saved, rename={"none": "x"})


def test_containers_with_names_are_pruned_as_dicts_and_can_be_dicts(path: Path) -> None:
    regrow.save(path, tree())
    assert regrow.load(path, only="pair/left")["pair"]._fields == ("left",)
    plain = regrow.load(path, classes="dict")["pair"]
    assert type(plain) is dict and list(plain) == ["left", "right"] and np.array_equal(plain["left"], np.arange(4))
    with pytest.raises(regrow.errors.InvalidArgumentError, match="`classes` is for loads without"):
        regrow.load(path, like=tree(), classes="dict")


def test_a_node_of_thousands_of_leaves_has_a_short_repr() -> None:
    node = regrow.Node("TrainState", {f"leaf{at}": np.zeros((at + 9, 3)) for at in range(5000)})
    assert len(repr(node)) < 2100 and repr(node).startswith("TrainState(leaf0=float64[9, 3], ")
    assert dict(node)["leaf1"].shape == (10, 3)
