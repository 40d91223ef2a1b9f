//! A data file. A block is checked when one of its bytes is needed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::manifest::DataFile;
use super::recorded::RecordedBlob;
use crate::SummedFile;
use regrow_base::bytes::checksum::Crc32c;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::{Error, Result};
use regrow_base::monitor::Monitor;
use regrow_store::reads::{
    BlobRef, BlockTable, CheckFor, Checked, Checks, Checksum, Extent, Part, ReadOptions, Words, check_ahead,
    fill,
};
use regrow_store::{Blob, FETCH_LEN_MAX_BYTES, ReadPath, Scratch, Store};

/// Largest block in a record.
const BLOCK_LEN_MAX_BYTES: u64 = 1 << 30;

/// The approximate length of the pieces of a stream.
const PIECE_LEN_BYTES: u64 = 1 << 20;

pub(super) const WORDS: Words = Words {
    what: |_, block| format!("block {block} fails its crc32c"),
    help: "`regrow repair` heals it with parity or a copy (`--from`); else load the other leaves",
    help_if_zeros: HELP_IF_ZEROS,
};

const HELP_IF_ZEROS: &str = "the block is all zeros, as after an interrupted copy: copy the file again, or \
    heal it with `regrow repair` and parity or a copy (`--from`); else load the other leaves";

/// A data file with its record, and the checks that it has passed so far.
#[derive(Debug)]
pub(super) struct CheckedFile {
    pub(super) record: DataFile,
    pub(super) blob: RecordedBlob,
    blocks: BlockTable,
    /// Whether the bytes before the blocks have passed their checksum.
    has_head_passed: AtomicBool,
}

/// The files of these records. None of them is open yet.
pub(super) fn checked_files(
    base: &Arc<dyn Store>,
    records: Vec<DataFile>,
    takes_any_length: bool,
) -> Result<Vec<CheckedFile>> {
    let mut files = Vec::with_capacity(records.len());
    for record in records {
        let data_len = record.len_bytes.checked_sub(record.data_offset);
        let sane = (1..=BLOCK_LEN_MAX_BYTES).contains(&record.block_len_bytes)
            && record.len_bytes <= i64::MAX as u64;
        let blocks = data_len.filter(|_| sane).map(|len| len.div_ceil(record.block_len_bytes));
        if blocks != Some(record.block_crc32c.len() as u64) {
            return Err(Error::corrupt(format!(
                "regrow.json lacks the checksum of a block of {}",
                record.name
            ))
            .expected(format_args!("{blocks:?}"), record.block_crc32c.len()));
        }
        let range = record.data_offset..record.len_bytes;
        let (len_bytes, expected) = (record.block_len_bytes, record.block_crc32c.clone());
        files.push(CheckedFile {
            blob: RecordedBlob::new(base.clone(), &record.name, record.len_bytes, takes_any_length),
            blocks: BlockTable::new(range, len_bytes, Checksum::Crc32c, expected, WORDS)?.never_rewritten(),
            record,
            has_head_passed: AtomicBool::new(false),
        });
    }
    Ok(files)
}

impl CheckedFile {
    pub(super) fn checked(&self) -> Checked<'_> {
        Checked { blob: &self.blob, table: &self.blocks }
    }

    pub(super) fn extent(&self, offset_bytes: u64, len_bytes: u64) -> Extent<'_> {
        let end_bytes = offset_bytes.saturating_add(len_bytes);
        Extent {
            blob: BlobRef::Kept(&self.blob),
            offset_bytes,
            len_bytes,
            checks: Some(Checks { table: &self.blocks, start_bytes: offset_bytes, end_bytes }),
            is_viewable: true,
            working_len_bytes: None,
        }
    }

    pub(super) fn read(&self, part: Range<u64>) -> Result<Bytes> {
        let mut bytes = work_space(part.end - part.start)?;
        let head_len = self.record.data_offset.saturating_sub(part.start).min(part.end - part.start);
        if head_len > 0 {
            self.check_head()?;
            let head = bytes.get_mut(..head_len as usize).unwrap_or_default();
            self.blob.read(part.start, head, ReadPath::Cached)?;
        }
        let offset_bytes = part.start.max(self.record.data_offset);
        let out = bytes.get_mut(head_len as usize..).unwrap_or_default();
        if !out.is_empty() {
            let how = ReadOptions { verified: true, direct: false };
            let part = Part { offset_bytes, out, leaf: 0 };
            fill([(self.checked(), 0..0, part)], how, None, |_, error| error)?;
        }
        Ok(bytes.into())
    }

    /// Reads the bytes `part` piece by piece, front to back, and passes each checked piece to
    /// `each`.
    ///
    /// # Errors
    /// As [`read`](Self::read), perhaps after some pieces; errors of `each`.
    pub(super) fn read_in_pieces(
        &self,
        part: Range<u64>,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = part.start;
        while at < part.end {
            let end = self.piece_end(at).min(part.end);
            each(&self.read(at..end)?)?;
            at = end;
        }
        Ok(())
    }

    /// The end of a piece that begins at `at`. The piece ends with a block, so that no block is
    /// checked twice.
    fn piece_end(&self, at: u64) -> u64 {
        let record = &self.record;
        let Some(from) = at.checked_sub(record.data_offset) else { return record.data_offset };
        let block_len = record.block_len_bytes.max(1);
        let blocks = from / block_len + (PIECE_LEN_BYTES / block_len).max(1);
        record.data_offset.saturating_add(blocks.saturating_mul(block_len))
    }

    /// Reads and checks the whole file. Bytes that are not in the page cache are read without
    /// adding them to the cache.
    pub(super) fn check(&self, monitor: &Monitor) -> Result<()> {
        self.check_head()?;
        let range = self.record.data_offset..self.record.len_bytes;
        check_ahead([(self.checked(), range.clone(), 0..0)], CheckFor::Verify, None)?;
        monitor.check()?;
        self.checked().check(range.start, range.end, CheckFor::Verify)
    }

    /// Checks the bytes before the blocks, once.
    pub(super) fn check_head(&self) -> Result<()> {
        let head_len = self.record.data_offset;
        if head_len == 0 || self.has_head_passed.load(Ordering::Acquire) {
            return Ok(());
        }
        // Read instead of mapping: a map faults if the file was truncated.
        let (mut sum, mut is_zeros, mut at) = (Crc32c::new(), true, 0);
        let mut scratch = Scratch::default();
        while at < head_len {
            let len = (head_len - at).min(FETCH_LEN_MAX_BYTES);
            let bytes = self.blob.fetch(at, len as usize, ReadPath::Cached, &mut scratch)?;
            sum.update(bytes);
            is_zeros &= bytes.iter().all(|&byte| byte == 0);
            at += len;
        }
        let (expected, found) = (self.record.head_crc32c, sum.value());
        if found != expected {
            return Err(Error::corrupt("the header of a data file fails its crc32c")
                .in_file(self.blob.describe())
                .at_byte(0)
                .expected(format_args!("{expected:08x}"), format_args!("{found:08x}"))
                .help(if is_zeros { HELP_IF_ZEROS } else { WORDS.help }));
        }
        self.has_head_passed.store(true, Ordering::Release);
        Ok(())
    }

    /// The checksums of the file: one for its header, then one for each block.
    pub(super) fn summed(&self) -> Result<SummedFile> {
        let record = &self.record;
        let (head, len_bytes) = (record.data_offset, record.len_bytes);
        let mut tables = Vec::with_capacity(2);
        if head > 0 {
            tables.push(BlockTable::new(0..head, head, Checksum::Crc32c, vec![record.head_crc32c], WORDS)?);
        }
        let (block_len, expected) = (record.block_len_bytes, record.block_crc32c.clone());
        tables.push(BlockTable::new(head..len_bytes, block_len, Checksum::Crc32c, expected, WORDS)?);
        Ok(SummedFile { name: record.name.clone(), len_bytes, tables })
    }
}
