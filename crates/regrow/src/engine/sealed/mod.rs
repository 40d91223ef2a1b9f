//! What is sealed, opened under its seal. [`mod@crate::seal`] has what a seal is.
//!
//! | module | does |
//! |---|---|
//! | `opening` | finds the seal, and has the layout read under it |
//! | `reader` | the reader of a checkpoint under its seal |
//! | `check` | looks at blocks that no leaf asks for |

mod check;
mod opening;
mod reader;

pub(super) use opening::{misfits, read_under_seal};
