"""The Python of the documentation's pages, to be run: each page is one program, from its top to its
end.

    ```python                     a block: runs, with what the blocks above it have left
    <!-- hidden                   runs too, and no reader sees it: what the page assumes, and what must hold afterwards
    <!-- hidden rust              the same for blocks of Rust, which the test `pages` of the crate `regrow` runs
    <!-- not run: WHY -->         the block below is only compiled, and its names and keywords of regrow are looked up
    <!-- file: NAME -->           the block below is written to that file
    <!-- page: torch -->          at the top: all of the page needs PyTorch, and runs in `make test-torch`
    <!-- page: long -->           at the top: it takes seconds, and runs in `make test-long`

``s3://bucket``, ``gs://bucket`` and ``az://bucket`` become ``memory://``, which has the rules of buckets and no server;
absolute paths (``/run``, ``/shared``, ``/scratch``, ``/abs``) are those of the test.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from conftest import REPOSITORY

FENCE = re.compile(r" *```(\w*)$")
COMMENT = re.compile(r"<!-- (?:(not run): \S.*|page: (torch|long)|file: (\w+\.py)) -->$")
BUCKET = re.compile(r"\b(s3|gs|az)://(?=bucket)")
ABSOLUTE = re.compile(r"(?<=[\"'])/(?=(run|shared|scratch|abs)\b)")


@dataclass(frozen=True)
class Block:
    """Some lines of Python, from the line `line` of their page."""

    text: str
    line: int
    is_run: bool
    file: str | None = None


@dataclass(frozen=True)
class Page:
    path: Path
    blocks: tuple[Block, ...]
    kind: str = ""
    """``torch`` or ``long``, if the page does not run in `make test`."""

    @property
    def name(self) -> str:
        return str(self.path.relative_to(REPOSITORY))

    def run(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs the page in a folder of its own, as a module: classes that it defines have a
        home.
        """
        module = ModuleType("page")
        module.__file__ = str(self.path)
        monkeypatch.setitem(sys.modules, "page", module)
        monkeypatch.chdir(folder)
        for block in self.blocks:
            if block.file is not None:
                (folder / block.file).write_text(block.text)
            elif block.is_run:
                # Tracebacks tell the lines of the page.
                text = "\n" * (block.line - 1) + ABSOLUTE.sub(f"{folder}/", block.text)
                text = BUCKET.sub(f"memory://{folder.name}-", text)
                exec(compile(text, str(self.path), "exec"), vars(module))


def pages() -> Iterator[Page]:
    """Every page with Python in it."""
    for path in documents():
        if path == REPOSITORY / "README.md" or REPOSITORY / "docs" in path.parents:
            page = parse(path)
            if page.blocks:
                yield page


def documents() -> list[Path]:
    """Every Markdown file that git has, or would take; a link to one is that one."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    paths = [REPOSITORY / name for name in done.stdout.split("\0") if name]
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def parse(path: Path) -> Page:
    """The Python blocks of a page. A comment that is none of the above is a `ValueError`, since
    it does nothing.
    """
    blocks: list[Block] = []
    kind, is_run, file = "", True, None
    lines = iter(enumerate(path.read_text().splitlines(), 1))
    for number, line in lines:
        if line == "<!-- hidden":
            blocks.append(Block(until(lines, "-->"), number + 1, True))
        elif line == "<!-- hidden rust":
            until(lines, "-->")
        elif line.startswith("<!--"):
            if (comment := COMMENT.match(line)) is None:
                raise ValueError(f"{path}:{number}: {line!r} is no comment that `snippets` knows")
            is_run, kind, file = comment[1] is None, comment[2] or kind, comment[3]
        elif fence := FENCE.match(line):
            text = until(lines, "```")
            if fence[1] == "python":
                blocks.append(Block(text, number + 1, is_run, file))
            is_run, file = True, None
    return Page(path, tuple(blocks), kind)


def until(lines: Iterator[tuple[int, str]], end: str) -> str:
    """The lines before the one that is `end`."""
    taken = []
    for _, line in lines:
        if line.strip() == end:
            break
        taken.append(line)
    return textwrap.dedent("\n".join(taken)) + "\n"


# ---- names of regrow, in blocks that do not run ---------------------------------------


def unknown_names(text: str) -> list[str]:
    """The names and keywords of regrow in `text` that regrow does not have."""
    unknown = []
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "regrow":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            unknown += [name for name in names if find(name) is None]
        elif isinstance(node, ast.Attribute) and (name := dotted(node)) is not None and find(name) is None:
            unknown.append(name)
        elif isinstance(node, ast.Call) and (name := dotted(node.func)) is not None:
            unknown += [f"{name}({keyword}=...)" for keyword in unknown_keywords(name, node)]
    return unknown


def dotted(node: ast.expr) -> str | None:
    """`regrow.a.b` as text, if it is something of regrow."""
    try:
        text = ast.unparse(node)
    except RecursionError:
        return None
    return text if re.fullmatch(r"regrow(\.\w+)+", text) else None


def find(name: str) -> object | None:
    """What `regrow.a.b` is: a module, or an attribute of one."""
    module: object = importlib.import_module("regrow")
    for part in name.split(".")[1:]:
        if inspect.ismodule(module) and not hasattr(module, part):
            try:
                importlib.import_module(f"{module.__name__}.{part}")
            except ModuleNotFoundError:
                return None
        module = getattr(module, part, None)
        if module is None:
            return None
    return module


def unknown_keywords(name: str, call: ast.Call) -> list[str]:
    """The keywords of a call that the function does not take."""
    function = find(name)
    if not callable(function):
        return []
    known = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        return []
    return [keyword.arg for keyword in call.keywords if keyword.arg is not None and keyword.arg not in known]
