//! Memory for reads. The memory of long reads, which direct I/O can use, is kept for later reads.

use std::io;

use super::buffer::{Buffer, FREE_LEN_MAX};
use crate::bytes::pages::zeroed;

/// Reads up to this length use ordinary memory instead of a buffer of the free list.
const HEAP_LEN_MAX_BYTES: usize = 128 << 10;

/// Memory for reads of any length up to [`FETCH_LEN_MAX_BYTES`](super::FETCH_LEN_MAX_BYTES). A long
/// read uses a buffer of the free list. When the `Scratch` is dropped, the buffer returns to this
/// list.
#[derive(Debug, Default)]
pub struct Scratch(Option<Buffer>);

impl Scratch {
    /// Number of buffers that the free list keeps.
    pub const KEPT_MAX: usize = FREE_LEN_MAX;

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_ref().map(Buffer::bytes).unwrap_or_default()
    }

    /// `len` bytes of memory. Only a long read makes a buffer for direct I/O.
    pub fn room(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.0.is_none() || self.bytes().len() < len {
            if len > HEAP_LEN_MAX_BYTES {
                return self.aligned(len);
            }
            let heap = zeroed(len as u64).ok_or(io::ErrorKind::OutOfMemory)?;
            self.0 = Some(Buffer::Small(heap.into_boxed_slice()));
        }
        self.first(len)
    }

    /// `len` bytes that direct I/O can use.
    pub(super) fn aligned(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if !matches!(self.0, Some(Buffer::Aligned(_))) {
            self.0 = Some(Buffer::aligned()?);
        }
        self.first(len)
    }

    fn first(&mut self, len: usize) -> io::Result<&mut [u8]> {
        let room = self.0.as_mut().and_then(|memory| memory.bytes_mut().get_mut(..len));
        room.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(memory) = self.0.take() {
            memory.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FETCH_LEN_MAX_BYTES;

    #[test]
    fn there_is_room_for_any_length_after_any_other() {
        let most = FETCH_LEN_MAX_BYTES as usize;
        let lens = [0, 10, 20, 5, HEAP_LEN_MAX_BYTES, HEAP_LEN_MAX_BYTES + 1, 3, most, 1];
        let mut kept = Scratch::default();
        for len in lens {
            assert_eq!(kept.room(len).unwrap().len(), len);
            assert_eq!(Scratch::default().room(len).unwrap().len(), len);
        }
        assert!(kept.room(usize::MAX).is_err());
    }
}
