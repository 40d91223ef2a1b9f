"""Every drop-in in the original's place: programs that import the original run with this
package.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FLAX = """
import regrow.flax
regrow.flax.install()
regrow.flax.install()
import flax, flax.linen as nn, jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx, serialization, struct, traverse_util
from flax.training import checkpoints, train_state
import flax.training.checkpoints
assert serialization is flax.serialization is regrow.flax and regrow.flax.__spec__.name == "regrow.flax"
assert traverse_util is flax.traverse_util is regrow.flax.traverse_util
assert checkpoints is flax.training.checkpoints is regrow.flax.checkpoints

@struct.dataclass
class Extra:
    a: object

model = nn.Dense(3)
params = model.init(jax.random.key(0), jnp.ones((1, 2)))
state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))
tree = {"state": state, "extra": Extra(flax.core.freeze({"x": jnp.arange(3)}))}
back = serialization.from_bytes(jax.tree.map(jnp.zeros_like, tree), serialization.to_bytes(tree))
jax.tree.map(np.testing.assert_array_equal, back, tree)
checkpoints.save_checkpoint(sys.argv[1], tree, 1)
back = checkpoints.restore_checkpoint(sys.argv[1], jax.tree.map(jnp.zeros_like, tree))
jax.tree.map(np.testing.assert_array_equal, back, tree)
flat = traverse_util.flatten_dict({"a": {"b": 1, "c": {}}}, keep_empty_nodes=True)
assert traverse_util.unflatten_dict(flat) == {"a": {"b": 1, "c": {}}}
try:
    serialization.from_bytes({"a": np.ones(2)}, b"broken")
except ValueError as error:
    print("fine")
"""

IN_SYS_MODULES = """
import regrow.flax
sys.modules["flax.serialization"] = regrow.flax
import numpy as np
from flax import serialization, struct
assert serialization is regrow.flax

@struct.dataclass
class State:
    a: object

state = State(np.arange(3))
assert serialization.from_bytes(State(None), serialization.to_bytes(state)).a.tolist() == [0, 1, 2]
print("fine")
"""

EQUINOX = """
import regrow.equinox
regrow.equinox.install()
import equinox as eqx, jax, jax.numpy as jnp, numpy as np, regrow
assert eqx.tree_serialise_leaves is regrow.equinox.tree_serialise_leaves
model = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
eqx.tree_serialise_leaves(sys.argv[1] + "/x.eqx", model)
assert regrow.open(sys.argv[1] + "/x.eqx").layout == "equinox"
like = jax.tree.map(lambda x: x * 0 if eqx.is_array(x) else x, model)
back = eqx.tree_deserialise_leaves(sys.argv[1] + "/x.eqx", like)
assert eqx.tree_equal(back, model)
print("fine")
"""

SAFETENSORS = """
import regrow.safetensors
regrow.safetensors.install()
import safetensors, safetensors.numpy, numpy as np
from safetensors import safe_open
from safetensors.flax import load_file
import regrow.safetensors.flax
assert safetensors is regrow.safetensors and safetensors.numpy is regrow.safetensors.numpy
assert load_file is regrow.safetensors.flax.load_file
safetensors.numpy.save_file({"a": np.arange(3)}, sys.argv[1] + "/x.safetensors")
assert load_file(sys.argv[1] + "/x.safetensors")["a"].tolist() == [0, 1, 2]
with safe_open(sys.argv[1] + "/x.safetensors", "np") as file:
    assert file.get_tensor("a").tolist() == [0, 1, 2]
print("fine")
"""

PYTREE = """
import regrow.pytree
regrow.pytree.install()
import ml_model_transforms, numpy as np
assert ml_model_transforms is regrow.pytree
ml_model_transforms.model_save({"a": np.arange(3)}, sys.argv[1] + "/x")
assert ml_model_transforms.model_load(sys.argv[1] + "/x")["a"].tolist() == [0, 1, 2]
print("fine")
"""

TOO_LATE = """
import {original}, regrow.{ours}
try:
    regrow.{ours}.install()
except RuntimeError as error:
    assert "has been imported already" in str(error) and "regrow.{ours}.install()" in str(error), error
    print("fine")
"""

PROGRAMS = {
    "flax": FLAX,
    "flax, put there by hand": IN_SYS_MODULES,
    "equinox": EQUINOX,
    "safetensors": SAFETENSORS,
    "pytree": PYTREE,
    "flax, too late": TOO_LATE.format(original="flax", ours="flax"),
    "safetensors, too late": TOO_LATE.format(original="safetensors.numpy", ours="safetensors"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_import_the_original_run_with_the_drop_in(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys\n{PROGRAMS[name]}", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0 and ended.stdout.endswith("fine\n"), ended.stderr
