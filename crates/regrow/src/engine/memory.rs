//! Memory for leaves that are read into it.

use bytes::Bytes;
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::bytes::limits::allocate;
use crate::error::Result;

/// From here on memory comes in large pages, where the system has them: small ones cost a fault each.
const LARGE_PAGES_FROM_BYTES: u64 = 4 << 20;

/// The memory of one leaf, to be filled and then shared.
pub(super) enum LeafMemory {
    /// Of the allocator.
    Heap(Vec<u8>),
    /// Of the system.
    Pages(MmapMut),
}

impl LeafMemory {
    /// Zeroed memory; its pages are taken when they are first touched.
    ///
    /// # Errors
    /// `Limit` if there is not that much.
    pub(super) fn new(len_bytes: u64) -> Result<Self> {
        if len_bytes >= LARGE_PAGES_FROM_BYTES
            && let Ok(len) = usize::try_from(len_bytes)
            && let Ok(map) = MmapOptions::new().len(len).map_anon()
        {
            // Advice: where it is not taken, pages are small.
            let _ = map.advise(Advice::HugePage);
            return Ok(Self::Pages(map));
        }
        allocate(len_bytes).map(Self::Heap)
    }

    /// All of it.
    pub(super) fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(map) => map,
        }
    }

    /// The same bytes, shared.
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::Heap(bytes) => Bytes::from(bytes),
            Self::Pages(map) => Bytes::from_owner(map),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_keeps_what_is_written() {
        for len_bytes in [1, 4096, LARGE_PAGES_FROM_BYTES - 1, LARGE_PAGES_FROM_BYTES + 3] {
            let mut memory = LeafMemory::new(len_bytes).unwrap();
            assert!(memory.as_mut().iter().all(|&byte| byte == 0));
            *memory.as_mut().last_mut().unwrap() = 7;
            let bytes = memory.into_bytes();
            assert_eq!((bytes.len() as u64, bytes.last()), (len_bytes, Some(&7)));
        }
    }
}
