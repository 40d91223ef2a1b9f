"""All names of safetensors, and its lowest level: tensors by the address of their memory."""

from __future__ import annotations

import ctypes
import importlib
import io
import os
import pkgutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.flax
import safetensors.numpy
from conftest import REPOSITORY, same_bits
from safetensors_exceptions import EXCEPTIONS, MODULES

import regrow
import regrow.safetensors as ours
import regrow.safetensors.flax
import regrow.safetensors.numpy
from regrow import _errors
from regrow.safetensors._errors import as_safetensor_errors

RAISED_AS_THEY_ARE = {
    "RegrowError", "LeafNotFoundError", "NotACheckpointError", "LeafTypeError", "MismatchError", "AlreadyExistsError",
    "BusyError", "ReplacedError", "CancelledError", "SourceChangedError", "TimedOutError", "InternalError",
    "UntrustedError", "UnknownKeywordError",
}  # fmt: skip
"""Errors that safetensors has none for: it raises built-ins there, or never does what they tell
of.
"""

GUIDE = REPOSITORY / "docs" / "guide" / "safetensors.md"


def test_every_module_of_the_original_is_here() -> None:
    theirs = {f"safetensors.{module.name}" for module in pkgutil.iter_modules(safetensors.__path__)}
    here = {f"safetensors.{module.name}" for module in pkgutil.iter_modules(ours.__path__)}
    assert theirs - here == set(MODULES)


def test_every_error_of_a_save_is_one_of_safetensors_or_told_here() -> None:
    found = {name: cls for name, cls in vars(_errors).items() if isinstance(cls, type)}
    classes = {name: cls for name, cls in found.items() if issubclass(cls, regrow.RegrowError)}
    raised_as_they_are = set()
    for name, cls in classes.items():
        with pytest.raises(regrow.RegrowError) as caught, as_safetensor_errors(writing=True):
            raise cls("what", file="x", help="do")
        if not isinstance(caught.value, ours.SafetensorError):
            raised_as_they_are.add(name)
            continue
        # It is still what `except regrow.errors.StorageFullError` and `except OSError` catch.
        assert not issubclass(cls, OSError) or isinstance(caught.value, cls)
        assert (caught.value.kind, caught.value.file, caught.value.help) == (cls.kind, "x", "do")
    assert raised_as_they_are == RAISED_AS_THEY_ARE


def test_the_guide_has_every_exception() -> None:
    text = GUIDE.read_text()
    # The guide gives one of the second names of torch's dtypes, and their number.
    assert "`torch._float8_e4m3fn`" in text and "five" in text and len(EXCEPTIONS) == 6
    missing = [name for name in MODULES if name.removeprefix("safetensors.").removesuffix("_rust") not in text]
    assert missing == []


def specs(module: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    return {
        name: module.TensorSpec(
            dtype=array.dtype.name, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, array in arrays.items()
    }


def test_tensors_by_their_addresses(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    names = ["bool", "int8", "uint16", "int64", "float16", "float32", "complex64", "bfloat16", "float8_e4m3fn"]
    arrays = {}
    for name in [*names, "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu"]:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        raw = rng.integers(0, 2 if name == "bool" else 256, 6 * dtype.itemsize, dtype=np.uint8)
        arrays[name] = raw.view(dtype).reshape(2, 3)
    arrays |= {"empty": np.zeros((0, 4), np.float32), "scalar": np.array(3.5)}
    expected = safetensors.serialize(specs(safetensors, arrays), {"a": "b"})
    assert ours.serialize(specs(ours, arrays), {"a": "b"}) == expected
    ours.serialize_file(specs(ours, arrays), tmp_path / "x.safetensors", {"a": "b"})
    assert (tmp_path / "x.safetensors").read_bytes() == expected
    pairs = rng.integers(0, 256, (3, 2), dtype=np.uint8)
    fields = {"dtype": "float4_e2m1fn_x2", "shape": pairs.shape, "data_ptr": pairs.ctypes.data, "data_len": 6}
    assert ours.serialize({"x": ours.TensorSpec(**fields)}) == safetensors.serialize(
        {"x": safetensors.TensorSpec(**fields)}
    )
    for module in (ours, safetensors):
        spec = module.TensorSpec(**fields)
        assert (spec.dtype, spec.shape, spec.data_ptr, spec.data_len) == ("F4", [3, 4], pairs.ctypes.data, 6)
        with pytest.raises(AttributeError):
            spec.shape = [1]


@pytest.mark.parametrize("module", [ours, safetensors])
def test_descriptions_that_make_no_sense_are_refused(module: Any) -> None:
    memory = ctypes.create_string_buffer(16)
    fields = {"dtype": "float32", "shape": [4], "data_ptr": ctypes.addressof(memory), "data_len": 16}
    assert len(module.serialize({"x": module.TensorSpec(**fields)})) % 8 == 0
    for change in ({"data_len": 12}, {"shape": [2, 4]}, {"dtype": "float64"}, {"shape": [5]}):
        with pytest.raises(module.SafetensorError, match="invalid shape, data type, or offset for tensor"):
            module.serialize({"x": module.TensorSpec(**{**fields, **change})})
    with pytest.raises(module.SafetensorError, match=r'Unknown dtype "nonsense"\. Supported dtypes: bool'):
        module.TensorSpec(**{**fields, "dtype": "nonsense"})
    for change in ({"shape": [-1]}, {"data_ptr": -1}, {"data_len": -1}):
        with pytest.raises(OverflowError):
            module.TensorSpec(**{**fields, **change})
    with pytest.raises(TypeError):
        module.TensorSpec("float32", [4], 1, 16)
    for wrong in ({"x": fields}, [("x", module.TensorSpec(**fields))], {1: module.TensorSpec(**fields)}):
        with pytest.raises(TypeError):
            module.serialize(wrong)


def test_no_memory_where_there_should_be_some_is_an_error() -> None:
    """Here the original reads address 0, and dies."""
    spec = ours.TensorSpec(dtype="float32", shape=[4], data_ptr=0, data_len=16)
    with pytest.raises(ours.SafetensorError, match="at address 0"):
        ours.serialize({"x": spec})


@pytest.mark.parametrize("module", [ours, safetensors])
def test_a_file_that_is_open_already(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"a": np.arange(3)}, path)
    for mode in ("r", "rb"):
        with open(path, mode) as file, module._safe_open_handle(file, framework="np", device="cpu") as opened:
            assert opened.keys() == opened.offset_keys() == ["a"] and opened.metadata() is None
            assert opened.get_tensor("a").tolist() == opened.get_slice("a")[:].tolist() == [0, 1, 2]
            assert opened.get_tensors()["a"].tolist() == [0, 1, 2]
    for wrong in (io.BytesIO(b""), str(path)):
        with pytest.raises(AttributeError):
            module._safe_open_handle(wrong, framework="np")
    with open(os.open(path, os.O_RDONLY)) as unnamed, pytest.raises(TypeError):
        module._safe_open_handle(unnamed, framework="np")


@pytest.mark.parametrize("package", ["safetensors", "regrow.safetensors"])
def test_the_private_helpers_for_arrays(package: str) -> None:
    module = importlib.import_module(f"{package}.numpy")
    raw = safetensors.numpy.save({"x": np.arange(6, dtype=np.int16).reshape(2, 3), "e": np.zeros((0, 2), bool)})
    arrays = module._view2np(module.deserialize(raw))
    assert same_bits(arrays["x"], np.arange(6, dtype=np.int16).reshape(2, 3)) and arrays["x"].flags.writeable
    assert arrays["e"].shape == (0, 2) and arrays["e"].dtype == bool
    assert [np.dtype(module._getdtype(tag)).name for tag in ("F32", "BOOL", "C64")] == ["float32", "bool", "complex64"]
    with pytest.raises(KeyError):
        module._getdtype("nope")
    dtypes = (">f4", "<f4", "=f4", "u1", bool)
    assert [module._is_little_endian(np.zeros(1, dtype)) for dtype in dtypes] == [False, True, True, True, True]
    alive: list[Any] = []
    flat = module._flatten({"big": np.arange(3, dtype=">i4"), "x": arrays["x"]}, alive)
    assert (flat["big"].dtype, flat["big"].shape, flat["x"].data_ptr) == ("I32", [3], arrays["x"].ctypes.data)
    assert module.load(module.serialize(flat))["big"].tolist() == [0, 1, 2] and len(alive) == 1
    jax = importlib.import_module(f"{package}.flax")
    converted = jax._np2jnp(dict(arrays))
    assert isinstance(converted["x"], jax.Array)
    assert same_bits(jax._jnp2np(converted)["x"], arrays["x"])


def test_what_cannot_be_written_is_their_error_and_the_system_s(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("kept")
    with pytest.raises(ours.SafetensorError) as caught:
        ours.numpy.save_file({"a": np.zeros(1)}, tmp_path / "folder")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.numpy.save_file({"a": np.zeros(1)}, tmp_path / "folder")
    assert isinstance(caught.value, regrow.RegrowError) and caught.value.file
    with pytest.raises(ours.SafetensorError) as caught:
        ours.numpy.save_file({"a": np.zeros(1)}, "/proc/nope.safetensors")
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("module", [ours, safetensors])
def test_a_missing_file_is_said_in_the_same_words(module: Any, tmp_path: Path) -> None:
    for name in ("notafile", str(tmp_path / "nope")):
        with pytest.raises(FileNotFoundError) as caught:
            module.safe_open(name, framework="np")
        assert str(caught.value) == f"No such file or directory: {name}"
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"a": np.arange(3)}, path)
    with module.safe_open(path, "np", None) as opened:
        assert opened.get_tensor("a").tolist() == [0, 1, 2]
    with pytest.raises(TypeError):
        module.safe_open(path, 3)
