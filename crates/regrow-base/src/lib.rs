//! Internals of regrow, without promises: the base of all its other crates.
//!
//! | module | holds |
//! |---|---|
//! | [`error`], [`wording`] | kinds and fields of an error; its help in the words of the caller's language |
//! | [`key`] | the steps from the root of a pytree to a leaf, which errors name |
//! | [`monitor`] | progress of a call, the time of its stages, and stopping it |
//! | [`bytes`] | reading foreign bytes under limits: cursors, checksums, zip, pages of memory |
//! | [`text`] | text that is fit for terminals |
//! | [`threads`] | threads under one budget of memory |
//! | [`system`] | calls of the operating system, each with its fallback |
//!
//! Nothing here knows arrays, layouts or storages.

pub mod bytes;
pub mod error;
pub mod key;
pub mod monitor;
pub mod system;
pub mod text;
pub mod threads;
pub mod wording;

pub use error::{Error, ErrorKind, Place, Result};
pub use monitor::Monitor;
