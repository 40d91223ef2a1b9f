"""Arrays of an accelerator, with a device of the CPU that plays one: the order of the transfers.

The tests in `tests_gpu` need a GPU, and measure the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import regrow
from regrow._jax._shardings import JaxArrays
from regrow._leaves import _columns
from regrow._load._regions import Reading

COUNT = 12
LEN_BYTES = 256 << 10
Events = list[tuple[str, Any]]


def state() -> dict[str, jax.Array]:
    rows = LEN_BYTES // 4
    return {f"w{at:02}": jnp.arange(rows, dtype=jnp.float32) + at for at in range(COUNT)}


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Events:
    """The transfers to the host: when each begins, and when a save waits for one."""
    events: Events = []
    array_type = type(jnp.zeros(1))
    begin, fetch = array_type.copy_to_host_async, _columns._from_jax

    def begun(array: Any) -> None:
        events.append(("begin", float(array._value[0])))
        begin(array)

    def fetched(array: Any, *how: Any) -> Any:
        kind, found = fetch(array, *how)
        events.append(("fetch", float(found[0])))
        return kind, found

    monkeypatch.setattr(array_type, "copy_to_host_async", begun)
    monkeypatch.setattr(_columns, "_from_jax", fetched)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # The memory of an accelerator is not shown to the host.
    monkeypatch.setattr(_columns, "_jax_hooks", lambda: None)
    return events


def test_all_transfers_to_the_host_begin_before_the_first_wait(tmp_path: Path, transfers: Events) -> None:
    regrow.save(tmp_path / "x", state())
    assert [event for event, _ in transfers] == ["begin"] * COUNT + ["fetch"] * COUNT
    assert [which for _, which in transfers[:COUNT]] == [float(at) for at in range(COUNT)]


def test_a_background_save_has_fetched_all_arrays_when_it_returns(tmp_path: Path, transfers: Events) -> None:
    handle = regrow.save_async(tmp_path / "x", state())
    assert [event for event, _ in transfers] == ["begin"] * COUNT + ["fetch"] * COUNT
    assert handle.result() is not None
    np.testing.assert_equal(regrow.load(tmp_path / "x"), {name: np.asarray(leaf) for name, leaf in state().items()})


def test_the_next_group_is_read_while_the_last_one_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = state()
    regrow.save(tmp_path / "x", saved)
    events: Events = []
    read, put, wait = Reading.read, JaxArrays._put, JaxArrays.wait

    def reading(self: Reading, places: Any) -> Any:
        events.append(("read", len(places)))
        return read(self, places)

    def putting(self: JaxArrays, group: Any, parts: Any, found: Any) -> Any:
        events.append(("put", len(group)))
        return put(self, group, parts, found)

    def waiting(self: JaxArrays, arrays: list[Any]) -> None:
        events.append(("wait", len(arrays)))
        wait(self, arrays)

    monkeypatch.setattr(Reading, "read", reading)
    monkeypatch.setattr(JaxArrays, "_put", putting)
    monkeypatch.setattr(JaxArrays, "wait", waiting)
    monkeypatch.setattr(JaxArrays, "_is_for_cpus", lambda _self, _place: False)
    # Two groups take half of the budget: three arrays are one group.
    budget = 4 * 3 * LEN_BYTES
    loaded = regrow.load(tmp_path / "x", like=saved, options=regrow.Options(budget_bytes=budget))
    rounds = COUNT // 3
    expected: Events = [("read", 3), ("wait", 0), ("put", 3)]
    expected += [("read", 3), ("wait", 3), ("put", 3)] * (rounds - 1)
    assert events == [*expected, ("wait", 3)]
    for name, leaf in saved.items():
        np.testing.assert_array_equal(np.asarray(loaded[name]), np.asarray(leaf))
