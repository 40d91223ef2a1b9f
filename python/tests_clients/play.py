"""One act of one program in a process of its own: ``play.py WHO PROGRAM ACT FOLDER``.

WHO is `original` or `regrow`, which puts regrow's drop-ins at the originals' names first. The last
line of the output is JSON: the state's leaves as dtype, shape and digest, or the exception.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any


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


def main() -> None:
    who, program, act, folder = sys.argv[1:]
    if who == "regrow":
        install()
    from programs import DAMAGE, PROGRAMS

    chosen = PROGRAMS[program]
    try:
        if act in ("save", "load"):
            answer = {"state": leaves(getattr(chosen, act)(Path(folder)))}
        elif act in DAMAGE:
            DAMAGE[act](Path(folder))
            answer = {"returned": leaves(chosen.load(Path(folder)))}
        else:
            answer = {"returned": repr(chosen.wrong[act](Path(folder)))}
    except Exception as error:
        if act in ("save", "load"):
            raise
        answer = {"raised": [of.__name__ for of in type(error).__mro__ if not of.__module__.startswith("regrow")]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
