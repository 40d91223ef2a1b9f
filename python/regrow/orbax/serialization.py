"""Names of Orbax' interface to TensorStore."""

from ._errors import refusing

__getattr__ = refusing(
    __name__,
    (
        "async_deserialize async_serialize get_ts_context tensorstore_utils ts_utils",
        "use regrow.save and regrow.load, or TensorStore itself",
    ),
)
