"""Proxies answer names that are not theirs: no question about what an object is may be taken in
by that.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as theirs
import pytest
from flax import nnx

import regrow
from regrow import orbax as ours
from regrow._jax import _shardings
from regrow._torch import _tensors
from regrow._tree import _handlers
from regrow.equinox import _likes, _records
from regrow.flax import _strict
from regrow.orbax import _leaf_args, _replicas, _saving, _targets, checkpoint_args, tree
from regrow.orbax.v1 import _pytrees

CPU = jax.sharding.SingleDeviceSharding(jax.devices()[0])


class AnswersAll:
    """Every name is an attribute."""

    def __getattr__(self, name: str) -> Any:
        return 1


class Answers:
    """The same, by the other hook."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name.startswith("__") else 1


class Forwards:
    """The attributes of another object."""

    def __init__(self, value: Any) -> None:
        self.held = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.held, name)


PROXIES = {
    "all": AnswersAll,
    "getattribute": Answers,
    "mock": Mock,
    "magic mock": MagicMock,
    "of restore args": lambda: Forwards(ours.ArrayRestoreArgs(sharding=CPU, dtype=np.float32)),
    "of their restore args": lambda: Forwards(theirs.ArrayRestoreArgs(sharding=CPU, dtype=np.float32)),
    "of save args": lambda: Forwards(ours.SaveArgs(dtype=np.float32)),
    "of an array": lambda: Forwards(jnp.ones(2)),
    "variable of an array": lambda: nnx.Param(jnp.ones(2)),
    "variable of restore args": lambda: nnx.Param(ours.ArrayRestoreArgs(sharding=CPU)),
    "variable of save args": lambda: nnx.Param(ours.SaveArgs(dtype=np.float32)),
    "state with such keys": lambda: nnx.State(
        dict.fromkeys(
            ("restore_type", "aggregate", "dtype", "shape", "sharding", "tree", "custom_metadata", "directory"), 1
        )
    ),
}


def is_taken(function: Any, *errors: type[BaseException]) -> Any:
    """Whether a function takes an object, and does not refuse it with one of these errors."""

    def ask(value: Any) -> bool:
        try:
            return function(value) is not None
        except errors:
            return False

    return ask


QUESTIONS = {
    "restore args": _leaf_args.is_restore_args,
    "save args": _leaf_args.is_save_args,
    "restore args of a replica": lambda value: _replicas.is_a(value, "SingleReplicaArrayRestoreArgs"),
    "arguments of a handler": checkpoint_args.is_args,
    "the items of arguments": is_taken(_saving._items, ValueError),
    "an array of one replica": lambda value: _replicas._is_common(regrow.jobs.SingleReplica(0, 0), value),
    "an array to describe": is_taken(tree.to_shape_dtype_struct, ValueError),
    "a key of a key path": is_taken(tree.get_key_name, ValueError),
    "where a leaf is to go": lambda value: _targets._sharding(value) is not None,
    "a leaf of a target of v1": is_taken(lambda value: _pytrees.restore_args(value, True), TypeError),
    "a leaf of v1 that stands for an array": lambda value: _pytrees._as_array(value) is not value,
    "an array of Flax": lambda value: _strict._described(value) is not None,
    "an array of JAX": _handlers._is_jax_array,
    "where a template has it": lambda value: _shardings.sharding_of(value) is not None,
    "a sharding": is_taken(
        lambda value: _shardings.shardings_by_leaf({"a": value}, ["a"]), regrow.errors.InvalidArgumentError
    ),
    "a tensor": _tensors.is_tensor,
    "a number of Equinox": lambda value: _likes.kind_of(value, _records.Options()) is not _likes.Kind.SKIP,
}


TRUE_OF_VARIABLES = {
    ("variable of an array", "a leaf of v1 that stands for an array"),
    *((f"variable of {what}", "a number of Equinox") for what in ("an array", "restore args", "save args")),
}
"""The class has `shape` and `__jax_array__` itself."""


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("proxy", PROXIES)
def test_no_answer_of_a_proxy_makes_it_something(proxy: str, question: str) -> None:
    assert bool(QUESTIONS[question](PROXIES[proxy]())) is ((proxy, question) in TRUE_OF_VARIABLES)


REAL = {
    "restore args": theirs.type_handlers.SingleReplicaArrayRestoreArgs(sharding=CPU),
    "save args": theirs.SaveArgs(),
    "restore args of a replica": theirs.type_handlers.SingleReplicaArrayRestoreArgs(sharding=CPU),
    "arguments of a handler": theirs.args.StandardSave(1),
    "the items of arguments": theirs.args.Composite(a=theirs.args.StandardSave(1)),
    "an array to describe": jnp.ones(2),
    "a key of a key path": jax.tree_util.DictKey("a"),
    "where a leaf is to go": jnp.ones(2),
    "a leaf of a target of v1": jnp.ones(2),
    "an array of Flax": jnp.ones(2),
    "an array of JAX": jnp.ones(2),
    "where a template has it": jax.device_put(jnp.ones(2), CPU),
    "a sharding": CPU,
    "a number of Equinox": 1,
}


@pytest.mark.parametrize("question", REAL)
def test_the_questions_know_the_real_ones(question: str) -> None:
    assert QUESTIONS[question](REAL[question])


MODULES = {"client", "equinox", "graph", "jax", "ml_dtypes", "module", "os", "torch"}
CLASSES = {"cls", "kind", "found", "t"}
BEHAVIOUR = {"handler", "checkpointer"}
"""What is called, and is not asked what it is: a wrapper may forward."""


def test_only_modules_classes_and_callees_are_asked_by_hasattr() -> None:
    package = Path(regrow.__file__).parent
    asked = []
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr":
                asked.append((ast.unparse(node.args[0]), f"{file.relative_to(package)}:{node.lineno}"))
    is_tuple = [at for name, at in asked if name in ("x", "node", "value", "target")]
    others = [(name, at) for name, at in asked if name not in MODULES | CLASSES | BEHAVIOUR]
    others = [(name, at) for name, at in others if not name.startswith("type(") and at not in is_tuple]
    assert others == []


# ---- restores and saves ---------------------------------------------------------------


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(4, 2, rngs=rngs)
        self.count = nnx.BatchStat(jnp.zeros((), jnp.int32))


HANDLERS = {
    "PyTree": (ours.PyTreeCheckpointHandler, ours.args.PyTreeSave, ours.args.PyTreeRestore),
    "BasePyTree": (
        ours.handlers.BasePyTreeCheckpointHandler,
        ours.handlers.BasePyTreeSaveArgs,
        ours.handlers.BasePyTreeRestoreArgs,
    ),
}
CLASSES_OF_ARGS = {"ours": ours, "theirs": theirs}


@pytest.mark.parametrize("whose", CLASSES_OF_ARGS)
@pytest.mark.parametrize("kind", HANDLERS)
def test_args_of_an_nnx_state_count(kind: str, whose: str, tmp_path: Path) -> None:
    handler, save, restore = HANDLERS[kind]
    args, state = CLASSES_OF_ARGS[whose], nnx.state(Model(nnx.Rngs(0)))
    half = np.dtype(ml_dtypes.bfloat16)

    def save_args(leaf: Any) -> Any:
        return args.SaveArgs(dtype=half if leaf.ndim else None)

    with ours.Checkpointer(handler()) as checkpointer:
        checkpointer.save(tmp_path / "half", args=save(state, save_args=jax.tree.map(save_args, state)))
        stored = regrow.load(tmp_path / "half")
        assert stored["linear"]["kernel"]["value"].dtype == half
        checkpointer.save(tmp_path / "whole", args=save(state))

        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
        spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

        def restored(**wanted: Any) -> Any:
            asked = jax.tree.map(lambda leaf: args.ArrayRestoreArgs(**(wanted if leaf.ndim == 2 else {})), state)
            return checkpointer.restore(tmp_path / "whole", args=restore(state, restore_args=asked))

        assert restored(dtype=half)["linear"]["kernel"].get_value().dtype == half
        assert restored(sharding=spread)["linear"]["kernel"].get_value().sharding == spread
        with pytest.raises(ValueError, match="not compatible"):
            restored(global_shape=(4, 3))
        assert restored(global_shape=(4, 3), strict=False)["linear"]["kernel"].get_value().shape == (4, 3)


def test_args_that_belong_to_no_leaf_are_errors(tmp_path: Path) -> None:
    item, path = {"a": np.ones(2, np.float32)}, tmp_path / "x"
    with ours.Checkpointer(ours.PyTreeCheckpointHandler()) as checkpointer:
        wanted = {"a": {"value": ours.SaveArgs(dtype=np.float16)}}
        with pytest.raises(ValueError, match=r"save_args name missing leaves:\s+a/value"):
            checkpointer.save(path, args=ours.args.PyTreeSave(item, save_args=wanted))
        checkpointer.save(path, args=ours.args.PyTreeSave(item))
        for target in (item, None):
            for asked in ({"a": {"value": ours.RestoreArgs()}}, {"a": ours.RestoreArgs(), "b": ours.RestoreArgs()}):
                with pytest.raises(ValueError, match="restore_args name missing leaves"):
                    checkpointer.restore(path, args=ours.args.PyTreeRestore(target, restore_args=asked))
