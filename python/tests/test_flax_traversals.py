"""The traversals of `regrow.flax.traverse_util` beside those of Flax: same selections, same
copies, same errors.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.traverse_util as theirs
import numpy as np
import pytest
from flax.core import FrozenDict
from hypothesis import given
from hypothesis import strategies as st

from regrow.flax import traverse_util as ours

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Pair(NamedTuple):
    """A named tuple."""

    left: Any
    right: Any


@dataclasses.dataclass
class Record:
    """A dataclass."""

    left: Any
    right: Any


class Thing:
    """An object with attributes."""

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right

    def __repr__(self) -> str:
        return f"Thing({self.left!r}, {self.right!r})"


LEAVES = st.integers(-5, 5)
DATA = st.recursive(
    LEAVES,
    lambda child: st.one_of(
        st.lists(child, max_size=3),
        st.lists(child, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["left", "right", "z"]), child, max_size=3),
        *(st.builds(cls, child, child) for cls in (Pair, Record, Thing)),
    ),
    max_leaves=8,
)
STEPS = st.lists(
    st.one_of(
        st.sampled_from([("each",), ("tree",), ("filter",), ("merge",)]),
        st.tuples(st.just("attr"), st.sampled_from(["left", "right", "missing"])),
        st.tuples(st.just("item"), st.sampled_from([0, 1, -1, 5, slice(0, 2), "left", "right"])),
    ),
    max_size=4,
)


def is_kept(value: Any) -> bool:
    """A predicate."""
    return value != 0


def changed(value: Any) -> Any:
    """What an update makes of a part."""
    return ("changed", value)


def build(module: Any, steps: list[tuple[Any, ...]]) -> Any:
    """A traversal of these steps."""
    traversal = module.t_identity
    for name, *argument in steps:
        if name == "attr":
            traversal = getattr(traversal, argument[0])
        elif name == "item":
            traversal = traversal[argument[0]]
        elif name == "filter":
            traversal = traversal.filter(is_kept)
        elif name == "merge":
            traversal = traversal.merge(module.TraverseItem(0), module.TraverseId(), module.TraverseAttr("left"))
        else:
            traversal = getattr(traversal, name)()
    return traversal


def outcome(action: Any) -> str:
    """What comes out, or the error's type."""
    try:
        return repr(action())
    except Exception as error:
        return f"raises {type(error).__name__}"


@given(DATA, STEPS)
def test_traversals_do_what_those_of_flax_do(data: Any, steps: list[tuple[Any, ...]]) -> None:
    before = repr(data)
    mine, original = build(ours, steps), build(theirs, steps)
    assert outcome(lambda: list(mine.iterate(data))) == outcome(lambda: list(original.iterate(data)))
    assert outcome(lambda: mine.update(changed, data)) == outcome(lambda: original.update(changed, data))
    for count in (0, 1, 2):
        mine_set, original_set = (
            outcome(lambda t=traversal, n=count: t.set(list(range(n)), data)) for traversal in (mine, original)
        )
        assert mine_set == original_set
    assert repr(data) == before


@pytest.mark.parametrize("frozen", [False, True])
def test_parameters_are_selected_by_path(frozen: bool) -> None:
    params: Any = {"b": {"kernel": 1, "bias": 2}, "a": {"kernel": 3, "empty": {}}}
    params = FrozenDict(params) if frozen else params
    for select in (lambda path, _: path.endswith("kernel"), lambda _, value: value > 1, lambda *_: False):
        mine, original = (module.ModelParamTraversal(select) for module in (ours, theirs))
        assert list(mine.iterate(params)) == list(original.iterate(params))
        updated, expected = (traversal.update(lambda x: -x, params) for traversal in (mine, original))
        assert updated == expected and type(updated) is type(expected)
    with pytest.raises(ValueError, match="Can only traverse"):
        list(ours.ModelParamTraversal(lambda *_: True).iterate([1]))


def test_making_one_warns_as_flax_does() -> None:
    for module in (theirs, ours):
        with pytest.warns(DeprecationWarning, match=r"flax\.traverse_util\.Traversal"):
            module.TraverseId()
        with pytest.raises(TypeError, match="abstract"):
            module.Traversal()


def test_a_pytree_is_walked_as_jax_walks() -> None:
    tree = {"b": np.ones(2), "a": [1, None, (2,)]}
    assert list(ours.t_identity.tree().iterate(tree))[:2] == [1, 2]
