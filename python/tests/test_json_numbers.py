"""Numbers in JSON items, metrics and metadata come back to the digit, and Orbax reads the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

import regrow

LONG = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**127 + 1, 10**400 + 7]
FLOATS = [0.1 + 0.2, 1e-320, 5e-324, 1.7976931348623157e308, 123456789.12345679, 2.0**70, -0.0]
ODD = [math.nan, math.inf, -math.inf]
NUMBERS = {"long": LONG, "floats": FLOATS, "odd": ODD, "text": ["NaN", str(2**70), "Infinity"]}


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and repr(found) == repr(expected)


def test_items_metrics_and_metadata_keep_every_number(tmp_path: Path) -> None:
    state = np.random.PCG64(7).state
    metrics = {"loss": math.nan, "best": math.inf, "worst": -math.inf, "tokens": 2**70, "lr": 0.1 + 0.2}
    items = {"data": regrow.Json({"rng": state, **NUMBERS}), "state": {"w": np.ones(2)}}
    regrow.save_items(tmp_path / "i", items, metrics=metrics, metadata={"all": NUMBERS})
    loaded = regrow.load_items(tmp_path / "i")
    assert same(loaded["data"], {"rng": state, **NUMBERS})
    assert same(loaded["metrics"], metrics)
    opened = regrow.open(tmp_path / "i")
    assert same(opened.metrics, metrics) and same(opened.metadata["all"], NUMBERS)
    generator = np.random.PCG64()
    generator.state = loaded["data"]["rng"]
    assert generator.random_raw() == np.random.PCG64(7).random_raw()
    # Orbax' own handlers read the same documents.
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as json_checkpointer:
        assert same(json_checkpointer.restore(tmp_path / "i" / "data"), {"rng": state, **NUMBERS})
    assert regrow.diff(tmp_path / "i", tmp_path / "i").equal


@pytest.mark.parametrize("layout", ["regrow", "orbax", "safetensors", "npy", "equinox"])
def test_metadata_of_every_layout_keep_every_number(layout: str, tmp_path: Path) -> None:
    tree = {"w": np.ones(2, np.float32)}
    regrow.save(tmp_path / "a", tree, layout=layout, metadata={"all": NUMBERS})
    assert same(regrow.open(tmp_path / "a").metadata["all"], NUMBERS)
    regrow.convert(tmp_path / "a", tmp_path / "b", lossy=True)
    assert same(regrow.open(tmp_path / "b").metadata["all"], NUMBERS)


def test_steps_of_a_manager_keep_metrics_and_metadata(tmp_path: Path) -> None:
    metrics = {"loss": math.inf, "tokens": 2**70, "lr": 0.1 + 0.2}
    with regrow.Manager(tmp_path / "run") as steps:
        steps.save(3, {"w": np.ones(2)}, metrics=metrics, metadata={"all": NUMBERS})
        steps.wait()
    opened = regrow.open(tmp_path / "run", step=3)
    assert same(opened.metrics, metrics) and same(opened.metadata["all"], NUMBERS)


def test_what_orbax_wrote_comes_back_to_the_digit(tmp_path: Path) -> None:
    given = {"rng": np.random.PCG64(1).state, **NUMBERS}
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(tmp_path / "o", options=options) as theirs:
        args = ocp.args.Composite(data=ocp.args.JsonSave(given), state=ocp.args.StandardSave({"w": np.ones(2)}))
        theirs.save(1, args=args, metrics={"loss": math.inf, "tokens": 2**70})
    loaded = regrow.load_items(tmp_path / "o")
    assert same(loaded["data"], given)
    assert same(loaded["metrics"], {"loss": math.inf, "tokens": 2**70})


def test_numbers_of_numpy_are_pythons_and_what_json_lacks_is_refused_by_key(tmp_path: Path) -> None:
    given = {
        "a": [np.float32(0.5), np.int64(3), np.bool_(True), np.float64(0.1), np.array(7), ml_dtypes.bfloat16(1.5)],
        "b": {"c": np.uint64(2**64 - 1)},
    }
    expected = {"a": [0.5, 3, True, 0.1, 7, 1.5], "b": {"c": 2**64 - 1}}
    regrow.save_items(tmp_path / "i", {"data": regrow.Json(given)}, metrics={"loss": np.float32(0.5)})
    loaded = regrow.load_items(tmp_path / "i")
    assert same(loaded["data"], expected) and same(loaded["metrics"], {"loss": 0.5})
    regrow.save(tmp_path / "p", {"w": np.ones(1)}, metadata=given)
    assert same(regrow.open(tmp_path / "p").metadata, expected)
    for value, key in [
        ({"a": {"b": [1, np.ones(3)]}}, r"\['a'\]\['b'\]\[1\]"),
        ({"a": {"x": 1j}}, r"\['a'\]\['x'\]"),
        ({"s": {1, 2}}, r"\['s'\]"),
    ]:
        with pytest.raises(regrow.errors.InvalidArgumentError, match=key):
            regrow.Json(value)
        with pytest.raises(regrow.errors.InvalidArgumentError, match=key):
            regrow.save(tmp_path / "q", {"w": np.ones(1)}, metadata=value)
        with pytest.raises(regrow.errors.InvalidArgumentError, match=key):
            regrow.save_items(tmp_path / "q", {"t": {"w": np.ones(1)}}, metrics=value)
