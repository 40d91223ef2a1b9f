//! Saves in the background. Every wait releases the interpreter. A wait that Python calls checks
//! for signals ten times a second.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use regrow::engine::{AsyncOptions, BeforeCommit, Blocked, CopyLeaves, OnEnd, WhenBusy};
use regrow::{Error, ErrorKind, Result, SaveOptions, SaveReport};

use crate::checkpoint::{SaveOut, save_report};
use crate::columns::StructureIn;
use crate::error::{OrRaise, released};
use crate::gather::let_go;
use crate::items::ItemsSave;
use crate::leaves::{LeavesIn, to_leaves};
use crate::location::LocationIn;
use crate::options::{SaveIn, or_posted, save_options};

/// The time between two checks for Ctrl-C.
const LOOK_UP_EVERY: Duration = Duration::from_millis(100);

/// Saves values one after another, on a thread of its own.
#[pyclass(frozen, module = "regrow._native")]
pub struct AsyncSaver(regrow::engine::AsyncSaver);

/// A save in the background.
#[pyclass(frozen, module = "regrow._native")]
pub struct SaveHandle(regrow::engine::SaveHandle);

impl Drop for AsyncSaver {
    /// The saving thread needs the interpreter briefly at the end of each save, so release it
    /// during the wait.
    fn drop(&mut self) {
        Python::attach(|py| py.detach(|| self.0.join()));
    }
}

#[pymethods]
impl AsyncSaver {
    #[new]
    fn new() -> Self {
        Self(regrow::engine::AsyncSaver::new())
    }

    /// Takes the snapshot; returns `None` if the save is skipped. The save references each leaf
    /// that it does not copy until the save has ended.
    fn save(
        &self,
        py: Python<'_>,
        path: LocationIn,
        structure: StructureIn<'_>,
        leaves: LeavesIn<'_>,
        mut options: SaveIn,
        how: BackgroundIn,
    ) -> PyResult<Option<SaveHandle>> {
        let since = Instant::now();
        let job = options.take_job().or_raise()?;
        let (tree, save) = or_posted(py, &path, job.as_ref(), || {
            let leaves = to_leaves(structure.tree(), &leaves)?;
            Ok((structure.tree().with_leaves(leaves).or_raise()?, save_options(options).or_raise()?))
        })?;
        let mut options =
            AsyncOptions { save: SaveOptions { job, ..save }, ..async_options(&how).or_raise()? };
        // Wait in short steps, so that Ctrl-C ends the wait for an earlier save.
        let waits_since = Instant::now();
        let has_room = |step| self.0.wait_for_room(options.when_busy, step);
        wait(py, None, |step| has_room(step).map(|has_room| has_room.then_some(())))?;
        options.before.waited_seconds = waits_since.elapsed().as_secs_f64();
        options.before.seconds += since.elapsed().as_secs_f64();
        let handle = released(py, || self.0.save_tree(path, &options, || Ok(tree)))?;
        Ok(handle.map(SaveHandle))
    }

    /// Waits until a save would not have to wait for an earlier one. Returns the seconds.
    fn wait_for_room(&self, py: Python<'_>, when_busy: &str) -> PyResult<f64> {
        let (when_busy, since) = (to_when_busy(when_busy).or_raise()?, Instant::now());
        let has_room = |step| self.0.wait_for_room(when_busy, step);
        wait(py, None, |step| has_room(step).map(|has_room| has_room.then_some(())))?;
        Ok(since.elapsed().as_secs_f64())
    }

    /// Adds the trees in `items` with their current values. Commits the checkpoint after
    /// `before_commit` has returned. If `before_commit` raises, the error of the save has only the
    /// text of the exception: the caller must keep the exception itself.
    #[pyo3(signature = (items, how, before_commit=None))]
    fn save_items(
        &self,
        py: Python<'_>,
        items: PyRef<'_, ItemsSave>,
        how: BackgroundIn,
        before_commit: Option<Py<PyAny>>,
    ) -> PyResult<SaveHandle> {
        let before_commit = before_commit.map(|call| {
            BeforeCommit::new(move || {
                Python::attach(|py| {
                    call.call0(py).map(drop).map_err(|raised| {
                        let late = raised.is_instance_of::<PyTimeoutError>(py);
                        let kind = if late { ErrorKind::TimedOut } else { ErrorKind::InvalidArgument };
                        Error::new(kind, format!("the function before the commit raised: {raised}"))
                    })
                })
            })
        });
        let options = AsyncOptions { before_commit, ..async_options(&how).or_raise()? };
        let (begun, trees) = (items.take().or_raise()?, items.take_waiting());
        released(py, || self.0.save_items(begun, trees, &options)).map(SaveHandle)
    }

    /// Waits for all saves. Returns `False` if this takes longer than `timeout` seconds.
    #[pyo3(signature = (timeout))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let waited = wait(py, timeout, |step| self.0.wait_for(step).map(|is_idle| is_idle.then_some(())))?;
        Ok(waited.is_some())
    }

    fn is_busy(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.is_busy())
    }

    /// The target of the running save, and its bytes done and in all; `None` if no save is running.
    fn running(&self, py: Python<'_>) -> Option<(OsString, u64, u64)> {
        let (path, progress) = py.detach(|| self.0.running())?;
        Some((path.into_os_string(), progress.done_bytes, progress.total_bytes))
    }

    fn release_memory(&self, py: Python<'_>) {
        py.detach(|| self.0.release_memory());
    }
}

#[pymethods]
impl SaveHandle {
    #[getter]
    fn path(&self) -> OsString {
        self.0.path().into()
    }

    /// The seconds of the call, the part of them spent waiting for an earlier save, and the bytes
    /// copied.
    #[getter]
    fn blocked(&self) -> (f64, f64, u64) {
        let blocked = self.0.blocked();
        (blocked.seconds, blocked.waited_seconds, blocked.copied_bytes)
    }

    /// The stage, the bytes done, and the bytes in all.
    fn progress(&self) -> (&'static str, u64, u64) {
        let progress = self.0.progress();
        (progress.stage.name(), progress.done_bytes, progress.total_bytes)
    }

    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn cancel(&self) {
        self.0.cancel();
    }

    /// Waits for the report; returns `None` if this takes longer than `timeout` seconds.
    #[pyo3(signature = (timeout))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<SaveOut>> {
        let report = wait(py, timeout, |step| self.0.wait_for(step).transpose())?;
        Ok(report.map(save_report))
    }
}

impl SaveHandle {
    pub fn path_buf(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    pub fn wait_for_end(&self) -> Result<SaveReport> {
        self.0.wait()
    }
}

/// Calls `step` in short steps, without the interpreter, until it returns a value or the time is
/// up.
pub fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    step: impl Fn(Duration) -> Result<Option<T>> + Sync,
) -> PyResult<Option<T>> {
    let since = Instant::now();
    // A value that is too large for a duration means no time-out.
    let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    loop {
        let left = timeout.map_or(LOOK_UP_EVERY, |timeout| timeout.saturating_sub(since.elapsed()));
        if let Some(found) = released(py, || step(left.min(LOOK_UP_EVERY)))? {
            return Ok(Some(found));
        }
        if left.is_zero() {
            return Ok(None);
        }
        py.check_signals()?;
    }
}

/// The options of a background save, with the fields of `BackgroundRequest` in
/// `regrow/_core/_requests.py`.
#[derive(FromPyObject)]
struct BackgroundIn {
    when_busy: String,
    copy: String,
    check_source: bool,
    seconds: f64,
    waited_seconds: f64,
}

fn async_options(how: &BackgroundIn) -> Result<AsyncOptions> {
    // The saving thread drops references without the interpreter. JAX releases such arrays only in
    // its next call, so call JAX here once.
    let on_end = OnEnd::new(|| {
        Python::try_attach(let_go);
    });
    Ok(AsyncOptions {
        when_busy: to_when_busy(&how.when_busy)?,
        copy: to_copy(&how.copy)?,
        check_source: how.check_source,
        on_end: Some(on_end),
        before: Blocked { seconds: how.seconds, waited_seconds: how.waited_seconds, copied_bytes: 0 },
        ..AsyncOptions::default()
    })
}

fn to_when_busy(name: &str) -> Result<WhenBusy> {
    match name {
        "wait" => Ok(WhenBusy::Wait),
        "skip" => Ok(WhenBusy::Skip),
        "queue" => Ok(WhenBusy::Queue),
        _ => Err(Error::invalid("when_busy is not known").expected("wait, skip or queue", name)),
    }
}

fn to_copy(name: &str) -> Result<CopyLeaves> {
    match name {
        "nothing" => Ok(CopyLeaves::Nothing),
        "mutable" => Ok(CopyLeaves::Mutable),
        "all" => Ok(CopyLeaves::All),
        _ => Err(Error::invalid("copy is not known").expected("mutable, all or nothing", name)),
    }
}
