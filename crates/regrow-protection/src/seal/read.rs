//! Reads whole blocks, and returns only bytes whose block has passed its checksum.

use super::files::SealedFile;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::Result;
use regrow_store::{Blob, ReadPath};

/// A function that reads the bytes of a file from an offset on, without a check.
pub(super) type ReadRaw<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<()>;

impl SealedFile {
    /// Fills `out` with the bytes from `offset_bytes` on, which must lie in the file. Whole blocks
    /// are read directly into the destination. If the blob is far, one request fetches all bytes
    /// instead. An error has the file and offset of the first block that fails.
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
            // The end of the last whole block in the wanted range. The last block of the file may
            // be shorter than the others.
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

    pub(super) fn check(&self, blob: &dyn Blob, start: u64, bytes: &[u8]) -> Result<()> {
        let end = start + bytes.len() as u64;
        self.table.blocks(start, end).try_for_each(|block| {
            let part = (block.start - start) as usize..(block.end - start) as usize;
            self.table.check(blob, block, bytes.get(part).unwrap_or_default())
        })
    }
}

fn copy(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

pub(super) fn of_blob<'a>(blob: &'a dyn Blob, way: ReadPath) -> impl Fn(u64, &mut [u8]) -> Result<()> + 'a {
    move |offset_bytes, out| blob.read(offset_bytes, out, way)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::super::files::SealedFile;
    use super::*;
    use regrow_base::bytes::checksum::crc32c;
    use regrow_base::error::ErrorKind;
    use regrow_store::reads::{BlockTable, Checksum, Words};
    use regrow_store::{MemoryBlob, Suits};

    const BLOCK_LEN: usize = 64;

    /// A blob in memory that claims to lie in a bucket or on a disk.
    #[derive(Debug)]
    struct Placed {
        blob: MemoryBlob,
        is_far: bool,
    }

    impl Blob for Placed {
        fn len_bytes(&self) -> u64 {
            self.blob.len_bytes()
        }
        fn describe(&self) -> PathBuf {
            self.blob.describe()
        }
        fn read(&self, offset_bytes: u64, out: &mut [u8], way: ReadPath) -> Result<()> {
            self.blob.read(offset_bytes, out, way)
        }
        fn suits(&self) -> Suits {
            Suits { requests_min: if self.is_far { 64 } else { 1 }, requests_max: 64 }
        }
    }

    fn sealed(bytes: &[u8]) -> SealedFile {
        let words = Words { what: |_, _| "a block".to_owned(), help: "", help_if_zeros: "" };
        let sums = bytes.chunks(BLOCK_LEN).map(crc32c).collect();
        let len_bytes = bytes.len() as u64;
        let table = BlockTable::new(0..len_bytes, BLOCK_LEN as u64, Checksum::Crc32c, sums, words).unwrap();
        SealedFile { name: "x".to_owned(), len_bytes, table }
    }

    #[test]
    fn every_part_is_what_it_is_and_no_flipped_bit_of_its_blocks_passes() {
        for len in [1, 63, 64, 65, 128, 300] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + 3) as u8).collect();
            let file = sealed(&bytes);
            for is_far in [false, true] {
                let placed = |bytes: &[u8]| Placed {
                    blob: MemoryBlob::new(bytes.to_vec().into(), "x".into()),
                    is_far,
                };
                let sound = placed(&bytes);
                for start in 0..=len {
                    for end in start..=len {
                        let asked = RefCell::new(Vec::new());
                        let read = |placed: &Placed| {
                            let raw = |at: u64, out: &mut [u8]| {
                                asked.borrow_mut().push((at as usize, out.len()));
                                placed.read(at, out, ReadPath::Cached)
                            };
                            let mut out = vec![0; end - start];
                            file.read_checked(placed, start as u64, &mut out, &raw).map(|()| out)
                        };
                        assert!(read(&sound).unwrap() == bytes[start..end], "{len} {is_far} {start}..{end}");
                        if start == end {
                            assert!(asked.take().is_empty(), "{len} {is_far} {start}..{end}");
                            continue;
                        }
                        // The start of the first and the end of the last block that the read needs.
                        let (first, last) =
                            (start / BLOCK_LEN * BLOCK_LEN, ((end - 1) / BLOCK_LEN + 1) * BLOCK_LEN);
                        let (requests, blocks_end) = (asked.take(), last.min(len));
                        let read_len: usize = requests.iter().map(|(_, len)| len).sum();
                        assert_eq!(
                            read_len,
                            blocks_end - first,
                            "{len} {is_far} {start}..{end}: {requests:?}"
                        );
                        // On a disk, one read gets the whole blocks. The cut blocks at both ends
                        // take one read each.
                        let most = if is_far { 1 } else { 3 };
                        assert!(requests.len() <= most, "{len} {is_far} {start}..{end}: {requests:?}");
                        if (start + end) % 5 > 0 {
                            continue;
                        }
                        // Damage before, inside and after the wanted bytes.
                        for at in [first, start, end - 1, last.min(len) - 1] {
                            let mut bad = bytes.clone();
                            bad[at] ^= 1;
                            let error = read(&placed(&bad)).unwrap_err();
                            assert_eq!(
                                error.kind(),
                                ErrorKind::Corrupt,
                                "{len} {is_far} {start}..{end} {at}"
                            );
                        }
                    }
                }
            }
        }
    }
}
