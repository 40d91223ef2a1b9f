"""What protection costs: parity, seals, signatures, checks of what a base hands on, and what a
repair takes.

Each contestant does the same with the same pytree, once with the protection and once without.
`regrow` is the default layout, whose checksums are always on.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limits import Limit
from measure import LIMIT, OURS, Clock, Turn, drop_from_page_cache, interleave, size_on_disk
from setting import MIB, Setting, remove
from workloads import Tree, touch

import regrow

SAVE, COLD, VERIFY = "protected save", "protected load cold", "protected verify cold"
PARITY, REPAIR, SEAL, SIGN = "add parity", "repair 1 MiB", "seal", "sign"
RATIO = "1/16"

_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")
"""What stands before the 32 bytes of an Ed25519 key."""


def protecting(setting: Setting) -> None:
    """The life of a checkpoint, with each kind of protection and without."""
    workload = setting.scale.main
    with setting.tree(workload) as (tree, _, len_bytes), setting.room("protection") as room:
        key = base64.b64encode(_PKCS8 + os.urandom(32)).decode()
        pem = f"-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n"
        turns = [
            Turn(LIMIT, _limits(Limit(room, len_bytes))),
            Turn(OURS, _life(room / "plain", tree)),
            Turn(f"regrow, parity {RATIO}", _life(room / "parity", tree, _mend, parity=RATIO)),
            Turn("regrow, parity afterwards", _life(room / "after", tree, _add_parity)),
            Turn("regrow, signed", _life(room / "signed", tree, lambda clock, path: _sign(clock, path, pem))),
            Turn("orbax layout", _life(room / "orbax", tree, layout="orbax")),
            Turn("orbax layout, seal=True", _life(room / "sealed", tree, layout="orbax", seal=True)),
            Turn("orbax layout, sealed afterwards", _life(room / "later", tree, _seal, layout="orbax")),
        ]
        interleave(setting.samples, workload, turns, setting.rounds, SAVE)


def _limits(limit: Limit) -> Callable[[Clock], None]:
    def run(clock: Clock) -> None:
        clock.time(SAVE, limit.save)
        drop_from_page_cache(limit.file)
        clock.time(COLD, limit.load_cold)
        drop_from_page_cache(limit.file)
        clock.time(VERIFY, limit.load_cold)
        limit.remove()

    return run


def _life(
    path: Path, tree: Tree, protect: Callable[[Clock, Path], dict[str, Any]] | None = None, **options: Any
) -> Callable[[Clock], None]:
    """Save, protect, load, verify. `protect` gives the options of the load."""

    def run(clock: Clock) -> None:
        remove(path)
        try:
            clock.time(SAVE, lambda: regrow.save(path, tree, **options))
            opening = {} if protect is None else protect(clock, path)
            clock.keep("stored", size_on_disk(path), "bytes")
            drop_from_page_cache(path)
            clock.time(COLD, lambda: touch(regrow.load(path, **opening)))
            drop_from_page_cache(path)
            report = clock.time(VERIFY, lambda: regrow.verify(path, **opening))
            assert report, report
        finally:
            remove(path)

    return run


def _add_parity(clock: Clock, path: Path) -> dict[str, Any]:
    clock.time(PARITY, lambda: regrow.protect.add_parity(path, RATIO))
    return {}


def _mend(clock: Clock, path: Path) -> dict[str, Any]:
    """Writes zeros over a MiB of the largest file, and repairs it."""
    largest = max((file for file in path.rglob("*.safetensors")), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    drop_from_page_cache(path)
    report = clock.time(REPAIR, lambda: regrow.protect.repair(path))
    assert report.is_whole, report
    return {}


def _seal(clock: Clock, path: Path) -> dict[str, Any]:
    clock.time(SEAL, lambda: regrow.protect.seal(path))
    return {}


def _sign(clock: Clock, path: Path, pem: str) -> dict[str, Any]:
    report = clock.time(SIGN, lambda: regrow.protect.sign(path, pem))
    return {"trusted_keys": report.signers}
