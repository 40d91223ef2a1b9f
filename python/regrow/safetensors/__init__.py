"""safetensors files under safetensors' own names: a drop-in for the package of that name.

    from regrow.safetensors import safe_open
    # `.flax` for jax.Array, `.torch` for torch.Tensor
    from regrow.safetensors.numpy import load_file, save_file

    save_file({"w": w, "b": b}, "model.safetensors", metadata={"format": "np"})
    tensors = load_file("model.safetensors")
    with safe_open("model.safetensors", framework="numpy") as file:
        part = file.get_slice("w")[0:16]  # reads only these bytes

The files equal those of safetensors byte for byte. A save writes the whole file or nothing, and
syncs the file to disk. Beyond the original: folders with ``model.safetensors.index.json``, trees of
dicts (``sep``, ``nested``), views without a copy (``copy=False``), float8 and float4 through
ml_dtypes.

This package has all names of the original, including private names that other packages import.
`load`, `load_file`, `save` and `save_file` of this module are those of `regrow.safetensors.numpy`.
"""

from __future__ import annotations

from .._core import _install
from ._errors import SafetensorError, SafetensorIndexError
from ._open import SafeSlice, safe_open
from ._open import _safe_open_handle as _safe_open_handle
from ._raw import TensorSpec, deserialize, serialize, serialize_file
from .numpy import load, load_file, save, save_file

__version__ = "0.8.0"
"""The version of safetensors whose functions this package provides."""

__all__ = [
    "SafeSlice",
    "SafetensorError",
    "SafetensorIndexError",
    "TensorSpec",
    "deserialize",
    "install",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
    "serialize",
    "serialize_file",
]


def install() -> None:
    """Registers the modules of this package as ``safetensors`` and its modules, for all later
    imports of them.

    Raises:
        RuntimeError: if the program has already imported safetensors: modules that imported its
            functions keep them.
    """
    names = ("", ".flax", ".numpy", ".torch")
    _install.install({f"safetensors{name}": f"{__name__}{name}" for name in names})
