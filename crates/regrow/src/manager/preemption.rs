//! A flag that means that the program must end. SIGTERM or any code can set it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGTERM;
use signal_hook::flag;

use crate::error::{Error, Result};

/// Set when the program is asked to end, and never unset. Clones share one flag.
#[derive(Debug, Clone, Default)]
pub struct Preemption(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    is_set: Arc<AtomicBool>,
    is_agreed: bool,
    /// The time at which the flag was first seen set.
    since: OnceLock<Instant>,
}

impl Preemption {
    /// A flag without a signal handler: the program's own handlers may set it.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that either all processes of a job set before the same step, or none, as JAX's
    /// preemption service does. Then the processes need not exchange the flag.
    pub fn agreed() -> Self {
        Self(Arc::new(Flag { is_agreed: true, ..Flag::default() }))
    }

    /// A flag that SIGTERM sets, for as long as the program runs. A second SIGTERM ends the program
    /// as usual.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn on_sigterm() -> Result<Self> {
        let flag = Self::new();
        let cannot = |error| Error::io("cannot take SIGTERM", "SIGTERM", error);
        // Handlers run in the order of registration. On the first signal, the first handler still
        // sees an unset flag.
        flag::register_conditional_default(SIGTERM, Arc::clone(&flag.0.is_set)).map_err(cannot)?;
        flag::register(SIGTERM, Arc::clone(&flag.0.is_set)).map_err(cannot)?;
        Ok(flag)
    }

    /// Sets the flag.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
        self.is_set();
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        let is_set = self.0.is_set.load(Ordering::Acquire);
        if is_set {
            self.0.since.get_or_init(Instant::now);
        }
        is_set
    }

    pub(super) fn is_asked(&self) -> bool {
        !self.0.is_agreed
    }

    /// The rest of the time `grace`, which began when the flag was first seen set.
    pub(super) fn left_of(&self, grace: Duration) -> Duration {
        self.0.since.get().map_or(grace, |since| grace.saturating_sub(since.elapsed()))
    }
}
