"""Types of leaves: their handlers, registries, and questions about a leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._errors import refusing
from ._leaf_args import PLACEHOLDER, ArrayRestoreArgs, RestoreArgs, SaveArgs, SingleReplicaArrayRestoreArgs
from ._paths import as_path
from ._type_handlers import (
    ArrayHandler,
    NumpyHandler,
    ParamInfo,
    ScalarHandler,
    SingleReplicaArrayHandler,
    StringHandler,
    TypeHandler,
    check_input_arguments,
)
from ._type_registry import (
    GLOBAL_TYPE_HANDLER_REGISTRY,
    TypeHandlerRegistry,
    create_type_handler_registry,
    get_type_handler,
    has_type_handler,
    register_standard_handlers_with_options,
    register_type_handler,
    supported_types,
)
from .metadata import PYTREE_METADATA_OPTIONS, PyTreeMetadataOptions

__all__ = [
    "GLOBAL_TYPE_HANDLER_REGISTRY",
    "PLACEHOLDER",
    "ArrayHandler",
    "ArrayRestoreArgs",
    "NumpyHandler",
    "ParamInfo",
    "RestoreArgs",
    "SaveArgs",
    "ScalarHandler",
    "SingleReplicaArrayHandler",
    "SingleReplicaArrayRestoreArgs",
    "StringHandler",
    "TypeHandler",
    "TypeHandlerRegistry",
    "check_input_arguments",
    "create_type_handler_registry",
    "get_type_handler",
    "has_type_handler",
    "is_ocdbt_checkpoint",
    "is_supported_empty_value",
    "is_supported_type",
    "register_standard_handlers_with_options",
    "register_type_handler",
    "supported_types",
]

__getattr__ = refusing(
    __name__,
    dict.fromkeys(
        (
            "get_cast_tspec_deserialize",
            "get_cast_tspec_serialize",
            "get_json_tspec_read",
            "get_json_tspec_write",
            "get_ts_context",
            "merge_ocdbt_per_process_files",
        ),
        "the engine writes and reads arrays: use TensorStore itself",
    ),
)


def is_supported_type(value: Any, pytree_metadata_options: Any = None) -> bool:
    """Whether a value is an empty node, or needs no handler of the caller."""
    return is_supported_empty_value(value) or isinstance(value, tuple(supported_types()))


def is_ocdbt_checkpoint(path: Any) -> bool:
    """Whether the arrays are in an OCDBT database."""
    return bool((as_path(path) / "manifest.ocdbt").exists())


def is_supported_empty_value(
    value: Any, pytree_metadata_options: PyTreeMetadataOptions = PYTREE_METADATA_OPTIONS
) -> bool:
    """Whether a value is an empty value that needs no handler. Named tuples are, only if the
    options keep them as such.
    """
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        return pytree_metadata_options.support_rich_types and not value
    return value is None or (isinstance(value, (list, tuple, Mapping)) and not value)
