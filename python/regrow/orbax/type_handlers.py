"""Types of leaves: their handlers, registries, and questions about a leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._errors import refusing
from ._leaf_args import PLACEHOLDER as PLACEHOLDER
from ._leaf_args import ArrayRestoreArgs as ArrayRestoreArgs
from ._leaf_args import RestoreArgs as RestoreArgs
from ._leaf_args import SaveArgs as SaveArgs
from ._leaf_args import SingleReplicaArrayRestoreArgs as SingleReplicaArrayRestoreArgs
from ._type_handlers import ArrayHandler as ArrayHandler
from ._type_handlers import NumpyHandler as NumpyHandler
from ._type_handlers import ParamInfo as ParamInfo
from ._type_handlers import ScalarHandler as ScalarHandler
from ._type_handlers import SingleReplicaArrayHandler as SingleReplicaArrayHandler
from ._type_handlers import StringHandler as StringHandler
from ._type_handlers import TypeHandler as TypeHandler
from ._type_handlers import check_input_arguments as check_input_arguments
from ._type_registry import GLOBAL_TYPE_HANDLER_REGISTRY as GLOBAL_TYPE_HANDLER_REGISTRY
from ._type_registry import TypeHandlerRegistry as TypeHandlerRegistry
from ._type_registry import create_type_handler_registry as create_type_handler_registry
from ._type_registry import get_type_handler as get_type_handler
from ._type_registry import has_type_handler as has_type_handler
from ._type_registry import register_standard_handlers_with_options as register_standard_handlers_with_options
from ._type_registry import register_type_handler as register_type_handler
from ._type_registry import supported_types as supported_types
from .metadata import PYTREE_METADATA_OPTIONS, PyTreeMetadataOptions
from .path.format_utils import is_ocdbt_checkpoint as is_ocdbt_checkpoint

__getattr__ = refusing(
    __name__,
    (
        "get_cast_tspec_deserialize get_cast_tspec_serialize get_json_tspec_read get_json_tspec_write "
        "get_ts_context merge_ocdbt_per_process_files",
        "the engine writes and reads arrays: use TensorStore itself",
    ),
)


def is_supported_type(value: Any, pytree_metadata_options: Any = None) -> bool:
    """Whether a value is an empty node, or needs no handler of the caller."""
    return is_supported_empty_value(value) or isinstance(value, tuple(supported_types()))


def is_supported_empty_value(
    value: Any, pytree_metadata_options: PyTreeMetadataOptions = PYTREE_METADATA_OPTIONS
) -> bool:
    """Whether a value is empty and needs no handler; of named tuples, only with rich types."""
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        return pytree_metadata_options.support_rich_types and not value
    return value is None or (isinstance(value, (list, tuple, Mapping)) and not value)
