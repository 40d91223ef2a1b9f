//! A coordinator in a shared folder, on a disk or in a bucket.
//!
//! ```text
//! key    step_100-1f3a/9c0e/index/2/0
//! file   <folder>/step_100-1f3a~9c0e~index~2~0
//! ```
//! A key is one file or one object directly in the folder, so no empty folders stay after the keys
//! are removed. A file gets its name by a hard link after it is written, and an object is written
//! by a conditional put. So both are complete as soon as they are visible. A waiting process polls
//! at growing intervals. Several threads read the values of many keys. In a bucket the keys are
//! listed first.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Coordinator;
use regrow_base::error::{Error, Result};
use regrow_base::threads::map_ordered;
use regrow_storage::location::Location;
use regrow_store::{StoreExt, get_if_there};

/// The pause before the second look, and the longest pause between two looks, on a disk.
const DISK_LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The same pauses in a bucket, where each look is a request that costs time and money.
const BUCKET_LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

const READ_TOGETHER: usize = 16;

/// Threads that read many values: they wait for the network of a bucket or of a shared disk.
const THREADS: usize = 16;

/// A coordinator for processes that share nothing but storage.
///
/// Any folder works that all processes see and that no other job uses at the same time. The folder
/// may hold keys of a killed job. The folder does not show which processes live. In a bucket,
/// gathering from N processes takes 2 N requests at rank 0, several at a time.
#[derive(Debug, Clone)]
pub struct Folder {
    at: Location,
    rank: usize,
    size: usize,
}

impl Folder {
    /// The coordinator of process `rank` of `size` processes. All processes pass the same folder.
    /// The first write makes the folder.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such rank.
    pub fn new(at: Location, rank: usize, size: usize) -> Result<Self> {
        if rank >= size {
            return Err(Error::invalid("the rank does not exist")
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
            // Use a new store for each look, because a store remembers missing files.
            if let Some(value) = get_if_there(&*self.at.store(), &file_name(key))? {
                return Ok(Some(value));
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(longest);
        }
    }

    fn get_many(&self, keys: &[String]) -> Result<Option<Vec<Option<Bytes>>>> {
        let store = self.at.store();
        let names: Vec<Vec<u8>> = keys.iter().map(|key| file_name(key)).collect();
        // List the keys in a bucket only: on a disk, a look at a missing file is cheap.
        let listed =
            self.at.commits_by_marker().then(|| store.list(&shared_beginning(&names))).transpose()?;
        let read = |name: &Vec<u8>| {
            if listed.as_ref().is_some_and(|listed| listed.binary_search(name).is_err()) {
                return Ok(None);
            }
            get_if_there(&*store, name)
        };
        let read_all = |names: &[Vec<u8>]| names.iter().map(read).collect::<Result<Vec<_>>>();
        let mut found = Vec::with_capacity(names.len());
        map_ordered(
            THREADS,
            names.chunks(READ_TOGETHER),
            u64::MAX,
            |_| 0,
            read_all,
            |values| {
                found.extend(values);
                Ok(())
            },
        )?;
        Ok(Some(found))
    }

    fn remove(&self, key: &str) -> Result<()> {
        let store = self.at.store();
        store.delete(&file_name(key))?;
        let below = store.list(&file_name(&format!("{key}/")))?;
        below.iter().try_for_each(|name| store.delete(name))
    }
}

fn shared_beginning(names: &[Vec<u8>]) -> Vec<u8> {
    let Some((first, others)) = names.split_first() else { return Vec::new() };
    let shared = |name: &Vec<u8>| first.iter().zip(name).take_while(|(one, another)| one == another).count();
    let len = others.iter().map(shared).min().unwrap_or(first.len());
    first.iter().take(len).copied().collect()
}

fn file_name(key: &str) -> Vec<u8> {
    key.replace('/', "~").into_bytes()
}
