//! Opens a sealed checkpoint with its seal. [`mod@crate::seal`] describes a seal.
//!
//! | module | does |
//! |---|---|
//! | `opening` | finds the seal, and opens the layout with it |
//! | `reader` | the reader of a sealed checkpoint |
//! | `check` | checks the blocks that no check of a leaf has read |

mod check;
mod opening;
mod reader;

pub(super) use opening::{misfits, read_under_seal};
