"""Text that people read: nothing that steers a terminal in messages, reprs and warnings, and
plurals that are right.
"""

from __future__ import annotations

import sys
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regrow
from regrow._text import counted, printable

HOSTILE = [
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp") or code in (0xE000, 0xFDD0, 0xFFFF, 0x10FFFF)
]
"""Without surrogates, which no file can hold, and with a few of the private and unassigned, of
which there are many.
"""


def assert_harmless(text: str) -> None:
    raw = {c for c in text if c != "\n" and c in HOSTILE}
    assert not raw, f"raw in {text[:200]!r}: {raw}"


def test_what_is_printable_is_what_unicode_says() -> None:
    for code in range(sys.maxunicode + 1):
        c = chr(code)
        is_shown = c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
        assert (printable(c) == c) == is_shown, hex(code)
    assert printable("a\x1b\u202e\udc80\r\tb") == r"a\u{1b}\u{202e}\u{dc80}\r\tb"


def test_one_is_one() -> None:
    assert [counted(n, "leaf", "leaves") for n in (0, 1, 2)] == ["0 leaves", "1 leaf", "2 leaves"]


def test_names_in_messages_and_reprs_are_harmless(tmp_path: Path) -> None:
    name = "".join(c for c in HOSTILE if c > "\x1f")[:40]
    tree = {f"a{c}b": np.arange(2) for c in HOSTILE} | {"text": "".join(HOSTILE)}
    path = tmp_path / f"ckpt{name}"
    regrow.save(path, tree)
    checkpoint = regrow.open(path)
    leaf = next(iter(checkpoint.values()))
    for shown in (repr(checkpoint), repr(leaf), checkpoint.overview(), str(regrow.verify(path))):
        assert_harmless(shown)
    back = regrow.load(path)
    assert list(back) == list(tree) and back["text"] == tree["text"]

    def message(call: Any) -> str:
        with pytest.raises(Exception) as raised:
            call()
        return str(raised.value)

    for text in (
        message(lambda: regrow.open(tmp_path / f"no{name}")),
        message(lambda: checkpoint[f"no{name}"]),
        message(lambda: regrow.load(path, like={name: np.arange(3)})),
        message(lambda: regrow.load(path, only=f"[{name}")),
        message(lambda: regrow.save(tmp_path / "x", {name: object()})),
        message(lambda: regrow.save(tmp_path / "x", {name: 1j}, layout=name)),
    ):
        assert_harmless(text)
        assert "\\u{" in text or "\\u" in text


def test_a_leaf_goes_by_its_name_as_it_is(tmp_path: Path) -> None:
    tree = {"a": {f"k{c}": np.asarray(at) for at, c in enumerate("\x1b\u202e\u200d\ufeff")}}
    regrow.save(tmp_path / "x", tree)
    checkpoint = regrow.open(tmp_path / "x")
    for at, key in enumerate(tree["a"]):
        assert checkpoint[f"a/{key}"].read() == at
        assert regrow.load(tmp_path / "x", only=f"a/{key}") == {"a": {key: np.asarray(at)}}


def test_surrogates_do_not_reach_a_terminal(tmp_path: Path) -> None:
    """A file name that is no UTF-8 is a `str` with surrogates to Python."""
    with pytest.raises(regrow.RegrowError) as raised:
        regrow.open(str(tmp_path / "no\udc80such"))
    assert str(raised.value).encode()
    assert str(regrow.RegrowError("a\udc80b")) == r"a\u{dc80}b"


def test_warnings_name_files_harmlessly(tmp_path: Path) -> None:
    from regrow import equinox

    path = tmp_path / "x\u202e.eqx"
    equinox.tree_serialise_leaves(path, [np.arange(3), np.arange(4)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        equinox.tree_deserialise_leaves(path, [np.arange(3)])
    assert caught and "1 more record " in str(caught[0].message)
    assert_harmless(str(caught[0].message))
