//! Stops clients at a request until the test lets them continue. So a test chooses the order of the
//! requests of two clients.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::sync::watch;

/// The clients that are told where to stop, by their access keys or tokens.
pub(super) type Turns = HashMap<String, Turn>;

/// Where one client is.
#[derive(Debug)]
pub(super) struct Turn {
    request_count: u64,
    stops_at: u64,
    reached: Sender<()>,
    goes_on: watch::Receiver<bool>,
}

/// A client that stops, or will; it goes on when this is dropped.
#[derive(Debug)]
pub struct Stop {
    reached: Receiver<()>,
    goes_on: watch::Sender<bool>,
}

/// A client that waits from its request number `stops_at` on, from 0.
pub(super) fn begin(stops_at: u64) -> (Turn, Stop) {
    let (reach, reached) = channel();
    let (go, goes_on) = watch::channel(false);
    (Turn { request_count: 0, stops_at, reached: reach, goes_on }, Stop { reached, goes_on: go })
}

impl Turn {
    /// Counts a request; what it is to wait for, if it is to wait.
    pub(super) fn take(&mut self) -> Option<watch::Receiver<bool>> {
        let is_before = self.request_count < self.stops_at;
        self.request_count += 1;
        if is_before || *self.goes_on.borrow() {
            return None;
        }
        // The receiver may be gone.
        _ = self.reached.send(());
        Some(self.goes_on.clone())
    }
}

impl Stop {
    /// Waits until a request of the client stands still; `false` if none does by then.
    pub fn wait(&self, timeout: Duration) -> bool {
        match self.reached.recv_timeout(timeout) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Has the client go on, to its end.
    pub fn go_on(&self) {
        // There is no receiver if no request has come.
        _ = self.goes_on.send(true);
    }
}
