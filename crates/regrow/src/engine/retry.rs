//! Beginning anew: an open or a load whose checkpoint is replaced meanwhile tries again, for a while.

use std::time::{Duration, Instant};

use crate::error::{ErrorKind, Result};

/// What takes longer than these many retries together is not given up for the clock alone.
const ATTEMPTS_MIN: u32 = 20;

/// A writer that replaces a checkpoint for longer than this, without a pause in which it can be read, wins.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Counts retries: over when both limits are passed, so that neither a slow read nor a busy writer ends it early.
#[derive(Debug)]
pub(crate) struct Retries {
    since: Instant,
    done: u32,
}

impl Retries {
    pub(super) fn begin() -> Self {
        Self { since: Instant::now(), done: 0 }
    }

    /// Reads until what was read was not replaced meanwhile.
    ///
    /// # Errors
    /// What `read` says; `Replaced` if a writer wins.
    pub(crate) fn until_unreplaced<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
        let mut retries = Self::begin();
        loop {
            match read() {
                Err(error) if error.kind() == ErrorKind::Replaced && retries.another() => {}
                other => return other,
            }
        }
    }

    /// Counts one that was in vain; whether there is to be another.
    pub(super) fn another(&mut self) -> bool {
        self.done += 1;
        self.done < ATTEMPTS_MIN || self.since.elapsed() < TIME_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_when_both_limits_are_passed() {
        let mut young = Retries::begin();
        assert!((0..2 * ATTEMPTS_MIN).all(|_| young.another()), "many, but all of them quick");
        let long_ago = Instant::now().checked_sub(TIME_MAX).expect("a clock that is older than that");
        let mut old = Retries { since: long_ago, done: 0 };
        assert_eq!((0..2 * ATTEMPTS_MIN).filter(|_| old.another()).count() as u32, ATTEMPTS_MIN - 1);
    }
}
