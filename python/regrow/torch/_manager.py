"""A manager of steps for the states of training scripts: dicts of state dicts, counters, random
states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._core._keywords import keywords
from .._core._options import Options
from .._core._progress import Progress
from .._load._load import Loading
from .._load._open import open as open_checkpoint
from .._manager._manager import Manager as PytreeManager
from .._manager._restore import Loads
from .._save._item_kinds import Files, Json
from .._save._items import load_items
from .._save._writing import Writing
from ._encode import encode
from ._load import load
from ._save import with_record


class Manager(PytreeManager):
    """A `regrow.Manager` for the objects that `regrow.torch.save` accepts.

        with regrow.torch.Manager("run", keep=3, save_every=1000) as steps:
            if steps.latest is not None:
                checkpoint = steps.restore(map_location="cpu")
                model.load_state_dict(checkpoint["model"])
            for step in range(steps.next, 100_000):
                train(model, optimizer)
                steps.save(step, {"model": model.state_dict()})

    `save` copies the tensors before it returns, and writes them in the background.
    """

    @keywords
    def restore(  # type: ignore[override]
        self,
        step: int | None = None,
        like: Any = None,
        *,
        at: str | None = None,
        items: Mapping[str, Any] | Iterable[str] | None = None,
        map_location: Any = None,
        only: str | Iterable[str] | None = None,
        progress: Progress = None,
        options: Options | None = None,
    ) -> Any:
        """Loads a step as `regrow.torch.load` does; the newest good one if `step` is `None`.

        Args:
            step: The number of the step.
            like: As for `regrow.torch.load`.
            at: The item of a step with several items.
            items: Several items by name. The result is then a dict.
            map_location: The devices of the tensors, as for `regrow.torch.load`.
            only: As for `regrow.torch.load`.
            progress: As for `regrow.save`.
            options: Rare settings.

        Raises:
            NotFoundError: if the step does not exist, or the folder has no step.
            CorruptError: if the step is damaged; without `step`, if no step is good, with all
                reasons.
        """

        def one(where: Any, like: Any, asked: Loading, options: Options | None) -> Any:
            chosen: Any = asked.only
            return load(
                where, map_location, like=like, at=asked.at, only=chosen, progress=asked.progress, options=options
            )

        def several(where: Any, items: Any, asked: Loading, options: Options | None) -> dict[str, Any]:
            kinds = {found.name: found.kind for found in open_checkpoint(where).items_info}
            likes = dict(items) if isinstance(items, Mapping) else dict.fromkeys(items)
            rest = [name for name in likes if kinds.get(name) != "pytree"]
            found = load_items(where, rest) if rest else {}
            return {
                name: found[name] if name in found else one(where, like, asked.replaced(at=name), options)
                for name, like in likes.items()
            }

        asked = Loading(at=at, only=only, progress=progress)
        return self._restore(Loads(one, several), step, like, items, asked, options)

    def _as_saved(
        self, items: dict[str, Any], options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Any]]]:
        trees, own = dict(items), dict(options)
        for name, item in items.items():
            if isinstance(item, (Json, Files)):
                continue
            encoded = encode(item)
            given = own.get(name, {})
            layout = given.get("layout") or self._writing.layout
            told = with_record(Writing(layout=layout, metadata=given.get("metadata")), encoded)
            trees[name] = encoded.tree
            own[name] = {**given, "metadata": told.metadata}
        return trees, own
