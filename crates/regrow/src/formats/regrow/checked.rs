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
//! [`reads`](crate::reads) has the ways in which many blocks are checked at once, and read.
//!
//! All files are opened below one folder, which stays open, and each data file is opened once. So reads, maps and flags
//! are about the same bytes, also when another checkpoint has taken the path.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::manifest::{DataFile, Manifest, PartRecord, SmallFile};
use super::recorded::RecordedBlob;
use crate::bytes::checksum::Crc32c;
use crate::bytes::limits::work_space;
use crate::error::{Error, Result};
use crate::formats::SummedFile;
use crate::monitor::Monitor;
use crate::reads::{
    BlobRef, BlockTable, CheckFor, Checked, Checks, Checksum, Extent, Part, ReadOptions, Words, check_ahead,
    fill,
};
use crate::store::{
    Blob, ByteRange, FETCH_LEN_MAX_BYTES, Located, ReadPath, Scratch, Span, Store, resolve_range,
};

/// Largest block of which a record may speak.
const BLOCK_LEN_MAX_BYTES: u64 = 1 << 30;

/// Files that are checked as a whole are read in pieces of this length.
const CHECKED_LEN_BYTES: u64 = 1 << 20;

/// What is said of a block that fails.
const WORDS: Words = Words {
    what: |_, block| format!("block {block} of a data file fails its crc32c"),
    help: "copy the file again, or load the other leaves",
    help_if_zeros: HELP_IF_ZEROS,
};

const HELP_IF_ZEROS: &str =
    "the block is all zeros, as after an interrupted copy; copy the file again, or load the other leaves";

/// A folder whose files are checked on reading.
#[derive(Debug, Clone)]
pub struct CheckedStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: Arc<dyn Store>,
    files: Vec<CheckedFile>,
    small_files: Vec<CheckedSmallFile>,
    parts: Vec<RecordedPart>,
    /// Whether data files of another length than recorded are read, as far as they go.
    takes_any_length: bool,
}

/// What one process has written: read when one of its files is wanted.
#[derive(Debug)]
struct RecordedPart {
    record: PartRecord,
    files: OnceLock<Vec<CheckedFile>>,
}

/// A data file: what is recorded of it, and what is known by now.
#[derive(Debug)]
struct CheckedFile {
    record: DataFile,
    /// The file itself, for reads and for the map.
    blob: RecordedBlob,
    blocks: BlockTable,
    /// Whether the bytes before the blocks are what was written.
    has_head_passed: AtomicBool,
}

/// The files of these records, none of which is opened yet.
fn checked_files(
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
                "regrow.json has not one checksum for each block of {}",
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

/// A file that is checked as a whole.
#[derive(Debug)]
struct CheckedSmallFile {
    record: SmallFile,
    /// The file itself, once it has been found to be what was written.
    passed: OnceLock<Arc<dyn Blob>>,
}

impl CheckedFile {
    fn checked(&self) -> Checked<'_> {
        Checked { blob: &self.blob, table: &self.blocks }
    }
}

impl CheckedStore {
    /// The folder of `base`, with the files that the records describe.
    ///
    /// # Errors
    /// `Corrupt` if a record contradicts itself.
    pub fn new(
        base: Arc<dyn Store>,
        records: Vec<DataFile>,
        small_files: Vec<SmallFile>,
        parts: Vec<PartRecord>,
        takes_any_length: bool,
    ) -> Result<Self> {
        let files = checked_files(&base, records, takes_any_length)?;
        let small_files = small_files.into_iter();
        let small_files =
            small_files.map(|record| CheckedSmallFile { record, passed: OnceLock::new() }).collect();
        let parts = parts.into_iter().map(|record| RecordedPart { record, files: OnceLock::new() }).collect();
        Ok(Self(Arc::new(Inner { base, files, small_files, parts, takes_any_length })))
    }

    /// The files that a process has written, by its record of them.
    fn files_of<'a>(&'a self, part: &'a RecordedPart) -> Result<&'a [CheckedFile]> {
        if let Some(files) = part.files.get() {
            return Ok(files);
        }
        let manifest = self.manifest_of(&part.record)?;
        let named: Vec<&String> = manifest.data_files.iter().map(|file| &file.name).collect();
        let place = || self.0.base.describe(part.record.file.name.as_bytes());
        if named != part.record.data_files.iter().collect::<Vec<_>>() {
            return Err(Error::corrupt("a part and regrow.json differ in the data files of a process")
                .in_file(place())
                .expected(format_args!("{:?}", part.record.data_files), format_args!("{named:?}")));
        }
        let files = checked_files(&self.0.base, manifest.data_files, self.0.takes_any_length);
        let files = files.map_err(|error| error.in_file(place()))?;
        Ok(part.files.get_or_init(|| files))
    }

    /// The record of a process, read and checked.
    ///
    /// # Errors
    /// `Corrupt` if it is not the one that was written, or cannot be read; what the disk says.
    pub(super) fn manifest_of(&self, part: &PartRecord) -> Result<Manifest> {
        let bytes = self.read_whole(&part.file)?;
        let parsed = Manifest::parse(&bytes).and_then(|manifest| manifest.check_names().map(|()| manifest));
        parsed.map_err(|error| error.in_file(self.0.base.describe(part.file.name.as_bytes())))
    }

    /// What is recorded of each data file, but for those of parts.
    pub fn records(&self) -> impl Iterator<Item = &DataFile> {
        self.0.files.iter().map(|file| &file.record)
    }

    /// The records of processes.
    pub(super) fn parts(&self) -> impl Iterator<Item = &PartRecord> {
        self.0.parts.iter().map(|part| &part.record)
    }

    /// What is recorded of each file that is checked as a whole, but for the records of processes.
    pub(super) fn small_records(&self) -> impl Iterator<Item = &SmallFile> {
        self.0.small_files.iter().map(|file| &file.record)
    }

    /// Whether the file of such a record is what was written.
    ///
    /// # Errors
    /// What the storage says.
    pub(super) fn is_whole(&self, record: &SmallFile) -> Result<bool> {
        Ok(self.open_checked(record)?.is_ok())
    }

    /// All files that are recorded, and what each block of them should be. Those of a process whose record is damaged are
    /// left out.
    ///
    /// # Errors
    /// `Corrupt` if a record contradicts itself.
    pub(super) fn summed_files(&self) -> Result<Vec<SummedFile>> {
        let mut files = Vec::new();
        for record in
            self.0.small_files.iter().map(|file| &file.record).chain(self.parts().map(|part| &part.file))
        {
            // Of these nothing tells good bytes from others.
            if !record.says_nothing() {
                files.push(summed_whole(record)?);
            }
        }
        for record in self.0.files.iter().map(|file| &file.record) {
            files.push(summed_in_blocks(record)?);
        }
        for part in &self.0.parts {
            for file in self.files_of(part).unwrap_or_default() {
                files.push(summed_in_blocks(&file.record)?);
            }
        }
        Ok(files)
    }

    /// All of a file that is checked as a whole.
    ///
    /// # Errors
    /// `Corrupt` if it is not what was written; what the storage says.
    pub(super) fn read_whole(&self, record: &SmallFile) -> Result<Vec<u8>> {
        let blob = self.open_checked(record)??;
        let mut bytes = work_space(record.len_bytes)?;
        blob.read(0, &mut bytes, ReadPath::Cached)?;
        Ok(bytes)
    }

    /// A range of a data file, which lies behind its head.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such file.
    pub fn extent(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Extent<'_>> {
        Ok(extent_of(self.file(file)?, offset_bytes, len_bytes))
    }

    /// A range of the data file of that name.
    ///
    /// # Errors
    /// `Corrupt` if nothing is recorded of such a file, or the range leaves it; what reading its part says.
    pub fn extent_named(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> Result<Extent<'_>> {
        let file = self.file_named(key)?.ok_or_else(|| self.unrecorded(key))?;
        let end_bytes = offset_bytes.checked_add(len_bytes);
        if offset_bytes < file.record.data_offset || end_bytes.is_none_or(|end| end > file.record.len_bytes) {
            return Err(Error::corrupt("the database places an array outside its data file")
                .in_file(file.blob.describe())
                .at_byte(offset_bytes));
        }
        Ok(extent_of(file, offset_bytes, len_bytes))
    }

    /// Reads parts of a data file into place, in its order, and checks their blocks.
    ///
    /// # Errors
    /// `Corrupt` with file and offset of a block that fails; what the storage says.
    pub fn fill(&self, file: usize, parts: Vec<Part<'_>>, how: ReadOptions) -> Result<()> {
        let checked = self.file(file)?.checked();
        let wanted = parts.into_iter().map(|part| (checked, 0..0, part));
        fill(wanted, how, None, |_, error| error)
    }

    /// Of data files that are read whatever their length: those that have another one than recorded, or are gone.
    ///
    /// # Errors
    /// What the storage says.
    pub fn misfits(&self) -> Result<Vec<Error>> {
        let mut found = Vec::new();
        if !self.0.takes_any_length {
            return Ok(found);
        }
        let own = [self.0.files.as_slice()].into_iter();
        let of_parts = self.0.parts.iter().map(|part| self.files_of(part).unwrap_or_default());
        for file in own.chain(of_parts).flatten() {
            let len_bytes = self.0.base.len_bytes(file.record.name.as_bytes())?;
            found.extend(file.blob.misfit(len_bytes));
        }
        Ok(found)
    }

    /// Checks what every data file has before its blocks: what fails.
    pub fn check_heads(&self) -> Vec<Error> {
        let mut found = Vec::new();
        let heads = |files: &[CheckedFile], found: &mut Vec<Error>| {
            found.extend(files.iter().filter_map(|file| check_head(file).err()));
        };
        heads(&self.0.files, &mut found);
        for part in &self.0.parts {
            match self.files_of(part) {
                Ok(files) => heads(files, &mut found),
                Err(error) => found.push(error),
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
        let file = self.file_named(record.name.as_bytes()).ok()??;
        file.blob.opened().ok().cloned()
    }

    fn file(&self, file: usize) -> Result<&CheckedFile> {
        self.0.files.get(file).ok_or_else(|| Error::invalid("no such data file"))
    }

    /// Reads all of the data file of a record, past the page cache where that lacks it, and checks it.
    ///
    /// # Errors
    /// `Corrupt` with file and offset of what fails; what the storage says; `Cancelled`.
    pub(super) fn check_data_file(&self, record: &DataFile, monitor: &Monitor) -> Result<()> {
        let key = record.name.as_bytes();
        let file = self.file_named(key)?.ok_or_else(|| self.unrecorded(key))?;
        check_head(file)?;
        let range = record.data_offset..record.len_bytes;
        check_ahead([(file.checked(), range.clone(), 0..0)], CheckFor::Verify, None)?;
        monitor.check()?;
        file.checked().check(range.start, range.end, CheckFor::Verify)
    }

    /// Bytes of a data file, read into memory and checked.
    fn read_checked(&self, file: &CheckedFile, part: Range<u64>) -> Result<Bytes> {
        let mut bytes = work_space(part.end - part.start)?;
        let head_len = file.record.data_offset.saturating_sub(part.start).min(part.end - part.start);
        if head_len > 0 {
            check_head(file)?;
            let head = bytes.get_mut(..head_len as usize).unwrap_or_default();
            file.blob.read(part.start, head, ReadPath::Cached)?;
        }
        let offset_bytes = part.start.max(file.record.data_offset);
        let out = bytes.get_mut(head_len as usize..).unwrap_or_default();
        if !out.is_empty() {
            let how = ReadOptions { verified: true, direct: false };
            let part = Part { offset_bytes, out, leaf: 0 };
            fill([(file.checked(), 0..0, part)], how, None, |_, error| error)?;
        }
        Ok(bytes.into())
    }

    /// The data file of that name, if it is one; what its part says is read first.
    fn file_named(&self, key: &[u8]) -> Result<Option<&CheckedFile>> {
        let has_name = |file: &&CheckedFile| file.record.name.as_bytes() == key;
        if let Some(file) = self.0.files.iter().find(has_name) {
            return Ok(Some(file));
        }
        let names = |part: &&RecordedPart| part.record.data_files.iter().any(|name| name.as_bytes() == key);
        match self.0.parts.iter().find(names) {
            Some(part) => Ok(self.files_of(part)?.iter().find(has_name)),
            None => Ok(None),
        }
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

/// A file under one checksum.
fn summed_whole(record: &SmallFile) -> Result<SummedFile> {
    let len_bytes = record.len_bytes;
    let digest = record.blake3.as_deref().and_then(|digest| blake3::Hash::from_hex(digest).ok());
    let table = match digest {
        _ if len_bytes == 0 => None,
        Some(digest) => Some(BlockTable::of_digests(0..len_bytes, len_bytes, vec![digest], WORDS)?),
        None => Some(BlockTable::new(0..len_bytes, len_bytes, Checksum::Crc32c, vec![record.crc32c], WORDS)?),
    };
    Ok(SummedFile { name: record.name.clone(), len_bytes, tables: table.into_iter().collect() })
}

/// A data file: its header under one checksum, then its blocks.
fn summed_in_blocks(record: &DataFile) -> Result<SummedFile> {
    let (head, len_bytes) = (record.data_offset, record.len_bytes);
    let mut tables = Vec::with_capacity(2);
    if head > 0 {
        tables.push(BlockTable::new(0..head, head, Checksum::Crc32c, vec![record.head_crc32c], WORDS)?);
    }
    let expected = record.block_crc32c.clone();
    tables.push(BlockTable::new(head..len_bytes, record.block_len_bytes, Checksum::Crc32c, expected, WORDS)?);
    Ok(SummedFile { name: record.name.clone(), len_bytes, tables })
}

/// The end of a piece that begins at `at`: where a block ends, so that none is checked twice.
fn piece_end(record: &DataFile, at: u64) -> u64 {
    let Some(from) = at.checked_sub(record.data_offset) else { return record.data_offset };
    let block_len = record.block_len_bytes.max(1);
    let blocks = from / block_len + (CHECKED_LEN_BYTES / block_len).max(1);
    record.data_offset.saturating_add(blocks.saturating_mul(block_len))
}

fn extent_of(file: &CheckedFile, offset_bytes: u64, len_bytes: u64) -> Extent<'_> {
    let end_bytes = offset_bytes.saturating_add(len_bytes);
    Extent {
        blob: BlobRef::Kept(&file.blob),
        offset_bytes,
        len_bytes,
        checks: Some(Checks { table: &file.blocks, start_bytes: offset_bytes, end_bytes }),
        is_viewable: true,
        working_len_bytes: None,
    }
}

/// Checks the bytes before the blocks of a data file, once.
fn check_head(file: &CheckedFile) -> Result<()> {
    let head_len = file.record.data_offset;
    if head_len == 0 || file.has_head_passed.load(Ordering::Acquire) {
        return Ok(());
    }
    // Not through the map, which faults where the file was cut.
    let (mut sum, mut is_zeros, mut at) = (Crc32c::new(), true, 0);
    let mut scratch = Scratch::default();
    while at < head_len {
        let len = (head_len - at).min(FETCH_LEN_MAX_BYTES);
        let bytes = file.blob.fetch(at, len as usize, ReadPath::Cached, &mut scratch)?;
        sum.update(bytes);
        is_zeros &= bytes.iter().all(|&byte| byte == 0);
        at += len;
    }
    let (expected, found) = (file.record.head_crc32c, sum.value());
    if found != expected {
        return Err(Error::corrupt("the header of a data file fails its crc32c")
            .in_file(file.blob.describe())
            .at_byte(0)
            .expected(format_args!("{expected:08x}"), format_args!("{found:08x}"))
            .help(if is_zeros { HELP_IF_ZEROS } else { WORDS.help }));
    }
    file.has_head_passed.store(true, Ordering::Release);
    Ok(())
}

impl Store for CheckedStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        if let Some(file) = self.file_named(key)? {
            let part = resolve_range(range, file.record.len_bytes)
                .map_err(|error| error.in_file(file.blob.describe()))?;
            // Not a part of the map, which would fault where the file is cut while somebody decodes it.
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

    /// A long chunk is decoded as its pieces come in, each checked: it takes no memory.
    fn stream(
        &self,
        key: &[u8],
        range: ByteRange,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let Some(file) = self.file_named(key)? else {
            return match self.get(key, range)? {
                Some(bytes) => each(&bytes).map(|()| true),
                None => Ok(false),
            };
        };
        let Range { start: mut at, end } = resolve_range(range, file.record.len_bytes)
            .map_err(|error| error.in_file(file.blob.describe()))?;
        while at < end {
            let piece_end = piece_end(&file.record, at).min(end);
            each(&self.read_checked(file, at..piece_end)?)?;
            at = piece_end;
        }
        Ok(true)
    }

    fn put(&self, key: &[u8], _value: Bytes) -> Result<()> {
        Err(Error::unsupported("an opened checkpoint is read only").in_file(self.describe(key)))
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Err(Error::unsupported("an opened checkpoint is read only").in_file(self.describe(key)))
    }

    /// Those that are recorded.
    fn list(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        let of_parts = self.0.parts.iter().flat_map(|part| &part.record.data_files);
        let data_files = self.0.files.iter().map(|file| &file.record.name).chain(of_parts);
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
