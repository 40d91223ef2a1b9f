//! The buffers of writers and of long reads: page-aligned memory that is allocated once and reused.
//!
//! Direct I/O needs memory and offsets aligned to a device block (512 B or 4 KiB). Anonymous maps
//! start on a page. The first write to fresh memory is slow (0.3-2 GB/s in a virtual machine), a
//! write to used memory is fast (20 GB/s). So a writer returns its buffers to a small list of the
//! process, and the next writer or read reuses them.
//!
//! ```text
//! free list (at most FREE_LEN_MAX) ──take──> writer fills ──> its thread writes ──> writer ... ──give_back──> list
//! ```
//!
//! No thread waits for the lock of the list. If a process forks while a thread holds the lock, the
//! list of the child stays locked for ever. The child then makes its own buffers.

use std::io;
use std::sync::{Mutex, TryLockError};

use memmap2::{MmapMut, MmapOptions};

use crate::bytes::pages::zeroed;
use crate::system::want_large_pages;

/// Length of one buffer, and so of one direct write. See `examples/direct_write.rs` for the
/// measurement.
pub(super) const BUFFER_LEN_BYTES: usize = 4 << 20;

/// Number of buffers of one writer: one being filled, one being written, one between. A writer has
/// no other large memory.
pub(super) const RING_LEN: usize = 3;

/// Number of buffers that the free list keeps.
pub(super) const FREE_LEN_MAX: usize = 2 * RING_LEN;

/// Offsets and lengths of direct writes are multiples of this. No current device needs a larger
/// multiple.
pub(super) const ALIGN_BYTES: usize = 4096;

/// A file shorter than this is collected in an ordinary buffer and written by one ordinary write.
pub(super) const SMALL_LEN_BYTES: usize = 64 << 10;

static FREE: Mutex<Vec<MmapMut>> = Mutex::new(Vec::new());

/// The memory that a writer fills.
#[derive(Debug)]
pub(super) enum Buffer {
    /// [`SMALL_LEN_BYTES`] of ordinary memory.
    Small(Box<[u8]>),
    /// [`BUFFER_LEN_BYTES`] of memory that begins on a page.
    Aligned(MmapMut),
}

impl Buffer {
    /// A buffer for a small file.
    pub(super) fn small() -> io::Result<Self> {
        let bytes = zeroed(SMALL_LEN_BYTES as u64).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self::Small(bytes.into_boxed_slice()))
    }

    /// A used buffer from the free list, or a new one whose pages are all touched.
    pub(super) fn aligned() -> io::Result<Self> {
        if let Some(map) = with_free(Vec::pop).flatten() {
            return Ok(Self::Aligned(map));
        }
        let mut map = MmapOptions::new().len(BUFFER_LEN_BYTES).map_anon()?;
        // Large pages give direct I/O fewer pieces to gather: twice the speed on a virtual disk.
        // The system may refuse large pages.
        want_large_pages(&map);
        map.fill(0);
        Ok(Self::Aligned(map))
    }

    /// Puts the buffer on the free list, unless the list is full.
    pub(super) fn give_back(self) {
        let Self::Aligned(map) = self else { return };
        with_free(|free| {
            if free.len() < FREE_LEN_MAX {
                free.push(map);
            }
        });
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Aligned(map) => map,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Aligned(map) => map,
        }
    }
}

fn with_free<R>(act: impl FnOnce(&mut Vec<MmapMut>) -> R) -> Option<R> {
    match FREE.try_lock() {
        Ok(mut free) => Some(act(&mut free)),
        Err(TryLockError::Poisoned(free)) => Some(act(&mut free.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_on_a_page_and_the_list_stays_short() {
        let buffers: Vec<_> = (0..FREE_LEN_MAX + 2).map(|_| Buffer::aligned().unwrap()).collect();
        for buffer in buffers {
            assert_eq!(buffer.bytes().as_ptr().addr() % ALIGN_BYTES, 0);
            assert_eq!(buffer.bytes().len(), BUFFER_LEN_BYTES);
            buffer.give_back();
        }
        assert!(with_free(|free| free.len()).is_none_or(|len| len <= FREE_LEN_MAX));
    }
}
