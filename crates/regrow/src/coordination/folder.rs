//! A folder that all processes see, on a disk or in a bucket.
//!
//! ```text
//! key    step_100-1f3a/9c0e/index/2/0
//! file   <folder>/step_100-1f3a~9c0e~index~2~0
//! ```
//! A key is one file, or one object, right in the folder: so that removing keys leaves no folders behind. A file appears
//! whole, by a link; an object by a conditional put. Whoever waits looks again and again, less and less often.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Coordinator;
use crate::error::{Error, ErrorKind, Result};
use crate::location::Location;
use crate::store::ByteRange;

/// How long to wait before the second look, and how long at most between two, on a disk.
const DISK_LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The same in a bucket, where a look is a request that costs time and money.
const BUCKET_LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A coordinator for processes that share nothing but storage.
///
/// It can be any folder that all of them see and nobody else uses at that time, also one where an earlier job was killed.
/// It cannot know which processes live. To gather from N processes costs 2 N requests in a bucket, at rank 0.
#[derive(Debug, Clone)]
pub struct Folder {
    at: Location,
    rank: usize,
    size: usize,
}

impl Folder {
    /// The process `rank` of `size`; every process gives the same folder, which is made when it is needed.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such rank.
    pub fn new(at: Location, rank: usize, size: usize) -> Result<Self> {
        if rank >= size {
            return Err(Error::invalid("there is no such rank")
                .expected(format_args!("a rank below {size}"), rank)
                .in_file(&at));
        }
        Ok(Self { at, rank, size })
    }
}

impl Coordinator for Folder {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn put_if_absent(&self, key: &str, value: Bytes) -> Result<bool> {
        self.at.store().put_if_absent(&file_name(key), value)
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Option<Bytes>> {
        let began = Instant::now();
        let (mut pause, longest) = if self.at.commits_by_marker() { BUCKET_LOOKS } else { DISK_LOOKS };
        loop {
            // A store anew each time: it remembers what it has not found.
            match self.at.store().get(&file_name(key), ByteRange::Full) {
                Ok(Some(value)) => return Ok(Some(value)),
                Ok(None) => {}
                // Removed between two requests.
                Err(error) if error.kind() == ErrorKind::Replaced => {}
                Err(error) => return Err(error),
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(longest);
        }
    }

    fn remove(&self, key: &str) -> Result<()> {
        let store = self.at.store();
        store.delete(&file_name(key))?;
        let below = store.list(&file_name(&format!("{key}/")))?;
        below.iter().try_for_each(|name| store.delete(name))
    }
}

/// The file of a key.
fn file_name(key: &str) -> Vec<u8> {
    key.replace('/', "~").into_bytes()
}
