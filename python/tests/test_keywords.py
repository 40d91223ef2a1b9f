"""Keywords: how many there are, what `help` and type checkers see, and the errors for old names
and misspelt ones.
"""

from __future__ import annotations

import dataclasses
import inspect
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
from conftest import MYPY_CACHE

import regrow
from regrow import _native, layouts
from regrow._core import _keywords

TREE = {"a": np.ones((2, 3), np.float32)}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "save": regrow.save,
    "save_async": regrow.save_async,
    "save_items": regrow.save_items,
    "save_items_async": regrow.save_items_async,
    "convert": regrow.convert,
    "load": regrow.load,
    "load_into": regrow.load_into,
    "load_items": regrow.load_items,
    "open": regrow.open,
    "verify": regrow.verify,
    "copy": regrow.copy,
    "diff": regrow.diff,
    "report": regrow.report,
    "Checkpoint.load": regrow.Checkpoint.load,
    "Manager": regrow.Manager,
    "Manager.restore": regrow.Manager.restore,
}
BY_NAME = pytest.mark.parametrize(("name", "function"), FUNCTIONS.items(), ids=list(FUNCTIONS))
KEYWORDS_MAX = {"save": 14, "load": 14, "Manager": 12}


def keywords_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def test_the_most_used_functions_have_few_keywords() -> None:
    counts = {name: len(keywords_of(FUNCTIONS[name])) for name in KEYWORDS_MAX}
    assert {name: count for name, count in counts.items() if count > KEYWORDS_MAX[name]} == {}
    assert 25 <= len(regrow.__all__) <= 33
    assert all(hasattr(regrow, name) for name in regrow.__all__)


@BY_NAME
def test_help_says_what_every_keyword_means(name: str, function: Callable[..., Any]) -> None:
    shown = pydoc.plain(pydoc.render_doc(function.__init__ if inspect.isclass(function) else function))
    for keyword, parameter in keywords_of(function).items():
        assert parameter.annotation is not inspect.Parameter.empty
        assert len(re.findall(rf"^ +{keyword}: \S", shown, re.MULTILINE)) == 1, keyword


def test_no_function_takes_any_keyword() -> None:
    for function in FUNCTIONS.values():
        kinds = {each.kind for each in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.parametrize("name", _native.LAYOUTS)
def test_options_of_layouts_have_one_name_in_python_the_command_and_rules(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = {each.name for each in dataclasses.fields(type(layouts.chosen(name)))}
    regrow.save(tmp_path / "source", TREE)
    rules = tmp_path / "rules.toml"
    rules.write_text(f"layout = '{name}'\n[options]\nno_such = 1")
    for said in (["--layout", name, "--option", "no_such=1"], ["--rules", str(rules)]):
        command = ["regrow", "convert", str(tmp_path / "source"), str(tmp_path / "target"), *said]
        assert _native.command(command, list) == 2
        # The error for an option that is not known names all options of the layout.
        known = capfd.readouterr().err.partition("unknown field `no_such`, ")[2]
        assert set(re.findall(r"`(\w+)`", known)) == here, said


def test_rules_of_a_file_have_the_names_of_keywords(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("no_such = 1")
    with pytest.raises(regrow.errors.InvalidArgumentError, match='unknown field "no_such"') as raised:
        regrow.convert(tmp_path, tmp_path / "x", rules=rules)
    known = set(re.findall(r'"(\w+)"', str(raised.value).partition("expected one of")[2]))
    # `options` are those of the layout.
    assert len(known) == 8 and known - {"options"} <= set(keywords_of(regrow.convert))


OTHER_NAMES = {
    # The command's names are switches: they turn off what is on, and on what is off.
    "no_sync": "durable",
    "no_verify": "verify",
    "no_statistics": "statistics",
    # An option that is given again and again has a singular, and its keyword a plural.
    "storage_option": "storage_options",
    "trusted_key": "trusted_keys",
    # The short words of shells: `diff --brief`, `--output FILE`.
    "brief": "equality_only",
    "all": "list_equal",
    "output": "out",
    # A reserved word of Python.
    "from": "from_",
}
"""Options of commands, each with the keyword that means the same, by the reason for another name."""

SHELL_ONLY = {
    "help": "Python has help()",
    "json": "a call returns objects",
    "verbose": "a report has the stages",
    "quiet": "a call prints nothing",
    "no_progress": "a call shows no progress unless asked",
    "yes": "a call does not ask",
    "jobs": "the engine chooses",
    "option": "fields of regrow.layouts",
    "cache_size": "regrow.Cache has it",
    "key": "a positional argument",
    "ratio": "a positional argument",
    "step": "a path or a Manager has it, where a function lacks it",
    "item": "`at` has it",
    "sizes": "objects have bytes",
    "all_steps": "a copy takes all steps of a folder",
}
"""Options of commands that some functions lack, each with the reason."""

COMMANDS: dict[str, Callable[..., Any]] = {
    "convert": regrow.convert,
    "cp": regrow.copy,
    "verify": regrow.verify,
    "rm": regrow.remove,
    "diff": regrow.diff,
    "report": regrow.report,
    "seal": regrow.protect.seal,
    "sign": regrow.protect.sign,
    "parity": regrow.protect.add_parity,
    "repair": regrow.protect.repair,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_commands_have_the_names_of_keywords(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert _native.command(["regrow", command, "--help"], list) == 0
    shown = re.findall(r"^ +(?:-\w, )?--([a-z-]+)", capfd.readouterr().out, re.MULTILINE)
    rare = {each.name for each in dataclasses.fields(regrow.Options)}
    takes = set(inspect.signature(COMMANDS[command]).parameters) | rare
    unknown = [
        name
        for name in (flag.replace("-", "_") for flag in shown)
        if name not in takes and OTHER_NAMES.get(name) not in takes and name not in SHELL_ONLY
    ]
    assert "help" in shown and len(shown) > 1 and unknown == []


def test_options_of_every_command_have_the_names_of_keywords(capfd: pytest.CaptureFixture[str]) -> None:
    assert _native.command(["regrow", "options"], list) == 0
    shown = re.findall(r"^ +(?:-\w, )?--([a-z-]+)", capfd.readouterr().out, re.MULTILINE)
    takes = set(keywords_of(regrow.load)) | {each.name for each in dataclasses.fields(regrow.Options)}
    names = {flag.replace("-", "_") for flag in shown} - set(SHELL_ONLY)
    unknown = {name for name in names if name not in takes and OTHER_NAMES.get(name) not in takes}
    assert {"lost_files", "arrays_only"} <= names and unknown == set()


OLD = {
    "save": [
        "budget", "handlers", "trust_base", "replica_parallel", "orbax", "strict_orbax", "data_format", "use_ocdbt",
        "use_zarr3", "max_shard_size", "compress", "sort_keys", "trailer", "byte_align", "form",
    ],
    "save_async": ["copy", "check_source"],
    "load": [
        "partial", "item", "strict", "bare", "ignore_seal", "trusted_keys", "salvage", "nest", "cache", "out", "verify",
        "mmap", "region", "pad_or_truncate", "budget", "handlers", "single_replica", "turns", "report",
        "target", "template", "dtype",
    ],
    "open": ["item", "strict", "bare", "mmap", "cache"],
    "verify": ["bare", "ignore_seal", "trusted_keys"],
    "convert": ["strict", "bare", "salvage"],
    "copy": ["budget"],
    "diff": ["budget"],
    "report": ["budget"],
    "Manager": [
        "keep_best", "best", "keep_every", "keep_closest", "keep_seconds", "keep_steps", "keep_if", "adopt", "every",
        "save_steps", "min_seconds", "save_first", "save_if", "reuse", "check", "todelete", "sigterm", "grace",
        "layout", "cast", "max_to_keep", "save_interval_steps",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "keyword"), [(name, each) for name, old in OLD.items() for each in old])
def test_an_old_keyword_is_an_error_that_names_the_new_one(path: Path, name: str, keyword: str) -> None:
    function = FUNCTIONS[name]
    two = ("convert", "copy", "diff", "report")
    arguments = (path, TREE) if name in ("save", "save_async") else (path, path) if name in two else (path,)
    for kind in (TypeError, regrow.errors.InvalidArgumentError):
        with pytest.raises(kind, match=f"unexpected keyword argument '{keyword}'\n  help: pass ") as raised:
            function(*arguments, **{keyword: 1})
    assert not path.exists()
    # What the help names exists.
    help = str(raised.value).partition("help: pass ")[2]
    keywords = inspect.signature(function).parameters
    named = re.match(r"(\w+)=", help)
    if named:
        assert named[1] in keywords, help
    for home, fields in re.findall(r"regrow\.((?:\w+\.)?[A-Z]\w+)\((\w+)=", help):
        owner: Any = regrow
        for part in home.split("."):
            owner = getattr(owner, part)
        assert fields in {each.name for each in dataclasses.fields(owner)}, help


@pytest.mark.parametrize(
    ("name", "typo", "meant"),
    [("save", "overwrit", "overwrite"), ("save", "progres", "progress"), ("save_async", "when_bussy", "when_busy"),
     ("convert", "renames", "rename"), ("load", "steps", "step"), ("load", "lik", "like"),
     ("Manager", "keeps", "keep")],
)  # fmt: skip
def test_a_misspelt_keyword_is_refused_with_the_nearest(path: Path, name: str, typo: str, meant: str) -> None:
    arguments = {"save": (path, TREE), "save_async": (path, TREE), "convert": (path, path)}.get(name, (path,))
    with pytest.raises(
        TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '{typo}'\n  help: pass {meant}=$"
    ):
        FUNCTIONS[name](*arguments, **{typo: 1})


def test_every_hint_is_for_a_keyword_that_no_function_has() -> None:
    """A table of old names must not hide a name that is in use."""
    taken = {*keywords_of(regrow.save), *keywords_of(regrow.load), *keywords_of(regrow.convert)}
    assert taken.isdisjoint(_keywords._LAYOUTS)
    assert taken.isdisjoint(set(_keywords._WORDS) - {"item"})


def test_partial_names_both_policies(path: Path) -> None:
    with pytest.raises(TypeError, match=r'missing="keep".*extra="drop"'):
        regrow.load(path, partial=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "named"),
    [({"save_every": -1}, "save_every=-1"), ({"save_every": 0}, "save_every=0"), ({"keep": 0}, "keep=0"),
     ({"keep": regrow.Keep(last=0)}, "last=0"), ({"save_every": regrow.SaveWhen(every=0)}, "every=0")],
)  # fmt: skip
def test_an_error_of_a_manager_names_what_the_caller_wrote(path: Path, given: dict[str, Any], named: str) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError, match=rf"^{named} is not valid"):
        regrow.Manager(path, **given)


def test_a_rare_setting_of_another_call_is_refused(path: Path) -> None:
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"Options\(mmap=\.\.\.\) has no effect on `save`"):
        regrow.save(path, TREE, options=regrow.Options(mmap=True))
    regrow.save(path, TREE)
    with pytest.raises(regrow.errors.InvalidArgumentError, match=r"trust_base=\.\.\.\) has no effect on `load`"):
        regrow.load(path, options=regrow.Options(trust_base=True))
    for wrong in ({"mmap": True}, regrow.SaveOptions(), 3):
        with pytest.raises(regrow.errors.InvalidArgumentError, match=r"expected a regrow\.Options"):
            regrow.load(path, options=wrong)  # type: ignore[arg-type]


def test_settings_of_a_block_hold_for_its_calls_alone(path: Path) -> None:
    regrow.save(path, TREE)
    seen: list[Any] = []
    with regrow.options(on_report=seen.append, trust_base=True):
        regrow.load(path)
        with regrow.options(on_report=None):
            regrow.load(path)
        # What the call says comes before the block.
        others: list[Any] = []
        regrow.load(path, options=regrow.Options(on_report=others.append))
    regrow.load(path)
    assert len(seen) == 1 and len(others) == 1
    with (
        pytest.raises(regrow.errors.InvalidArgumentError, match="options\\(\\) has no field 'budget'"),
        regrow.options(budget=1),
    ):
        pass


def test_types_are_said(path: Path) -> None:
    hints = typing.get_type_hints(regrow.load)
    assert hints["step"] == int | None
    assert typing.get_type_hints(regrow.save)["overwrite"] is bool


SOUND = """
import regrow
regrow.save("x", {}, overwrite=True, layout=regrow.layouts.Orbax(ocdbt=False), progress=None)
regrow.save("x", {}, layout="orbax", options=regrow.Options(budget_bytes=2**20))
regrow.save_async("x", {}, when_busy="skip", progress=print)
regrow.load("x", only="a", step=3, missing="keep")
plan: regrow.reports.ConvertPlan = regrow.convert("x", "y", dry_run=True, lossy=True)
report: regrow.reports.ConvertReport = regrow.convert("x", regrow.Location("s3://b/x", anon=True))
with regrow.Manager("x", keep=regrow.Keep(last=3, best=1, by="loss:min")) as steps, regrow.options(mmap=True):
    handle: regrow.reports.SaveHandle | None = steps.save(3, {})
"""
UNSOUND = {
    'regrow.save("x", {}, overwrit=True)': 'Unexpected keyword argument "overwrit"',
    'regrow.save("x", {}, overwrite="yes")': 'Argument "overwrite" to "save" has incompatible type "str"',
    "regrow.layouts.Orbax(ocdb=True)": 'Unexpected keyword argument "ocdb"',
    'regrow.load("x", extra="ignore")': 'Argument "extra" to "load" has incompatible type',
    'regrow.convert("x", "y", lossi=True)': 'Unexpected keyword argument "lossi"',
    'regrow.load("x", mmap=True)': 'Unexpected keyword argument "mmap"',
    'regrow.open("x").load(step=3)': 'Unexpected keyword argument "step"',
    "regrow.Keep(latest=3)": 'Unexpected keyword argument "latest"',
}


def test_mypy_takes_what_is_right_and_refuses_what_is_not(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SOUND + "\n".join(UNSOUND) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(program)]
    home = Path(regrow.__file__).parent.parent
    command += ["--cache-dir", str(MYPY_CACHE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=home)
    found: dict[int, str] = {}
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
