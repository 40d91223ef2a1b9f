//! Paths and URLs as Python gives them.

use std::path::PathBuf;

use pyo3::prelude::*;
use regrow::Result;
use regrow::location::{self, StorageOptions, ToLocation};

use crate::error::OrRaise;

/// Where a checkpoint is: a storage with its options, and a path in it.
#[pyclass(frozen, module = "regrow._native")]
pub struct Location(location::Location);

#[pymethods]
impl Location {
    /// Of a path or URL, with options for its storage.
    #[new]
    fn new(path: PathBuf, options: Vec<(String, String)>) -> PyResult<Self> {
        let options: StorageOptions = options.into_iter().collect();
        location::Location::with_options(&path, &options).map(Self).or_raise()
    }

    /// The path or URL, without the options.
    fn __fspath__(&self) -> std::ffi::OsString {
        self.0.describe().into_os_string()
    }

    fn __repr__(&self) -> String {
        format!("Location({:?})", self.0.to_string())
    }
}

/// A location, or a path or URL that stands for one.
#[derive(FromPyObject)]
pub enum LocationIn {
    /// One that was made, with its options.
    #[pyo3(transparent)]
    Made(Py<Location>),
    /// A path or URL.
    #[pyo3(transparent)]
    Path(PathBuf),
}

impl ToLocation for LocationIn {
    fn to_location(&self) -> Result<location::Location> {
        match self {
            Self::Made(made) => Ok(made.get().0.clone()),
            Self::Path(path) => path.to_location(),
        }
    }
}
