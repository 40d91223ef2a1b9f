"""Many arrays of one sharding and shape: what is asked of JAX once for all of them, and what of
each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_shardings import DEVICES, SHARDINGS, on

import regrow


@pytest.mark.parametrize("has_function", [True, False], ids=["as it is", "a JAX that has only public functions"])
def test_arrays_of_one_kind_are_as_jax_makes_them(
    path: Path, monkeypatch: pytest.MonkeyPatch, has_function: bool
) -> None:
    """The first array of a sharding, shape and dtype is made by public functions, the others by
    what is behind them.
    """
    if not has_function:
        monkeypatch.delattr(sys.modules["jaxlib._jax"], "batched_device_put")
    values = [np.arange(24 * 48, dtype=np.float32).reshape(24, 48) + at for at in range(3)]
    tree = {name: [jax.device_put(value, sharding) for value in values] for name, sharding in SHARDINGS.items()}
    tree["nowhere"] = [jnp.asarray(value) for value in values]
    tree["computed"] = [jax.jit(lambda array: array * 2)(array) for array in tree["4x2"]]
    regrow.save(path, tree)
    loaded = regrow.load(path, like=tree)
    assert list(loaded) == list(tree)
    for name, arrays in tree.items():
        for array, wanted in zip(loaded[name], arrays, strict=True):
            same_shards(array, wanted)
            assert array.aval == wanted.aval
            assert array.committed == wanted.committed
    # They can be computed with, together.
    assert jax.jit(lambda a, b: a + b)(*loaded["2x2x2"][:2]).sharding == SHARDINGS["2x2x2"]


def same_shards(array: Any, wanted: Any) -> None:
    """Each device has the same of both."""
    assert array.sharding == wanted.sharding
    for shard, wanted_shard in zip(array.addressable_shards, wanted.addressable_shards, strict=True):
        assert (shard.device, shard.index) == (wanted_shard.device, wanted_shard.index)
        np.testing.assert_array_equal(np.asarray(shard.data), np.asarray(wanted_shard.data))


def test_shards_are_saved_from_where_each_array_has_them(path: Path) -> None:
    """Arrays of one sharding and shape share its plan, for any objects of their shardings."""
    values = [np.arange(64, dtype=np.int32).reshape(8, 8) * (at + 1) for at in range(4)]
    placed = {
        **{f"own {at}": jax.device_put(value, on((4, 2), "a", "b")) for at, value in enumerate(values)},
        **{f"partly {at}": jax.device_put(value, on((2, 2, 2), "b")) for at, value in enumerate(values)},
        **{f"all {at}": jax.device_put(value, on((8,))) for at, value in enumerate(values)},
        "other order": jax.device_put(
            values[0], NamedSharding(Mesh(DEVICES[::-1].reshape(4, 2), ("a", "b")), P("a", "b"))
        ),
        "other dtype": jax.device_put(values[0].astype(ml_dtypes.bfloat16), on((4, 2), "a", "b")),
    }
    regrow.save(path, placed)
    loaded = regrow.load(path)
    for name, array in placed.items():
        np.testing.assert_array_equal(loaded[name], np.asarray(array))


def test_a_deleted_array_on_several_devices_is_named(path: Path) -> None:
    arrays = [jax.device_put(np.zeros((8, 8), np.float32), on((8,), "a")) for _ in range(3)]
    arrays[1].delete()
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"was deleted\n  leaf w/1"):
        regrow.save(path, {"w": arrays})
    assert not path.exists()
