"""Flax' switch `flax_use_orbax_checkpointing` says what `regrow.flax.checkpoints` writes; both
forms are restored.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.training import checkpoints as theirs
from flax_trees import assert_same_values, tree

import regrow
from regrow.flax import checkpoints as ours

pytestmark = pytest.mark.filterwarnings("ignore")

ON, OFF = True, False


def switched(value: bool) -> Any:
    return flax.config.temp_flip_flag("use_orbax_checkpointing", value)


TREES = {
    **{name: partial(tree, name) for name in ("adamw_clip", "nested", "frozen_linen")},
    "kinds": lambda: {"w": jnp.ones((3, 4)), "n": np.arange(3), "i": 3, "f": 1.5, "t": "x", "none": None, "empty": {}},
    "key": lambda: {"key": jax.random.key(3), "b": jnp.ones(2, jnp.bfloat16)},
}
"""Makes each tree: only the tests that need one compile it."""


def told(folder: Path) -> list[Any]:
    """What a folder of Orbax says of itself, and the names of its files; those of data are
    random.
    """
    texts = {name: json.loads((folder / name).read_text()) for name in ("_METADATA", "_CHECKPOINT_METADATA")}
    handler = texts["_CHECKPOINT_METADATA"]["item_handlers"]
    sharding = folder / "_sharding"
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.parent.name != "d"}
    return [texts["_METADATA"], handler, json.loads(sharding.read_text()) if sharding.exists() else {}, files]


@pytest.mark.parametrize("way", ["save_checkpoint", "save_checkpoint_multiprocess"])
@pytest.mark.parametrize("name", TREES)
def test_switched_on_the_folder_is_that_of_flax(name: str, way: str, tmp_path: Path) -> None:
    state = TREES[name]()
    with switched(ON):
        saved = [getattr(package, way)(tmp_path / package.__name__, state, 7) for package in (theirs, ours)]
    expected, found = map(told, map(Path, saved))
    assert found == expected
    target = jax.tree.map(lambda leaf: leaf, state)
    if name in ("adamw_clip", "frozen_linen"):  # Flax cannot restore onto the others.
        one, other = (theirs.restore_checkpoint(path, target) for path in saved)
        assert jax.tree.structure(one) == jax.tree.structure(other)
        assert_same_values(jax.tree.leaves(one), jax.tree.leaves(other))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        one, other = (checkpointer.restore(path) for path in saved)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, original in zip(jax.tree.leaves(other), jax.tree.leaves(one), strict=True):
        assert type(mine) is type(original)
        if name == "key":
            mine, original = (jax.random.key_data(x) if x.dtype == state["key"].dtype else x for x in (mine, original))
        assert np.array_equal(mine, original)


@pytest.mark.parametrize("way", ["save_checkpoint", "save_checkpoint_multiprocess"])
def test_switched_off_the_file_is_that_of_flax(way: str, tmp_path: Path) -> None:
    with switched(OFF):
        files = [getattr(p, way)(tmp_path / p.__name__, TREES["nested"](), 7) for p in (theirs, ours)]
    assert Path(files[0]).read_bytes() == Path(files[1]).read_bytes()


@pytest.mark.parametrize("now", [ON, OFF])
def test_both_forms_are_restored_with_either_switch(now: bool, tmp_path: Path) -> None:
    for step, then in ((1, ON), (2, OFF), (3, ON)):
        with switched(then):
            ours.save_checkpoint(tmp_path, {"w": np.full(3, step)}, step, keep=5)
    with switched(now):
        for package in (theirs, ours):
            assert package.available_steps(tmp_path) == [1, 2, 3]
            for step in (1, 2, 3):
                assert package.restore_checkpoint(tmp_path, None, step)["w"].tolist() == [step] * 3


def test_a_checkpoint_that_is_there_is_a_value_error_and_flax_own(tmp_path: Path) -> None:
    for switch in (ON, OFF):
        with switched(switch):
            ours.save_checkpoint(tmp_path / str(switch), {"w": np.ones(3)}, 1)
            for kind in (ValueError, flax.errors.InvalidCheckpointError, regrow.errors.AlreadyExistsError):
                with pytest.raises(kind):
                    ours.save_checkpoint(tmp_path / str(switch), {"w": np.zeros(3)}, 1)
        assert ours.restore_checkpoint(tmp_path / str(switch), None)["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("target", [np.ones(2), {}, None])
def test_a_save_that_is_refused_removes_nothing(target: Any, tmp_path: Path) -> None:
    with switched(ON):
        for step in (1, 2, 3):
            ours.save_checkpoint(tmp_path, {"w": np.ones(3)}, step, keep=0)
        with pytest.raises(ValueError, match="flax_use_orbax_checkpointing"):
            ours.save_checkpoint_multiprocess(tmp_path, target, 4, keep=1)
    assert ours.available_steps(tmp_path) == [1, 2, 3]


def test_a_leaf_of_no_form_is_the_error_of_orbax_and_leaves_nothing(tmp_path: Path) -> None:
    with switched(ON):
        for package in (theirs, ours):
            with pytest.raises(ValueError):
                package.save_checkpoint(tmp_path / package.__name__, {"a": object()}, 1)
    assert os.listdir(tmp_path) == [theirs.__name__]


def test_an_older_step_that_is_saved_stays(tmp_path: Path) -> None:
    with switched(ON):
        for step in (5, 3):
            ours.save_checkpoint(tmp_path, {"w": np.full(3, step)}, step, keep=1)
    assert ours.available_steps(tmp_path) == [3, 5]


KILLED = """
import os, sys, threading
import numpy as np
from regrow.flax import checkpoints
def die():
    while not any("checkpoint-tmp" in name for name in os.listdir(sys.argv[1])):
        pass
    os._exit(9)
threading.Thread(target=die, daemon=True).start()
checkpoints.save_checkpoint(sys.argv[1], {"w": np.ones(20_000_000)}, int(sys.argv[2]))
"""


def test_a_killed_save_of_a_folder_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    for step, goes_on_with in ((1, 0), (2, 1)):
        killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path, str(step)], check=False)
        assert killed.returncode == 9
        for package in (theirs, ours):
            assert package.restore_checkpoint(tmp_path, {"w": np.zeros(3)})["w"].tolist() == [goes_on_with] * 3
        with switched(ON):
            ours.save_checkpoint(tmp_path, {"w": np.full(3, step)}, step)
        assert os.listdir(tmp_path) == [f"checkpoint_{step}"]


WITHOUT_FLAX = """
import sys
import numpy as np
from regrow.flax import checkpoints
checkpoints.save_checkpoint(sys.argv[1], {"w": np.arange(3)}, 1)
assert not {"flax", "jax", "orbax"} & set(sys.modules)
"""


@pytest.mark.parametrize(("value", "is_folder"), [(None, True), ("1", True), ("False", False)])
def test_without_flax_its_environment_variable_counts(value: str | None, is_folder: bool, tmp_path: Path) -> None:
    variables = {} if value is None else {"FLAX_USE_ORBAX_CHECKPOINTING": value}
    subprocess.run([sys.executable, "-c", WITHOUT_FLAX, tmp_path], env=os.environ | variables, check=True)
    assert (tmp_path / "checkpoint_1").is_dir() == is_folder
    assert theirs.restore_checkpoint(tmp_path, None)["w"].tolist() == [0, 1, 2]
