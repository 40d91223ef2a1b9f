"""`regrow.orbax.v1` beside the original, and loops in the shape of Tunix' and Keras'."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as originals
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_orbax_dropin import TREE, assert_same

from regrow.orbax import v1 as ours

theirs = originals.v1
MODULES = {"orbax": theirs, "regrow": ours}


class Iterator:
    """A stateful object that saves itself, the rest of it in the background."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    async def save(self, directory: Any) -> Any:
        at = self.at

        async def write() -> None:
            path = await directory.await_creation()
            (path / "state.json").write_text(str(at))

        return write()

    async def load(self, directory: Any) -> Any:
        async def read() -> None:
            self.at = int((directory / "state.json").read_text())

        return read()


class Mode(enum.IntEnum):
    EMA = 1


@pytest.mark.parametrize("writer", MODULES)
def test_a_member_of_an_enum_is_its_number(tmp_path: Path, writer: str) -> None:
    MODULES[writer].save(tmp_path / "x", {"mode": Mode.EMA, "w": np.ones(2)})
    loaded = ours.load(tmp_path / "x")["mode"]
    assert loaded == 1 and type(loaded) is int


@pytest.mark.parametrize(("writer", "reader"), [("orbax", "regrow"), ("regrow", "orbax"), ("regrow", "regrow")])
def test_each_loads_what_the_other_saved(tmp_path: Path, writer: str, reader: str) -> None:
    one, other = MODULES[writer], MODULES[reader]
    one.save(tmp_path / "x", TREE, custom_metadata={"by": "me"})
    assert_same(other.load(tmp_path / "x"), TREE)
    assert_same(other.load(tmp_path / "x", TREE), TREE)
    found = other.metadata(tmp_path / "x")
    assert found.metadata["a"].shape == (4,) and found.custom_metadata == {"by": "me"}
    one.save_checkpointables(tmp_path / "y", {"model": TREE, "iterator": Iterator(7)})
    loaded = other.load_checkpointables(tmp_path / "y", {"model": TREE, "iterator": (iterator := Iterator())})
    assert_same(loaded["model"], TREE)
    assert iterator.at == 7
    with pytest.raises(KeyError):
        other.load_checkpointables(tmp_path / "y", {"missing": None})
    with pytest.raises(other.errors.InvalidLayoutError):
        other.load(tmp_path / "missing")


def test_loads_onto_other_devices_and_part_of_a_tree(tmp_path: Path) -> None:
    ours.save_async(tmp_path / "x", {"w": jnp.arange(16.0).reshape(8, 2), "b": jnp.ones(2)}).result()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    abstract = {"w": jax.ShapeDtypeStruct((8, 2), jnp.bfloat16, sharding=sharding)}
    with pytest.raises(ValueError, match="b:"):
        ours.load(tmp_path / "x", abstract)
    context = ours.Context()
    context.pytree.loading.partial_load = True
    with context:
        loaded = ours.load(tmp_path / "x", abstract)
    assert loaded.keys() == {"w"} and loaded["w"].dtype == jnp.bfloat16
    assert loaded["w"].sharding == sharding and loaded["w"][3, 1] == 7


def test_contexts() -> None:
    context = ours.Context()
    context.array.saving.use_zarr3 = False
    other = ours.Context(context)
    other.array.saving.use_ocdbt = False
    assert context.array.saving.use_ocdbt and not other.array.saving.use_zarr3
    with pytest.raises(TypeError, match="nothing"):
        ours.Context(nothing=1)


@pytest.mark.parametrize("name", MODULES)
def test_a_loop_as_tunixs(tmp_path: Path, name: str) -> None:
    """Model and optimizer as checkpointables, saved when the policy says so; what is not stored
    is not asked for.
    """
    v1 = MODULES[name]
    policy = v1.training.save_decision_policies.FixedIntervalPolicy(2)
    keep = v1.training.preservation_policies.LatestN(1)
    state = {"w": jnp.zeros(3)}
    with v1.training.Checkpointer(
        tmp_path / "r", save_decision_policy=policy, preservation_policy=keep
    ) as checkpointer:
        assert checkpointer.latest is None
        saved = []
        for step in range(5):
            state = {"w": state["w"] + 1}
            begun = checkpointer.save_checkpointables_async(step, {"model_params": state}, custom_metadata={"at": step})
            if begun is not None:
                saved.append(step)
                begun.result()
    assert saved == [0, 2, 4]
    again = v1.training.Checkpointer(tmp_path / "r")
    assert again.latest.step == 4 and [found.step for found in again.checkpoints] == [4]
    found = again.checkpointables_metadata(4)
    assert "optimizer_state" not in found.metadata and found.custom_metadata == {"at": 4}
    assert_same(again.load_checkpointables(4, {"model_params": state})["model_params"], state)
    again.close()


def test_a_callback_as_keras(tmp_path: Path) -> None:
    """Whole models as trees with numbers, assets beside them; the last step found by its folder."""
    tree = {"trainable": {"0": np.ones((2, 2), np.float32)}, "optimizer": {"0": np.float32(3)}, "epoch": 2}
    checkpointer = ours.training.Checkpointer(directory=tmp_path / "run")
    with ours.Context():
        for step in (1, 12):
            assert checkpointer.save_checkpointables(step, {"state": tree, "assets": {"vocab": "a b c"}})
    checkpointer.close()
    last = max(int(path.name) for path in (tmp_path / "run").iterdir() if path.name.isdigit())
    assert last == 12
    loaded = ours.load_checkpointables(tmp_path / "run" / str(last))
    assert loaded["assets"] == {"vocab": "a b c"} and loaded["state"]["epoch"] == 2
    assert_same(ours.load(tmp_path / "run" / "12")["trainable"], tree["trainable"])
