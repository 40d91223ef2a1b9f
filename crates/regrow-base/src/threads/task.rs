//! One piece of work on its own thread, or on the calling thread if the system cannot start one.

use std::thread::{Builder, Scope, ScopedJoinHandle};

use crossbeam_channel::bounded;

use crate::error::{Error, ErrorKind, Result};

/// A piece of work that runs, or is already done.
#[derive(Debug)]
pub enum Task<'scope, T> {
    /// The work runs on its own thread.
    Thread(ScopedJoinHandle<'scope, Result<T>>),
    /// The system could not start a thread, so the calling thread has done the work.
    Done(Result<T>),
}

impl<'scope, T: Send + 'scope> Task<'scope, T> {
    /// Begins `work` on a thread named `name`. If no thread can be started, does `work` before this
    /// returns.
    pub fn begin<'env>(
        scope: &'scope Scope<'scope, 'env>,
        name: &str,
        work: impl FnOnce() -> Result<T> + Send + 'scope,
    ) -> Self {
        // A thread that fails to start drops its closure, so the work goes only to a thread that
        // runs.
        let (hand_over, taken) = bounded(1);
        let started = Builder::new().name(name.to_owned()).spawn_scoped(scope, move || match taken.recv() {
            Ok(work) => run(work),
            Err(_) => Err(Error::new(ErrorKind::Io, "a thread was started and given no work")),
        });
        match started {
            Ok(thread) => {
                // The thread waits for the work, so the send cannot fail.
                let _ = hand_over.send(work);
                Self::Thread(thread)
            }
            Err(_) => Self::Done(work()),
        }
    }

    /// Waits for the end of the work.
    ///
    /// # Panics
    /// If the work panicked.
    pub fn join(self) -> Result<T> {
        match self {
            Self::Thread(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Self::Done(result) => result,
        }
    }
}

/// Fixes the type that the channel carries.
fn run<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    work()
}
