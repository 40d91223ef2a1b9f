//! The page: a template, followed by the data and the script that shows them.
//!
//! ```text
//! assets/head.html      summary, findings, empty sections: readable without the script
//! <script data-column>  one for each column: zlib, base64
//! <script id="report">  everything else as JSON
//! <script>              assets/page.js: the page allows only a script with the digest of this one
//! ```
//!
//! Texts from a checkpoint go through the template, which escapes them, or into the data. The
//! script shows them as text nodes.

mod columns;
mod data;
mod head;
mod inert;
mod sentences;

use std::io::{self, Write};

use crate::model::Report;

/// The script that `assets/build.mjs` builds from `assets/src`.
const SCRIPT: &str = include_str!("../../assets/page.js");

/// Writes the page: one HTML file that needs no other file.
///
/// Makes one pass over the report. The page needs some hundred kilobytes of memory in addition. If
/// more than fifty thousand leaves have a histogram, the page contains only the histograms of the
/// largest leaves, and the call needs some more bytes for each leaf.
///
/// # Errors
/// `InvalidInput` if the columns of the report do not fit together; errors of `out`, after which a
/// part may be written.
pub fn page(report: &Report, out: &mut impl Write) -> io::Result<()> {
    report.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    out.write_all(head::render(report, SCRIPT)?.as_bytes())?;
    data::write(report, out)?;
    write!(out, "<script>{SCRIPT}</script>\n</body>\n</html>\n")
}
