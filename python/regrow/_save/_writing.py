"""The options of a save or a conversion, and the request that the engine takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import _native
from .._core import _arguments, _json, _options
from .._core._location import Place, StrPath
from .._core._options import Options
from .._core._record import Record
from .._core._requests import Casts, SaveRequest
from .._errors import InvalidArgumentError
from .._jobs import _job
from . import _layout
from ._layout import Layout


class Writing(Record):
    """The keywords of a save, as the caller gave them."""

    layout: str | Layout | None = None
    overwrite: bool | Literal["any file"] = False
    """``"any file"`` also replaces a file that is no checkpoint."""
    durable: bool = True
    cast: Any = None
    lossy: bool = False
    compression: Any = None
    metadata: Any = None
    base: StrPath | None = None
    seal: bool = False
    parity: str | None = None
    storage_options: Mapping[str, Any] | None = None
    job: _job.Job | None = None
    options: Options | None = None

    def rare(self) -> Options:
        """The rare settings, including the settings of a block."""
        return _options.chosen(self.options, "save")

    def laid_out(self, at: Place) -> Writing:
        """Adds the layout that the suffix of the path chooses, if the caller named no layout."""
        return self if self.layout is not None else self.replaced(layout=_native.layout_for(at))

    @property
    def layout_name(self) -> str:
        """The name of the layout; the name of the default layout if the caller named none."""
        return _layout.chosen(self.layout)[0]

    def request(self, base: Place | None, *, alone: bool = False) -> SaveRequest:
        """The request to the engine. With `alone`, no other process takes part in the save."""
        (layout, layout_options), rare = _layout.chosen(self.layout), self.rare()
        replaces = self.overwrite
        if not (isinstance(replaces, str) and replaces == "any file"):
            replaces = _arguments.flag("overwrite", replaces)
        return SaveRequest(
            overwrite=replaces,
            durable=_arguments.flag("durable", self.durable),
            keep_cached=_arguments.flag("keep_cached", rare.keep_cached),
            casts=casts(self.cast, self.lossy),
            compression=compression_level(self.compression),
            metadata=json_text(self.metadata),
            seal=_arguments.flag("seal", self.seal),
            parity=_arguments.text("parity", self.parity),
            trust_base=_arguments.flag("trust_base", rare.trust_base),
            budget_bytes=_arguments.budget(rare.budget_bytes),
            wait=_arguments.seconds("wait", rare.wait),
            layout=layout,
            layout_options=layout_options,
            base=base,
            job=None if alone else self.native_job(),
        )

    def native_job(self) -> _job.NativeJob | None:
        """The job whose processes save together; `None` for this process alone."""
        return _job.chosen(self.asked_job())

    def asked_job(self) -> Any:
        """The job that the caller named, if any."""
        return _options.job_of(self.job, self.options)


class AsNumpy(NamedTuple):
    """A cast of every array that changes values as NumPy does: for drop-ins of functions of other
    libraries.
    """

    dtype: Any


def casts(cast: Any, lossy: Any = False) -> Casts:
    """The casts, from one dtype for all leaves or a dict of dtypes, and whether a cast may change
    values beyond rounding.
    """
    if isinstance(cast, AsNumpy):
        return Casts([("**", dtype_name(cast.dtype))], "as_numpy")
    casting = "lossy" if _arguments.flag("lossy", lossy) else "checked"
    if cast is None:
        return Casts([], casting)
    if not isinstance(cast, Mapping):
        cast = {"**": cast}
    if not all(isinstance(pattern, str) for pattern in cast):
        raise _arguments.wrong("cast", cast, "a dtype, or a dict of globs over key paths with a dtype for each")
    return Casts([(pattern, dtype_name(dtype)) for pattern, dtype in cast.items()], casting)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype to which arrays are cast, from NumPy or ml_dtypes."""
    import ml_dtypes

    name = dtype if isinstance(dtype, str) and hasattr(ml_dtypes, dtype) else None
    try:
        # NumPy interprets `None` as float64.
        name = name or (None if dtype is None else str(np.dtype(dtype).name))
    except (TypeError, ValueError, SyntaxError):
        name = None
    if name not in _native.DTYPES:
        raise _arguments.wrong("cast", dtype, _expected_dtype(dtype))
    return name


def _expected_dtype(dtype: Any) -> str:
    import difflib  # only errors need this

    near = difflib.get_close_matches(_SHORT.get(str(dtype), str(dtype)), _native.DTYPES, n=3, cutoff=0.5)
    such = ", ".join(near or ["float32", "bfloat16", "int32"])
    return f"a dtype such as {such}; or a dict of globs over key paths with a dtype for each"


_SHORT = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "f32": "float32", "fp8": "float8"}
"""Names of dtypes in other libraries."""


ZSTD_LEVELS = range(-131072, 23)


def compression_level(compression: Any) -> int | str | None:
    """`None` for the layout's default, "none", or the level of zstd."""
    match compression:
        case None | "none":
            return None if compression is None else "none"
        case "zstd":
            return 1
        case bool():
            pass
        case int() as level if level in ZSTD_LEVELS:
            return level
        case ("zstd", int() as level) if level in ZSTD_LEVELS:
            return level
    raise InvalidArgumentError(
        f'compression={compression!r} is not valid: expected None, "none", "zstd", ("zstd", level) or a level'
        f" from {ZSTD_LEVELS.start} to {ZSTD_LEVELS.stop - 1}"
    )


def json_text(metadata: Any) -> str | None:
    """The user's metadata as JSON."""
    return None if metadata is None else _json.text("metadata", metadata)
