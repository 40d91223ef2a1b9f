"""What v1 finds at a path: the same as Orbax, or an error of the same type with the phrase that
callers match.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as theirs
import pytest
import safetensors.numpy

import regrow
import regrow.orbax as ours_v0
from regrow.orbax import v1 as ours

TREE = {"a": np.arange(8), "b": {"c": np.array([1, 2, 3])}}
CUSTOM = {"by": "me", "n": {"x": [1, 2]}}
PHRASES = (
    "Could not recognize the checkpoint at",
    "Failed to interpret path",
    "no named checkpointables",
    "Requested checkpointables",
    "Failed to load checkpointable",
    "Could not resolve a handler",
)


def one_pytree(v0: Any, path: Path) -> None:
    with v0.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, TREE, custom_metadata=CUSTOM)


def items(v0: Any, path: Path) -> None:
    with v0.Checkpointer(v0.CompositeCheckpointHandler()) as checkpointer:
        args = v0.args.Composite(state=v0.args.PyTreeSave(TREE), config=v0.args.JsonSave({"rate": 1}))
        checkpointer.save(path, args, custom_metadata=CUSTOM)


def step_of_v0(v0: Any, path: Path) -> None:
    with v0.CheckpointManager(path.parent) as manager:
        manager.save(1, args=v0.args.StandardSave(TREE), custom_metadata=CUSTOM)


def state(v1: Any, path: Path) -> None:
    v1.save(path, TREE, custom_metadata=CUSTOM)


def checkpointables(v1: Any, path: Path) -> None:
    registry = v1.handlers.local_registry()
    registry.add(v1.handlers.JsonHandler, checkpointable_name="config")
    context = v1.Context()
    context.checkpointables.registry = registry
    with context:
        v1.save_checkpointables(path, {"state": TREE, "config": {"rate": 1}}, custom_metadata=CUSTOM)


def step_of_v1(v1: Any, path: Path) -> None:
    with v1.training.Checkpointer(path.parent) as checkpointer:
        checkpointer.save(1, TREE, custom_metadata=CUSTOM)


WRITERS: dict[str, Callable[[Path], None]] = {
    f"{who}-{write.__name__}": (lambda path, write=write, module=module: write(module, path))
    for who, v0, v1 in (("orbax", ocp, theirs), ("regrow", ours_v0, ours))
    for write, module in (
        (one_pytree, v0), (items, v0), (step_of_v0, v0), (state, v1), (checkpointables, v1), (step_of_v1, v1),
    )
}  # fmt: skip

NAMES = ("AUTO", None, "state", "default", "other")
TARGET = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), TREE)
CALLS: dict[str, Callable[[Any, Path], Any]] = {
    **{f"load-{name}": lambda v1, path, name=name: v1.load(path, checkpointable_name=name) for name in NAMES},
    **{
        f"load-{name}-as": lambda v1, path, name=name: v1.load(path, TARGET, checkpointable_name=name)
        for name in ("AUTO", "state")
    },
    **{f"metadata-{name}": lambda v1, path, name=name: told(v1.metadata(path, name)) for name in NAMES},
    "all": lambda v1, path: v1.load_checkpointables(path),
    "all-named": lambda v1, path: v1.load_checkpointables(path, {"state": None}),
    "all-missing": lambda v1, path: v1.load_checkpointables(path, {"state": None, "other": None}),
    "all-metadata": lambda v1, path: told(v1.checkpointables_metadata(path)),
}


def told(metadata: Any) -> Any:
    """What metadata says, apart from the leaves."""
    names = sorted(metadata.metadata) if isinstance(metadata.metadata, dict) else metadata.metadata
    return names, metadata.custom_metadata, metadata.init_timestamp_nsecs, metadata.commit_timestamp_nsecs


def outcome(call: Callable[[Any, Path], Any], v1: Any, path: Path) -> tuple[str, Any]:
    """What a call gives; of an error its type, as callers catch it, and its phrase."""
    try:
        return "gives", jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), call(v1, path))
    except Exception as error:
        kinds = (v1.errors.InvalidLayoutError, KeyError, ValueError, FileNotFoundError)
        text = str(error)
        return next((kind.__name__ for kind in kinds if isinstance(error, kind)), type(error).__name__), {
            phrase for phrase in PHRASES if phrase in text
        }


@pytest.mark.parametrize("writer", WRITERS)
def test_a_checkpoint_with_files_missing_is_found_as_by_the_original(tmp_path: Path, writer: str) -> None:
    """Each form with each of the files that mark it missing, by each call and name."""
    WRITERS[writer](tmp_path / "1")
    marks = [file.relative_to(tmp_path) for mark in ("_METADATA", "_CHECKPOINT_METADATA", "orbax.checkpoint")
             for file in (tmp_path / "1").rglob(mark)]  # fmt: skip
    for count in range(len(marks) + 1 if writer.startswith("orbax") else 1):
        for missing in itertools.combinations(marks, count):
            shutil.copytree(tmp_path / "1", tmp_path / "copy" / "1")
            for file in missing:
                (tmp_path / "copy" / file).unlink()
            for at in (tmp_path / "copy" / "1", tmp_path / "copy" / "1" / "state", tmp_path / "copy"):
                for name, call in CALLS.items():
                    if not at.exists():
                        continue
                    found, expected = outcome(call, ours, at), outcome(call, theirs, at)
                    assert found[0] == expected[0], (name, at.name, missing, found, expected)
                    if found[0] == "gives":
                        assert found[1] == expected[1], (name, at.name, missing)
                    else:
                        assert found[1] >= expected[1], (name, at.name, missing)
            shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize("writer", [*WRITERS, "regrow", "regrow-items", "safetensors"])
def test_metadata_keeps_the_custom_metadata_of_all_forms(tmp_path: Path, writer: str) -> None:
    """By `metadata` and `checkpointables_metadata`: what the original gives, or what the files
    of another tool say.
    """
    path = tmp_path / "1"
    if writer == "safetensors":
        path = tmp_path / "1.safetensors"
        safetensors.numpy.save_file({"a": TREE["a"]}, path, metadata={"by": "me"})
    elif writer == "regrow":
        regrow.save(path, TREE, metadata=CUSTOM)
    elif writer == "regrow-items":
        regrow.save_items(path, {"state": TREE}, metadata=CUSTOM)
    else:
        WRITERS[writer](path)
    found = ours.metadata(path)
    assert found.custom_metadata == ({"by": "me"} if writer == "safetensors" else CUSTOM)
    assert found.commit_timestamp_nsecs is not None
    if found.metadata is not None and (path / "state").exists():
        assert ours.checkpointables_metadata(path).custom_metadata == CUSTOM


def test_a_context_of_safetensors_finds_safetensors_alone(tmp_path: Path) -> None:
    state(theirs, tmp_path / "orbax")
    safetensors.numpy.save_file({"a": TREE["a"]}, tmp_path / "1.safetensors")
    for v1 in (theirs, ours):
        context = v1.Context()
        context.checkpoint_layout = v1.options.CheckpointLayout.SAFETENSORS
        with context:
            assert v1.load(tmp_path / "1.safetensors")["a"].tolist() == TREE["a"].tolist()
            with pytest.raises(v1.errors.InvalidLayoutError):
                v1.metadata(tmp_path / "orbax")
            with pytest.raises(NotImplementedError):
                v1.checkpointables_metadata(tmp_path / "1.safetensors")


@pytest.mark.parametrize("v1", [theirs, ours], ids=["orbax", "regrow"])
def test_a_registry_without_a_handler_loads_nothing(tmp_path: Path, v1: Any) -> None:
    """Also of one pytree without a name, and of a checkpointable that no registered handler has
    saved.
    """
    one_pytree(ocp, tmp_path / "one")
    checkpointables(theirs, tmp_path / "two")
    context = v1.Context()
    context.checkpointables.registry = v1.handlers.local_registry(include_global_registry=False)
    with context:
        for path, name in (("one", None), ("two", "state")):
            with pytest.raises(KeyError, match=r"Could not resolve a handler for .* and no 'state' handler found in"):
                v1.load(tmp_path / path, checkpointable_name=name)
        context.checkpointables.registry.add(v1.handlers.PyTreeHandler, checkpointable_name="state")
        with pytest.raises(KeyError, match="Failed to load checkpointable: config due to incompatible handler"):
            v1.load_checkpointables(tmp_path / "two")
        assert v1.load(tmp_path / "two")["a"].tolist() == TREE["a"].tolist()


@pytest.mark.parametrize("v1", [theirs, ours], ids=["orbax", "regrow"])
def test_a_target_without_elements_says_a_dtype(tmp_path: Path, v1: Any) -> None:
    v1.save(tmp_path / "x", {"w": jax.numpy.arange(16)})
    loaded = v1.load(tmp_path / "x", {"w": np.array([], dtype=np.int64)})["w"]
    assert type(loaded) is np.ndarray and loaded.dtype == np.int64 and loaded.shape == (16,)


@pytest.mark.parametrize("v1", [theirs, ours], ids=["orbax", "regrow"])
def test_what_is_no_state_is_refused_with_the_phrase_of_the_original(tmp_path: Path, v1: Any) -> None:
    with pytest.raises(ValueError, match="checkpointable must not be None for saving"):
        v1.save(tmp_path / "x", None)
    with pytest.raises(
        ValueError, match=r"Unsupported leaf type for saving: `<class 'object'>`\. Supported leaf types"
    ):
        v1.save(tmp_path / "x", {"a": object()})


@pytest.mark.parametrize("v1", [theirs, ours], ids=["orbax", "regrow"])
def test_a_damaged_checkpoint_is_a_value_error(tmp_path: Path, v1: Any) -> None:
    state(theirs, tmp_path / "x")
    (tmp_path / "x" / "state" / "manifest.ocdbt").unlink()
    with pytest.raises(ValueError, match="manifest"):
        v1.load(tmp_path / "x")
