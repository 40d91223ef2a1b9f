//! New files whose bytes are also in memory, as parts of arrays. A save computes parity from this
//! memory, instead of reading the files from the disk again.
//!
//! ```text
//! file       | header | array a    | array b | array c |
//! in memory           | bytes of a | of b    | of c    |    from the first block with a checksum
//! ```
//!
//! A program may change an array during the save. Therefore [`FilesInMemory::are_unchanged`]
//! compares the memory with the checksums of the written bytes.
//!
//! The arrays are not copied: a part takes 40 bytes.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::bytes::Bytes;

use crate::bytes::checksum::BlockSums;
use crate::error::Result;
use crate::store::{DirectWriter, FileSink, FileWriter, WrittenFile};
use crate::threads::{for_each_parallel, thread_count};

/// The blocks that one thread compares at a time: 8 MiB.
const BLOCKS_AT_ONCE: usize = 256;

/// The new files of a checkpoint whose bytes are also in memory.
#[derive(Debug, Clone, Default)]
pub struct FilesInMemory(Arc<Mutex<HashMap<PathBuf, Arc<FileInMemory>>>>);

/// The bytes of one file in memory.
pub struct FileInMemory {
    /// The parts and their offsets in the file. No gap is between them.
    parts: Vec<(u64, Bytes)>,
    range: Range<u64>,
    /// Checksums of the written bytes. The first block begins with the first part.
    block_crc32c: Vec<u32>,
}

impl FilesInMemory {
    /// The file that was written at a path; `None` if its bytes are not in memory.
    pub fn get(&self, path: &Path) -> Option<Arc<FileInMemory>> {
        self.files().get(path).cloned()
    }

    /// Whether the memory still has the bytes that were written to the files.
    pub fn are_unchanged(&self) -> bool {
        let files: Vec<_> = self.files().values().cloned().collect();
        let pieces = files.iter().flat_map(|file| {
            let firsts = (0..file.block_crc32c.len()).step_by(BLOCKS_AT_ONCE);
            firsts.map(move |first| (file, first))
        });
        let has_changed = AtomicBool::new(false);
        let compare = |(file, first): (&Arc<FileInMemory>, usize)| {
            if !file.is_unchanged(first) {
                has_changed.store(true, Ordering::Relaxed);
            }
            Ok(())
        };
        let compared = for_each_parallel(thread_count(), pieces, u64::MAX, |_| 0, compare);
        compared.is_ok() && !has_changed.into_inner()
    }

    /// A writer that notes shared bytes. They count only if they reach from `checksums_from` to the
    /// end of the file.
    pub(crate) fn note(&self, path: PathBuf, checksums_from: u64, writer: DirectWriter) -> FileWriter {
        let (files, parts) = (self.clone(), Vec::new());
        let range = checksums_from..checksums_from;
        FileWriter::new(Noting { writer: Box::new(writer), path, parts, range, files })
    }

    fn files(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<FileInMemory>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileInMemory {
    /// The bytes of the file that are in memory.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The bytes of a range, if one part has all of them.
    pub fn slice(&self, range: Range<u64>) -> Option<&[u8]> {
        let len = range.end.saturating_sub(range.start);
        self.slices(range)?.next().filter(|slice| slice.len() as u64 == len)
    }

    /// Fills `out` with the bytes from `offset_bytes` on; `false` if they are not all in memory.
    pub fn read(&self, offset_bytes: u64, out: &mut [u8]) -> bool {
        let end = offset_bytes.saturating_add(out.len() as u64);
        let Some(slices) = self.slices(offset_bytes..end) else { return false };
        let mut rest = out;
        for slice in slices {
            let (now, later) = rest.split_at_mut(slice.len().min(rest.len()));
            now.copy_from_slice(slice);
            rest = later;
        }
        true
    }

    /// The bytes of a range, part by part; `None` if they are not all in memory.
    fn slices(&self, range: Range<u64>) -> Option<impl Iterator<Item = &[u8]>> {
        if range.start < self.range.start || range.end > self.range.end {
            return None;
        }
        let first = self.parts.partition_point(|(offset, bytes)| offset + bytes.len() as u64 <= range.start);
        let parts = self.parts.get(first..).unwrap_or_default().iter();
        Some(parts.take_while(move |(offset, _)| *offset < range.end).map(move |(offset, bytes)| {
            let from = range.start.saturating_sub(*offset) as usize;
            let to = (range.end - offset).min(bytes.len() as u64) as usize;
            bytes.get(from..to).unwrap_or_default()
        }))
    }

    /// Compares up to [`BLOCKS_AT_ONCE`] blocks with their checksums.
    fn is_unchanged(&self, first: usize) -> bool {
        let written = self.block_crc32c.get(first..).unwrap_or_default();
        let written = written.get(..BLOCKS_AT_ONCE).unwrap_or(written);
        let offset = |block: usize| self.range.start + block as u64 * FileWriter::BLOCK_LEN_BYTES;
        let range = offset(first)..offset(first + written.len()).min(self.range.end);
        let mut sums = BlockSums::new(FileWriter::BLOCK_LEN_BYTES as usize);
        self.slices(range).into_iter().flatten().for_each(|slice| sums.update(slice));
        sums.finish() == written
    }
}

impl fmt::Debug for FileInMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileInMemory").field("range", &self.range).finish_non_exhaustive()
    }
}

/// Writes a file, and notes the shared bytes.
#[derive(Debug)]
struct Noting {
    writer: Box<DirectWriter>,
    path: PathBuf,
    parts: Vec<(u64, Bytes)>,
    /// The noted bytes of the file.
    range: Range<u64>,
    files: FilesInMemory,
}

impl FileSink for Noting {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write(bytes)
    }

    fn write_shared(&mut self, bytes: &Bytes) -> Result<()> {
        let offset_bytes = self.writer.offset_bytes();
        if offset_bytes == self.range.end && !bytes.is_empty() {
            self.parts.push((offset_bytes, bytes.clone()));
            self.range.end += bytes.len() as u64;
        }
        self.writer.write(bytes)
    }

    fn write_with(
        &mut self,
        len_bytes: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.writer.write_with(len_bytes, fill)
    }

    fn offset_bytes(&self) -> u64 {
        self.writer.offset_bytes()
    }

    fn saved(&self, len_bytes: u64) -> Result<()> {
        self.writer.saved(len_bytes)
    }

    fn describe(&self) -> PathBuf {
        self.path.clone()
    }

    fn finish(self: Box<Self>) -> Result<WrittenFile> {
        let Self { writer, path, parts, range, files } = *self;
        let written = FileSink::finish(writer)?;
        if range.end == written.len_bytes && !parts.is_empty() {
            let block_crc32c = written.block_crc32c.clone();
            files.files().insert(path, Arc::new(FileInMemory { parts, range, block_crc32c }));
        }
        Ok(written)
    }

    /// Patches change bytes after they were noted, so the file does not count.
    fn patches(&mut self) -> Option<&mut Vec<(u64, Vec<u8>)>> {
        self.parts.clear();
        self.range.end = u64::MAX;
        FileSink::patches(&mut *self.writer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::WriteOptions;

    const FROM: u64 = 100;

    fn pattern(len: usize, seed: usize) -> Bytes {
        (0..len).map(|at| (at * 7 + (at >> 8) + seed) as u8).collect::<Vec<_>>().into()
    }

    /// Writes a file with `write`, and returns its bytes and what is noted of it.
    fn written(write: impl Fn(&mut FileWriter)) -> (Vec<u8>, FilesInMemory, Option<Arc<FileInMemory>>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let options = WriteOptions { checksums_from: FROM, durable: false, ..WriteOptions::default() };
        let files = FilesInMemory::default();
        let writer = DirectWriter::create_with(&path, &options).unwrap();
        let mut writer = files.note(path.clone(), FROM, writer);
        writer.write(&[1; FROM as usize]).unwrap();
        write(&mut writer);
        writer.finish().unwrap();
        let found = files.get(&path);
        (fs::read(path).unwrap(), files, found)
    }

    #[test]
    fn shared_bytes_are_those_of_the_file() {
        let lens = [40_000, 1, 0, 200_000, 9_000_000, 5];
        let parts: Vec<Bytes> = lens.iter().enumerate().map(|(at, len)| pattern(*len, at)).collect();
        let (bytes, files, file) =
            written(|writer| parts.iter().for_each(|part| writer.write_shared(part).unwrap()));
        let file = file.unwrap();
        let end = bytes.len() as u64;
        assert_eq!(file.range(), FROM..end);
        assert!(files.are_unchanged());
        for range in
            [FROM..end, 40_099..40_102, 240_100..240_101, end - 6..end, FROM..40_100, 50..50, 300..300]
        {
            let of_file = &bytes[range.start as usize..range.end as usize];
            let mut out = vec![0; of_file.len()];
            assert_eq!(file.read(range.start, &mut out), range.start >= FROM, "{range:?}");
            assert!(range.start < FROM || out == of_file, "{range:?}");
        }
        assert!(file.slice(FROM..40_100).unwrap() == &parts[0][..]);
        assert!(file.slice(40_000..40_101).is_none(), "two parts");
        assert!(!file.read(FROM - 1, &mut [0; 2]) && !file.read(end - 1, &mut [0; 2]));
    }

    #[test]
    fn a_file_with_other_bytes_is_not_in_memory() {
        let part = pattern(100_000, 3);
        let (_, _, gap) = written(|writer| {
            writer.write_shared(&part).unwrap();
            writer.write(b"other").unwrap();
            writer.write_shared(&part).unwrap();
        });
        let (_, _, ending) = written(|writer| {
            writer.write_shared(&part).unwrap();
            writer
                .write_with(1, &mut |_, out| {
                    out.fill(0);
                    Ok(())
                })
                .unwrap();
        });
        let (_, _, patched) = written(|writer| {
            writer.write_shared(&part).unwrap();
            writer.patches().unwrap().push((FROM, b"patch".to_vec()));
        });
        let (_, _, none) = written(|_| {});
        assert!(gap.is_none() && ending.is_none() && patched.is_none() && none.is_none());
    }

    #[test]
    fn every_changed_block_is_seen() {
        let part = pattern(BLOCKS_AT_ONCE * (32 << 10) + 70_000, 1);
        let (_, files, file) = written(|writer| writer.write_shared(&part).unwrap());
        let file = file.unwrap();
        for at in
            [0, 32 << 10, (BLOCKS_AT_ONCE * (32 << 10)) - 1, BLOCKS_AT_ONCE * (32 << 10), part.len() - 1]
        {
            let mut bytes = part.to_vec();
            bytes[at] ^= 1;
            let changed = FileInMemory {
                parts: vec![(FROM, bytes.into())],
                range: file.range(),
                block_crc32c: file.block_crc32c.clone(),
            };
            files.files().insert(PathBuf::from("file"), Arc::new(changed));
            assert!(!files.are_unchanged(), "byte {at}");
        }
    }
}
