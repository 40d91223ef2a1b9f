"""Leaves of a user's own types."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from conftest import assert_same

import regrow


class Tokenizer:
    """Neither a node nor an array."""

    def __init__(self, words: list[str], table: Any) -> None:
        self.words, self.table = words, table


class TokenizerHandler:
    type_name = "acme.Tokenizer"

    def save(self, leaf: Tokenizer) -> Any:
        return {"words": {str(at): word for at, word in enumerate(leaf.words)}, "table": leaf.table}

    def restore(self, state: Any) -> Tokenizer:
        return Tokenizer([state["words"][str(at)] for at in range(len(state["words"]))], state["table"])


class FractionHandler:
    type_name = "fraction"

    def save(self, leaf: Fraction) -> Any:
        return {"numerator": leaf.numerator, "denominator": leaf.denominator}

    def restore(self, state: Any) -> Fraction:
        return Fraction(int(state["numerator"]), int(state["denominator"]))


HANDLERS = regrow.handlers.LeafRegistry((Tokenizer, TokenizerHandler()), (Fraction, FractionHandler()))


def a_tree() -> dict[str, Any]:
    return {
        "model": {"kernel": np.arange(6.0).reshape(2, 3)},
        "tokenizer": Tokenizer(["a", "b"], np.array([3, 1], np.int32)),
        "rate": Fraction(1, 3),
    }


@pytest.mark.parametrize("layout", ["regrow", "orbax", "flax"])
def test_come_back_in_every_layout_that_can_hold_them(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "checkpoint"
    regrow.save(path, a_tree(), layout=layout, options=regrow.Options(handlers=HANDLERS))
    loaded = regrow.load(path, options=regrow.Options(handlers=HANDLERS))
    assert loaded["rate"] == Fraction(1, 3)
    assert type(loaded["tokenizer"]) is Tokenizer
    assert loaded["tokenizer"].words == ["a", "b"]
    assert_same(loaded["tokenizer"].table, np.array([3, 1], np.int32))
    assert_same(loaded["model"], a_tree()["model"])


def test_a_template_restores_through_the_handler(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    regrow.save(path, a_tree(), options=regrow.Options(handlers=HANDLERS))
    like = a_tree() | {"rate": Fraction(5, 7), "tokenizer": Tokenizer(["x", "y"], jnp.zeros(2, jnp.int32))}
    loaded = regrow.load(path, like=like, options=regrow.Options(handlers=HANDLERS))
    assert loaded["rate"] == Fraction(1, 3)
    assert isinstance(loaded["tokenizer"].table, type(jnp.zeros(2)))
    with pytest.raises(regrow.errors.MismatchError, match=r"acme.Tokenizer|numerator"):
        regrow.load(path, like=like | {"rate": like["tokenizer"]}, options=regrow.Options(handlers=HANDLERS))


def test_without_handlers_the_state_is_given_and_survives(tmp_path: Path) -> None:
    regrow.save(tmp_path / "a", a_tree(), options=regrow.Options(handlers=HANDLERS))
    plain = regrow.load(tmp_path / "a")
    assert plain["rate"] == {"__leaf_type__": "fraction", "state": {"numerator": 1, "denominator": 3}}
    regrow.save(tmp_path / "b", plain)
    assert regrow.load(tmp_path / "b", options=regrow.Options(handlers=HANDLERS))["rate"] == Fraction(1, 3)
    regrow.convert(tmp_path / "a", tmp_path / "c", layout="orbax")
    assert regrow.load(tmp_path / "c", options=regrow.Options(handlers=HANDLERS))["rate"] == Fraction(1, 3)
    with ocp.PyTreeCheckpointer() as checkpointer:
        assert checkpointer.restore(tmp_path / "c")["rate"]["state"]["denominator"] == 3


def test_an_unknown_type_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    regrow.save(path, {"x": [a_tree()["rate"]]}, options=regrow.Options(handlers=HANDLERS))
    with pytest.raises(regrow.errors.LeafTypeError, match="fraction") as caught:
        regrow.load(
            path, options=regrow.Options(handlers=regrow.handlers.LeafRegistry((Tokenizer, TokenizerHandler())))
        )
    assert caught.value.leaf == "x/0"
    with pytest.raises(regrow.errors.LeafTypeError, match="Fraction"):
        regrow.save(
            tmp_path / "other", {"x": Fraction(1, 2)}, options=regrow.Options(handlers=regrow.handlers.LeafRegistry())
        )
    assert not (tmp_path / "other").exists()


def test_the_registry_finds_by_type_name_class_and_leaf() -> None:
    assert HANDLERS.get("fraction") is HANDLERS.get(Fraction) is HANDLERS.get(Fraction(1, 2))
    assert HANDLERS.get(np.zeros(2)).type_name == "np.ndarray"
    assert HANDLERS.get(jnp.zeros(2)).type_name == "jax.Array"
    assert HANDLERS.get(True).type_name == "bool"
    assert HANDLERS.get(np.float64(1)).type_name == "np.generic"
    assert HANDLERS.get(int).type_name == "int"
    assert HANDLERS.has("str") and not HANDLERS.has("nothing") and not HANDLERS.has(object())
    with pytest.raises(regrow.errors.NotFoundError, match=r"acme\.Tokenizer"):
        HANDLERS.get("nothing")


def test_duplicates_are_refused_and_overrides_are_told() -> None:
    registry = regrow.handlers.LeafRegistry((Fraction, FractionHandler()))
    with pytest.raises(regrow.errors.InvalidArgumentError, match="the type name 'fraction'"):
        registry.add(Tokenizer, FractionHandler())

    class Other(FractionHandler):
        type_name = "other"

    with pytest.raises(regrow.errors.InvalidArgumentError, match="the class Fraction"):
        registry.add(Fraction, Other())
    with pytest.warns(UserWarning, match="is replaced by"):
        registry.add(Fraction, Other(), override=True)
    assert registry.get(Fraction).type_name == "other"
    assert not registry.has("fraction")
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"the type name 'np\.ndarray'"):
        registry.add(np.ndarray, regrow.handlers.StandardHandler("np.ndarray"))
    for bad in (object(), TokenizerHandler, type("NoName", (), {"save": 1, "restore": 1})()):
        with pytest.raises(regrow.errors.InvalidArgumentError, match="leaf handler"):
            registry.add(Tokenizer, bad if not isinstance(bad, type) else object())  # type: ignore[arg-type]


def test_the_first_fitting_claim_decides(tmp_path: Path) -> None:
    @dataclass
    class Point:
        x: float
        y: float

    class PointHandler:
        type_name = "point"

        def save(self, leaf: Point) -> Any:
            return {"xy": np.array([leaf.x, leaf.y])}

        def restore(self, state: Any) -> Point:
            return Point(*map(float, state["xy"]))

    class NegativeHandler(PointHandler):
        type_name = "negative point"

        def restore(self, state: Any) -> Point:
            return Point(*(-abs(float(value)) for value in state["xy"]))

    handlers = regrow.handlers.LeafRegistry(
        (lambda leaf: isinstance(leaf, Point) and leaf.x < 0, NegativeHandler()), (Point, PointHandler())
    )
    regrow.save(tmp_path / "a", [Point(1.0, 2.0), Point(-1.0, 2.0)], options=regrow.Options(handlers=handlers))
    assert regrow.load(tmp_path / "a", options=regrow.Options(handlers=handlers)) == [
        Point(1.0, 2.0),
        Point(-1.0, -2.0),
    ]
