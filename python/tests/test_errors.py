"""Errors: a class a kind, the built-in that programs catch already, and what the message says."""

from __future__ import annotations

import inspect
import operator
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import regrow

TREE = {"params": {"w": np.arange(1_000_000, dtype=np.float32), "b": np.ones(3)}, "step": 7}


@pytest.fixture
def saved(path: Path) -> Path:
    regrow.save(path, TREE)
    return path


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        regrow.load(tmp_path / "nowhere")
    assert isinstance(caught.value, regrow.errors.NotFoundError)
    assert caught.value.kind == "not_found"
    assert caught.value.file is not None
    assert "nowhere" in caught.value.file


def test_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(regrow.errors.NotACheckpointError, match=r"notes\.txt") as caught:
        regrow.open(tmp_path)
    assert caught.value.help


def test_already_there(saved: Path) -> None:
    with pytest.raises(FileExistsError) as caught:
        regrow.save(saved, {"other": 1})
    assert caught.value.kind == "already_exists"
    assert regrow.load(saved)["step"] == 7
    regrow.save(saved, {"other": 1}, overwrite=True)
    assert regrow.load(saved) == {"other": 1}


def test_a_flipped_bit_is_named(saved: Path) -> None:
    # The middle of the largest file: data of params/w.
    file = max(saved.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(regrow.errors.CorruptError) as caught:
        regrow.load(saved)
    assert caught.value.leaf == "params/w"
    assert caught.value.file is not None
    assert caught.value.file.endswith(file.name)
    assert caught.value.offset_bytes is not None
    assert abs(caught.value.offset_bytes - len(data) // 2) <= 1 << 20
    np.testing.assert_array_equal(regrow.open(saved)["step"].read(), 7)
    report = regrow.verify(saved)
    assert not report.ok
    assert [(finding.kind, finding.leaf) for finding in report.findings] == [("corrupt", "params/w")]
    assert report.findings[0].message in str(report)
    loaded = regrow.load(saved, options=regrow.Options(checksums=False))
    assert (loaded["params"]["w"] != TREE["params"]["w"]).sum() == 1


def test_a_sound_checkpoint(saved: Path) -> None:
    report = regrow.verify(saved)
    assert report.ok
    assert report
    assert report.leaf_count == 3
    assert report.checked_bytes >= 4_000_000
    assert report.has_data_checksums
    assert "params/w" in regrow.overview(saved)


def test_an_unfinished_save(tmp_path: Path) -> None:
    folder = tmp_path / "step_1.orbax-checkpoint-tmp-123"
    folder.mkdir()
    (folder / "_METADATA").write_text("{}")
    with pytest.raises(regrow.errors.UncommittedError):
        regrow.open(folder)


def test_every_mismatch_at_once(saved: Path) -> None:
    like = {"params": {"w": np.zeros(4, np.float32), "b": np.ones(3, np.int32), "c": 1}}
    with pytest.raises(regrow.errors.MismatchError) as caught:
        regrow.load(saved, like=like)
    message = str(caught.value)
    for part in ("params/w", "params/b", "params/c", "step"):
        assert part in message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("like", "stored"),
    [(1, 2.5), (True, 1), (1.0, 1), ("text", 3), (3, "text"), (np.float32(1), "text"), (1j, 2.0)],
    ids=repr,
)
def test_python_values_are_strict_too(path: Path, like: Any, stored: Any) -> None:
    regrow.save(path, {"v": stored, "w": 1})
    with pytest.raises(regrow.errors.MismatchError, match="v"):
        regrow.load(path, like={"v": like, "w": 0})


def test_leaves_of_other_types(path: Path) -> None:
    for leaf in (object(), {1, 2}, lambda x: x, range(3), print):
        with pytest.raises(TypeError, match="layers/0") as caught:
            regrow.save(path, {"layers": [leaf]})
        assert isinstance(caught.value, regrow.errors.LeafTypeError)
        assert caught.value.help
    assert not path.exists()


BAD_CALLS = {
    "layout": {"layout": "tar"},
    "a budget below nothing": {"options": regrow.Options(budget_bytes=-1)},
    "a budget in MiB": {"options": regrow.Options(budget_bytes=64)},
    "a budget beyond numbers": {"options": regrow.Options(budget_bytes=2**70)},
    "orbax options elsewhere": {"zarr3": True},
    "compression": {"compression": "lz4"},
    "compression level": {"compression": 100},
    "compression as a bool": {"compression": True},
    "metadata": {"metadata": {1, 2}},
    "a glob": {"cast": {"a[": "float32"}},
    "a dtype": {"cast": "no such dtype"},
    "per_leaf": {"layout": regrow.layouts.Orbax(per_leaf={"**": {"chunks": 3}})},
}


@pytest.mark.parametrize("options", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_arguments(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError):
        regrow.save(path, TREE, **options)
    assert not path.exists()


def test_a_folder_that_may_not_be_written() -> None:
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        if is_root:
            os.seteuid(65534)  # root may write anywhere
        try:
            with pytest.raises(PermissionError):
                regrow.save(Path(folder, "x"), TREE)
        finally:
            if is_root:
                os.seteuid(0)
        assert not os.listdir(folder)


def test_exceptions_can_be_pickled(saved: Path) -> None:
    with pytest.raises(regrow.errors.NotFoundError) as caught:
        regrow.open(saved)["nope"]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.leaf) == (type(caught.value), str(caught.value), "nope")


def test_every_kind_has_its_class() -> None:
    from regrow._errors import BY_KIND

    assert {cls.__name__ for cls in BY_KIND.values()} <= set(regrow.errors.__all__)
    assert len(BY_KIND) == 21


def _wrong_calls(folder: Path) -> dict[str, tuple[Callable[..., Any], Callable[[], Any], str]]:
    """Calls that another keyword would mend: the function, the call, and the keyword that its
    help names.
    """
    saved, layouts = folder / "saved", regrow.layouts
    (folder / "empty.eqx").write_bytes(b"")
    regrow.save(saved, TREE)
    regrow.save(folder / "run/step_1", TREE)
    regrow.save(folder / "run/step_2", TREE)
    regrow.save(folder / "nibbles", {"a": np.zeros(2, ml_dtypes.uint4)})
    save, load, new = regrow.save, regrow.load, folder / "new"
    table = np.zeros((4, 4))
    return {
        "exists": (save, lambda: save(saved, TREE), "overwrite=True"),
        "copy": (regrow.copy, lambda: regrow.copy(folder / "nibbles", saved), "overwrite=True"),
        "convert": (regrow.convert, lambda: regrow.convert(folder / "nibbles", saved), "overwrite=True"),
        "dtype": (
            load,
            lambda: load(saved, {**TREE, "params": {**TREE["params"], "b": np.int8([1, 2, 3])}}),
            'cast="..."',
        ),
        "missing": (load, lambda: load(saved, {**TREE, "new": 1}), 'missing="keep"'),
        "extra": (load, lambda: load(saved, {"step": 1}), 'extra="drop"'),
        "out": (
            regrow.load_into,
            lambda: regrow.load_into(saved, {"params": {"b": np.zeros(3, np.float32)}}),
            'extra="drop"',
        ),
        "overflow": (save, lambda: save(new, {"a": np.float32([1e30])}, cast="float16"), "lossy=True"),
        "loss": (regrow.convert, lambda: regrow.convert(folder / "nibbles", new, layout="orbax"), "lossy=True"),
        "steps": (regrow.convert, lambda: regrow.convert(folder / "run", new), "all_steps=True"),
        "zarr": (
            save,
            lambda: save(new, {"a": table}, layout=layouts.Orbax(read_chunk_shape=(2, 2))),
            "layout=regrow.layouts.Orbax(zarr3=True)",
        ),
        "empty": (load, lambda: load(folder / "empty.eqx"), "options=regrow.Options(arrays_only=True)"),
        "placeholder": (
            load,
            lambda: (save(new, {"a": ...}, layout="orbax"), load(new)),
            "options=regrow.Options(placeholders=True)",
        ),
        "force": (regrow.remove, lambda: regrow.remove(saved, force=True), "unfinished=True"),
        "workers": (regrow.verify, lambda: regrow.verify(saved, workers=2), "executor="),
    }


@pytest.mark.parametrize(
    "case",
    [
        "exists", "copy", "convert", "dtype", "missing", "extra", "out", "overflow", "loss", "steps", "zarr", "empty",
        "placeholder", "force", "workers",
    ],
)  # fmt: skip
def test_help_names_a_keyword_that_the_function_has(tmp_path: Path, case: str) -> None:
    function, call, keyword = _wrong_calls(tmp_path)[case]
    with pytest.raises(regrow.RegrowError) as caught:
        call()
    assert keyword in str(caught.value)
    assert keyword.partition("=")[0] in inspect.signature(function).parameters
    assert not re.search(r"--\w|`(?:partial|bare|strict|salvage|overwrite|lossy)`", str(caught.value))


def _words() -> list[tuple[str, str]]:
    """The rows of the engine's table of words: its own, and Python's."""
    source = Path(__file__).parents[2] / "crates/regrow-base/src/wording.rs"
    text = source.read_text().partition("WORDS")[2].partition("\n];")[0]
    rows = re.findall(r'\[\s*"((?:[^"\\]|\\.)*)",\s*"((?:[^"\\]|\\.)*)",\s*"(?:[^"\\]|\\.)*",?\s*\]', text)
    return [(engine.replace('\\"', '"'), python.replace('\\"', '"')) for engine, python in rows]


def test_words_for_python_exist() -> None:
    functions = [regrow.save, regrow.load, regrow.convert, regrow.remove, regrow.Manager, regrow.protect.repair]
    known = {name for function in functions for name in inspect.signature(function).parameters}
    words = _words()
    assert len(words) > 30
    for _, python in words:
        code = python.partition("`")[2].partition("`")[0]
        for name in re.findall(r"regrow(?:\.\w+)+", code):
            operator.attrgetter(name.removeprefix("regrow."))(regrow)
        for called, keyword in re.findall(r"regrow\.([\w.]+)\((?:[\w, ]*, )?(\w+)=", code):
            assert keyword in inspect.signature(operator.attrgetter(called)(regrow)).parameters, python
        if keyword := re.fullmatch(r"(\w+)=.*", code):
            assert keyword[1] in known, python


def test_one_module_writes_the_line_of_help() -> None:
    package = Path(regrow.__file__).parent
    found = [file.name for file in package.rglob("*.py") if "\\n  help: " in file.read_text()]
    assert found == ["_errors.py"]
