"""Names of Orbax: each public one is there or says why not; private modules that programs reach
are there, too.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest
from interfaces import names_in

import regrow.orbax

SUB_MODULES = (
    "abstract_checkpoint_manager",
    "aggregate_handlers",
    "args",
    "arrays",
    "checkpoint_args",
    "checkpoint_manager",
    "checkpoint_managers",
    "checkpoint_utils",
    "checkpointers",
    "future",
    "handlers",
    "logging",
    "logging.step_statistics",
    "metadata",
    "metadata.tree",
    "metadata.value",
    "msgpack_utils",
    "multihost",
    "options",
    "path",
    "pathways",
    "serialization",
    "test_utils",
    "transform_utils",
    "tree",
    "type_handlers",
    "utils",
    "version",
)


@pytest.mark.parametrize("name", SUB_MODULES)
def test_public_names_are_there_or_say_why(name: str) -> None:
    theirs = importlib.import_module(f"orbax.checkpoint.{name}")
    ours = importlib.import_module(f"regrow.orbax.checkpoint.{name}")
    assert {each for each in names_in(theirs, "orbax") if not is_told(ours, each)} == set()


def is_told(module: ModuleType, name: str) -> bool:
    """Whether a module has a name, or raises for it with a hint."""
    try:
        getattr(module, name)
    except regrow.orbax.NotCoveredError as error:
        return name in str(error) and error.help is not None
    except AttributeError:
        return False
    return True


PROGRAM = """
import pydoc
import regrow.orbax
regrow.orbax.install()
from orbax.checkpoint._src.handlers import pytree_checkpoint_handler, standard_checkpoint_handler
from orbax.checkpoint._src.checkpoint_managers.preservation_policy import LatestN
import orbax.checkpoint._src.path.step as step
import orbax.checkpoint.metadata.value as value

ocp = regrow.orbax
for handler in (
    ocp.PyTreeCheckpointHandler, ocp.StandardCheckpointHandler, ocp.JsonCheckpointHandler, ocp.ArrayCheckpointHandler,
    ocp.JaxRandomKeyCheckpointHandler, ocp.NumpyRandomKeyCheckpointHandler, ocp.ProtoCheckpointHandler,
    ocp.BasePyTreeCheckpointHandler,
):
    assert pydoc.locate(handler.typestr()) is handler, handler
assert pytree_checkpoint_handler.RestoreArgs is ocp.RestoreArgs
assert pytree_checkpoint_handler.ArrayRestoreArgs is ocp.ArrayRestoreArgs
assert ocp.handlers.ArrayRestoreArgs is ocp.args.ArrayRestore
assert LatestN is ocp.checkpoint_managers.LatestN and step is ocp.path.step and value is ocp.metadata
try:
    import orbax.checkpoint._src.serialization.tensorstore_utils
except ModuleNotFoundError as error:
    assert "_src.serialization.tensorstore_utils" in str(error) and "help:" in str(error)
else:
    raise AssertionError
try:
    pytree_checkpoint_handler.nothing
except AttributeError as error:
    assert "pytree_checkpoint_handler.nothing" in str(error)
else:
    raise AssertionError
print("fine")
"""


def test_private_modules_that_programs_reach() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "fine\n"
