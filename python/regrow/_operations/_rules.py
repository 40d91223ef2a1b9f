"""Rules that rename and transpose leaves, from a call and from files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _native
from .._core import _arguments
from .._core._location import StrPath, places
from .._errors import InvalidArgumentError


def with_kept(options: Mapping[str, Any], rules: StrPath) -> dict[str, Any]:
    """The keywords of a call, with the rules of a file after the rules of the call."""
    import json

    from .. import layouts  # its classes take a millisecond

    place = places(None, rules=rules)
    layout, of_layout, only, rename, cast, transpose, reshape, lossy = _native.convert_rules(place["rules"])
    kept: dict[str, Any] = {"only": only or None, "lossy": lossy}
    own = json.loads(of_layout)
    if own and layout is None:
        # Without a layout name, these are options of the default layout.
        layout = layouts.Regrow.name
    if layout is not None:
        kept["layout"] = layouts.of_options(layout, own)
    said = dict(options)
    if said.get("layout") == layout:
        # The call names the layout of the file, without options: the options of the file apply.
        said.pop("layout", None)
    for name, own_rules in (("rename", rename), ("cast", cast), ("transpose", transpose), ("reshape", reshape)):
        first = said.get(name, {})
        if isinstance(first, Mapping):
            # The first match decides: the rules of the call come before those of the file.
            said[name] = dict(first)
            for pattern, rule in own_rules:
                said[name].setdefault(pattern, rule)
    return kept | said


def renames_of(rename: Any) -> list[tuple[str, str]]:
    """Regular expressions and their replacements, checked."""
    rules = {} if rename is None else rename
    if not isinstance(rules, Mapping) or not all(isinstance(text, str) for rule in rules.items() for text in rule):
        raise _arguments.wrong("rename", rename, "a dict of regular expressions and their replacements")
    return list(rules.items())


def numbers_of(name: str, rules: Any, minimum: int) -> list[tuple[str, list[int]]]:
    """Globs, each with integers, checked."""
    rules = {} if rules is None else rules
    if not isinstance(rules, Mapping) or not all(isinstance(pattern, str) for pattern in rules):
        raise _arguments.wrong(name, rules, "a dict of globs, with a sequence of integers for each")
    out = []
    for pattern, numbers in rules.items():
        try:
            row = [int(number) for number in numbers]
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{name}[{pattern!r}]={numbers!r} is not valid: expected a sequence of integers"
            ) from None
        if any(not minimum <= number < 2**63 for number in row):
            raise InvalidArgumentError(f"{name}[{pattern!r}]={numbers!r} holds a number out of range")
        out.append((pattern, row))
    return out
