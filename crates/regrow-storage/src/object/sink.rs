//! One new object, written front to back. Its bytes are collected into parts. While one part is
//! uploaded, the next part is collected.
//!
//! The memory of an uploaded part is used for a later part, because filling new memory takes longer
//! than sending a part. So a sink has memory for one part more than the number of simultaneous
//! uploads.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::held::Held;
use super::{Objects, Upload};
use crate::bytes::limits::work_space;
use crate::error::Result;
use crate::monitor::Monitor;
use crate::store::BlockChecksums;
use crate::store::{FileSink, WrittenFile};

/// Longest piece of a buffer that the caller fills.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// A function that is called with the length of the finished object.
pub(super) type OnFinish = Box<dyn FnOnce(u64) + Send>;

/// An upload whose parts are all sent, and which its owner ends.
pub(super) type Pending = Arc<Mutex<Option<Box<dyn Upload>>>>;

/// A new object that is being written.
pub(super) struct ObjectSink {
    name: PathBuf,
    upload: Box<dyn Upload>,
    part: Vec<u8>,
    part_len_bytes: usize,
    spare: Spare,
    checksums: BlockChecksums,
    /// Length of the parts that were sent.
    sent_bytes: u64,
    /// Bytes that were reported to the monitor.
    counted_bytes: u64,
    monitor: Monitor,
    on_finish: OnFinish,
    /// Where to leave the upload, if its owner ends it.
    pending: Option<Pending>,
    /// The state object of the target, which this process must still own.
    owned: Option<Arc<Held>>,
}

impl ObjectSink {
    fn check_owner(&self) -> Result<()> {
        self.owned.as_ref().map_or(Ok(()), |held| held.check())
    }

    /// Leaves the upload there, without its end.
    pub(super) fn leave_end_to(self, pending: Pending) -> Self {
        Self { pending: Some(pending), ..self }
    }

    /// Begins to write the object `key`. Each request fails if another process has taken over the
    /// state object `owned`.
    pub(super) fn begin(
        objects: &dyn Objects,
        key: &str,
        expected_len_bytes: u64,
        checksums_from: u64,
        monitor: &Monitor,
        owned: Option<Arc<Held>>,
        on_finish: OnFinish,
    ) -> Result<Self> {
        let upload = objects.upload(key, expected_len_bytes)?;
        Ok(Self {
            name: objects.url(key).into(),
            part_len_bytes: upload.part_len_bytes().max(1),
            upload,
            part: Vec::new(),
            spare: Spare::default(),
            checksums: BlockChecksums::from_byte(checksums_from),
            sent_bytes: 0,
            counted_bytes: 0,
            monitor: monitor.clone(),
            on_finish,
            pending: None,
            owned,
        })
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.checksums.update(bytes);
        while !bytes.is_empty() {
            if self.part.capacity() == 0 {
                // A short object gets only the memory that it needs.
                self.part.reserve(self.part_len_bytes.min(bytes.len().max(PIECE_LEN_BYTES)));
            }
            let room = self.part_len_bytes - self.part.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.part.extend_from_slice(now);
            bytes = later;
            if self.part.len() == self.part_len_bytes {
                self.send()?;
                // More bytes follow, so the next part is likely as long.
                self.part = self.spare.take(self.part_len_bytes);
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        self.check_owner()?;
        let part = self.spare.lend(std::mem::take(&mut self.part));
        self.sent_bytes += part.len() as u64;
        self.upload.part(part)?;
        self.count()
    }

    fn count(&mut self) -> Result<()> {
        let new = self.sent_bytes - self.counted_bytes;
        self.counted_bytes = self.sent_bytes;
        self.monitor.advance(new)
    }
}

impl FileSink for ObjectSink {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.append(bytes)
    }

    fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut piece = work_space(len_bytes.min(PIECE_LEN_BYTES as u64))?;
        let mut done = 0;
        while done < len_bytes {
            let len = (len_bytes - done).min(PIECE_LEN_BYTES as u64) as usize;
            let piece = piece.get_mut(..len).unwrap_or_default();
            fill(done, piece)?;
            self.append(piece)?;
            done += len as u64;
        }
        Ok(())
    }

    fn offset_bytes(&self) -> u64 {
        self.sent_bytes + self.part.len() as u64
    }

    fn saved(&self, len_bytes: u64) -> Result<()> {
        self.monitor.advance(len_bytes)
    }

    fn describe(&self) -> PathBuf {
        self.name.clone()
    }

    fn finish(mut self: Box<Self>) -> Result<WrittenFile> {
        self.check_owner()?;
        let last = Bytes::from(std::mem::take(&mut self.part));
        self.sent_bytes += last.len() as u64;
        if !last.is_empty() || self.sent_bytes == 0 {
            self.upload.part(last)?;
        }
        self.count()?;
        self.check_owner()?;
        let len_bytes = self.sent_bytes;
        let Self { upload, mut checksums, on_finish, pending, .. } = *self;
        match pending {
            None => drop(upload.finish()?),
            Some(pending) => *pending.lock().unwrap_or_else(PoisonError::into_inner) = Some(upload),
        }
        on_finish(len_bytes);
        Ok(WrittenFile { len_bytes, block_crc32c: checksums.finish() })
    }

    fn patches(&mut self) -> Option<&mut Vec<(u64, Vec<u8>)>> {
        None
    }
}

/// Memory of uploaded parts, for later parts.
#[derive(Debug, Clone, Default)]
struct Spare(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spare {
    /// An empty buffer for `len_bytes` bytes.
    fn take(&self, len_bytes: usize) -> Vec<u8> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Vec::with_capacity(len_bytes))
    }

    /// Turns the part into shared bytes. Their memory returns here when the last reference is
    /// dropped.
    fn lend(&self, part: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { part, to: self.clone() })
    }
}

/// A part that is being uploaded.
struct Lent {
    part: Vec<u8>,
    to: Spare,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.part
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut part = std::mem::take(&mut self.part);
        part.clear();
        self.to.0.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    }
}

impl std::fmt::Debug for ObjectSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectSink").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_part_is_used_again_when_the_last_of_its_bytes_is_let_go() {
        let spare = Spare::default();
        let count = || spare.0.lock().unwrap().len();
        let mut part = spare.take(100);
        part.extend_from_slice(b"12345");
        let at = part.as_ptr();
        let lent = spare.lend(part);
        let tail = lent.slice(3..);
        drop(lent);
        assert_eq!((count(), &*tail), (0, &b"45"[..]));
        drop(tail);
        assert_eq!(count(), 1);
        let again = spare.take(100);
        assert_eq!((again.as_ptr(), again.len(), again.capacity(), count()), (at, 0, 100, 0));
    }
}
