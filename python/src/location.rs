//! Paths and URLs in the forms that Python passes.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use regrow::Result;
use regrow::engine::{Layout, refuse_folder_named_like_a_file as refuse_folder};
use regrow::location::{self, StorageOptions, ToLocation};
use regrow_storage::Found;
use regrow_store::StoreExt;

use crate::cache::Cache;
use crate::error::{OrRaise, released};

/// The location of a checkpoint: a storage with its options, and a path in it.
#[pyclass(frozen, module = "regrow._native")]
pub struct Location(location::Location);

impl Location {
    pub fn of(location: location::Location) -> Self {
        Self(location)
    }
}

#[pymethods]
impl Location {
    /// A location for a path or URL, with options for its storage.
    #[new]
    fn new(path: PathBuf, options: Vec<(String, String)>) -> PyResult<Self> {
        let options: StorageOptions = options.into_iter().collect();
        location::Location::with_options(&path, &options).map(Self).or_raise()
    }

    /// The path or URL, without the options.
    fn __fspath__(&self) -> OsString {
        self.0.describe().into_os_string()
    }

    /// The same location, read through a cache.
    fn cached(&self, cache: &Cache) -> Self {
        Self(self.0.cached(&cache.0))
    }

    /// The path; `None` unless it is a path of the local file system.
    #[getter]
    fn local_path(&self) -> Option<OsString> {
        self.0.local_path().ok().map(|path| path.as_os_str().to_owned())
    }

    /// The kind of the path: ``file``, ``folder`` or ``other``; `None` if nothing exists there.
    fn look(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        let found = released(py, || self.0.look())?;
        Ok(found.map(|found| match found {
            Found::File { .. } => "file",
            Found::Folder => "folder",
            Found::Other(_) => "other",
        }))
    }

    /// The sorted names in the folder, each with true if it is a folder or a link to one.
    fn entries(&self, py: Python<'_>) -> PyResult<Vec<(OsString, bool)>> {
        let mut entries = released(py, || self.0.entries())?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries.into_iter().map(|entry| (entry.name.clone(), entry.is_folder())).collect())
    }

    /// At most `len_max_bytes` bytes from the beginning of a file; `None` if it does not exist.
    fn read(&self, py: Python<'_>, len_max_bytes: u64) -> PyResult<Option<Cow<'static, [u8]>>> {
        Ok(released(py, || self.0.read_beginning(len_max_bytes))?.map(Cow::Owned))
    }

    /// Writes a small file or replaces an existing one. A reader sees either the old or the new
    /// file.
    fn write(&self, py: Python<'_>, data: Vec<u8>) -> PyResult<()> {
        let name = self.0.name_text();
        released(py, || self.0.parent().store().put(name.as_bytes(), data.into()))
    }

    fn __repr__(&self) -> String {
        format!("Location({:?})", self.0.to_string())
    }
}

/// A location; or a path or URL, from which a location is made.
#[derive(FromPyObject)]
pub enum LocationIn {
    /// An existing location, with its options.
    #[pyo3(transparent)]
    Made(Py<Location>),
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

/// The local path of a path or URL, for modules that read or write files themselves.
#[pyfunction]
pub fn local_path(path: LocationIn) -> PyResult<OsString> {
    let location = path.to_location().or_raise()?;
    location.local_path().map(|path| path.as_os_str().to_owned()).or_raise()
}

/// The layout of a save to a path if the caller names none: the layout of its suffix, or the
/// default layout.
#[pyfunction]
pub fn layout_for(path: LocationIn) -> PyResult<&'static str> {
    let layout = path.to_location().and_then(|at| Layout::for_target(&at)).or_raise()?;
    Ok(layout.name())
}

/// Raises if a folder at a path would have the name of a file.
#[pyfunction]
pub fn refuse_folder_named_like_a_file(path: LocationIn, layout: &str) -> PyResult<()> {
    let refused = path.to_location().and_then(|at| refuse_folder(&at, layout));
    refused.or_raise()
}
