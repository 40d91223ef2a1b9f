"""Names of Orbax' interface to TensorStore."""

from __future__ import annotations

from ._errors import refusing

__all__: list[str] = []

_HINT = "use regrow.save and regrow.load, or TensorStore itself"

__getattr__ = refusing(
    __name__,
    dict.fromkeys(("async_deserialize", "async_serialize", "get_ts_context", "tensorstore_utils", "ts_utils"), _HINT),
)
