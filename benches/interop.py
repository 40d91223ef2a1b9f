"""Other tools' files: conversions, Orbax' own forms, Flax' bytes and Equinox' files, ours
against the originals'.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chunked import Orbax
from limits import Limit
from measure import LIMIT, OURS, Clock, Turn, bring_into_page_cache, drop_from_page_cache, interleave, sync
from setting import FORMS, Setting, remove
from tools import write_synced
from workloads import touch

TARGETS = ("orbax", "flax", "safetensors")
FLAX_ENCODE = "flax to_bytes"
FLAX_SAVE, FLAX_LOAD = "flax to_bytes + file", "flax file + from_bytes"
EQUINOX_SAVE, EQUINOX_LOAD = "equinox save", "equinox load"


def converting(setting: Setting) -> None:
    """From regrow's layout to others, cold and synced, against copying as many bytes."""
    import regrow

    workload = setting.scale.main
    with setting.room("convert") as room:
        with setting.tree(workload) as (tree, _, len_bytes):
            regrow.save(room / "source", tree)
        limit = Limit(room, len_bytes)
        limit.save()

        def copy(clock: Clock) -> None:
            drop_from_page_cache(limit.file)
            clock.time("convert", limit.copy_files)
            limit.second.unlink()

        turns = [Turn(LIMIT, copy)]
        turns += [Turn(f"regrow to {layout}", _converting(room, layout)) for layout in TARGETS]
        interleave(setting.samples, workload, turns, setting.rounds, "convert")


def _converting(room: Path, layout: str) -> Callable[[Clock], None]:
    import regrow

    def run(clock: Clock) -> None:
        target = room / layout
        remove(target)
        drop_from_page_cache(room / "source")
        options: dict[str, Any] = {"compression": "none"} if layout == "orbax" else {}
        clock.time("convert", lambda: regrow.convert(room / "source", target, layout=layout, lossy=True, **options))
        remove(target)

    return run


def orbax_forms(setting: Setting) -> None:
    """Orbax' forms, written by both; and what Orbax wrote, read by both."""
    workload = setting.scale.main
    for form in FORMS:
        with setting.tree(workload) as (tree, _, _), setting.room("forms") as room:
            tool = form()
            is_raw = form.options.get("use_compression") is False
            options = {"use_zarr3": form.options.get("use_zarr3", False), "compression": "none" if is_raw else "zstd"}
            tool.save(room / "theirs", tree)

            def ours(clock: Clock, room=room, tree=tree, form=form, options=options) -> None:
                import regrow

                clock.time(f"save {form.name}", lambda: regrow.save(room / "ours", tree, layout="orbax", **options))
                remove(room / "ours")
                _read_both(clock, form.name, room / "theirs", regrow.load)

            def theirs(clock: Clock, room=room, tree=tree, form=form, tool=tool) -> None:
                clock.time(f"save {form.name}", lambda: tool.save(room / "again", tree))
                remove(room / "again")
                _read_both(clock, form.name, room / "theirs", tool.load)

            turns = [Turn(OURS, ours), Turn(Orbax.name, theirs)]
            interleave(setting.samples, workload, turns, setting.rounds, form.name)


def _read_both(clock: Clock, form: str, path: Path, load: Callable[[Path], object]) -> None:
    drop_from_page_cache(path)
    clock.time(f"load cold {form}", lambda: touch(load(path)))
    bring_into_page_cache(path)
    clock.time(f"load warm {form}", lambda: touch(load(path)))


def flax(setting: Setting) -> None:
    """`to_bytes`, the same and a file, a file and `from_bytes`; synced, and warm."""
    from flax import serialization

    import regrow
    import regrow.flax

    workload = setting.scale.main
    with setting.tree(workload) as (tree, _, _), setting.room("flax") as room:

        def original(clock: Clock) -> None:
            path = room / "original"
            clock.time(FLAX_ENCODE, lambda: serialization.to_bytes(tree))
            clock.time(FLAX_SAVE, lambda: write_synced(path, serialization.to_bytes(tree)))
            bring_into_page_cache(path)
            clock.time(FLAX_LOAD, lambda: touch(serialization.from_bytes(tree, path.read_bytes())))
            remove(path)

        def ours(clock: Clock) -> None:
            path = room / "ours"
            clock.time(FLAX_ENCODE, lambda: regrow.flax.to_bytes(tree))
            clock.time(FLAX_SAVE, lambda: write_synced(path, regrow.flax.to_bytes(tree)))
            bring_into_page_cache(path)

            def load() -> int:
                with open(path, "rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                return touch(regrow.flax.from_bytes(tree, mapped))

            clock.time(FLAX_LOAD, load)
            remove(path)

        def whole_file(clock: Clock) -> None:
            path = room / "file"
            clock.time(FLAX_SAVE, lambda: regrow.save(path, tree, layout="flax"))
            bring_into_page_cache(path)
            clock.time(FLAX_LOAD, lambda: touch(regrow.load(path)))
            remove(path)

        turns = [Turn(OURS, ours), Turn("regrow.save", whole_file), Turn("flax", original)]
        interleave(setting.samples, workload, turns, setting.rounds, "flax")


def equinox(setting: Setting) -> None:
    """`tree_serialise_leaves` and `tree_deserialise_leaves`; synced, and warm."""
    import equinox

    import regrow.equinox

    workload = setting.scale.main
    with setting.tree(workload) as (tree, _, _), setting.room("equinox") as room:

        def original(clock: Clock) -> None:
            path = room / "original.eqx"

            def save() -> None:
                equinox.tree_serialise_leaves(path, tree)
                sync(path)
                sync(room)

            clock.time(EQUINOX_SAVE, save)
            bring_into_page_cache(path)
            clock.time(EQUINOX_LOAD, lambda: touch(equinox.tree_deserialise_leaves(path, tree)))
            remove(path)

        def ours(clock: Clock) -> None:
            path = room / "ours.eqx"
            clock.time(EQUINOX_SAVE, lambda: regrow.equinox.tree_serialise_leaves(path, tree))
            bring_into_page_cache(path)
            clock.time(EQUINOX_LOAD, lambda: touch(regrow.equinox.tree_deserialise_leaves(path, tree)))
            remove(path)

        turns = [Turn(OURS, ours), Turn("equinox", original)]
        interleave(setting.samples, workload, turns, setting.rounds, "equinox")
