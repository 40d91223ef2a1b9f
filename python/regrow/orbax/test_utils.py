"""The helpers of Orbax' tests that programs use."""

from __future__ import annotations

import shutil
from typing import Any

from ._errors import refusing
from ._paths import as_path

__getattr__ = refusing(
    __name__,
    (
        "ErrorCheckpointHandler ErrorRestoreArgs ErrorSaveArgs MockDeferredWritableTemporaryPath "
        "PyTreeCheckpointHandler TestLimitInFlightBytes apply_function assert_array_equal "
        "assert_every_n_is_x_apart assert_tree_equal assert_tree_same_structure barrier_compatible_test "
        "concurrent_gb_test_setup create_sharded_array create_single_replica_restore_args "
        "create_tmp_directory ensure_atomic_save filter_metadata_fields get_byte_limiter "
        "get_composite_save_args get_expected_chunk_shape get_fake_global_mesh_for_slices "
        "global_type_handler_registry_context is_compression_used is_leaf ocdbt_checkpoint_context "
        "print_directory register_type_handler replicate_sharded_array save_fake_tmp_dir "
        "select_single_replica set_tensorstore_driver_for_test setup_pytree setup_sharded_pytree "
        "swap_slices_in_mesh sync_global_processes",
        "it belongs to Orbax' own tests",
    ),
)


def erase_and_create_empty(directory: Any) -> Any:
    """Removes a folder with its content, and makes it again."""
    path = as_path(directory)
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


def empty_directory(directory: Any) -> bool:
    return not any(as_path(directory).iterdir())
