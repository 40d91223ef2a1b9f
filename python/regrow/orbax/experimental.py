"""Orbax' experimental names: v1, under its first name."""

from . import v1 as v1
from ._errors import refusing

__getattr__ = refusing(
    __name__,
    ("emergency", "use regrow.save_async, or the original for emergency checkpoints"),
    ("model_surgery", "load the pytree, and change it"),
    ("tiering_service", "use the original"),
)
