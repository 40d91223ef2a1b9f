"""What a drop-in writes and gives back has the names and the containers that the original's has."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as theirs
import orbax.checkpoint.experimental.v1 as theirs_v1
import pytest
from flax import core, nnx, struct

from regrow import orbax as ours

TREE = {"a": np.arange(6, dtype=np.float32), "b": {"c": 3}}


def v0_steps(ocp: Any, path: Path) -> None:
    with ocp.CheckpointManager(path / "one") as manager:
        manager.save(1, args=ocp.args.StandardSave(TREE))
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(path / "many", options=options) as manager:
        manager.save(
            2,
            metrics={"loss": 1.0},
            args=ocp.args.Composite(state=ocp.args.StandardSave(TREE), about=ocp.args.JsonSave({"x": 1})),
        )


def v0_checkpointers(ocp: Any, path: Path) -> None:
    for kind in ("PyTree", "Standard"):
        with ocp.Checkpointer(getattr(ocp, f"{kind}CheckpointHandler")()) as checkpointer:
            checkpointer.save(path / kind, args=getattr(ocp.args, f"{kind}Save")(TREE))
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(path / "many", args=ocp.args.Composite(x=ocp.args.StandardSave(TREE)))


def v1_steps(ocp: Any, path: Path) -> None:
    with ocp.training.Checkpointer(path) as checkpointer:
        checkpointer.save(1, TREE, metrics={"loss": 1.0})
        checkpointer.save_checkpointables(2, {"state": TREE, "about": {"x": 1}})


def v1_saves(ocp: Any, path: Path) -> None:
    ocp.save(path / "one", TREE)
    ocp.save_checkpointables(path / "many", {"state": TREE, "about": {"x": 1}})


SAVES = {
    "steps": (v0_steps, theirs, ours),
    "checkpointers": (v0_checkpointers, theirs, ours),
    "steps of v1": (v1_steps, theirs_v1, ours.v1),
    "saves of v1": (v1_saves, theirs_v1, ours.v1),
}


@pytest.mark.parametrize("kind", SAVES)
def test_a_save_has_the_files_of_the_original(kind: str, tmp_path: Path) -> None:
    save, *modules = SAVES[kind]
    names = []
    for name, ocp in zip(("theirs", "ours"), modules, strict=True):
        save(ocp, tmp_path / name)
        files = (file for file in (tmp_path / name).rglob("*") if file.is_file())
        # Data files have names of their own.
        names.append({re.sub(r"/d/[0-9a-f]{32}$", "/d/*", str(file.relative_to(tmp_path / name))) for file in files})
    assert names[0] == names[1]


# ---- containers of restores without a target ------------------------------------------

Pair = namedtuple("Pair", "x y")


@struct.dataclass
class State:
    a: Any
    b: Any


def rich_tree() -> dict[str, Any]:
    x = jnp.ones(2)
    params = {"w": x, "b": x}
    return {
        "dataclass": State(x, {"c": x}),
        "namedtuple": Pair(x, 3),
        "tuples": (x, (x,)),
        "lists": [x, [x]],
        "optax": optax.adam(1e-3).init(params),
        "frozen": core.freeze({"a": x}),
        "numbers": {5: x, 10: x},
        "nnx": nnx.State({"k": nnx.Param(x)}),
        "empty": {"dict": {}, "list": [], "tuple": (), "none": None, "state": optax.EmptyState(), "f": core.freeze({})},
    }


@pytest.fixture(params=["orbax", "regrow"])
def layout(request: pytest.FixtureRequest) -> Iterator[str]:
    ours.use_layout(request.param)
    yield request.param
    ours.use_layout("orbax")


def same_tree(one: Any, other: Any) -> bool:
    """The same containers and values, of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_tree(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_tree, one, other))
    return bool(np.all(one == other))


@pytest.mark.parametrize("kind", ["PyTree", "Standard"])
@pytest.mark.parametrize("root", ["dict", "dataclass", "optax", "tuples"])
def test_a_restore_without_a_target_gives_what_the_original_gives(
    layout: str, kind: str, root: str, tmp_path: Path
) -> None:
    tree = rich_tree() if root == "dict" else rich_tree()[root]
    with ours.Checkpointer(getattr(ours, f"{kind}CheckpointHandler")()) as checkpointer:
        checkpointer.save(tmp_path / "x", args=getattr(ours.args, f"{kind}Save")(tree))
    found = []
    for ocp in (theirs, ours):
        with ocp.Checkpointer(getattr(ocp, f"{kind}CheckpointHandler")()) as checkpointer:
            found.append(checkpointer.restore(tmp_path / "x", args=getattr(ocp.args, f"{kind}Restore")()))
            told = checkpointer.metadata(tmp_path / "x").item_metadata.tree
            assert jax.tree.structure(told) == jax.tree.structure(found[-1])
    assert same_tree(*found)


def test_v1_without_a_target_gives_what_the_original_gives(layout: str, tmp_path: Path) -> None:
    ours.v1.save(tmp_path / "x", rich_tree())
    assert same_tree(theirs_v1.load(tmp_path / "x"), ours.v1.load(tmp_path / "x"))
