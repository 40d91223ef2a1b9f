"""A function of ``regrow`` has at most 70 lines and 20 branches.

The lines of a function are the lines of its statements, without its docstring. A branch is an
``if``, an ``elif``, a conditional expression, a loop, an ``except``, a ``case``, or each operand of
``and`` and ``or`` after the first. A function within a function counts for itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LINES_MAX = 70
BRANCHES_MAX = 20
PACKAGE = Path(__file__).parents[1] / "regrow"


Function = ast.FunctionDef | ast.AsyncFunctionDef


def statements(function: Function) -> list[ast.stmt]:
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node without the insides of other functions."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function):
            yield from own_nodes(child)


def lines(function: Function) -> int:
    span = {line for one in statements(function) for line in range(one.lineno, (one.end_lineno or 0) + 1)}
    inner = {
        line
        for node in own_nodes(function)
        if isinstance(node, Function)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    return len(span - inner)


def branches(function: Function) -> int:
    count = 0
    for node in own_nodes(function):
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += len(node.ifs)
        else:
            single = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
            count += isinstance(node, single)
    return count


def functions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, Function]]:
    """All functions of a module with their names: ``Class.method``, ``function.inner``."""
    for node in ast.iter_child_nodes(tree):
        name = outer
        if isinstance(node, Function | ast.ClassDef):
            name = f"{outer}.{node.name}".lstrip(".")
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, name)


def test_functions_are_short() -> None:
    long = {}
    count = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            count += 1
            size = (lines(function), branches(function))
            if size[0] > LINES_MAX or size[1] > BRANCHES_MAX:
                place = f"{path.relative_to(PACKAGE).as_posix()}: {name}"
                long[place] = "{} lines, {} branches".format(*size)
    assert count > 1500, "too few functions were read"
    assert not long, f"more than {LINES_MAX} lines or {BRANCHES_MAX} branches"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('def f():\n    """Docs.\n\n    More.\n    """\n    return 1', (1, 0)),
        ("def f(x):\n    if x and x or not x:\n        pass\n    elif x:\n        pass", (4, 4)),
        ("def f(x):\n    try:\n        pass\n    except E:\n        return [a if a else b for a in x if a]", (4, 3)),
        ("def f(x):\n    match x:\n        case 1:\n            pass\n        case _:\n            pass", (5, 2)),
        ("async def f(x):\n    async for y in x:\n        while y:\n            pass", (3, 2)),
        ("def f(x):\n    y = x\n\n    def g():\n        if x:\n            pass\n\n    return g", (2, 0)),
    ],
)
def test_lines_and_branches_are_counted(text: str, size: tuple[int, int]) -> None:
    function = ast.parse(text).body[0]
    assert isinstance(function, Function)
    assert (lines(function), branches(function)) == size
