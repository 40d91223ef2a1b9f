//! The files of one checkpoint, each checked against its record before a reader returns its first
//! byte.
//!
//! | file | is checked | by |
//! |---|---|---|
//! | data file | a block at a time, when a byte of the block is needed | the block's CRC-32C |
//! | any other file in the records of `regrow.json` | as a whole, when a byte of it is needed | its BLAKE3 |
//! | a file without a record | is refused: it belongs to another checkpoint or program | |
//!
//! A view of a map needs no copy. The first reader of a mapped block checks the block, and sets its
//! flag. Bytes that are read into the caller's memory are checked there at each read, because they
//! have just come from the disk. [`reads`](regrow_store::reads) reads and checks many blocks at
//! once.
//!
//! All files are opened below one folder, which stays open, and each data file is opened once. So
//! reads, maps and flags are for the same bytes, even if another checkpoint has replaced the folder
//! at its path.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::data_file::{CheckedFile, checked_files};
use super::manifest::{DataFile, Manifest, PartRecord, SmallFile};
use super::small_file::{CheckedSmallFile, open_whole, summed_whole};
use crate::SummedFile;
use regrow_base::bytes::limits::work_space;
use regrow_base::error::{Error, Result};
use regrow_base::monitor::Monitor;
use regrow_store::reads::{Extent, Part, ReadOptions, fill};
use regrow_store::{
    Blob, ByteRange, Located, ReadOnly, ReadPath, Span, Store, StoreCapabilities, resolve_range,
};

/// A folder whose files are checked on reading.
#[derive(Debug, Clone)]
pub struct CheckedStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: Arc<dyn Store>,
    files: Vec<CheckedFile>,
    small_files: Vec<CheckedSmallFile>,
    parts: Vec<RecordedPart>,
    /// Whether data files whose length differs from their record are read, as far as they go.
    takes_any_length: bool,
}

/// The files of one process. The record is read when one of these files is needed.
#[derive(Debug)]
struct RecordedPart {
    record: PartRecord,
    files: OnceLock<Vec<CheckedFile>>,
}

impl CheckedStore {
    /// A store over the folder `base`, with the files that the records describe.
    pub fn new(
        base: Arc<dyn Store>,
        records: Vec<DataFile>,
        small_files: Vec<SmallFile>,
        parts: Vec<PartRecord>,
        takes_any_length: bool,
    ) -> Result<Self> {
        let files = checked_files(&base, records, takes_any_length)?;
        let small_files = small_files.into_iter().map(CheckedSmallFile::new).collect();
        let parts = parts.into_iter().map(|record| RecordedPart { record, files: OnceLock::new() }).collect();
        Ok(Self(Arc::new(Inner { base, files, small_files, parts, takes_any_length })))
    }

    /// The files of a process, from its record, which is read at the first call.
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

    pub(super) fn manifest_of(&self, part: &PartRecord) -> Result<Manifest> {
        let bytes = self.read_whole(&part.file)?;
        let parsed = Manifest::parse(&bytes).and_then(|manifest| manifest.check_names().map(|()| manifest));
        parsed.map_err(|error| error.in_file(self.0.base.describe(part.file.name.as_bytes())))
    }

    /// The records of the data files, without the data files of parts.
    pub fn records(&self) -> impl Iterator<Item = &DataFile> {
        self.0.files.iter().map(|file| &file.record)
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &PartRecord> {
        self.0.parts.iter().map(|part| &part.record)
    }

    /// The records of the files that are checked as a whole, without the records of processes.
    pub(super) fn small_records(&self) -> impl Iterator<Item = &SmallFile> {
        self.0.small_files.iter().map(|file| &file.record)
    }

    pub(super) fn is_whole(&self, record: &SmallFile) -> Result<bool> {
        Ok(open_whole(&*self.0.base, record)?.is_ok())
    }

    /// All recorded files, with the checksum of each block. Leaves out the files of a process whose
    /// record is damaged.
    pub(super) fn summed_files(&self) -> Result<Vec<SummedFile>> {
        let mut files = Vec::new();
        for record in
            self.0.small_files.iter().map(|file| &file.record).chain(self.parts().map(|part| &part.file))
        {
            // A record that says nothing cannot tell good bytes from damaged bytes.
            if !record.says_nothing() {
                files.push(summed_whole(record)?);
            }
        }
        for file in &self.0.files {
            files.push(file.summed()?);
        }
        for part in &self.0.parts {
            for file in self.files_of(part).unwrap_or_default() {
                files.push(file.summed()?);
            }
        }
        Ok(files)
    }

    pub(super) fn read_whole(&self, record: &SmallFile) -> Result<Vec<u8>> {
        let blob = open_whole(&*self.0.base, record)??;
        let mut bytes = work_space(record.len_bytes)?;
        blob.read(0, &mut bytes, ReadPath::Cached)?;
        Ok(bytes)
    }

    /// A range of a data file, after the file's header.
    pub fn extent(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Extent<'_>> {
        Ok(self.file(file)?.extent(offset_bytes, len_bytes))
    }

    /// A range of the data file with this name.
    ///
    /// # Errors
    /// `Corrupt` if the file has no record, or the range ends beyond it; errors of reading the
    /// record of its process.
    pub fn extent_named(&self, key: &[u8], offset_bytes: u64, len_bytes: u64) -> Result<Extent<'_>> {
        let file = self.file_named(key)?.ok_or_else(|| self.unrecorded(key))?;
        let end_bytes = offset_bytes.checked_add(len_bytes);
        if offset_bytes < file.record.data_offset || end_bytes.is_none_or(|end| end > file.record.len_bytes) {
            return Err(Error::corrupt("the database places an array outside its data file")
                .in_file(file.blob.describe())
                .at_byte(offset_bytes));
        }
        Ok(file.extent(offset_bytes, len_bytes))
    }

    /// Reads parts of a data file into memory, in file order, and checks their blocks.
    pub fn fill(&self, file: usize, parts: Vec<Part<'_>>, how: ReadOptions) -> Result<()> {
        let checked = self.file(file)?.checked();
        let wanted = parts.into_iter().map(|part| (checked, 0..0, part));
        fill(wanted, how, None, |_, error| error)
    }

    /// The errors of data files that are missing or whose length differs from their record. Empty
    /// unless the store reads data files of any length.
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

    /// Checks the header of every data file, and returns the errors.
    pub fn check_heads(&self) -> Vec<Error> {
        let mut found = Vec::new();
        let heads = |files: &[CheckedFile], found: &mut Vec<Error>| {
            found.extend(files.iter().filter_map(|file| file.check_head().err()));
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

    /// Checks again every file that is checked as a whole, and returns the errors.
    pub fn check_small_files(&self) -> Result<Vec<Error>> {
        let mut found = Vec::new();
        for file in &self.0.small_files {
            if let Err(error) = open_whole(&*self.0.base, &file.record)? {
                found.push(error);
            }
        }
        Ok(found)
    }

    /// Records that prove nothing about the bytes of their files: older checkpoints have these for
    /// the database.
    pub fn empty_records(&self) -> impl Iterator<Item = &SmallFile> {
        self.0.small_files.iter().map(|file| &file.record).filter(|record| record.says_nothing())
    }

    /// The data file of a record; `None` if it is missing or has another length than recorded.
    pub(super) fn data_file(&self, record: &DataFile) -> Option<Arc<dyn Blob>> {
        let file = self.file_named(record.name.as_bytes()).ok()??;
        file.blob.opened().ok().cloned()
    }

    fn file(&self, file: usize) -> Result<&CheckedFile> {
        self.0.files.get(file).ok_or_else(|| Error::invalid("no such data file"))
    }

    /// Reads the whole data file of a record and checks it. Bytes that are not in the page cache
    /// are read without adding them to the cache.
    pub(super) fn check_data_file(&self, record: &DataFile, monitor: &Monitor) -> Result<()> {
        let key = record.name.as_bytes();
        self.file_named(key)?.ok_or_else(|| self.unrecorded(key))?.check(monitor)
    }

    /// The data file with this name; `None` if there is none. Reads the record of its process
    /// first.
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

    fn unrecorded(&self, key: &[u8]) -> Error {
        Error::corrupt("regrow.json does not record a file that the checkpoint refers to")
            .in_file(self.0.base.describe(key))
            .help("the file belongs to another checkpoint: copy the checkpoint again")
    }
}

impl Store for CheckedStore {
    fn get(&self, key: &[u8], range: ByteRange) -> Result<Option<Bytes>> {
        if let Some(file) = self.file_named(key)? {
            let part = resolve_range(range, file.record.len_bytes)
                .map_err(|error| error.in_file(file.blob.describe()))?;
            // Read instead of mapping: a map would fault if the file is truncated during decoding.
            return file.read(part).map(Some);
        }
        if let Some(file) = self.small_file_named(key) {
            let file = file.opened(&*self.0.base)?;
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

    /// Decodes a long chunk piece by piece. Each piece is checked first, and the whole chunk is
    /// never in memory.
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
        let part = resolve_range(range, file.record.len_bytes)
            .map_err(|error| error.in_file(file.blob.describe()))?;
        file.read_in_pieces(part, each).map(|()| true)
    }

    /// Lists the recorded files, without looking at the folder.
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

    fn capabilities(&self) -> StoreCapabilities<'_> {
        StoreCapabilities { writes: Err(ReadOnly::OPEN), maps: None, versions: None }
    }
}
