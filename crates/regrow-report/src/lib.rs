//! The page of `regrow report`: one HTML file about a checkpoint.
//!
//! [`model`] has the data of a report. [`assemble`] makes it from checkpoints. [`page`] makes the
//! file: it contains all scripts, styles and data, needs no network, and runs only its own script.
//! Texts of the checkpoint are data in the page, never HTML.

mod assemble;
mod file;
pub mod model;
mod page;

pub use assemble::{ReportOptions, STEPS_READ_MAX, Subject, assemble};
pub use file::{check_target, save_page};
pub use page::page;

/// Runs the example in the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
