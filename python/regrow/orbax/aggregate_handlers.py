"""Names for the layouts of 2022, which kept leaves in one msgpack file. regrow reads these layouts
without a handler.
"""

from ._errors import refusing

__getattr__ = refusing(
    __name__,
    ("AggregateHandler MsgpackHandler", "regrow.load and the checkpointers read such checkpoints; none are written"),
)
