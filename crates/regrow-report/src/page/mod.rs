//! The page: a template, followed by the data and the script that shows them.
//!
//! ```text
//! assets/head.html      summary, findings, the skeleton of the sections: readable without its script
//! <script data-column>  a column each: zlib, base64
//! <script id="report">  JSON of what is no column
//! <script>              assets/page.js, the only thing that runs: the policy of the page names its digest
//! ```
//!
//! Texts from a checkpoint go through the template, which escapes them, or into data. The script
//! makes text nodes of them.

mod columns;
mod data;
mod head;
mod inert;
mod sentences;

use std::io::{self, Write};

use crate::model::Report;

/// What `assets/build.mjs` makes of `assets/src`.
const SCRIPT: &str = include_str!("../../assets/page.js");

/// Writes the page: HTML, in one file, that needs nothing else.
///
/// One pass over the report. Beside it the page takes some hundred kilobytes of memory, and four
/// bytes for each leaf if more than fifty thousand have a histogram: then the page has those of the
/// largest.
///
/// # Errors
/// `InvalidInput` if a column of the report is not as long as the others; those of `out`, with a
/// part written.
pub fn page(report: &Report, out: &mut impl Write) -> io::Result<()> {
    report.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    out.write_all(head::render(report, SCRIPT)?.as_bytes())?;
    data::write(report, out)?;
    write!(out, "<script>{SCRIPT}</script>\n</body>\n</html>\n")
}
