//! The start of a session: one attempt of all processes to save or restore one checkpoint.
//!
//! ```text
//! <prefix>/<purpose>/<name>-<digest of the target>/          the meeting place: all processes can compute it
//!     current                    "<nonce> <size>"    rank 0 has begun an attempt and waits for the others
//!     <nonce>/here/<rank>        this rank takes part
//!     <nonce>/begun              all have come
//!     <nonce>/failed             the first failure
//!     <nonce>/<phase>/...        the values of a session
//!     <nonce>/parts/...          the later parts of long values
//!     <nonce>/end/<rank>         this rank wants nothing more
//! ```
//! No process counts attempts: a process that fails before it begins a session would count one
//! attempt less than the others. Only rank 0 begins an attempt, with a nonce. The others join the
//! attempt of `current`, each at most once. So
//!
//! - the keys of an earlier attempt are never used again, no matter where each process left that
//!   attempt;
//! - a process that still waits for `begun` in the earlier attempt finds `failed` there, and joins
//!   the new attempt. After `begun` a process ends with an error: with the failure that it finds,
//!   or at its time-out;
//! - if a job is killed, its keys stay in a coordinator that is a folder. The next job ignores
//!   these keys: its rank 0 replaces the old `current`.
//!
//! When all processes have ended an attempt successfully, rank 0 removes all these keys.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Coordinator;
use super::exchange::{Awaited, Exchange, SessionOptions};
use super::failure::{Failure, Stop};
use regrow_base::error::{Error, Result};
use regrow_storage::location::Location;
use regrow_store::local::folders::random_name;

/// The longest time that rank 0 waits at the end for the others to read everything.
const END_WAIT: Duration = Duration::from_secs(10);

/// How often a process looks whether rank 0 has begun another attempt.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The longest part of the target's name in the keys. The keys contain the name only for people.
const NAME_LEN_MAX: usize = 32;

const PHASE: &str = "begin";

/// The prefix of all keys of one checkpoint. Each attempt has a folder below it.
#[derive(Debug)]
pub(super) struct MeetingPlace(String);

impl MeetingPlace {
    pub(super) fn of(target: &Location, purpose: &str, prefix: &str) -> Self {
        let path = target.absolute().describe();
        let digest = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
        let digest = digest.get(..16).unwrap_or_default();
        Self(format!("{prefix}/{purpose}/{}-{digest}", plain(target.name())))
    }

    fn current(&self) -> String {
        format!("{}/current", self.0)
    }

    fn attempt(&self, nonce: &str) -> String {
        format!("{}/{nonce}", self.0)
    }

    /// Returns when all processes are in the same attempt, which rank 0 has begun.
    pub(super) fn meet(
        &self,
        service: Arc<dyn Coordinator>,
        target: &Location,
        options: SessionOptions,
    ) -> Result<Exchange> {
        let at = String::new();
        let exchange = Exchange { service, target: target.clone(), options, at };
        if exchange.rank() == 0 { self.open(exchange) } else { self.join(exchange) }
    }

    fn open(&self, mut exchange: Exchange) -> Result<Exchange> {
        let service = Arc::clone(&exchange.service);
        if let Some(old) = service.get(&self.current(), Duration::ZERO)? {
            exchange.at = self.attempt(&Current::parse(&old).nonce);
            exchange.fail(&Failure::superseded());
            service.remove(&self.current())?;
        }
        let current = Current { nonce: random_name()?, size: service.size() };
        exchange.at = self.attempt(&current.nonce);
        if !service.put_if_absent(&self.current(), current.to_bytes())? {
            return Err(Error::invalid(
                "two processes are rank 0, or one process starts the same work twice",
            )
            .in_file(&exchange.target));
        }
        let met = exchange.collect(PHASE, Awaited::OfOthers("here"), exchange.options.timeout);
        // A process that arrives now is too late for this attempt, and waits for the next attempt.
        let removed = service.remove(&self.current()).map_err(Stop::from);
        match met.and(removed).and_then(|()| Ok(exchange.put("begun", &Bytes::new())?)) {
            Ok(_) => Ok(exchange),
            Err(stop) => Err(given_up(&exchange, stop)),
        }
    }

    fn join(&self, mut exchange: Exchange) -> Result<Exchange> {
        let service = Arc::clone(&exchange.service);
        let (began, patience) = (Instant::now(), exchange.patience_with_rank_0());
        let mut next_tell = exchange.options.tell_after;
        let mut other_size = None;
        loop {
            let left = patience.saturating_sub(began.elapsed());
            let found = service.get(&self.current(), left.min(Duration::from_secs(1)))?;
            if let Some(current) = found.map(|found| Current::parse(&found)) {
                exchange.at = self.attempt(&current.nonce);
                other_size = Some(current.size).filter(|&size| size != service.size());
                let begun = if other_size.is_none() { self.enter(&exchange, left)? } else { false };
                if begun {
                    return Ok(exchange);
                }
                std::thread::sleep(LOOK_AGAIN.min(left));
            }
            exchange.options.monitor.check()?;
            if began.elapsed() >= patience {
                let error = exchange.have_not_come(PHASE, &[0], began.elapsed());
                return Err(match other_size {
                    Some(size) => error.expected(
                        format_args!("a job of {} processes", service.size()),
                        format_args!("an attempt of rank 0 with {size}"),
                    ),
                    None => error,
                });
            }
            if began.elapsed() >= next_tell {
                next_tell = began.elapsed().saturating_mul(2);
                exchange.tell(PHASE, vec![0], began.elapsed(), patience);
            }
        }
    }

    /// Joins the existing attempt. Returns false if this process cannot join it: a process of this
    /// rank has already joined it, the attempt has failed, or rank 0 has left it for another
    /// attempt.
    fn enter(&self, exchange: &Exchange, patience: Duration) -> Result<bool> {
        let token = random_name()?.into_bytes().into();
        if exchange.failure()?.is_some() || !exchange.put(&format!("here/{}", exchange.rank()), &token)? {
            return Ok(false);
        }
        match exchange.collect(PHASE, Awaited::Of(0, "begun"), patience) {
            Ok(_) => Ok(true),
            Err(Stop::There(failure)) if failure.is_superseded => Ok(false),
            Err(stop) => Err(given_up(exchange, stop)),
        }
    }

    /// Ends a successful attempt. A failure here is not an error: keys that stay are never used
    /// again.
    pub(super) fn leave(&self, exchange: &Exchange) {
        if exchange.rank() != 0 {
            let _ = exchange.put(&format!("end/{}", exchange.rank()), &Bytes::new());
            return;
        }
        let wait = END_WAIT.min(exchange.options.timeout);
        if exchange.collect("end", Awaited::OfOthers("end"), wait).is_ok() {
            let _ = exchange.service.remove(&self.0);
        }
    }
}

/// The content of `current`.
struct Current {
    nonce: String,
    size: usize,
}

impl Current {
    fn to_bytes(&self) -> Bytes {
        format!("{} {}", self.nonce, self.size).into()
    }

    /// Returns an attempt without processes for invalid bytes.
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (nonce, size) = text.split_once(' ').unwrap_or_default();
        Self { nonce: plain(OsStr::new(nonce)), size: size.parse().unwrap_or(0) }
    }
}

fn given_up(exchange: &Exchange, stop: Stop) -> Error {
    exchange.fail(&stop.failure(exchange.rank(), PHASE));
    stop.into_error()
}

/// The name with characters that a key may contain.
fn plain(name: &OsStr) -> String {
    let keep = |sign: char| if is_plain(sign) { sign } else { '_' };
    Path::new(name).to_string_lossy().chars().map(keep).take(NAME_LEN_MAX).collect()
}

/// Whether a key may contain the character.
pub(super) fn is_plain(sign: char) -> bool {
    sign.is_ascii_alphanumeric() || matches!(sign, '-' | '_' | '.')
}
