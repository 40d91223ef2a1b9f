//! The files of one checkpoint, each checked against its record before its first byte is handed out.
//!
//! | file | is checked | by |
//! |---|---|---|
//! | data file | a block at a time, when a byte of the block is wanted | the block's CRC-32C |
//! | any other that `regrow.json` records | as a whole, when a byte of it is wanted | its BLAKE3 |
//! | one that it does not record | is refused: it is of another checkpoint, or nobody's | |
//!
//! A view of the map is free; its blocks are checked once, whoever asks first, and have a flag that says so. What is
//! read into memory of the caller is checked there each time, since those bytes have just come from the disk.
//! [`block_reads`](super::passes) has the ways in which many blocks are checked at once, and read.
//!
//! All files are opened below one folder, which stays open, and each data file is opened once. So reads, maps and flags
//! are about the same bytes, also when another checkpoint has taken the path.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::manifest::{DataFile, SmallFile};
use crate::bytes::checksum::crc32c;
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::formats::CheckFor;
use crate::store::{Blob, ByteRange, Located, ReadPath, Scratch, Span, Store, resolve_range};

/// Largest block of which a record may speak.
const BLOCK_LEN_MAX_BYTES: u64 = 1 << 30;

/// Blocks up to this length are read by offset; longer ones, which regrow does not write, through the map.
const READ_BLOCK_LEN_MAX_BYTES: u64 = 1 << 20;

/// Files that are checked as a whole are read in pieces of this length.
const CHECKED_LEN_BYTES: u64 = 1 << 20;

/// A folder whose files are checked on reading.
#[derive(Debug, Clone)]
pub struct CheckedStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: Arc<dyn Store>,
    files: Vec<CheckedFile>,
    small_files: Vec<CheckedSmallFile>,
}

/// A data file: what is recorded of it, and what is known by now.
#[derive(Debug)]
pub(super) struct CheckedFile {
    pub(super) record: DataFile,
    /// The file itself, for reads and for the map.
    opened: OnceLock<Arc<dyn Blob>>,
    /// One for each block, and a last one for the head.
    passed: Vec<AtomicBool>,
}

/// A file that is checked as a whole.
#[derive(Debug)]
struct CheckedSmallFile {
    record: SmallFile,
    /// The file itself, once it has been found to be what was written.
    passed: OnceLock<Arc<dyn Blob>>,
}

/// A block of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) number: usize,
    /// First byte in the file, and the one after the last.
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Block {
    fn len_bytes(&self) -> usize {
        (self.end - self.start) as usize
    }
}

impl CheckedFile {
    /// The block that holds a byte at or after the first of the data.
    pub(super) fn block_at(&self, offset_bytes: u64) -> Block {
        let DataFile { data_offset, block_len_bytes, len_bytes, .. } = self.record;
        let number = offset_bytes.saturating_sub(data_offset) / block_len_bytes;
        let start = data_offset + number * block_len_bytes;
        Block { number: number as usize, start, end: (start + block_len_bytes).min(len_bytes) }
    }

    /// The blocks from the one that holds `start` to the one that holds the byte before `end`.
    pub(super) fn blocks(&self, start: u64, end: u64) -> impl Iterator<Item = Block> + '_ {
        let end = end.min(self.record.len_bytes);
        let first = Some(self.block_at(start)).filter(|_| start < end);
        std::iter::successors(first, move |block| (block.end < end).then(|| self.block_at(block.end)))
    }

    /// Whether the block has been found to be what was written.
    pub(super) fn has_passed(&self, block: Block) -> bool {
        self.passed.get(block.number).is_some_and(|passed| passed.load(Ordering::Acquire))
    }

    /// Takes the blocks for not yet checked.
    pub(super) fn forget(&self, start: u64, end: u64) {
        for block in self.blocks(start, end) {
            if let Some(passed) = self.passed.get(block.number) {
                passed.store(false, Ordering::Release);
            }
        }
    }

    /// Whether blocks are short enough to be read by offset.
    pub(super) fn is_read_by_offset(&self) -> bool {
        self.record.block_len_bytes <= READ_BLOCK_LEN_MAX_BYTES
    }
}

impl CheckedStore {
    /// The folder of `base`, with the files that the records describe.
    ///
    /// # Errors
    /// `Corrupt` if a record contradicts itself.
    pub fn new(base: Arc<dyn Store>, records: &[DataFile], small_files: Vec<SmallFile>) -> Result<Self> {
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
            files.push(CheckedFile { record: record.clone(), opened: OnceLock::new(), passed });
        }
        let small_files = small_files.into_iter();
        let small_files =
            small_files.map(|record| CheckedSmallFile { record, passed: OnceLock::new() }).collect();
        Ok(Self(Arc::new(Inner { base, files, small_files })))
    }

    /// What is recorded of each data file.
    pub fn records(&self) -> impl Iterator<Item = &DataFile> {
        self.0.files.iter().map(|file| &file.record)
    }

    /// The bytes of a data file as a view of its map; `None` where there are no maps; **not checked**.
    ///
    /// # Errors
    /// `Corrupt` if the file is gone or has another length than recorded.
    pub fn view(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Option<Bytes>> {
        let file = self.file(file)?;
        let Some(map) = self.map_of(file)? else { return Ok(None) };
        let range = resolve_range(ByteRange::Span { offset_bytes, len_bytes }, map.len() as u64)
            .map_err(|error| error.in_file(self.path_of(file)))?;
        Ok(Some(map.slice(range.start as usize..range.end as usize)))
    }

    /// Checks every block that a range of a data file touches and that has not passed yet: through the map for
    /// views; by reads to verify, since a map faults where the disk cannot be read.
    ///
    /// # Errors
    /// `Corrupt` with file and offset of the first block that fails; what the disk says.
    pub fn check(&self, file: usize, offset_bytes: u64, len_bytes: u64, ahead: CheckFor) -> Result<()> {
        let file = self.file(file)?;
        self.check_file(file, offset_bytes, offset_bytes.saturating_add(len_bytes), ahead)
    }

    /// Checks what every data file has before its blocks: what fails.
    pub fn check_heads(&self) -> Vec<Error> {
        let mut found = Vec::new();
        for file in &self.0.files {
            if let Err(error) = self.check_file(file, 0, file.record.data_offset, CheckFor::Verify) {
                found.push(error);
            }
        }
        found
    }

    /// Checks, again, every file that is checked as a whole, and gives all that is wrong.
    ///
    /// # Errors
    /// What the disk says.
    pub fn check_small_files(&self) -> Result<Vec<Error>> {
        let mut found = Vec::new();
        for file in &self.0.small_files {
            if let Err(error) = self.open_checked(&file.record)? {
                found.push(error);
            }
        }
        Ok(found)
    }

    /// Records of files that say nothing of their bytes: those that older checkpoints have of the database.
    pub fn empty_records(&self) -> impl Iterator<Item = &SmallFile> {
        self.0.small_files.iter().map(|file| &file.record).filter(|record| record.says_nothing())
    }

    /// The data file of such a record, if it is there and as long as recorded.
    pub(super) fn data_file(&self, record: &DataFile) -> Option<Arc<dyn Blob>> {
        let file = self.file_named(record.name.as_bytes())?;
        self.opened(file).ok().cloned()
    }

    /// The data file of that number.
    pub(super) fn file(&self, file: usize) -> Result<&CheckedFile> {
        self.0.files.get(file).ok_or_else(|| Error::invalid("no such data file"))
    }

    /// Whether the page cache has a range of a data file, by a few looks; so does a file of which nobody knows.
    pub fn is_cached(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> bool {
        let reader = self.file(file).and_then(|file| self.opened(file));
        reader.map_or(true, |reader| reader.is_cached(offset_bytes, len_bytes))
    }

    pub(super) fn check_file(&self, file: &CheckedFile, start: u64, end: u64, ahead: CheckFor) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let record = &file.record;
        if start < record.data_offset
            && let Some(passed) = file.passed.last()
            && !passed.load(Ordering::Acquire)
        {
            let head = self.bytes_of(file, 0, record.data_offset)?;
            self.compare(file, &"the header", 0, &head, record.head_crc32c)?;
            passed.store(true, Ordering::Release);
        }
        let (start, end) = (start.max(record.data_offset), end.min(record.len_bytes));
        if file.blocks(start, end).all(|block| file.has_passed(block)) {
            return Ok(());
        }
        if ahead == CheckFor::Views {
            self.check_blocks_ahead([(file, start, end)], ahead, None)?;
        }
        // What has not passed by now fails, or lies in blocks of a length that is not read by offset.
        for block in file.blocks(start, end).filter(|&block| !file.has_passed(block)) {
            if file.is_read_by_offset() {
                let mut scratch = Scratch::default();
                let bytes = self.opened(file)?.fetch(
                    block.start,
                    block.len_bytes(),
                    ReadPath::Cached,
                    &mut scratch,
                )?;
                self.check_block(file, block, bytes)?;
            } else {
                let bytes = self.bytes_of(file, block.start, block.end)?;
                self.check_block(file, block, &bytes)?;
            }
        }
        Ok(())
    }

    /// Bytes of a data file, not checked: a part of the map where there is one, else read into memory.
    pub(super) fn bytes_of(&self, file: &CheckedFile, start: u64, end: u64) -> Result<Bytes> {
        if let Some(map) = self.map_of(file)? {
            return Ok(map.slice(start as usize..end as usize));
        }
        let mut bytes = work_space(end - start)?;
        self.opened(file)?.read(start, &mut bytes, ReadPath::Cached)?;
        Ok(bytes.into())
    }

    /// Checks a block in the map of its file.
    pub(super) fn check_mapped(&self, file: &CheckedFile, block: Block, map: &Bytes) -> Result<()> {
        let bytes = map.get(block.start as usize..block.end as usize).unwrap_or_default();
        self.check_block(file, block, bytes)
    }

    /// Checks the bytes of a block, and remembers whether they passed.
    pub(super) fn check_block(&self, file: &CheckedFile, block: Block, bytes: &[u8]) -> Result<()> {
        let (Some(passed), Some(&expected)) =
            (file.passed.get(block.number), file.record.block_crc32c.get(block.number))
        else {
            return Err(Error::invalid("no such block"));
        };
        let compared =
            self.compare(file, &format_args!("block {}", block.number), block.start, bytes, expected);
        passed.store(compared.is_ok(), Ordering::Release);
        compared
    }

    fn compare(
        &self,
        file: &CheckedFile,
        part: &dyn std::fmt::Display,
        at: u64,
        bytes: &[u8],
        expected: u32,
    ) -> Result<()> {
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

    /// The map of a data file, which has the recorded length (a shorter one would fault); `None` where there are no maps.
    pub(super) fn map_of(&self, file: &CheckedFile) -> Result<Option<Bytes>> {
        self.opened(file)?.map()
    }

    /// The data file, open for everything that is done with it; it has the recorded length.
    pub(super) fn opened<'a>(&self, file: &'a CheckedFile) -> Result<&'a Arc<dyn Blob>> {
        if let Some(opened) = file.opened.get() {
            return Ok(opened);
        }
        let found = self.0.base.open(file.record.name.as_bytes())?;
        self.expect_len(file, found.as_ref().map(|found| found.len_bytes()))?;
        let found = found.ok_or_else(|| Error::invalid("no such data file"))?;
        Ok(file.opened.get_or_init(|| found))
    }

    fn expect_len(&self, file: &CheckedFile, found: Option<u64>) -> Result<()> {
        let found: &dyn std::fmt::Display = match &found {
            Some(len) if *len == file.record.len_bytes => return Ok(()),
            Some(len) => len,
            None => &"no such file",
        };
        Err(Error::corrupt("a data file is not what regrow.json says")
            .in_file(self.path_of(file))
            .expected(format_args!("{} bytes", file.record.len_bytes), found)
            .help("the copy or download of this checkpoint was not finished; copy it again"))
    }

    fn path_of(&self, file: &CheckedFile) -> PathBuf {
        self.0.base.describe(file.record.name.as_bytes())
    }

    fn file_named(&self, key: &[u8]) -> Option<&CheckedFile> {
        self.0.files.iter().find(|file| file.record.name.as_bytes() == key)
    }

    fn small_file_named(&self, key: &[u8]) -> Option<&CheckedSmallFile> {
        self.0.small_files.iter().find(|file| file.record.name.as_bytes() == key)
    }

    /// The open file of a record that is checked as a whole; checked once.
    fn checked<'a>(&self, file: &'a CheckedSmallFile) -> Result<&'a Arc<dyn Blob>> {
        if let Some(passed) = file.passed.get() {
            return Ok(passed);
        }
        let passed = self.open_checked(&file.record)??;
        Ok(file.passed.get_or_init(|| passed))
    }

    /// Opens a file that is checked as a whole, and checks it: the file, or what is wrong with it.
    ///
    /// # Errors
    /// What the disk says.
    fn open_checked(&self, record: &SmallFile) -> Result<Result<Arc<dyn Blob>>> {
        let path = self.0.base.describe(record.name.as_bytes());
        let Some(file) = self.0.base.open(record.name.as_bytes())? else {
            return Ok(Err(Error::corrupt("a file of the checkpoint is missing")
                .in_file(path)
                .help("Orbax needs it; copy the checkpoint again")));
        };
        let len_bytes = file.len_bytes();
        let changed = || Error::corrupt("a file of the checkpoint is not the one that was written with it");
        let help = "another checkpoint's file, or a damaged one, is in its place: copy the checkpoint again; arrays \
                    that are not compressed are read without it";
        if len_bytes != record.len_bytes {
            return Ok(Err(changed()
                .in_file(path)
                .expected(format_args!("{} bytes", record.len_bytes), format_args!("{len_bytes} bytes"))
                .help(help)));
        }
        let mut sum = record.sum();
        let mut scratch = Scratch::default();
        let mut at = 0;
        while at < len_bytes {
            let len = (len_bytes - at).min(CHECKED_LEN_BYTES);
            sum.update(file.fetch(at, len as usize, ReadPath::Cached, &mut scratch)?);
            at += len;
        }
        Ok(match sum.differs_from(record) {
            None => Ok(file),
            Some((expected, found)) => Err(changed().in_file(path).expected(expected, found).help(help)),
        })
    }

    fn unrecorded(&self, key: &[u8]) -> Error {
        Error::corrupt("regrow.json does not record a file that the checkpoint refers to")
            .in_file(self.0.base.describe(key))
            .help("the file is of another checkpoint: copy the checkpoint again")
    }
}

impl Store for CheckedStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        if let Some(file) = self.file_named(key) {
            let part = resolve_range(range, file.record.len_bytes)
                .map_err(|error| error.in_file(self.path_of(file)))?;
            if let Some(map) = self.map_of(file)? {
                self.check_file(file, part.start, part.end, CheckFor::Views)?;
                return Ok(Some(map.slice(part.start as usize..part.end as usize)));
            }
            return self.read_checked(file, part).map(Some);
        }
        if let Some(file) = self.small_file_named(key) {
            let file = self.checked(file)?;
            let part =
                resolve_range(range, file.len_bytes()).map_err(|error| error.in_file(file.describe()))?;
            let mut bytes = work_space(part.end - part.start)?;
            file.read(part.start, &mut bytes, ReadPath::Cached)?;
            return Ok(Some(bytes.into()));
        }
        match self.0.base.len_bytes(key)? {
            None => Ok(None),
            Some(_) => Err(self.unrecorded(key)),
        }
    }

    fn put(&self, key: &[u8], _value: Bytes) -> Result<()> {
        Err(Error::unsupported("an opened checkpoint is read only").in_file(self.describe(key)))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Err(Error::unsupported("an opened checkpoint is read only").in_file(self.describe(key)))
    }

    /// Those that are recorded.
    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let data_files = self.0.files.iter().map(|file| &file.record.name);
        let names = data_files.chain(self.0.small_files.iter().map(|file| &file.record.name));
        let mut keys: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
        keys.retain(|key| key.starts_with(prefix));
        keys.sort_unstable();
        Ok(keys)
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
