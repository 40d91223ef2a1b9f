"""A plugin of pytest: the tests of v1 within Orbax, with `regrow.orbax` in the place of what they
test.

The original is imported first, writes the checkpoints that some tests read, and is taken out of
`sys.modules`. What a test imports is of three kinds then: public modules, and private ones that
have a place here, come from `regrow.orbax`; tests and their helpers are run again from the
original's source; all other private modules are the original's.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from lent import lend

ORIGINAL = os.environ.get("ORBAX_V1_SUITE_ORIGINAL") == "1"
CHECKOUT = os.environ.get("ORBAX_V1_SUITE_CHECKOUT")
"""Where the original is a checkout of the repository, which has checkpoints beside its tests."""
V1 = "orbax.checkpoint.experimental.v1._src"
STORED = Path(tempfile.mkdtemp(prefix="orbax-v1-suite-"))
"""Checkpoints that the original has written."""


def is_helper(name: str) -> bool:
    """Whether a module is a test or a helper of tests."""
    return (
        name == "orbax.checkpoint.test_utils"
        or name.startswith(f"{V1}.testing.")
        or name.endswith(("_test_base", "_test"))
    )


class Originals(importlib.abc.MetaPathFinder):
    """Helpers of tests from their source, and the original's other private modules as they are."""

    def __init__(self, root: Path, original: dict[str, ModuleType]) -> None:
        self.root = root
        self.original = original

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        source = self.root.joinpath(*name.split(".")[2:])
        if is_helper(name) and source.with_suffix(".py").exists():
            return importlib.util.spec_from_file_location(name, source.with_suffix(".py"))
        if name in self.original and "._src" in name:
            return importlib.util.spec_from_loader(name, _AsItIs(self.original[name]))
        if name.startswith(f"{V1}.testing") and source.is_dir():
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        return None


class _AsItIs(importlib.abc.Loader):
    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def create_module(self, spec: Any) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        pass


def write_checkpoints() -> None:
    """The checkpoints of the tests of compatibility, by the original."""
    import jax.numpy as jnp
    from orbax import checkpoint as v0
    from orbax.checkpoint import v1

    state = {"a": jnp.arange(8, dtype=jnp.int32), "b": {"c": jnp.array([1, 2, 3], dtype=jnp.int32)}}
    told = {"metadata": "json_data"}
    below = Path("composite_checkpoint/checkpoint_metadata_present/pytree_checkpointable_has_metadata")
    with v0.Checkpointer(v0.CompositeCheckpointHandler()) as checkpointer:
        args = v0.args.Composite(state=v0.args.PyTreeSave(state), metadata=v0.args.JsonSave(told))
        checkpointer.save(STORED / "v0_checkpoints" / below, args, custom_metadata={"custom": "meta"})
    registry = v1.handlers.local_registry()
    registry.add(v1.handlers.JsonHandler, checkpointable_name="metadata")
    context = v1.Context()
    context.checkpointables.registry = registry
    with context:
        v1.save_checkpointables(
            STORED / "v1_checkpoints" / below,
            {"state": state, "metadata": told},
            custom_metadata={"custom": "meta"},
        )


def put_in_place() -> None:
    """Puts `regrow.orbax` in the original's place, and makes the helpers known."""
    import orbax.checkpoint

    root = Path(orbax.checkpoint.__file__).parent
    if not CHECKOUT:
        write_checkpoints()
    for file in sorted(root.rglob("_src/**/*.py")):
        name = ".".join(("orbax", "checkpoint", *file.relative_to(root).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        if not is_helper(name) and "testing" not in name and "pathways" not in name and "emergency" not in name:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    original = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "orbax"}
    if not ORIGINAL:
        for name in original:
            del sys.modules[name]
        import regrow.orbax

        regrow.orbax.install()
        lend(original)
        lend_rest(original)
        manager = sys.modules["orbax.checkpoint.checkpoint_manager"]
        # Private functions that tests replace by nothing: they would write into folders that are
        # read only there.
        for home, name in (
            (manager, "_create_root_directory"),
            (manager.CheckpointManager, "_maybe_save_root_metadata"),
        ):
            setattr(home, name, lambda *_, **__: None)
    sys.modules.pop("orbax.checkpoint.test_utils")
    sys.meta_path.insert(0, Originals(root, original))
    sys.modules["orbax.checkpoint"].test_utils = importlib.import_module("orbax.checkpoint.test_utils")


def lend_rest(original: Mapping[str, ModuleType]) -> None:
    """Puts names of the original's private modules that have no place here where tests and their
    helpers look.
    """
    for name, module in original.items():
        ours = sys.modules.get(name)
        if ours is None or "._src." not in name:
            continue
        for attribute, value in vars(module).items():
            if attribute.startswith("__"):
                continue
            try:
                getattr(ours, attribute)
            except (AttributeError, NotImplementedError):
                setattr(ours, attribute, value)


def pytest_configure(config: Any) -> None:
    """Before any test is imported."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    if any("multiprocess_test" in Path(file).read_text() for file in config.args):
        join_a_job_of_one()
    put_in_place()
    if CHECKOUT:
        return
    helpers = importlib.import_module(f"{V1}.testing.compatibility.test_utils")
    helpers._BASE_DIR = str(STORED)


def join_a_job_of_one() -> None:
    """Starts JAX' distributed service, which tests of several processes ask for."""
    import jax
    import portpicker

    jax.distributed.initialize(f"localhost:{portpicker.pick_unused_port()}", num_processes=1, process_id=0)


_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Notes what became of a test: the worst of its phases."""
    name = report.nodeid.partition("::")[2]
    if report.failed:
        _outcomes[name] = "failed"
    elif report.skipped:
        _outcomes.setdefault(name, "skipped")
    elif report.when == "call":
        _outcomes.setdefault(name, "passed")


def pytest_collectreport(report: Any) -> None:
    """Notes files that cannot be imported."""
    if report.failed:
        _outcomes["cannot be imported"] = "failed"


def pytest_sessionfinish(session: Any) -> None:
    """Leaves the outcomes for the runner."""
    shutil.rmtree(STORED, ignore_errors=True)
    Path(os.environ["ORBAX_V1_SUITE_OUTCOMES"]).write_text(json.dumps(_outcomes, indent=1, sort_keys=True))
