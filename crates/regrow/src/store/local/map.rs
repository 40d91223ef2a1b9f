//! Read-only maps of whole files, and advice to the kernel about how they will be read.
//!
//! A map is made without advice: the kernel's own readahead (3.4 GB/s cold) suits a reader that wants single
//! leaves, where `MADV_SEQUENTIAL` would read far more than was asked. Whoever walks a whole map says so with
//! [`advise`] and gets 4.0 GB/s. `MADV_RANDOM` (0.07 GB/s) and populating files ahead (1.8 GB/s) are never used.

use std::fs::File;
use std::io;

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions, MmapRaw};
use rustix::mm::{Advice, madvise};

/// How the bytes of a map are about to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// From front to back, all of them.
    Sequential,
    /// Soon, all of them: starts reading them in the background.
    Soon,
}

/// Advice shorter than this costs more than it gives.
const ADVICE_LEN_MIN_BYTES: usize = 128 << 10;

/// Maps the whole of `file`; empty files give empty bytes.
pub(super) fn map_file(file: &File, len_bytes: u64) -> io::Result<Bytes> {
    if len_bytes == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the map is private and read-only, and nothing in this process writes to files it maps: regrow
    // commits files under a temporary name and never changes them afterwards. Another process could still
    // truncate or rewrite the file in place; `Store::map` is documented as being for committed files, and a
    // reader that cannot rely on that uses `Store::get`, which copies by `pread`.
    let map = unsafe { MmapOptions::new().map(file)? };
    Ok(Bytes::from_owner(Owner(map)))
}

struct Owner(Mmap);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What of a file is in the page cache: asked without reading, and so without bringing any of it there.
///
/// A look at a page by a read that must not wait (`RWF_NOWAIT`) starts to read that page: the next look finds it
/// there, and takes the file for cached.
#[derive(Debug)]
pub(super) struct Residency(MmapRaw);

impl Residency {
    /// Maps the whole of `file`; the map is never read.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        MmapOptions::new().map_raw_read_only(file).map(Self)
    }

    /// Whether the page of that byte is in the page cache; `None` if the kernel does not say, and of what lies
    /// outside. To those who neither own the file nor may write to it, the kernel says yes of every page.
    pub(super) fn has(&self, offset: u64) -> Option<bool> {
        let offset = usize::try_from(offset).ok().filter(|&offset| offset < self.0.len())?;
        let page = self.0.as_mut_ptr().wrapping_add(offset - offset % rustix::param::page_size());
        let mut found = 0;
        // SAFETY: `page` is the beginning of a page of the map, of which the kernel tells in one byte; `found` is
        // that byte, and nothing else is written or read.
        let answer = unsafe { libc::mincore(page.cast(), 1, &raw mut found) };
        (answer == 0).then_some(found & 1 != 0)
    }
}

/// Tells the kernel how `bytes`, part of a map, are about to be read. Advice only: it changes no contents, and
/// failure is of no consequence.
pub fn advise(bytes: &[u8], access: Access) {
    if bytes.len() < ADVICE_LEN_MIN_BYTES {
        return;
    }
    let before = bytes.as_ptr().addr() % rustix::param::page_size();
    let start = bytes.as_ptr().wrapping_sub(before).cast_mut().cast();
    let advice = match access {
        Access::Sequential => Advice::Sequential,
        Access::Soon => Advice::WillNeed,
    };
    // SAFETY: `start` is the beginning of the page that holds the first of `bytes`, so the range lies within
    // pages that the borrow keeps mapped; neither kind of advice changes what any of them contains.
    let _ = unsafe { madvise(start, before + bytes.len(), advice) };
}
