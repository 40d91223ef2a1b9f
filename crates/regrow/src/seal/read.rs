//! Reads of whole blocks: what is handed out has passed.

use super::files::SealedFile;
use crate::bytes::limits::work_space;
use crate::error::Result;
use crate::store::{Blob, ReadPath};

/// What reads the bytes of a file from an offset on, unchecked.
pub(super) type ReadRaw<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<()>;

impl SealedFile {
    /// Fills `out` with the bytes from `offset_bytes` on, all of which lie in the file. Blocks that are wanted whole are
    /// read to where they go; `is_far` has all of it come by one request instead.
    ///
    /// # Errors
    /// `Corrupt` with file and offset of the first block that fails; what `read` says.
    pub(super) fn read_checked(
        &self,
        blob: &dyn Blob,
        offset_bytes: u64,
        out: &mut [u8],
        read: ReadRaw<'_>,
    ) -> Result<()> {
        let table = &self.table;
        let end = offset_bytes.saturating_add(out.len() as u64).min(self.len_bytes);
        if blob.suits().is_far() && offset_bytes < end {
            let (first, last) = (table.block_at(offset_bytes).start, table.block_at(end - 1).end);
            let mut bytes = work_space(last - first)?;
            read(first, &mut bytes)?;
            self.check(blob, first, &bytes)?;
            let wanted = (offset_bytes - first) as usize..(end - first) as usize;
            copy(out, bytes.get(wanted).unwrap_or_default());
            return Ok(());
        }
        let (mut at, mut left) = (offset_bytes, out);
        while at < end && !left.is_empty() {
            let block = table.block_at(at);
            // Whole blocks up to the last that ends within what is wanted.
            let whole_end = if end == self.len_bytes { end } else { end - end % table.block_len_bytes() };
            let to = if at == block.start && whole_end > at { whole_end } else { block.end.min(end) };
            let (now, later) = left.split_at_mut(((to - at) as usize).min(left.len()));
            if at == block.start && whole_end > at {
                read(at, now)?;
                self.check(blob, at, now)?;
            } else {
                let mut bytes = work_space(block.end - block.start)?;
                read(block.start, &mut bytes)?;
                self.check(blob, block.start, &bytes)?;
                let wanted = (at - block.start) as usize..(to - block.start) as usize;
                copy(now, bytes.get(wanted).unwrap_or_default());
            }
            (at, left) = (to, later);
        }
        Ok(())
    }

    /// Checks whole blocks that begin at byte `start` of the file.
    pub(super) fn check(&self, blob: &dyn Blob, start: u64, bytes: &[u8]) -> Result<()> {
        let end = start + bytes.len() as u64;
        self.table.blocks(start, end).try_for_each(|block| {
            let part = (block.start - start) as usize..(block.end - start) as usize;
            self.table.check(blob, block, bytes.get(part).unwrap_or_default())
        })
    }
}

/// As many bytes as both have.
fn copy(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

/// How a blob reads.
pub(super) fn of_blob<'a>(blob: &'a dyn Blob, way: ReadPath) -> impl Fn(u64, &mut [u8]) -> Result<()> + 'a {
    move |offset_bytes, out| blob.read(offset_bytes, out, way)
}
