//! The progress of a piece of work, the time of its stages, and a way to stop it.
//!
//! A [`Monitor`] goes into the options of a save, a load, a verification or a conversion; its
//! clones watch the same work from any thread. The work counts bytes and nanoseconds in atomics, a
//! few times for each buffer of 4 MiB. At the same places it checks whether to stop. The cost is
//! too small to measure.
//!
//! ```text
//! options.monitor ──clone──> the work:  advance(bytes), timed(stage, ..)  ──at most 20 times a second──> hook
//!                 ──clone──> any code:  progress(), stages(), cancel()
//! ```
//! ```
//! use regrow_base::Monitor;
//! let monitor = Monitor::with_hook(|progress| {
//!     eprintln!("{} of {} bytes", progress.done_bytes, progress.total_bytes);
//!     Ok(()) // an error ends the work, and leaves nothing behind
//! });
//! let _running = monitor.begin()?;
//! monitor.expect(1000);
//! monitor.advance(1000)?;
//! assert_eq!(monitor.progress().done_bytes, monitor.progress().total_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::system::refuses_direct;

/// The hook is called at most once in this time, and at the end.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// A stage of a piece of work. Its times are measured separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Planning, indexes, small files, and everything else that belongs to no other stage.
    Prepare,
    /// Only in a save with a base: finding leaves that are the same in the base.
    Compare,
    /// Reading data from a disk or map, checking it and decoding it. In a conversion this is a part
    /// of the copy and of the comparison.
    Read,
    /// Filling the writer's buffers: copies, checksums, and transformations of the layout such as
    /// casts and compression.
    Copy,
    /// Waiting for a free buffer, because the disk is slower than the copy.
    WaitForDisk,
    /// Writing full buffers on another thread, at the same time as other stages.
    Write,
    /// Waiting for syncs.
    Sync,
    /// Giving the checkpoint its name, and removing the old checkpoint.
    Commit,
    /// Before a save in the background: waiting for an earlier save. The caller is blocked.
    WaitForSave,
    /// Before a save in the background: copying the data. The caller is blocked.
    Snapshot,
}

impl Stage {
    /// All stages: first the stages of a save, in the order of a save. The last two stages come
    /// before a save in the background, and block the caller.
    pub const ALL: [Self; 10] = [
        Self::Prepare,
        Self::Compare,
        Self::Read,
        Self::Copy,
        Self::WaitForDisk,
        Self::Write,
        Self::Sync,
        Self::Commit,
        Self::WaitForSave,
        Self::Snapshot,
    ];

    /// A lower-case name for JSON and people, for example `wait_for_disk`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Compare => "compare",
            Self::Read => "read",
            Self::Copy => "copy",
            Self::WaitForDisk => "wait_for_disk",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Commit => "commit",
            Self::WaitForSave => "wait_for_save",
            Self::Snapshot => "snapshot",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The progress of a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// Bytes of array data that are done; at most `total_bytes`.
    pub done_bytes: u64,
    /// Total bytes of array data; 0 until it is known. In a save with a base, compared bytes count
    /// as well. They count again if their digest matches but the bytes differ.
    pub total_bytes: u64,
}

/// The time and the bytes of one stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageReport {
    /// The stage.
    pub stage: Stage,
    /// The time in seconds. If several threads worked on the stage, the sum of their times.
    pub seconds: f64,
    /// Bytes that passed through the stage; 0 for a stage without data.
    pub bytes: u64,
}

impl StageReport {
    /// The speed in 10^9 bytes a second; 0 for a stage without data.
    pub fn gb_per_s(&self) -> f64 {
        gb_per_s(self.bytes, self.seconds)
    }
}

/// The speed in 10^9 bytes a second; 0 if no time passed.
pub fn gb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds / 1e9 } else { 0.0 }
}

/// The path of the bytes of large files to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IoPath {
    /// The page cache: there is no large file, or the save keeps its files cached.
    #[default]
    PageCache,
    /// Direct I/O, past the page cache.
    Direct,
    /// The page cache, with immediate write-back of each buffer. The system refused direct I/O with
    /// this error.
    Buffered {
        /// The error number of the system.
        os_error: i32,
    },
}

impl fmt::Display for IoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageCache => f.write_str("page cache"),
            Self::Direct => f.write_str("direct"),
            // File systems without direct I/O answer with this error, so its text adds nothing.
            Self::Buffered { os_error } if refuses_direct(&io::Error::from_raw_os_error(*os_error)) => {
                f.write_str("buffered (the file system refuses direct I/O)")
            }
            Self::Buffered { os_error } => {
                let error = io::Error::from_raw_os_error(*os_error);
                write!(f, "buffered (the file system refuses direct I/O: {error})")
            }
        }
    }
}

/// Observes a piece of work, and can cancel it. Clones share their state.
///
/// The counts restart with each piece of work. If another piece of work is still running, the
/// monitor adds the counts of both. A [cancelled](Self::cancel) monitor stays cancelled: later work
/// with it ends at once.
#[derive(Clone, Debug, Default)]
pub struct Monitor(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_cancelled: AtomicBool,
    running: AtomicUsize,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    stage: AtomicU8,
    /// Whether direct I/O was used. The next field is the error with which it was refused; 0 if it
    /// was not.
    has_direct: AtomicBool,
    refusal: AtomicI32,
    spent: [Spent; Stage::ALL.len()],
    notes: Mutex<Vec<String>>,
    hook: Option<Hook>,
}

#[derive(Debug, Default)]
struct Spent {
    nanos: AtomicU64,
    bytes: AtomicU64,
}

struct Hook {
    call: Box<dyn Fn(Progress) -> Result<()> + Send + Sync>,
    began: Instant,
    /// The time of the next call of the hook, in nanoseconds after `began`.
    next_nanos: AtomicU64,
    /// The error that the hook returned, if any. The lock is held during a call of the hook, so
    /// that only one call runs at a time.
    refusal: Mutex<Option<Error>>,
}

impl Monitor {
    /// A monitor without a hook.
    pub fn new() -> Self {
        Self::default()
    }

    /// A monitor that calls `hook` during the work, at most 20 times a second, from any working
    /// thread. Only one call runs at a time. There is one more call when all bytes are done; in a
    /// save this is before the commit. If the hook returns an error, the work ends with this error
    /// and leaves nothing behind.
    pub fn with_hook(hook: impl Fn(Progress) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            hook: Some(Hook {
                call: Box::new(hook),
                began: Instant::now(),
                next_nanos: AtomicU64::new(0),
                refusal: Mutex::default(),
            }),
            ..Inner::default()
        }))
    }

    /// Asks the work to stop. It stops at its next buffer, with [`ErrorKind::Cancelled`], and
    /// leaves nothing behind. A save whose bytes are all on disk may still complete.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called, or the hook returned an error.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// The current progress.
    pub fn progress(&self) -> Progress {
        let total_bytes = self.0.total_bytes.load(Ordering::Relaxed);
        let stage = Stage::ALL.get(usize::from(self.0.stage.load(Ordering::Relaxed)));
        Progress {
            stage: stage.copied().unwrap_or(Stage::Prepare),
            done_bytes: self.0.done_bytes.load(Ordering::Relaxed).min(total_bytes),
            total_bytes,
        }
    }

    /// The times and bytes of all stages so far, in the order of [`Stage::ALL`]. Stages without
    /// time are left out.
    pub fn stages(&self) -> Vec<StageReport> {
        let report = |(&stage, spent): (&Stage, &Spent)| StageReport {
            stage,
            seconds: Duration::from_nanos(spent.nanos.load(Ordering::Relaxed)).as_secs_f64(),
            bytes: spent.bytes.load(Ordering::Relaxed),
        };
        let all = Stage::ALL.iter().zip(&self.0.spent).map(report);
        all.filter(|report| report.seconds > 0.0 || report.bytes > 0).collect()
    }

    /// The path of large files to the disk. If there were several paths, the slowest of them.
    pub fn io_path(&self) -> IoPath {
        match (self.0.refusal.load(Ordering::Relaxed), self.0.has_direct.load(Ordering::Relaxed)) {
            (0, false) => IoPath::PageCache,
            (0, true) => IoPath::Direct,
            (os_error, _) => IoPath::Buffered { os_error },
        }
    }

    /// The notes that the work has added to its report.
    pub fn notes(&self) -> Vec<String> {
        self.0.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds a note for the report.
    pub fn note(&self, what: String) {
        self.0.notes.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Begins a piece of work. Resets the counts, unless another piece of work is running.
    pub fn begin(&self) -> Result<Running> {
        if self.0.running.fetch_add(1, Ordering::Relaxed) == 0 {
            self.0.done_bytes.store(0, Ordering::Relaxed);
            self.0.total_bytes.store(0, Ordering::Relaxed);
            for spent in &self.0.spent {
                spent.nanos.store(0, Ordering::Relaxed);
                spent.bytes.store(0, Ordering::Relaxed);
            }
            self.0.has_direct.store(false, Ordering::Relaxed);
            self.0.refusal.store(0, Ordering::Relaxed);
            self.0.notes.lock().unwrap_or_else(PoisonError::into_inner).clear();
            self.enter(Stage::Prepare);
        }
        let running = Running(self.clone());
        self.check()?;
        Ok(running)
    }

    /// Sets the current stage, for [`progress`](Self::progress).
    pub fn enter(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Returns `Cancelled` if the monitor was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::new(ErrorKind::Cancelled, "stopped on request")) } else { Ok(()) }
    }

    /// Adds `bytes` to the total.
    pub fn expect(&self, bytes: u64) {
        self.0.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` to the bytes that are done. Returns `Cancelled` if the monitor was cancelled.
    pub fn advance(&self, bytes: u64) -> Result<()> {
        self.0.done_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(hook) = self.0.hook.as_ref().filter(|hook| hook.is_due()) {
            // If the lock is taken, another thread is calling the hook, and its report covers this
            // progress.
            if let Ok(refusal) = hook.refusal.try_lock() {
                self.tell(hook, refusal);
            }
        }
        self.check()
    }

    /// Adds `bytes` to the stage, and does the same as [`advance`](Self::advance).
    pub fn done(&self, stage: Stage, bytes: u64) -> Result<()> {
        self.add(stage, Duration::ZERO, bytes);
        self.advance(bytes)
    }

    /// Reports that all bytes are done. Always calls the hook.
    pub fn finish(&self) -> Result<()> {
        self.0.done_bytes.fetch_max(self.0.total_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        if let Some(hook) = &self.0.hook {
            self.tell(hook, hook.refusal.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.check()
    }

    fn tell(&self, hook: &Hook, mut refusal: std::sync::MutexGuard<'_, Option<Error>>) {
        if self.is_cancelled() {
            return;
        }
        if let Err(error) = (hook.call)(self.progress()) {
            *refusal = Some(error);
            self.cancel();
        }
    }

    /// Replaces the error by the hook's error if the hook has cancelled the work.
    pub fn conclude<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let hook = self.0.hook.as_ref().filter(|_| error.kind() == ErrorKind::Cancelled);
            let refusal =
                hook.and_then(|hook| hook.refusal.lock().unwrap_or_else(PoisonError::into_inner).take());
            refusal.unwrap_or(error)
        })
    }

    /// Records that large files were written with direct I/O.
    pub fn went_direct(&self) {
        self.0.has_direct.store(true, Ordering::Relaxed);
    }

    /// Records that direct I/O was refused with this error.
    pub fn refused_direct(&self, os_error: i32) {
        self.0.refusal.store(os_error, Ordering::Relaxed);
    }

    /// Does `work`, and adds its time and `bytes` to the stage.
    pub fn timed<R>(&self, stage: Stage, bytes: u64, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        self.add(stage, began.elapsed(), bytes);
        result
    }

    /// Adds time and bytes to the stage.
    pub fn add(&self, stage: Stage, time: Duration, bytes: u64) {
        if let Some(spent) = self.0.spent.get(stage as usize) {
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            spent.nanos.fetch_add(nanos, Ordering::Relaxed);
            spent.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// A running piece of work. It ends when this value is dropped.
#[derive(Debug)]
pub struct Running(Monitor);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hook {
    /// Whether the hook should be called now. True for only one thread.
    fn is_due(&self) -> bool {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let next = self.next_nanos.load(Ordering::Relaxed);
        let later = now.saturating_add(TELL_EVERY.as_nanos() as u64);
        now >= next
            && self.next_nanos.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}
