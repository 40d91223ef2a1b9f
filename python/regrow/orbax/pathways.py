"""Names that Orbax has for Pathways."""

from ._errors import refusing

__getattr__ = refusing(__name__, ("CheckpointingImpl register_type_handlers", "use the original with Pathways"))
