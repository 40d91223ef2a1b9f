//! Reads the bytes of a leaf: a slice of a file, or a compressed member of an archive.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::record::Record;
use super::zip::{BAD_CRC, BAD_CRC_HELP, Crc32, Inflater, Method, bad_crc};
use regrow_base::bytes::limits::allocate;
use regrow_base::error::{Error, Result, ResultExt};
use regrow_store::reads::{
    BlobRef, BlockTable, Checks, Checksum, Coded, Extent, KeyedBlob, Seal, Source, Unreadable, Words,
};
use regrow_store::{ByteRange, Store, StoreExt};
use regrow_tree::array::Region;

const WORDS: Words =
    Words { what: |_, _| BAD_CRC.to_owned(), help: BAD_CRC_HELP, help_if_zeros: BAD_CRC_HELP };

/// A leaf's data on disk.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub file: usize,
    /// The offset of the stored bytes in the file. They are header and data, perhaps deflated.
    pub offset_bytes: u64,
    pub stored_len_bytes: u64,
    pub method: Method,
    /// The checksum of header and data, in archives.
    pub crc32: Option<u32>,
    /// Length of header and data, unpacked. A single file may have more bytes after them, if it was
    /// opened with `arrays_only`.
    pub len_bytes: u64,
    pub data_at: u64,
    pub record: Record,
}

impl Stored {
    /// Whether the file has the elements as they are in memory.
    pub fn is_raw(&self) -> bool {
        self.method != Method::Deflated && self.record.is_raw()
    }

    fn range(&self) -> ByteRange {
        ByteRange::Span { offset_bytes: self.offset_bytes, len_bytes: self.stored_len_bytes }
    }

    /// The whole member as one block, if the file has its elements as they are in memory and a
    /// checksum.
    pub fn block(&self) -> Result<Option<BlockTable>> {
        let Some(crc32) = self.crc32.filter(|_| self.is_raw() && self.stored_len_bytes > 0) else {
            return Ok(None);
        };
        let range = self.offset_bytes..self.offset_bytes.saturating_add(self.stored_len_bytes);
        BlockTable::new(range, self.stored_len_bytes, Checksum::Crc32, vec![crc32], WORDS).map(Some)
    }
}

/// The files of a checkpoint.
#[derive(Debug)]
pub(super) struct Files {
    store: Arc<dyn Store>,
    files: Vec<DataFile>,
    /// The member that was unpacked last, so that a front-to-back read of an array unpacks it only
    /// once.
    unpacking: Mutex<Option<Unpacking>>,
    /// For each leaf, whether its member has passed its CRC-32. The check runs when a part of the
    /// leaf is first requested.
    has_passed: Vec<Mutex<bool>>,
    /// For each leaf, its member as one block.
    blocks: Vec<Option<BlockTable>>,
}

/// A deflated member, with the state of its decoder.
#[derive(Debug)]
struct Unpacking {
    leaf: usize,
    inflater: Inflater,
    deflated: Bytes,
}

#[derive(Debug)]
struct DataFile {
    key: Vec<u8>,
    /// Length of the file when it was opened.
    len_bytes: u64,
    blob: KeyedBlob,
}

impl Files {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            files: Vec::new(),
            unpacking: Mutex::new(None),
            has_passed: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Adds the leaves of the files, so that [`check_once`](Self::check_once) checks each leaf
    /// once.
    pub fn for_leaves(mut self, leaves: &[Option<Stored>]) -> Result<Self> {
        self.has_passed.resize_with(leaves.len(), Mutex::default);
        let block = |stored: &Option<Stored>| stored.as_ref().map_or(Ok(None), Stored::block);
        self.blocks = leaves.iter().map(block).collect::<Result<_>>()?;
        Ok(self)
    }

    /// Adds a file, and returns its number and length.
    pub fn add(&mut self, key: &[u8]) -> Result<(usize, u64)> {
        let len_bytes = self.store.len_bytes(key)?.ok_or_else(|| {
            Error::corrupt("a file is missing")
                .in_file(self.store.describe(key))
                .help("copy the whole checkpoint again")
        })?;
        let blob = KeyedBlob::new(self.store.clone(), key, len_bytes, has_changed);
        self.files.push(DataFile { key: key.to_owned(), len_bytes, blob });
        Ok((self.files.len() - 1, len_bytes))
    }

    pub fn describe(&self, file: usize) -> std::path::PathBuf {
        self.store.describe(self.files.get(file).map_or(&[], |file| &file.key))
    }

    pub fn read(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let data_file = self.file(file)?;
        let range = ByteRange::Span { offset_bytes, len_bytes };
        self.store.get(&data_file.key, range)?.ok_or_else(|| self.changed(file))
    }

    fn read_into(&self, file: usize, offset_bytes: u64, out: &mut [u8]) -> Result<()> {
        self.store.read_into(&self.file(file)?.key, offset_bytes, out)
    }

    pub fn source<'r>(&'r self, leaf: usize, stored: &'r Stored) -> Result<Source<'r>> {
        let table = self.blocks.get(leaf).and_then(Option::as_ref);
        let is_checked = stored.crc32.is_some();
        if !stored.is_raw() || is_checked && table.is_none() {
            let seal = is_checked.then(|| Box::new(Member { files: self, leaf: Some(leaf), stored }) as _);
            // One decoder reads a deflated member front to back. So the regions of the member are
            // best read in order.
            let is_deflated = stored.method == Method::Deflated;
            let working_len_bytes = is_deflated.then(|| stored.record.len_bytes().saturating_mul(2));
            return Ok(Source::Coded(Coded { working_len_bytes, seal, span: None }));
        }
        let (start_bytes, end_bytes) =
            (stored.offset_bytes, stored.offset_bytes.saturating_add(stored.stored_len_bytes));
        Ok(Source::Raw(Extent {
            blob: BlobRef::Kept(&self.file(stored.file)?.blob),
            offset_bytes: stored.offset_bytes.saturating_add(stored.data_at),
            len_bytes: stored.record.len_bytes(),
            checks: table.map(|table| Checks { table, start_bytes, end_bytes }),
            is_viewable: true,
            working_len_bytes: None,
        }))
    }

    /// The source of a leaf that cannot be read, with the reason.
    pub fn unreadable<'r>(&'r self, stored: Option<&'r Stored>, why: Error) -> Source<'r> {
        let Some(stored) = stored else { return Source::Unreadable(Unreadable::lost(why)) };
        let seal = Box::new(Member { files: self, leaf: None, stored });
        Source::Unreadable(Unreadable { why: why.in_file(self.describe(stored.file)), seal, is_sound: false })
    }

    fn mapped(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Option<Bytes>> {
        let data_file = self.file(file)?;
        let Some(map) = self.store.map(&data_file.key)? else { return Ok(None) };
        // A map of a file that has shrunk since it was opened would fault beyond its end.
        if self.store.len_bytes(&data_file.key)? != Some(data_file.len_bytes) {
            return Err(self.changed(file));
        }
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= map.len() as u64 => Ok(Some(map.slice(offset_bytes as usize..end as usize))),
            _ => Err(self.changed(file)),
        }
    }

    /// A slice of the file's map, or a copy if there is no map.
    fn slice(&self, file: usize, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        match self.mapped(file, offset_bytes, len_bytes)? {
            Some(bytes) => Ok(bytes),
            None => self.read(file, offset_bytes, len_bytes),
        }
    }

    /// Checks a whole member, header and data, against its CRC-32.
    pub fn check(&self, stored: &Stored) -> Result<()> {
        if stored.crc32.is_none() {
            return Ok(());
        }
        match self.mapped(stored.file, stored.offset_bytes, stored.stored_len_bytes)? {
            Some(bytes) => self.check_bytes(stored, &bytes),
            None if stored.method == Method::Deflated => self.check_bytes(stored, &self.member(stored)?),
            // The caller does not need the bytes, so read them in pieces.
            None => {
                let mut crc = Crc32::new();
                let key = &self.file(stored.file)?.key;
                let is_there = self.store.stream(key, stored.range(), &mut |piece| {
                    crc.update(piece);
                    Ok(())
                })?;
                if is_there { self.compare(stored, crc.value()) } else { Err(self.changed(stored.file)) }
            }
        }
    }

    /// Checks the member of a leaf as `check` does, but only once. Call this function before
    /// reading a part: neither the part nor the header can be checked without the rest.
    pub fn check_once(&self, leaf: usize, stored: &Stored) -> Result<()> {
        let Some(has_passed) = self.has_passed.get(leaf) else { return self.check(stored) };
        // A thread that needs another part of the same member waits for this check.
        let mut has_passed = has_passed.lock().unwrap_or_else(PoisonError::into_inner);
        if !*has_passed {
            self.check(stored)?;
            *has_passed = true;
        }
        Ok(())
    }

    fn check_bytes(&self, stored: &Stored, bytes: &[u8]) -> Result<()> {
        if stored.method == Method::Deflated {
            let checked = Inflater::new(stored.len_bytes, stored.crc32.unwrap_or_default())
                .skip_to(bytes, stored.len_bytes);
            return checked
                .map_err(|error| error.shift(stored.offset_bytes))
                .in_file(self.describe(stored.file));
        }
        let mut crc = Crc32::new();
        crc.update(bytes);
        self.compare(stored, crc.value())
    }

    /// Returns an error if the computed checksum `found` is not the checksum in the archive.
    fn compare(&self, stored: &Stored, found: u32) -> Result<()> {
        match stored.crc32.filter(|&expected| expected != found) {
            Some(expected) => {
                Err(bad_crc(expected, found).at_byte(stored.offset_bytes)).in_file(self.describe(stored.file))
            }
            None => Ok(()),
        }
    }

    fn member(&self, stored: &Stored) -> Result<Bytes> {
        self.read(stored.file, stored.offset_bytes, stored.stored_len_bytes)
    }

    /// Reads a region of the leaf, in C order and little endian. A stored member is checked against
    /// its CRC-32 first. A deflated member is checked when its last byte is unpacked, so a read of
    /// all parts, front to back, unpacks it once. To read only a part, call
    /// [`check_once`](Self::check_once) first.
    ///
    /// # Errors
    /// `Corrupt`; `InvalidArgument` if the region leaves the array.
    pub fn read_region(&self, leaf: usize, stored: &Stored, region: &Region, out: &mut [u8]) -> Result<()> {
        let record = &stored.record;
        if !region.is_inside(&record.shape) || region.shape().len_bytes(record.dtype)? != out.len() as u64 {
            return Err(Error::invalid(
                "the region is outside the array, or the destination has another \
                size",
            )
            .expected(&record.shape, region));
        }
        if stored.method == Method::Deflated {
            let deflated = self.deflated(leaf, stored)?;
            return self
                .unpack_region(leaf, stored, deflated, region, out)
                .map_err(|error| error.shift(stored.offset_bytes))
                .in_file(self.describe(stored.file));
        }
        let checked = match region == &Region::whole(&record.shape) {
            true => self.checked(stored)?,
            false => self.check_once(leaf, stored).map(|()| None)?,
        };
        let run = region.contiguous_bytes(&record.shape, record.dtype).filter(|_| record.is_c_order());
        match (checked, run) {
            _ if region.is_empty() => {}
            (Some(data), _) => record.copy_region(data, region, out)?,
            (None, Some((start, len_bytes))) => {
                let at = stored.offset_bytes + stored.data_at + start;
                let out = out.get_mut(..len_bytes as usize).unwrap_or_default();
                self.read_into(stored.file, at, out)?;
                record.to_little_endian(out);
            }
            (None, None) => record.copy_region(self.data(stored)?, region, out)?,
        }
        Ok(())
    }

    /// Checks a stored member. Returns its data if the check had to read it.
    fn checked(&self, stored: &Stored) -> Result<Option<Bytes>> {
        if stored.crc32.is_none() {
            return Ok(None);
        }
        if let Some(bytes) = self.mapped(stored.file, stored.offset_bytes, stored.stored_len_bytes)? {
            return self.check_bytes(stored, &bytes).map(|()| None);
        }
        let bytes = self.member(stored)?;
        self.check_bytes(stored, &bytes)?;
        let data = stored.data_at as usize..(stored.data_at + stored.record.len_bytes()) as usize;
        Ok(Some(bytes.slice(data)))
    }

    fn data(&self, stored: &Stored) -> Result<Bytes> {
        self.slice(stored.file, stored.offset_bytes + stored.data_at, stored.record.len_bytes())
    }

    fn unpack_region(
        &self,
        leaf: usize,
        stored: &Stored,
        deflated: Bytes,
        region: &Region,
        out: &mut [u8],
    ) -> Result<()> {
        let record = &stored.record;
        let crc32 = stored.crc32.unwrap_or_default();
        if !record.is_c_order() {
            let mut inflater = Inflater::new(stored.len_bytes, crc32);
            inflater.skip_to(&deflated, stored.data_at)?;
            let mut data = allocate(record.len_bytes())?;
            inflater.read(&deflated, &mut data)?;
            return record.copy_region(data.into(), region, out);
        }
        let mut inflater = None;
        region.for_each_run(&record.shape, record.dtype, |start, place, len| {
            let at = stored.data_at + start;
            let now = inflater.get_or_insert_with(|| self.inflater(leaf, at, stored.len_bytes, crc32));
            now.skip_to(&deflated, at)?;
            let piece = out.get_mut(place..place.saturating_add(len)).unwrap_or_default();
            now.read(&deflated, piece)?;
            record.to_little_endian(piece);
            Ok(())
        })?;
        if let Some(inflater) = inflater.filter(|inflater| !inflater.is_done()) {
            *self.unpacking.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Unpacking { leaf, inflater, deflated: deflated.clone() });
        }
        if region == &Region::whole(&record.shape) && region.is_empty() {
            // The region is empty, but the checksum must still be checked.
            Inflater::new(stored.len_bytes, crc32).skip_to(&deflated, stored.len_bytes)?;
        }
        Ok(())
    }

    /// The stored bytes of a deflated member. Without a map, the bytes of the current member are
    /// read only once.
    fn deflated(&self, leaf: usize, stored: &Stored) -> Result<Bytes> {
        if let Some(bytes) = self.mapped(stored.file, stored.offset_bytes, stored.stored_len_bytes)? {
            return Ok(bytes);
        }
        let kept = self.unpacking.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = kept.as_ref().filter(|kept| kept.leaf == leaf).map(|kept| kept.deflated.clone());
        drop(kept);
        bytes.map_or_else(|| self.member(stored), Ok)
    }

    /// The kept decoder if it has not passed `to`, otherwise a new one.
    fn inflater(&self, leaf: usize, to: u64, len_bytes: u64, crc32: u32) -> Inflater {
        let mut kept = self.unpacking.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.take_if(|kept| kept.leaf == leaf && kept.inflater.at() <= to) {
            Some(kept) => kept.inflater,
            None => Inflater::new(len_bytes, crc32),
        }
    }

    fn file(&self, file: usize) -> Result<&DataFile> {
        self.files.get(file).ok_or_else(|| Error::invalid("the file does not exist"))
    }

    fn changed(&self, file: usize) -> Error {
        has_changed().in_file(self.describe(file))
    }
}

/// A member with one checksum over all its bytes.
#[derive(Debug)]
struct Member<'r> {
    files: &'r Files,
    /// The number of its leaf, if parts of the leaf may be read.
    leaf: Option<usize>,
    stored: &'r Stored,
}

impl Seal for Member<'_> {
    fn check(&self) -> Result<()> {
        match self.leaf {
            Some(leaf) => self.files.check_once(leaf, self.stored),
            None => self.files.check(self.stored),
        }
    }
}

fn has_changed() -> Error {
    Error::corrupt("a file changed after it was opened").help("open the checkpoint again")
}
