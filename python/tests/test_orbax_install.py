"""`regrow.orbax` in the original's place, in a process that has no Orbax."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class NoOrbax:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("orbax", "tensorstore", "etils"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoOrbax())
import numpy as np
import regrow.orbax

regrow.orbax.install()
regrow.orbax.install()
import orbax
import orbax.checkpoint as ocp
import orbax.checkpoint.args
import regrow.orbax.checkpoint.path.step as step
from orbax.checkpoint import checkpoint_utils, type_handlers
from orbax.checkpoint.path import step as same_step

assert ocp is regrow.orbax is regrow.orbax.checkpoint is orbax.checkpoint
assert orbax.checkpoint.args is regrow.orbax.args and step is same_step is ocp.step
tree = {"a": np.arange(3), "b": 2.5}
manager = ocp.CheckpointManager(sys.argv[1] + "/m")
manager.save(0, args=ocp.args.Composite(state=ocp.args.StandardSave(tree), config=ocp.args.JsonSave({"x": 1})))
manager.close()
restored = ocp.CheckpointManager(sys.argv[1] + "/m").restore(0)
assert restored.state["a"].tolist() == [0, 1, 2] and restored.config == {"x": 1}
ocp.PyTreeCheckpointer().save(sys.argv[1] + "/x", tree)
assert ocp.PyTreeCheckpointer().restore(sys.argv[1] + "/x")["b"] == 2.5
try:
    from orbax.checkpoint import experimental
except NotImplementedError as error:
    assert "experimental" in str(error)
print("fine")
"""


def test_in_the_place_of_the_original(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "fine\n"
