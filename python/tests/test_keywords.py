"""Keywords that several functions share: what type checkers, `help` and callers with typos see of them."""

from __future__ import annotations

import inspect
import json
import pydoc
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow
from regrow import _keywords, _native, _options
from regrow._keywords import CONVERT, LOAD, SAVE, Keywords, LayoutOptions

TREE = {"a": np.ones((2, 3), np.float32)}

SHARED: list[tuple[str, Callable[..., Any], Keywords]] = [
    ("save", regrow.save, SAVE),
    ("save_async", regrow.save_async, SAVE),
    ("AsyncSaver.save", regrow.AsyncSaver.save, SAVE),
    ("save_items", regrow.save_items, SAVE),
    ("save_items_async", regrow.save_items_async, SAVE),
    ("convert", regrow.convert, CONVERT),
    ("load", regrow.load, LOAD),
    ("Checkpoint.load", regrow.Checkpoint.load, LOAD),
    ("load_items", regrow.load_items, LOAD),
]
BY_NAME = pytest.mark.parametrize(("name", "function", "keywords"), SHARED, ids=[name for name, _, _ in SHARED])


@BY_NAME
def test_the_signature_has_every_keyword(name: str, function: Callable[..., Any], keywords: Keywords) -> None:
    parameters = inspect.signature(function).parameters
    for keyword, default in keywords.defaults.items():
        assert parameters[keyword].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[keyword].default == default
        assert parameters[keyword].annotation is not inspect.Parameter.empty
    rest = [each.name for each in parameters.values() if each.kind is each.VAR_KEYWORD]
    assert rest == ([] if keywords is LOAD else ["options"])


@BY_NAME
def test_help_says_what_every_keyword_means(name: str, function: Callable[..., Any], keywords: Keywords) -> None:
    shown = pydoc.plain(pydoc.render_doc(function))
    assert "The keywords of" not in shown
    layouts = () if keywords is LOAD else tuple(_keywords.documentation(LayoutOptions))
    for keyword in (*keywords.defaults, *layouts):
        assert len(re.findall(rf"^ +{keyword}: \S", shown, re.MULTILINE)) == 1, keyword
    # Before the sections that follow the arguments.
    if "Raises:" in shown:
        assert shown.index("Raises:") > max(shown.index(f" {keyword}: ") for keyword in keywords.defaults)


def test_each_keyword_is_documented_once() -> None:
    for keywords in (SAVE, CONVERT, LOAD):
        said = [list(_keywords.documentation(kind)) for kind in keywords._documents]
        assert set().union(*said) == set(keywords.defaults)
        assert all(len(names) == len(set(names)) for names in said)
        assert set(keywords.defaults) | (set(LayoutOptions.__annotations__) if keywords is not LOAD else set()) == set(
            keywords.names
        )
    # Orbax' own are the fields of `OrbaxOptions`.
    assert (
        set(_keywords.documentation(LayoutOptions))
        == set(LayoutOptions.__annotations__) - _options.LAYOUT_OPTIONS["orbax"] | _options.LAYOUT_OPTIONS["regrow"]
    )


def test_options_of_layouts_are_those_of_the_engine(path: Path) -> None:
    said = _keywords.documentation(LayoutOptions)
    for layout, names in _options.LAYOUT_OPTIONS.items():
        assert names <= set(LayoutOptions.__annotations__)
        assert layout == "orbax" or all(layout in said[name].partition(": ")[2].split(".")[0] for name in names)
        if not names:
            continue
        # The engine names all options of a layout when it is given another one.
        text = json.dumps({"no such option": 1})
        native = list(_options.save_options(layout=layout, overwrite=False, durable=True, options={}))
        native[9] = (layout, text)
        with pytest.raises(regrow.InvalidArgumentError) as raised:
            flat = regrow._tree.flatten(TREE)
            _native.safetensors_bytes(flat.structure, regrow._leaves.to_native(flat), tuple(native))
        known = set(re.findall(r"`(\w+)`", str(raised.value)))
        # Of these the keyword is the metadata of every layout.
        assert known - {"metadata"} == names, layout
    assert set().union(*_options.LAYOUT_OPTIONS.values()) == set(LayoutOptions.__annotations__)
    assert set(_options.LAYOUT_OPTIONS) == set(_native.LAYOUTS)


CALLS: dict[str, Callable[..., Any]] = {
    "save": lambda path, **options: regrow.save(path, TREE, **options),
    "save_async": lambda path, **options: regrow.save_async(path, TREE, **options).wait(),
    "AsyncSaver.save": lambda path, **options: regrow.AsyncSaver().save(path, TREE, **options).wait(),
    "convert": lambda path, **options: regrow.convert("source", path, **options),
    "load": lambda path, **options: regrow.load("source", **options),
    "Checkpoint.load": lambda path, **options: regrow.open("source").load(**options),
}
TYPOS = {
    "save": {"overwrit": "overwrite", "progres": "progress", "use_ocdb": "use_ocdbt"},
    "save_async": {"overwrit": "overwrite", "when_bussy": "when_busy"},
    "AsyncSaver.save": {"overwrit": "overwrite", "check_sources": "check_source"},
    "convert": {"renames": "rename", "dry_runs": "dry_run"},
    "load": {"verfy": "verify", "steps": "step"},
    "Checkpoint.load": {"verfy": "verify", "lik": "like"},
}


@pytest.mark.parametrize(("call", "typo", "meant"), [(c, t, m) for c, typos in TYPOS.items() for t, m in typos.items()])
def test_a_misspelt_keyword_is_refused_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, typo: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    regrow.save("source", TREE)
    function = call.rpartition(".")[2]
    message = rf"^{function}\(\) got an unexpected keyword argument '{typo}'\. Did you mean '{meant}'\?$"
    for error in (TypeError, regrow.InvalidArgumentError):
        with pytest.raises(error, match=message):
            CALLS[call]("new", **{typo: 1})
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("call", "keyword"),
    [("save_async", "progress"), ("save", "when_busy"), ("convert", "budget"), ("convert", "strict_orbax"),
     ("Checkpoint.load", "step"), ("load", "layout")],
)  # fmt: skip
def test_what_another_function_takes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, keyword: str
) -> None:
    monkeypatch.chdir(tmp_path)
    regrow.save("source", TREE)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
        CALLS[call]("new", **{keyword: None})


def test_an_option_of_another_layout_says_where_it_belongs(path: Path) -> None:
    with pytest.raises(regrow.InvalidArgumentError, match=r'the option sort_keys belongs to layout="flax"$'):
        regrow.save(path, TREE, layout="npy", sort_keys=True)
    with pytest.raises(regrow.InvalidArgumentError, match='separator belongs to layout="safetensors" or layout="npy"'):
        regrow.save(path, TREE, separator="/")
    with pytest.raises(regrow.InvalidArgumentError, match='use_ocdbt belongs to layout="orbax"'):
        regrow.convert(path, f"{path}.new", use_ocdbt=False)


def test_options_of_layouts_are_keywords(tmp_path: Path) -> None:
    regrow.save(tmp_path / "orbax", TREE, layout="orbax", use_ocdbt=False)
    assert "ocdbt" not in regrow.open(tmp_path / "orbax").variant
    regrow.save_async(tmp_path / "x.npz", TREE, layout="npy", compress=True).wait()
    regrow.convert(tmp_path / "x.npz", tmp_path / "y.safetensors", layout="safetensors", structure=False)
    assert list(regrow.load(tmp_path / "y.safetensors")) == ["a"]


def test_types_are_those_of_the_typed_dict() -> None:
    hints = typing.get_type_hints(regrow.load)
    assert hints["verify"] is bool
    assert hints["step"] == int | None
    assert typing.get_type_hints(regrow.SaveOptions)["overwrite"] is bool
    assert not regrow.SaveOptions.__required_keys__


def test_a_wrapper_can_pass_them_on(path: Path) -> None:
    options: regrow.SaveOptions = {"durable": False, "metadata": {"run": 3}}
    regrow.save(path, TREE, **options)
    assert regrow.open(path).metadata == {"run": 3}


SOUND = """
import regrow
from typing import Any, Unpack
regrow.save("x", {}, overwrite=True, layout="orbax", use_ocdbt=False, progress=None)
regrow.save_async("x", {}, when_busy="skip", compress=9)
regrow.load("x", only="a", step=3)
plan: regrow.ConvertPlan = regrow.convert("x", "y", dry_run=True, lossy=True)
report: regrow.ConvertReport = regrow.convert("x", regrow.Location("s3://b/x", anon=True), storage_options={"a": 1})
def wrapped(path: str, **options: Unpack[regrow.SaveOptions]) -> None:
    regrow.save(path, {}, **options)
def read(path: str, **options: Unpack[regrow.LoadOptions]) -> Any:
    return regrow.load(path, **options), regrow.open(path).load(**options)
"""
UNSOUND = {
    'regrow.save("x", {}, overwrit=True)': 'Unexpected keyword argument "overwrit"',
    'regrow.save("x", {}, overwrite="yes")': 'Argument "overwrite" to "save" has incompatible type "str"',
    'regrow.save("x", {}, use_ocdb=True)': 'Unexpected keyword argument "use_ocdb"',
    'regrow.save_async("x", {}, progress=None)': 'Unexpected keyword argument "progress"',
    'regrow.AsyncSaver().save("x", {}, durabel=True)': 'Unexpected keyword argument "durabel"',
    'regrow.convert("x", "y", lossi=True)': 'Unexpected keyword argument "lossi" for overloaded function "convert"',
    'regrow.load("x", mmapp=True)': 'Unexpected keyword argument "mmapp"',
    'regrow.open("x").load(step=3)': 'Unexpected keyword argument "step"',
}


def test_mypy_takes_what_is_right_and_refuses_what_is_not(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SOUND + "\n".join(UNSOUND) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(program)]
    home = Path(regrow.__file__).parent.parent
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")], capture_output=True, text=True, timeout=110, cwd=home
    )
    found = {}
    for line in done.stdout.splitlines():
        match = re.match(r".*program\.py:(\d+): error: (.*)", line)
        if match:
            found.setdefault(int(match[1]), match[2])
    first = SOUND.count("\n") + 1
    assert set(found) == set(range(first, first + len(UNSOUND))), done.stdout + done.stderr
    for line, (call, message) in enumerate(UNSOUND.items(), first):
        assert message in found[line], call


def test_without_docstrings_all_works(tmp_path: Path) -> None:
    code = (
        "import inspect, regrow; regrow.save('x', {'a': 1}); assert regrow.load('x') == {'a': 1}; "
        "assert regrow.save.__doc__ is None; assert 'overwrite' in inspect.signature(regrow.save).parameters"
    )
    environment = {"PYTHONPATH": str(Path(regrow.__file__).parent.parent), "PATH": ""}
    subprocess.run([sys.executable, "-OO", "-c", code], check=True, cwd=tmp_path, env=environment)
