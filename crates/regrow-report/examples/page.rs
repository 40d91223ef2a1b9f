//! Writes the page of a model: JSON as `regrow report --json` prints it comes in on stdin, HTML
//! goes out on stdout.
//!
//! The tests in a browser make their pages with it.

use std::io::{self, BufReader, BufWriter, Write};

use regrow_report::model::Report;

fn main() -> io::Result<()> {
    let report: Report = serde_json::from_reader(BufReader::new(io::stdin().lock()))?;
    let mut out = BufWriter::new(io::stdout().lock());
    regrow_report::page(&report, &mut out)?;
    out.flush()
}
