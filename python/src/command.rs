//! The command `regrow` inside Python. It has the same code as the program.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use regrow_cli::Package;

/// The exit status of a Rust program after a panic. Rust has printed the message on stderr.
const PANICKED: u8 = 101;

/// Runs the command, and returns the exit status. `packages` returns for each Python package its
/// name, its version if it is installed, and its use. Only some commands call `packages`.
#[pyfunction]
pub fn command(py: Python<'_>, arguments: Vec<OsString>, packages: Py<PyAny>) -> u8 {
    let ask = || {
        Python::attach(|py| match packages.call0(py).and_then(|found| found.extract(py)) {
            Ok(found) => found,
            Err(error) => {
                error.write_unraisable(py, None);
                Vec::new()
            }
        })
    };
    let packages = || {
        let found: Vec<(String, Option<String>, String)> = ask();
        let package = |(name, version, used_for)| Package { name, version, used_for };
        found.into_iter().map(package).collect()
    };
    py.detach(|| catch_unwind(AssertUnwindSafe(|| regrow_cli::main(arguments, Some(&packages)))))
        .unwrap_or(PANICKED)
}
