//! Saves several items in one checkpoint. One commit makes all items visible. Any thread may add
//! items.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use regrow::engine::{self, ItemsOptions, SaveOptions};
use regrow::location::ToLocation;
use regrow::tree::{Leaf, Tree};
use regrow::{Error, ErrorKind, Monitor, Result};

use crate::checkpoint::{SaveOut, save_report};
use crate::columns::StructureIn;
use crate::error::{OrRaise, released};
use crate::gather::let_go;
use crate::leaves::{LeavesIn, to_leaves};
use crate::location::LocationIn;
use crate::options::{JobIn, SaveIn, metadata_members, save_options, to_job};
use crate::watch::{cancellable, seconds};

/// The options of a save of several items, with the fields of `ItemsRequest` in
/// `regrow/_core/_requests.py`.
#[derive(FromPyObject)]
struct ItemsIn {
    overwrite: bool,
    keeps_others: bool,
    durable: bool,
    keep_cached: bool,
    v1: bool,
    of_step: bool,
    metadata: Option<String>,
    base: Option<LocationIn>,
    job: Option<JobIn>,
    mode: Option<u32>,
    wait: f64,
}

/// A tree that a background save will add later.
type Waiting = (String, Tree<Leaf>, SaveOptions);

/// An unfinished checkpoint of several items.
#[pyclass(frozen, module = "regrow._native")]
pub struct ItemsSave {
    begun: Mutex<Option<Arc<engine::ItemsSave>>>,
    waiting: Mutex<Vec<Waiting>>,
    monitor: Monitor,
    path: OsString,
}

#[pymethods]
impl ItemsSave {
    /// Begins a checkpoint. The thread that works calls `progress` with the bytes done and the
    /// bytes in all.
    #[new]
    fn new(
        py: Python<'_>,
        path: LocationIn,
        options: ItemsIn,
        gets_signals: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let monitor = match progress {
            None => Monitor::new(),
            Some(progress) => Monitor::with_hook(move |state| {
                let called =
                    Python::attach(|py| progress.call1(py, (state.done_bytes, state.total_bytes)).map(drop));
                called.map_err(|error| Error::invalid(format!("the progress callback raised: {error}")))
            }),
        };
        let options = ItemsOptions {
            overwrite: options.overwrite,
            keeps_others: options.keeps_others,
            not_durable: !options.durable,
            keep_cached: options.keep_cached,
            v1: options.v1,
            of_step: options.of_step,
            custom_metadata: metadata_members(options.metadata).or_raise()?,
            base: options.base.as_ref().map(ToLocation::to_location).transpose().or_raise()?,
            mode: options.mode,
            wait: seconds(options.wait),
            monitor: monitor.clone(),
            job: options.job.map(to_job).transpose().or_raise()?,
        };
        let at = path.to_location().or_raise()?;
        let path = at.describe().into_os_string();
        let begun = cancellable(py, gets_signals, &monitor, || engine::ItemsSave::begin(at, options))?;
        Ok(Self { begun: Mutex::new(Some(Arc::new(begun))), waiting: Mutex::default(), monitor, path })
    }

    #[getter]
    fn path(&self) -> OsString {
        self.path.clone()
    }

    /// Adds a tree to the checkpoint.
    fn tree(
        &self,
        py: Python<'_>,
        name: &str,
        structure: StructureIn<'_>,
        leaves: LeavesIn<'_>,
        options: SaveIn,
        gets_signals: bool,
    ) -> PyResult<()> {
        let begun = self.begun().or_raise()?;
        let tree = structure.tree().with_leaves(to_leaves(structure.tree(), &leaves)?).or_raise()?;
        let options = save_options(options).or_raise()?;
        let added = cancellable(py, gets_signals, &self.monitor, || begun.tree(name, &tree, &options));
        // Drop the tree while this thread holds the interpreter: the leaves own Python objects.
        drop(tree);
        let_go(py);
        added
    }

    /// Keeps a tree for `AsyncSaver.save_items`, which adds it.
    fn later(
        &self,
        name: String,
        structure: StructureIn<'_>,
        leaves: LeavesIn<'_>,
        options: SaveIn,
    ) -> PyResult<()> {
        let tree = structure.tree().with_leaves(to_leaves(structure.tree(), &leaves)?).or_raise()?;
        let options = save_options(options).or_raise()?;
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push((name, tree, options));
        Ok(())
    }

    /// Adds a JSON document of this text, in a file named `file` or the default name.
    #[pyo3(signature = (name, text, file))]
    fn json(&self, py: Python<'_>, name: &str, text: &str, file: Option<&str>) -> PyResult<()> {
        let begun = self.begun().or_raise()?;
        released(py, || begun.json_text(name, file, text.as_bytes()))
    }

    /// Adds metrics. `text` is a JSON object.
    fn metrics(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        let begun = self.begun().or_raise()?;
        released(py, || begun.metrics_text(text.as_bytes()))
    }

    /// Adds one file of an item.
    fn file(&self, py: Python<'_>, name: &str, file: &str, data: &[u8]) -> PyResult<()> {
        let begun = self.begun().or_raise()?;
        released(py, || begun.file(name, file, data))
    }

    /// Adds a copy of a local file or folder.
    fn copy_of(&self, py: Python<'_>, name: &str, source: PathBuf) -> PyResult<()> {
        let begun = self.begun().or_raise()?;
        released(py, || begun.copy_of(name, &source))
    }

    /// A local folder for the files of an item, until the commit.
    fn folder(&self, py: Python<'_>, name: &str) -> PyResult<OsString> {
        let begun = self.begun().or_raise()?;
        released(py, || begun.folder(name)).map(PathBuf::into_os_string)
    }

    /// Declares the files in the folder of an item as plain files.
    fn files(&self, item: &str) -> PyResult<()> {
        self.begun().or_raise()?.files(item);
        Ok(())
    }

    /// Sets the class with which Orbax reads an item.
    fn handler(&self, item: &str, handler: &str) -> PyResult<()> {
        self.begun().or_raise()?.handler(item, handler);
        Ok(())
    }

    /// Adds entries to the checkpoint's own metadata. `text` is a JSON object.
    fn metadata(&self, text: String) -> PyResult<()> {
        self.begun().or_raise()?.metadata(&metadata_members(Some(text)).or_raise()?);
        Ok(())
    }

    /// Commits the checkpoint, and returns the report.
    fn commit(&self, py: Python<'_>, gets_signals: bool) -> PyResult<SaveOut> {
        let begun = self.take().or_raise()?;
        cancellable(py, gets_signals, &self.monitor, || begun.commit()).map(save_report)
    }

    /// Sends the reason for a failure to the other processes: the kind of an error, and its text.
    fn fail(&self, py: Python<'_>, kind: &str, what: String) -> PyResult<()> {
        let Ok(begun) = self.begun() else { return Ok(()) };
        let error = Error::new(ErrorKind::from_name(kind).unwrap_or(ErrorKind::Io), what);
        released(py, || {
            begun.fail(error);
            Ok(())
        })
    }

    /// Ends the save without a commit, and removes all its files.
    fn drop(&self, py: Python<'_>) {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
        py.detach(|| drop(begun));
    }

    /// Asks the running work to stop.
    fn cancel(&self) {
        self.monitor.cancel();
    }

    /// The bytes done, and the bytes in all.
    fn progress(&self) -> (u64, u64) {
        let progress = self.monitor.progress();
        (progress.done_bytes, progress.total_bytes)
    }
}

impl ItemsSave {
    fn begun(&self) -> Result<Arc<engine::ItemsSave>> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.clone().ok_or_else(|| self.is_over())
    }

    /// Takes the save out of this object, for its commit.
    pub fn take(&self) -> Result<engine::ItemsSave> {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let all = begun.take().ok_or_else(|| self.is_over())?;
        Arc::try_unwrap(all).map_err(|all| {
            *begun = Some(all);
            Error::invalid("another thread is still adding an item to this checkpoint")
                .in_file(&self.path)
                .help("wait until it ends before the commit")
        })
    }

    pub fn take_waiting(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_over(&self) -> Error {
        Error::invalid("this save of items was already committed or abandoned")
            .in_file(&self.path)
            .help("begin another one")
    }
}
