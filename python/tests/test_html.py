"""Records in notebooks: small tables in which every text is nothing but text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import regrow

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "&lt;b&gt;",
    "a\u202eb",
    "\x1b[31m",
    "x" * 5000,
]
TAGS = {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}


class Reading(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def read(record: Any) -> Reading:
    html = record._repr_html_()
    assert len(html) < 30_000
    reading = Reading(html)
    assert reading.tags <= TAGS, reading.tags
    assert reading.attributes <= {("style", "text-align:left")}, reading.attributes
    assert reading.text.replace("…", "").isprintable()
    return reading


def test_hostile_names_are_inert_text(tmp_path: Path) -> None:
    path = tmp_path / "<b>run"
    tree = {key: np.float32([1, 2]) for key in HOSTILE}
    saved = regrow.save(path, tree, metadata={"<i>": "<u>"})
    checkpoint = regrow.open(path)
    shown = read(checkpoint)
    for key in HOSTILE[:3]:
        assert key in shown.text
    assert r"a\u{202e}b" in shown.text and "<b>run" in shown.text and "float32" in shown.text
    assert "x" * 300 not in shown.text
    for key in checkpoint:
        assert "numpy_array" in read(checkpoint[key]).text
    assert "commit" in read(saved).text
    other = {key: np.float32([1, 3]) for key in HOSTILE}
    assert HOSTILE[0] in read(regrow.diff(path, other)).text
    sound = read(regrow.verify(path))
    assert sound.text.startswith("sound; 6 leaves") and "table" not in sound.tags


def test_damage_is_shown(path: Path) -> None:
    regrow.save(path, {"<w>": np.zeros(100, np.float32)})
    (file,) = path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    shown = read(regrow.verify(path)).text
    assert shown.startswith("damaged: 1 finding") and "|corrupt|<w>|" in shown


def test_many_leaves_stay_a_small_table(path: Path) -> None:
    regrow.save(path, {f"leaf_{at}": np.int8([at]) for at in range(100)})
    assert "and 80 more|" in read(regrow.open(path)).text
    assert "and 80 more|" in read(regrow.diff(path, {})).text
    regrow.save(path, {}, overwrite=True)
    empty = read(regrow.open(path))
    assert "0 leaves" in empty.text and "table" not in empty.tags
