//! Data files whose every block is checked before its first byte is handed out.
//!
//! Each file carries a list of block checksums and a bit for each block that has passed. A view of the map is
//! free; the check reads each block once, whoever asks first. A block is checked through the same map that
//! readers see, so what passed is what they get.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::manifest::DataFile;
use crate::bytes::checksum::crc32c;
use crate::error::{Error, Result};
use crate::store::{Access, ByteRange, LocalStore, Located, Span, Store, advise, resolve_range};

/// Largest block of which a record may speak.
const BLOCK_LEN_MAX_BYTES: u64 = 1 << 30;

/// Bytes that are asked of the kernel ahead of the check.
const READ_AHEAD_BYTES: u64 = 16 << 20;

/// A folder whose data files are checked on reading; other files pass through.
#[derive(Debug, Clone)]
pub struct CheckedStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: LocalStore,
    files: Vec<CheckedFile>,
}

#[derive(Debug)]
struct CheckedFile {
    record: DataFile,
    map: std::sync::OnceLock<Bytes>,
    /// One for each block, and a last one for the head.
    passed: Vec<AtomicBool>,
}

impl CheckedStore {
    /// The folder of `base`, with the data files that `records` describe.
    ///
    /// # Errors
    /// `Corrupt` if a record contradicts itself.
    pub fn new(base: LocalStore, records: &[DataFile]) -> Result<Self> {
        let mut files = Vec::with_capacity(records.len());
        for record in records {
            let data_len = record.len_bytes.checked_sub(record.data_offset);
            let sane = (1..=BLOCK_LEN_MAX_BYTES).contains(&record.block_len_bytes)
                && record.len_bytes <= i64::MAX as u64;
            let blocks = data_len.filter(|_| sane).map(|len| len.div_ceil(record.block_len_bytes));
            if blocks != Some(record.block_crc32c.len() as u64) {
                return Err(Error::corrupt(format!(
                    "regrow.json has not one checksum for each block of {}",
                    record.name
                ))
                .expected(format_args!("{blocks:?}"), record.block_crc32c.len()));
            }
            let passed = (0..=record.block_crc32c.len()).map(|_| AtomicBool::new(false)).collect();
            files.push(CheckedFile { record: record.clone(), map: std::sync::OnceLock::new(), passed });
        }
        Ok(Self(Arc::new(Inner { base, files })))
    }

    /// What is recorded of each data file.
    pub fn records(&self) -> impl Iterator<Item = &DataFile> {
        self.0.files.iter().map(|file| &file.record)
    }

    /// The bytes of a data file as a view of its map; **not checked**.
    ///
    /// # Errors
    /// `Corrupt` if the file is gone or has another length than recorded.
    pub fn view(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let Some(file) = self.0.files.get(file) else { return Err(Error::invalid("no such data file")) };
        let map = self.map_of(file)?;
        let range = resolve_range(ByteRange::Span { offset_bytes, len_bytes }, map.len() as u64)
            .map_err(|error| error.in_file(self.path_of(file)))?;
        Ok(map.slice(range.start as usize..range.end as usize))
    }

    /// Checks every block that a range of a data file touches; each block once.
    ///
    /// # Errors
    /// `Corrupt` with file and offset of the first block that fails.
    pub fn check(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        let Some(file) = self.0.files.get(file) else { return Err(Error::invalid("no such data file")) };
        self.check_file(file, offset_bytes, offset_bytes.saturating_add(len_bytes))
    }

    /// Checks what every data file has before its blocks: what fails.
    pub fn check_heads(&self) -> Vec<Error> {
        let mut found = Vec::new();
        for file in &self.0.files {
            if let Err(error) = self.check_file(file, 0, file.record.data_offset) {
                found.push(error);
            }
        }
        found
    }

    fn check_file(&self, file: &CheckedFile, start: u64, end: u64) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let map = self.map_of(file)?;
        let record = &file.record;
        if start < record.data_offset
            && let Some(passed) = file.passed.last()
            && !passed.load(Ordering::Acquire)
        {
            let head = map.get(..record.data_offset as usize).unwrap_or_default();
            self.compare(file, "the header", 0, head, record.head_crc32c)?;
            passed.store(true, Ordering::Release);
        }
        let first = start.saturating_sub(record.data_offset) / record.block_len_bytes;
        let mut read_ahead_to = 0;
        for (block, (passed, &expected)) in
            file.passed.iter().zip(&record.block_crc32c).enumerate().skip(first as usize)
        {
            let at = record.data_offset + block as u64 * record.block_len_bytes;
            if at >= end {
                break;
            }
            if passed.load(Ordering::Acquire) {
                continue;
            }
            if at + record.block_len_bytes > read_ahead_to && end - at > record.block_len_bytes {
                let ahead = (at + READ_AHEAD_BYTES).min(end).min(record.len_bytes);
                advise(map.get(at as usize..ahead as usize).unwrap_or_default(), Access::Soon);
                read_ahead_to = at + READ_AHEAD_BYTES / 2;
            }
            let block_end = (at + record.block_len_bytes).min(record.len_bytes);
            let bytes = map.get(at as usize..block_end as usize).unwrap_or_default();
            self.compare(file, &format!("block {block}"), at, bytes, expected)?;
            passed.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn compare(&self, file: &CheckedFile, part: &str, at: u64, bytes: &[u8], expected: u32) -> Result<()> {
        let found = crc32c(bytes);
        if found == expected {
            return Ok(());
        }
        let zeros = bytes.iter().all(|&byte| byte == 0);
        Err(Error::corrupt(format!("{part} of a data file fails its crc32c"))
            .in_file(self.path_of(file))
            .at_byte(at)
            .expected(format_args!("{expected:08x}"), format_args!("{found:08x}"))
            .help(if zeros {
                "the block is all zeros, as after an interrupted copy; copy the file again, or load the other leaves"
            } else {
                "copy the file again, or load the other leaves"
            }))
    }

    /// The map of a data file, taken only if the file is as long as recorded: a shorter one would fault.
    fn map_of(&self, file: &CheckedFile) -> Result<Bytes> {
        if let Some(map) = file.map.get() {
            return Ok(map.clone());
        }
        let path = self.path_of(file);
        let gone = |found: &dyn std::fmt::Display| {
            Error::corrupt("a data file is not what regrow.json says")
                .in_file(&path)
                .expected(format_args!("{} bytes", file.record.len_bytes), found)
                .help("the copy or download of this checkpoint was not finished; copy it again")
        };
        let key = file.record.name.as_bytes();
        match self.0.base.len_bytes(key)? {
            Some(len) if len == file.record.len_bytes => {}
            Some(len) => return Err(gone(&format_args!("{len}"))),
            None => return Err(gone(&"no such file")),
        }
        let map = self.0.base.map(key)?.ok_or_else(|| gone(&"no such file"))?;
        if map.len() as u64 != file.record.len_bytes {
            return Err(gone(&map.len()));
        }
        Ok(file.map.get_or_init(|| map).clone())
    }

    fn path_of(&self, file: &CheckedFile) -> PathBuf {
        self.0.base.describe(file.record.name.as_bytes())
    }

    fn file_named(&self, key: &[u8]) -> Option<&CheckedFile> {
        self.0.files.iter().find(|file| file.record.name.as_bytes() == key)
    }
}

impl Store for CheckedStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        let Some(file) = self.file_named(key) else { return self.0.base.get(key, range) };
        let part =
            resolve_range(range, file.record.len_bytes).map_err(|error| error.in_file(self.path_of(file)))?;
        let map = self.map_of(file)?;
        self.check_file(file, part.start, part.end)?;
        Ok(Some(map.slice(part.start as usize..part.end as usize)))
    }

    fn put(&self, key: &[u8], value: Bytes) -> Result<()> {
        self.0.base.put(key, value)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        self.0.base.delete(key)
    }

    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.0.base.list(prefix)
    }

    fn len_bytes(&self, key: &[u8]) -> Result<Option<u64>> {
        self.0.base.len_bytes(key)
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Located>> {
        let Some(len_bytes) = self.len_bytes(key)? else { return Ok(None) };
        Ok(Some(Located::At(Span {
            store: Arc::new(self.clone()),
            key: key.into(),
            offset_bytes: 0,
            len_bytes,
        })))
    }

    fn describe(&self, key: &[u8]) -> PathBuf {
        self.0.base.describe(key)
    }
}
