//! Files whose names show the kind of a folder.

/// Orbax' commit marker; on local disks only a courtesy to copies in buckets.
pub const COMMIT_SUCCESS_FILE: &str = "commit_success.txt";

/// The empty file that marks the v1 layout.
pub const V1_MARKER_FILE: &str = "orbax.checkpoint";

/// The msgpack file of the oldest layouts.
pub const AGGREGATE_FILE: &str = "checkpoint";

/// The root record of a database.
pub(super) const MANIFEST_FILE: &str = "manifest.ocdbt";
