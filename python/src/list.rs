//! Lists the checkpoints in a folder.

use std::ffi::OsString;
use std::time::UNIX_EPOCH;

use pyo3::prelude::*;
use regrow::engine::{Listed, ListedState};
use regrow::location::ToLocation;

use crate::checkpoint::{FindingOut, finding_out};
use crate::error::released;
use crate::location::LocationIn;

/// A checkpoint: name, path, layout, state, steps; files, bytes and seconds since 1970, if the
/// storage has them; the error.
type ListedOut = (
    String,
    OsString,
    Option<String>,
    &'static str,
    Vec<u64>,
    (Option<usize>, Option<u64>, Option<f64>),
    Option<FindingOut>,
);

/// Lists the checkpoints directly in a folder.
#[pyfunction]
pub fn list_checkpoints(py: Python<'_>, folder: LocationIn) -> PyResult<Vec<ListedOut>> {
    let found = released(py, || regrow::list(folder.to_location()?))?;
    Ok(found.into_iter().map(listed_out).collect())
}

fn listed_out(listed: Listed) -> ListedOut {
    let modified = listed.stock.and_then(|stock| stock.modified);
    let modified = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    let stock = (
        listed.stock.map(|stock| stock.file_count),
        listed.stock.map(|stock| stock.bytes),
        modified.map(|modified| modified.as_secs_f64()),
    );
    let state = listed.state.name();
    let error = match &listed.state {
        ListedState::Damaged(error) => Some(finding_out(error)),
        ListedState::Committed | ListedState::Unfinished => None,
    };
    let layout = Some(listed.layout).filter(|layout| !layout.is_empty());
    (listed.name, listed.path.into_os_string(), layout, state, listed.steps, stock, error)
}
