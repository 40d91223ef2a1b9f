"""The stub of the native half says what is there."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import regrow

# They need torch: tests_torch looks at them.
OF_TORCH = {"regrow.safetensors.torch", "regrow.torch"}


def public_modules() -> list[str]:
    """All modules of the package that a program may name."""
    home = Path(regrow.__file__).parent
    files = [file.relative_to(home.parent).with_suffix("") for file in home.rglob("*.py")]
    names = {".".join(file.parts).removesuffix(".__init__") for file in files}
    return sorted(name for name in names if not any(part.startswith("_") for part in name.split(".")))


PUBLIC = [name for name in public_modules() if name not in OF_TORCH]


def test_the_stub_fits_the_extension(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    # The buffer protocol has a name in Python from 3.12 on; a stub exports what it holds without a
    # list.
    allowed.write_text("regrow._native.(Slab|MapBuffer).__buffer__\nregrow._native.__all__\n")
    # The stub alone: NumPy and the package below it would take most of the time.
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n")
    command = [sys.executable, "-m", "mypy.stubtest", "regrow._native", "--allowlist", str(allowed)]
    command += ["--ignore-unused-allowlist", "--mypy-config-file", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed() -> None:
    assert (Path(regrow.__file__).parent / "py.typed").exists()


def test_all_is_what_there_is() -> None:
    assert sorted(regrow.__all__) == regrow.__all__
    assert all(hasattr(regrow, name) for name in regrow.__all__)


def test_an_import_is_quick() -> None:
    """NumPy is imported when something is done that needs it; names are there all the same."""
    code = (
        "import sys, regrow; assert 'numpy' not in sys.modules; "
        "assert set(regrow.__all__) <= set(dir(regrow)); assert 'numpy' not in sys.modules; "
        "from regrow import *; assert Checkpoint is regrow.Checkpoint; "
        "assert not hasattr(regrow, 'nothing')"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(regrow.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def annotated(name: str, public: Any) -> Iterator[tuple[str, Any]]:
    """What of a public thing may have annotations: itself, its overloads, its methods and
    properties.
    """
    if not callable(public) or typing.get_origin(public) is not None:
        return
    yield name, public
    if not inspect.isclass(public):
        yield from ((f"{name}, an overload", overload) for overload in typing.get_overloads(public))
        return
    for attribute, value in vars(public).items():
        for function in (value, *(getattr(value, part, None) for part in ("fget", "fset", "__func__"))):
            if inspect.isfunction(function):
                yield from annotated(f"{name}.{attribute}", function)


@pytest.mark.parametrize("module", PUBLIC)
def test_type_hints_are_there_at_run_time(module: str) -> None:
    """What is imported late, or for the type checker alone, must not be missing where
    annotations name it.
    """
    home = importlib.import_module(module)
    failed = {}
    own = [name for name, value in vars(home).items() if getattr(value, "__module__", None) == module]
    for name in getattr(home, "__all__", [name for name in own if not name.startswith("_")]):
        for where, found in annotated(name, getattr(home, name)):
            try:
                typing.get_type_hints(found)
            except Exception as error:
                failed[where] = error
    assert not failed


def test_type_hints_say_what_is_meant() -> None:
    hints = typing.get_type_hints(regrow.save)
    assert hints["return"] is regrow.reports.SaveReport
    assert hints["layout"] == str | regrow.layouts.Layout | None
    assert typing.get_type_hints(regrow.open)["return"] is regrow.Checkpoint
    assert {typing.get_type_hints(each)["return"] for each in typing.get_overloads(regrow.convert)} == {
        regrow.reports.ConvertPlan,
        regrow.reports.ConvertReport,
        dict[int, Any],
    }
    assert typing.get_type_hints(regrow.reports.SaveReport)["stages"] == tuple[regrow.reports.StageReport, ...]
