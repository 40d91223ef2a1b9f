//! A read-through cache: blocks of objects that were read before, in a folder of a local disk.
//!
//! ```text
//! DIR/CACHEDIR.TAG        tells backup programs to leave the folder out
//! DIR/lock                held by the process that removes the oldest blocks
//! DIR/blocks/3f/3f9a...   one block: a header with its identity, length and checksum, then its bytes
//! ```
//! A block is named by the digest of its storage, key, entity tag, length and position. A replaced
//! object has another tag, so a reader never gets old bytes. Each opening of a checkpoint asks the
//! storage for the existence and version of objects. Only bytes come from the cache.
//!
//! Any number of threads and processes share a folder. A block appears complete, by a rename, and
//! is checked at each read. A damaged or incomplete block is removed and fetched again. Errors of
//! the cache's disk make a load slower, but never fail it.
//!
//! | module | does |
//! |---|---|
//! | `mod` | [`Cache`]: the folder, its bound, its counts |
//! | `block` | one block in a file |
//! | `bound` | removes the least recently used blocks |

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::system::{make_private_folders, mode_of, own_user, owner_of};

mod block;
mod bound;

use block::Identity;
use bound::Bound;

/// Length of the cached blocks of an object. The last block may be shorter.
pub(crate) const BLOCK_LEN_BYTES: u64 = 256 << 10;

/// Default bound of a cache, in bytes.
pub const CACHE_LEN_MAX_DEFAULT_BYTES: u64 = 10 << 30;

/// The tag that backup programs look for: <https://bford.info/cachedir/>.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# Blocks of checkpoints in buckets, kept by regrow. It may be removed at any time.\n";

/// A folder of a local disk that keeps what was read from buckets and web servers. Cheap to clone.
///
/// Give it to [`Location::cached`](crate::location::Location::cached). The next load of the same
/// checkpoint, by this process or another, reads from the disk what has not changed. Cost: about as
/// much disk as was read, up to the bound.
///
/// ```no_run
/// use regrow_storage::cache::Cache;
/// use regrow_storage::location::ToLocation;
///
/// let cache = Cache::at("/scratch/regrow-cache")?.with_len_max_bytes(50 << 30);
/// let cached = "s3://bucket/runs/step_100".to_location()?.cached(&cache);
/// # Ok::<(), regrow_base::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    bound: Arc<Bound>,
    counts: Arc<Counts>,
}

/// What this process has done with the cache since the cache was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheReport {
    /// Bytes of blocks that were read from the folder.
    pub hit_bytes: u64,
    /// Bytes of blocks that were fetched because the folder did not have them.
    pub miss_bytes: u64,
    /// Blocks that were damaged. They were removed and fetched again.
    pub damaged: u64,
}

#[derive(Debug, Default)]
struct Counts {
    hit_bytes: AtomicU64,
    miss_bytes: AtomicU64,
    damaged: AtomicU64,
}

/// The version of an object that a block belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// Identifies the storage among all others; without secrets.
    pub storage: &'a str,
    pub key: &'a str,
    /// The entity tag, which must be a strong one.
    pub tag: &'a str,
    pub len_bytes: u64,
}

impl Source<'_> {
    /// Length of the block at this position; 0 after the end of the object.
    fn block_len_bytes(&self, position: u64) -> u64 {
        self.len_bytes.saturating_sub(position.saturating_mul(BLOCK_LEN_BYTES)).min(BLOCK_LEN_BYTES)
    }
}

impl Cache {
    /// Opens the cache in a folder, and makes the folder if it does not exist. The default bound is
    /// [`CACHE_LEN_MAX_DEFAULT_BYTES`].
    ///
    /// # Errors
    /// `InvalidArgument` if every user of the machine may write into the folder or its `blocks`.
    /// `PermissionDenied` if one of them belongs to another user than this one and root, who could
    /// put wrong bytes into it. Errors of the file system.
    pub fn at(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = std::path::absolute(folder.as_ref())
            .map_err(|error| Error::io("cannot make the cache", folder.as_ref(), error))?;
        let failed = |error| Error::io("cannot make the cache", &folder, error);
        make_private_folders(&folder.join("blocks")).map_err(failed)?;
        let own = [own_user(), 0];
        for part in [folder.clone(), folder.join("blocks")] {
            let owner = owner_of(&fs::metadata(&part).map_err(failed)?);
            if !own.contains(&owner) {
                return Err(Error::new(
                    ErrorKind::PermissionDenied,
                    "the cache folder belongs to another user",
                )
                .in_file(&part)
                .expected(format_args!("one of user {}", own[0]), format_args!("one of user {owner}"))
                .help("give a folder of your own: regrow trusts the blocks of its cache"));
            }
        }
        let mode =
            [&folder, &folder.join("blocks")].map(|part| fs::metadata(part).map(|found| mode_of(&found)));
        let mode = mode.into_iter().try_fold(0, |all, mode| mode.map(|mode| all | mode)).map_err(failed)?;
        if mode & 0o002 != 0 {
            return Err(Error::invalid("every user of this machine may write into the cache folder")
                .in_file(&folder)
                .expected(
                    "a folder that only trusted users may write into",
                    format_args!("mode {:o}", mode & 0o7777),
                )
                .help("run chmod o-w on it, or give a new folder"));
        }
        let tag = folder.join("CACHEDIR.TAG");
        if !tag.exists() {
            fs::write(&tag, CACHE_TAG).map_err(failed)?;
        }
        let bound = Bound::new(&folder, CACHE_LEN_MAX_DEFAULT_BYTES);
        Ok(Self { folder, bound: Arc::new(bound), counts: Arc::default() })
    }

    /// The same cache with another bound. If the bound is reached, the least recently used blocks
    /// are removed. Several processes that write at once may each exceed the bound by 1/32.
    #[must_use]
    pub fn with_len_max_bytes(self, len_max_bytes: u64) -> Self {
        Self { bound: Arc::new(Bound::new(&self.folder, len_max_bytes)), ..self }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The counts of this process since the cache was opened.
    pub fn report(&self) -> CacheReport {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheReport {
            hit_bytes: of(&self.counts.hit_bytes),
            miss_bytes: of(&self.counts.miss_bytes),
            damaged: of(&self.counts.damaged),
        }
    }

    /// Fills `out` with bytes of a block, from `skip` on. Returns `false` if the cache lacks the
    /// block or the block is damaged.
    pub(crate) fn read(&self, source: &Source<'_>, position: u64, skip: usize, out: &mut [u8]) -> bool {
        let identity = Identity::of(source, position);
        match block::read(
            &identity.path(&self.folder),
            &identity,
            source.block_len_bytes(position),
            skip,
            out,
        ) {
            block::Outcome::Read => {
                self.counts.hit_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
                true
            }
            block::Outcome::Missing => false,
            block::Outcome::Damaged => {
                self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Stores a block. Errors of the disk are ignored, because the caller already has the bytes.
    pub(crate) fn keep(&self, source: &Source<'_>, position: u64, bytes: &[u8]) {
        let len_bytes = source.block_len_bytes(position);
        self.counts.miss_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        if bytes.len() as u64 != len_bytes || !self.bound.has_room_for(len_bytes + block::HEADER_LEN_BYTES) {
            return;
        }
        let identity = Identity::of(source, position);
        let written = block::write(&identity.path(&self.folder), &identity, bytes);
        self.bound.ended(len_bytes + block::HEADER_LEN_BYTES, written.is_ok());
    }
}
