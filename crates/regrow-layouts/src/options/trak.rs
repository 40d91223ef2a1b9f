//! Options of a save in the layout `trak`, which has none so far.

use serde::Deserialize;

/// Options of the layout `trak`. The defaults write the same bytes as the original.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrakOptions {}
