//! Files and folders that Python code writes or removes. A write leaves either the old or the new
//! file. The new file is synced to the disk before the call returns, except after `durable=False`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use regrow::Result;
use regrow_storage::local;

use crate::error::released;
use regrow_storage::NewFile;

/// Writes a file, or replaces an existing file. A new file gets the mode `mode`.
#[pyfunction]
#[pyo3(signature = (path, data, mode=None))]
pub fn put_file(py: Python<'_>, path: PathBuf, data: PyBackedBytes, mode: Option<u32>) -> PyResult<()> {
    released(py, || {
        let staged = local::Staged::of_file(&path, true)?;
        fill(&staged, &data)?;
        if let Some(mode) = mode {
            // Some file systems refuse any change of the mode. Then commit the file with its
            // current mode.
            let _ = local::set_mode(&staged.single_file(), mode);
        }
        staged.commit()
    })
}

/// Writes a checkpoint of one file. With `overwrite` it replaces a checkpoint of any kind.
#[pyfunction]
pub fn put_checkpoint_file(
    py: Python<'_>,
    path: PathBuf,
    data: PyBackedBytes,
    overwrite: bool,
) -> PyResult<()> {
    released(py, || {
        let staged = local::Staged::of_file_over_any(&path, overwrite)?;
        fill(&staged, &data)?;
        staged.commit()
    })
}

fn fill(staged: &local::Staged, data: &[u8]) -> Result<()> {
    let mut writer = staged.single_writer(data.len() as u64, 0)?;
    writer.write(data)?;
    writer.finish().map(drop)
}

/// Removes temporary files of killed writers from a folder, and restores the files that they were
/// replacing.
#[pyfunction]
pub fn sweep_folder(py: Python<'_>, folder: PathBuf) {
    py.detach(|| local::sweep_folder(&folder));
}

/// Removes a folder with any content. Renames it first, so that its name is free at once.
#[pyfunction]
pub fn remove_folder(py: Python<'_>, folder: PathBuf) -> PyResult<()> {
    released(py, || local::remove_folder(&folder))
}

/// Whether a writer of regrow has, or may have, the lock of a temporary folder.
#[pyfunction]
pub fn is_locked(py: Python<'_>, folder: PathBuf) -> bool {
    py.detach(|| local::is_locked(&folder))
}

/// Syncs the names in a local folder to the disk, if its file system can.
#[pyfunction]
pub fn sync_folder(py: Python<'_>, folder: PathBuf) -> PyResult<()> {
    released(py, || local::sync_folder(&folder))
}

/// Sets the mode of a local file or folder, unless it already has this mode.
#[pyfunction]
pub fn set_mode(py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
    released(py, || local::set_mode(&path, mode))
}

/// A file under a temporary name, which Python writes. `commit` renames it.
#[pyclass(frozen, module = "regrow._native")]
pub struct StagedFile(Mutex<Option<local::Staged>>);

#[pymethods]
impl StagedFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, durable: bool) -> PyResult<Self> {
        let staged = released(py, || local::Staged::of_file(&path, true))?;
        Ok(Self(Mutex::new(Some(staged.durable(durable)))))
    }

    #[getter]
    fn path(&self) -> Option<OsString> {
        self.staged().as_ref().map(|staged| staged.single_file().into_os_string())
    }

    /// Syncs the file if it is durable, and renames it to its final name.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let Some(staged) = self.staged().take() else { return Ok(()) };
        staged.sync_later();
        released(py, || staged.commit())
    }

    fn discard(&self) {
        drop(self.staged().take());
    }
}

impl StagedFile {
    fn staged(&self) -> MutexGuard<'_, Option<local::Staged>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
