//! The reader of a manifest and its data file as a checkpoint.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::check::check_ranges;
use super::files::Files;
use super::manifest::{BLOCK_LEN_BYTES, Entry, MANIFEST_LEN_MAX_BYTES, Manifest};
use super::paths::about;
use super::tree::{Placed, check_paths, place};
use crate::npy::descr::Descr;
use crate::{Description, Reader, Rest, Standing};
use regrow_base::bytes::glance::Language;
use regrow_base::error::{Error, ErrorKind, Result, ResultExt};
use regrow_storage::location::Location;
use regrow_store::reads::{
    BlobRef, BlockTable, CheckFor, Checked, Checks, Checksum, Coded, Extent, KeyedBlob, Source, Text, Words,
};
use regrow_store::{Blob, ByteRange, Store, StoreExt, resolve_range};
use regrow_tree::array::{Region, copy_region};
use regrow_tree::tree::{LeafInfo, LeafKind, Tree};

const WORDS: Words =
    Words { what: |_, _| "an array fails its crc32c".to_owned(), help: HELP, help_if_zeros: HELP };

const HELP: &str = "copy both files again; if you changed the array in place, load without verifying and \
    save again";

/// An opened manifest, with its data mapped where there are maps.
#[derive(Debug)]
pub(super) struct PytreeDataReader {
    description: Description,
    placed: Placed,
    data: DataFile,
}

/// The data file, with its entries in the manifest.
#[derive(Debug)]
pub(super) struct DataFile {
    pub(super) entries: Vec<Entry>,
    store: Arc<dyn Store>,
    name: Vec<u8>,
    blob: KeyedBlob,
    /// For each entry, its blocks; `None` without checksums.
    blocks: Vec<Option<BlockTable>>,
    has_checksums: bool,
}

impl PytreeDataReader {
    /// Reads the manifest and checks all of it against the length of the data file; with `salvage`,
    /// the data file may be truncated.
    pub(super) fn open(files: &Files, salvage: bool) -> Result<Self> {
        let (manifest, data) = DataFile::open(files, salvage)?;
        let placed = place(&manifest).in_file(&files.manifest)?;
        let has_checksums = manifest.extra.is_some();
        let mut notes = Vec::new();
        if !has_checksums && !data.entries.is_empty() {
            notes.push("the manifest has no checksums: regrow cannot detect damage of the data".to_owned());
        }
        if files.is_unfinished() {
            notes.push(format!(
                "the save was killed before it renamed both files; the next save to the same path \
                 completes it ({})",
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
    pub(super) fn open(files: &Files, takes_any_length: bool) -> Result<(Manifest, Self)> {
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
        // Map the file now: reads then stay with this file, even if a save puts another file in its
        // place.
        store.map(&name)?;
        let len_bytes = store.len_bytes(&name)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "the data file of this manifest is missing")
                .in_file(&data)
                .help("copy both files: the manifest has no data")
        })?;
        let end = if takes_any_length { u64::MAX } else { len_bytes };
        check_ranges(&manifest.entries, end).in_file(&files.manifest)?;
        let blob = KeyedBlob::new(store.clone(), &name, len_bytes, changed);
        let entries = manifest.entries.clone();
        let blocks: Vec<_> = entries.iter().map(blocks_of).collect::<Result<_>>().in_file(&files.manifest)?;
        let has_checksums = blocks.iter().all(Option::is_some);
        Ok((manifest, Self { entries, store, name, blob, blocks, has_checksums }))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.store.describe(&self.name)
    }

    fn extent(&self, at: usize, entry: &Entry) -> Extent<'_> {
        let end_bytes = entry.offset_bytes + entry.len_bytes;
        let table = self.blocks.get(at).and_then(Option::as_ref);
        Extent {
            blob: BlobRef::Kept(&self.blob),
            offset_bytes: entry.offset_bytes,
            len_bytes: entry.len_bytes,
            checks: table.map(|table| Checks { table, start_bytes: entry.offset_bytes, end_bytes }),
            is_viewable: true,
            working_len_bytes: None,
        }
    }

    /// A range of the file, as a slice of its map where there is one.
    fn stored_bytes(&self, offset_bytes: u64, len_bytes: u64) -> Result<Bytes> {
        if let Some(map) = self.blob.map()? {
            let range = ByteRange::Span { offset_bytes, len_bytes };
            let part = resolve_range(range, map.len() as u64).map_err(|error| error.in_file(self.path()))?;
            return Ok(map.slice(part.start as usize..part.end as usize));
        }
        let range = ByteRange::Span { offset_bytes, len_bytes };
        self.store.get(&self.name, range)?.ok_or_else(|| changed().in_file(self.path()))
    }

    /// Checks the blocks of an entry from its byte `first` up to its byte `end`, each block once.
    pub(super) fn check(&self, at: usize, first: u64, end: u64) -> Result<()> {
        match (self.entries.get(at), self.blocks.get(at)) {
            (Some(Entry { offset_bytes, .. }), Some(Some(table))) => Checked { blob: &self.blob, table }
                .check(offset_bytes.saturating_add(first), offset_bytes.saturating_add(end), CheckFor::Views),
            _ => Ok(()),
        }
    }

    pub(super) fn check_all(&self) -> Result<()> {
        for (at, entry) in self.entries.iter().enumerate() {
            self.check(at, 0, entry.len_bytes).map_err(|error| about(error, &entry.path))?;
        }
        Ok(())
    }
}

fn changed() -> Error {
    Error::corrupt("the data file changed after it was opened").help("open the checkpoint again")
}

fn blocks_of(entry: &Entry) -> Result<Option<BlockTable>> {
    let range = entry.offset_bytes..entry.offset_bytes.saturating_add(entry.len_bytes);
    let table =
        |sums: &Vec<u32>| BlockTable::new(range, BLOCK_LEN_BYTES, Checksum::Crc32c, sums.clone(), WORDS);
    entry.crc32c.as_ref().map(table).transpose()
}

impl Reader for PytreeDataReader {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tree(&self) -> &Tree<LeafInfo> {
        &self.placed.tree
    }

    fn source(&self, leaf: usize) -> Result<Source<'_>> {
        let Ok((info, at, entry)) = self.leaf(leaf) else { return Ok(Source::Nothing) };
        Ok(match entry.descr {
            _ if info.kind == LeafKind::Str => Source::Text(Text::Stored(self.data.extent(at, entry))),
            Descr::Number { big_endian: true, .. } => Source::Coded(Coded::in_chunks(info.chunk_len_bytes())),
            _ => Source::Raw(self.data.extent(at, entry)),
        })
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

    fn holders(&self, leaf: usize) -> Result<Vec<(PathBuf, u64)>> {
        let (info, at, entry) = self.leaf(leaf)?;
        Ok(vec![(self.data.extent(at, entry).blob.describe(), info.len_bytes())])
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

    fn check_rest(&self) -> Result<Rest> {
        Ok(Rest::default())
    }

    fn standing(&self) -> Standing<'_> {
        Standing { has_data_checksums: self.data.has_checksums, ..Standing::default() }
    }
}

/// The data file that a manifest refers to; `None` for the usual name.
///
/// # Errors
/// Errors of reading the manifest.
pub fn other_data_file(files: &Files) -> Result<Option<String>> {
    Ok(read_manifest(&files.manifest)?.extra.and_then(|extra| extra.data))
}

fn read_manifest(file: &Location) -> Result<Manifest> {
    let text = file
        .read_document("the manifest", Language::Python, MANIFEST_LEN_MAX_BYTES)?
        .ok_or_else(|| Error::io("cannot read the manifest", file, std::io::ErrorKind::NotFound.into()))?;
    Manifest::parse(&text).in_file(file)
}
