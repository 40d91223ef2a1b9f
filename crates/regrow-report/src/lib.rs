//! The page of `regrow report`: a checkpoint as one HTML file that a person can look at.
//!
//! [`model`] is what a report says, as data; [`assemble`] makes it of checkpoints. [`page`] makes
//! the file of it: scripts, styles and data are all inside, it needs no network, and nothing in it
//! runs but its own script. Texts of the checkpoint are data to it, never HTML.

mod assemble;
mod file;
pub mod model;
mod page;

pub use assemble::{ReportOptions, STEPS_READ_MAX, Subject, assemble};
pub use file::{check_target, save_page};
pub use page::page;

/// The example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
