"""A manager of steps whose states are what training scripts have: dicts of state dicts, counters, random states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from .._errors import InvalidArgumentError
from .._item_kinds import Files, Json
from .._items import load_items
from .._keywords import LOAD, LoadOptions
from .._manager import Manager as PytreeManager
from .._manager_restore import Loads
from .._open import open as open_checkpoint
from ._encode import encode
from ._load import load
from ._save import with_record

_LOAD_OPTIONS = frozenset({"only", "mmap", "verify", "strict", "budget", "progress"})


class Manager(PytreeManager):
    """`regrow.Manager` for what `regrow.torch.save` takes.

        with regrow.torch.Manager("run", keep=3, every=1000) as steps:
            if steps.latest is not None:
                checkpoint = steps.restore(map_location="cpu")
                model.load_state_dict(checkpoint["model"])
            for step in range(steps.next, 100_000):
                train(model, optimizer)
                steps.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    `save` copies the tensors before it returns, and writes them in the background.
    """

    @LOAD.documented
    def restore(
        self,
        step: int | None = None,
        like: Any = None,
        *,
        item: str | None = None,
        items: Mapping[str, Any] | Iterable[str] | None = None,
        map_location: Any = None,
        **options: Unpack[LoadOptions],
    ) -> Any:
        """Loads a step as `regrow.torch.load` does; of the newest that is good if `step` is `None`.

        Args:
            step: Its number.
            like: As for `regrow.torch.load`.
            item: The item of a step of several.
            items: Several items, by name: a dict is returned.
            map_location: Where tensors go, as for `regrow.torch.load`.
            **options: Of the keywords of `LoadOptions` those that `regrow.torch.load` has: `only`, `mmap`, `verify`,
                `strict`, `budget`, `progress`.

        Raises:
            NotFoundError: if the step is not there, or there is none at all.
            CorruptError: if it is damaged; without `step`, if no step is good, with all reasons.
            InvalidArgumentError: for another keyword of `LoadOptions`.
        """
        others = sorted(options.keys() - _LOAD_OPTIONS)
        if others:
            help = f"take one of {', '.join(sorted(_LOAD_OPTIONS))}, or restore with regrow.Manager"
            raise InvalidArgumentError(
                f"{others[0]}= is not for restores of torch's objects\n  help: {help}", help=help
            )

        def one(at: Any, like: Any, *, item: str | None, **options: Any) -> Any:
            return load(at, map_location, like=like, item=item, **options)

        def several(at: Any, items: Any, **options: Any) -> dict[str, Any]:
            kinds = {found.name: found.kind for found in open_checkpoint(at).items_info}
            likes = dict(items) if isinstance(items, Mapping) else dict.fromkeys(items)
            rest = [name for name in likes if kinds.get(name) != "pytree"]
            found = load_items(at, rest) if rest else {}
            return {
                name: found[name] if name in found else one(at, like, item=name, **options)
                for name, like in likes.items()
            }

        return self._restore(Loads(one, several), step, like, item, items, options)

    def _as_saved(
        self, items: dict[str, Any], options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Any]]]:
        trees, own = dict(items), dict(options)
        for name, item in items.items():
            if isinstance(item, (Json, Files)):
                continue
            encoded = encode(item)
            layout = own.get(name, {}).get("layout") or self._options.get("layout") or "regrow"
            told = with_record({"layout": layout, "metadata": own.get(name, {}).get("metadata")}, encoded)
            trees[name] = encoded.tree
            own[name] = {**own.get(name, {}), **{key: value for key, value in told.items() if key != "layout"}}
        return trees, own
