"""Acts of one program, in a process of their own: ``play.py WHO PROGRAM FOLDER ACT:SAVED_BY ...``.

WHO is `original` or `regrow`, which puts regrow's drop-ins at the originals' names first. `save` and
`load` use the folder FOLDER/SAVED_BY, any other act loads from a copy of it. The last line of the
output is JSON, an answer for each act: the state's leaves as dtype, shape and digest, or the
exception.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from programs import DAMAGE, PROGRAMS, Program


def install() -> None:
    import regrow.equinox
    import regrow.flax
    import regrow.orbax
    import regrow.safetensors

    for drop_in in (regrow.orbax, regrow.flax, regrow.equinox, regrow.safetensors):
        drop_in.install()


def leaves(state: Any) -> dict[str, list[Any]]:
    import jax
    import numpy as np

    def told(leaf: Any) -> list[Any]:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()[:16]]

    with_paths, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): told(leaf) for path, leaf in with_paths}


def played(program: Program, act: str, folder: Path, copy: Path) -> Any:
    if act in ("save", "load"):
        return getattr(program, act)(folder)
    shutil.copytree(folder, copy)
    if act in DAMAGE:
        DAMAGE[act](copy)
        return program.load(copy)
    return program.wrong[act](copy)


def main() -> None:
    who, program, folder, *acts = sys.argv[1:]
    if who == "regrow":
        install()
    answers = []
    for each in acts:
        act, saved_by = each.split(":")
        try:
            state = played(PROGRAMS[program], act, Path(folder, saved_by), Path(folder, f"{who}-{act}"))
            answers.append({"returned": leaves(state)})
        except Exception as error:
            names = [of.__name__ for of in type(error).__mro__]
            answers.append({"raised": names, "text": traceback.format_exc()})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
