//! Read-only maps of whole files, and advice to the kernel about how they will be read.
//!
//! A map is made without advice: the kernel's readahead (3.4 GB/s cold) suits a reader of single
//! leaves. `MADV_SEQUENTIAL` would read far more than needed. A reader of a whole map calls
//! [`advise`] and gets 4.0 GB/s. regrow never uses `MADV_RANDOM` (0.07 GB/s) and never populates
//! maps ahead (1.8 GB/s).

use std::fs::File;

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};

use crate::system::{Pattern, advise_map};

/// How a program will read the bytes of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The program reads all bytes in order.
    Sequential,
    /// The program reads all bytes soon: the kernel starts to read them in the background.
    Soon,
}

/// For a shorter range, advice costs more time than it saves.
const ADVICE_LEN_MIN_BYTES: usize = 128 << 10;

/// Maps the whole of `file`; an empty file gives empty bytes. `None` if the system cannot map it.
/// The caller then reads the file, and the read reports an error, if any.
pub(super) fn map_file(file: &File, len_bytes: u64) -> Option<Bytes> {
    if len_bytes == 0 {
        return Some(Bytes::new());
    }
    // SAFETY: the map is private and read-only, and nothing in this process writes to files it
    // maps: regrow commits files under a temporary name and never changes them afterwards. Another
    // process could still truncate or rewrite the file in place. So callers map only committed
    // files, and a reader of other files uses `Store::get`, which copies by `pread`.
    let map = unsafe { MmapOptions::new().map(file).ok()? };
    Some(Bytes::from_owner(Owner(map)))
}

struct Owner(Mmap);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Tells the system how a program will read `bytes`, a part of a map. This changes no bytes, and
/// errors are ignored.
pub fn advise(bytes: &[u8], access: Access) {
    if bytes.len() < ADVICE_LEN_MIN_BYTES {
        return;
    }
    advise_map(
        bytes,
        match access {
            Access::Sequential => Pattern::Sequential,
            Access::Soon => Pattern::Soon,
        },
    );
}
