"""The documents hang together: links lead somewhere, the site has every page, its reference every
public name.

`make docs` checks the same of the pages in the site, and more; here are those outside of it, and
what the generator does not look at.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from snippets import documents

import regrow

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```|^<!--.*?-->|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
REFERENCE = REPOSITORY / "docs/reference/python"


def anchor(heading: str) -> str:
    """What a heading is called in a link."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-")


def anchors(path: Path) -> set[str]:
    fenced = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in HEADING.findall(fenced.sub("", path.read_text()))}


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in LINK.findall(CODE.sub("", path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, part = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if REPOSITORY / "docs/api" in file.parents:
            continue  # `make docs` makes it, and looks there itself
        assert file.is_file(), f"{target}: there is no such file (a folder is none: name its README.md)"
        assert not part or file.suffix != ".md" or part in anchors(file), f"{target}: there is no such heading"


INTERNAL = ("docs/formats/", "docs/decisions/", "docs/design.md", "docs/bounds.md", "fixtures/", "crates/")
"""Pages for maintainers."""
PHRASES = ("all the same", "but for", "has left", "is told", "are told", "is said", "nothing but", "of which")
PHRASES += ("wants to be", "what is there", "what it is")


def pages_of_users() -> Iterator[tuple[str, Path]]:
    for page in documents():
        name = page.relative_to(REPOSITORY).as_posix()
        if not name.startswith(INTERNAL):
            yield name, page


def test_pages_of_users_have_no_mannered_phrases() -> None:
    """Single words are refused by `make check` (docs/prose.txt)."""
    phrases = re.compile(rf"\b({'|'.join(PHRASES)})\b".replace(" ", r"\s+"), re.IGNORECASE)
    for name, page in pages_of_users():
        found = phrases.findall(CODE.sub("", page.read_text()))
        assert not found, f"{name}: {found}"


def test_blocks_of_code_fit_their_column() -> None:
    """On the site a longer line scrolls sideways. Pages for maintainers show bytes, and may."""
    for name, page in pages_of_users():
        inside = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if re.match(r" *```", line):
                inside = not inside
            elif inside:
                assert len(line) <= 76, f"{name}:{number} has {len(line)} columns, and a block of code 76"


def test_the_site_has_all_that_its_pages_link_to() -> None:
    tracked = runpy.run_path(str(REPOSITORY / "docs/site.py"))["tracked"]
    shown = {REPOSITORY / name for name in tracked()}
    for page in shown.intersection(documents()):
        for target in LINK.findall(CODE.sub("", page.read_text())):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.is_file() and REPOSITORY / "docs/api" not in file.parents:
                assert file in shown, f"{page}: the site leaves out {target}; docs/site.py says what it takes (SHOWN)"


def test_the_site_has_every_page_and_no_other() -> None:
    with (REPOSITORY / "docs/zensical.toml").open("rb") as file:
        shown = list(pages_of(tomllib.load(file)["project"]["nav"]))
    notebooks = [path.with_suffix(".md") for path in (REPOSITORY / "docs").rglob("*/*.ipynb")]
    names = [str(path.relative_to(REPOSITORY)) for path in (*documents(), *notebooks)]
    # Decisions are in a list that docs/site.py makes.
    docs = [name for name in names if name.startswith("docs/") and not name.startswith("docs/decisions/2")]
    assert sorted(shown) == sorted(["README.md", "CHANGELOG.md", "CONTRIBUTING.md", *docs])


def pages_of(nav: list[dict[str, Any]]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from pages_of(value)


def test_the_reference_has_every_public_name() -> None:
    for module in (regrow, *(getattr(regrow, name) for name in regrow._MODULES)):
        home = module.__name__.rpartition(".")[2]
        page = (REFERENCE / f"{home}.md").read_text()
        shown = re.findall(rf"^::: {re.escape(module.__name__)}\.([A-Za-z]\w*)$", page, re.MULTILINE)
        expected = set(module.__all__) - ({"RegrowError"} if home == "errors" else set())
        assert sorted(shown) == sorted(expected), home


JUDGED = re.compile(r"^\| ([a-z-]+) \| ([\d.]+) \|$", re.MULTILINE)
SPOKEN = re.compile(r"\b(orbax(?:-checkpoint)?|flax|equinox|safetensors|traker) (\d+(?:\.\d+)+)\b", re.IGNORECASE)
PINS = re.compile(r"^([a-z-]+)==([\d.]+)$", re.MULTILINE)
FORMER = {"docs/guide/equinox.md: Equinox 0.10"}
"""What the documents say of another version on purpose."""


def judged() -> dict[str, str]:
    section = (REPOSITORY / "docs/stability.md").read_text().partition("## Judged versions")[2]
    return dict(JUDGED.findall(section.partition("\n## ")[0]))


def test_the_judged_versions_are_those_that_the_tests_install() -> None:
    versions = judged()
    assert list(versions) == ["orbax-checkpoint", "flax", "equinox", "safetensors", "traker"]
    pins = [dict(PINS.findall((REPOSITORY / f"requirements-{name}.txt").read_text())) for name in ("dev", "torch")]
    for name, version in versions.items():
        assert {own[name] for own in pins if name in own} == {version}, name


def test_no_document_speaks_of_another_version() -> None:
    versions = judged()
    for path in documents():
        where = path.relative_to(REPOSITORY).as_posix()
        if where == "CHANGELOG.md" or where.startswith(("docs/decisions/", "fixtures/")):
            continue  # of their day
        for name, version in SPOKEN.findall(path.read_text()):
            known = versions["orbax-checkpoint" if name.lower() == "orbax" else name.lower()]
            is_it = known == version or known.startswith(f"{version}.")
            assert is_it or f"{where}: {name} {version}" in FORMER, f"{where} says {name} {version}, judged is {known}"
