"""Stages the pages of the documentation site, which `make docs` then builds; afterwards looks at
what was built.

    python docs/site.py stage           # what git knows of the pages, as it lies in the repository: site-out/pages
    python docs/site.py check           # site-out/html has every page, no dead link, and fetches from nowhere

The pages keep their places, so that a link that works in the repository works in the site, too. Two
things are added: the list of decisions, by date, and the Rust reference where `cargo doc` has left
it (docs/api).
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

REPOSITORY = Path(__file__).parents[1]
OUT = REPOSITORY / "docs/site-out"
PAGES, HTML = OUT / "pages", OUT / "html"

SHOWN = ["*.md", "LICENSE-*", "docs/**/*.md", "docs/**/*.png", "docs/site.css", "**/public_api.txt"]
SHOWN += ["docs/**/*.ipynb"]
SHOWN += [f"examples/**/*.{suffix}" for suffix in ("py", "rs", "toml")]
DECISIONS = Path("docs/decisions")
RUST = Path("docs/api")

# Some titles say the date, too.
DATED = re.compile(r"^[0-9-]{10}: | \([0-9-]{10}\)$")

# What the tests of the pages are told; see python/tests/snippets.py.
HIDDEN = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)

FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]*", re.IGNORECASE)
LINKED = re.compile(r"<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]*[^>]*>", re.IGNORECASE)
CODE = re.compile(r"<pre\b.*?</pre>", re.DOTALL)
COLUMNS = 76
"""That a block of code has room for; in pages, a test looks for longer lines."""
TARGET = re.compile(r"<(?:a|img|script|link)\b[^>]*?\b(?:href|src)=\"([^\"]*)\"", re.IGNORECASE)
IMPORTED = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"') ]*", re.IGNORECASE)


def stage() -> None:
    """Copies the pages to where the generator looks for them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in tracked():
        (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        if name.suffix == ".md":
            text = HIDDEN.sub("", (REPOSITORY / name).read_text())
            (PAGES / name).write_text(text.replace(".ipynb)", ".md)"))
        elif name.suffix == ".ipynb":
            notebook = json.loads((REPOSITORY / name).read_text())
            (PAGES / name).with_suffix(".md").write_text(page_of(notebook))
        else:
            shutil.copyfile(REPOSITORY / name, PAGES / name)
    with (PAGES / DECISIONS / "README.md").open("a") as page:
        page.write("\n" + "".join(decision_lines()))
    if (REPOSITORY / RUST).exists():
        shutil.copytree(REPOSITORY / RUST, PAGES / RUST)


def page_of(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown, with the outputs that it holds."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
    """An output as HTML if it has HTML, else as text."""
    data = output.get("data", {"text/plain": output.get("text", [])})
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def tracked() -> list[Path]:
    """The files that the site shows: those that git has, or would take."""
    shown = [f":(glob){each}" for each in SHOWN]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *shown]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return sorted({Path(name) for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()})


def decision_lines() -> list[str]:
    """A line for each decision, the newest first."""
    notes = sorted((REPOSITORY / DECISIONS).glob("2*.md"), reverse=True)
    return [f"- {note.name[:10]}: [{DATED.sub('', title(note))}]({note.name})\n" for note in notes]


def title(page: Path) -> str:
    """The first heading of a page."""
    return next(line.removeprefix("# ").strip() for line in page.read_text().splitlines() if line.startswith("# "))


def check() -> list[str]:
    """What is wrong with the site that was built."""
    problems = []
    for page in PAGES.rglob("*.md"):
        built = (HTML / page.relative_to(PAGES)).with_suffix(".html")
        if not (built.exists() or (page.name == "README.md" and built.with_name("index.html").exists())):
            problems.append(f"{page.relative_to(PAGES)} has no page in the site")
    for file in [*HTML.rglob("*.html"), *HTML.rglob("*.css")]:
        if file.is_relative_to(HTML / RUST):
            continue
        text = file.read_text(errors="replace")
        links = [link for link in LINKED.findall(text) if not re.search(r"rel=[\"']?(canonical|prev|next)", link)]
        found = [*FETCHED.findall(text), *links, *IMPORTED.findall(text)]
        problems += [f"{file.relative_to(HTML)} fetches from the network: {each[:120]}" for each in found]
        if file.suffix == ".html" and file.name != "404.html":
            problems += [f"{file.relative_to(HTML)}: {each} is not there" for each in dead(file, text)]
        if file.is_relative_to(HTML / "docs/reference"):
            problems += [f"{file.relative_to(HTML)}: a long line of code: {each}" for each in long(text)]
    return problems


def dead(page: Path, text: str) -> list[str]:
    """The relative links of a page that was built, and its pictures, that lead nowhere."""
    names = {unquote(html.unescape(name)).split("#")[0] for name in TARGET.findall(text)}
    return sorted(name for name in names if name and ":" not in name and not (page.parent / name).exists())


def long(text: str) -> list[str]:
    """The lines of code that are wider than the column of the site."""
    lines = [line for code in CODE.findall(text) for line in html.unescape(re.sub(r"<[^>]*>", "", code)).splitlines()]
    return [line for line in lines if len(line) > COLUMNS]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["stage"]:
            stage()
        case ["check"]:
            if found := check():
                sys.exit("docs/site.py: " + "\n".join(found))
        case _:
            sys.exit(__doc__)
