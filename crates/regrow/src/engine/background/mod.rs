//! Saving in the background: the caller continues as soon as the snapshot is taken.
//!
//! ```text
//!             caller                                     thread "regrow-save", while there are saves
//! save(path, tree) ─▶ an earlier save failed? return its error
//!                  ─▶ another save is running? wait, skip or queue
//!                  ─▶ snapshot: reference or copy ── job ──▶ plan, write, sync, commit
//!        handle ◀──                                        │
//! handle.wait()  ◀─────────────── report or error ─────────┘   no wait(): the next save returns it
//! ```
//!
//! **The snapshot point** is the return of `save`: later changes of the tree are not in the
//! checkpoint. The snapshot references a leaf, which costs nothing, or copies it: see
//! [`CopyLeaves`]. Shared data of Rust ([`Bytes`]) never changes, so it is copied only on request.
//! Other memory, for example of a NumPy array, may change: the caller of `save` must request the
//! copy.
//!
//! **The saves of one saver run one after the other**, in the order of the calls. While there are
//! no saves, there is no thread.
//!
//! **Failures cannot be missed.** If a caller waits for a save, the caller gets the error. If no
//! caller waits, the next [`save`](AsyncSaver::save) or [`wait`](AsyncSaver::wait) returns the
//! error. If no call has returned it when the saver is dropped, the drop writes it to standard
//! error. Dropping a saver waits for its saves.
//!
//! **Fork.** The thread and its saves stay with the parent process. In a child process,
//! `save` and `wait` return an error, and no call waits or takes a lock of the saver. A saver that
//! the child process makes works.
//!
//! [`Bytes`]: bytes::Bytes

mod handle;
mod items;
mod job;
mod options;
mod snapshot;

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::handle::SaveHandle;
use self::job::{Job, TreeWork, Work};
pub use self::options::{AsyncOptions, Blocked, CopyLeaves, REFER_FROM_BYTES, WhenBusy};
#[doc(hidden)]
pub use self::options::{BeforeCommit, OnEnd};
use self::snapshot::Pool;
use super::checks::{check_losses, check_rules};
use super::{Layout, SaveOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::located;
use crate::location::ToLocation;
use crate::monitor::Progress;
use crate::tree::{Leaf, Pytree, Tree};

/// The largest number of queued saves. With `WhenBusy::Queue`, a save waits while the queue is
/// full.
pub const QUEUE_LEN_MAX: usize = 8;

/// Saves a value at `path` in the background with its own saver. The suffix of `path` chooses the
/// layout, as in [`save`](crate::save()).
///
/// # Errors
/// The errors of [`AsyncSaver::save`].
pub fn save_async<P: Pytree>(path: impl ToLocation, value: &P) -> Result<SaveHandle> {
    let at = located(path)?;
    let save = SaveOptions { layout: Layout::for_target(&at)?, ..SaveOptions::default() };
    save_async_with(at, value, &AsyncOptions { save, ..AsyncOptions::default() })
}

/// [`save_async`] with options.
///
/// # Errors
/// The errors of [`AsyncSaver::save`].
pub fn save_async_with<P: Pytree>(
    path: impl ToLocation,
    value: &P,
    options: &AsyncOptions,
) -> Result<SaveHandle> {
    let saver = Arc::new(AsyncSaver::new());
    let mut handle =
        saver.save(path, value, options)?.ok_or_else(|| Error::invalid("a new saver is busy"))?;
    handle.own_saver = Some(saver);
    Ok(handle)
}

/// Saves in the background, one after the other. The module documentation has the details.
///
/// ```
/// use regrow::engine::{AsyncOptions, AsyncSaver};
/// # let folder = tempfile::tempdir()?;
/// let saver = AsyncSaver::new();
/// let mut weights = vec![0_f32; 1000];
/// for step in 0..3 {
///     weights[step] = 1.0;
///     let path = folder.path().join(step.to_string());
///     saver.save(path, &weights, &AsyncOptions::default())?; // also says what went wrong with the one before
/// }
/// saver.wait()?;
/// let last: Vec<f32> = regrow::load(folder.path().join("2"))?;
/// assert_eq!(last, weights);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AsyncSaver {
    shared: Arc<Shared>,
    /// The process that made the saver and owns its threads. Checked before any lock is taken.
    pid: u32,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    pool: Arc<Pool>,
}

#[derive(Debug, Default)]
struct State {
    running: Option<Arc<Job>>,
    queue: VecDeque<Arc<Job>>,
    /// Saves that have ended. A call removes them in order, up to the first save with an error that
    /// no call has returned, and returns this error.
    ended: Vec<Arc<Job>>,
    has_thread: bool,
}

impl State {
    fn is_busy(&self) -> bool {
        self.running.is_some() || !self.queue.is_empty()
    }
}

impl Default for AsyncSaver {
    fn default() -> Self {
        Self::new()
    }
}

impl AsyncSaver {
    /// A saver without anything to do.
    pub fn new() -> Self {
        Self { shared: Arc::default(), pid: std::process::id() }
    }

    /// Takes a snapshot and saves it in the background. Returns `None` if another save is running
    /// and `options` say to skip this one.
    ///
    /// A [`Pytree`] that is not a [`Tree<Leaf>`](Tree) is made into a tree first. Leaves that
    /// cannot be shared are copied.
    ///
    /// # Errors
    /// The error of an earlier save that no call has returned yet; this value is then not saved.
    /// `AlreadyExists` if the path is taken. `Io` or `Limit` if there is not enough memory for the
    /// copy. Errors of rules that match no leaf, and of leaves that the layout cannot store. The
    /// handle returns all other errors.
    pub fn save<P: Pytree>(
        &self,
        path: impl ToLocation,
        value: &P,
        options: &AsyncOptions,
    ) -> Result<Option<SaveHandle>> {
        self.save_tree(path, options, || Ok(value.to_tree()?.into_owned()))
    }

    /// Like [`save`](Self::save), but calls `tree` to make the tree only if it will be saved.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save); errors of `tree`.
    pub fn save_tree(
        &self,
        path: impl ToLocation,
        options: &AsyncOptions,
        tree: impl FnOnce() -> Result<Tree<Leaf>>,
    ) -> Result<Option<SaveHandle>> {
        let since = Instant::now();
        let at = located(path)?;
        self.check_process(&at.describe())?;
        let mut state = self.lock();
        report_failure(&mut state)?;
        if options.when_busy == WhenBusy::Skip && state.is_busy() {
            return Ok(None);
        }
        let waited = self.shared.changed.wait_while(state, |state| !options.when_busy.has_room(state));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        report_failure(&mut state)?;
        drop(state);
        let waited_seconds = options.before.waited_seconds + since.elapsed().as_secs_f64();
        if !options.save.overwrite && at.is_taken() {
            return Err(Error::new(ErrorKind::AlreadyExists, "the path already exists")
                .in_file(at)
                .help("choose another path, or pass `overwrite` to replace it"));
        }
        let (work, copied_bytes) = self.snapshot(tree()?, options.save.clone(), options)?;
        let copied_bytes = options.before.copied_bytes + copied_bytes;
        let mut blocked = Blocked { seconds: 0.0, waited_seconds, copied_bytes };
        blocked.seconds = options.before.seconds + since.elapsed().as_secs_f64();
        let (monitor, on_end) = (&options.save.monitor, options.on_end.clone());
        Ok(Some(self.begin(Job::new(at, Work::Tree(Box::new(work)), monitor, on_end, blocked))))
    }

    fn snapshot(
        &self,
        tree: Tree<Leaf>,
        save: SaveOptions,
        options: &AsyncOptions,
    ) -> Result<(TreeWork, u64)> {
        check_rules(&tree, &save)?;
        check_losses(None, &tree, &save)?;
        let (tree, copied_bytes) =
            snapshot::snapshot(tree, &self.shared.pool, |_, leaf| options.copy.chooses(leaf))?;
        let fingerprints = if options.check_source { Some(snapshot::fingerprints(&tree)?) } else { None };
        Ok((TreeWork { tree, options: save, fingerprints }, copied_bytes))
    }

    /// Waits until all saves have ended.
    ///
    /// # Errors
    /// The first error that no call has returned yet. Call again to get the next error.
    pub fn wait(&self) -> Result<()> {
        while !self.wait_for(Duration::from_secs(3600))? {}
        Ok(())
    }

    /// Waits for at most `timeout`. Returns whether all saves have ended.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub fn wait_for(&self, timeout: Duration) -> Result<bool> {
        self.check_process(Path::new(""))?;
        let state = self.lock();
        let waited = self.shared.changed.wait_timeout_while(state, timeout, |state| state.is_busy());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        report_failure(&mut state)?;
        Ok(!state.is_busy())
    }

    /// Waits for at most `timeout` until [`save`](Self::save) would not have to wait. Returns
    /// whether this is so.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub fn wait_for_room(&self, when_busy: WhenBusy, timeout: Duration) -> Result<bool> {
        self.check_process(Path::new(""))?;
        let is_full = |state: &mut State| !when_busy.has_room(state);
        let waited = self.shared.changed.wait_timeout_while(self.lock(), timeout, is_full);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        report_failure(&mut state)?;
        Ok(when_busy.has_room(&state))
    }

    /// Waits for all saves. The next call of the saver returns their errors.
    pub fn join(&self) {
        if self.check_process(Path::new("")).is_ok() {
            let waited = self.shared.changed.wait_while(self.lock(), |state| state.is_busy());
            drop(waited);
        }
    }

    /// Whether a save is running or queued. `false` in a forked child process, because the save
    /// belongs to the parent.
    pub fn is_busy(&self) -> bool {
        self.check_process(Path::new("")).is_ok() && self.lock().is_busy()
    }

    /// The target of the running save, and its progress; `None` if no save is running.
    pub fn running(&self) -> Option<(PathBuf, Progress)> {
        self.check_process(Path::new("")).ok()?;
        self.lock().running.as_ref().map(|job| (job.path.clone(), job.monitor.progress()))
    }

    /// Returns the memory of earlier snapshots to the system. The next snapshot allocates new
    /// memory.
    #[doc(hidden)]
    pub fn release_memory(&self) {
        if self.check_process(Path::new("")).is_ok() {
            self.shared.pool.clear();
        }
    }

    fn begin(&self, job: Job) -> SaveHandle {
        let job = Arc::new(job);
        let handle = SaveHandle {
            job: Arc::clone(&job),
            shared: Arc::clone(&self.shared),
            pid: self.pid,
            own_saver: None,
        };
        let mut state = self.lock();
        state.queue.push_back(job);
        if state.has_thread {
            return handle;
        }
        let shared = self.shared.clone();
        let spawned = std::thread::Builder::new().name("regrow-save".to_owned()).spawn(move || shared.work());
        state.has_thread = true;
        if spawned.is_err() {
            // If the system cannot start a thread, the save runs here, and the caller waits for it.
            drop(state);
            self.shared.work();
        }
        handle
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    fn check_process(&self, path: &Path) -> Result<()> {
        check_process(self.pid, path)
    }
}

impl Drop for AsyncSaver {
    /// Waits for the saves, and writes errors that no call has returned to standard error.
    fn drop(&mut self) {
        if self.check_process(Path::new("")).is_err() {
            return;
        }
        let mut errors = Vec::new();
        loop {
            match self.wait() {
                Ok(()) => break,
                Err(error) => errors.push(error),
            }
        }
        for error in errors {
            let _ = writeln!(std::io::stderr(), "regrow: {error}");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        while let Some(job) = state.queue.pop_front() {
            state.running = Some(job.clone());
            drop(state);
            self.changed.notify_all();
            job.run();
            if let Some(on_end) = &job.on_end {
                (on_end.0)();
            }
            state = self.lock();
            state.running = None;
            state.ended.push(job);
            self.changed.notify_all();
        }
        state.has_thread = false;
    }
}

fn report_failure(state: &mut State) -> Result<()> {
    let mut ended = std::mem::take(&mut state.ended).into_iter();
    while let Some(job) = ended.next() {
        if let Some(error) = job.unseen_failure() {
            state.ended = ended.collect();
            return Err(error);
        }
    }
    Ok(())
}

fn check_process(pid: u32, path: &Path) -> Result<()> {
    if pid == std::process::id() {
        return Ok(());
    }
    Err(Error::invalid("this background save belongs to the parent process")
        .in_file(path)
        .help("wait in the parent process, and make a new saver in this one"))
}

#[cfg(test)]
mod tests;
