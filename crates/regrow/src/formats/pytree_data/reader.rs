//! A manifest and its data as a checkpoint.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::check::check_ranges;
use super::files::Files;
use super::manifest::{BLOCK_LEN_BYTES, Entry, MANIFEST_LEN_MAX_BYTES, Manifest};
use super::paths::about;
use super::tree::{Placed, check_paths, place};
use crate::array::{Region, copy_region};
use crate::bytes::checksum::{Crc32c, crc32c};
use crate::bytes::glance::Language;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::formats::npy::descr::Descr;
use crate::formats::{Description, Reader};
use crate::location::Location;
use crate::monitor::{Monitor, Stage};
use crate::store::{Access, ByteRange, Store, advise};
use crate::threads::pool;
use crate::tree::{LeafInfo, LeafKind, Tree};

/// Bytes that are read at once: they are checked while the processor's cache has them.
const PIECE_LEN_BYTES: usize = 256 << 10;

/// An opened manifest, with its data mapped where there are maps.
#[derive(Debug)]
pub(super) struct PytreeDataReader {
    description: Description,
    placed: Placed,
    data: DataFile,
}

/// The data file and what the manifest says of it.
#[derive(Debug)]
pub(super) struct DataFile {
    pub(super) entries: Vec<Entry>,
    store: Arc<dyn Store>,
    name: Vec<u8>,
    /// When it was opened.
    len_bytes: u64,
    /// For each entry, and each of its blocks, whether it has met its checksum.
    passed: Vec<Vec<AtomicBool>>,
}

impl PytreeDataReader {
    /// Reads the manifest and checks all of it against the length of the data file.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`; `NotFound` if the data file is missing.
    pub(super) fn open(files: &Files) -> Result<Self> {
        let (manifest, data) = DataFile::open(files)?;
        let placed = place(&manifest).in_file(&files.manifest)?;
        let has_checksums = manifest.extra.is_some();
        let mut notes = Vec::new();
        if !has_checksums && !data.entries.is_empty() {
            notes.push("the manifest has no checksums: damage to the data goes unseen".to_owned());
        }
        if files.is_unfinished() {
            notes.push(format!(
                "the save was killed before both files had their names; the next save to the same path ends it ({})",
                files.manifest
            ));
        }
        let description = Description {
            layout: "pytree_data".to_owned(),
            variant: match has_checksums {
                true => "data and manifest, with checksums".to_owned(),
                false => "data and manifest".to_owned(),
            },
            notes,
            ..Description::default()
        };
        Ok(Self { description, placed, data })
    }

    fn leaf(&self, leaf: usize) -> Result<(&LeafInfo, usize, &Entry)> {
        let info = self.placed.tree.leaves().get(leaf);
        let at = self.placed.entries.get(leaf).copied().flatten();
        info.zip(at)
            .and_then(|(info, at)| Some((info, at, self.data.entries.get(at)?)))
            .ok_or_else(|| Error::invalid("the leaf has no elements that can be read"))
    }
}

impl DataFile {
    /// Reads and checks the manifest, and opens the data file; nothing of the data is read.
    pub(super) fn open(files: &Files) -> Result<(Manifest, Self)> {
        let manifest = read_manifest(&files.manifest)?;
        check_paths(&manifest).in_file(&files.manifest)?;
        let data = match manifest.extra.as_ref().and_then(|extra| extra.data.as_ref()) {
            Some(name) => files.data_named(name),
            None => files.data.clone(),
        };
        let (store, name) = (data.parent().store(), data.name().as_encoded_bytes().to_vec());
        if name.is_empty() {
            return Err(Error::invalid("the data file has no name").in_file(&data));
        }
        // A file is opened here and held: another writer's data file is another file.
        store.map(&name)?;
        let len_bytes = store.len_bytes(&name)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "the data file of this manifest is missing")
                .in_file(&data)
                .help("a manifest holds no data: copy both files")
        })?;
        check_ranges(&manifest.entries, len_bytes).in_file(&files.manifest)?;
        let passed =
            |entry: &Entry| entry.crc32c.iter().flatten().map(|_| AtomicBool::new(false)).collect::<Vec<_>>();
        let entries = manifest.entries.clone();
        let passed = entries.iter().map(passed).collect();
        Ok((manifest, Self { entries, store, name, len_bytes, passed }))
    }

    /// Where it lies.
    pub(super) fn path(&self) -> PathBuf {
        self.store.describe(&self.name)
    }

    /// A range of the file as a slice of its map; `None` where there are no maps.
    fn mapped(&self, offset_bytes: u64, len_bytes: u64) -> Result<Option<Bytes>> {
        if len_bytes == 0 {
            return Ok(Some(Bytes::new()));
        }
        let Some(map) = self.store.map(&self.name)? else { return Ok(None) };
        // A map of a file that has shrunk since it was opened would fault beyond its end.
        if self.store.len_bytes(&self.name)? != Some(self.len_bytes) {
            return Err(self.changed());
        }
        let end = offset_bytes + len_bytes;
        if end > map.len() as u64 {
            return Err(self.changed());
        }
        Ok(Some(map.slice(offset_bytes as usize..end as usize)))
    }

    /// A range of the file, as a slice of its map where there is one.
    fn stored_bytes(&self, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        match self.mapped(offset_bytes, len_bytes)? {
            Some(bytes) => Ok(bytes),
            None => self.read(offset_bytes, len_bytes),
        }
    }

    fn read(&self, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        let range = ByteRange::Span { offset_bytes, len_bytes };
        self.store.get(&self.name, range)?.ok_or_else(|| self.changed())
    }

    fn changed(&self) -> Error {
        Error::corrupt("the data file has changed since it was opened")
            .in_file(self.path())
            .help("open the checkpoint again")
    }

    /// Checks the blocks of an entry that the bytes from `first` up to `end` of it touch; each block once.
    pub(super) fn check(&self, at: usize, first: u64, end: u64) -> Result<()> {
        let (Some(entry), Some(passed)) = (self.entries.get(at), self.passed.get(at)) else { return Ok(()) };
        let Some(sums) = &entry.crc32c else { return Ok(()) };
        let blocks = sums.iter().zip(passed).zip((0_u64..).step_by(BLOCK_LEN_BYTES as usize));
        for ((&expected, passed), start) in blocks.skip((first / BLOCK_LEN_BYTES) as usize) {
            if start >= end {
                break;
            }
            if passed.load(Ordering::Acquire) {
                continue;
            }
            let len = BLOCK_LEN_BYTES.min(entry.len_bytes - start);
            let bytes = self.stored_bytes(entry.offset_bytes + start, len)?;
            advise(&bytes, Access::Soon);
            self.compare(entry.offset_bytes + start, expected, crc32c(&bytes))?;
            passed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Reads a block into `out`, and checks what it reads while the processor's cache has it.
    fn read_block(
        &self,
        offset_bytes: u64,
        out: &mut [u8],
        expected: Option<u32>,
        monitor: &Monitor,
    ) -> Result<()> {
        let (mut at, mut found) = (offset_bytes, Crc32c::new());
        for piece in out.chunks_mut(PIECE_LEN_BYTES) {
            self.store.read_into(&self.name, at, piece)?;
            found.update(piece);
            monitor.done(Stage::Read, piece.len() as u64)?;
            at += piece.len() as u64;
        }
        expected.map_or(Ok(()), |expected| self.compare(offset_bytes, expected, found.value()))
    }

    fn compare(&self, offset_bytes: u64, expected: u32, found: u32) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(Error::corrupt("an array fails its crc32c")
            .in_file(self.path())
            .at_byte(offset_bytes)
            .expected(format_args!("{expected:08x}"), format_args!("{found:08x}"))
            .help(
                "copy both files again; if the array was changed in place on purpose, load without \
                 verifying and save again",
            ))
    }

    /// Checks all entries, one after another.
    pub(super) fn check_all(&self) -> Result<()> {
        for (at, entry) in self.entries.iter().enumerate() {
            self.check(at, 0, entry.len_bytes).map_err(|error| about(error, &entry.path))?;
        }
        Ok(())
    }
}

impl Reader for PytreeDataReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.placed.tree
    }

    fn read_text(&self, leaf: usize) -> Result<Arc<str>> {
        let (info, at, entry) = self.leaf(leaf)?;
        if info.kind != LeafKind::Str {
            return Err(Error::invalid("the leaf is no text"));
        }
        self.data.check(at, 0, entry.len_bytes)?;
        let bytes = self.data.read(entry.offset_bytes, entry.len_bytes)?;
        let text = std::str::from_utf8(&bytes);
        text.map(Arc::from).map_err(|_| Error::corrupt("a text is no UTF-8").at_byte(entry.offset_bytes))
    }

    fn read_region(&self, leaf: usize, region: &Region, out: &mut [u8]) -> Result<()> {
        let (info, at, entry) = self.leaf(leaf)?;
        if region.is_empty() {
            return Ok(());
        }
        let (target, origin) = (region.shape(), vec![0; region.rank()]);
        let size = info.dtype.size_bytes();
        match region.contiguous_bytes(&info.shape, info.dtype) {
            Some((start, len_bytes)) => {
                self.data.check(at, start, start + len_bytes)?;
                let out = out.get_mut(..len_bytes as usize).unwrap_or_default();
                self.data.store.read_into(&self.data.name, entry.offset_bytes + start, out)?;
            }
            None => {
                self.data.check(at, 0, entry.len_bytes)?;
                let bytes = self.data.stored_bytes(entry.offset_bytes, entry.len_bytes)?;
                copy_region(size, &bytes, &info.shape, region, out, &target, &origin)?;
            }
        }
        if let Descr::Number { dtype, big_endian: true } = entry.descr {
            out.chunks_exact_mut(dtype.word_bytes()).for_each(<[u8]>::reverse);
        }
        Ok(())
    }

    fn view(&self, leaf: usize) -> Result<Option<Bytes>> {
        let Some(&Some(at)) = self.placed.entries.get(leaf) else { return Ok(None) };
        match self.data.entries.get(at) {
            Some(Entry { descr: Descr::Number { big_endian: true, .. }, .. }) | None => Ok(None),
            Some(entry) => self.data.mapped(entry.offset_bytes, entry.len_bytes),
        }
    }

    fn check_view(&self, leaf: usize) -> Result<()> {
        match self.placed.entries.get(leaf) {
            Some(&Some(at)) => self.data.check(at, 0, u64::MAX),
            _ => Ok(()),
        }
    }

    /// What has checksums, a block a thread.
    fn read_raw<'a>(
        &self,
        leaves: Vec<(usize, &'a mut [u8])>,
        unverified: bool,
        monitor: &Monitor,
    ) -> Result<Vec<(usize, &'a mut [u8])>> {
        let (mut blocks, mut others) = (Vec::new(), Vec::new());
        for (leaf, out) in leaves {
            let entry = self.leaf(leaf).ok().map(|(_, _, entry)| entry);
            let is_raw = |entry: &&Entry| {
                let is_swapped = matches!(entry.descr, Descr::Number { big_endian: true, .. });
                !is_swapped && entry.len_bytes == out.len() as u64
            };
            match entry.filter(is_raw).and_then(|entry| Some((entry, entry.crc32c.as_ref()?))) {
                Some((entry, sums)) => {
                    let offsets = (entry.offset_bytes..).step_by(BLOCK_LEN_BYTES as usize);
                    let parts = out.chunks_mut(BLOCK_LEN_BYTES as usize).zip(sums).zip(offsets);
                    blocks.extend(parts.map(|((out, &crc32c), offset)| {
                        (leaf, offset, out, Some(crc32c).filter(|_| !unverified))
                    }));
                }
                None => others.push((leaf, out)),
            }
        }
        let threads = if blocks.len() < 2 { 1 } else { pool::thread_count() };
        pool::for_each_parallel(
            threads,
            blocks,
            1,
            |_| 0,
            |(leaf, offset, out, crc32c)| {
                let read = self.data.read_block(offset, out, crc32c, monitor);
                read.map_err(|error| error.at_leaf(&self.placed.tree.path_of(leaf)))
            },
        )?;
        Ok(others)
    }

    fn read_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.placed.tree.len()).collect();
        let entry = |leaf: usize| {
            let at = self.placed.entries.get(leaf).copied().flatten()?;
            self.data.entries.get(at).map(|entry| entry.offset_bytes)
        };
        order.sort_by_key(|&leaf| entry(leaf));
        order
    }

    fn has_data_checksums(&self) -> bool {
        self.data.entries.iter().all(|entry| entry.crc32c.is_some())
    }
}

/// The data file that a manifest names, where that is not the one of the usual name.
///
/// # Errors
/// What reading the manifest says.
pub(crate) fn other_data_file(files: &Files) -> Result<Option<String>> {
    Ok(read_manifest(&files.manifest)?.extra.and_then(|extra| extra.data))
}

fn read_manifest(file: &Location) -> Result<Manifest> {
    let text = file
        .read_document("the manifest", Language::Python, MANIFEST_LEN_MAX_BYTES)?
        .ok_or_else(|| Error::io("cannot read the manifest", file, std::io::ErrorKind::NotFound.into()))?;
    Manifest::parse(&text).in_file(file)
}
