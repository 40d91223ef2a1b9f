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

/// A hook is called once in this time, and at the end.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// What a piece of work spends its time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Planning, names, indexes and small files: all that the stages below do not claim.
    Prepare,
    /// Before a save with a base: looking which leaves are the same
    /// there.
    Compare,
    /// Getting data from disk or from a map, checking and decoding it; in a conversion a part of
    /// the copy, and of the comparison.
    Read,
    /// Filling the writer's buffers: copies and checksums, and what the layout does to data on its
    /// way there, such as casts and compression.
    Copy,
    /// Waiting for a free buffer: the disk is slower than the copy.
    WaitForDisk,
    /// Writing full buffers on a thread, while the other stages run.
    Write,
    /// Waiting until the disk has it for good.
    Sync,
    /// Giving the checkpoint its name, and removing the one that it replaces.
    Commit,
    /// Before a save in the background: waiting for an earlier one. The caller is blocked.
    WaitForSave,
    /// Before a save in the background: taking the snapshot. The caller is blocked.
    Snapshot,
}

impl Stage {
    /// All of them, in the order of a save, and then those of the caller of a save in the
    /// background.
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

/// How far a piece of work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What it is at.
    pub stage: Stage,
    /// Bytes of array data done; never more than `total_bytes`.
    pub done_bytes: u64,
    /// Bytes of array data in all; 0 until that is known. With a base
    /// what is compared counts as well: once, and again where a digest turns out to be that of
    /// other bytes.
    pub total_bytes: u64,
}

/// What one stage took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageReport {
    /// Which stage.
    pub stage: Stage,
    /// Seconds, added up where several threads were at it.
    pub seconds: f64,
    /// Bytes that went through it; 0 for a stage that is not about bytes.
    pub bytes: u64,
}

impl StageReport {
    /// 10^9 bytes a second; 0 for a stage that is not about bytes.
    pub fn gb_per_s(&self) -> f64 {
        gb_per_s(self.bytes, self.seconds)
    }
}

/// 10^9 bytes a second; 0 if no time passed.
pub fn gb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds / 1e9 } else { 0.0 }
}

/// How the bytes of large files get to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum IoPath {
    /// The page cache, since no file is large.
    #[default]
    Small,
    /// Past the page cache.
    Direct,
    /// Through the page cache, each buffer's write-back begun at once, because direct I/O was
    /// refused with this error of the system.
    Buffered {
        /// The system's number of the error.
        os_error: i32,
    },
}

impl fmt::Display for IoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small => f.write_str("page cache"),
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

/// Watches a piece of work, and stops it. Clones watch the same.
///
/// - Counts start again with each piece of work, unless another is still in progress: then the two
///   add up.
/// - Once [cancelled](Self::cancel) it stays so: work that is given a cancelled monitor ends at
///   once.
#[derive(Clone, Debug, Default)]
pub struct Monitor(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_cancelled: AtomicBool,
    /// Pieces of work under way.
    running: AtomicUsize,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    stage: AtomicU8,
    /// Whether anything was written by direct I/O, and what it said where it was refused; 0 where
    /// it was not.
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
    /// Nanoseconds after `began` at which it is to be called again.
    next_nanos: AtomicU64,
    /// What it said last, if that was no. Locked while it is called: it is never called twice at
    /// once.
    refusal: Mutex<Option<Error>>,
}

impl Monitor {
    /// One that is only looked at.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that calls `hook` while the work goes on, at most 20 times a second and never twice at
    /// once, from whichever thread is at work; and once more when all bytes are done, for a save
    /// before the checkpoint gets its name. An error of the hook ends the work with that error;
    /// nothing is left behind.
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

    /// Asks the work to stop. It does so at its next buffer, with [`ErrorKind::Cancelled`], and
    /// leaves nothing behind; a save that has all its bytes on disk already may still be completed.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to stop, by [`cancel`](Self::cancel) or by its hook.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }

    /// How far the work is.
    pub fn progress(&self) -> Progress {
        let total_bytes = self.0.total_bytes.load(Ordering::Relaxed);
        let stage = Stage::ALL.get(usize::from(self.0.stage.load(Ordering::Relaxed)));
        Progress {
            stage: stage.copied().unwrap_or(Stage::Prepare),
            done_bytes: self.0.done_bytes.load(Ordering::Relaxed).min(total_bytes),
            total_bytes,
        }
    }

    /// What each stage has taken so far, in the order of [`Stage::ALL`]; stages that took no time
    /// are left out.
    pub fn stages(&self) -> Vec<StageReport> {
        let report = |(&stage, spent): (&Stage, &Spent)| StageReport {
            stage,
            seconds: Duration::from_nanos(spent.nanos.load(Ordering::Relaxed)).as_secs_f64(),
            bytes: spent.bytes.load(Ordering::Relaxed),
        };
        let all = Stage::ALL.iter().zip(&self.0.spent).map(report);
        all.filter(|report| report.seconds > 0.0 || report.bytes > 0).collect()
    }

    /// How large files got to the disk; where several ways were taken, the slowest of them.
    pub fn io_path(&self) -> IoPath {
        match (self.0.refusal.load(Ordering::Relaxed), self.0.has_direct.load(Ordering::Relaxed)) {
            (0, false) => IoPath::Small,
            (0, true) => IoPath::Direct,
            (os_error, _) => IoPath::Buffered { os_error },
        }
    }

    /// What was found beside the work.
    pub fn notes(&self) -> Vec<String> {
        self.0.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says what was found beside the work, for its report.
    pub fn note(&self, what: String) {
        self.0.notes.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Begins a piece of work: counts are set back, unless another one is under way.
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

    /// Says what it is at, for [`progress`](Self::progress).
    pub fn enter(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// `Cancelled` if the work is to stop.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::new(ErrorKind::Cancelled, "stopped on request")) } else { Ok(()) }
    }

    /// There are `bytes` more to do.
    pub fn expect(&self, bytes: u64) {
        self.0.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `bytes` more are done; `Cancelled` if the work is to stop.
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

    /// [`advance`](Self::advance) for work that is one stage.
    pub fn done(&self, stage: Stage, bytes: u64) -> Result<()> {
        self.add(stage, Duration::ZERO, bytes);
        self.advance(bytes)
    }

    /// All bytes are done: the hook is told in any case.
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

    /// The result of the work: where it was the hook that ended it, the hook's own error.
    pub fn conclude<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let hook = self.0.hook.as_ref().filter(|_| error.kind() == ErrorKind::Cancelled);
            let refusal =
                hook.and_then(|hook| hook.refusal.lock().unwrap_or_else(PoisonError::into_inner).take());
            refusal.unwrap_or(error)
        })
    }

    /// Large files go past the page cache.
    pub fn went_direct(&self) {
        self.0.has_direct.store(true, Ordering::Relaxed);
    }

    /// Direct I/O was refused with this error.
    pub fn refused_direct(&self, os_error: i32) {
        self.0.refusal.store(os_error, Ordering::Relaxed);
    }

    /// Does `work` on the stage's account.
    pub fn timed<R>(&self, stage: Stage, bytes: u64, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        self.add(stage, began.elapsed(), bytes);
        result
    }

    /// Puts time and bytes on the stage's account.
    pub fn add(&self, stage: Stage, time: Duration, bytes: u64) {
        if let Some(spent) = self.0.spent.get(stage as usize) {
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            spent.nanos.fetch_add(nanos, Ordering::Relaxed);
            spent.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// A piece of work that is under way.
#[derive(Debug)]
pub struct Running(Monitor);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Hook {
    /// Whether it is time to call it; true for one thread only.
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
