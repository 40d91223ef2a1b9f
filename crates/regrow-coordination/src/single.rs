//! A job of one process.

use std::time::Duration;

use bytes::Bytes;

use super::Coordinator;
use regrow_base::error::Result;
use regrow_store::{ByteRange, MemoryStore, Store, StoreExt};

/// The only process of a job. A [`Session`](super::Session) with it sends no messages.
#[derive(Debug, Default)]
pub struct Single(MemoryStore);

impl Single {
    /// Rank 0 of 1.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Coordinator for Single {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool> {
        self.0.put_if_absent(key.as_bytes(), value)
    }

    /// Does not wait: there is no other process to put a value.
    fn get(&self, key: &str, _wait: Duration) -> Result<Option<Bytes>> {
        self.0.get(key.as_bytes(), ByteRange::Full)
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.0.delete(key.as_bytes())?;
        let below = self.0.list(format!("{key}/").as_bytes())?;
        below.iter().try_for_each(|key| self.0.delete(key))
    }

    fn live(&self) -> Result<Option<Vec<usize>>> {
        Ok(Some(vec![0]))
    }
}
