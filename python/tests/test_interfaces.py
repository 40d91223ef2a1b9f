"""Drop-ins have the originals' interface: each callable, class, method, property, default and
subscript is compared.

TRAK needs PyTorch: ``tests_torch/test_traker.py`` compares `regrow.trak` with it.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
from interfaces import differences, names_in

from regrow.orbax import NotCoveredError

V0 = "abstract_checkpoint_manager args arrays checkpoint_args checkpoint_manager checkpoint_managers checkpoint_utils"
V0 += " checkpointers future handlers logging logging.step_statistics metadata metadata.tree metadata.value"
V0 += " msgpack_utils multihost options path test_utils transform_utils tree type_handlers utils version"
V1 = "arrays errors handlers multihost options partial path path.step training tree"
MODULES = {
    "orbax": ("orbax.checkpoint", "regrow.orbax"),
    **{f"orbax.{name}": (f"orbax.checkpoint.{name}", f"regrow.orbax.checkpoint.{name}") for name in V0.split()},
    **{
        f"orbax.{name}": (f"orbax.checkpoint._src.{name}", f"regrow.orbax.checkpoint.{name}")
        for name in ("path.step", "path.atomicity", "path.format_utils")
    },
    "orbax.v1": ("orbax.checkpoint.experimental.v1", "regrow.orbax.v1"),
    **{
        f"orbax.v1.{name}": (f"orbax.checkpoint.experimental.v1.{name}", f"regrow.orbax.v1.{name}")
        for name in V1.split()
    },
    "flax.serialization": ("flax.serialization", "regrow.flax"),
    "flax.traverse_util": ("flax.traverse_util", "regrow.flax.traverse_util"),
    "flax.training.checkpoints": ("flax.training.checkpoints", "regrow.flax.checkpoints"),
    "equinox": ("equinox._serialisation", "regrow.equinox"),
    "safetensors": ("safetensors", "regrow.safetensors"),
    "safetensors.numpy": ("safetensors.numpy", "regrow.safetensors.numpy"),
    "safetensors.flax": ("safetensors.flax", "regrow.safetensors.flax"),
}

OPTIONS = "array async checkpointables deletion file memory multiprocessing pathways pytree safetensors"
KNOWN: dict[str, str] = {
    "CheckpointHandlerRegistry.add(**kwargs)": "no keyword of it is known",
    "ProtoCheckpointHandler.save(*args)": "a wrapper of `save(directory, item)`",
    "ProtoCheckpointHandler.save(**kwargs)": "a wrapper of `save(directory, item)`",
    "ProtoCheckpointHandler.save(directory): is wanted": "a wrapper of `save(directory, item)`",
    **{f"Context.{name}_options": "an attribute of each object" for name in OPTIONS.split()},
    "load_async(checkpointable_name='AUTO'): 'state'": "as `load`: it finds the name that was saved",
    "PathParts: missing": "an annotation",
    "VariableDict: missing": "an annotation",
    "config: missing": "Flax' configuration, which it imports",
    "SupportsReadSeek: missing": "an annotation",
    "SupportsWrite: missing": "an annotation",
    "is_array_like: missing": "of another module of Equinox",
}
"""What differs, and why that is so."""


def told(theirs: ModuleType, ours: ModuleType, package: str) -> set[str]:
    found: set[str] = set()
    for name in names_in(theirs, package):
        original: Any = getattr(theirs, name)
        if isinstance(original, ModuleType):
            continue
        try:
            own = getattr(ours, name)
        except NotCoveredError:
            continue
        except AttributeError:
            found.add(f"{name}: missing")
            continue
        found |= set(differences(name, original, own))
    return found


@pytest.mark.parametrize("name", MODULES)
def test_what_the_original_takes_is_taken(name: str) -> None:
    theirs, ours = map(importlib.import_module, MODULES[name])
    assert told(theirs, ours, name.split(".")[0]) - KNOWN.keys() == set()


def test_every_known_difference_is_one() -> None:
    found = set()
    for name, modules in MODULES.items():
        found |= told(*map(importlib.import_module, modules), name.split(".")[0])
    assert KNOWN.keys() - found == set()


class Base:
    def save(self, directory: str, item: int = 3) -> None: ...
    @property
    def handler(self) -> int:
        return 1


class Lacking:
    def save(self, directory: str, other: int, item: int = 4) -> None: ...


def test_the_comparison_sees_what_is_lacking() -> None:
    assert set(differences("X", Base, Lacking)) == {
        "X.handler",
        "X.save(item=4): 3",
        "X.save(item): not at position 2",
        "X.save(other): is wanted",
    }
