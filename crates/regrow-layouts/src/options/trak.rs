//! Options of a save in this layout.

use serde::Deserialize;

/// Options of the layout `trak`. The defaults write the same bytes as the original.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrakOptions {}
