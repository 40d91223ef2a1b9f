"""Loading a step of a manager, one item or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._core._location import Location
from .._core._options import Options
from .._errors import InvalidArgumentError, RegrowError, failure
from .._load._load import Loading
from .._load._open import load_as
from .._load._open import open as open_checkpoint
from .._save import _items

ITEM = "default"
"""The name of the item for a single state, as in Orbax' manager."""


class PassedOver(NamedTuple):
    """A newer step that could not be restored, with the reason."""

    step: int
    error: RegrowError


class Loads(NamedTuple):
    """How the contents of a step are loaded."""

    one: Callable[[Location, Any, Loading, Options | None], Any]
    """Loads one item, whose name is in `Loading.at`. The arguments are the step's folder, the
    template, and the settings.
    """
    several: Callable[[Location, Any, Loading, Options | None], dict[str, Any]]
    """Loads several items. The items are in the place of the template."""


def _one_pytree(at: Location, like: Any, asked: Loading, options: Options | None) -> Any:
    return load_as(at, like, asked, options=options)


PYTREES = Loads(_one_pytree, _items.load_items_as)


def load_step(
    loads: Loads, at: Location, number: int, like: Any, items: Any, asked: Loading, options: Options | None
) -> Any:
    """Loads the content of a step."""
    if items is not None:
        return loads.several(at, items, asked, options)
    kinds = {found.name: found.kind for found in open_checkpoint(at).items_info}
    return loads.one(at, like, asked.replaced(at=_chosen(kinds, asked.at, number)), options)


def _chosen(kinds: Mapping[str, str], at: str | None, number: int) -> str | None:
    """The key path in a step. It begins with the name of an item, or lies in the default item or in
    the only tree.
    """
    if not kinds or (at is not None and at.partition("/")[0] in kinds):
        return at
    trees = [ITEM] if ITEM in kinds else [name for name, kind in kinds.items() if kind == "pytree"]
    if len(trees) == 1:
        return trees[0] if at is None else f"{trees[0]}/{at}"
    help = f"pass at= for one of them, or items= for several: {', '.join(kinds)}"
    raise failure(InvalidArgumentError, f"step {number} has several items, but none is called {ITEM!r}", help=help)
