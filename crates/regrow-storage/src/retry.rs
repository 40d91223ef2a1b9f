//! Retries: an open or a load starts again if its checkpoint is replaced in between, for a limited
//! time.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::error::{ErrorKind, Result};

/// Below this number of retries, time alone does not end them.
const ATTEMPTS_MIN: u32 = 20;

/// Reads give up if a writer keeps replacing the checkpoint for longer than this.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Failed retries. Nested calls share the count of their thread, because separate counts would
/// multiply.
#[derive(Debug, Clone, Copy, Default)]
struct Vain {
    /// The time of the first failed retry.
    since: Option<Instant>,
    done: u32,
}

thread_local! {
    /// The count of the outermost call on this thread, while it runs.
    static OUTERMOST: Cell<Option<Vain>> = const { Cell::new(None) };
}

/// Counts retries. They end when both limits are exceeded, so neither a slow read nor a busy writer
/// ends them early. Nested calls on a thread share the count of the outermost call.
#[derive(Debug)]
pub struct Retries {
    is_outermost: bool,
    /// The count when this value was made.
    before: Vain,
    /// Keeps the value on its thread: the count belongs to the thread.
    _here: PhantomData<*const ()>,
}

impl Retries {
    /// Begins to count.
    pub fn begin() -> Self {
        let outermost = OUTERMOST.get();
        let before = outermost.unwrap_or_default();
        OUTERMOST.set(Some(before));
        Self { is_outermost: outermost.is_none(), before, _here: PhantomData }
    }

    /// Reads until the checkpoint was not replaced during the read.
    ///
    /// # Errors
    /// Errors of `read`; `Replaced` if the limits are exceeded.
    pub fn until_unreplaced<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
        let mut retries = Self::begin();
        loop {
            match read() {
                Err(error) if error.kind() == ErrorKind::Replaced && retries.another() => {}
                Ok(read) => {
                    retries.were_of_use();
                    return Ok(read);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Resets the count to its value at `begin`, after a successful read. So the retries of a
    /// nested call do not count for the outer call.
    pub fn were_of_use(self) {
        OUTERMOST.set(Some(self.before));
    }

    /// Counts a failed retry; returns whether to try again.
    pub fn another(&mut self) -> bool {
        let Vain { since, done } = OUTERMOST.get().unwrap_or_default();
        let vain = Vain { since: since.or_else(|| Some(Instant::now())), done: done + 1 };
        OUTERMOST.set(Some(vain));
        vain.done < ATTEMPTS_MIN || vain.since.is_none_or(|since| since.elapsed() < TIME_MAX)
    }
}

impl Drop for Retries {
    fn drop(&mut self) {
        if self.is_outermost {
            OUTERMOST.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Moves the first failed retry into the past.
    fn age() {
        let long_ago = Instant::now().checked_sub(TIME_MAX).expect("a clock that is older than that");
        OUTERMOST.set(OUTERMOST.get().map(|vain| Vain { since: Some(long_ago), ..vain }));
    }

    #[test]
    fn ends_when_both_limits_are_passed() {
        let mut young = Retries::begin();
        assert!((0..2 * ATTEMPTS_MIN).all(|_| young.another()), "many, but all of them quick");
        drop(young);
        let mut old = Retries::begin();
        age();
        assert_eq!((0..2 * ATTEMPTS_MIN).filter(|_| old.another()).count() as u32, ATTEMPTS_MIN - 1);
    }

    #[test]
    fn one_within_another_is_counted_once() {
        let mut reads = 0;
        let replaced = || Error::new(ErrorKind::Replaced, "again");
        let read = Retries::until_unreplaced(|| {
            Retries::until_unreplaced(|| {
                Retries::until_unreplaced(|| -> Result<()> {
                    age();
                    reads += 1;
                    Err(replaced())
                })
            })
        });
        assert_eq!(read.unwrap_err().kind(), ErrorKind::Replaced);
        assert_eq!(reads, ATTEMPTS_MIN);
        // A nested call that succeeds in the end adds nothing to the count of the outer call.
        let mut outer = Retries::begin();
        for _ in 0..3 {
            let mut left = ATTEMPTS_MIN - 1;
            let read = Retries::until_unreplaced(|| {
                age();
                left -= 1;
                if left == 0 { Ok(()) } else { Err(replaced()) }
            });
            read.unwrap();
        }
        assert!((1..ATTEMPTS_MIN).all(|_| outer.another()));
        drop(outer);
        // The next call starts at zero.
        let mut next = Retries::begin();
        assert!((0..ATTEMPTS_MIN).all(|_| next.another()));
    }
}
