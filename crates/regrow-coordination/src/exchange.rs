//! Puts values under the names of one attempt, and waits for the values of other processes.
//!
//! Every wait ends: with all values, with the failure of another process, with the known end of a
//! process, with a cancel, or with its time-out. A wait consists of short waits at the service,
//! which grow up to a second. After a short wait without a value, the process checks the other
//! conditions. It asks for ended processes only after the longest of these waits.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Coordinator;
use super::failure::{Failure, Stop};
use super::ranks::ranks;
use super::values::Values;
use regrow_base::error::{Error, ErrorKind, Result};
use regrow_base::monitor::Monitor;
use regrow_storage::location::Location;

/// The first and the longest slice of a wait. A process sees the failure of another process after
/// at most the longest slice.
const SLICES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The options of a [`Session`](super::Session).
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// How long a process waits for the others in each phase.
    ///
    /// The time starts when this process reaches the phase, so the time-out must exceed the time by
    /// which the slowest process trails the fastest. A process that waits for rank 0 waits a little
    /// longer, so that rank 0 names the missing rank.
    pub timeout: Duration,
    /// Put in front of all keys: processes with another prefix form another group, such as
    /// evaluators that restore while other processes save. Letters, digits, `-`, `_`, `.`.
    pub prefix: String,
    /// Cancels a wait; the other processes then end with `Cancelled`, too.
    pub monitor: Monitor,
    /// Receives reports of long waits.
    pub on_wait: Option<OnWait>,
    /// A wait is first reported after this time, and then each time its length has doubled.
    pub tell_after: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            prefix: "regrow".to_owned(),
            monitor: Monitor::new(),
            on_wait: None,
            tell_after: Duration::from_secs(5),
        }
    }
}

/// A wait that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The phase.
    pub phase: String,
    /// The missing ranks.
    pub missing: Vec<usize>,
    /// How long the wait has taken so far.
    pub waited: Duration,
    /// How long the wait may take.
    pub timeout: Duration,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waited, most) = (self.waited.as_secs_f64(), self.timeout.as_secs_f64());
        write!(
            f,
            "waits for {} in phase `{}`, {waited:.0} s of {most:.0} s",
            ranks(&self.missing),
            self.phase
        )
    }
}

/// Receives reports of long waits.
#[derive(Clone)]
pub struct OnWait(Arc<dyn Fn(&Waiting) + Send + Sync>);

impl OnWait {
    /// Calls `tell` on the thread that waits.
    pub fn new(tell: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for OnWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnWait")
    }
}

/// The values that a process waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Awaited<'a> {
    /// The value of one rank, under this name.
    Of(usize, &'a str),
    /// The values of all ranks except 0, each under `<this name>/<rank>`.
    OfOthers(&'a str),
}

impl Awaited<'_> {
    fn ranks(self, size: usize) -> Range<usize> {
        match self {
            Self::Of(rank, _) => rank..rank + 1,
            Self::OfOthers(_) => 1..size,
        }
    }

    fn name(self, rank: usize) -> String {
        match self {
            Self::Of(_, name) => name.to_owned(),
            Self::OfOthers(folder) => format!("{folder}/{rank}"),
        }
    }
}

/// The values of one attempt, which are keys below `at`.
#[derive(Debug)]
pub(super) struct Exchange {
    pub service: Arc<dyn Coordinator>,
    pub target: Location,
    pub options: SessionOptions,
    pub at: String,
}

impl Exchange {
    pub(super) fn rank(&self) -> usize {
        self.service.rank()
    }

    fn values(&self) -> Values<'_> {
        Values { service: &*self.service, at: &self.at }
    }

    pub(super) fn put(&self, name: &str, value: &Bytes) -> Result<bool> {
        self.values().put(name, value)
    }

    /// The value under a name; waits as [`Coordinator::get`] does.
    pub(super) fn get(&self, name: &str, wait: Duration) -> Result<Option<Bytes>> {
        self.values().get(name, wait)
    }

    pub(super) fn patience_with_rank_0(&self) -> Duration {
        let timeout = self.options.timeout;
        timeout.saturating_add((timeout / 4).min(Duration::from_secs(10)))
    }

    /// Tells all others that this attempt has failed, unless another process did so first. Errors
    /// of the service are ignored: the other processes then stop at their time-outs.
    pub(super) fn fail(&self, failure: &Failure) {
        let _ = self.put("failed", &failure.to_bytes());
    }

    pub(super) fn failure(&self) -> Result<Option<Failure>> {
        Ok(self.get("failed", Duration::ZERO)?.map(|bytes| Failure::from_bytes(&bytes)))
    }

    /// Waits for all values, and returns them in the order of ranks.
    pub(super) fn collect(
        &self,
        phase: &str,
        awaited: Awaited<'_>,
        patience: Duration,
    ) -> Result<Vec<Bytes>, Stop> {
        let began = Instant::now();
        let mut found = Found::new(self, awaited);
        let (mut slice, longest) = SLICES;
        let mut next_tell = self.options.tell_after;
        loop {
            found.look_at_all()?;
            // Wait for one rank at a time: the values of the other ranks arrive during this wait.
            let Some(rank) = found.first_missing() else { break };
            let left = patience.saturating_sub(began.elapsed());
            if found.look_at(rank, slice.min(left))? {
                continue;
            }
            self.options.monitor.check()?;
            if let Some(failure) = self.failure()? {
                return Err(Stop::There(failure.into()));
            }
            let live = if slice == longest { self.service.live()? } else { None };
            let is_late = began.elapsed() >= patience;
            let is_to_tell = began.elapsed() >= next_tell;
            slice = (slice * 2).min(longest);
            if live.is_none() && !is_late && !is_to_tell {
                continue;
            }
            let missing = found.still_missing()?;
            let dead: Vec<usize> = live.map_or(Vec::new(), |live| {
                missing.iter().copied().filter(|rank| !live.contains(rank)).collect()
            });
            if !dead.is_empty() {
                return Err(self.have_ended(phase, &dead).into());
            }
            if is_late && !missing.is_empty() {
                return Err(self.have_not_come(phase, &missing, began.elapsed()).into());
            }
            if is_to_tell && !missing.is_empty() {
                next_tell = began.elapsed().saturating_mul(2);
                self.tell(phase, missing, began.elapsed(), patience);
            }
        }
        Ok(found.values.into_iter().flatten().collect())
    }

    pub(super) fn tell(&self, phase: &str, missing: Vec<usize>, waited: Duration, timeout: Duration) {
        if let Some(OnWait(tell)) = &self.options.on_wait {
            tell(&Waiting { phase: phase.to_owned(), missing, waited, timeout });
        }
    }

    pub(super) fn have_not_come(&self, phase: &str, missing: &[usize], waited: Duration) -> Error {
        let verb = if missing.len() == 1 { "has" } else { "have" };
        let who = ranks(missing);
        let what = format!("{who} {verb} not come to phase `{phase}` within {:.1} s", waited.as_secs_f64());
        Error::new(ErrorKind::TimedOut, what).in_file(&self.target).help(format!(
            "every process must call this for the same path: check whether {who} {verb} ended, hung or \
             failed; a slow process needs a longer time-out"
        ))
    }

    fn have_ended(&self, phase: &str, dead: &[usize]) -> Error {
        let verb = if dead.len() == 1 { "has" } else { "have" };
        let what = format!("{} {verb} ended before phase `{phase}`", ranks(dead));
        Error::new(ErrorKind::TimedOut, what).in_file(&self.target).help(
            "the job's coordination service lost contact: read the log of that process and restart \
                the job",
        )
    }
}

/// The awaited values that were found so far.
struct Found<'a> {
    exchange: &'a Exchange,
    awaited: Awaited<'a>,
    ranks: Range<usize>,
    values: Vec<Option<Bytes>>,
    /// The time of the next look at all values in one call; `None` if the service has no such call.
    next_look: Option<Instant>,
}

impl<'a> Found<'a> {
    fn new(exchange: &'a Exchange, awaited: Awaited<'a>) -> Self {
        let ranks = awaited.ranks(exchange.service.size());
        let next_look = (ranks.len() > 1).then(Instant::now);
        Self { exchange, awaited, values: vec![None; ranks.len()], ranks, next_look }
    }

    fn first_missing(&self) -> Option<usize> {
        self.ranks.clone().zip(&self.values).find(|(_, value)| value.is_none()).map(|(rank, _)| rank)
    }

    fn look_at(&mut self, rank: usize, wait: Duration) -> Result<bool> {
        let value = self.exchange.get(&self.awaited.name(rank), wait)?;
        let is_there = value.is_some();
        self.keep(rank, value);
        Ok(is_there)
    }

    /// Looks for all missing values in one call, if the service has such a call. Between two such
    /// calls `collect` looks at single ranks, for as long as the last call took. So both ways
    /// together take at most twice the time of the faster way.
    fn look_at_all(&mut self) -> Result<()> {
        let begin = Instant::now();
        if self.next_look.is_none_or(|next_look| begin < next_look) {
            return Ok(());
        }
        let missing = self.missing();
        if missing.len() < 2 {
            return Ok(());
        }
        let names: Vec<String> = missing.iter().map(|&rank| self.awaited.name(rank)).collect();
        let found = self.exchange.values().get_many(&names)?;
        self.next_look = found.as_ref().map(|_| begin + begin.elapsed() * 2);
        for (rank, value) in missing.into_iter().zip(found.unwrap_or_default()) {
            self.keep(rank, value);
        }
        Ok(())
    }

    /// Looks once more at all missing values, and returns the ranks whose values are still missing.
    fn still_missing(&mut self) -> Result<Vec<usize>> {
        self.next_look = self.next_look.map(|_| Instant::now());
        self.look_at_all()?;
        for rank in self.missing() {
            self.look_at(rank, Duration::ZERO)?;
        }
        Ok(self.missing())
    }

    fn missing(&self) -> Vec<usize> {
        let all = self.ranks.clone().zip(&self.values);
        all.filter(|(_, value)| value.is_none()).map(|(rank, _)| rank).collect()
    }

    fn keep(&mut self, rank: usize, value: Option<Bytes>) {
        let place = rank.checked_sub(self.ranks.start).and_then(|at| self.values.get_mut(at));
        if let (Some(place), Some(value)) = (place, value) {
            *place = Some(value);
        }
    }
}
