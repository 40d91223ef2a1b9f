//! Files whose names show the kind of a folder.

/// Orbax' commit marker. On a local disk it only serves later copies of the checkpoint to a bucket.
pub const COMMIT_SUCCESS_FILE: &str = regrow_storage::COMMITTED_MARKER;

/// The empty file that marks the v1 layout.
pub const V1_MARKER_FILE: &str = "orbax.checkpoint";

/// The msgpack file of the oldest layouts.
pub const AGGREGATE_FILE: &str = "checkpoint";

/// The root record of a database.
pub(super) const MANIFEST_FILE: &str = regrow_ocdbt::MANIFEST_KEY;

/// The file of a JSON item, under the name that `JsonCheckpointHandler` gives it.
pub const JSON_FILE: &str = "metadata";
