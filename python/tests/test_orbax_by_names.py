"""A pytree without ``_METADATA`` is restored by the names of a target, as the original does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as theirs
import pytest

import regrow
import regrow.orbax as ours

TREE = {"a": np.arange(6.0), "b": {"c": jax.numpy.arange(4), "list": [np.ones(2), 7]}}


def same(found: Any, expected: Any) -> None:
    """Equal leaves of the same types."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is type(other)
        assert np.asarray(one).dtype == np.asarray(other).dtype and np.array_equal(one, other)


@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize("writer", [theirs, ours], ids=["orbax", "regrow"])
def test_a_target_gives_the_tree_of_a_pytree_without_metadata(tmp_path: Path, writer: Any, use_ocdbt: bool) -> None:
    """By each way to restore; without a target that is an error."""
    writer.PyTreeCheckpointer(use_ocdbt=use_ocdbt).save(tmp_path / "x", TREE)
    (tmp_path / "x" / "_METADATA").unlink()
    for tree in (TREE, jax.tree.map(np.asarray, TREE)):
        found = []
        for v0 in (theirs, ours):
            args = v0.checkpoint_utils.construct_restore_args(tree)
            checkpointer = v0.PyTreeCheckpointer()
            found.append(
                [
                    checkpointer.restore(tmp_path / "x", tree, restore_args=args),
                    v0.StandardCheckpointer().restore(tmp_path / "x", tree),
                ]
            )
        same(found[1], found[0])
    with pytest.raises(ValueError, match="_METADATA"):
        ours.PyTreeCheckpointer().restore(tmp_path / "x")


@pytest.mark.filterwarnings("ignore::regrow.errors.IncompleteCheckpointWarning")
@pytest.mark.parametrize("layout", ["orbax", "regrow"])
def test_load_items_finds_the_arrays_of_an_item_without_metadata(tmp_path: Path, layout: Any) -> None:
    regrow.save_items(tmp_path / "x", {"state": TREE, "other": TREE}, layout=layout)
    for name in ("_METADATA", "regrow.json"):
        (tmp_path / "x" / "state" / name).unlink(missing_ok=True)
    same(regrow.load_items(tmp_path / "x", {"state": TREE})["state"], TREE)
