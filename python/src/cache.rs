//! The read-through cache of buckets.

use std::path::PathBuf;

use pyo3::prelude::*;
use regrow::engine::ByteSize;

use crate::error::OrRaise;

/// A folder of a local disk that caches bytes read from buckets.
#[pyclass(frozen, module = "regrow._native")]
pub struct Cache(pub regrow::Cache);

#[pymethods]
impl Cache {
    /// A cache in a folder. `max_size` is its largest size as text with a unit.
    #[new]
    fn new(folder: PathBuf, max_size: &str) -> PyResult<Self> {
        let made = || {
            let max_size: ByteSize = max_size.parse()?;
            Ok(regrow::Cache::at(folder)?.with_len_max_bytes(max_size.0))
        };
        made().map(Self).or_raise()
    }

    /// Bytes read from the folder, bytes fetched because the folder did not have them, and the
    /// number of damaged blocks.
    fn report(&self) -> (u64, u64, u64) {
        let report = self.0.report();
        (report.hit_bytes, report.miss_bytes, report.damaged)
    }
}
