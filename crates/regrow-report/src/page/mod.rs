//! The page: a template around data.

use std::io::{self, Write};

use crate::model::Report;

/// Writes the page.
///
/// One pass over the report; beside it some hundred kilobytes of memory are taken, whatever the number of leaves.
///
/// # Errors
/// Those of `out`.
pub fn page(report: &Report, out: &mut impl Write) -> io::Result<()> {
    write!(out, "<!doctype html><title>{}</title>", report.title.replace('<', "&lt;"))
}
