//! A save or a restore of one checkpoint by all processes of a job.
//!
//! | | rank 0 | the others |
//! |---|---|---|
//! | gather | waits for `<phase>/from/1`, `2`, ... | put `<phase>/from/<rank>`, and go on |
//! | broadcast | puts `<phase>/verdict` | wait for the verdict |
//! | agree | gathers, then puts `<phase>/verdict` | put `<phase>/from/<rank>`, then wait for the verdict |
//! | post | puts `<phase>/from/0`, and goes on | put `<phase>/from/<rank>`, and go on |
//! | receive | waits for `<phase>/from/<rank>` | the same |
//!
//! A phase has one verdict, and the first put decides: rank 0 puts its value, and a process that
//! gives up puts its failure. All processes use the stored verdict, also a process whose put came
//! too late. So if one process gets an error from `agree` or `broadcast`, all other processes get
//! an error, too, unless they lose the service.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::Coordinator;
use super::attempt::{MeetingPlace, is_plain};
use super::exchange::{Awaited, Exchange, SessionOptions};
use super::failure::{Failure, Stop};
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_storage::location::Location;

/// First byte of a verdict: a value follows, or a failure.
const WELL: u8 = 1;
const FAILED: u8 = 0;

/// The longest time for a verdict to appear after a process learned that it exists.
const VERDICT_WAIT: Duration = Duration::from_secs(30);

/// One save or restore of one checkpoint, in which every process of the job takes part.
///
/// Every process runs the same phases in the same order; each phase has its own name. The first
/// error of any process ends the session for all, and so does a process that drops its session
/// without [`finish`](Self::finish).
#[derive(Debug)]
pub struct Session {
    /// None for a job of one process, which sends no messages.
    with_others: Option<(MeetingPlace, Exchange)>,
    rank: usize,
    size: usize,
    phases: Mutex<BTreeSet<String>>,
    is_over: AtomicBool,
}

impl Session {
    /// Begins a session for the checkpoint at `target`, and returns when all processes have joined.
    /// `purpose` is a word such as `save`.
    ///
    /// Call it before any other step that may fail, so that no other process waits in vain. Call it
    /// again after an error, or in a restarted process while others are still in the earlier
    /// session.
    ///
    /// # Errors
    /// `TimedOut`, with the ranks that have not come or have ended; the first error of another
    /// process; `Cancelled`; errors of the service; `InvalidArgument` for a purpose or a prefix
    /// that cannot be in a key.
    pub fn begin(
        coordinator: Arc<dyn Coordinator>,
        target: &Location,
        purpose: &str,
        options: SessionOptions,
    ) -> Result<Self> {
        let (rank, size) = (coordinator.rank(), coordinator.size());
        check_name("purpose", purpose)?;
        check_name("prefix", &options.prefix)?;
        if rank >= size {
            return Err(
                Error::invalid("the rank does not exist").expected(format_args!("below {size}"), rank)
            );
        }
        let mut with_others = None;
        if size > 1 {
            let place = MeetingPlace::of(target, purpose, &options.prefix);
            let exchange = place.meet(coordinator, target, options)?;
            with_others = Some((place, exchange));
        }
        Ok(Self { with_others, rank, size, phases: Mutex::default(), is_over: AtomicBool::new(false) })
    }

    /// Which process this is, from 0 on.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How long each phase may take; `None` for a job of one process, which waits for no other.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.with_others.as_ref().map(|(_, exchange)| exchange.options.timeout)
    }

    /// On rank 0: the values of all processes, in the order of ranks. `None` on the other ranks,
    /// which do not wait.
    ///
    /// Values may be megabytes. Rank 0 holds all of them.
    ///
    /// # Errors
    /// The errors of [`begin`](Self::begin); `InvalidArgument` for a phase that this session
    /// already had.
    pub fn gather(&self, phase: &str, value: Bytes) -> Result<Option<Vec<Bytes>>> {
        let Some(exchange) = self.enter(phase)? else { return Ok(Some(vec![value])) };
        let gathered = self.contribute(exchange, phase, &value);
        gathered.map_err(|stop| self.give_up(exchange, phase, stop)).map(|others| {
            let all = others?;
            Some(std::iter::once(value).chain(all).collect())
        })
    }

    /// Runs `make` on rank 0 only, and returns its result in every process.
    ///
    /// # Errors
    /// Errors of `make`, in every process; errors of [`gather`](Self::gather).
    pub fn broadcast(&self, phase: &str, make: impl FnOnce() -> Result<Bytes>) -> Result<Bytes> {
        let Some(exchange) = self.enter(phase)? else { return make() };
        if self.rank != 0 {
            return self.follow(exchange, phase);
        }
        let value = make().map_err(|error| self.tell(exchange, phase, error))?;
        self.decide(exchange, phase, &value)?;
        Ok(value)
    }

    /// Waits until every process has come here, and returns an error in every process if one
    /// process passes an error. That process gets its own error; the others get an error of the
    /// same kind, with the rank of that process. If another process has failed before, a `NotFound`
    /// error of this process is replaced by the failure of the other process, which has deleted the
    /// temporary files.
    ///
    /// # Errors
    /// The agreed error; errors of [`gather`](Self::gather).
    pub fn agree<T>(&self, phase: &str, result: Result<T>) -> Result<T> {
        let Some(exchange) = self.enter(phase)? else { return result };
        let value = result.map_err(|error| self.tell(exchange, phase, error))?;
        match self.contribute(exchange, phase, &Bytes::new()) {
            Ok(None) => self.follow(exchange, phase).map(drop)?,
            Ok(Some(_)) => self.decide(exchange, phase, &Bytes::new())?,
            Err(stop) => self.settle(exchange, phase, stop).map(drop)?,
        }
        Ok(value)
    }

    /// Waits until every process has reached this phase, with the errors of [`agree`](Self::agree).
    pub fn barrier(&self, phase: &str) -> Result<()> {
        self.agree(phase, Ok(()))
    }

    /// Gives a value of this process to the processes that ask for it with
    /// [`receive`](Self::receive); does not wait.
    ///
    /// # Errors
    /// Errors of the service; `InvalidArgument` for a phase that this session already had.
    pub fn post(&self, phase: &str, value: &Bytes) -> Result<()> {
        let Some(exchange) = self.enter(phase)? else { return Ok(()) };
        let put = exchange.put(&given_by(phase, self.rank), value);
        let stop = match put {
            Ok(true) => return Ok(()),
            Ok(false) => two_writers(phase).into(),
            Err(error) => error.into(),
        };
        Err(self.give_up(exchange, phase, stop))
    }

    /// Waits for the value that process `rank` has given with [`post`](Self::post). A process can
    /// receive the same phase from every other rank.
    ///
    /// # Errors
    /// The errors of [`begin`](Self::begin), with the rank that has not come; `InvalidArgument` if
    /// there is no such other rank.
    pub fn receive(&self, phase: &str, rank: usize) -> Result<Bytes> {
        self.check_goes_on(phase)?;
        if rank >= self.size || rank == self.rank {
            return Err(Error::invalid("the other rank does not exist")
                .expected(format_args!("below {} and not {}", self.size, self.rank), rank));
        }
        let Some((_, exchange)) = &self.with_others else { return Ok(Bytes::new()) };
        let found =
            exchange.collect(phase, Awaited::Of(rank, &given_by(phase, rank)), exchange.options.timeout);
        let values = found.map_err(|stop| self.give_up(exchange, phase, stop))?;
        Ok(values.into_iter().next().unwrap_or_default())
    }

    /// Ends the session in this process. Rank 0 waits a moment for the others, and removes the
    /// session's values.
    pub fn finish(self) {
        let is_over = self.is_over.swap(true, Ordering::Relaxed);
        if let Some((place, exchange)) = self.with_others.as_ref().filter(|_| !is_over) {
            place.leave(exchange);
        }
    }

    /// Begins a phase. `None` in a job of one process.
    fn enter(&self, phase: &str) -> Result<Option<&Exchange>> {
        self.check_goes_on(phase)?;
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        if !phases.insert(phase.to_owned()) {
            return Err(Error::invalid(format!("phase `{phase}` of the session was already used")));
        }
        Ok(self.with_others.as_ref().map(|(_, exchange)| exchange))
    }

    fn check_goes_on(&self, phase: &str) -> Result<()> {
        check_name("phase", phase)?;
        if self.is_over.load(Ordering::Relaxed) {
            return Err(Error::invalid(format!("the session has failed before phase `{phase}`"))
                .help("begin a new session in every process"));
        }
        Ok(())
    }

    /// Puts this process's value; rank 0 then waits for the values of the others.
    fn contribute(
        &self,
        exchange: &Exchange,
        phase: &str,
        value: &Bytes,
    ) -> Result<Option<Vec<Bytes>>, Stop> {
        if self.rank != 0 {
            if !exchange.put(&given_by(phase, self.rank), value)? {
                return Err(two_writers(phase).into());
            }
            return Ok(None);
        }
        let from = from(phase);
        exchange.collect(phase, Awaited::OfOthers(&from), exchange.options.timeout).map(Some)
    }

    /// On rank 0: puts success, unless a process has given up before.
    fn decide(&self, exchange: &Exchange, phase: &str, value: &Bytes) -> Result<()> {
        let verdict = [&[WELL], &value[..]].concat().into();
        match exchange.put(&verdict_of(phase), &verdict) {
            Ok(true) => Ok(()),
            Ok(false) => self.read(exchange, phase).map(drop),
            Err(error) => Err(self.give_up(exchange, phase, error.into())),
        }
    }

    fn follow(&self, exchange: &Exchange, phase: &str) -> Result<Bytes> {
        let verdict = verdict_of(phase);
        match exchange.collect(phase, Awaited::Of(0, &verdict), exchange.patience_with_rank_0()) {
            Ok(verdicts) => self.take(verdicts.into_iter().next().unwrap_or_default()),
            Err(stop) => self.settle(exchange, phase, stop),
        }
    }

    /// Puts the failure of this process as the verdict. If a verdict already exists, the existing
    /// verdict is the result.
    fn settle(&self, exchange: &Exchange, phase: &str, stop: Stop) -> Result<Bytes> {
        let failure = stop.failure(self.rank, phase);
        let verdict = [&[FAILED], &failure.to_bytes()[..]].concat().into();
        match exchange.put(&verdict_of(phase), &verdict) {
            Ok(false) => self.read(exchange, phase),
            Ok(true) | Err(_) => Err(self.give_up(exchange, phase, stop)),
        }
    }

    fn read(&self, exchange: &Exchange, phase: &str) -> Result<Bytes> {
        let verdict = exchange.get(&verdict_of(phase), VERDICT_WAIT).and_then(|found| {
            found.ok_or_else(|| {
                Error::new(
                    ErrorKind::Io,
                    format!(
                        "the result of phase `{phase}` is \
                missing"
                    ),
                )
            })
        });
        self.take(verdict.map_err(|error| self.give_up(exchange, phase, error.into()))?)
    }

    fn take(&self, mut verdict: Bytes) -> Result<Bytes> {
        let value = verdict.split_off(verdict.len().min(1));
        if verdict[..] == [WELL] {
            return Ok(value);
        }
        self.is_over.store(true, Ordering::Relaxed);
        Err(Failure::from_bytes(&value).into_error())
    }

    /// Tells the others about this process's own error, and returns the error.
    ///
    /// The exception is `NotFound` after the failure of another process, which has deleted the
    /// temporary files: this function then returns that failure.
    fn tell(&self, exchange: &Exchange, phase: &str, error: Error) -> Error {
        if error.kind() == ErrorKind::NotFound
            && let Ok(Some(first)) = exchange.failure()
        {
            self.is_over.store(true, Ordering::Relaxed);
            return first.into_error();
        }
        let stop = Stop::Here(error.duplicate());
        let _ = self.settle(exchange, phase, stop);
        self.is_over.store(true, Ordering::Relaxed);
        error
    }

    fn give_up(&self, exchange: &Exchange, phase: &str, stop: Stop) -> Error {
        self.is_over.store(true, Ordering::Relaxed);
        exchange.fail(&stop.failure(self.rank, phase));
        stop.into_error()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        if let Some((_, exchange)) = &self.with_others {
            let how = if std::thread::panicking() { "by a panic" } else { "before its end" };
            let error = Error::new(ErrorKind::Cancelled, format!("it has left {how}"))
                .in_file(&exchange.target)
                .help("read the log of that process");
            exchange.fail(&Failure::new(self.rank, "leave", &error));
        }
    }
}

/// The key below which each rank puts its value.
fn from(phase: &str) -> String {
    format!("{phase}/from")
}

fn given_by(phase: &str, rank: usize) -> String {
    format!("{}/{rank}", from(phase))
}

fn verdict_of(phase: &str) -> String {
    format!("{phase}/verdict")
}

fn two_writers(phase: &str) -> Error {
    Error::invalid(format!("another process sent a value for phase `{phase}` with this rank"))
        .help("two processes have the same rank")
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if !name.is_empty() && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(Error::invalid(format!("the {what} is not valid in a key"))
        .expected("letters, digits, `-`, `_` and `.`", format_args!("`{name}`")))
}
