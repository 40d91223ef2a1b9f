//! Stops clients at a request until the test lets them continue. So a test chooses the order of the
//! requests of two clients.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::watch;

pub(super) type Turns = HashMap<String, Turn>;

/// The state of one client.
#[derive(Debug)]
pub(super) struct Turn {
    request_count: u64,
    stops_at: u64,
    reached: Sender<()>,
    goes_on: watch::Receiver<bool>,
}

/// Controls a client that stops. The client continues when this value is dropped.
#[derive(Debug)]
pub struct Stop {
    reached: Receiver<()>,
    goes_on: watch::Sender<bool>,
}

/// Stops a client at its request number `stops_at`, counted from 0, and at all later ones.
pub(super) fn begin(stops_at: u64) -> (Turn, Stop) {
    let (reach, reached) = channel();
    let (go, goes_on) = watch::channel(false);
    (Turn { request_count: 0, stops_at, reached: reach, goes_on }, Stop { reached, goes_on: go })
}

impl Turn {
    /// Counts a request. Returns a receiver to wait for, if the request must stop.
    pub(super) fn take(&mut self) -> Option<watch::Receiver<bool>> {
        let is_before = self.request_count < self.stops_at;
        self.request_count += 1;
        if is_before || *self.goes_on.borrow() {
            return None;
        }
        // The receiver may have been dropped.
        _ = self.reached.send(());
        Some(self.goes_on.clone())
    }
}

impl Stop {
    /// Waits until a request of the client has stopped; `false` after the time-out.
    pub fn wait(&self, timeout: Duration) -> bool {
        match self.reached.recv_timeout(timeout) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Lets the client continue, and not stop again.
    pub fn go_on(&self) {
        // The send fails if no receiver is left. Then no request waits.
        _ = self.goes_on.send(true);
    }
}
