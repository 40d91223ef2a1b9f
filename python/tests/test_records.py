"""Records behave as the dataclasses that they stand for."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest

import regrow
from regrow.jobs import SingleReplica


def test_readers_of_dataclasses_see_the_fields() -> None:
    options = regrow.Options(wait=3, mmap=True)
    names = list(inspect.signature(regrow.Options).parameters)
    assert [field.name for field in dataclasses.fields(options)] == names
    changed = dataclasses.replace(options, wait=4)
    assert (changed.wait, changed.mmap, options.wait) == (4, True, 3)
    assert "wait=3, " in repr(options)


def test_equal_records_are_equal_also_after_a_copy() -> None:
    replica = SingleReplica("data", 1)
    for same in (SingleReplica(axis="data", replica=1), copy.copy(replica), pickle.loads(pickle.dumps(replica))):
        assert same == replica and hash(same) == hash(replica)
    assert SingleReplica("data", 2) != replica


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="no field budget"):
        regrow.Options(budget=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        regrow.Options(1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="the field axis twice"):
        SingleReplica("data", axis="data")  # type: ignore[misc]
    with pytest.raises(TypeError, match="needs the field data, impl"):
        regrow.PrngKey()  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="cannot be changed"):
        regrow.Options().wait = 5  # type: ignore[misc]
