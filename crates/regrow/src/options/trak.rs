//! Options of a save in this layout.

use serde::Deserialize;

/// Options of the layout `trak`. Each has a default that writes what the original writes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrakOptions {}
