"""Imports within `regrow` run one way, also those inside of functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import regrow

HOME = Path(regrow.__file__).parent

KNOWN = {
    # A state dict of Flax holds nnx states, whose values are state dicts.
    frozenset({"regrow.flax._extras", "regrow.flax._state_dict"}),
    # `regrow.flax` is `flax.serialization`; the files of checkpoints use its functions.
    frozenset({"regrow.flax", "regrow.flax._orbax", "regrow.flax._private", "regrow.flax.checkpoints"}),
    # The formulas are methods of the saver, and name its class.
    frozenset({"regrow.trak", "regrow.trak._finalize"}),
}


def modules() -> dict[str, Path]:
    files = {".".join(file.relative_to(HOME.parent).with_suffix("").parts): file for file in HOME.rglob("*.py")}
    return {name.removesuffix(".__init__"): file for name, file in files.items()}


def imported(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a module imports when the program runs."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    nodes = [ast.parse(file.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        nodes.extend(ast.iter_child_nodes(node))  # type: ignore[arg-type]
        if isinstance(node, ast.ImportFrom) and node.level:
            above = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{above}.{alias.name}"
                yield full if full in known else above


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Circles of imports: in each group every module imports all others, maybe through others."""
    reached = {name: reach(imports, name) for name in imports}
    groups = {frozenset(other for other in reached[name] if name in reached.get(other, ())) for name in imports}
    return {group for group in groups if group}


def reach(imports: dict[str, set[str]], first: str) -> set[str]:
    found: set[str] = set()
    left = set(imports[first])
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left |= imports.get(name, set())
    return found


def test_imports_run_one_way() -> None:
    known = modules()
    imports = {name: set(imported(name, file, known)) - {name} for name, file in known.items()}
    assert len(imports) > 200
    assert circles(imports) == KNOWN


def test_a_circle_is_seen() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert circles(imports) == {frozenset({"b", "c"})}


HEAVY = {
    *("concurrent", "dataclasses", "difflib", "hashlib", "importlib.util", "json", "logging", "ml_dtypes"),
    *("multiprocessing", "pathlib", "tempfile"),
}

PLAIN = """
import sys, numpy
before = set(sys.modules)
import regrow
regrow.save(sys.argv[1], {"a": numpy.zeros(3)})
regrow.load(sys.argv[1])
print(*sorted(set(sys.modules) - before))
"""


def test_a_plain_save_and_load_import_no_heavy_module(tmp_path: Path) -> None:
    program = [sys.executable, "-c", PLAIN, str(tmp_path / "x")]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert "regrow._load._load" in found
    assert not HEAVY & set(found)
    assert not {"regrow._load._into", "regrow._jax._shardings", "regrow.layouts"} & set(found)
