"""What the tests share: where to write, the fixtures, and comparing pytrees exactly."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Eight devices, so that shardings mean something; must stand before JAX is imported for the first
# time.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import pytest

import regrow

REPOSITORY = Path(__file__).parents[2]
MYPY_CACHE = REPOSITORY / "python" / ".mypy_cache"
"""That of `make check`: with the same options mypy reads the package and NumPy from it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test saves."""
    return tmp_path / "step_100"


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes that know nothing of this one."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def fixtures() -> Path:
    """Checkpoints that other libraries have written."""
    return REPOSITORY / "fixtures"


@pytest.fixture
def legacy_flax_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flax' switch is off, in this process and in those that a test starts."""
    import flax

    monkeypatch.setenv("FLAX_USE_ORBAX_CHECKPOINTING", "false")
    with flax.config.temp_flip_flag("use_orbax_checkpointing", False):
        yield


def round_trip(path: Path, tree: Any, **options: Any) -> Any:
    """`tree`, saved and loaded without a template."""
    regrow.save(path, tree, **options)
    return regrow.load(path)


def same_bits(left: Any, right: Any) -> bool:
    """Whether two leaves are of the same type and the same to the bit (NaN payloads and signed
    zeros included).
    """
    left_array, right_array = np.asarray(left), np.asarray(right)
    return (
        left_array.dtype == right_array.dtype
        and left_array.shape == right_array.shape
        and left_array.tobytes() == right_array.tobytes()
    )


def assert_same(left: Any, right: Any, where: str = "") -> None:
    """Two pytrees are the same: container types, key types, order of keys, leaf types, bits."""
    if isinstance(left, regrow.reports.Leaf):
        left = left.read()
    assert type(left) is type(right), f"{where}: {type(left)} is not {type(right)}"
    if isinstance(left, dict):
        assert list(left) == list(right), f"{where}: keys or their order"
        assert [type(key) for key in left] == [type(key) for key in right], f"{where}: types of keys"
        for key in left:
            assert_same(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), f"{where}: length"
        for at, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_same(one, other, f"{where}/{at}")
    elif isinstance(left, (np.ndarray, np.generic)):
        assert same_bits(left, right), f"{where}: {left!r} is not {right!r}"
    else:
        assert left == right, f"{where}: {left!r} is not {right!r}"
