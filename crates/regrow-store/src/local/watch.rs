//! The times of a writer: filling buffers, waiting for the disk, syncing, and the worker's own
//! time.
//!
//! The clock is read a few times for each buffer of 4 MiB. All time in which the caller's thread
//! does not wait for the disk counts as filling: between the writer's first byte and its last, the
//! thread does nothing else.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::monitor::{Monitor, Stage};

/// The times and the byte count of a writer, and its monitor.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) monitor: Monitor,
    began: Instant,
    /// The time in which the writer waited for the disk, since it began.
    waited: Duration,
    counted_bytes: u64,
}

impl Default for Watch {
    fn default() -> Self {
        Self { monitor: Monitor::new(), began: Instant::now(), waited: Duration::ZERO, counted_bytes: 0 }
    }
}

impl Watch {
    /// Reports that the writer has taken `offset_bytes` in total. Returns `Cancelled` if the
    /// monitor was cancelled.
    pub(super) fn count(&mut self, offset_bytes: u64) -> Result<()> {
        let bytes = offset_bytes.saturating_sub(self.counted_bytes);
        self.counted_bytes = offset_bytes;
        self.monitor.enter(Stage::Write);
        self.monitor.advance(bytes)
    }

    /// Adds the time since `since`, in which the caller's thread waited for the disk.
    pub(super) fn waited(&mut self, since: Instant) {
        let time = since.elapsed();
        self.waited += time;
        self.monitor.add(Stage::WaitForDisk, time, 0);
    }

    pub(super) fn wrote(&self, since: Instant, len: usize) {
        self.monitor.add(Stage::Write, since.elapsed(), len as u64);
    }

    /// Reports how long the caller's thread has filled buffers, after the last of `len_bytes`
    /// bytes.
    pub(super) fn filled(&self, len_bytes: u64) {
        let time = self.began.elapsed().saturating_sub(self.waited);
        self.monitor.add(Stage::Copy, time, len_bytes);
    }

    pub(super) fn sync<R>(&self, sync: impl FnOnce() -> R) -> R {
        self.monitor.enter(Stage::Sync);
        self.monitor.timed(Stage::Sync, 0, sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn bytes_are_counted_once_and_the_writer_hears_when_to_stop() {
        let monitor = Monitor::new();
        let _running = monitor.begin().unwrap();
        monitor.expect(100);
        let mut watch = Watch { monitor: monitor.clone(), ..Watch::default() };
        for offset_bytes in [10, 30, 30] {
            watch.count(offset_bytes).unwrap();
            assert_eq!(monitor.progress().done_bytes, offset_bytes);
        }
        monitor.cancel();
        assert_eq!(watch.count(30).unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
