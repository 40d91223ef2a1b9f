"""safetensors files under safetensors' own names: a drop-in for the package of that name.

    from regrow.safetensors import safe_open                     # instead of: from safetensors import safe_open
    from regrow.safetensors.numpy import load_file, save_file    # .flax for jax.Array, .torch for torch.Tensor

    save_file({"w": w, "b": b}, "model.safetensors", metadata={"format": "np"})
    tensors = load_file("model.safetensors")
    with safe_open("model.safetensors", framework="numpy") as file:
        part = file.get_slice("w")[0:16]                         # reads just those bytes

The files are byte for byte those of safetensors, and are written all or not at all, synced to disk. What is here
beside the original: folders with ``model.safetensors.index.json``, trees of dicts (``sep``, ``nested``), views
without a copy (``copy=False``), float8 and float4 through ml_dtypes.

The functions of this module are those of `regrow.safetensors.numpy`.
"""

from __future__ import annotations

from ._errors import SafetensorError, SafetensorIndexError
from ._open import SafeSlice, deserialize, safe_open
from .numpy import load, load_file, save, save_file

__all__ = [
    "SafeSlice",
    "SafetensorError",
    "SafetensorIndexError",
    "deserialize",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
]
