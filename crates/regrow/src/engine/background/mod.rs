//! Saving in the background: the caller continues as soon as the snapshot is taken.
//!
//! ```text
//!             caller                                     thread "regrow-save", while there is something to save
//! save(path, tree) ─▶ an earlier failure? say it
//!                  ─▶ busy? wait, skip or queue
//!                  ─▶ snapshot: refer or copy ── job ──▶ plan, write, sync, commit
//!        handle ◀──                                        │
//! handle.wait()  ◀─────────────── report or error ─────────┘   not asked for: the next save says it
//! ```
//!
//! **The snapshot point** is the return of `save`: later changes of the tree are not in the
//! checkpoint. Leaves are referenced, which costs nothing, or copied: see [`CopyLeaves`]. Shared
//! data of Rust ([`Bytes`]) never changes, so it is copied only on request. Foreign memory may
//! change, and its owner must request the copy.
//!
//! **Saves of one saver run one after the other**, in the order of their calls. There is no thread
//! while there is nothing to save.
//!
//! **Failures cannot be missed.** A caller that waits for a save gets its error. If no caller
//! waits, the next [`save`](AsyncSaver::save) or [`wait`](AsyncSaver::wait) returns it. If no call
//! has returned it when the saver is dropped, it is written to standard error. Dropping a saver
//! waits for its saves.
//!
//! **Fork.** The thread stays with the parent, and so do its saves: in a child every call of the
//! saver or its handles is an error, and nothing waits or locks. A saver made by the child works.
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

/// The largest number of queued saves. Beyond that a save waits, also with other [`WhenBusy`]
/// values.
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

/// Saves in the background, one after the other. See the module's story.
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
    /// Whose threads they are. Looked at before any lock is.
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
    /// Ended, and perhaps failed; looked through and emptied by the next call.
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

    /// Takes a snapshot and saves it in the background; `None` if another save is running and this
    /// one is to be skipped.
    ///
    /// A [`Pytree`] that is no [`Tree<Leaf>`](Tree) is made into a tree first, with copies of
    /// leaves that cannot be shared.
    ///
    /// # Errors
    /// The error of an earlier save that no call has returned yet: then this value is not saved.
    /// `AlreadyExists` if the path is taken. `Limit` if there is no memory for the copy. The handle
    /// returns all other errors.
    pub fn save<P: Pytree>(
        &self,
        path: impl ToLocation,
        value: &P,
        options: &AsyncOptions,
    ) -> Result<Option<SaveHandle>> {
        self.save_tree(path, options, || Ok(value.to_tree()?.into_owned()))
    }

    /// [`save`](Self::save) of a tree that is made only once it is known that it will be saved.
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

    /// The tree as it is now; and how many bytes were copied.
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

    /// Waits until nothing is left to save.
    ///
    /// # Errors
    /// The first error that no call has returned yet; call again for more.
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

    /// Waits until [`save`](Self::save) need not wait any more, but not longer than that; whether
    /// it need not.
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

    /// Waits for all saves; the next call returns their errors.
    pub fn join(&self) {
        if self.check_process(Path::new("")).is_ok() {
            let waited = self.shared.changed.wait_while(self.lock(), |state| state.is_busy());
            drop(waited);
        }
    }

    /// Whether a save is running or waiting. `false` in a forked child, because the save is the
    /// parent's.
    pub fn is_busy(&self) -> bool {
        self.check_process(Path::new("")).is_ok() && self.lock().is_busy()
    }

    /// The target of the running save, and its progress.
    pub fn running(&self) -> Option<(PathBuf, Progress)> {
        self.check_process(Path::new("")).ok()?;
        self.lock().running.as_ref().map(|job| (job.path.clone(), job.monitor.progress()))
    }

    /// Gives the memory of the last snapshots back to the system; the next copy begins with fresh
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
            // The system cannot start a thread: the caller waits for this save, as for a save
            // without one.
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
    /// Waits for the saves, and writes unseen errors to standard error.
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

    /// The thread: saves until there is nothing left.
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

/// The first error that no call has returned yet.
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
